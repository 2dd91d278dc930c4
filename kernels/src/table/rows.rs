//! The rows of a table, by number: their floats, the leases that hold them, and the generations
//! since which they belong to their keys.

use super::content::Content;
use super::flight::{divide, Flight};
use super::offset::{row_of, Births};
use super::offset_buffers::OffsetBuffers;
use super::tier::Tier;
use crate::mem::{Lines, NONE};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use crate::Result;
use std::sync::Arc;

/// The rows of a table. The locks are to be taken in the order of the fields.
pub(super) struct Rows {
    /// Staged, leased and retired rows.
    pub(super) flight: Mutex<Flight>,
    /// What the rows hold.
    pub(super) content: RwLock<Content>,
    /// The generations of the content's rows.
    births: Arc<RwLock<Births>>,
    /// Whether `content.changes` is on; once on, it stays.
    tracking: AtomicBool,
    buffers: OffsetBuffers,
    /// Of a table with a tier on disk.
    pub(super) tier: Option<Box<Tier>>,
}

/// Both locks on the rows of a table.
pub(super) struct LockedRows<'r> {
    flight: MutexGuard<'r, Flight>,
    pub(super) content: RwLockWriteGuard<'r, Content>,
    tier: Option<&'r Tier>,
}

impl LockedRows<'_> {
    /// Puts a new content in the place of the old one: offsets of the old one are good no longer,
    /// and nothing is in flight.
    pub(super) fn replace(&mut self, mut new: Content) -> ReplacedContent {
        self.flight.forget();
        let old = &mut *self.content;
        let (changes, epoch) = old.changes.replaced();
        new.changes = changes;
        new.follow(old);
        let content = std::mem::replace(old, new);
        if let Some(tier) = self.tier {
            tier.note(&self.content);
            tier.crowding.forget();
        }
        ReplacedContent {
            epoch,
            _content: content,
        }
    }
}

/// A content that is no table's any more. To drop it takes time: no lock should be held then.
pub(super) struct ReplacedContent {
    /// The epoch of changes that ended with it, 0 if they are not tracked.
    pub(super) epoch: u32,
    _content: Content,
}

impl Rows {
    /// The rows of a content, none of them staged, leased or retired.
    pub(super) fn new(content: Content, tier: Option<Box<Tier>>) -> Rows {
        Rows {
            flight: Mutex::default(),
            births: Arc::clone(content.births()),
            content: RwLock::new(content),
            tracking: AtomicBool::new(false),
            buffers: OffsetBuffers::default(),
            tier,
        }
    }

    /// Turns row numbers into offsets, and leaves -1. The caller holds the index, so that the rows
    /// stay those of their keys meanwhile.
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

    /// The births of the keys that have `rows`, which may be offsets; 0 for -1. The caller holds
    /// the index, or the rows by a lease.
    pub(super) fn births(&self, rows: &[i64]) -> Vec<i32> {
        let births = self.births.read();
        let of = |&row: &i64| match row {
            -1 => 0,
            row => births.birth(row_of(row)),
        };
        rows.iter().map(of).collect()
    }

    /// Retires rows whose `keys` have left the index, which the caller holds: rows of live leases
    /// wait for the leases' end, the others are free. `keys` may be empty if changes are not
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

    /// Takes both locks.
    pub(super) fn lock(&self) -> LockedRows<'_> {
        let flight = self.flight.lock();
        let content = self.content.write();
        let tier = self.tier.as_deref();
        LockedRows {
            flight,
            content,
            tier,
        }
    }

    /// Rows for distinct keys that are not in the index, which the caller holds: staged ones where
    /// there are any, and new ones, which `initialise` gets with their keys. Staged rows of other
    /// keys are given up if staged, retired and new ones together are more than `room`.
    ///
    /// # Errors
    /// `ResourceExhausted`; then no key has got a row.
    pub(super) fn make(
        &self,
        keys: &[i64],
        room: u64,
        initialise: impl FnOnce(&mut Content, &[i64], &[u32]),
    ) -> Result<Vec<u32>> {
        let mut flight = self.flight.lock();
        let (mut rows, mut fresh) = divide(&flight, keys);
        let wanted = flight.staging() + flight.retired() + fresh.len() as u64;
        if wanted > room && flight.staging() > 0 {
            // This batch comes before those that are prepared ahead.
            flight.unstage();
            (rows, fresh) = divide(&flight, keys);
        }
        let mut content = self.content.write();
        flight.settle(&mut content);
        let taken = content.take(fresh.len())?;
        if fresh.len() < keys.len() {
            let staged = keys.iter().zip(&rows).filter(|(_, &row)| row != NONE);
            let keys: Vec<i64> = staged.map(|(&key, _)| key).collect();
            let old = flight.enter(&keys, content.initials());
            content.reset(&old);
        }
        drop(flight);
        fill_in(&mut rows, &taken);
        initialise(&mut content, &fresh, &taken);
        content.changes.renew(&rows);
        Ok(rows)
    }

    /// Starts to track changes.
    pub(super) fn track_changes(&self) {
        self.content.write().changes.start();
        self.tracking.store(true, Ordering::Release);
    }

    /// Whether changes are tracked.
    pub(super) fn tracks(&self) -> bool {
        self.tracking.load(Ordering::Acquire)
    }

    /// A good save has told of the keys that lost their rows up to epoch `since`.
    pub(super) fn forget_removed(&self, since: u32) {
        if self.tracks() {
            self.content.write().changes.forget_removed(since);
        }
    }

    /// Buffers for offsets.
    pub(super) fn buffers(&self) -> &OffsetBuffers {
        &self.buffers
    }

    /// Bytes of the rows, and of what is kept beside them.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let flight = self.flight.lock().bytes();
        let kept = self.buffers.bytes();
        let content = self.content.read();
        (
            content.store.bytes(),
            content.other_bytes() + (flight + kept) as u64,
        )
    }
}

/// Puts `taken` in the places of `rows` that are empty.
pub(super) fn fill_in(rows: &mut [u32], taken: &[u32]) {
    let empty = rows.iter_mut().filter(|row| **row == NONE);
    empty.zip(taken).for_each(|(row, &taken)| *row = taken);
}
