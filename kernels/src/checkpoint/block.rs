//! Data files read block by block by all threads of a pool.

#![deny(clippy::arithmetic_side_effects)]

use super::file::SavedFile;
use super::format::BLOCK_BYTES;
use crate::halves::{from_bytes, Half};
use crate::simd::Level;
use crate::{Pool, Result, RowDtype};
use parking_lot::Mutex;

/// A data file of records of one width, whose size was checked.
pub(super) struct Column {
    /// The part that it belongs to.
    pub(super) name: String,
    pub(super) file: SavedFile,
    /// Bytes of a record.
    pub(super) width: u64,
    /// The type of its values; keys have none.
    pub(super) dtype: RowDtype,
}

impl Column {
    /// Values of a record.
    pub(super) fn count(&self) -> u64 {
        self.width
            .checked_div(self.dtype.bytes() as u64)
            .unwrap_or(0)
    }

    /// Takes in the checksums of the next pieces.
    fn append(&mut self, pieces: &[(u32, usize)]) {
        for &(crc, bytes) in pieces {
            self.file.append(crc, bytes);
        }
    }

    /// Fills `bytes` from byte `start` of the file; returns their checksum if the manifest has one
    /// to compare, else 0.
    fn read(&self, start: u64, bytes: &mut [u8]) -> Result<u32> {
        self.file.read_at(bytes, start)?;
        Ok(match self.file.expected {
            Some(_) => crc32c::crc32c(bytes),
            None => 0,
        })
    }
}

/// Where the values of a piece go.
enum Place<'v> {
    Keys(&'v mut [i64]),
    Floats(&'v mut [f32]),
    Halves(Half, &'v mut [f32]),
}

impl Place<'_> {
    /// Bytes in the file.
    fn bytes(&self) -> usize {
        match self {
            Place::Keys(keys) => size_of_val(*keys),
            Place::Floats(floats) => size_of_val(*floats),
            Place::Halves(_, values) => values.len().saturating_mul(2),
        }
    }

    fn fill(&mut self, bytes: &[u8]) {
        match self {
            Place::Keys(keys) => {
                let words = bytes.as_chunks().0;
                keys.iter_mut()
                    .zip(words)
                    .for_each(|(key, &word)| *key = i64::from_le_bytes(word));
            }
            Place::Floats(floats) => {
                let words = bytes.as_chunks().0;
                floats
                    .iter_mut()
                    .zip(words)
                    .for_each(|(float, &word)| *float = f32::from_le_bytes(word));
            }
            Place::Halves(half, values) => from_bytes(Level::detect(), *half, bytes, values),
        }
    }
}

/// A piece of a column that one thread reads.
struct Piece<'p> {
    column: &'p Column,
    start: u64,
    place: Place<'p>,
    sum: &'p mut (u32, usize),
}

/// Reads `count` rows from row `first` on: keys, and every column of floats. Blocks must be read in
/// order, for the checksums.
///
/// # Errors
/// `DataLoss` for a file that became shorter, `Io`.
pub(super) fn read(
    pool: &Pool,
    (first, count): (u64, u64),
    (keys, key_values): (&mut Column, &mut Vec<i64>),
    (columns, values): (&mut [Column], &mut [Vec<f32>]),
) -> Result<()> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    key_values.resize(count, 0);
    let mut sums: Vec<Vec<(u32, usize)>> = Vec::new();
    let pieces_of = |values: usize, of_block: usize| vec![(0, 0); values.div_ceil(of_block)];
    sums.push(pieces_of(count, BLOCK_BYTES / 8));
    for (column, values) in columns.iter().zip(values.iter_mut()) {
        let of_row = usize::try_from(column.count()).unwrap_or(usize::MAX);
        values.resize(count.saturating_mul(of_row), 0.0);
        sums.push(pieces_of(values.len(), BLOCK_BYTES / 4));
    }
    let mut pieces = Vec::new();
    let mut rest = sums.iter_mut();
    if let Some(sums) = rest.next() {
        let places = key_values.chunks_mut(BLOCK_BYTES / 8).map(Place::Keys);
        cut(keys, first, places, sums, &mut pieces);
    }
    for ((column, values), sums) in columns.iter().zip(values.iter_mut()).zip(rest) {
        let half = column.dtype.half();
        let places = values.chunks_mut(BLOCK_BYTES / 4);
        let places = places.map(|values| match half {
            None => Place::Floats(values),
            Some(half) => Place::Halves(half, values),
        });
        cut(column, first, places, sums, &mut pieces);
    }
    let buffers: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    pool.try_each(pieces, |mut piece| {
        let mut buffer = buffers.lock().pop().unwrap_or_default();
        buffer.resize(piece.place.bytes(), 0);
        let crc = piece.column.read(piece.start, &mut buffer)?;
        piece.place.fill(&buffer);
        *piece.sum = (crc, buffer.len());
        buffers.lock().push(buffer);
        Ok(())
    })?;
    for (column, sums) in std::iter::once(keys).chain(columns).zip(&sums) {
        column.append(sums);
    }
    Ok(())
}

/// Cuts the share of one column into pieces, in the order of the file.
fn cut<'p>(
    column: &'p Column,
    first: u64,
    places: impl Iterator<Item = Place<'p>>,
    sums: &'p mut [(u32, usize)],
    pieces: &mut Vec<Piece<'p>>,
) {
    let mut start = first.saturating_mul(column.width);
    for (place, sum) in places.zip(sums) {
        let bytes = place.bytes() as u64;
        pieces.push(Piece {
            column,
            start,
            place,
            sum,
        });
        start = start.saturating_add(bytes);
    }
}
