//! What a lookup found when its keys were counted, kept until its keys are admitted; and what a
//! step counted, kept to be taken back if the step fails.

use crate::keeper::{Keep, Keeper};
use crate::mem::Lines;
use std::sync::Arc;

/// The findings of at most so many lookups are kept, at most so many bytes in all.
const KEPT: (usize, usize) = (32, 64 << 20);

/// The findings of one lookup.
pub(in crate::table) struct Observed {
    /// The distinct keys, which the caller has as well.
    pub(in crate::table) keys: Arc<Vec<i64>>,
    /// Their rows, -1 where there was none.
    pub(in crate::table) offsets: Lines,
    /// The places of those without a row, in order, each with its key.
    pub(in crate::table) missing: Vec<(u32, i64)>,
    /// How often these were counted, present batch included.
    pub(in crate::table) counts: Vec<u32>,
    /// The index's version then: as long as it is the same, all of it holds.
    pub(in crate::table) version: u64,
    /// The index's removals then: as long as they are the same, rows hold that there were.
    pub(in crate::table) removals: u64,
    /// The counters' version then: as long as it is the same, the counts hold.
    pub(in crate::table) counted_at: u64,
}

impl Keep for Observed {
    fn bytes(&self) -> usize {
        let words = self.keys.capacity() + 2 * self.missing.capacity();
        8 * words + self.offsets.bytes() + 4 * self.counts.capacity()
    }
}

/// What one lookup of a step counted.
pub(in crate::table) struct Counted {
    /// The number of the step.
    pub(in crate::table) step: i64,
    /// The distinct keys.
    pub(in crate::table) keys: Arc<Vec<i64>>,
    /// What was added for each.
    pub(in crate::table) counts: Vec<u32>,
    /// The places of those that had no row then.
    pub(in crate::table) missing: Vec<u32>,
}

impl Keep for Counted {
    fn bytes(&self) -> usize {
        8 * self.keys.capacity() + 4 * (self.counts.capacity() + self.missing.capacity())
    }
}

/// Place for what the latest lookups found or counted.
pub(in crate::table) fn kept<T: Keep>() -> Keeper<T> {
    Keeper::new(KEPT.0, KEPT.1)
}
