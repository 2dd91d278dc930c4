//! Counters of keys that have no row: 16 bytes a key in open addressing, at most 24 with the free places.

use super::Seen;
use crate::index::hash;
use crate::PADDING;
use parking_lot::Mutex;

/// Shards, as a power of two.
const BITS: u32 = 10;

/// A shard is at most this full: 5 of 6 places.
const FULL: (usize, usize) = (5, 6);

/// A shard that is full becomes so much longer, and is then 2/3 full at least.
const GROWTH: (usize, usize) = (6, 5);

/// Places of the smallest array.
const LEAST: usize = 8;

/// One key; padding for a free place.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: i64,
    count: u32,
    last: u32,
}

const FREE: Entry = Entry {
    key: PADDING,
    count: 0,
    last: 0,
};

const _: () = assert!(size_of::<Entry>() == 16);

/// Counters by key.
pub(crate) struct Waiting {
    shards: Vec<Mutex<Shard>>,
}

impl Default for Waiting {
    fn default() -> Waiting {
        let shards = (0..1_usize << BITS).map(|_| Mutex::default()).collect();
        Waiting { shards }
    }
}

impl Waiting {
    /// Adds to a key's counter, which is made if there is none. Padding has none.
    pub(crate) fn add(&self, key: i64, seen: Seen) {
        if key != PADDING {
            self.shard(key).lock().add(key, seen);
        }
    }

    /// Notes when a key was last seen, if there is anything about it.
    pub(crate) fn touch(&self, key: i64, last: u32) {
        let mut shard = self.shard(key).lock();
        if let Ok(at) = shard.find(key) {
            shard.entries[at].last = shard.entries[at].last.max(last);
        }
    }

    /// What is known of a key.
    pub(crate) fn get(&self, key: i64) -> Option<Seen> {
        let shard = self.shard(key).lock();
        let at = shard.find(key).ok()?;
        Some(shard.entries[at].seen())
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

    /// Appends all keys of one of [`Waiting::pieces`] pieces.
    pub(crate) fn list(&self, piece: usize, found: &mut Vec<(i64, Seen)>) {
        if let Some(shard) = self.shards.get(piece) {
            let shard = shard.lock();
            let used = shard.entries.iter().filter(|entry| entry.key != PADDING);
            found.extend(used.map(|entry| (entry.key, entry.seen())));
        }
    }

    /// Takes a key out.
    pub(crate) fn take(&self, key: i64) -> Option<Seen> {
        self.shard(key).lock().take(key)
    }

    /// Keys.
    pub(crate) fn len(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.lock().len as u64)
            .sum()
    }

    /// Drops the keys of one of [`Waiting::pieces`] pieces that `stale` names; returns how many.
    pub(crate) fn drop_stale(&self, piece: usize, stale: impl Fn(Seen) -> bool) -> u64 {
        self.shards
            .get(piece)
            .map_or(0, |shard| shard.lock().retain(|seen| !stale(seen)))
    }

    /// Into how many pieces the keys are divided.
    pub(crate) fn pieces(&self) -> usize {
        self.shards.len()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |shard: &Mutex<Shard>| shard.lock().entries.capacity() * size_of::<Entry>();
        let entries: usize = self.shards.iter().map(of).sum();
        (entries + self.shards.len() * size_of::<Mutex<Shard>>()) as u64
    }

    fn shard(&self, key: i64) -> &Mutex<Shard> {
        &self.shards[(hash(key) >> (u64::BITS - BITS)) as usize]
    }
}

/// Open addressing in the order of the hash: a key lies at its home or behind it, before the next free place.
#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    len: usize,
}

impl Shard {
    /// Where a key is, or the free place where it would be. Padding, which marks free places, is nowhere.
    fn find(&self, key: i64) -> Result<usize, usize> {
        if self.entries.is_empty() || key == PADDING {
            return Err(0);
        }
        let mut at = home(key, self.entries.len());
        loop {
            match self.entries[at].key {
                found if found == key => return Ok(at),
                PADDING => return Err(at),
                _ => at = (at + 1) % self.entries.len(),
            }
        }
    }

    fn add(&mut self, key: i64, seen: Seen) {
        match self.find(key) {
            Ok(at) => {
                let sum = self.entries[at].seen().add(seen.count, seen.last);
                self.entries[at] = Entry::new(key, sum);
            }
            Err(_) => {
                if (self.len + 1) * FULL.1 > self.entries.len() * FULL.0 {
                    let len = self.entries.len() * GROWTH.0 / GROWTH.1;
                    self.rebuild(len.max(LEAST).max(self.entries.len() + 1));
                }
                self.put(Entry::new(key, seen));
            }
        }
    }

    fn put(&mut self, entry: Entry) {
        if let Err(at) = self.find(entry.key) {
            self.entries[at] = entry;
            self.len += 1;
        }
    }

