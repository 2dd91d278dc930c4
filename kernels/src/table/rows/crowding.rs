//! Whether memory is too small for the batches ahead of a table with a tier on disk.
//!
//! A batch ahead that finds no room leaves its rows to its step, which gives the same numbers
//! later. A few of them are a peak. If no batch ahead comes to its step with its rows in memory for
//! a while, looking ahead does nothing but work, and the step says which size to raise.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::Mutex;
use crate::table::rows::key_map::KeyMap;

/// After so many batches in a row that a lookup was prepared for in vain, the next one's step
/// fails.
pub(in crate::table) const MOST_IN_VAIN: u32 = 16;

/// What batches ahead have met with lately.
#[derive(Default)]
pub(in crate::table) struct Crowding {
    /// How often a batch ahead found no room, or lost it.
    full: AtomicU64,
    /// `full` when a claim last found its rows in memory.
    served: AtomicU64,
    /// By lookup: since then. The lookups of one step are counted apart from each other, because
    /// many of them may come late in one step.
    late: Mutex<KeyMap<usize, Late>>,
}

/// What the claims of a lookup have met with since rows were last found in memory.
#[derive(Default)]
struct Late {
    /// `full` at its last claim.
    full: u64,
    /// Claims whose rows were not in memory after memory was full, less those after it was not.
    in_vain: u32,
}

impl Crowding {
    /// A batch ahead has found no room, or has lost it.
    pub(in crate::table) fn note(&self) {
        self.full.fetch_add(1, Relaxed);
    }

    /// Counting starts anew: the rows are others.
    pub(in crate::table) fn forget(&self) {
        let mut late = self.late.lock();
        late.clear();
        self.served.store(self.full.load(Relaxed), Relaxed);
    }

    /// A batch comes to the step of a lookup; `is_served` tells whether its rows are in memory.
    /// Whether there were too many that were not: then counting starts anew.
    pub(in crate::table) fn is_too_much(
        &self,
        lookup: usize,
        is_served: impl FnOnce() -> bool,
    ) -> bool {
        let full = self.full.load(Relaxed);
        if full == self.served.load(Relaxed) {
            return false;
        }
        if is_served() {
            self.forget();
            return false;
        }
        let mut counts = self.late.lock();
        let late = counts.entry(lookup).or_default();
        if std::mem::replace(&mut late.full, full) == full {
            late.in_vain = late.in_vain.saturating_sub(1);
            return false;
        }
        late.in_vain += 1;
        let is_too_much = late.in_vain > MOST_IN_VAIN;
        if is_too_much {
            counts.clear();
        }
        is_too_much
    }
}

#[cfg(test)]
mod tests {
    use super::{Crowding, MOST_IN_VAIN};

    #[test]
    fn only_batches_in_a_row_that_found_memory_full_count() {
        let crowding = Crowding::default();
        let is_too_much = |is_served: bool| crowding.is_too_much(0, || is_served);
        for _ in 0..1000 {
            assert!(!is_too_much(false), "memory was not full");
        }
        for _ in 0..MOST_IN_VAIN {
            crowding.note();
            assert!(!is_too_much(false));
        }
        assert!(!is_too_much(false), "memory was not full again");
        assert!(!is_too_much(true));
        for _ in 0..3 {
            for _ in 0..MOST_IN_VAIN {
                crowding.note();
                assert!(!is_too_much(false));
            }
            crowding.note();
            assert!(is_too_much(false));
        }
    }

    #[test]
    fn lookups_of_one_step_and_peaks_far_apart_and_a_restore_do_not_add_up() {
        let crowding = Crowding::default();
        for lookup in 0..100 {
            crowding.note();
            assert!(!crowding.is_too_much(lookup, || false));
        }
        for _ in 0..100 {
            crowding.note();
            assert!(!crowding.is_too_much(0, || false));
            assert!(!crowding.is_too_much(0, || false), "memory was not full");
        }
        for _ in 0..100 {
            for _ in 0..MOST_IN_VAIN / 2 {
                crowding.note();
                assert!(!crowding.is_too_much(0, || false));
            }
            crowding.forget();
        }
    }
}
