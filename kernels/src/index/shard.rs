//! One shard of the index: an open-addressed array of cache-line buckets that grows where it is, in
//! one streaming pass.

use super::hash::{hash, scale};
use crate::mem::{Bucket, Pages, Zeroable, NONE};
use crate::Result;

/// Entries per bucket at which a shard grows: 80% of its places.
const FULL: usize = 4;

/// How much longer the array becomes.
const GROWTH: f64 = 1.3;

/// The entries whose hashes share their upper bits. Callers pass the hash without those bits,
/// shifted up.
///
/// Buckets are in the order of the hashes, whatever the length of the array: growth goes through it
/// once, from its end to its start, and an entry moves towards the end.
pub(crate) struct Shard {
    buckets: Pages<Bucket>,
    len: usize,
    /// 0..1: shards of different phase grow at different moments.
    phase: f64,
    /// Entries that the shard of a full table has, about: no address space is taken for more.
    most: usize,
}

/// How many times its length an array has address space for, if a full table needs that much.
const ROOM: usize = 8;

impl Shard {
    /// An empty shard for about `most` entries.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(crate) fn new(phase: f64, most: usize) -> Result<Shard> {
        Ok(Shard {
            buckets: Pages::new(1)?,
            len: 0,
            phase,
            most,
        })
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the array.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    /// The bucket where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn home(&self, local: u64) -> &Bucket {
        &self.buckets[scale(local, self.buckets.len())]
    }

    /// The row of `key`, or [`NONE`].
    #[inline]
    pub(crate) fn row(&self, key: i64, local: u64) -> u32 {
        let mut at = scale(local, self.buckets.len());
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let row = bucket.row(key);
            if row != NONE || !bucket.is_passed() {
                return row;
            }
            at = next(at, self.buckets.len());
        }
        NONE
    }

    /// Makes room for `more` entries. `tail` is working memory.
    ///
    /// # Errors
    /// `ResourceExhausted`; the shard is as it was.
    pub(crate) fn reserve(&mut self, more: usize, bits: u32, tail: &mut Vec<Bucket>) -> Result<()> {
        let wanted = self.len.saturating_add(more).div_ceil(FULL);
        let old = self.buckets.len();
        if wanted > old {
            match self.buckets.extend(class(wanted, self.phase), tail)? {
                Some(kept) => spread(&mut self.buckets, old, kept, tail, bits),
                None => self.rebuild(wanted, bits)?,
            }
        }
        Ok(())
    }

    /// Gives memory back if the array is far too long.
    ///
    /// # Errors
    /// `ResourceExhausted`; the shard is as it was.
    pub(crate) fn shrink(&mut self, bits: u32) -> Result<()> {
        let wanted = self.len.div_ceil(FULL);
        if wanted < self.buckets.len() / 4 {
            self.rebuild(wanted, bits)?;
        }
        Ok(())
    }

    /// Adds an entry, for which there must be room; returns `false` and changes nothing if the key
    /// has one.
    #[inline]
    pub(crate) fn insert(&mut self, key: i64, local: u64, row: u32) -> bool {
        let home = scale(local, self.buckets.len());
        let bucket = &mut self.buckets[home];
        // Most entries come to a home that nobody has passed and that has room.
        if bucket.is_passed() || !bucket.lacks(key) || !bucket.put(!key, !row) {
            if self.find(key, local).is_some() {
                return false;
            }
            put(&mut self.buckets, key, local, row);
        }
        self.len += 1;
        true
    }

    /// Gives the entry of `key` another row; returns whether there is one.
    pub(crate) fn renumber(&mut self, key: i64, local: u64, row: u32) -> bool {
        let found = self.find(key, local);
        if let Some((at, entry)) = found {
            self.buckets[at].rows[entry] = !row;
        }
        found.is_some()
    }

    /// Removes the entry of `key`, which is not padding, and returns its row, or [`NONE`].
    pub(crate) fn remove(&mut self, key: i64, local: u64) -> u32 {
        let Some((at, entry)) = self.find(key, local) else {
            return NONE;
        };
        let mut passed = scale(local, self.buckets.len());
        while passed != at {
            // At the top the count no longer knows; such a bucket stays passed for ever.
            let bucket = &mut self.buckets[passed];
            bucket.passed -= u32::from(bucket.passed != u32::MAX);
            passed = next(passed, self.buckets.len());
        }
        self.len -= 1;
        let bucket = &mut self.buckets[at];
        bucket.keys[entry] = 0;
        !std::mem::take(&mut bucket.rows[entry])
    }

    /// Removes all entries and gives the memory back.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        match Pages::new(1) {
            Ok(buckets) => self.buckets = buckets,
            Err(_) => self.buckets.fill(Bucket::ZERO),
        }
    }

    /// Calls `f` with every key and its row, in no useful order.
    pub(crate) fn each(&self, f: impl FnMut(i64, u32)) {
        self.look(0, usize::MAX, f);
    }

    /// Calls `f` with about `most` entries from the bucket `from` on. Returns the bucket to go on
    /// from, `None` at the end.
    pub(crate) fn look(
        &self,
        from: usize,
        most: usize,
        mut f: impl FnMut(i64, u32),
    ) -> Option<usize> {
        let start = from.min(self.buckets.len());
        let end = self.buckets.len().min(start.saturating_add(most / 5 + 1));
        for bucket in &self.buckets[start..end] {
            for (&key, &row) in bucket.keys.iter().zip(&bucket.rows) {
                if key != 0 {
                    f(!key, !row);
                }
            }
        }
        (end < self.buckets.len()).then_some(end)
    }

    /// Where the entry of `key` is.
    fn find(&self, key: i64, local: u64) -> Option<(usize, usize)> {
        let wanted = !key;
        let mut at = scale(local, self.buckets.len());
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            if let Some(entry) = bucket.keys.iter().position(|&key| key == wanted) {
                return Some((at, entry));
            }
            if !bucket.is_passed() {
                return None;
            }
            at = next(at, self.buckets.len());
        }
        None
    }

    /// Moves all entries to an array of at least `wanted` buckets.
    fn rebuild(&mut self, wanted: usize, bits: u32) -> Result<()> {
        let len = class(wanted, self.phase);
        let full = class(self.most.div_ceil(FULL), self.phase);
        let mut buckets = Pages::with_room(len, full.min(len.saturating_mul(ROOM)))?;
        for bucket in self.buckets.iter() {
            for (&key, &row) in bucket.keys.iter().zip(&bucket.rows) {
                if key != 0 {
                    put(&mut buckets, !key, hash(!key) << bits, !row);
                }
            }
        }
        self.buckets = buckets;
        Ok(())
    }
}

