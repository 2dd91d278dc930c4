//! What a table keeps its rows in: memory alone, or memory and disk.

use super::in_memory::{InMemory, PartInMemory};
use super::tiered::{Tiered, TieredPart};
use super::{ReadRows, RowPart};
use crate::mem::{FreshPages, OwnedRows, Slab};
use crate::Result;

/// The rows of a table.
pub(crate) enum Store {
    /// All in memory.
    InMemory(InMemory),
    /// As many in memory as the table may have there, the others on disk.
    Tiered(Box<Tiered>),
}

/// Runs one expression for either kind of store, compiled once for each.
macro_rules! with_rows {
    ($store:expr, $rows:ident => $run:expr) => {
        match $store {
            $crate::rows::Store::InMemory($rows) => $run,
            $crate::rows::Store::Tiered($rows) => {
                let $rows = &**$rows;
                $run
            }
        }
    };
}
pub(crate) use with_rows;

/// Some of the rows, with the right to write them.
pub(crate) enum Part<'s> {
    /// Of rows in memory.
    InMemory(PartInMemory<'s>),
    /// Of those rows in memory that have others on disk beside them.
    Tiered(TieredPart<'s>),
}

/// Tells which of so many parts owns a row after [`Store::split`].
pub(crate) struct Owners<'s> {
    tiered: Option<&'s Tiered>,
    parts: u32,
}

impl Owners<'_> {
    /// The owner of a row that is in memory.
    #[inline(always)]
    pub(crate) fn of(&self, row: u32) -> usize {
        let place = match self.tiered {
            None => row,
            Some(tiered) => tiered.frame(row),
        };
        OwnedRows::owner(place, self.parts) as usize
    }
}

impl Store {
    /// No rows, `width` floats each (1 or more), all in memory; `most` rows are expected at most.
    pub(crate) fn in_memory(width: usize, most: u64) -> Store {
        Store::InMemory(InMemory(Slab::new(width, most)))
    }

    /// The store with a tier on disk, if it is one.
    pub(crate) fn tiered(&self) -> Option<&Tiered> {
        match self {
            Store::InMemory(_) => None,
            Store::Tiered(tiered) => Some(tiered),
        }
    }

    /// [`Store::tiered`] to be changed.
    pub(crate) fn tiered_mut(&mut self) -> Option<&mut Tiered> {
        match self {
            Store::InMemory(_) => None,
            Store::Tiered(tiered) => Some(tiered),
        }
    }

    /// How many rows there are.
    #[inline(always)]
    pub(crate) fn rows(&self) -> usize {
        match self {
            Store::InMemory(rows) => rows.0.rows(),
            Store::Tiered(tiered) => tiered.rows(),
        }
    }

    /// Floats of a row.
    pub(crate) fn width(&self) -> usize {
        match self {
            Store::InMemory(rows) => rows.0.width(),
            Store::Tiered(tiered) => tiered.width(),
        }
    }

