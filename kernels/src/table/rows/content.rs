//! The rows of a table, and which of them are in use.

use crate::halves::{Place, Unusual};
use crate::index::Index;
use crate::mem::reserved;
use crate::stores::{no_frames, HalfRows, RowPart, Store, Waiting};
use crate::sync::{RwLock, RwLockReadGuard};
use crate::table::rows::changes::Changes;
use crate::table::rows::free_rows::FreeRows;
use crate::table::rows::layout::Layout;
use crate::table::rows::offset::{Births, Unfit, MAX_ROWS};
use crate::{Decay, Error, Kind, Pool, Result, SlotSpec, TableConfig, PADDING};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::Arc;

/// Below this many free rows memory is not given back piece by piece.
const SWEEP: usize = 4096;

/// A thread should have at least so many rows to let catch up.
const LEAST: usize = 4096;

/// Runs of free rows of at least this many bytes are given back.
const RUN_BYTES: usize = 256 << 10;

/// Where slots are in a record.
pub(crate) type Places = SmallVec<[Place; 4]>;

/// Rows `[embedding | slot 1 | slot 2 ..]` with the bookkeeping of free ones.
pub(crate) struct Content {
    /// The rows' floats; all rows of it that are not free are in use.
    pub(crate) store: Store,
    /// The slots, in the order in which they lie behind the embedding.
    pub(crate) slots: Vec<SlotSpec>,
    /// Of a table whose rows may have missed steps: whoever reads or changes a row that may have
    /// moments lets it catch up, or all of them ([`Content::catch_up`]). As long as there are rows
    /// on disk it stays: rows that come from there may wait whatever the others do.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// Where embedding and slots are in a record.
    pub(crate) layout: Layout,
    /// Of a table whose embeddings have 2 bytes a value.
    pub(crate) halves: Option<Box<HalfRows>>,
    capacity: u64,
    /// Free rows; the lowest are used again first, so that rows in use lie close together.
    free_rows: FreeRows,
    /// No row below this one is free.
    lowest: usize,
    /// Rows that no optimizer changes, ascending.
    frozen: Vec<u32>,
    /// How many rows were free when memory was last given back.
    swept: usize,
    /// Changes whenever a slot that rows have gets another initial value.
    initials: u64,
    /// Which rows changed since which save.
    pub(in crate::table) changes: Changes,
    /// Those of the table, as soon as this is its content.
    births: Arc<RwLock<Births>>,
}

/// Tells which row an offset is for. The content stays as it is meanwhile.
pub(in crate::table) struct Offsets<'c> {
    births: RwLockReadGuard<'c, Births>,
    rows: u64,
}

impl Offsets<'_> {
    /// The row that an offset may change: [`NONE`](crate::mem::NONE) for -1 and for 0, which is
    /// nobody's.
    #[inline(always)]
    pub(in crate::table) fn row(&self, offset: i64) -> Result<u32, Unfit> {
        self.births.row(offset, self.rows)
    }

    /// The row that may be read with an offset: [`Offsets::row`], or that of a removed key as long
    /// as a lease holds it.
    #[inline(always)]
    pub(in crate::table) fn readable(&self, offset: i64) -> Result<u32, Unfit> {
        match self.row(offset) {
            Err(Unfit::Retired(row)) => Ok(row),
            found => found,
        }
    }
}

impl Content {
    /// No rows of a table, in a store that has none.
    pub(crate) fn new(
        store: Store,
        config: &TableConfig,
        capacity: u64,
        slots: Vec<SlotSpec>,
    ) -> Content {
        let (layout, stored) = (Layout::of(config), config.row_storage);
        let halves = HalfRows::of(stored.dtype, stored.rounding, config.seed);
        Content::on(store, (layout, halves), capacity, slots)
    }

    fn on(
        store: Store,
        (layout, halves): (Layout, Option<Box<HalfRows>>),
        capacity: u64,
        slots: Vec<SlotSpec>,
    ) -> Content {
        Content {
            store,
            slots,
            waiting: None,
            layout,
            halves,
            capacity,
            free_rows: FreeRows::default(),
            lowest: 0,
            frozen: Vec::new(),
            swept: 0,
            initials: 0,
            changes: Changes::default(),
            births: Arc::default(),
        }
    }

