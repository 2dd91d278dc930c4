//! The rows of a table, and which of them are in use.

use super::changes::Changes;
use crate::mem::{Slab, NONE};
use crate::{Error, Kind, Result, SlotSpec};

/// Below this many free rows memory is not given back piece by piece.
const SWEEP: usize = 4096;

/// Runs of free rows of at least this many bytes are given back.
const RUN_BYTES: usize = 256 << 10;

/// Rows `[embedding | slot 1 | slot 2 ..]` with the bookkeeping of removed ones.
pub(crate) struct Content {
    /// The rows; all below `slab.rows()` that are not removed are in use.
    pub(crate) slab: Slab,
    /// The slots, in the order in which they lie behind the embedding.
    pub(crate) slots: Vec<SlotSpec>,
    dim: usize,
    capacity: u64,
    /// Removed rows, reused from the end. Those that are in use again, or listed before, are passed over: `removed` is the truth.
    free: Vec<u32>,
    /// One bit a row, set where it is removed; shorter than the rows when the last bits are 0.
    removed: Vec<u64>,
    /// How many rows are removed.
    unused: usize,
    /// Rows that no optimizer changes, ascending.
    frozen: Vec<u32>,
    /// How many rows were free when memory was last given back.
    swept: usize,
    /// Changes whenever a slot that rows have gets another initial value.
    initials: u64,
    /// Which rows changed since which save.
    pub(super) changes: Changes,
}

impl Content {
    /// No rows.
    pub(crate) fn new(dim: usize, capacity: u64, slots: Vec<SlotSpec>) -> Content {
        let slab = Slab::new(dim * (1 + slots.len()), capacity);
        let (free, removed, frozen) = (Vec::new(), Vec::new(), Vec::new());
        Content {
            slab,
            slots,
            dim,
            capacity,
            free,
            removed,
            unused: 0,
            frozen,
            swept: 0,
            initials: 0,
            changes: Changes::default(),
        }
    }

    /// The row of an offset: [`NONE`] for -1, `None` if it is no row in use.
    #[inline(always)]
    pub(crate) fn check(&self, offset: i64) -> Option<u32> {
        if (offset as u64) < self.slab.rows() as u64 {
            let row = offset as u32;
            return (self.unused == 0 || !self.is_removed(row)).then_some(row);
        }
        (offset == -1).then_some(NONE)
    }

    /// Numbers for `n` new rows: removed ones first, then behind the last. Their contents are unspecified.
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing changed.
    pub(crate) fn take(&mut self, n: usize) -> Result<Vec<u32>> {
        let mut rows = Vec::new();
        rows.try_reserve_exact(n).map_err(|_| {
            Error::new(Kind::ResourceExhausted, "no memory for new row numbers").with("rows", n)
        })?;
        while rows.len() < n && self.unused > 0 {
            match self.free.pop() {
                Some(row) if self.is_removed(row) => {
                    self.mark_used(row);
                    rows.push(row);
                }
                Some(_) => {}
                None => break,
            }
        }
        let reused = rows.len();
        let first = self.slab.rows();
        if let Err(error) = self.slab.grow(first + (n - reused)) {
            rows.reverse();
            self.free(&rows);
            return Err(error);
        }
        rows.extend((first..first + (n - reused)).map(|row| row as u32));
        self.swept = self.swept.min(self.unused);
        Ok(rows)
    }

    /// Takes rows out of use.
    pub(crate) fn free(&mut self, rows: &[u32]) {
        self.removed.resize(self.slab.rows().div_ceil(64), 0);
        for &row in rows {
            self.removed[row as usize / 64] |= 1 << (row % 64);
        }
        self.unused += rows.len();
        self.free.extend_from_slice(rows);
        if !self.frozen.is_empty() {
            let removed = &self.removed;
            self.frozen
                .retain(|&row| removed[row as usize / 64] >> (row % 64) & 1 == 0);
        }
    }

    /// Gives memory of removed rows back, if many are.
    pub(crate) fn tidy(&mut self) {
        if self.unused == self.slab.rows() {
            if self.unused > 0 {
                let changes = std::mem::take(&mut self.changes);
                *self = Content::new(self.dim, self.capacity, std::mem::take(&mut self.slots));
                self.changes = changes;
            }
        } else if self.is_sparse() && self.unused >= self.swept + self.swept / 4 {
            self.sweep();
        }
    }

    /// Whether half of the rows are removed, and many.
    pub(crate) fn is_sparse(&self) -> bool {
        self.unused >= SWEEP && self.unused * 2 >= self.slab.rows()
    }

    /// Rows in use, staged and retired ones among them.
    pub(crate) fn used(&self) -> usize {
        self.slab.rows() - self.unused
    }

    /// [`Content::tidy`] is to wait until many more rows are removed: somebody else gives their memory back.
    pub(crate) fn leave_untidy(&mut self) {
        self.swept = self.unused;
    }

    /// Moves a row in use into a removed one below it, the first from `*from` on, which is set behind it. `None`: there is none,
    /// or the row is frozen and stays.
    pub(crate) fn move_down(
        &mut self,
        row: u32,
        from: &mut usize,
        scratch: &mut Vec<f32>,
    ) -> Option<u32> {
        if self.frozen.binary_search(&row).is_ok() {
            return None;
        }
        let to = self.first_removed(*from, row as usize)?;
        scratch.clear();
        scratch.extend_from_slice(self.slab.row(row)?);
        self.slab.row_mut(to)?.copy_from_slice(scratch);
        *from = to as usize + 1;
        self.changes.moved(row, to);
        self.mark_used(to);
        self.removed.resize(self.slab.rows().div_ceil(64), 0);
        self.removed[row as usize / 64] |= 1 << (row % 64);
        self.unused += 1;
        Some(to)
    }

