//! Values of a record: where they are, as what they are stored, and by what they are rounded.

use super::draws::{mixed, RowDraws};
use super::dtype::RowDtype;
use super::packed::{encode, fill, read, round_row, Unusual};
use crate::simd::Level;

/// The embedding of a record, or one of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The first of its words.
    pub(crate) start: usize,
    /// Its values.
    pub(crate) count: usize,
    /// Their type.
    pub(crate) dtype: RowDtype,
    /// What it adds to the table's seed, so that it is rounded by numbers of its own: 0 of an
    /// embedding, [`stream`] of a slot of 2 bytes a value.
    pub(crate) stream: u64,
}

impl Place {
    /// Words that it takes.
    pub(crate) fn words(self) -> usize {
        self.dtype.words(self.count)
    }

    /// Reads its values, `out (count)`.
    pub(crate) fn read(self, level: Level, record: &[f32], out: &mut [f32]) {
        let words = &record[self.start..self.start + self.words()];
        match self.dtype.half() {
            None => out.copy_from_slice(words),
            Some(half) => read(level, half, words, out),
        }
    }

    /// Writes its values, `values (count)`, rounded by `draws`, or to the nearest without, if they
    /// have 2 bytes.
    pub(crate) fn write(
        self,
        level: Level,
        draws: Option<RowDraws>,
        values: &[f32],
        record: &mut [f32],
    ) -> Unusual {
        let words = &mut record[self.start..self.start + self.words()];
        match self.dtype.half() {
            None => {
                words.copy_from_slice(values);
                Unusual::default()
            }
            Some(half) => encode(level, half, draws, values, words),
        }
    }

    /// What is read of a value that was rounded to the nearest.
    pub(crate) fn nearest(self, value: f32) -> f32 {
        let mut values = [value];
        if let Some(half) = self.dtype.half() {
            round_row(Level::detect(), half, None, &mut values);
        }
        values[0]
    }

    /// Makes all of its values the one that is the nearest to `value`.
    pub(crate) fn fill(self, value: f32, record: &mut [f32]) {
        let words = &mut record[self.start..self.start + self.words()];
        match self.dtype.half() {
            None => words.fill(value),
            Some(half) => fill(half, value, self.count, words),
        }
    }
}

/// What a slot of this name adds to the seed: [`mixed`] FNV-1a, of 64 bits, of its UTF-8 (Fowler,
/// Noll and Vo).
pub(crate) fn stream(name: &str) -> u64 {
    let sum = name.bytes().fold(0xCBF2_9CE4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    mixed(sum)
}
