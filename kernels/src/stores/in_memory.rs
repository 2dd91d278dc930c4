//! Rows that are all in memory, in a [`Slab`].

use super::pins::{Pinned, Pins};
use super::setup::TierSetup;
use super::{ReadRows, RowPart};
use crate::mem::{OwnedRows, Slab};
use crate::tier::Log;
use crate::Result;
use std::sync::Arc;

/// Rows in memory.
pub(crate) struct InMemory {
    pub(super) slab: Slab,
    /// Of a table with a tier, none of whose rows has gone to disk yet: it is a table in memory
    /// until then, and keeps no places, policy or keys of rows.
    pub(super) standby: Option<Box<Standby>>,
}

/// What rows in memory need when some of them go to disk.
pub(super) struct Standby {
    pub(super) setup: Arc<TierSetup>,
    /// Without records.
    pub(super) log: Arc<Log>,
    /// Hold all rows or none: frames have no numbers of their own yet.
    pub(super) pins: Arc<Pins>,
}

impl InMemory {
    /// No rows, `width` floats each; `most` are expected at most, fewer of a tier.
    pub(super) fn new(width: usize, most: u64, standby: Option<Standby>) -> InMemory {
        let standby = standby.map(Box::new);
        let most = standby
            .as_ref()
            .map_or(most, |one| most.min(one.setup.ram_rows));
        InMemory {
            slab: Slab::new(width, most),
            standby,
        }
    }

    /// The most rows; `None` for any number.
    pub(super) fn most(&self) -> Option<u64> {
        self.standby.as_ref().map(|one| one.setup.ram_rows)
    }

    /// Keeps all rows in memory. `None` if they stay anyway.
    pub(super) fn hold(&self) -> Option<Pinned> {
        self.standby.as_ref().map(|one| one.pins.pin_all())
    }

    /// [`super::Store::widen`].
    pub(super) fn widen(
        &mut self,
        width: usize,
        most: u64,
        finish: impl FnMut(&mut [f32]),
    ) -> Result<()> {
        let standby = match &self.standby {
            None => None,
            Some(one) => Some(Standby {
                setup: Arc::clone(&one.setup),
                log: one.setup.log(width, most)?,
                pins: Arc::clone(&one.pins),
            }),
        };
        let wide = InMemory::new(width, most, standby);
        self.slab.move_into(wide.slab, finish)?;
        self.standby = wide.standby;
        Ok(())
    }
}

impl Standby {
    /// A standby for a content without rows, with empty pins; the log's records are dropped.
    pub(super) fn emptied(setup: &Arc<TierSetup>, log: &Arc<Log>) -> Standby {
        log.clear();
        Standby {
            setup: Arc::clone(setup),
            log: Arc::clone(log),
            pins: Arc::default(),
        }
    }
}

impl ReadRows for InMemory {
    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        self.slab.row(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, floats: usize) {
        self.slab.prefetch(row, floats);
    }
}

impl RowPart for OwnedRows<'_> {
    #[inline(always)]
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        OwnedRows::row_mut(self, row)
    }

    #[inline(always)]
    fn has(&self, _: u32) -> bool {
        true
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        OwnedRows::prefetch(self, row);
    }
}
