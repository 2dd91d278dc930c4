//! One cache line of an index: five keys with their rows.

use super::Zeroable;
use std::hint::select_unpredictable;

/// No row.
pub(crate) const NONE: u32 = u32::MAX;

/// Entries of one bucket.
const ENTRIES: usize = 5;

/// Words of a bucket.
const WORDS: usize = 8;

/// Five entries.
///
/// ```text
/// | key 0 | key 1 | key 2 | key 3 | key 4 | row 0 row 1 row 2 row 3 row 4 | passed |
///   8 bytes each, inverted, 0 = free        4 bytes each, inverted          4 bytes
/// ```
/// Inverted, so that zeros are a bucket without entries and a search for the padding key -1 ends at
/// no row.
///
/// An entry lies in the first bucket from its home on that had room when it came; `passed` counts
/// the entries that went past this bucket, so that a search ends where none did.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    pub(crate) keys: [i64; ENTRIES],
    pub(crate) rows: [u32; ENTRIES],
    pub(crate) passed: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

// SAFETY: integers only; zeros are a bucket without entries.
unsafe impl Zeroable for Bucket {
    const ZERO: Bucket = Bucket {
        keys: [0; ENTRIES],
        rows: [0; ENTRIES],
        passed: 0,
    };
}

impl Bucket {
    /// The row of `key` if its entry is in this bucket, else [`NONE`].
    #[inline(always)]
    pub(crate) fn row(&self, key: i64) -> u32 {
        let wanted = !key;
        // Without a branch: which keys have entries cannot be foreseen. Of inverted rows all bits
        // but those of the entry's are 0, and without an entry all are, which is `NONE` inverted.
        let mut row = 0;
        for (&key, &of_key) in self.keys.iter().zip(&self.rows) {
            row |= select_unpredictable(key == wanted, of_key, 0);
        }
        !row
    }

    /// Whether no entry of `key` is in this bucket.
    #[inline(always)]
    pub(crate) fn lacks(&self, key: i64) -> bool {
        self.equal(!key) == 0
    }

    /// Writes an entry, inverted, to the first free place; returns whether there is one.
    #[inline(always)]
    pub(crate) fn put(&mut self, key: i64, row: u32) -> bool {
        let place = self.equal(0).trailing_zeros() as usize;
        let free = place < ENTRIES;
        if free {
            self.keys[place] = key;
            self.rows[place] = row;
        }
        free
    }

    /// In which places a key, inverted, stands: a bit each.
    #[inline(always)]
    fn equal(&self, wanted: i64) -> u32 {
        // SAFETY: a bucket is 64 bytes of integers, aligned to 64, without padding (asserted
        // above), and so are 8 words.
        let words: &[i64; WORDS] = unsafe { &*std::ptr::from_ref(self).cast() };
        // All words are compared, because that is one instruction where vectors are wide enough;
        // the rest are masked off.
        let mut equal = 0_u32;
        for (at, &word) in words.iter().enumerate() {
            equal |= u32::from(word == wanted) << at;
        }
        equal & ((1 << ENTRIES) - 1)
    }

    /// Whether there is no free place.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.equal(0) == 0
    }

    /// Whether an entry whose home is here or before may lie further on.
    #[inline(always)]
    pub(crate) fn is_passed(&self) -> bool {
        self.passed != 0
    }
}
