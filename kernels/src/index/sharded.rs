//! The index of a table: key -> row number, in shards chosen by the upper bits of the hash.

use super::hash::{hash, top};
use super::shard::Shard;
use crate::mem::{prefetch, prefetch_behind, Bucket, NONE};
use crate::sort::Sizes;
use crate::sync::Mutex;
use crate::{Pool, Result, PADDING};

/// Entries that a full table should have in one shard: large enough for huge pages, small enough to
/// grow quickly.
const SHARD: u64 = 512 << 10;

/// The most shards, as a power of two.
const MOST_BITS: u32 = 10;

/// Below this many entries the caller inserts alone.
const LEAST: usize = 2048;

/// All entries of one table.
pub(crate) struct Index {
    shards: Vec<Shard>,
    bits: u32,
    version: u64,
    removals: u64,
}

impl Index {
    /// An empty index for at most `capacity` entries.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(crate) fn new(capacity: u64) -> Result<Index> {
        let bits = capacity
            .div_ceil(SHARD)
            .next_power_of_two()
            .ilog2()
            .min(MOST_BITS);
        let entries = usize::try_from(capacity >> bits).unwrap_or(usize::MAX);
        // Shards are not equally full.
        let most = entries.saturating_add(entries / 64);
        let shards = (0..1_u32 << bits)
            .map(|at| {
                // Neighbours in number are far apart in phase.
                let spread = f64::from(at.reverse_bits()) / f64::from(u32::MAX);
                Shard::new(spread, most)
            })
            .collect::<Result<_>>()?;
        Ok(Index {
            shards,
            bits,
            version: 0,
            removals: 0,
        })
    }

    /// Entries.
    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len() as u64).sum()
    }

    /// Bytes of all shards.
    pub(crate) fn bytes(&self) -> u64 {
        let heads = self.shards.len() * size_of::<Shard>();
        (self.shards.iter().map(Shard::bytes).sum::<usize>() + heads) as u64
    }

    /// Changes whenever an entry comes, goes or gets another row.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Changes whenever an entry goes or gets another row.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// Continues the counts of the index that this one replaces.
    pub(crate) fn follow(&mut self, old: &Index) {
        self.version = self.version.max(old.version) + 1;
        self.removals = self.removals.max(old.removals) + 1;
    }

    /// The bucket where the search for a hash begins: prefetch it, then ask
    /// [`Index::read_homes`].
    #[inline(always)]
    pub(crate) fn home(&self, hash: u64) -> &Bucket {
        self.shards[top(hash, self.bits)].home(hash << self.bits)
    }

    /// The row of `key` as far as its home tells, or [`NONE`], and whether it may lie further on:
    /// then the bucket behind is on its way for [`Index::row_beyond`]. No branch, because keys with
    /// and without a row come in no order that could be foreseen.
    #[inline(always)]
    fn row_at_home(&self, key: i64) -> (u32, bool) {
        let home = self.home(hash(key));
        let row = home.row(key);
        let beyond = (row == NONE) & home.is_passed();
        prefetch_behind(home, usize::from(beyond));
        (row, beyond)
    }

    /// Reads the homes of keys, which were asked for. `rows` gets what they tell, and `beyond`,
    /// which has room for all, the places of those of which [`Index::read_beyond`] has to find the
    /// rows, from `first` on.
    ///
    /// Returns how many these are.
    #[inline(always)]
    pub(crate) fn read_homes<T: Copy + Into<i64>>(
        &self,
        keys: &[T],
        rows: &mut [u32],
        first: usize,
        beyond: &mut [u32],
    ) -> usize {
        // Listed without a branch.
        let mut count = 0;
        for (at, (&key, row)) in (first..).zip(keys.iter().zip(rows)) {
            let (found, further) = self.row_at_home(key.into());
            *row = found;
            beyond[count] = at as u32;
            count += usize::from(further);
        }
        count
    }

    /// Finds the rows of the keys at some places, which may lie behind their homes.
    #[inline(always)]
    pub(crate) fn read_beyond<T: Copy + Into<i64>>(
        &self,
        keys: &[T],
        rows: &mut [u32],
        beyond: &[u32],
    ) {
        for &at in beyond {
            rows[at as usize] = self.row_beyond(keys[at as usize].into());
        }
    }

    /// The row of `key`, or [`NONE`].
    #[inline]
    pub(crate) fn row(&self, key: i64) -> u32 {
        let home = self.home(hash(key));
        match home.row(key) {
            NONE if home.is_passed() => self.row_beyond(key),
            row => row,
        }
    }

    /// The row of a key that may lie behind its home, or [`NONE`].
    #[cold]
    fn row_beyond(&self, key: i64) -> u32 {
        let hash = hash(key);
        self.shards[top(hash, self.bits)].row(key, hash << self.bits)
    }

    /// Makes room for these keys.
    ///
    /// # Errors
    /// `ResourceExhausted`; no entry is lost.
    pub(crate) fn reserve(&mut self, pool: &Pool, keys: &[i64]) -> Result<()> {
        let bits = self.bits;
        let mut more = vec![0_usize; self.shards.len()];
        keys.iter().for_each(|&key| more[top(hash(key), bits)] += 1);
        let work: Vec<_> = self
            .shards
            .iter_mut()
            .zip(more)
            .filter(|(_, more)| *more > 0)
            .collect();
        let work = chunked(
            work,
            if keys.len() < LEAST {
                1
            } else {
                pool.threads() * 4
            },
        );
        pool.try_each(work, |shards| {
            let mut tail = Vec::new();
            let mut shards = shards.into_iter();
            shards.try_for_each(|(shard, more)| shard.reserve(more, bits, &mut tail))
        })
    }

    /// Adds entries, after [`Index::reserve`] with the same keys. Of keys that have an entry
    /// already, in the index or earlier in `keys`, the first entry stays; one of them is returned.
    pub(crate) fn insert(&mut self, pool: &Pool, keys: &[i64], rows: &[u32]) -> Option<i64> {
        self.version += 1;
        let bits = self.bits;
        let parts = if keys.len() < LEAST {
            1
        } else {
            (pool.threads() * 4).min(self.shards.len())
        };
        // Keys and rows, grouped by shard in order of occurrence.
        let mut sizes = Sizes::new(vec![0_u32; self.shards.len()]);
        keys.iter()
            .for_each(|&key| sizes.count(top(hash(key), bits)));
        let mut places = sizes.places();
        let starts = places.starts(self.shards.len(), keys.len());
        let mut entries = vec![(0_i64, 0_u32); keys.len()];
        for (&key, &row) in keys.iter().zip(rows) {
            entries[places.next(top(hash(key), bits))] = (key, row);
        }
        let twice = Mutex::new(None);
        let work: Vec<_> = self
            .shards
            .iter_mut()
            .zip(starts.windows(2))
            .map(|(shard, range)| (shard, &entries[range[0] as usize..range[1] as usize]))
            .filter(|(_, entries)| !entries.is_empty())
            .collect();
        pool.each(chunked(work, parts), |shards| {
            for (shard, entries) in shards {
                if let Some(key) = fill(shard, entries, bits) {
                    *twice.lock() = Some(key);
                }
            }
        });
        twice.into_inner()
    }

    /// Gives the entry of `key` another row; returns whether there is one.
    pub(crate) fn renumber(&mut self, key: i64, row: u32) -> bool {
        self.version += 1;
        self.removals += 1;
        let hash = hash(key);
        self.shards[top(hash, self.bits)].renumber(key, hash << self.bits, row)
    }

    /// Removes the entry of `key` and returns its row, or [`NONE`].
    pub(crate) fn remove(&mut self, key: i64) -> u32 {
        if key == PADDING {
            return NONE;
        }
        self.version += 1;
        self.removals += 1;
        let hash = hash(key);
        self.shards[top(hash, self.bits)].remove(key, hash << self.bits)
    }

    /// Removes all entries and gives the memory back.
    pub(crate) fn clear(&mut self) {
        self.version += 1;
        self.removals += 1;
        self.shards.iter_mut().for_each(Shard::clear);
    }

    /// Gives memory back where shards have become far too large. Without memory to do so it stays
    /// as it is.
    pub(crate) fn shrink(&mut self) {
        for shard in &mut self.shards {
            if shard.shrink(self.bits).is_err() {
                return;
            }
        }
    }

    /// [`Index::shrink`] of one shard.
    pub(crate) fn shrink_shard(&mut self, at: usize) {
        if let Some(shard) = self.shards.get_mut(at) {
            // Without memory to do so it stays as it is.
            let _ = shard.shrink(self.bits);
        }
    }

    /// Shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Calls `f` with about `most` entries of one shard, from the place `from` on (0 first).
    /// Returns where to go on, `None` at the end.
    pub(crate) fn look(
        &self,
        shard: usize,
        from: usize,
        most: usize,
        f: impl FnMut(i64, u32),
    ) -> Option<usize> {
        self.shards.get(shard)?.look(from, most, f)
    }

    /// Calls `f` with every key and its row, in no useful order, on all threads of the pool.
    pub(crate) fn each_on(&self, pool: &Pool, f: impl Fn(i64, u32) + Sync) {
        pool.each(self.shards.iter(), |shard| shard.each(&f));
    }
}

