//! What is known of one key, and its form in one word.

/// How often a key was counted, and when it was last seen: in seconds since 1970, 0 without a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) count: u32,
    pub(crate) last: u32,
}

impl Seen {
    /// Whether nothing is known.
    pub(crate) fn is_nothing(self) -> bool {
        self == Seen::default()
    }

    pub(super) fn add(self, count: u32, last: u32) -> Seen {
        Seen {
            count: self.count.saturating_add(count),
            last: self.last.max(last),
        }
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.count) << 32 | u64::from(self.last)
    }

    pub(super) fn unpack(word: u64) -> Seen {
        Seen {
            count: (word >> 32) as u32,
            last: word as u32,
        }
    }
}
