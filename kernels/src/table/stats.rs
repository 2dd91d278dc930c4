//! What has happened to a table: counted as it happens, read at any time.

use super::rows::tier::TierStats;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What has happened to a table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows in use.
    pub rows: u64,
    /// The row budget.
    pub capacity: u64,
    /// Bytes of rows, of the index and of the history.
    pub rows_bytes: u64,
    /// See `rows_bytes`.
    pub index_bytes: u64,
    /// See `rows_bytes`.
    pub history_bytes: u64,
    /// Distinct keys of training batches that had a row.
    pub hits: u64,
    /// Keys that got a row.
    pub new: u64,
    /// Distinct keys of batches that were not admitted.
    pub refused: u64,
    /// Keys that were evicted.
    pub evicted: u64,
    /// Gradients that were dropped because their keys had been removed since the lookup; each
    /// distinct offset of an update counts once.
    pub stale: u64,
    /// Finite values that were beyond the largest one of a `row_dtype` or `slot_dtype` of 2 bytes,
    /// and became that one. Counted since the table was made or restored.
    pub saturated: u64,
    /// Infinities and not-a-numbers that were written to values of 2 bytes, counted likewise.
    pub not_finite: u64,
    /// Rows in memory and on disk; `None` for a table that is all in memory.
    pub tier: Option<TierStats>,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) new: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) stale: AtomicU64,
}

impl Counters {
    /// Counts a batch of distinct keys, so many of which got a row.
    pub(super) fn batch(&self, keys: usize, new: usize) {
        self.hits.fetch_add((keys - new.min(keys)) as u64, Relaxed);
        self.new.fetch_add(new as u64, Relaxed);
    }

    /// Counts so many gradients that were dropped.
    pub(super) fn dropped(&self, stale: u64) {
        self.stale.fetch_add(stale, Relaxed);
    }
}
