//! KeyCounters of keys that have no row: 16 bytes a key in open addressing, at most 24 with the
//! free places.

use super::Seen;
use crate::index::hash;
use crate::mem::{each_asked, prefetch, prefetch_behind, Counter, Pages};
use crate::pool::{ranges as cut, split_mut, Pool};
use crate::sort::Sizes;
use crate::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use crate::sync::Mutex;
use crate::PADDING;
use std::ops::Range;

/// Shards, as a power of two.
const BITS: u32 = 8;

/// A shard is at most this full: 5 of 6 places.
const FULL: (usize, usize) = (5, 6);

/// A shard that is full becomes so much longer, and is then 20/27 full at least.
const GROWTH: (usize, usize) = (9, 8);

/// Places of the smallest array.
const LEAST: usize = 8;

/// A thread should have at least so many keys.
const KEYS: usize = 4096;

/// A search ends this far behind its home at most, more often than not.
const NEAR: usize = 3;

/// Bytes of a batch's items that are kept for the next one at most.
const ITEMS: usize = 4 << 20;

/// KeyCounters by key.
pub(crate) struct KeyCounters {
    shards: Vec<Mutex<CounterShard>>,
    /// Memory that outlives a batch.
    items: Mutex<Vec<Item>>,
    /// See [`KeyCounters::version`].
    version: AtomicU64,
}

impl Default for KeyCounters {
    fn default() -> KeyCounters {
        KeyCounters {
            shards: (0..1_usize << BITS).map(|_| Mutex::default()).collect(),
            items: Mutex::default(),
            version: AtomicU64::new(0),
        }
    }
}

impl KeyCounters {
    /// Adds to the counters of distinct keys, `count(at)` to that of `keys[at]`, which are made
    /// where there are none; returns what they are then. With `counting == false` only notes when
    /// those were seen of which something is known.
    pub(crate) fn add(
        &self,
        pool: &Pool,
        keys: &[i64],
        counting: bool,
        count: impl Fn(usize) -> u32 + Sync,
        last: u32,
    ) -> Vec<u32> {
        self.change(|| match counting {
            true => self.visit(pool, keys, count, |shard, key, count| {
                shard.add(key, Seen { count, last }).count
            }),
            false => self.visit(pool, keys, count, |shard, key, _| {
                shard.touch(key, last).count
            }),
        })
    }

    /// The counters of distinct keys.
    pub(crate) fn counts(&self, pool: &Pool, keys: &[i64]) -> Vec<u32> {
        self.visit(
            pool,
            keys,
            |_| 0,
            |shard, key, _| shard.get(key).unwrap_or_default().count,
        )
    }

    /// What is known of a key.
    #[cfg(test)]
    pub(crate) fn get(&self, key: i64) -> Option<Seen> {
        self.shard(key).lock().get(key)
    }

    /// Makes a key's counter; false, and nothing happens, if there is one.
    pub(crate) fn put(&self, key: i64, seen: Seen) -> bool {
        let mut shard = self.shard(key).lock();
        let is_new = shard.find(key).is_err();
        if is_new {
            shard.add(key, seen);
        }
        is_new
    }

    /// Appends all keys of one of [`KeyCounters::pieces`] pieces.
    pub(crate) fn list(&self, piece: usize, found: &mut Vec<(i64, Seen)>) {
        if let Some(shard) = self.shards.get(piece) {
            let shard = shard.lock();
            let used = shard.entries().iter().filter(|entry| !entry.is_free());
            found.extend(used.map(|entry| (entry.key(), seen(entry))));
        }
    }

    /// Takes back what was added to a key's counter; one that counts nothing any more goes.
    pub(crate) fn subtract(&self, key: i64, count: u32) {
        self.change(|| {
            let mut shard = self.shard(key).lock();
            if let Some(seen) = shard.take(key).filter(|seen| seen.count > count) {
                let count = seen.count - count;
                shard.add(key, Seen { count, ..seen });
            }
        });
    }

