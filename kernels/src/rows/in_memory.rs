//! Rows that are all in memory, in a [`Slab`].

use super::{RowPart, RowStore};
use crate::mem::{FreshPages, OwnedRows, Slab};
use crate::{Error, Result};

/// Rows in memory.
pub(crate) struct InMemory(Slab);

/// The rows of one owner.
pub(crate) struct PartInMemory<'s>(OwnedRows<'s>);

impl RowStore for InMemory {
    type Part<'s> = PartInMemory<'s>;

    fn new(width: usize, most: u64) -> InMemory {
        InMemory(Slab::new(width, most))
    }

    #[inline(always)]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    #[inline(always)]
    fn width(&self) -> usize {
        self.0.width()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn grow(&mut self, rows: usize) -> Result<()> {
        self.0.grow(rows)
    }

    fn fresh_pages(&mut self, least: usize) -> Vec<FreshPages<'_>> {
        self.0.fresh_pages(least)
    }

    fn truncate(&mut self, rows: usize) -> impl Sized + use<> {
        self.0.truncate(rows)
    }

    fn release(&mut self, from: usize, to: usize) {
        self.0.release(from, to);
    }

    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        self.0.row(row)
    }

    #[inline(always)]
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        self.0.row_mut(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, floats: usize) {
        self.0.prefetch(row, floats);
    }

    fn split(&mut self, parts: usize) -> Vec<PartInMemory<'_>> {
        let parts = self.0.split(parts).into_iter();
        parts.map(PartInMemory).collect()
    }

    #[inline(always)]
    fn owner(row: u32, parts: u32) -> u32 {
        OwnedRows::owner(row, parts)
    }

    fn widen(
        self,
        width: usize,
        most: u64,
        finish: impl FnMut(&mut [f32]),
    ) -> Result<InMemory, (InMemory, Error)> {
        match self.0.move_into(Slab::new(width, most), finish) {
            Ok(wider) => Ok(InMemory(wider)),
            Err((narrow, error)) => Err((InMemory(narrow), error)),
        }
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
