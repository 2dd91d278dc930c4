//! Replacing the whole content of a table, all or nothing: built and checked beside the one in use,
//! then swapped in.

use crate::history::History;
use crate::index::Index;
use crate::mem::NONE;
use crate::stores::RowPart;
use crate::table::rows::content::Content;
use crate::table::rows::tier::empty_content;
use crate::table::Table;
use crate::{Error, Kind, Pool, Result, SlotSpec, PADDING};

/// A thread should copy at least so many rows.
const LEAST: usize = 512;

/// The content that [`Table::load`] builds beside the one in use.
pub struct Loading<'t> {
    pub(in crate::table) table: &'t Table,
    pool: &'t Pool,
    pub(in crate::table) index: Index,
    pub(in crate::table) content: Content,
    /// What is known of keys, if the files say it.
    pub(in crate::table) history: Option<Box<History>>,
    /// The most rows.
    most: u64,
}

/// A complete content that no table has yet.
pub(crate) struct BuiltContent {
    pub(in crate::table) index: Index,
    pub(in crate::table) content: Content,
    pub(in crate::table) history: Option<Box<History>>,
}

impl BuiltContent {
    /// Rows in it.
    pub(crate) fn rows(&self) -> u64 {
        self.index.len()
    }
}

impl Loading<'_> {
    /// Floats of one embedding.
    pub(crate) fn dim(&self) -> usize {
        self.table.dim()
    }

    /// Appends rows: `keys (n)`, `embedding (n, dim)`, and for every slot given to [`Table::load`]
    /// its values `(n, dim)`.
    ///
    /// Row numbers follow the order of the pushes. Blocks of some thousand rows are best.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, `DataLoss` for a key that is padding or came before,
    /// `ResourceExhausted` over the table's capacity or without memory. After an error the load
    /// cannot succeed.
    pub fn push(&mut self, keys: &[i64], embedding: &[f32], slots: &[&[f32]]) -> Result<()> {
        let (table, pool) = (self.table, self.pool);
        table.floats("embedding", embedding.len(), keys.len())?;
        table.length("slots", slots.len(), self.content.slots.len())?;
        slots
            .iter()
            .try_for_each(|slot| table.floats("slot", slot.len(), keys.len()))?;
        if keys.contains(&PADDING) {
            return Err(self.damaged("the padding key has a row", PADDING));
        }
        let named = |error: Error| error.with("table", &table.config().name);
        table.within(self.most, self.index.len(), keys.len() as u64)?;
        self.index.reserve(pool, keys).map_err(named)?;
        if !self.content.has_frames(keys.len()) {
            let staged = std::iter::empty();
            let spilled = self.content.spill(pool, &self.index, staged);
            spilled.map_err(named)?;
        }
        let rows = self.content.take_numbers(keys.len()).map_err(named)?;
        if let Some(key) = self.index.insert(pool, keys, &rows) {
            return Err(self.damaged("a key occurs twice", key));
        }
        let here = self.content.seat_some(&rows).map_err(named)?;
        self.push_to_disk((&keys[here..], &rows[here..]), here, embedding, slots)
            .map_err(named)?;
        let (here_rows, here_keys) = (&rows[..here], &keys[..here]);
        self.content.store.name(here_keys, here_rows);
        let dim = table.dim();
        let parts = self.content.store.split(pool.parts(keys.len(), LEAST));
        pool.each(parts, |mut part| {
            for (at, &row) in here_rows.iter().enumerate() {
                let Some(row) = part.row_mut(row) else {
                    continue;
                };
                let values = at * dim..(at + 1) * dim;
                let (first, rest) = row.split_at_mut(dim);
                first.copy_from_slice(&embedding[values.clone()]);
                for (place, slot) in rest.chunks_exact_mut(dim).zip(slots) {
                    place.copy_from_slice(&slot[values.clone()]);
                }
            }
        });
        table.freeze(&mut self.content, keys, &rows);
        Ok(())
    }

    /// Appends the rows from place `from` of a push on, which find no place in memory, to the
    /// tier's files.
    fn push_to_disk(
        &mut self,
        (keys, rows): (&[i64], &[u32]),
        from: usize,
        embedding: &[f32],
        slots: &[&[f32]],
    ) -> Result<()> {
        let Some(tiered) = self.content.store.tiered_mut().filter(|_| !rows.is_empty()) else {
            return Ok(());
        };
        let dim = self.table.dim();
        let mut floats = Vec::with_capacity(rows.len() * dim * (1 + slots.len()));
        for at in from..from + rows.len() {
            let values = at * dim..(at + 1) * dim;
            floats.extend_from_slice(&embedding[values.clone()]);
            for slot in slots {
                floats.extend_from_slice(&slot[values.clone()]);
            }
        }
        tiered.append(rows, keys, &floats)
    }

    /// Takes out what was pushed for these keys; unknown ones are no error.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for their list.
    pub fn remove(&mut self, keys: &[i64]) -> Result<()> {
        let mut rows = Vec::new();
        rows.try_reserve(keys.len())
            .map_err(|_| self.table.no_memory("keys", keys.len()))?;
        let found = keys.iter().map(|&key| self.index.remove(key));
        rows.extend(found.filter(|&row| row != NONE));
        if !rows.is_empty() {
            self.content.free(&rows);
            self.content.tidy();
            self.index.shrink();
        }
        Ok(())
    }

    pub(in crate::table) fn damaged(&self, message: &str, key: i64) -> Error {
        Error::new(Kind::DataLoss, message)
            .with("table", &self.table.config().name)
            .with("key", key)
    }
}

impl Table {
    /// Replaces the whole content, all or nothing: `fill` pushes blocks of rows into a fresh
    /// content that is swapped in when it returns `Ok`; until then, and on any error, the table
    /// stays as it was. Returns the number of rows.
    ///
    /// `slots` become the slots of every row, in this order. Old and new content exist together
    /// until the swap.
    ///
    /// # Errors
    /// Those of `fill` and of [`Loading::push`]; `InvalidArgument` if two slots have one name.
    pub fn load(
        &self,
        pool: &Pool,
        slots: &[SlotSpec],
        fill: &mut dyn FnMut(&mut Loading<'_>) -> Result<()>,
    ) -> Result<u64> {
        let built = self.build_content(pool, slots, self.capacity(), fill)?;
        let rows = built.rows();
        self.swap_content(built);
        Ok(rows)
    }

    /// The first half of [`Table::load`]: builds the content, of `most` rows at most. The table
    /// does not change.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn build_content(
        &self,
        pool: &Pool,
        slots: &[SlotSpec],
        most: u64,
        fill: &mut dyn FnMut(&mut Loading<'_>) -> Result<()>,
    ) -> Result<BuiltContent> {
        for (at, slot) in slots.iter().enumerate() {
            if slots[..at].iter().any(|earlier| earlier.name == slot.name) {
                return Err(self
                    .refuse("two slots have one name")
                    .with("slot", &slot.name));
            }
        }
        let index = Index::new(self.capacity())?;
        let tier = self.rows().tier.as_deref();
        let content = empty_content(self.config(), self.capacity(), tier, slots.to_vec())?;
        let mut loading = Loading {
            table: self,
            pool,
            index,
            content,
            history: None,
            most,
        };
        fill(&mut loading)?;
        let Loading {
            index,
            content,
            history,
            ..
        } = loading;
        Ok(BuiltContent {
            index,
            content,
            history,
        })
    }
}