    /// Takes a key out.
    pub(crate) fn take(&self, key: i64) -> Option<Seen> {
        self.shard(key).lock().take(key)
    }

    /// A number that changes at the begin and at the end of every call that changes counters,
    /// [`KeyCounters::take`] apart: counters are what [`KeyCounters::add`] said if it is 2 more now
    /// than before that call.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    /// Keys.
    pub(crate) fn len(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.lock().len as u64)
            .sum()
    }

    /// Drops the keys of one of [`KeyCounters::pieces`] pieces that `stale` names; returns how
    /// many.
    pub(crate) fn drop_stale(&self, piece: usize, stale: impl Fn(Seen) -> bool) -> u64 {
        self.change(|| {
            self.shards
                .get(piece)
                .map_or(0, |shard| shard.lock().retain(|seen| !stale(seen)))
        })
    }

    /// Into how many pieces the keys are divided.
    pub(crate) fn pieces(&self) -> usize {
        self.shards.len()
    }

    /// Bytes held, those that were kept for the next batch among them.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |shard: &Mutex<CounterShard>| shard.lock().bytes();
        let entries: usize = self.shards.iter().map(of).sum();
        (entries + self.shards.len() * size_of::<Mutex<CounterShard>>() + self.kept_bytes()) as u64
    }

    fn kept_bytes(&self) -> usize {
        self.items.lock().capacity() * size_of::<Item>()
    }

    fn shard(&self, key: i64) -> &Mutex<CounterShard> {
        &self.shards[number(key)]
    }

    fn change<T>(&self, f: impl FnOnce() -> T) -> T {
        self.version.fetch_add(1, SeqCst);
        let result = f();
        self.version.fetch_add(1, SeqCst);
        result
    }

    /// Calls `f` with every key, the count given for it and its shard, shard by shard with later
    /// counters on their way; returns what it gave, in the order of the keys. The keys of a shard
    /// come in their order, on any number of threads.
    fn visit(
        &self,
        pool: &Pool,
        keys: &[i64],
        count: impl Fn(usize) -> u32 + Sync,
        f: impl Fn(&mut CounterShard, i64, u32) -> u32 + Sync,
    ) -> Vec<u32> {
        if keys.len() < 1 << BITS {
            let of = |(at, &key): (usize, &i64)| f(&mut self.shard(key).lock(), key, count(at));
            return keys.iter().enumerate().map(of).collect();
        }
        let mut items = std::mem::take(&mut *self.items.lock());
        items.resize(keys.len().max(items.len()), Item::default());
        let parts = pool.parts(keys.len(), KEYS);
        let ranges = cut(keys.len(), parts);
        // Each range alone, by shard; what a shard needs lies together.
        let mut starts = vec![Vec::new(); parts];
        let work = ranges
            .iter()
            .zip(split_mut(&mut items[..keys.len()], 1, &ranges))
            .zip(&mut starts);
        pool.each(work, |((range, items), starts)| {
            *starts = sort(keys, range.clone(), &count, items);
        });
        let given: Vec<AtomicU32> = keys.iter().map(|_| AtomicU32::new(0)).collect();
        pool.each(cut(self.shards.len(), parts), |shards| {
            for number in shards {
                let of = |(range, starts): (&Range<usize>, &Vec<u32>)| {
                    let (start, end) = (starts[number] as usize, starts[number + 1] as usize);
                    &items[range.start + start..range.start + end]
                };
                let own = || ranges.iter().zip(&starts).flat_map(of);
                let mut shard = self.shards[number].lock();
                let ask = |shard: &&mut CounterShard, item: &Item| shard.prefetch(item.key);
                each_asked(&mut *shard, own(), ask, |shard, item| {
                    let count = f(shard, item.key, item.count);
                    given[item.at as usize].store(count, Relaxed);
                });
            }
        });
        if items.len() * size_of::<Item>() <= ITEMS {
            *self.items.lock() = items;
        }
        given.into_iter().map(AtomicU32::into_inner).collect()
    }
}

