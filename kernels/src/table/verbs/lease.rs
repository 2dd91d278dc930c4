//! Leases: the offsets of a batch, whose rows stay readable while the lease lives; and batches that
//! get their rows ahead of their step.

use crate::batch::distinct::Distinct;
use crate::halves::folded_keys;
use crate::index::Index;
use crate::mem::Lines;
use crate::stores::Pinned;
use crate::table::rows::content::Content;
use crate::table::rows::fingerprint::Fingerprint;
use crate::table::rows::flight::{divide, Claim, Flight, Known};
use crate::table::Table;
use crate::{Ids, Pool, Result};
use std::sync::{Arc, Weak};

/// What is known of the keys of a batch that is prepared.
const DISTINCT: Known = Known {
    are_distinct: true,
    folded: None,
};

/// The offsets of one batch. While it lives, none of its rows becomes the row of another key,
/// whatever is removed, and each of them can be read.
///
/// Its offsets start at a cache line, and their address is that of no other live lease. It does not
/// keep the table alive.
pub struct Lease {
    table: Weak<Table>,
    /// Always there until the lease is dropped.
    offsets: Option<Arc<Lines>>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("offsets", &self.offsets().len())
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// The offsets of the distinct keys, in order of first occurrence; none if the batch could not
    /// be prepared.
    pub fn offsets(&self) -> &[i64] {
        self.offsets.as_ref().map_or(&[], |offsets| offsets)
    }

    /// The lease of a batch that could not be prepared.
    pub(in crate::table) fn empty() -> Lease {
        Lease {
            table: Weak::new(),
            offsets: None,
        }
    }

    /// Whether it is the lease of a batch that could not be prepared.
    pub(in crate::table) fn is_empty(&self) -> bool {
        self.offsets.is_none()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(offsets) = self.offsets.take() else {
            return;
        };
        let Some(table) = self.table.upgrade() else {
            return;
        };
        table.rows().end(&offsets);
        if let Some(offsets) = Arc::into_inner(offsets) {
            table.rows().buffers().keep(offsets);
        }
    }
}

impl Table {
    /// What comes before [`Table::claim_expected`], and enters nothing: whoever claims several
    /// batches asks for all of them before the first one enters its keys. Each `lookup` of a step
    /// has a number of its own: whether a table has too few rows in memory is told by the batches
    /// of one.
    ///
    /// # Errors
    /// `ResourceExhausted` if a table with rows on disk has too few in memory to prepare any batch
    /// of this lookup; the next call for it goes on.
    pub fn expect_claim(
        &self,
        lookup: usize,
        ids: Ids<'_>,
        offsets: &[i64],
        limit: Option<usize>,
    ) -> Result<()> {
        match limit.is_some_and(|limit| offsets.len() > limit) {
            true => Ok(()),
            false => self.expect_room_ahead(lookup, ids, offsets),
        }
    }

    /// In the step: whether `offsets`, the very buffer of a live lease that was prepared for this
    /// table, and `inverse` are what [`Table::lease_many`] would give for `ids` now. `ids` and
    /// `inverse` must hold what they held when the lease was prepared, wherever they lie. If so,
    /// the batch's new keys are now in the table. If not, nothing changed, and the step calls
    /// [`Table::lease_many`].
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory for the new keys; then nothing changed.
    pub fn claim_expected(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        offsets: &[i64],
        limit: Option<usize>,
        inverse: &[i32],
    ) -> Result<bool> {
        let is_too_long = limit.is_some_and(|limit| offsets.len() > limit);
        if is_too_long || !self.flight().lock().may_be_claimed(offsets) {
            return Ok(false);
        }
        let source = Fingerprint::of(ids, inverse);
        let folded = self.folded_keys(ids, inverse, offsets.len());
        let settled = |flight: &mut Flight| match flight.claim(offsets, source) {
            Claim::Stale => Some(false),
            Claim::Good => {
                flight.note_folded(offsets, folded.clone());
                self.keys().counters.batch(offsets.len(), 0);
                Some(true)
            }
            Claim::Enter => None,
        };
        if let Some(is_good) = settled(&mut self.flight().lock()) {
            return Ok(is_good);
        }
        let mut index = self.index().write();
        let mut flight = self.flight().lock();
        // Others may have been faster in the meantime.
        if let Some(is_good) = settled(&mut flight) {
            return Ok(is_good);
        }
        let (keys, rows) = flight.named(offsets);
        self.named(index.reserve(pool, &keys))?;
        let old = flight.enter(&keys, self.content().read().initials());
        flight.entered(offsets);
        flight.note_folded(offsets, folded);
        if !old.is_empty() || self.tracks() {
            let mut content = self.content().write();
            content.reset(&old);
            content.changes.renew(&rows);
        }
        drop(flight);
        self.keys().move_history(&keys, &rows);
        index.insert(pool, &keys, &rows);
        self.keys().count(&index);
        self.keys().counters.batch(offsets.len(), keys.len());
        Ok(true)
    }