    /// Forgets removed rows at the end. What is returned holds their memory: to be dropped when no lock is held, which takes time.
    pub(crate) fn trim(&mut self) -> impl Sized + use<> {
        let rows = self.end();
        self.unused -= self.slab.rows() - rows;
        let memory = self.slab.truncate(rows);
        self.removed.truncate(rows.div_ceil(64));
        if let Some(last) = self.removed.last_mut().filter(|_| !rows.is_multiple_of(64)) {
            *last &= (1 << (rows % 64)) - 1;
        }
        let removed = &self.removed;
        self.free.retain(|&row| {
            let word = removed.get(row as usize / 64);
            word.is_some_and(|bits| bits >> (row % 64) & 1 == 1)
        });
        self.free.shrink_to_fit();
        self.swept = self.unused;
        memory
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

    /// Where each of `wanted` starts in a row, in floats. Slots that the rows lack are added: all rows move once.
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing changed.
    pub(crate) fn slots_for(&mut self, wanted: &[SlotSpec]) -> Result<Vec<usize>> {
        let known = self.slots.len();
        let mut slots = self.slots.clone();
        let mut changed = false;
        let mut starts = Vec::with_capacity(wanted.len());
        for spec in wanted {
            let at = match slots.iter_mut().position(|slot| slot.name == spec.name) {
                // Files may have brought the slot, without what the optimizer starts it at or with another
                // setting: rows that are made from now on follow the optimizer.
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
            starts.push(self.dim * (1 + at));
        }
        if slots.len() > known {
            let width = self.slab.width();
            let wider = Slab::new(self.dim * (1 + slots.len()), self.capacity);
            let narrow = std::mem::replace(&mut self.slab, Slab::new(width, self.capacity));
            let dim = self.dim;
            let moved = narrow.move_into(wider, |row| {
                fill_slots(&mut row[width..], dim, &slots[known..])
            });
            match moved {
                Ok(wider) => self.slab = wider,
                Err((narrow, error)) => {
                    self.slab = narrow;
                    return Err(error);
                }
            }
        }
        if slots.len() > known {
            // Every row has more than it had.
            self.changes.touch(0..self.slab.rows() as u32);
        }
        self.slots = slots;
        self.initials += u64::from(changed);
        Ok(starts)
    }

    /// Changes whenever a slot that rows have gets another initial value. Rows made before hold the old one.
    pub(crate) fn initials(&self) -> u64 {
        self.initials
    }

    /// Writes the initial values of all slots of a row.
    pub(crate) fn reset_slots(&self) -> impl Fn(&mut [f32]) + Sync + use<> {
        let (dim, slots) = (self.dim, self.slots.clone());
        move |row| fill_slots(&mut row[dim..], dim, &slots)
    }

    /// [`Content::reset_slots`] of some rows.
    pub(crate) fn reset(&mut self, rows: &[u32]) {
        let reset_slots = self.reset_slots();
        for &row in rows {
            if let Some(row) = self.slab.row_mut(row) {
                reset_slots(row);
            }
        }
    }

    /// Bytes of the bookkeeping.
    pub(crate) fn other_bytes(&self) -> u64 {
        let rows =
            self.free.capacity() * 4 + self.removed.capacity() * 8 + self.frozen.capacity() * 4;
        (rows + self.changes.bytes()) as u64
    }

    fn is_removed(&self, row: u32) -> bool {
        self.removed
            .get(row as usize / 64)
            .is_some_and(|bits| bits >> (row % 64) & 1 == 1)
    }

    fn mark_used(&mut self, row: u32) {
        if let Some(bits) = self.removed.get_mut(row as usize / 64) {
            *bits &= !(1 << (row % 64));
            self.unused -= 1;
        }
    }

    /// The first removed row from `from` on and below `end`.
    fn first_removed(&self, from: usize, end: usize) -> Option<u32> {
        let mut bits = self.removed.get(from / 64)? & (u64::MAX << (from % 64));
        let mut word = from / 64;
        while bits == 0 {
            word += 1;
            bits = *self.removed.get(word).filter(|_| word * 64 < end)?;
        }
        let row = word * 64 + bits.trailing_zeros() as usize;
        (row < end).then_some(row as u32)
    }

    /// The end of the rows in use.
    fn end(&self) -> usize {
        let mut rows = self.slab.rows();
        while rows > 0 && self.is_removed(rows as u32 - 1) {
            let whole = rows.is_multiple_of(64) && self.removed[rows / 64 - 1] == u64::MAX;
            rows -= if whole { 64 } else { 1 };
        }
        rows
    }

    /// Forgets removed rows at the end and gives back the memory of long runs of removed rows.
    fn sweep(&mut self) {
        drop(self.trim());
        let rows = self.slab.rows();
        let long = RUN_BYTES / (self.slab.width() * size_of::<f32>()).max(1);
        let mut start = 0;
        for row in 0..=rows {
            if row == rows || !self.is_removed(row as u32) {
                if row - start > long {
                    self.slab.release(start, row);
                }
                start = row + 1;
            }
        }
        self.swept = self.unused;
    }
}

fn fill_slots(values: &mut [f32], dim: usize, slots: &[SlotSpec]) {
    for (slot, spec) in values.chunks_exact_mut(dim).zip(slots) {
        slot.fill(spec.initial);
    }
}
