//! What a lookup found when its keys were counted, kept for a moment: it is asked next which of them get rows.

use crate::mem::Lines;
use std::sync::Arc;

/// Lookups whose findings are kept, at most so many of at most so many bytes in all.
const KEPT: (usize, usize) = (32, 64 << 20);

/// The findings of one lookup.
pub(super) struct Observed {
    /// The distinct keys, which the caller has as well.
    pub(super) keys: Arc<Vec<i64>>,
    /// Their rows, -1 where there was none.
    pub(super) offsets: Lines,
    /// The places of those without a row, in order, each with its key.
    pub(super) missing: Vec<(u32, i64)>,
    /// How often these were counted, present batch included.
    pub(super) counts: Vec<u32>,
    /// The index's version then: as long as it is the same, all of it holds.
    pub(super) version: u64,
    /// The index's losses then: as long as they are the same, rows hold that there were.
    pub(super) losses: u64,
    /// The counters' moment then: as long as it is the same, the counts hold.
    pub(super) moment: u64,
}

impl Observed {
    fn bytes(&self) -> usize {
        let words = self.keys.capacity() + 2 * self.missing.capacity();
        8 * words + self.offsets.bytes() + 4 * self.counts.capacity()
    }
}

/// The findings of the latest lookups that were not asked for yet.
#[derive(Default)]
pub(super) struct Observations(Vec<Observed>);

impl Observations {
    /// Keeps findings, in place of the oldest ones beyond what is kept.
    pub(super) fn keep(&mut self, observed: Observed) {
        if observed.bytes() > KEPT.1 {
            return;
        }
        self.0.push(observed);
        while self.0.len() > KEPT.0 || self.bytes() > KEPT.1 {
            self.0.remove(0);
        }
    }

    /// Hands out what was found of the very `keys`, if it is still there.
    pub(super) fn take(&mut self, keys: &[i64]) -> Option<Observed> {
        let at = self.0.iter().rposition(|found| found.keys[..] == *keys)?;
        Some(self.0.remove(at))
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(Observed::bytes).sum()
    }
}
