//! The index of a table: key -> row number, in shards chosen by the upper bits of the hash, or at
//! the key's own place in one array.

use super::direct::Direct;
use super::hash::{hash, top};
use super::shard::Shard;
use crate::mem::{prefetch, prefetch_behind, Bucket, BLOCK, NONE};
use crate::sort::Sizes;
use crate::sync::Mutex;
use crate::{Pool, Result, PADDING};
use std::ops::Range;

/// Entries that a full table should have in one shard: large enough for huge pages, small enough to
/// grow quickly.
const SHARD: u64 = 512 << 10;

/// The most shards, as a power of two.
const MOST_BITS: u32 = 10;

/// Below this many entries the caller inserts alone.
const LEAST: usize = 2048;

/// So many entries are looked at together, if there are as many, to leave shards for the array.
const MOVED: usize = 1 << 16;

/// Keys of the array that one thread goes through.
const PIECE: usize = 1 << 16;

/// All entries of one table.
///
/// The array is for keys from 0 to its length, as far as most of them occur. When it has become
/// longer, the entries of its new keys leave the shards one shard after the other, each time that
/// room is made: nobody waits for all of them. So a key of the array may lie in a shard until then.
pub(crate) struct Index {
    direct: Direct,
    shards: Vec<Shard>,
    /// Shards that have no keys of the array.
    moved: usize,
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
        let shards: Vec<Shard> = (0..1_u32 << bits)
            .map(|at| {
                // Neighbours in number are far apart in phase.
                let spread = f64::from(at.reverse_bits()) / f64::from(u32::MAX);
                Shard::new(spread, most)
            })
            .collect::<Result<_>>()?;
        Ok(Index {
            direct: Direct::new()?,
            moved: shards.len(),
            shards,
            bits,
            version: 0,
            removals: 0,
        })
    }

    /// Entries.
    pub(crate) fn len(&self) -> u64 {
        let shards = self.shards.iter().map(|shard| shard.len() as u64);
        self.direct.len() + shards.sum::<u64>()
    }

    /// Bytes of the array and of all shards.
    pub(crate) fn bytes(&self) -> u64 {
        let heads = self.shards.len() * size_of::<Shard>();
        let shards = self.shards.iter().map(Shard::bytes).sum::<usize>();
        (self.direct.bytes() + shards + heads) as u64
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

    /// Asks for what [`Index::read_homes`] and [`Index::row`] read first of a key.
    #[inline(always)]
    pub(crate) fn ask(&self, key: i64) {
        if !self.direct.ask(key) {
            prefetch(self.home(hash(key)));
        }
    }

    /// The bucket where the search for a hash begins.
    #[inline(always)]
    fn home(&self, hash: u64) -> &Bucket {
        self.shards[top(hash, self.bits)].home(hash << self.bits)
    }

    /// Whether nearly all entries are in the array, where no search is needed.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.len() * 8 > self.len() * 7
    }

    /// Whether no shard has keys of the array.
    #[inline(always)]
    fn is_settled(&self) -> bool {
        self.moved == self.shards.len()
    }

    /// The row of a key of the array, [`NONE`] without; `None` if a shard has it.
    #[inline(always)]
    fn direct_row(&self, key: i64) -> Option<u32> {
        let row = self.direct.row(key)?;
        (row != NONE || self.is_settled()).then_some(row)
    }

    /// The row of `key` as far as its place in the array or its home tells, or [`NONE`], and
    /// whether it may lie further on: then the bucket behind is on its way for
    /// [`Index::row_beyond`]. No branch, because keys with and without a row come in no order that
    /// could be foreseen.
    #[inline(always)]
    fn row_at_home(&self, key: i64) -> (u32, bool) {
        if let Some(row) = self.direct.row(key) {
            return (row, (row == NONE) & !self.is_settled());
        }
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
        if let Some(row) = self.direct_row(key) {
            return row;
        }
        let home = self.home(hash(key));
        match home.row(key) {
            NONE if home.is_passed() => self.row_beyond(key),
            row => row,
        }
    }

    /// The row of a key that may lie behind its home, or in a shard still, or [`NONE`].
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
        if self.is_settled() {
            if let Some(len) = self.direct.longer(keys) {
                // Without memory for it shards serve as well.
                if self.direct.extend(len).is_ok() {
                    self.moved = 0;
                }
            }
        }
        self.move_entries(MOVED.max(2 * keys.len()));
        let bits = self.bits;
        let direct = self.direct.keys();
        let mut more = vec![0_usize; self.shards.len()];
        let keys = keys.iter().filter(|key| !direct.contains(key));
        let count = keys.map(|&key| more[top(hash(key), bits)] += 1).count();
        let work: Vec<_> = self
            .shards
            .iter_mut()
            .zip(more)
            .filter(|(_, more)| *more > 0)
            .collect();
        let work = chunked(work, if count < LEAST { 1 } else { pool.threads() * 4 });
        pool.try_each(work, |shards| {
            let mut tail = Vec::new();
            let mut shards = shards.into_iter();
            shards.try_for_each(|(shard, more)| shard.reserve(more, bits, &mut tail))
        })
    }

    /// Moves entries of the array's keys out of shards, of which about `most` are looked at.
    fn move_entries(&mut self, most: usize) {
        let (bits, direct) = (self.bits, self.direct.keys());
        let mut entries = Vec::new();
        let mut count = 0;
        while count < most {
            let Some(shard) = self.shards.get_mut(self.moved) else {
                return;
            };
            count += shard.len();
            entries.clear();
            shard.each(|key, row| {
                if direct.contains(&key) {
                    entries.push((key, row));
                }
            });
            for &(key, row) in &entries {
                shard.remove(key, hash(key) << bits);
                self.direct.set(key, row);
            }
            // Without memory to do so it stays as long as it is.
            let _ = shard.shrink(bits);
            self.moved += 1;
        }
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
        // The others, grouped by shard in order of occurrence.
        let (mut twice, mut others) = (None, 0);
        let mut sizes = Sizes::new(vec![0_u32; self.shards.len()]);
        for (&key, &row) in keys.iter().zip(rows) {
            self.direct.came(key);
            match self.direct.row(key) {
                None => {
                    sizes.count(top(hash(key), bits));
                    others += 1;
                }
                Some(_) if self.row(key) != NONE => twice = Some(key),
                Some(_) => _ = self.direct.set(key, row),
            }
        }
        let mut places = sizes.places();
        let starts = places.starts(self.shards.len(), others);
        let mut entries = vec![(0_i64, 0_u32); others];
        for (&key, &row) in keys.iter().zip(rows) {
            if self.direct.row(key).is_none() {
                entries[places.next(top(hash(key), bits))] = (key, row);
            }
        }
        let twice = Mutex::new(twice);
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
        if !matches!(self.direct.row(key), None | Some(NONE)) {
            self.direct.set(key, row);
            return true;
        }
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
        let row = match self.direct.row(key) {
            None | Some(NONE) => {
                let hash = hash(key);
                self.shards[top(hash, self.bits)].remove(key, hash << self.bits)
            }
            Some(_) => self.direct.set(key, NONE),
        };
        if row != NONE {
            self.direct.gone(key);
        }
        row
    }

    /// Removes all entries and gives the memory back.
    pub(crate) fn clear(&mut self) {
        self.version += 1;
        self.removals += 1;
        self.direct.clear();
        self.moved = self.shards.len();
        self.shards.iter_mut().for_each(Shard::clear);
    }

    /// Gives memory back where parts have become far too large. Without memory to do so they stay
    /// as they are.
    pub(crate) fn shrink(&mut self) {
        (0..self.parts()).for_each(|part| self.shrink_part(part));
    }

    /// [`Index::shrink`] of one part.
    pub(crate) fn shrink_part(&mut self, at: usize) {
        // One shard at least gives up what belongs to the array, so after all of them it is alone.
        self.move_entries(1);
        // Without memory to do so it stays as it is.
        let _ = match self.shards.get_mut(at) {
            Some(shard) => shard.shrink(self.bits),
            None => self.shrink_direct(),
        };
    }

    /// Makes the array shorter if far too few of its keys have entries. What is left of those
    /// behind its end goes to the shards.
    fn shrink_direct(&mut self) -> Result<()> {
        let Some(len) = self.direct.shorter().filter(|_| self.is_settled()) else {
            return Ok(());
        };
        let behind = len..self.direct.keys().end as usize;
        let mut entries = Vec::new();
        self.direct
            .each(behind, |key, row| entries.push((key, row)));
        let mut tail = Vec::new();
        let (bits, shards) = (self.bits, &mut self.shards);
        let mut more = vec![0; shards.len()];
        entries
            .iter()
            .for_each(|&(key, _)| more[top(hash(key), bits)] += 1);
        for (shard, more) in shards.iter_mut().zip(more) {
            shard.reserve(more, bits, &mut tail)?;
        }
        self.direct.cut(len)?;
        for (key, row) in entries {
            let hash = hash(key);
            shards[top(hash, bits)].insert(key, hash << bits, row);
        }
        Ok(())
    }

    /// Parts that are looked at one by one: the shards, and the array behind them, since entries
    /// move there meanwhile.
    pub(crate) fn parts(&self) -> usize {
        self.shards.len() + 1
    }

    /// Calls `f` with about `most` entries of one part, from the place `from` on (0 first).
    /// Returns where to go on, `None` at the end.
    pub(crate) fn look(
        &self,
        part: usize,
        from: usize,
        most: usize,
        f: impl FnMut(i64, u32),
    ) -> Option<usize> {
        if let Some(shard) = self.shards.get(part) {
            return shard.look(from, most, f);
        }
        let end = self.direct.keys().end as usize;
        let from = from.min(end);
        let to = end.min(from.saturating_add(most));
        self.direct.each(from..to, f);
        (to < end).then_some(to)
    }

    /// Calls `f` with every key and its row, in no useful order, on all threads of the pool.
    pub(crate) fn each_on(&self, pool: &Pool, f: impl Fn(i64, u32) + Sync) {
        let end = self.direct.keys().end as usize;
        let pieces = (0..end).step_by(PIECE);
        let pieces = pieces.map(|start| Piece::Direct(start..end.min(start + PIECE)));
        let pieces: Vec<_> = self.shards.iter().map(Piece::Shard).chain(pieces).collect();
        pool.each(pieces, |piece| match piece {
            Piece::Shard(shard) => shard.each(&f),
            Piece::Direct(keys) => self.direct.each(keys, &f),
        });
    }
}

