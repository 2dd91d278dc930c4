//! Data files read block by block by all threads of a pool, and what their checksums say.

#![deny(clippy::arithmetic_side_effects)]

use super::format::{cut_off, damaged, refused, ATTRIBUTE, BLOCK_BYTES, DATA, MANIFEST};
use super::manifest::Recorded;
use super::parts::open;
use crate::halves::{from_bytes, Half};
use crate::simd::Level;
use crate::{Pool, Result, RowDtype};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The files that a manifest lists, less those that a reader has asked for.
pub(super) struct Verdicts<'m> {
    dir: &'m Path,
    /// None below version 2.
    files: Option<Vec<&'m Recorded>>,
}

impl<'m> Verdicts<'m> {
    pub(super) fn new(dir: &'m Path, files: Option<&'m [Recorded]>) -> Self {
        let files = files.map(|files| files.iter().collect());
        Self { dir, files }
    }

    /// Whether the manifest lists the file `name`; `None` if it lists none.
    pub(super) fn lists(&self, name: &str) -> Option<bool> {
        let files = self.files.as_ref()?;
        Some(files.iter().any(|file| file.path == name))
    }

    /// What the manifest says of the file `name`; `None` if it has no checksums.
    ///
    /// # Errors
    /// `DataLoss` if it has some, but not of this file.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<&'m Recorded>> {
        let Some(files) = &mut self.files else {
            return Ok(None);
        };
        match files.iter().position(|file| file.path == name) {
            Some(at) => Ok(Some(files.swap_remove(at))),
            None => Err(damaged(
                "the manifest does not list this file",
                &self.dir.join(name),
            )),
        }
    }

    /// Compares the attribute file of the part `name` with the manifest.
    ///
    /// # Errors
    /// `DataLoss`, `NotFound` or `Io` with the file.
    pub(super) fn attribute(&mut self, name: &str) -> Result<()> {
        match self.take(&format!("{name}/{ATTRIBUTE}"))? {
            Some(recorded) => check(&self.dir.join(&recorded.path), recorded),
            None => Ok(()),
        }
    }

    /// Checks the files that no reader has asked for, except those for which `ignored` is true.
    ///
    /// # Errors
    /// `DataLoss`, `NotFound` or `Io` with the file.
    pub(super) fn rest(&mut self, ignored: &dyn Fn(&str) -> bool) -> Result<()> {
        for recorded in self.files.take().unwrap_or_default() {
            if !recorded.is_inside() {
                let message = "the manifest lists a file outside of the table";
                let error = damaged(message, &self.dir.join(MANIFEST));
                return Err(error.with("file", &recorded.path));
            }
            let path = self.dir.join(&recorded.path);
            if !ignored(&recorded.path) {
                check(&path, recorded)?;
            }
        }
        Ok(())
    }
}

/// Reads a whole file and compares it with what the manifest says.
pub(super) fn check(path: &Path, recorded: &Recorded) -> Result<()> {
    let (mut file, size) = open(path)?;
    check_size(path, recorded, size)?;
    let mut crc = 0;
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(count) => {
                crc = crc32c::crc32c_append(crc, block.get(..count).unwrap_or_default());
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(refused("read a file", path, cause)),
        }
    }
    check_sum(path, recorded, crc)
}

/// Refuses a data file whose size is not that of `rows` records of `width` bytes.
pub(super) fn check_records(path: &Path, size: u64, rows: u64, width: u64) -> Result<()> {
    if rows.checked_mul(width) == Some(size) {
        return Ok(());
    }
    Err(
        damaged("a file's size is not what its attribute says", path)
            .with("bytes", size)
            .with("rows", rows)
            .with("bytes_per_row", width),
    )
}

pub(super) fn check_size(path: &Path, recorded: &Recorded, size: u64) -> Result<()> {
    if size == recorded.bytes {
        return Ok(());
    }
    Err(
        damaged("a file has another size than the manifest says", path)
            .with("bytes", size)
            .with("manifest", recorded.bytes),
    )
}