/// Inserts entries into a shard, with the buckets ahead prefetched, and those behind them where an
/// entry will lie further on.
fn fill(shard: &mut Shard, entries: &[(i64, u32)], bits: u32) -> Option<i64> {
    const AHEAD: usize = 20;
    const BEHIND: usize = 8;
    let mut twice = None;
    for piece in entries.chunks(256) {
        let mut locals = [0; 256 + AHEAD];
        for (local, &(key, _)) in locals.iter_mut().zip(piece) {
            *local = hash(key) << bits;
        }
        for &local in &locals[..AHEAD.min(piece.len())] {
            prefetch(shard.home(local));
        }
        for (step, &(key, row)) in piece.iter().enumerate() {
            // Behind the last entry these are homes of 0, which cost little.
            prefetch(shard.home(locals[step + AHEAD]));
            let home = shard.home(locals[step + BEHIND]);
            prefetch_behind(home, usize::from(home.is_passed() | home.is_full()));
            if !shard.insert(key, locals[step], row) {
                twice = Some(key);
            }
        }
    }
    twice
}

/// Deals `items` into at most `parts` lists of neighbours.
fn chunked<T>(items: Vec<T>, parts: usize) -> Vec<Vec<T>> {
    let size = items.len().div_ceil(parts.max(1)).max(1);
    let mut lists = Vec::with_capacity(parts);
    let mut items = items.into_iter();
    loop {
        let list: Vec<T> = items.by_ref().take(size).collect();
        if list.is_empty() {
            return lists;
        }
        lists.push(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_threads_finds_the_same_entries() {
        let keys: Vec<i64> = (0..100_000)
            .map(|at| at * 31 - 5000)
            .filter(|&key| key != -1)
            .collect();
        let rows: Vec<u32> = (0..keys.len() as u32).collect();
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let mut index = Index::new(5_000_000).unwrap();
            index.reserve(&pool, &keys).unwrap();
            assert_eq!(index.insert(&pool, &keys, &rows), None);
            assert_eq!(index.len(), keys.len() as u64);
            assert!(keys
                .iter()
                .zip(&rows)
                .all(|(&key, &row)| index.row(key) == row));
            assert_eq!(index.row(-4_999), NONE);
            assert_eq!(index.insert(&pool, &keys[7..8], &[1]), Some(keys[7]));
            assert_eq!(index.row(keys[7]), 7);
        }
    }

    #[test]
    fn homes_tell_the_row_of_a_key_or_that_it_may_lie_behind() {
        let pool = Pool::new(1).unwrap();
        let keys: Vec<i64> = (0..200_000).map(|at| at * 3).collect();
        let rows: Vec<u32> = (0..keys.len() as u32).collect();
        let mut index = Index::new(keys.len() as u64).unwrap();
        index.reserve(&pool, &keys).unwrap();
        index.insert(&pool, &keys, &rows);
        let mut behind = 0;
        for (&key, &row) in keys.iter().zip(&rows) {
            let (found, further) = index.row_at_home(key);
            assert_eq!(found, if further { NONE } else { row });
            assert_eq!(index.row_beyond(key), row);
            behind += usize::from(further);
            // A key without an entry may lie behind, and does not.
            let (found, further) = index.row_at_home(key + 1);
            assert!(found == NONE && (!further || index.row_beyond(key + 1) == NONE));
        }
        assert!((1_000..40_000).contains(&behind), "{behind}");
    }

    #[test]
    fn removed_entries_give_their_memory_back() {
        let pool = Pool::new(1).unwrap();
        let keys: Vec<i64> = (0..200_000).collect();
        let rows: Vec<u32> = (0..200_000).collect();
        let mut index = Index::new(1 << 20).unwrap();
        index.reserve(&pool, &keys).unwrap();
        index.insert(&pool, &keys, &rows);
        let full = index.bytes();
        keys[..199_900]
            .iter()
            .for_each(|&key| assert_eq!(index.remove(key), key as u32));
        index.shrink();
        assert!(index.bytes() < full / 100, "{} of {full}", index.bytes());
        assert!(keys[199_900..]
            .iter()
            .all(|&key| index.row(key) == key as u32));
    }
}
