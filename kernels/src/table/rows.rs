//! What a table has by row number: the rows' floats, who holds them, and since when they belong to
//! their keys.

use super::content::Content;
use super::flight::Flight;
use super::offset::{row_of, Births};
use crate::keeper::Keeper;
use crate::mem::Lines;
use crate::sync::{Mutex, RwLock};
use std::sync::Arc;

/// Buffers of offsets that are kept for later batches, at most so many of at most so many bytes in
/// all.
const KEPT: (usize, usize) = (16, 64 << 20);

/// The rows of a table. The locks are to be taken in the order of the fields.
pub(super) struct Rows {
    /// What batches on their way hold.
    pub(super) flight: Mutex<Flight>,
    /// What the rows hold.
    pub(super) content: RwLock<Content>,
    /// Those of the content's rows.
    births: Arc<RwLock<Births>>,
    /// Buffers of offsets for later batches.
    kept: Keeper<Lines>,
}

impl Rows {
    /// Those of a content, none of them in flight.
    pub(super) fn new(content: Content) -> Rows {
        Rows {
            flight: Mutex::default(),
            births: Arc::clone(content.births()),
            content: RwLock::new(content),
            kept: Keeper::new(KEPT.0, KEPT.1),
        }
    }

    /// Makes offsets of row numbers, and leaves -1. The rows belong to their keys, and the caller
    /// holds the index, so that it stays so meanwhile. Whatever else is in a number is written over.
    pub(super) fn stamp(&self, rows: &mut [i64]) {
        let births = self.births.read();
        if births.is_plain() {
            let plain = births.plain();
            rows.iter_mut().for_each(|row| *row |= plain);
        } else {
            let rows = rows.iter_mut().filter(|row| **row != -1);
            rows.for_each(|row| *row = births.offset(row_of(*row)));
        }
    }

    /// Takes in rows whose `keys` have left the index, which the caller holds: those that live leases
    /// hold wait for the leases' end, the others are free. `keys` may be left out if changes are not
    /// tracked. `tidy` says whether the memory of free rows is given back now, if there are many.
    pub(super) fn retire(&self, rows: &[u32], keys: Vec<i64>, tidy: bool) {
        let mut flight = self.flight.lock();
        let mut content = self.content.write();
        content.changes.remove(keys.into_iter());
        flight.retire(rows, &mut content);
        match tidy {
            true => content.tidy(),
            false => content.leave_untidy(),
        }
    }

    /// Ends a lease. The content is not waited for: who has it may be the thread that drops the
    /// lease.
    pub(super) fn end(&self, offsets: &Lines) {
        let mut flight = self.flight.lock();
        flight.end(offsets.as_ptr().addr());
        if flight.has_loose() {
            if let Some(mut content) = self.content.try_write() {
                flight.settle(&mut content);
                content.tidy();
            }
        }
    }

    /// Puts a new content in the place of the old one: offsets of the old one are good no longer,
    /// and nothing is in flight. Returns the epoch of changes that ends with it, 0 if they are not
    /// tracked.
    pub(super) fn replace(&self, make: impl FnOnce(&mut Content) -> Content) -> u32 {
        let mut flight = self.flight.lock();
        let mut old = self.content.write();
        flight.forget();
        let mut new = make(&mut old);
        let (changes, closed) = old.changes.replaced();
        new.changes = changes;
        new.follow(&old);
        *old = new;
        closed
    }

    /// A buffer for `n` offsets with unspecified contents.
    pub(super) fn buffer(&self, n: usize) -> Lines {
        let fits = |lines: &Lines| (n..=n.saturating_mul(4).max(4096)).contains(&lines.room());
        // The next batch may be a little longer.
        let mut lines = self
            .kept
            .take(fits)
            .unwrap_or_else(|| Lines::new(n + n / 8));
        lines.fit(n);
        lines
    }

    /// Takes a buffer back, in place of the oldest ones beyond what is kept.
    pub(super) fn keep(&self, lines: Lines) {
        self.kept.keep(lines);
    }

    /// Gives the buffers up.
    pub(super) fn drop_buffers(&self) {
        self.kept.clear();
    }

    /// Bytes of the rows, and of what is kept beside them.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let flight = self.flight.lock().bytes();
        let kept = self.kept.bytes();
        let content = self.content.read();
        (
            content.slab.bytes(),
            content.other_bytes() + (flight + kept) as u64,
        )
    }
}