pub(super) fn check_sum(path: &Path, recorded: &Recorded, crc: u32) -> Result<()> {
    if crc == recorded.crc32c {
        return Ok(());
    }
    Err(damaged("a file's checksum is not the manifest's", path)
        .with("crc32c", format_args!("{crc:08x}"))
        .with("manifest", format_args!("{:08x}", recorded.crc32c)))
}

/// A data file of records of one width, whose size was checked.
pub(super) struct Column<'m> {
    path: PathBuf,
    file: File,
    width: u64,
    /// The type of its values; keys have none.
    dtype: RowDtype,
    recorded: Option<&'m Recorded>,
    /// The checksum of what was read so far.
    crc: u32,
}

impl<'m> Column<'m> {
    /// Opens the data file of the part `name`, which must hold `rows` records of `width` bytes.
    pub(super) fn open(
        dir: &Path,
        name: &str,
        rows: u64,
        width: u64,
        verdicts: &mut Verdicts<'m>,
    ) -> Result<Self> {
        let path = dir.join(name).join(DATA);
        let (file, size) = open(&path)?;
        check_records(&path, size, rows, width)?;
        let recorded = verdicts.take(&format!("{name}/{DATA}"))?;
        if let Some(recorded) = recorded {
            check_size(&path, recorded, size)?;
        }
        Ok(Self {
            path,
            file,
            width,
            dtype: RowDtype::Float32,
            recorded,
            crc: 0,
        })
    }

    /// [`Column::open`] of records of `count` values.
    pub(super) fn of_values(
        dir: &Path,
        name: &str,
        rows: u64,
        (count, dtype): (u64, RowDtype),
        verdicts: &mut Verdicts<'m>,
    ) -> Result<Self> {
        let width = count.saturating_mul(dtype.bytes() as u64);
        let column = Self::open(dir, name, rows, width, verdicts)?;
        Ok(Self { dtype, ..column })
    }

    /// Values of a record.
    pub(super) fn count(&self) -> u64 {
        self.width
            .checked_div(self.dtype.bytes() as u64)
            .unwrap_or(0)
    }

    /// After all blocks: compares the checksum.
    pub(super) fn finish(&self) -> Result<()> {
        match self.recorded {
            Some(recorded) => check_sum(&self.path, recorded, self.crc),
            None => Ok(()),
        }
    }

    /// Takes in the checksums of the next pieces.
    fn append(&mut self, pieces: &[(u32, usize)]) {
        if self.recorded.is_some() {
            for &(crc, bytes) in pieces {
                self.crc = crc32c::crc32c_combine(self.crc, crc, bytes);
            }
        }
    }

    /// Fills `bytes` from byte `start` of the file; returns their checksum if the manifest has one
    /// to compare, else 0.
    fn read(&self, start: u64, bytes: &mut [u8]) -> Result<u32> {
        match self.file.read_exact_at(bytes, start) {
            Ok(()) if self.recorded.is_some() => Ok(crc32c::crc32c(bytes)),
            Ok(()) => Ok(0),
            Err(cause) => Err(cut_off(cause, &self.path)),
        }
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
struct Piece<'p, 'm> {
    column: &'p Column<'m>,
    start: u64,
    place: Place<'p>,
    sum: &'p mut (u32, usize),
}

/// Reads `count` rows from row `first` on: keys, and every column of floats. Blocks must be read in
/// order, for the checksums.
///
/// # Errors
/// `DataLoss` for a file that became shorter, `Io`.
pub(super) fn read<'m>(
    pool: &Pool,
    (first, count): (u64, u64),
    (keys, key_values): (&mut Column<'m>, &mut Vec<i64>),
    (columns, values): (&mut [Column<'m>], &mut [Vec<f32>]),
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
fn cut<'p, 'm>(
    column: &'p Column<'m>,
    first: u64,
    places: impl Iterator<Item = Place<'p>>,
    sums: &'p mut [(u32, usize)],
    pieces: &mut Vec<Piece<'p, 'm>>,
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
