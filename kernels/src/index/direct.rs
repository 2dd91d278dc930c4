//! The rows of small keys: an array in which a key is the place of its row.
//!
//! Ids that a model counts, such as those of a variable's rows, are small numbers most of which
//! occur. For them 4 bytes at a known place are less than an entry of a shard, and need no search.

use crate::mem::{prefetch, Pages, NONE};
use crate::Result;
use std::ops::Range;

// A key that is cast to a place is the same number, or no place.
const _: () = assert!(usize::BITS == i64::BITS);

/// An array is worth having for at least so many keys, as a power of two.
const LEAST_BITS: usize = 6;

/// Keys from 2 to this power on are in shards. It is 256 MiB of places.
const MOST_BITS: usize = 26;

/// One key of so many has an entry where the array is made: it takes no more memory then than the
/// shards, whose entries take 16 bytes and more.
const SPARSE: u64 = 4;

/// Where one key of so many has an entry only, or fewer, the array is made shorter.
const TOO_SPARSE: u64 = 16;

/// How many times its length the array has address space for.
const ROOM: usize = 8;

/// The entries of the keys from 0 to the length of the array.
pub(super) struct Direct {
    /// By key its row, inverted: 0 is a key without an entry.
    rows: Pages<u32>,
    /// Entries.
    len: u64,
    /// How many keys of each bit length have entries, here or in a shard, or more: those that come
    /// twice count twice.
    lengths: [u64; MOST_BITS + 1],
}

/// The number of a key's bits, if the array may be as long.
#[inline(always)]
fn bits(key: i64) -> Option<usize> {
    let bits = (i64::BITS - key.leading_zeros()) as usize;
    (bits <= MOST_BITS).then_some(bits)
}

impl Direct {
    /// An empty array.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(super) fn new() -> Result<Direct> {
        Ok(Direct {
            rows: Pages::new(0)?,
            len: 0,
            lengths: [0; MOST_BITS + 1],
        })
    }

    /// Entries.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The keys that are here.
    pub(super) fn keys(&self) -> Range<i64> {
        0..self.rows.len() as i64
    }

    /// Bytes of the array.
    pub(super) fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// The row of a key, [`NONE`] if it has none; `None` if it is no key of the array.
    #[inline(always)]
    pub(super) fn row(&self, key: i64) -> Option<u32> {
        self.rows.get(key as usize).map(|&row| !row)
    }

    /// Asks for the place of a key; returns whether it has one.
    #[inline(always)]
    pub(super) fn ask(&self, key: i64) -> bool {
        self.rows.get(key as usize).map(prefetch).is_some()
    }

    /// Sets the row of a key of the array, [`NONE`] for none. Returns the one that it had.
    #[inline]
    pub(super) fn set(&mut self, key: i64, row: u32) -> u32 {
        let before = !std::mem::replace(&mut self.rows[key as usize], !row);
        self.len += u64::from(before == NONE);
        self.len -= u64::from(row == NONE);
        before
    }

    /// Notes that a key has an entry now, in a shard or here.
    #[inline(always)]
    pub(super) fn came(&mut self, key: i64) {
        if let Some(bits) = bits(key) {
            self.lengths[bits] += 1;
        }
    }

    /// Notes that a key has no entry any more.
    pub(super) fn gone(&mut self, key: i64) {
        if let Some(bits) = bits(key) {
            self.lengths[bits] = self.lengths[bits].saturating_sub(1);
        }
    }

    /// The length that suits the entries and those of `more` keys, if the array is to be longer.
    pub(super) fn longer(&self, more: &[i64]) -> Option<usize> {
        let mut lengths = self.lengths;
        more.iter()
            .filter_map(|&key| bits(key))
            .for_each(|bits| lengths[bits] += 1);
        let wanted = suiting(&lengths);
        (wanted > self.rows.len()).then_some(wanted)
    }

    /// The length that suits the entries, if far too few of the array's keys have some.
    pub(super) fn shorter(&self) -> Option<usize> {
        let wanted = suiting(&self.lengths);
        let is_shorter = wanted < self.rows.len() && self.len * TOO_SPARSE < self.rows.len() as u64;
        is_shorter.then_some(wanted)
    }

    /// Makes the array longer.
    ///
    /// # Errors
    /// `ResourceExhausted`; it is as it was.
    pub(super) fn extend(&mut self, len: usize) -> Result<()> {
        let mut tail = Vec::new();
        match self.rows.extend(len, &mut tail)? {
            Some(kept) => self.rows[kept..kept + tail.len()].copy_from_slice(&tail),
            None => {
                let most = len.saturating_mul(ROOM).min(1 << MOST_BITS);
                let mut rows = Pages::with_room(len, most)?;
                rows[..self.rows.len()].copy_from_slice(&self.rows);
                self.rows = rows;
            }
        }
        Ok(())
    }

    /// Makes the array shorter, without the entries behind its new end.
    ///
    /// # Errors
    /// `ResourceExhausted`; it is as it was.
    pub(super) fn cut(&mut self, len: usize) -> Result<()> {
        let mut rows = Pages::with_room(len, len.saturating_mul(ROOM).min(1 << MOST_BITS))?;
        rows.copy_from_slice(&self.rows[..len]);
        self.len = rows.iter().filter(|&&row| row != 0).count() as u64;
        self.rows = rows;
        Ok(())
    }

    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        self.lengths = [0; MOST_BITS + 1];
        self.len = 0;
        match Pages::new(0) {
            Ok(rows) => self.rows = rows,
            Err(_) => self.rows.fill(0),
        }
    }

    /// Calls `f` with the entries of some keys.
    pub(super) fn each(&self, keys: Range<usize>, mut f: impl FnMut(i64, u32)) {
        for (key, &row) in (keys.start as i64..).zip(&self.rows[keys]) {
            if row != 0 {
                f(key, !row);
            }
        }
    }
}

/// The greatest length of an array of which keys of these lengths fill enough; 0 for none.
fn suiting(lengths: &[u64; MOST_BITS + 1]) -> usize {
    let (mut keys, mut suits) = (0, 0);
    for (bits, count) in lengths.iter().enumerate() {
        keys += count;
        if bits >= LEAST_BITS && keys * SPARSE >= 1 << bits {
            suits = 1 << bits;
        }
    }
    suits
}
