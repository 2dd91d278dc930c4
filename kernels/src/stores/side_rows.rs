//! Records that are read for somebody who leaves them on disk.

use super::tiered::{not_in_memory, zeroed, Place, Tiered};
use super::ReadRows;
use crate::tier::{Log, Reading, Want};
use crate::{Pool, Result};
use std::sync::Arc;

/// Records that were read for somebody who leaves them on disk.
pub(crate) struct SideRows {
    planned: Planned,
    floats: Vec<f32>,
}

impl SideRows {
    /// Reads records; the caller holds no lock.
    ///
    /// # Errors
    /// What the log says.
    pub(crate) fn read(pool: &Pool, planned: Planned, width: usize) -> Result<SideRows> {
        let n = planned.places.len();
        let (mut floats, mut keys) = (zeroed(n * width)?, vec![0; n]);
        planned.reading.run(pool, &mut floats, &mut keys)?;
        Ok(SideRows { planned, floats })
    }
}

/// Records to be read.
pub(crate) struct Planned {
    log: Arc<Log>,
    /// Ascending.
    places: Vec<u32>,
    /// Keeps the places from being used again.
    reading: Reading,
}

impl Tiered {
    /// What is to be read of rows, given `side`; `None` if nothing.
    ///
    /// # Errors
    /// What the log says.
    pub(crate) fn plan(
        &self,
        rows: impl Iterator<Item = u32>,
        side: Option<&SideRows>,
    ) -> Result<Option<Planned>> {
        let wants = rows.filter_map(|row| {
            let place = self.on_disk(row)?;
            Some(Want { place, row })
        });
        let mut wants: Vec<Want> = wants.collect();
        wants.sort_unstable_by_key(|want| want.place);
        wants.dedup_by_key(|want| want.place);
        let known = |want: &Want| {
            side.is_some_and(|SideRows { planned, .. }| {
                let places = &planned.places;
                Arc::ptr_eq(&planned.log, &self.log) && places.binary_search(&want.place).is_ok()
            })
        };
        if wants.iter().all(known) {
            return Ok(None);
        }
        let places = wants.iter().map(|want| want.place).collect();
        Ok(Some(Planned {
            log: Arc::clone(&self.log),
            places,
            reading: self.log.plan(&wants)?,
        }))
    }

    /// The rows together with those that were read beside them.
    pub(crate) fn beside<'s>(&'s self, side: Option<&'s SideRows>) -> ReadThrough<'s> {
        ReadThrough { tiered: self, side }
    }
}

/// Rows in memory, and rows on disk that were read.
pub(crate) struct ReadThrough<'s> {
    tiered: &'s Tiered,
    side: Option<&'s SideRows>,
}

impl ReadRows for ReadThrough<'_> {
    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        match (self.tiered.place(row), self.side) {
            (Place::Frame(frame), _) => self.tiered.frames.row(frame),
            (Place::Disk(place), Some(side)) => match side.planned.places.binary_search(&place) {
                Ok(at) => side.floats.chunks_exact(self.tiered.width()).nth(at),
                Err(_) => not_in_memory(row),
            },
            (Place::Disk(_), None) => not_in_memory(row),
            (Place::Nowhere, _) => None,
        }
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, floats: usize) {
        self.tiered.prefetch(row, floats);
    }
}
