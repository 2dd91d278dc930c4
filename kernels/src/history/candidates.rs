//! What is known of keys that have no row: counted one by one, or in a sketch of fixed size.

use super::{Seen, Sketch, Waiting};
use crate::Result;

/// Counters of keys without a row.
///
/// | | [`Waiting`] | [`Sketch`] |
/// |---|---|---|
/// | memory | at most 24 bytes a key | fixed |
/// | counts and times | those of the key | not less than those of the key |
/// | one key can be taken out | yes | no: its cells keep what they have until they are stale |
/// | number of keys | known | not known |
pub(crate) enum Candidates {
    Exact(Waiting),
    Sketch(Sketch),
}

impl Candidates {
    /// Exact counters for 0, otherwise a sketch of so many bytes.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for the sketch.
    pub(crate) fn new(sketch_bytes: u64) -> Result<Candidates> {
        Ok(match sketch_bytes {
            0 => Candidates::Exact(Waiting::default()),
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
            Candidates::Exact(_) => Candidates::Exact(Waiting::default()),
            Candidates::Sketch(mut sketch) => {
                sketch.clear();
                Candidates::Sketch(sketch)
            }
        }
    }

    /// Adds to a key's counter, which is made if there is none. Padding has none.
    pub(crate) fn add(&self, key: i64, seen: Seen) {
        match self {
            Candidates::Exact(waiting) => waiting.add(key, seen),
            Candidates::Sketch(sketch) => sketch.add(key, seen),
        }
    }

    /// Makes a key's counter; false, and nothing happens, if there is one. A sketch cannot tell, and adds.
    pub(crate) fn put(&self, key: i64, seen: Seen) -> bool {
        match self {
            Candidates::Exact(waiting) => waiting.put(key, seen),
            Candidates::Sketch(sketch) => {
                sketch.add(key, seen);
                true
            }
        }
    }

    /// Appends all keys of one of [`Candidates::pieces`] pieces; none of a sketch, which does not know them.
    pub(crate) fn list(&self, piece: usize, found: &mut Vec<(i64, Seen)>) {
        if let Candidates::Exact(waiting) = self {
            waiting.list(piece, found);
        }
    }

    /// Notes when a key was last seen, if there is anything about it.
    pub(crate) fn touch(&self, key: i64, last: u32) {
        match self {
            Candidates::Exact(waiting) => waiting.touch(key, last),
            Candidates::Sketch(sketch) => sketch.touch(key, last),
        }
    }

    /// What is known of a key.
    pub(crate) fn get(&self, key: i64) -> Option<Seen> {
        match self {
            Candidates::Exact(waiting) => waiting.get(key),
            Candidates::Sketch(sketch) => sketch.get(key),
        }
    }

    /// What is known of a key, which is forgotten here, except by a sketch.
    pub(crate) fn take(&self, key: i64) -> Option<Seen> {
        match self {
            Candidates::Exact(waiting) => waiting.take(key),
            Candidates::Sketch(sketch) => sketch.get(key),
        }
    }

    /// Starts to bring what is known of a key into the cache, where that can be done without a lock.
    #[inline]
    pub(crate) fn prefetch(&self, key: i64) {
        if let Candidates::Sketch(sketch) = self {
            sketch.prefetch(key);
        }
    }

    /// Keys; 0 of a sketch, which does not know.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Candidates::Exact(waiting) => waiting.len(),
            Candidates::Sketch(_) => 0,
        }
    }

    /// Drops what `stale` names in one of [`Candidates::pieces`] pieces; returns how many keys went, 0 of a sketch.
    pub(crate) fn drop_stale(&self, piece: usize, stale: impl Fn(Seen) -> bool) -> u64 {
        match self {
            Candidates::Exact(waiting) => waiting.drop_stale(piece, stale),
            Candidates::Sketch(sketch) => {
                sketch.drop_stale(piece, stale);
                0
            }
        }
    }

    /// Into how many pieces the keys are divided.
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Candidates::Exact(waiting) => waiting.pieces(),
            Candidates::Sketch(sketch) => sketch.pieces(),
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Candidates::Exact(waiting) => waiting.bytes(),
            Candidates::Sketch(sketch) => sketch.bytes(),
        }
    }
}
