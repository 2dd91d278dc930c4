//! Rows that are all in memory, in a [`Slab`].

use super::{ReadRows, RowPart};
use crate::mem::{OwnedRows, Slab};

/// Rows in memory.
pub(crate) struct InMemory(pub(super) Slab);

/// The rows of one owner.
pub(crate) struct PartInMemory<'s>(pub(super) OwnedRows<'s>);

impl ReadRows for InMemory {
    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        self.0.row(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, floats: usize) {
        self.0.prefetch(row, floats);
    }
}

impl RowPart for PartInMemory<'_> {
    #[inline(always)]
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        self.0.row_mut(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        self.0.prefetch(row);
    }
}