    /// A content without rows, and with the same slots, that takes the place of this one; a tier's
    /// files are emptied.
    pub(in crate::table) fn emptied(&self) -> Content {
        let (capacity, slots) = (self.capacity, self.slots.clone());
        let halves = self.halves.as_ref().map(|halves| halves.emptied());
        Content::on(
            self.store.emptied(capacity),
            (self.layout, halves),
            capacity,
            slots,
        )
    }

    /// How many new rows find a place in memory; `None` for any number.
    pub(in crate::table) fn available(&self) -> Option<usize> {
        self.store.available(self.used())
    }

    /// Whether so many new rows find a place in memory.
    pub(in crate::table) fn has_frames(&self, n: usize) -> bool {
        self.available().is_none_or(|available| n <= available)
    }

    /// Lets rows go to disk from now on, if there is a tier and none has gone yet. `index` has the
    /// keys of rows, and `staged` those of rows that are not in it.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory; nothing changed.
    pub(in crate::table) fn spill(
        &mut self,
        pool: &Pool,
        index: &Index,
        staged: impl Iterator<Item = (i64, u32)>,
    ) -> Result<()> {
        if self.store.tiered().is_some() || self.available().is_none() {
            return Ok(());
        }
        let rows = self.store.rows();
        let mut keys = reserved(rows, "no memory for the keys of rows", "rows")?;
        // A row whose key was removed while a lease holds it has none.
        keys.resize_with(rows, || AtomicI64::new(PADDING));
        let note = |key, row: u32| {
            if let Some(place) = keys.get(row as usize) {
                place.store(key, Relaxed);
            }
        };
        index.each_on(pool, note);
        staged.for_each(|(key, row)| note(key, row));
        let keys = keys.into_iter().map(AtomicI64::into_inner).collect();
        let free_rows = &self.free_rows;
        self.store.spill(|row| !free_rows.contains(row), keys)
    }

    /// Since when each row belongs to its key.
    pub(in crate::table) fn births(&self) -> &Arc<RwLock<Births>> {
        &self.births
    }

