//! The whole content of a table at one moment, row by row or as one copy.

use crate::halves::Place;
use crate::index::Index;
use crate::mem::reserved;
use crate::optim::Steps;
use crate::stores::{ReadRows, SideRows, Tiered};
use crate::sync::{RwLockReadGuard, RwLockWriteGuard};
use crate::table::rows::content::Content;
use crate::table::rows::layout::Layout;
use crate::table::Table;
use crate::{Pool, Result, SlotSpec, PADDING};
use std::iter::once;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Rows whose keys are collected in one pass over the index, at least.
const WINDOW: usize = 4 << 20;

/// About so many passes are made over the index of a larger table.
const PASSES: usize = 128;

/// Rows on disk that are read at once for somebody who wants them in the order of their numbers.
const CHUNK: usize = 4096;

/// What is called with keys and rows on disk.
type Records<'f> = dyn FnMut(&[i64], &[f32]) -> Result<()> + 'f;

/// A read lock on a whole table: blocks every verb except observe, and eviction of keys without
/// rows. The thread that holds it must call no verb of any table, and drop no lease.
pub struct Snapshot<'t> {
    pub(in crate::table) table: &'t Table,
    pub(in crate::table) index: RwLockReadGuard<'t, Index>,
    content: RwLockReadGuard<'t, Content>,
}

impl Snapshot<'_> {
    /// Rows in use.
    pub fn rows(&self) -> u64 {
        self.index.len()
    }

    /// The slots of a row, in the order in which they lie behind the embedding.
    pub fn slots(&self) -> &[SlotSpec] {
        &self.content.slots
    }

    /// Where embedding and slots are in a record.
    pub(crate) fn layout(&self) -> Layout {
        self.content.layout
    }

    /// How many updates there were, of a table whose embeddings have 2 bytes a value.
    pub(crate) fn updates(&self) -> Option<u64> {
        self.content.halves.as_ref().map(|halves| halves.updates())
    }

    /// Whether the row of a number is in memory.
    pub(crate) fn is_in_memory(&self, row: u32) -> bool {
        let tiered = self.content.store.tiered();
        tiered.is_none_or(|tiered| tiered.on_disk(row).is_none())
    }

    /// Calls `f` with the keys of rows in use on disk that `keep` accepts, and with their records,
    /// [`Snapshot::row`] one after the other, in the order in which they lie there, about 8 MiB at
    /// a time. The rows stay there.
    ///
    /// # Errors
    /// The first error of `f`; `DataLoss` for a record that is damaged, and what the files refuse;
    /// `ResourceExhausted` without memory.
    pub(crate) fn each_on_disk(
        &self,
        pool: &Pool,
        keep: &dyn Fn(u32) -> bool,
        f: &mut Records<'_>,
    ) -> Result<()> {
        let Some(tiered) = self.content.store.tiered() else {
            return Ok(());
        };
        let (mut keys, mut floats) = (Vec::new(), Vec::new());
        tiered.each_on_disk(&mut |wants| {
            let wants: Vec<_> = wants
                .iter()
                .filter(|want| keep(want.row))
                .copied()
                .collect();
            if wants.is_empty() {
                return Ok(());
            }
            keys.resize(wants.len(), 0);
            floats.resize(wants.len() * self.content.store.width(), 0.0);
            tiered
                .log()
                .read(pool, &wants, &mut floats, &mut keys)
                .map_err(|error| self.table.lost(error, Some(&self.index)))?;
            // A row whose key was removed while a lease holds it is not in use.
            let width = self.content.store.width();
            let (mut used, mut decoded) = (0, Vec::new());
            for (at, want) in wants.iter().enumerate() {
                if self.index.row(keys[at]) == want.row {
                    if let Some(waiting) = &self.content.waiting {
                        let (row, halves) = (want.row, self.content.halves.as_deref());
                        let own = &mut floats[at * width..(at + 1) * width];
                        waiting.catch_up(row, own, halves, &mut decoded);
                    }
                    keys[used] = keys[at];
                    floats.copy_within(at * width..(at + 1) * width, used * width);
                    used += 1;
                }
            }
            f(&keys[..used], &floats[..used * width])
        })
    }

    /// The record `[embedding | slot ..]` of a number, as [`Snapshot::layout`] says; `None` past
    /// the end. It must be in memory.
    pub(crate) fn row(&self, row: u32) -> Option<&[f32]> {
        self.content.store.row(row)
    }

    /// Ends the epoch of changes and returns its number, 0 if changes are not tracked: what changes
    /// from now on falls into the next one.
    pub(crate) fn close(&self) -> u32 {
        self.content.changes.close()
    }

    /// Whether a delta since the end of epoch `since` can tell all that changed.
    pub(crate) fn reaches(&self, since: u32) -> bool {
        self.content.changes.reaches(since)
    }

    /// Whether a row belongs into a delta since the end of epoch `since`: it changed later, and at
    /// least `least` times since it was last written.
    pub(crate) fn has_changed(&self, row: u32, since: u32, least: u32) -> bool {
        self.content.changes.holds(row, since, least)
    }

    /// Notes what a save since epoch `since`, which closed an epoch, has written.
    pub(crate) fn written(&self, since: u32, least: u32) {
        let rows = self.content.store.rows() as u32;
        self.content.changes.written(rows, since, least);
    }

    /// Keys that lost their rows after epoch `since`, ascending.
    pub(crate) fn removed_since(&self, since: u32) -> Vec<i64> {
        self.content.changes.removed_since(since)
    }

    /// The steps that have moved all rows after epoch `since`, in their order.
    pub(crate) fn steps_since(&self, since: u32) -> impl Iterator<Item = &Steps> {
        self.content.changes.steps_since(since)
    }

    /// Calls `f` with the keys of rows in use, window by window in row order. Rows that `keep`
    /// refuses count as unused.
    ///
    /// Beside the table it needs 8 bytes for each of 4,194,304 rows, or of a 128th of the rows if
    /// that is more.
    ///
    /// # Errors
    /// The first error of `f`; `ResourceExhausted` without memory for the keys of a window.
    pub(crate) fn windows(
        &self,
        pool: &Pool,
        keep: &(dyn Fn(u32) -> bool + Sync),
        f: &mut dyn FnMut(&Window<'_>) -> Result<()>,
    ) -> Result<()> {
        let rows = self.content.store.rows();
        let size = WINDOW.max(rows.div_ceil(PASSES)).min(rows);
        let mut keys = self.table.reserved(size, "rows")?;
        for start in (0..rows).step_by(size.max(1)) {
            keys.clear();
            keys.resize_with(size.min(rows - start), || AtomicI64::new(PADDING));
            self.index.each_on(pool, |key, row| {
                let place = (row as usize)
                    .checked_sub(start)
                    .and_then(|at| keys.get(at));
                if let Some(place) = place.filter(|_| keep(row)) {
                    place.store(key, Relaxed);
                }
            });
            f(&Window { start, keys: &keys })?;
        }
        Ok(())
    }

    /// Calls `f` with every key and its row `[embedding | slot ..]`, `dim` floats and those of each
    /// slot ([`SlotSpec::floats`]), in row order; `f` must not call a verb of any table. Beside the
    /// table it needs 8 bytes for each of 4,194,304 rows, or of a 128th of the rows if that is
    /// more.
    ///
    /// # Errors
    /// The first error of `f`; `ResourceExhausted` without memory for keys.
    pub fn for_each_row(&self, f: &mut dyn FnMut(i64, &[f32]) -> Result<()>) -> Result<()> {
        let pool = Pool::alone();
        let mut floats = Vec::new();
        let places = self.layout().slots(self.slots());
        let places: Vec<Place> = once(self.layout().embedding()).chain(places).collect();
        let f: &mut dyn FnMut(i64, &[f32]) -> Result<()> = match self.content.halves.as_deref() {
            None => f,
            Some(halves) => &mut |key, row| {
                floats.clear();
                for place in &places {
                    let start = floats.len();
                    floats.resize(start + place.count, 0.0);
                    place.read(halves.level, row, &mut floats[start..]);
                }
                f(key, &floats)
            },
        };
        if let Some(tiered) = self.content.store.tiered() {
            return self.windows(&pool, &|_| true, &mut |window| {
                for start in (0..window.len()).step_by(CHUNK) {
                    let entries = start..window.len().min(start + CHUNK);
                    let entries = entries.filter_map(|at| window.entry(at));
                    let entries: Vec<(i64, u32)> = entries.collect();
                    self.each_of(&pool, tiered, &entries, f)?;
                }
                Ok(())
            });
        }
        self.windows(&pool, &|_| true, &mut |window| {
            for at in 0..window.len() {
                if let Some((key, row)) = window.entry(at) {
                    if let Some(row) = self.row(row) {
                        f(key, row)?;
                    }
                }
            }
            Ok(())
        })
    }
}

