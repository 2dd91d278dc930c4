//! The rows of a table, by number: their floats, the leases that hold them, and the generations
//! since which they belong to their keys.

pub(super) mod changes;
pub(super) mod content;
pub(super) mod crowding;
pub(super) mod fingerprint;
pub(super) mod flight;
pub(super) mod free_rows;
pub(super) mod key_map;
pub(super) mod layout;
pub(super) mod offset;
pub(super) mod offset_buffers;
pub(super) mod tier;

use crate::mem::{Lines, NONE};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use crate::table::rows::content::Content;
use crate::table::rows::flight::{divide, Flight};
use crate::table::rows::offset::{row_of, Births};
use crate::table::rows::offset_buffers::OffsetBuffers;
use crate::table::rows::tier::Tier;
use crate::Result;
use std::sync::Arc;

/// The rows of a table. The locks are to be taken in the order of the fields.
pub(in crate::table) struct Rows {
    /// Staged, leased and retired rows.
    pub(in crate::table) flight: Mutex<Flight>,
    /// What the rows hold.
    pub(in crate::table) content: RwLock<Content>,
    /// The generations of the content's rows.
    births: Arc<RwLock<Births>>,
    /// Whether `content.changes` is on; once on, it stays.
    tracking: AtomicBool,
    buffers: OffsetBuffers,
    /// Of a table with a tier on disk.
    pub(in crate::table) tier: Option<Box<Tier>>,
}

/// Both locks on the rows of a table.
pub(in crate::table) struct LockedRows<'r> {
    flight: MutexGuard<'r, Flight>,
    pub(in crate::table) content: RwLockWriteGuard<'r, Content>,
    tier: Option<&'r Tier>,
}

impl LockedRows<'_> {
    /// Puts a new content in the place of the old one: offsets of the old one are good no longer,
    /// and nothing is in flight.
    pub(in crate::table) fn replace(&mut self, mut new: Content) -> ReplacedContent {
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
pub(in crate::table) struct ReplacedContent {
    /// The epoch of changes that ended with it, 0 if they are not tracked.
    pub(in crate::table) epoch: u32,
    _content: Content,
}

impl Rows {
    /// The rows of a content, none of them staged, leased or retired.
    pub(in crate::table) fn new(content: Content, tier: Option<Box<Tier>>) -> Rows {
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
    pub(in crate::table) fn stamp(&self, rows: &mut [i64]) {
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
    pub(in crate::table) fn births(&self, rows: &[i64]) -> Vec<i32> {
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
    pub(in crate::table) fn retire(&self, rows: &[u32], keys: Vec<i64>, tidy: bool) {
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
    pub(in crate::table) fn end(&self, offsets: &Lines) {
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
    pub(in crate::table) fn lock(&self) -> LockedRows<'_> {
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
    pub(in crate::table) fn make(
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
    pub(in crate::table) fn track_changes(&self) {
        self.content.write().changes.start();
        self.tracking.store(true, Ordering::Release);
    }

    /// Whether changes are tracked.
    pub(in crate::table) fn tracks(&self) -> bool {
        self.tracking.load(Ordering::Acquire)
    }

    /// A good save has told of what happened up to epoch `since`.
    pub(in crate::table) fn forget_told(&self, since: u32) {
        if self.tracks() {
            self.content.write().changes.forget_told(since);
        }
    }

    /// Buffers for offsets.
    pub(in crate::table) fn buffers(&self) -> &OffsetBuffers {
        &self.buffers
    }

    /// Bytes of the rows, and of what is kept beside them.
    pub(in crate::table) fn bytes(&self) -> (u64, u64) {
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
pub(in crate::table) fn fill_in(rows: &mut [u32], taken: &[u32]) {
    let empty = rows.iter_mut().filter(|row| **row == NONE);
    empty.zip(taken).for_each(|(row, &taken)| *row = taken);
}
