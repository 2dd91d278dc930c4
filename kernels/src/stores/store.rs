//! What a table keeps its rows in: memory alone, or memory and disk.

use super::in_memory::{InMemory, Standby};
use super::setup::TierSetup;
use super::tiered::{Tiered, TieredPart};
use super::{Pinned, ReadRows, RowPart};
use crate::mem::{FreshPages, OwnedRows};
use crate::tier::Log;
use crate::Result;
use std::sync::Arc;

/// The rows of a table.
pub(crate) enum Store {
    /// All in memory: of a table without a tier, or until a tier's first row goes to disk.
    InMemory(InMemory),
    /// As many in memory as the table may have there, the others on disk.
    Tiered(Box<Tiered>),
}

/// Runs one expression for either kind of store, compiled once for each.
macro_rules! with_rows {
    ($store:expr, $rows:ident => $run:expr) => {
        match $store {
            $crate::stores::Store::InMemory($rows) => $run,
            $crate::stores::Store::Tiered($rows) => {
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
    InMemory(OwnedRows<'s>),
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
        Store::InMemory(InMemory::new(width, most, None))
    }

    /// [`Store::in_memory`] until there are more rows than the tier has in memory: then
    /// [`Store::spill`] is to be called.
    ///
    /// # Errors
    /// What the files refuse.
    pub(crate) fn with_tier(setup: &Arc<TierSetup>, width: usize, most: u64) -> Result<Store> {
        let standby = Standby {
            setup: Arc::clone(setup),
            log: setup.log(width, most)?,
            pins: Arc::default(),
        };
        Ok(Store::InMemory(InMemory::new(width, most, Some(standby))))
    }

    /// A store without rows that takes the files over, which are emptied. This one must not be used
    /// any more.
    pub(crate) fn emptied(&self, most: u64) -> Store {
        let standby = match self {
            Store::InMemory(rows) => rows.standby.as_ref().map(|one| (&one.setup, &one.log)),
            Store::Tiered(tiered) => Some((tiered.setup(), tiered.log())),
        };
        let standby = standby.map(|(setup, log)| Standby::emptied(setup, log));
        Store::InMemory(InMemory::new(self.width(), most, standby))
    }

    /// Lets rows go to disk from now on. All are in memory still, each in the frame of its number;
    /// the policy knows them as if each had just been made, in the order of their numbers. `keys`
    /// are those of the rows, by number; rows that are not `used` get no place.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory; nothing changed.
    pub(crate) fn spill(&mut self, used: impl Fn(u32) -> bool, keys: Vec<i64>) -> Result<()> {
        if let Store::InMemory(rows) = self {
            if let Some(tiered) = Tiered::of(rows, used, keys)? {
                *self = Store::Tiered(Box::new(tiered));
            }
        }
        Ok(())
    }

    /// Keeps all rows in memory, as long as none is on disk. `None` if there is nothing to keep
    /// them from, and if there are rows on disk.
    pub(crate) fn hold(&self) -> Option<Pinned> {
        match self {
            Store::InMemory(rows) => rows.hold(),
            Store::Tiered(_) => None,
        }
    }

    /// The files of a tier.
    pub(crate) fn log(&self) -> Option<&Arc<Log>> {
        match self {
            Store::InMemory(rows) => rows.standby.as_ref().map(|one| &one.log),
            Store::Tiered(tiered) => Some(tiered.log()),
        }
    }

    /// The store with rows on disk, if it is one.
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
            Store::InMemory(rows) => rows.slab.rows(),
            Store::Tiered(tiered) => tiered.rows(),
        }
    }

    /// Floats of a row.
    pub(crate) fn width(&self) -> usize {
        match self {
            Store::InMemory(rows) => rows.slab.width(),
            Store::Tiered(tiered) => tiered.width(),
        }
    }

    /// Bytes of memory that the rows take, padding included.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Store::InMemory(rows) => rows.slab.bytes(),
            Store::Tiered(tiered) => tiered.row_bytes(),
        }
    }

    /// Bytes of what is kept beside the rows.
    pub(crate) fn other_bytes(&self) -> u64 {
        match self {
            Store::InMemory(_) => self.log().map_or(0, |log| log.stats().memory_bytes),
            Store::Tiered(tiered) => tiered.other_bytes(),
        }
    }

    /// Makes row numbers up to `rows` in all. In memory the rows are there, with contents that are
    /// unspecified until they are written; beside rows on disk they get places by [`Store::seat`].
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses; rows there are stay.
    pub(crate) fn grow(&mut self, rows: usize) -> Result<()> {
        match self {
            Store::InMemory(store) => store.slab.grow(rows),
            Store::Tiered(tiered) => tiered.grow(rows),
        }
    }

    /// Memory that new rows will take, in pieces of which each is to be asked for by one thread;
    /// `least` pieces, if it does not take so many and they do not make the rows much larger.
    pub(crate) fn fresh_pages(&mut self, least: usize) -> Vec<Arc<FreshPages>> {
        match self {
            Store::InMemory(rows) => rows.slab.fresh_pages(least),
            Store::Tiered(tiered) => tiered.frames.fresh_pages(least),
        }
    }

    /// Memory that about `rows` rows more will take, to be asked for beside other work.
    pub(crate) fn later_pages(&mut self, rows: usize) -> Vec<Arc<FreshPages>> {
        match self {
            Store::InMemory(store) => store.slab.later_pages(rows),
            Store::Tiered(tiered) => tiered.frames.later_pages(rows),
        }
    }

    /// How many new rows find a place in memory beside `used` ones; `None` for any number.
    pub(crate) fn available(&self, used: usize) -> Option<usize> {
        match self {
            Store::InMemory(rows) => rows.most().map(|most| {
                let available = most.saturating_sub(used as u64);
                usize::try_from(available).unwrap_or(usize::MAX)
            }),
            Store::Tiered(tiered) => Some(tiered.available()),
        }
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
            Store::InMemory(store) => Some(store.slab.truncate(rows)),
            Store::Tiered(tiered) => {
                tiered.truncate(rows);
                None
            }
        }
    }

    /// Gives the memory of free rows `from..to` back; what they held is lost.
    pub(crate) fn release(&mut self, from: usize, to: usize) {
        if let Store::InMemory(rows) = self {
            rows.slab.release(from, to);
        }
    }

    /// [`ReadRows::ask`].
    pub(crate) fn ask(&self, rows: &[u32], floats: usize) {
        with_rows!(self, store => store.ask(rows, floats));
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
            Store::InMemory(rows) => rows.slab.row_mut(row),
            Store::Tiered(tiered) => tiered.row_mut(row),
        }
    }

    /// Divides the rows in memory among `parts` owners; each may write its own rows while the
    /// others write theirs.
    pub(crate) fn split(&mut self, parts: usize) -> Vec<Part<'_>> {
        match self {
            Store::InMemory(rows) => {
                let parts = rows.slab.split(parts).into_iter();
                parts.map(Part::InMemory).collect()
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
            Store::InMemory(rows) => rows.widen(width, most, finish),
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
    fn has(&self, row: u32) -> bool {
        match self {
            Part::InMemory(part) => part.has(row),
            Part::Tiered(part) => part.has(row),
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
