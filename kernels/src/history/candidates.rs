//! What is known of keys that have no row: counted one by one, or in a sketch of fixed size.

use super::{KeyCounters, Seen, Sketch};
use crate::{Pool, Result};

/// KeyCounters of keys without a row.
///
/// | | [`KeyCounters`] | [`Sketch`] |
/// |---|---|---|
/// | memory | at most 24 bytes a key | fixed |
/// | counts and times | those of the key | not less than those of the key |
/// | one key can be taken out | yes | no: its cells keep what they have until they are stale |
/// | number of keys | known | not known |
pub(crate) enum Candidates {
    Exact(KeyCounters),
    Sketch(Sketch),
}

impl Candidates {
    /// Exact counters for 0, otherwise a sketch of so many bytes.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for the sketch.
    pub(crate) fn new(sketch_bytes: u64) -> Result<Candidates> {
        Ok(match sketch_bytes {
            0 => Candidates::Exact(KeyCounters::default()),
            bytes => Candidates::Sketch(Sketch::new(bytes)?),
        })
    }

    /// The sketch, if it is one.
    pub(crate) fn sketch(&self) -> Option<&Sketch> {
        match self {
            Candidates::Exact(_) => None,
            Candidates::Sketch(sketch) => Some(sketch),
        }
    }

    /// The same without a key. A sketch keeps its memory.
    pub(crate) fn emptied(self) -> Candidates {
        match self {
            Candidates::Exact(_) => Candidates::Exact(KeyCounters::default()),
            Candidates::Sketch(mut sketch) => {
                sketch.clear();
                Candidates::Sketch(sketch)
            }
        }
    }

    /// Adds to the counters of distinct keys, `count(at)` to that of `keys[at]`, which are made
    /// where there are none. With `counting == false` only notes when those were seen of which
    /// something is known. The result is what [`Candidates::counts`] would give as long as
    /// [`Candidates::version`] is 2 more than before.
    pub(crate) fn add(
        &self,
        pool: &Pool,
        keys: &[i64],
        counting: bool,
        count: impl Fn(usize) -> u32 + Sync,
        last: u32,
    ) -> Vec<u32> {
        match self {
            Candidates::Exact(counters) => counters.add(pool, keys, counting, count, last),
            Candidates::Sketch(sketch) => {
                sketch.visit(pool, keys, |at, key| {
                    if counting {
                        let count = count(at);
                        sketch.add(key, Seen { count, last });
                    } else {
                        sketch.touch(key, last);
                    }
                });
                Vec::new()
            }
        }
    }

    /// The counters of distinct keys.
    pub(crate) fn counts(&self, pool: &Pool, keys: &[i64]) -> Vec<u32> {
        match self {
            Candidates::Exact(counters) => counters.counts(pool, keys),
            Candidates::Sketch(sketch) => sketch.counts(pool, keys),
        }
    }

    /// [`KeyCounters::version`]; a sketch stays at 0: keys that were added share cells, so that
    /// their counts are known only then.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Candidates::Exact(counters) => counters.version(),
            Candidates::Sketch(_) => 0,
        }
    }

    /// Makes a key's counter; false, and nothing happens, if there is one. A sketch cannot tell,
    /// and adds.
    pub(crate) fn put(&self, key: i64, seen: Seen) -> bool {
        match self {
            Candidates::Exact(counters) => counters.put(key, seen),
            Candidates::Sketch(sketch) => {
                sketch.add(key, seen);
                true
            }
        }
    }

    /// Appends all keys of one of [`Candidates::pieces`] pieces; none of a sketch, which does not
    /// know them.
    pub(crate) fn list(&self, piece: usize, found: &mut Vec<(i64, Seen)>) {
        if let Candidates::Exact(counters) = self {
            counters.list(piece, found);
        }
    }

    /// Takes back what was added to a key's counter. One that counts nothing any more goes.
    pub(crate) fn subtract(&self, key: i64, count: u32) {
        match self {
            Candidates::Exact(counters) => counters.subtract(key, count),
            Candidates::Sketch(sketch) => sketch.subtract(key, count),
        }
    }

    /// What is known of a key, which is forgotten here, except by a sketch.
    pub(crate) fn take(&self, key: i64) -> Option<Seen> {
        match self {
            Candidates::Exact(counters) => counters.take(key),
            Candidates::Sketch(sketch) => sketch.get(key),
        }
    }

    /// Keys; 0 of a sketch, which does not know.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Candidates::Exact(counters) => counters.len(),
            Candidates::Sketch(_) => 0,
        }
    }

    /// Drops what `stale` names in one of [`Candidates::pieces`] pieces; returns how many keys
    /// went, 0 of a sketch.
    pub(crate) fn drop_stale(&self, piece: usize, stale: impl Fn(Seen) -> bool) -> u64 {
        match self {
            Candidates::Exact(counters) => counters.drop_stale(piece, stale),
            Candidates::Sketch(sketch) => {
                sketch.drop_stale(piece, stale);
                0
            }
        }
    }

    /// Into how many pieces the keys are divided.
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Candidates::Exact(counters) => counters.pieces(),
            Candidates::Sketch(sketch) => sketch.pieces(),
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Candidates::Exact(counters) => counters.bytes(),
            Candidates::Sketch(sketch) => sketch.bytes(),
        }
    }
}