    /// Gives the keys that `found` has no rows for staged ones, and all of them a lease; an empty
    /// one where that cannot be. The caller holds `index` from before it looked the keys up, or it
    /// is what it was then. With `found` come the pins of its rows, if they were brought in since.
    pub(in crate::table) fn stage(
        self: &Arc<Self>,
        pool: &Pool,
        index: &Index,
        (mut found, brought): (Distinct<Lines>, Option<Pinned>),
        limit: Option<usize>,
        source: Fingerprint,
    ) -> Lease {
        if limit.is_some_and(|limit| found.keys > limit) {
            return Lease::empty();
        }
        if found.missing.is_empty() {
            self.rows().stamp(&mut found.offsets);
            let offsets = Arc::new(found.offsets);
            let mut flight = self.flight().lock();
            flight.register(&offsets, Some(source), Vec::new(), DISTINCT);
            if self.has_tier() {
                let content = self.content().read();
                let brought = brought.filter(|brought| is_of(&content, brought, offsets.len()));
                flight.pin(&offsets, brought.or_else(|| self.pin(&content, &offsets)));
            }
            drop(flight);
            return self.leased(offsets);
        }
        let keys: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
        let mut flight = self.flight().lock();
        let (mut rows, fresh) = divide(&flight, &keys);
        let used = index.len() + flight.staging() + flight.retired();
        if used.saturating_add(fresh.len() as u64) > self.capacity() {
            return Lease::empty();
        }
        let mut content = self.content().write();
        flight.settle(&mut content);
        let Ok(taken) = content.take(fresh.len()) else {
            return Lease::empty();
        };
        for (&key, &row) in fresh.iter().zip(&taken) {
            flight.stage(key, row, content.initials());
        }
        crate::table::rows::fill_in(&mut rows, &taken);
        for (&(position, _), &row) in found.missing.iter().zip(&rows) {
            found.offsets[position as usize] = i64::from(row);
        }
        self.rows().stamp(&mut found.offsets);
        let offsets = Arc::new(found.offsets);
        let staged = keys.into_iter().zip(rows).collect();
        flight.register(&offsets, Some(source), staged, DISTINCT);
        flight.pin(&offsets, self.pin(&content, &offsets));
        drop(flight);
        // Whoever enters the new keys waits for the index, and whoever reads their rows for the
        // content.
        self.initialise(pool, &mut content, &fresh, &taken);
        drop(content);
        self.leased(offsets)
    }

    /// Makes a lease of offsets known whose keys are in the index, which the caller holds.
    pub(in crate::table) fn register(&self, offsets: &Arc<Lines>, known: Known) {
        let mut flight = self.flight().lock();
        flight.register(offsets, None, Vec::new(), known);
        if self.has_tier() {
            flight.pin(offsets, self.pin(&self.content().read(), offsets));
        }
    }

    /// What the rows of the distinct keys of a lookup are rounded by when they are updated; nothing
    /// if that is not by keys. The arguments are those of [`folded_keys`].
    pub(in crate::table) fn folded_keys(
        &self,
        ids: Ids<'_>,
        inverse: &[i32],
        distinct: usize,
    ) -> Option<Arc<[u32]>> {
        let is_asked = self.config().row_storage.rounds_by_key();
        is_asked.then(|| folded_keys(ids, inverse, distinct))
    }

    pub(in crate::table) fn leased(self: &Arc<Self>, offsets: Arc<Lines>) -> Lease {
        Lease {
            table: Arc::downgrade(self),
            offsets: Some(offsets),
        }
    }
}

/// Whether these are the pins of all of so many rows, in memory that is a content's.
fn is_of(content: &Content, pinned: &Pinned, rows: usize) -> bool {
    let tiered = content.store.tiered();
    tiered.is_some_and(|tiered| tiered.is_pinned(pinned, rows))
}
