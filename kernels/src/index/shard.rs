//! One shard of the index: an open-addressed array of cache-line buckets that grows in one
//! streaming pass.

use super::hash::{hash, scale};
use crate::mem::{Bucket, Pages, NONE};
use crate::Result;

/// Entries per bucket at which a shard grows: 80% of its places.
const FULL: usize = 4;

/// How much longer the array becomes.
const GROWTH: f64 = 1.3;

/// The entries whose hashes share their upper bits. Callers pass the hash without those bits,
/// shifted up.
///
/// Buckets are in the order of the hashes, whatever the length of the array: growth reads and
/// writes forwards.
pub(crate) struct Shard {
    buckets: Pages<Bucket>,
    len: usize,
    /// 0..1: shards of different phase grow at different moments.
    phase: f64,
}

impl Shard {
    /// An empty shard.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(crate) fn new(phase: f64) -> Result<Shard> {
        Ok(Shard {
            buckets: Pages::new(1)?,
            len: 0,
            phase,
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

    /// Makes room for `more` entries.
    ///
    /// # Errors
    /// `ResourceExhausted`; the shard is as it was.
    pub(crate) fn reserve(&mut self, more: usize, bits: u32) -> Result<()> {
        let wanted = self.len.saturating_add(more).div_ceil(FULL);
        if wanted > self.buckets.len() {
            self.rebuild(wanted, bits)?;
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
        if self.find(key, local).is_some() {
            return false;
        }
        put(&mut self.buckets, key, local, row);
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
            Err(_) => self.buckets.fill(Bucket {
                keys: [0; 5],
                rows: [0; 5],
                passed: 0,
            }),
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
        let mut buckets = Pages::new(class(wanted, self.phase))?;
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

/// Writes an entry to the first free place from its home on; there is one, because a shard grows
/// before it is full.
#[inline]
fn put(buckets: &mut [Bucket], key: i64, local: u64, row: u32) {
    let n = buckets.len();
    let mut at = scale(local, n);
    for _ in 0..n {
        let bucket = &mut buckets[at];
        if let Some(entry) = bucket.keys.iter().position(|&key| key == 0) {
            bucket.keys[entry] = !key;
            bucket.rows[entry] = !row;
            return;
        }
        bucket.passed = bucket.passed.saturating_add(1);
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
mod tests {
    use super::*;

    fn filled(n: i64) -> Shard {
        let mut shard = Shard::new(0.5).unwrap();
        for key in 0..n {
            shard.reserve(1, 0).unwrap();
            assert!(shard.insert(key * 977, hash(key * 977), key as u32));
        }
        shard
    }

    #[test]
    fn entries_survive_growth() {
        let shard = filled(20_000);
        for key in 0..20_000 {
            assert_eq!(shard.row(key * 977, hash(key * 977)), key as u32);
        }
        assert_eq!(shard.row(1, hash(1)), NONE);
        assert!(shard.bytes() as f64 / 20_000.0 <= 16.0 * GROWTH + 0.1);
    }

    #[test]
    fn removal_leaves_the_others_findable_and_no_trace() {
        let mut shard = filled(5_000);
        for key in (0..5_000).filter(|key| key % 3 != 0) {
            assert_eq!(shard.remove(key * 977, hash(key * 977)), key as u32);
            assert_eq!(shard.remove(key * 977, hash(key * 977)), NONE);
        }
        for key in 0..5_000 {
            let expected = if key % 3 == 0 { key as u32 } else { NONE };
            assert_eq!(shard.row(key * 977, hash(key * 977)), expected);
        }
        for key in (0..5_000).filter(|key| key % 3 == 0) {
            shard.remove(key * 977, hash(key * 977));
        }
        assert_eq!(shard.len(), 0);
        assert!(shard.buckets.iter().all(|bucket| bucket.passed == 0));
        shard.shrink(0).unwrap();
        assert!(shard.bytes() <= 128);
    }

    #[test]
    fn keys_with_one_home_go_to_the_next_buckets_and_around_the_end() {
        let mut shard = Shard::new(0.0).unwrap();
        shard.reserve(40, 0).unwrap();
        for key in 0..30 {
            assert!(shard.insert(key, u64::MAX, key as u32));
            assert!(!shard.insert(key, u64::MAX, 99));
        }
        assert!((0..30).all(|key| shard.row(key, u64::MAX) == key as u32));
        assert_eq!(shard.remove(3, u64::MAX), 3);
        assert_eq!(shard.row(29, u64::MAX), 29);
    }

    #[test]
    fn sizes_are_spread_over_one_growth_step() {
        let sizes: Vec<usize> = (0..8).map(|at| class(1000, f64::from(at) / 8.0)).collect();
        assert!(
            sizes.iter().all(|&size| (1000..=1301).contains(&size)),
            "{sizes:?}"
        );
        assert!(
            sizes.iter().max() > Some(&1200) && sizes.iter().min() < Some(&1080),
            "{sizes:?}"
        );
    }
}