    /// What tells the rows of offsets.
    pub(in crate::table) fn offsets(&self) -> Offsets<'_> {
        Offsets {
            births: self.births.read(),
            rows: self.store.rows() as u64,
        }
    }

    /// Takes the place of `old`, whose offsets are good no longer.
    pub(in crate::table) fn follow(&mut self, old: &Content) {
        self.births = Arc::clone(&old.births);
        self.births.write().replaced(self.store.rows());
    }

    /// A row that a lease holds has lost its key: it can be read with the offsets there are, and
    /// not changed.
    pub(in crate::table) fn retire(&mut self, row: u32) {
        self.births.write().retire(row);
    }

    /// `n` new rows: numbers that are free first, then those behind the last. Their contents are
    /// unspecified.
    ///
    /// # Errors
    /// `ResourceExhausted`; of a tier also [`shortage`](crate::stores::shortage). Nothing changed.
    pub(crate) fn take(&mut self, n: usize) -> Result<Vec<u32>> {
        if !self.has_frames(n) {
            return Err(no_frames(n));
        }
        let rows = self.take_numbers(n)?;
        if let Err(error) = self.store.seat(&rows) {
            self.free(&rows);
            return Err(error);
        }
        Ok(rows)
    }

    /// Gives as many of some new rows a place in memory as there are; returns how many.
    ///
    /// # Errors
    /// `ResourceExhausted`; then no row has got one.
    pub(crate) fn seat_some(&mut self, rows: &[u32]) -> Result<usize> {
        let tiered = self.store.tiered();
        let here = tiered.map_or(rows.len(), |one| one.available().min(rows.len()));
        self.store.seat(&rows[..here])?;
        Ok(here)
    }

    /// [`Content::take`] without places in memory beside rows on disk. Before the first row goes to
    /// disk they have to be [`available`](Content::available).
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing changed.
    pub(crate) fn take_numbers(&mut self, n: usize) -> Result<Vec<u32>> {
        let mut rows = reserved(n, "no memory for new row numbers", "rows")?;
        while rows.len() < n {
            let Some(row) = self.first_free() else {
                break;
            };
            self.free_rows.remove(row);
            rows.push(row);
        }
        let reused = rows.len();
        let first = self.store.rows();
        let end = first + (n - reused);
        let made = numbered(end)
            .and_then(|()| self.changes.fit(end))
            .and_then(|()| {
                self.halves
                    .as_mut()
                    .map_or(Ok(()), |halves| halves.fit(end))
            })
            .and_then(|()| self.store.grow(end));
        if let Err(error) = made {
            self.free(&rows);
            return Err(error);
        }
        rows.extend((first..end).map(|row| row as u32));
        self.births.write().take(&rows, end);
        self.swept = self.swept.min(self.free_rows.len());
        Ok(rows)
    }

    /// Notes the keys of new rows, of which so many of the first are in memory.
    pub(crate) fn name(&mut self, keys: &[i64], rows: &[u32], here: usize) {
        self.store.name(&keys[..here], &rows[..here]);
        if let Some(halves) = &mut self.halves {
            halves.name(keys, rows);
        }
    }

    /// Takes rows out of use.
    pub(crate) fn free(&mut self, rows: &[u32]) {
        self.births.write().free(rows);
        self.store.vacate(rows);
        for &row in rows {
            self.free_rows.insert(row);
            self.lowest = self.lowest.min(row as usize);
        }
        if !self.frozen.is_empty() {
            let free_rows = &self.free_rows;
            self.frozen.retain(|&row| !free_rows.contains(row));
        }
    }

    /// Gives memory of free rows back, if many are.
    pub(crate) fn tidy(&mut self) {
        let unused = self.free_rows.len();
        if unused == self.store.rows() {
            if unused > 0 {
                let mut old = self.emptied();
                std::mem::swap(self, &mut old);
                self.changes = old.changes;
                self.births = old.births;
                self.births.write().truncate(0);
            }
        } else if self.is_sparse() && unused >= self.swept + self.swept / 4 {
            self.sweep();
        }
    }

    /// Whether half of the rows are free, and many.
    pub(crate) fn is_sparse(&self) -> bool {
        self.free_rows.len() >= SWEEP && self.free_rows.len() * 2 >= self.store.rows()
    }

    /// Rows in use, staged and retired ones among them.
    pub(crate) fn used(&self) -> usize {
        self.store.rows() - self.free_rows.len()
    }

    /// [`Content::tidy`] is to wait until many more rows are removed: somebody else gives their
    /// memory back.
    pub(crate) fn leave_untidy(&mut self) {
        self.swept = self.free_rows.len();
    }

    /// Moves a row in use into the first free one, if that is below it. `None`: it is not, or the
    /// row is frozen and stays.
    pub(crate) fn move_down(&mut self, row: u32, scratch: &mut Vec<f32>) -> Option<u32> {
        if self.frozen.binary_search(&row).is_ok() {
            return None;
        }
        let to = self.first_free().filter(|&to| to < row)?;
        scratch.clear();
        scratch.extend_from_slice(self.store.row(row)?);
        self.store.row_mut(to)?.copy_from_slice(scratch);
        self.changes.moved(row, to);
        if let Some(halves) = &mut self.halves {
            halves.moved(row, to);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.moved(row, to);
        }
        self.births.write().moved(row, to);
        self.free_rows.remove(to);
        self.free_rows.insert(row);
        Some(to)
    }

    /// Forgets free rows at the end. What is returned holds their memory: to be dropped when no
    /// lock is held, which takes time.
    pub(crate) fn trim(&mut self) -> impl Sized + use<> {
        let rows = self.free_rows.end(self.store.rows());
        let memory = self.store.truncate(rows);
        self.free_rows.truncate(rows);
        let halves = self.halves.as_mut();
        let memory = (memory, halves.map(|halves| halves.truncate(rows)));
        self.births.write().truncate(rows);
        self.swept = self.free_rows.len();
        memory
    }

    /// Gives the memory of long runs of free rows in `rows` back.
    pub(crate) fn release(&mut self, rows: Range<usize>) {
        let long = RUN_BYTES / (self.store.width() * size_of::<f32>()).max(1);
        let end = rows.end.min(self.store.rows());
        let mut start = rows.start;
        for row in rows.start..=end {
            if row == end || !self.free_rows.contains(row as u32) {
                if row - start > long {
                    self.store.release(start, row);
                }
                start = row + 1;
            }
        }
    }

    /// Marks a row that no optimizer may change.
    pub(crate) fn freeze(&mut self, row: u32) {
        if let Err(at) = self.frozen.binary_search(&row) {
            self.frozen.insert(at, row);
        }
    }

    /// The rows that no optimizer may change, ascending.
    pub(crate) fn frozen(&self) -> &[u32] {
        &self.frozen
    }

    /// Refuses slots of which the rows, or others of `wanted`, have one in another form.
    ///
    /// # Errors
    /// `InvalidArgument` for a slot with a float for each column where one for the row is wanted,
    /// or the other way round.
    pub(in crate::table) fn expect_slots(&self, wanted: &[SlotSpec]) -> Result<()> {
        for (at, spec) in wanted.iter().enumerate() {
            let mut known = self.slots.iter().chain(&wanted[..at]);
            match known.find(|slot| slot.name == spec.name) {
                Some(slot) if slot.per_row != spec.per_row => return Err(other_width(slot)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Where each of `wanted` is in a record. Slots that the rows lack are added: all rows move
    /// once.
    ///
    /// # Errors
    /// As [`Content::expect_slots`]; `ResourceExhausted`. Nothing changed.
    pub(crate) fn slots_for(&mut self, wanted: &[SlotSpec]) -> Result<Places> {
        let found = wanted.iter().map(|spec| {
            let at = self.slots.iter().position(|slot| slot.is(spec))?;
            self.layout.slots(&self.slots).nth(at)
        });
        if let Some(places) = found.collect() {
            return Ok(places);
        }
        self.expect_slots(wanted)?;
        let known = self.slots.len();
        let mut slots = self.slots.clone();
        let mut changed = false;
        let mut places = Vec::with_capacity(wanted.len());
        for spec in wanted {
            let at = match slots.iter_mut().position(|slot| slot.name == spec.name) {
                // Files may have brought the slot, without what the optimizer starts it at or with
                // another setting: rows that are made from now on follow the optimizer.
                Some(at) => {
                    changed |= slots[at].initial.to_bits() != spec.initial.to_bits();
                    slots[at].initial = spec.initial;
                    at
                }
                None => {
                    slots.push(spec.clone());
                    slots.len() - 1
                }
            };
            places.push(at);
        }
        let layout = self.layout;
        if slots.len() > known {
            self.changes.fit(self.store.rows())?;
            let (wider, fill) = (layout.width(&slots), filler(layout, &slots, known));
            self.store.widen(wider, self.capacity, fill)?;
        }
        if slots.len() > known {
            // Every row has more than it had.
            self.changes.stamp(0..self.store.rows() as u32);
        }
        self.slots = slots;
        self.initials += u64::from(changed);
        let all: Places = layout.slots(&self.slots).collect();
        Ok(places.into_iter().map(|at| all[at]).collect())
    }

    /// Begins a step of an optimizer whose slots are at `slots`. All rows in memory catch up if it
    /// cannot be one more of the steps before, and those on disk if they cannot wait longer.
    ///
    /// # Errors
    /// For rows on disk that catch up: `DataLoss` for a record that is damaged, and what the files
    /// refuse; `ResourceExhausted`. No row has changed but by the steps before.
    pub(in crate::table) fn begin_step(
        &mut self,
        pool: &Pool,
        decay: Option<Decay>,
        slots: &[Place],
    ) -> Result<()> {
        let rows = self.store.rows();
        self.changes.fit(rows)?;
        if let Some(waiting) = &mut self.waiting {
            waiting.fit(rows)?;
        }
        let embedding = self.layout.embedding();
        let places = slots.first_chunk().map(|&[m, v]| [embedding, m, v]);
        if let Some((decay, places)) = decay.zip(places) {
            let waiting = self.waiting.as_ref();
            if !waiting.is_some_and(|one| one.takes(&decay, places, rows)) {
                let goes_on = waiting.is_some_and(|one| one.goes_on(places, rows));
                if !(goes_on && waiting.is_some_and(|one| one.has_ended())) {
                    self.catch_up(pool);
                }
                match &mut self.waiting {
                    Some(waiting) if goes_on => waiting.begin(decay),
                    _ => {
                        self.catch_up_on_disk(pool)?;
                        let waiting = Waiting::new(decay, places, rows, &self.frozen)?;
                        self.waiting = Some(Box::new(waiting));
                    }
                }
            }
        }
        Ok(())
    }

    /// Brings all rows in memory to the state after the last step. Those on disk wait on.
    pub(in crate::table) fn catch_up(&mut self, pool: &Pool) {
        let Some(mut waiting) = self.waiting.take() else {
            return;
        };
        let (rows, free_rows) = (self.store.rows(), &self.free_rows);
        let halves = self.halves.as_deref();
        let parts = self.store.split(pool.parts(rows, LEAST));
        pool.each(parts, |mut part| {
            let mut floats = Vec::new();
            for number in (0..rows as u32).filter(|&row| !free_rows.contains(row)) {
                if !waiting.waits(number) || !part.has(number) {
                    continue;
                }
                let Some(row) = part.row_mut(number) else {
                    continue;
                };
                waiting.catch_up(number, row, halves, &mut floats);
                waiting.note(number, 0);
            }
        });
        if let Some(steps) = waiting.ending() {
            self.changes.stepped(steps);
        }
        if self.store.tiered().is_some() {
            waiting.end();
            self.waiting = Some(waiting);
        }
    }

    /// Brings the rows on disk to the state after the last step. Those in memory have caught up.
    fn catch_up_on_disk(&mut self, pool: &Pool) -> Result<()> {
        match (self.store.tiered_mut(), &self.waiting) {
            (Some(tiered), Some(waiting)) => {
                tiered.catch_up_on_disk(pool, waiting, self.halves.as_deref())
            }
            _ => Ok(()),
        }
    }

    /// Changes whenever a slot that rows have gets another initial value. Rows made before hold the
    /// old one.
    pub(crate) fn initials(&self) -> u64 {
        self.initials
    }

    /// Writes the initial values of all slots of a row.
    pub(crate) fn reset_slots(&self) -> impl Fn(&mut [f32]) + Sync + use<> {
        filler(self.layout, &self.slots, 0)
    }

    /// [`Content::reset_slots`] of some rows.
    pub(crate) fn reset(&mut self, rows: &[u32]) {
        let reset_slots = self.reset_slots();
        for &row in rows {
            if let Some(row) = self.store.row_mut(row) {
                reset_slots(row);
            }
        }
    }

    /// How many values could not be stored in 2 bytes.
    pub(in crate::table) fn unusual(&self) -> Unusual {
        let halves = self.halves.as_ref();
        halves.map_or_else(Unusual::default, |halves| halves.unusual())
    }

    /// Bytes of the bookkeeping.
    pub(crate) fn other_bytes(&self) -> u64 {
        let waiting = self.waiting.as_ref().map_or(0, |one| one.bytes());
        let halves = self.halves.as_ref().map_or(0, |one| one.bytes());
        let rows = self.free_rows.bytes() + self.frozen.capacity() * 4 + waiting + halves;
        (rows + self.changes.bytes() + self.births.read().bytes()) as u64 + self.store.other_bytes()
    }

    /// The first free row.
    fn first_free(&mut self) -> Option<u32> {
        let row = self.free_rows.first(self.lowest);
        self.lowest = row.map_or(self.store.rows(), |row| row as usize);
        row
    }

    /// Forgets free rows at the end and gives back the memory of long runs of free rows.
    fn sweep(&mut self) {
        drop(self.trim());
        self.release(0..self.store.rows());
    }
}

/// Refuses so many rows if their numbers do not fit in an offset.
fn numbered(rows: usize) -> Result<()> {
    if rows <= MAX_ROWS {
        return Ok(());
    }
    Err(Error::new(
        Kind::ResourceExhausted,
        "a table has at most 2147483648 rows, those of batches in flight included",
    )
    .with("rows", rows))
}

/// A slot is not in the form that is wanted.
#[cold]
pub(in crate::table) fn other_width(slot: &SlotSpec) -> Error {
    let has = if slot.per_row { "row" } else { "column" };
    Error::invalid("the rows have this slot in another form")
        .with("slot", &slot.name)
        .with("a_float_for_each", has)
}

/// What writes the initial values of the slots number `first` and on of a record.
fn filler(layout: Layout, slots: &[SlotSpec], first: usize) -> impl Fn(&mut [f32]) + Sync + use<> {
    let initials = slots.iter().map(|slot| slot.initial);
    let slots = layout.slots(slots).zip(initials).skip(first);
    let slots: SmallVec<[(Place, f32); 4]> = slots.collect();
    move |record| {
        for (place, initial) in &slots {
            place.fill(*initial, record);
        }
    }
}
