//! Rows of 2 bytes a value, read as floats.

use super::ReadRows;
use crate::halves::{decode, Half};
use crate::simd::Level;

/// Rows whose embeddings have 2 bytes a value.
pub(crate) struct Decoded<'s, S> {
    pub(crate) rows: &'s S,
    pub(crate) half: Half,
    pub(crate) level: Level,
}

impl<S: ReadRows> ReadRows for Decoded<'_, S> {
    const SCRATCH: bool = true;
    const DECODES: bool = true;

    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        self.rows.row(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, floats: usize) {
        self.rows.prefetch(row, floats.div_ceil(2));
    }

    #[inline(always)]
    fn now<'s>(&'s self, _: u32, row: &'s [f32], scratch: &'s mut [f32]) -> &'s [f32] {
        decode(self.level, self.half, row, scratch);
        scratch
    }
}