/// One key of a batch, the place it has there, and what is to be added to its counter.
#[derive(Clone, Copy, Default)]
struct Item {
    key: i64,
    at: u32,
    count: u32,
}

/// Writes a range of keys to `items`, in their order by shard; returns where each shard starts, and
/// the end of the last.
fn sort(
    keys: &[i64],
    range: Range<usize>,
    count: impl Fn(usize) -> u32,
    items: &mut [Item],
) -> Vec<u32> {
    let mut sizes = Sizes::new([0_u32; 1 << BITS]);
    for &key in &keys[range.clone()] {
        sizes.count(number(key));
    }
    let mut places = sizes.places();
    let starts = places.starts(1 << BITS, range.len());
    for at in range {
        let key = keys[at];
        items[places.next(number(key))] = Item {
            key,
            at: at as u32,
            count: count(at),
        };
    }
    starts
}

/// Open addressing in the order of the hash: a key lies at its home or behind it, before the next
/// free place.
#[derive(Default)]
struct CounterShard {
    /// At least one place is free.
    entries: Option<Pages<Counter>>,
    len: usize,
}

impl CounterShard {
    fn entries(&self) -> &[Counter] {
        self.entries.as_deref().unwrap_or_default()
    }

    fn bytes(&self) -> usize {
        self.entries.as_ref().map_or(0, Pages::bytes)
    }

    /// Where a key is, or the free place where it would be. Padding, which marks free places, is
    /// nowhere.
    #[inline]
    fn find(&self, key: i64) -> Result<usize, usize> {
        let entries = self.entries();
        if entries.is_empty() || key == PADDING {
            return Err(0);
        }
        let mut at = home(key, entries.len());
        loop {
            let found = &entries[at];
            if found.is_free() {
                return Err(at);
            }
            if found.key() == key {
                return Ok(at);
            }
            at = after(at, entries.len());
        }
    }

    /// Starts to bring the place where the search for a key begins, and those where it ends most
    /// often.
    #[inline]
    fn prefetch(&self, key: i64) {
        let entries = self.entries();
        if let Some(place) = entries.get(home(key, entries.len())) {
            prefetch(place);
            prefetch_behind(place, NEAR);
        }
    }

    fn get(&self, key: i64) -> Option<Seen> {
        let at = self.find(key).ok()?;
        self.entries().get(at).map(seen)
    }

    /// Adds to a counter; returns it. Without memory for a new one it stays what it is, nothing.
    fn add(&mut self, key: i64, more: Seen) -> Seen {
        match self.find(key) {
            Ok(at) => self.set(at, key, |old| old.add(more.count, more.last)),
            Err(_) if key == PADDING => Seen::default(),
            Err(free) => {
                let places = self.entries().len();
                if (self.len + 1) * FULL.1 <= places * FULL.0 {
                    self.len += 1;
                    return self.set(free, key, |_| more);
                }
                let wanted = places * GROWTH.0 / GROWTH.1;
                self.rebuild(wanted.max(LEAST).max(places + 1), |_| true);
                if self.len + 1 >= self.entries().len() {
                    return Seen::default();
                }
                self.put(Counter::new(key, more.count, more.last));
                more
            }
        }
    }

    /// Notes when a key was seen, if there is anything about it; returns that.
    fn touch(&mut self, key: i64, last: u32) -> Seen {
        match self.find(key) {
            Ok(at) => self.set(at, key, |old| old.add(0, last)),
            Err(_) => Seen::default(),
        }
    }

    fn set(&mut self, at: usize, key: i64, f: impl FnOnce(Seen) -> Seen) -> Seen {
        let Some(place) = self.entries.as_mut().and_then(|all| all.get_mut(at)) else {
            return Seen::default();
        };
        let new = f(seen(place));
        *place = Counter::new(key, new.count, new.last);
        new
    }

