//! Replacing the whole content of a table, all or nothing: built and checked beside the one in use,
//! then swapped in.

use crate::halves::Place;
use crate::history::History;
use crate::index::Index;
use crate::mem::NONE;
use crate::stores::{HalfRows, RowPart};
use crate::table::rows::content::Content;
use crate::table::rows::tier::empty_content;
use crate::table::Table;
use crate::{Error, Kind, Pool, Result, Rounding, SlotSpec, PADDING};
use std::iter::once;

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
    /// How values are rounded that have 2 bytes in the table.
    rounding: Rounding,
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

    /// What is read of a slot in a new row.
    pub(crate) fn initial(&self, slot: &SlotSpec) -> f32 {
        self.content.layout.initial(slot)
    }

    /// Sets how values are rounded that have 2 bytes in the table: to the nearest at first. Values
    /// of that type are not rounded.
    pub(crate) fn round(&mut self, rounding: Rounding) {
        self.rounding = rounding;
    }

    /// Sets how many updates there were, if embeddings have 2 bytes a value.
    pub(crate) fn set_updates(&mut self, updates: u64) {
        if let Some(halves) = &mut self.content.halves {
            halves.set_updates(updates);
        }
    }

    /// Appends rows: `keys (n)`, `embedding (n, dim)`, and for every slot given to [`Table::load`]
    /// its values, as many floats a row as [`SlotSpec::floats`] says.
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
        for (slot, spec) in slots.iter().zip(&self.content.slots) {
            let expected = keys.len().saturating_mul(spec.floats(table.dim()));
            table.length("slot", slot.len(), expected)?;
        }
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
        // Those from this place on find none in memory, and go to the tier's files.
        let here = self.content.seat_some(&rows).map_err(named)?;
        self.content.name(keys, &rows, here);
        let Content {
            store,
            halves,
            slots: specs,
            layout,
            ..
        } = &mut self.content;
        let records = Records {
            halves: halves.as_deref(),
            rounding: self.rounding,
            places: once(layout.embedding())
                .chain(layout.slots(specs))
                .collect(),
            keys,
            values: once(embedding).chain(slots.iter().copied()).collect(),
        };
        let width = store.width();
        if let Some(tiered) = store.tiered_mut().filter(|_| here < rows.len()) {
            let mut floats = vec![0.0; (rows.len() - here) * width];
            for (at, record) in (here..).zip(floats.chunks_exact_mut(width)) {
                records.write(at, record);
            }
            let appended = tiered.append(&rows[here..], &keys[here..], &floats);
            appended.map_err(named)?;
        }
        pool.each(store.split(pool.parts(keys.len(), LEAST)), |mut part| {
            for (at, &row) in rows[..here].iter().enumerate() {
                if let Some(row) = part.row_mut(row) {
                    records.write(at, row);
                }
            }
        });
        table.freeze(&mut self.content, keys, &rows);
        Ok(())
    }

    /// Takes out what was pushed for these keys; unknown ones are no error.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for their list.
    pub fn remove(&mut self, keys: &[i64]) -> Result<()> {
        let mut rows = self.table.reserved(keys.len(), "keys")?;
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

/// Rows that are pushed, as records.
struct Records<'a> {
    halves: Option<&'a HalfRows>,
    rounding: Rounding,
    /// The embedding, then the slots.
    places: Vec<Place>,
    keys: &'a [i64],
    /// Those of each place.
    values: Vec<&'a [f32]>,
}

impl Records<'_> {
    /// Writes the record of the row at a place of the push.
    fn write(&self, at: usize, record: &mut [f32]) {
        for (&place, values) in self.places.iter().zip(&self.values) {
            let values = &values[at * place.count..(at + 1) * place.count];
            match self.halves {
                None => record[place.start..][..place.count].copy_from_slice(values),
                Some(halves) => {
                    let key = self.keys[at];
                    halves.set(self.rounding, (place, key), values, record);
                }
            }
        }
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
            rounding: Rounding::Nearest,
        };
        fill(&mut loading)?;
        Ok(BuiltContent {
            index: loading.index,
            content: loading.content,
            history: loading.history,
        })
    }
}
