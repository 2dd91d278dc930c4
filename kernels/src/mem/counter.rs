//! One counter of a key that has no row.

use super::Zeroable;

/// A key with two numbers.
///
/// ```text
/// | key: 8 bytes, inverted, 0 = free | count: 4 bytes | last: 4 bytes |
/// ```
/// Inverted, so that zeros are a free place and the padding key -1 has none.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Counter {
    key: i64,
    /// How often the key was counted.
    pub(crate) count: u32,
    /// When it was last seen.
    pub(crate) last: u32,
}

const _: () = assert!(size_of::<Counter>() == 16);

// SAFETY: integers only; zeros are a free place.
unsafe impl Zeroable for Counter {
    const ZERO: Counter = Counter::FREE;
}

impl Counter {
    /// A place without a key.
    pub(crate) const FREE: Counter = Counter {
        key: 0,
        count: 0,
        last: 0,
    };

    /// A counter of `key`, which is not padding.
    pub(crate) fn new(key: i64, count: u32, last: u32) -> Counter {
        Counter {
            key: !key,
            count,
            last,
        }
    }

    /// The key; padding for a free place.
    #[inline(always)]
    pub(crate) fn key(&self) -> i64 {
        !self.key
    }

    /// Whether there is no key.
    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        self.key == 0
    }
}