    fn put(&mut self, entry: Counter) {
        if let Err(at) = self.find(entry.key()) {
            if let Some(place) = self.entries.as_mut().and_then(|all| all.get_mut(at)) {
                *place = entry;
                self.len += 1;
            }
        }
    }

    fn take(&mut self, key: i64) -> Option<Seen> {
        let mut free = self.find(key).ok()?;
        let entries = self.entries.as_mut()?;
        let taken = seen(&entries[free]);
        let len = entries.len();
        entries[free] = Counter::FREE;
        self.len -= 1;
        // What went past the place that is free now, and may go there, moves there.
        let mut at = after(free, len);
        while !entries[at].is_free() {
            let home = home(entries[at].key(), len);
            let distance = |from: usize, to: usize| (to + len - from) % len;
            if distance(home, at) >= distance(free, at) {
                entries[free] = std::mem::replace(&mut entries[at], Counter::FREE);
                free = at;
            }
            at = after(at, len);
        }
        // Gives memory back where the array has become far too long.
        if self.len == 0 {
            self.entries = None;
        } else if len > 4 * LEAST && self.len * 3 < len {
            self.rebuild(places(self.len), |_| true);
        }
        Some(taken)
    }

    fn retain(&mut self, keep: impl Fn(Seen) -> bool) -> u64 {
        let kept = |entry: &&Counter| !entry.is_free() && keep(seen(entry));
        let (before, len) = (self.len, self.entries().iter().filter(kept).count());
        if len == 0 {
            *self = CounterShard::default();
        } else if len < before {
            self.rebuild(places(len), keep);
        }
        (before - self.len) as u64
    }

    /// Moves what is to be kept to an array of `len` places. Without memory for it nothing changes.
    fn rebuild(&mut self, len: usize, keep: impl Fn(Seen) -> bool) {
        let Ok(pages) = Pages::new(len) else {
            return;
        };
        let old = self.entries.replace(pages);
        self.len = 0;
        for entry in old.as_deref().unwrap_or_default() {
            if !entry.is_free() && keep(seen(entry)) {
                self.put(*entry);
            }
        }
    }
}

fn seen(entry: &Counter) -> Seen {
    Seen {
        count: entry.count,
        last: entry.last,
    }
}

/// The shard of a key.
#[inline(always)]
fn number(key: i64) -> usize {
    (hash(key) >> (u64::BITS - BITS)) as usize
}

/// The place of a key in an array of `len` places.
#[inline(always)]
fn home(key: i64, len: usize) -> usize {
    let local = hash(key) << BITS;
    ((u128::from(local) * len as u128) >> u64::BITS) as usize
}

/// The next place.
#[inline(always)]
fn after(at: usize, len: usize) -> usize {
    if at + 1 == len {
        0
    } else {
        at + 1
    }
}

