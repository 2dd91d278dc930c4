//! Whether memory is too small for the batches ahead of a table with a tier on disk.
//!
//! A batch ahead that finds no room leaves its rows to its step, which gives the same numbers
//! later. A few of them are a peak. If no batch ahead comes to its step with its rows in memory for
//! a while, looking ahead does nothing but work, and the step says which size to raise.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// After so many batches in a row that were looked up ahead in vain, the next one's step fails.
pub(super) const MOST_IN_VAIN: u32 = 16;

/// What batches ahead have met with lately.
#[derive(Default)]
pub(super) struct Crowding {
    /// Whether a batch ahead found no room, or lost it, since the last claim.
    was_full: AtomicBool,
    /// Claims in a row whose rows were not in memory, each after memory was full.
    in_vain: AtomicU32,
}

impl Crowding {
    /// A batch ahead has found no room, or has lost it.
    pub(super) fn note(&self) {
        self.was_full.store(true, Relaxed);
    }

    /// A batch comes to its step; `is_served` tells whether its rows are in memory. Whether there
    /// were too many that were not: then counting starts anew.
    pub(super) fn is_too_much(&self, is_served: impl FnOnce() -> bool) -> bool {
        if !self.was_full.load(Relaxed) && self.in_vain.load(Relaxed) == 0 {
            return false;
        }
        if is_served() {
            self.was_full.store(false, Relaxed);
            self.in_vain.store(0, Relaxed);
            return false;
        }
        if !self.was_full.swap(false, Relaxed) {
            return false;
        }
        let is_too_much = self.in_vain.fetch_add(1, Relaxed) >= MOST_IN_VAIN;
        if is_too_much {
            self.in_vain.store(0, Relaxed);
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
        let is_too_much = |is_served: bool| crowding.is_too_much(|| is_served);
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
}