    /// Bytes of memory that the rows take, padding included.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Store::InMemory(rows) => rows.0.bytes(),
            Store::Tiered(tiered) => tiered.row_bytes(),
        }
    }

    /// Bytes of what is kept beside the rows.
    pub(crate) fn other_bytes(&self) -> u64 {
        self.tiered().map_or(0, Tiered::other_bytes)
    }

    /// Makes row numbers up to `rows` in all. In memory the rows are there, with contents that are
    /// unspecified until they are written; with a tier they get places by [`Store::seat`].
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses; rows there are stay.
    pub(crate) fn grow(&mut self, rows: usize) -> Result<()> {
        match self {
            Store::InMemory(store) => store.0.grow(rows),
            Store::Tiered(tiered) => tiered.grow(rows),
        }
    }

    /// Memory that new rows will take, in pieces of which each is to be asked for by one thread;
    /// `least` pieces, if it does not take so many and they do not make the rows much larger.
    pub(crate) fn fresh_pages(&mut self, least: usize) -> Vec<FreshPages<'_>> {
        match self {
            Store::InMemory(rows) => rows.0.fresh_pages(least),
            Store::Tiered(tiered) => tiered.frames.fresh_pages(least),
        }
    }

    /// Refuses `n` new rows that would get no place in memory: others have to go to disk first.
    ///
    /// # Errors
    /// That of [`super::tiered::shortage`].
    pub(crate) fn expect_frames(&self, n: usize) -> Result<()> {
        self.tiered().map_or(Ok(()), |one| one.expect_frames(n))
    }

    /// How many new rows find a place in memory; `None` for any number.
    pub(crate) fn frames(&self) -> Option<usize> {
        self.tiered().map(Tiered::available)
    }

    /// Gives rows that have no place one in memory.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses; then no row has got one.
    pub(crate) fn seat(&mut self, rows: &[u32]) -> Result<()> {
        self.tiered_mut().map_or(Ok(()), |one| one.seat(rows))
    }

    /// Notes the keys of rows in memory.
    pub(crate) fn name(&mut self, keys: &[i64], rows: &[u32]) {
        if let Some(tiered) = self.tiered_mut() {
            tiered.name(keys, rows);
        }
    }

    /// Takes rows out of their places, in memory or on disk: they are free.
    pub(crate) fn vacate(&mut self, rows: &[u32]) {
        if let Some(tiered) = self.tiered_mut() {
            tiered.vacate(rows);
        }
    }

    /// Drops rows from `rows` on, which are free, and gives their memory back: most of it when the
    /// result is dropped, which takes time and should wait until no lock is held.
    #[must_use = "to drop it takes time, which may be saved until no lock is held"]
    pub(crate) fn truncate(&mut self, rows: usize) -> impl Sized + use<> {
        match self {
            Store::InMemory(store) => Some(store.0.truncate(rows)),
            Store::Tiered(tiered) => {
                tiered.truncate(rows);
                None
            }
        }
    }

    /// Gives the memory of free rows `from..to` back; what they held is lost.
    pub(crate) fn release(&mut self, from: usize, to: usize) {
        if let Store::InMemory(rows) = self {
            rows.0.release(from, to);
        }
    }

    /// The row `row`, `width` floats, or `None` past the end. For loops there is [`with_rows`].
    ///
    /// # Panics
    /// For a row that is on disk.
    pub(crate) fn row(&self, row: u32) -> Option<&[f32]> {
        with_rows!(self, rows => rows.row(row))
    }

    /// The row `row` for writing, or `None` past the end.
    ///
    /// # Panics
    /// For a row that is on disk.
    pub(crate) fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        match self {
            Store::InMemory(rows) => rows.0.row_mut(row),
            Store::Tiered(tiered) => tiered.row_mut(row),
        }
    }

    /// Divides the rows in memory among `parts` owners; each may write its own rows while the
    /// others write theirs.
    pub(crate) fn split(&mut self, parts: usize) -> Vec<Part<'_>> {
        match self {
            Store::InMemory(rows) => {
                let parts = rows.0.split(parts).into_iter();
                parts
                    .map(|part| Part::InMemory(PartInMemory(part)))
                    .collect()
            }
            Store::Tiered(tiered) => tiered.split(parts).map(Part::Tiered).collect(),
        }
    }

    /// Which of `parts` owners has which row after [`Store::split`].
    pub(crate) fn owners(&self, parts: usize) -> Owners<'_> {
        Owners {
            tiered: self.tiered(),
            parts: parts as u32,
        }
    }

    /// Gives all rows `width` floats instead of fewer, with the floats they have in front, and
    /// calls `finish` on each. The peak of memory is little more than what the wider rows take.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory; of a tier, what its files refuse and `DataLoss` for a
    /// row that is damaged. The store is as it was then.
    pub(crate) fn widen(
        &mut self,
        width: usize,
        most: u64,
        finish: impl FnMut(&mut [f32]),
    ) -> Result<()> {
        match self {
            Store::Tiered(tiered) => tiered.widen(width, most, finish),
            Store::InMemory(rows) => {
                let none = Slab::new(rows.0.width(), most);
                let narrow = std::mem::replace(&mut rows.0, none);
                match narrow.move_into(Slab::new(width, most), finish) {
                    Ok(wide) => rows.0 = wide,
                    Err((narrow, error)) => {
                        rows.0 = narrow;
                        return Err(error);
                    }
                }
                Ok(())
            }
        }
    }
}

impl RowPart for Part<'_> {
    #[inline(always)]
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        match self {
            Part::InMemory(part) => part.row_mut(row),
            Part::Tiered(part) => part.row_mut(row),
        }
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        match self {
            Part::InMemory(part) => part.prefetch(row),
            Part::Tiered(part) => part.prefetch(row),
        }
    }
}
