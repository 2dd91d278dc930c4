//! The whole content of a table at one moment, row by row or as one copy.

use super::content::Content;
use super::{Export, Table};
use crate::index::Index;
use crate::{Error, Kind, Result, SlotSpec, PADDING};
use parking_lot::RwLockReadGuard;

/// Rows whose keys are collected in one pass over the index, at least.
const WINDOW: usize = 4 << 20;

/// About so many passes are made over the index of a larger table.
const PASSES: usize = 16;

/// A table held still: while it lives, no verb changes the table, and the thread that has it must call none.
pub struct Snapshot<'t> {
    table: &'t Table,
    index: RwLockReadGuard<'t, Index>,
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

    /// Calls `f` with every key and its row `[embedding | slot ..]`, `dim * (1 + slots)` floats, in row order.
    ///
    /// Beside the table it needs 8 bytes for each of 4,194,304 rows, or of a sixteenth of the rows if that is more.
    ///
    /// # Errors
    /// The first error of `f`; `ResourceExhausted` without memory for the keys of a window.
    pub fn for_each_row(&self, f: &mut dyn FnMut(i64, &[f32]) -> Result<()>) -> Result<()> {
        let slab = &self.content.slab;
        let window = WINDOW.max(slab.rows() / PASSES).min(slab.rows());
        let mut keys = Vec::new();
        keys.try_reserve_exact(window)
            .map_err(|_| self.table.no_memory("rows", window))?;
        for start in (0..slab.rows()).step_by(window.max(1)) {
            keys.clear();
            keys.resize(window.min(slab.rows() - start), PADDING);
            self.index.each(|key, row| {
                if let Some(place) = (row as usize)
                    .checked_sub(start)
                    .and_then(|at| keys.get_mut(at))
                {
                    *place = key;
                }
            });
            for (at, &key) in keys.iter().enumerate().filter(|(_, &key)| key != PADDING) {
                if let Some(row) = slab.row((start + at) as u32) {
                    f(key, row)?;
                }
            }
        }
        Ok(())
    }
}

impl Table {
    /// Holds the table still to look at all of it.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let index = self.index().read();
        Snapshot {
            table: self,
            index,
            content: self.content().read(),
        }
    }

    /// [`Snapshot::for_each_row`] on a snapshot of this moment; `f` must not call a verb of this table.
    ///
    /// # Errors
    /// As there.
    pub fn for_each_row(&self, f: &mut dyn FnMut(i64, &[f32]) -> Result<()>) -> Result<()> {
        self.snapshot().for_each_row(f)
    }

    /// A copy of everything, in row order, of one moment.
    ///
    /// # Errors
    /// `ResourceExhausted` if the copy does not fit in memory.
    pub fn export(&self) -> Result<Export> {
        let dim = self.dim();
        let snapshot = self.snapshot();
        let rows = snapshot.rows() as usize;
        let floats = || -> Result<Vec<f32>> {
            let mut values = Vec::new();
            values
                .try_reserve_exact(rows.saturating_mul(dim))
                .map_err(|_| self.no_memory("rows", rows))?;
            Ok(values)
        };
        let mut keys = Vec::new();
        keys.try_reserve_exact(rows)
            .map_err(|_| self.no_memory("rows", rows))?;
        let mut embedding = floats()?;
        let mut slots = Vec::new();
        for spec in snapshot.slots() {
            slots.push((spec.clone(), floats()?));
        }
        snapshot.for_each_row(&mut |key, row| {
            keys.push(key);
            embedding.extend_from_slice(&row[..dim]);
            for ((_, values), slot) in slots.iter_mut().zip(row[dim..].chunks_exact(dim)) {
                values.extend_from_slice(slot);
            }
            Ok(())
        })?;
        Ok(Export {
            keys,
            embedding,
            slots,
        })
    }

    pub(super) fn no_memory(&self, what: &'static str, n: usize) -> Error {
        Error::new(Kind::ResourceExhausted, "the system gives no memory")
            .with("table", &self.config().name)
            .with(what, n)
    }
}