impl Snapshot<'_> {
    /// Calls `f` with some keys and their rows, in memory or on disk.
    fn each_of(
        &self,
        pool: &Pool,
        tiered: &Tiered,
        entries: &[(i64, u32)],
        f: &mut dyn FnMut(i64, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let lost = |error| self.table.lost(error, Some(&self.index));
        let rows = entries.iter().map(|&(_, row)| row);
        let side = match tiered.plan(rows, None).map_err(lost)? {
            None => None,
            Some(planned) => {
                let width = self.content.store.width();
                Some(SideRows::read(pool, planned, width).map_err(lost)?)
            }
        };
        let rows = tiered.beside(side.as_ref());
        let mut now = [Vec::new(), Vec::new()];
        for &(key, number) in entries {
            let Some(mut row) = rows.row(number) else {
                continue;
            };
            if let Some(waiting) = &self.content.waiting {
                row = waiting.caught_up(number, row, self.content.halves.as_deref(), &mut now);
            }
            f(key, row)?;
        }
        Ok(())
    }
}

/// Consecutive row numbers and their keys.
pub(crate) struct Window<'k> {
    start: usize,
    keys: &'k [AtomicI64],
}

impl Window<'_> {
    /// Row numbers, used or not.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key and number of the row at `at`; `None` if it is unused.
    #[inline]
    pub(crate) fn entry(&self, at: usize) -> Option<(i64, u32)> {
        let key = self.keys.get(at)?.load(Relaxed);
        (key != PADDING).then_some((key, (self.start + at) as u32))
    }

    /// How many rows of `range` are used.
    pub(crate) fn used(&self, range: Range<usize>) -> usize {
        range.filter(|&at| self.entry(at).is_some()).count()
    }
}

impl Table {
    /// Holds the table still to look at all of it. Rows that have missed steps catch up first.
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.snapshot_on(&Pool::alone())
    }

    /// [`Table::snapshot`] with the threads of a pool for rows that catch up.
    pub(crate) fn snapshot_on(&self, pool: &Pool) -> Snapshot<'_> {
        let index = self.index().read();
        let mut content = self.content().read();
        if content.waiting.is_some() {
            drop(content);
            let mut waits = self.content().write();
            waits.catch_up(pool);
            content = RwLockWriteGuard::downgrade(waits);
        }
        Snapshot {
            table: self,
            index,
            content,
        }
    }

    /// An empty list with room for `n` values, one for each of `what`.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(in crate::table) fn reserved<T>(&self, n: usize, what: &'static str) -> Result<Vec<T>> {
        self.named(reserved(n, "the system gives no memory", what))
    }
}