    fn take(&mut self, key: i64) -> Option<Seen> {
        let mut free = self.find(key).ok()?;
        let seen = self.entries[free].seen();
        let len = self.entries.len();
        self.entries[free] = FREE;
        self.len -= 1;
        // What went past the place that is free now, and may go there, moves there.
        let mut at = (free + 1) % len;
        while self.entries[at].key != PADDING {
            let home = home(self.entries[at].key, len);
            let distance = |from: usize, to: usize| (to + len - from) % len;
            if distance(home, at) >= distance(free, at) {
                self.entries[free] = std::mem::replace(&mut self.entries[at], FREE);
                free = at;
            }
            at = (at + 1) % len;
        }
        self.shrink();
        Some(seen)
    }

    fn retain(&mut self, keep: impl Fn(Seen) -> bool) -> u64 {
        let before = self.len;
        let kept = self
            .entries
            .iter()
            .filter(|entry| entry.key != PADDING && keep(entry.seen()));
        let kept: Vec<Entry> = kept.copied().collect();
        if kept.len() < before {
            self.entries = match kept.len() {
                0 => Vec::new(),
                len => vec![FREE; places(len)],
            };
            self.len = 0;
            kept.into_iter().for_each(|entry| self.put(entry));
        }
        (before - self.len) as u64
    }

    /// Gives memory back where the array has become far too long.
    fn shrink(&mut self) {
        if self.len == 0 {
            self.entries = Vec::new();
        } else if self.entries.len() > 4 * LEAST && self.len * 3 < self.entries.len() {
            self.rebuild(places(self.len));
        }
    }

    fn rebuild(&mut self, len: usize) {
        let old = std::mem::replace(&mut self.entries, vec![FREE; len]);
        self.len = 0;
        let entries = old.into_iter().filter(|entry| entry.key != PADDING);
        entries.for_each(|entry| self.put(entry));
    }
}

impl Entry {
    fn new(key: i64, seen: Seen) -> Entry {
        let Seen { count, last } = seen;
        Entry { key, count, last }
    }

    fn seen(self) -> Seen {
        Seen {
            count: self.count,
            last: self.last,
        }
    }
}

/// The place of a key in an array of `len` places.
fn home(key: i64, len: usize) -> usize {
    let local = hash(key) << BITS;
    ((u128::from(local) * len as u128) >> u64::BITS) as usize
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
        let waiting = Waiting::default();
        let seen = Seen { count: 1, last: 2 };
        for key in 0..3_000_000_i64 {
            waiting.add(key * 7919, seen);
            if key % 50_021 == 50_020 {
                let bytes = waiting.bytes();
                // Below this the empty shards are most of it.
                let most = 24 * (key as u64 + 1) + 200_000;
                assert!(
                    bytes <= most,
                    "{} bytes a key at {key}",
                    bytes / (key as u64 + 1)
                );
            }
        }
        assert_eq!(waiting.len(), 3_000_000);
        let dropped: u64 = (0..waiting.pieces())
            .map(|piece| waiting.drop_stale(piece, |_| true))
            .sum();
        assert_eq!((dropped, waiting.len()), (3_000_000, 0));
        assert!(waiting.bytes() < 400_000);
    }

    proptest! {
        #[test]
        fn the_counters_are_a_map(verbs in proptest::collection::vec((0..4_u8, -40..40_i64, 1..9_u32), 1..400)) {
            let waiting = Waiting::default();
            let mut map: HashMap<i64, Seen> = HashMap::new();
            for (verb, key, number) in verbs {
                // One shard, so that keys meet.
                let key = if key == PADDING { 50 } else { key };
                match verb {
                    0 | 1 => {
                        waiting.add(key, Seen { count: number, last: number });
                        let seen = map.entry(key).or_default();
                        *seen = seen.add(number, number);
                    }
                    2 => prop_assert_eq!(waiting.take(key), map.remove(&key)),
                    _ => {
                        let stale = |seen: Seen| seen.count < number;
                        let dropped: u64 = (0..waiting.pieces())
                            .map(|piece| waiting.drop_stale(piece, stale))
                            .sum();
                        let before = map.len();
                        map.retain(|_, seen| !stale(*seen));
                        prop_assert_eq!(dropped, (before - map.len()) as u64);
                    }
                }
                prop_assert_eq!(waiting.len(), map.len() as u64);
                for key in -40..=50 {
                    prop_assert_eq!(waiting.get(key), map.get(&key).copied());
                }
            }
        }

        #[test]
        fn a_crowded_shard_is_a_map(verbs in proptest::collection::vec((any::<bool>(), 0..60_i64), 1..300)) {
            let mut shard = Shard::default();
            let mut map: HashMap<i64, u32> = HashMap::new();
            for (add, key) in verbs {
                if add {
                    shard.add(key, Seen { count: 1, last: 0 });
                    *map.entry(key).or_default() += 1;
                } else {
                    prop_assert_eq!(shard.take(key).map(|seen| seen.count), map.remove(&key));
                }
                for key in 0..60 {
                    let found = shard.find(key).ok().map(|at| shard.entries[at].count);
                    prop_assert_eq!(found, map.get(&key).copied());
                }
            }
        }
    }
}