/// Moves the entries of the first `old` buckets to where they belong now that the array is longer.
/// The buckets from `kept` on are in `tail`, and those behind `kept` in the array are empty.
///
/// Goes from the last old bucket to the first, so that an entry moves into buckets that have been
/// read. Who is to go before them (his home was near the start, and he lay far from it) passes by
/// the unread ones, and so does who comes around the end. So `passed` of an unread bucket that
/// somebody has passed by, and of all behind it, counts anew.
fn spread(buckets: &mut [Bucket], old: usize, kept: usize, tail: &[Bucket], bits: u32) {
    // From here on `passed` counts anew.
    let mut anew = kept;
    for at in (0..old).rev() {
        let bucket = match tail.get(at.wrapping_sub(kept)) {
            Some(&bucket) if at >= kept => bucket,
            _ => {
                anew = count_anew(buckets, at, anew);
                let place = &mut buckets[at];
                let bucket = *place;
                place.keys = Bucket::ZERO.keys;
                place.rows = Bucket::ZERO.rows;
                bucket
            }
        };
        for (&key, &row) in bucket.keys.iter().zip(&bucket.rows) {
            if key != 0 {
                let n = buckets.len();
                let mut to = scale(hash(!key) << bits, n);
                // Read buckets have room: they are more than they were, and hold no more entries.
                while to < at || !buckets[to].put(key, row) {
                    anew = count_anew(buckets, to, anew);
                    buckets[to].passed = buckets[to].passed.saturating_add(1);
                    to = next(to, n);
                }
            }
        }
    }
}

/// Forgets what `passed` the buckets from `at` to `anew`; returns from where on it counts anew now.
#[inline(always)]
fn count_anew(buckets: &mut [Bucket], at: usize, anew: usize) -> usize {
    if at < anew {
        buckets[at..anew].iter_mut().for_each(|one| one.passed = 0);
    }
    at.min(anew)
}

/// Writes an entry to the first free place from its home on; there is one, because a shard grows
/// before it is full.
#[inline]
fn put(buckets: &mut [Bucket], key: i64, local: u64, row: u32) {
    let n = buckets.len();
    let mut at = scale(local, n);
    for _ in 0..n {
        if buckets[at].put(!key, !row) {
            return;
        }
        buckets[at].passed = buckets[at].passed.saturating_add(1);
        at = next(at, n);
    }
    debug_assert!(false, "a shard is full");
}

#[inline(always)]
fn next(at: usize, n: usize) -> usize {
    if at + 1 == n {
        0
    } else {
        at + 1
    }
}

/// The smallest size of a shard of this phase that has `wanted` buckets: powers of the growth,
/// moved by the phase.
fn class(wanted: usize, phase: f64) -> usize {
    let wanted = wanted.max(1);
    let step = ((wanted as f64).ln() / GROWTH.ln() - phase).ceil();
    let size = GROWTH.powf(step + phase).ceil();
    // Rounding may miss by one bucket in either direction.
    (size as usize).max(wanted)
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