/// What one thread goes through.
enum Piece<'i> {
    Shard(&'i Shard),
    Direct(Range<usize>),
}

/// Inserts entries into a shard, with the buckets ahead prefetched, and those behind them where an
/// entry will lie further on.
fn fill(shard: &mut Shard, entries: &[(i64, u32)], bits: u32) -> Option<i64> {
    const BEHIND: usize = BLOCK / 2;
    let mut twice = None;
    for piece in entries.chunks(256) {
        let mut locals = [0; 256 + BLOCK];
        for (local, &(key, _)) in locals.iter_mut().zip(piece) {
            *local = hash(key) << bits;
        }
        for &local in &locals[..BLOCK.min(piece.len())] {
            prefetch(shard.home(local));
        }
        for (step, &(key, row)) in piece.iter().enumerate() {
            // Behind the last entry these are homes of 0, which cost little.
            prefetch(shard.home(locals[step + BLOCK]));
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
        let keys: Vec<i64> = (0..200_000).map(|at| at * 3 - (1 << 40)).collect();
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

    /// Small keys that come in no order, and others: the array grows, over several calls, and
    /// becomes shorter again, and nothing is lost meanwhile.
    #[test]
    fn small_keys_leave_the_shards_and_come_back() {
        let pool = Pool::new(2).unwrap();
        let mut index = Index::new(64 << 20).unwrap();
        let count = 1 << 19;
        let key = |at: u32| match at % 8 {
            0 => -5 - i64::from(at),
            1 => i64::from(at) << 30,
            _ => ((i64::from(at) * 0x9E37_79B1) & 0xF_FFFF) >> (at % 3 * 4),
        };
        let mut known = std::collections::HashMap::new();
        let expect = |index: &Index, known: &std::collections::HashMap<i64, u32>| {
            assert_eq!(index.len(), known.len() as u64);
            for (&key, &row) in known {
                assert_eq!(index.row(key), row, "{key}");
                let (mut rows, mut beyond) = ([0], [0]);
                let count = index.read_homes(&[key], &mut rows, 0, &mut beyond);
                index.read_beyond(&[key], &mut rows, &beyond[..count]);
                assert_eq!(rows, [row]);
            }
            let seen = Mutex::new(Vec::new());
            index.each_on(&Pool::alone(), |key, row| seen.lock().push((key, row)));
            let mut looked = Vec::new();
            for part in 0..index.parts() {
                let mut from = Some(0);
                while let Some(start) = from {
                    from = index.look(part, start, 1000, |key, row| looked.push((key, row)));
                }
            }
            for mut seen in [seen.into_inner(), looked] {
                assert_eq!(seen.len(), known.len());
                seen.retain(|(key, row)| known.get(key) != Some(row));
                assert_eq!(seen, []);
            }
        };
        let (mut lengths, mut unsettled) = (Vec::new(), 0);
        let batches: Vec<u32> = (0..count).step_by(30_000).collect();
        for (number, &start) in batches.iter().enumerate() {
            let mut keys: Vec<i64> = (start..(start + 30_000).min(count)).map(key).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.retain(|key| index.row(*key) == NONE);
            let rows: Vec<u32> = (0..keys.len() as u32).map(|at| start + at).collect();
            index.reserve(&pool, &keys).unwrap();
            assert_eq!(index.insert(&pool, &keys, &rows), None);
            known.extend(keys.iter().copied().zip(rows));
            lengths.push(index.direct.keys().end);
            unsettled += usize::from(!index.is_settled());
            // Entries of shards and of the array go, and get other rows.
            for &key in keys.iter().step_by(7) {
                assert_eq!(Some(index.remove(key)), known.remove(&key));
                assert_eq!(index.remove(key), NONE);
                assert!(!index.renumber(key, 1));
            }
            for &key in keys.iter().skip(3).step_by(7) {
                let row = known.get_mut(&key).unwrap();
                *row += 1 << 24;
                assert!(index.renumber(key, *row));
            }
            if number % 6 == 0 || !index.is_settled() {
                expect(&index, &known);
            }
            let again = keys.iter().find(|key| known.contains_key(key)).copied();
            assert_eq!(index.insert(&pool, again.as_slice(), &[9]), again);
        }
        lengths.dedup();
        assert!(
            lengths.len() > 3 && lengths.iter().all(|&len| len <= 1 << 20),
            "{lengths:?}"
        );
        assert!(unsettled > 0);
        let full = index.bytes();
        let gone: Vec<i64> = known.keys().copied().filter(|key| key % 50 != 0).collect();
        for key in gone {
            assert_eq!(Some(index.remove(key)), known.remove(&key));
        }
        index.shrink();
        expect(&index, &known);
        assert!(index.bytes() < full / 10, "{} of {full}", index.bytes());
        index.clear();
        assert!(index.len() == 0 && index.row(0) == NONE);
        index.reserve(&pool, &[5]).unwrap();
        assert_eq!(index.insert(&pool, &[5, 5], &[3, 4]), Some(5));
        assert_eq!((index.row(5), index.len()), (3, 1));
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