/// Places for `len` keys, with a little room.
fn places(len: usize) -> usize {
    (len * GROWTH.0 * FULL.1 / (GROWTH.1 * FULL.0)).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_key_takes_at_most_24_bytes_whenever_one_looks() {
        let (counters, pool) = (KeyCounters::default(), Pool::new(1).unwrap());
        let keys: Vec<i64> = (0..3_000_000_i64).map(|key| key * 7919).collect();
        let mut len = 0;
        for keys in keys.chunks(50_021) {
            counters.add(&pool, keys, true, |_| 1, 2);
            len += keys.len() as u64;
            let bytes = counters.bytes() - counters.kept_bytes() as u64;
            // Below this the empty shards are most of it.
            let most = 24 * len + 200_000;
            assert!(bytes <= most, "{} bytes a key at {len}", bytes / len);
        }
        assert_eq!(counters.len(), 3_000_000);
        let dropped: u64 = (0..counters.pieces())
            .map(|piece| counters.drop_stale(piece, |_| true))
            .sum();
        assert_eq!((dropped, counters.len()), (3_000_000, 0));
        assert!(counters.bytes() - (counters.kept_bytes() as u64) < 400_000);
    }

    #[test]
    fn many_keys_at_once_are_counted_as_one_by_one_on_any_number_of_threads() {
        let keys: Vec<i64> = (0..20_000).map(|at| at * 31 - 9_000).collect();
        let one = KeyCounters::default();
        let alone = Pool::new(1).unwrap();
        for round in 0..2 {
            for (at, &key) in keys.iter().enumerate() {
                one.add(&alone, &[key], true, |_| at as u32 % 7 + 1, round);
            }
        }
        for threads in [1, 3] {
            let (many, pool) = (KeyCounters::default(), Pool::new(threads).unwrap());
            for round in 0..2 {
                let version = many.version();
                let counts = many.add(&pool, &keys, true, |at| at as u32 % 7 + 1, round);
                assert_eq!(many.version(), version + 2);
                assert_eq!(counts, many.counts(&pool, &keys));
            }
            assert!(keys.iter().all(|&key| many.get(key) == one.get(key)));
            let bytes = |counters: &KeyCounters| counters.bytes() - counters.kept_bytes() as u64;
            assert_eq!((many.len(), bytes(&many)), (one.len(), bytes(&one)));
        }
    }

    proptest! {
        #[test]
        fn the_counters_are_a_map(
            verbs in proptest::collection::vec((0..4_u8, -40..40_i64, 1..9_u32), 1..400),
        ) {
            let (counters, pool) = (KeyCounters::default(), Pool::new(1).unwrap());
            let mut map: HashMap<i64, Seen> = HashMap::new();
            for (verb, key, number) in verbs {
                // One shard, so that keys meet.
                let key = if key == PADDING { 50 } else { key };
                match verb {
                    0 => {
                        let counts = counters.add(&pool, &[key], true, |_| number, number);
                        let seen = map.entry(key).or_default();
                        *seen = seen.add(number, number);
                        prop_assert_eq!(counts, [seen.count]);
                    }
                    1 => {
                        let counts = counters.add(&pool, &[key], false, |_| number, number);
                        let seen = map.get_mut(&key);
                        prop_assert_eq!(counts, [seen.as_ref().map_or(0, |seen| seen.count)]);
                        seen.into_iter().for_each(|seen| *seen = seen.add(0, number));
                    }
                    2 => prop_assert_eq!(counters.take(key), map.remove(&key)),
                    _ => {
                        let stale = |seen: Seen| seen.count < number;
                        let dropped: u64 = (0..counters.pieces())
                            .map(|piece| counters.drop_stale(piece, stale))
                            .sum();
                        let before = map.len();
                        map.retain(|_, seen| !stale(*seen));
                        prop_assert_eq!(dropped, (before - map.len()) as u64);
                    }
                }
                prop_assert_eq!(counters.len(), map.len() as u64);
                for key in -40..=50 {
                    prop_assert_eq!(counters.get(key), map.get(&key).copied());
                }
            }
        }

        #[test]
        fn a_crowded_shard_is_a_map(
            verbs in proptest::collection::vec((any::<bool>(), 0..60_i64), 1..300),
        ) {
            let mut shard = CounterShard::default();
            let mut map: HashMap<i64, u32> = HashMap::new();
            for (add, key) in verbs {
                if add {
                    shard.add(key, Seen { count: 1, last: 0 });
                    *map.entry(key).or_default() += 1;
                } else {
                    prop_assert_eq!(shard.take(key).map(|seen| seen.count), map.remove(&key));
                }
                for key in 0..60 {
                    let found = shard.get(key).map(|seen| seen.count);
                    prop_assert_eq!(found, map.get(&key).copied());
                }
            }
        }
    }
}
