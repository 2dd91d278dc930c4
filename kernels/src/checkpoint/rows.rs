//! Rows into files: all threads of a pool gather blocks of rows, sum them up and write them where
//! they belong.

#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "rows of the table itself, of its own layout"
    )
)]

use super::file::Seal;
use super::format::{
    key_attribute, named, refused, value_attribute, written, ATTRIBUTE, BLOCK_BYTES, DATA,
    EMBEDDING, KEY, KEY_BYTES,
};
use super::manifest::Recorded;
use crate::halves::{to_bytes, Place};
use crate::mem::start_writeback;
use crate::simd::Level;
use crate::table::Window;
use crate::{Error, Kind, Pool, Result, RowDtype, Snapshot};
use parking_lot::Mutex;
use std::fs::{DirBuilder, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permissions of files and directories, as the original sets them.
pub(super) const FILE_MODE: u32 = 0o640;
pub(super) const DIR_MODE: u32 = 0o750;

/// A file that was written and is not flushed to the disk yet.
pub(super) struct Written {
    pub(super) recorded: Recorded,
    path: PathBuf,
    file: File,
}

impl Written {
    /// Makes the file `name` below `table` with this content.
    pub(super) fn whole(table: &Path, name: &str, content: &[u8]) -> Result<Written> {
        let mut file = Written::empty(table, name)?;
        file.append(content)?;
        Ok(file)
    }

    /// Makes the empty file `name` below `table`.
    pub(super) fn empty(table: &Path, name: &str) -> Result<Written> {
        let path = table.join(name);
        let file = create_file(&path)?;
        let recorded = Recorded {
            path: name.to_owned(),
            seal: Seal::default(),
        };
        Ok(Written {
            recorded,
            path,
            file,
        })
    }

    /// Appends to the file and its checksum.
    pub(super) fn append(&mut self, content: &[u8]) -> Result<()> {
        let sum = self.write_at(self.recorded.seal.bytes, content)?;
        self.take_in(sum, content.len() as u64);
        Ok(())
    }

    /// Writes at byte `start`; returns the checksum of what was written.
    fn write_at(&self, start: u64, content: &[u8]) -> Result<u32> {
        let done = self.file.write_all_at(content, start);
        written(done, content.len(), &self.path)?;
        start_writeback(&self.file, start, content.len() as u64);
        Ok(crc32c::crc32c(content))
    }

    /// Takes in the checksum of the next `bytes` bytes.
    fn take_in(&mut self, crc32c: u32, bytes: u64) {
        let seal = &mut self.recorded.seal;
        seal.crc32c = crc32c::crc32c_combine(seal.crc32c, crc32c, bytes as usize);
        seal.bytes += bytes;
    }
}

/// Flushes files to the disk, then the directories they are in.
pub(super) fn flush(pool: &Pool, table: &Path, files: Vec<Written>) -> Result<()> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in files.iter().filter_map(|file| file.path.parent()) {
        if !dirs.iter().any(|known| known == dir) && dir != table {
            dirs.push(dir.to_owned());
        }
    }
    pool.try_each(files, |file| {
        let flushed = file.file.sync_all();
        named(flushed, "flush a file to the disk", &file.path)
    })?;
    dirs.iter().try_for_each(|dir| sync_dir(dir))?;
    sync_dir(table)
}

/// Flushes the entries of a directory to the disk.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    named(
        File::open(dir).and_then(|dir| dir.sync_all()),
        "flush a directory to the disk",
        dir,
    )
}

/// Writes the rows of a table that `keep` accepts into the empty directory `dir`: keys, embeddings
/// and slots in row order.
///
/// Memory: what [`Snapshot::windows`] needs, and about 1 MiB a thread.
///
/// # Errors
/// `Io` for what the system refuses, with the file; `ResourceExhausted` without memory.
pub(super) fn write_rows(
    snapshot: &Snapshot<'_>,
    pool: &Pool,
    dir: &Path,
    keep: &(dyn Fn(u32) -> bool + Sync),
) -> Result<(u64, Vec<Written>)> {
    let (layout, slots) = (snapshot.layout(), snapshot.slots());
    let mut parts = vec![PartWriter::create(dir, KEY, KEY_BYTES, None)?];
    parts.push(PartWriter::of_values(dir, EMBEDDING, layout.embedding())?);
    for (slot, place) in slots.iter().zip(layout.slots(slots)) {
        parts.push(PartWriter::of_values(dir, &slot.name, place)?);
    }
    let widest = parts.iter().map(|part| part.width).max().unwrap_or(1);
    let most = (BLOCK_BYTES as u64 / widest).max(1) as usize;
    let buffers = Mutex::new(Vec::new());
    let mut rows = 0;
    let in_memory = |row: u32| keep(row) && snapshot.is_in_memory(row);
    snapshot.windows(pool, &in_memory, &mut |window| {
        let blocks = blocks(window, most, &mut rows);
        let sums = sum_and_write(pool, &blocks, &buffers, |block, buffer| {
            block.write(snapshot, window, &parts, buffer)
        })?;
        for (block, sums) in blocks.iter().zip(sums) {
            for (part, sum) in parts.iter_mut().zip(sums) {
                part.append(sum, block.used);
            }
        }
        Ok(())
    })?;
    // Rows on disk come last, in the order in which they lie there.
    let width = layout.width(slots);
    snapshot.each_on_disk(pool, keep, &mut |keys, records| {
        let sums = write_records(pool, &parts, rows, width, (keys, records))?;
        for (part, sum) in parts.iter_mut().zip(sums) {
            part.append(sum, keys.len() as u64);
        }
        rows += keys.len() as u64;
        Ok(())
    })?;
    let mut written = Vec::new();
    for part in parts {
        let attribute = match part.values {
            None => key_attribute(rows),
            Some(values) => value_attribute(rows, values.count, values.dtype),
        };
        let name = format!("{}/{ATTRIBUTE}", part.name);
        written.push(Written::whole(dir, &name, &attribute)?);
        written.push(part.file);
    }
    Ok((rows, written))
}

/// Writes keys and records `(n, width)` behind the `rows` that are in the files; returns the
/// checksum of each part's share.
fn write_records(
    pool: &Pool,
    parts: &[PartWriter],
    rows: u64,
    width: usize,
    (keys, records): (&[i64], &[f32]),
) -> Result<Sums> {
    let mut sums = vec![0; parts.len()];
    let work = parts.iter().zip(&mut sums);
    let level = Level::detect();
    pool.try_each(work, |(part, sum): (&PartWriter, &mut u32)| {
        let mut buffer = vec![0; keys.len() * part.width as usize];
        let each = buffer.chunks_exact_mut(part.width as usize);
        match part.values {
            None => keys
                .iter()
                .zip(each)
                .for_each(|(key, bytes)| bytes.copy_from_slice(&key.to_le_bytes())),
            Some(values) => records
                .chunks_exact(width)
                .zip(each)
                .for_each(|(record, bytes)| put(level, values, record, bytes)),
        }
        *sum = part.write(rows, &buffer)?;
        Ok(())
    })?;
    Ok(sums)
}

/// The checksums of one block, by part.
type Sums = Vec<u32>;

/// Calls `write` with every block, on all threads; returns what it gave in the order of the blocks.
fn sum_and_write(
    pool: &Pool,
    blocks: &[Block],
    buffers: &Mutex<Vec<Vec<u8>>>,
    write: impl Fn(&Block, &mut Vec<u8>) -> Result<Sums> + Sync,
) -> Result<Vec<Sums>> {
    let mut sums: Vec<Sums> = vec![Vec::new(); blocks.len()];
    pool.try_each(blocks.iter().zip(&mut sums), |(block, sums)| {
        let mut buffer = buffers.lock().pop().unwrap_or_default();
        *sums = write(block, &mut buffer)?;
        buffers.lock().push(buffer);
        Ok(())
    })?;
    Ok(sums)
}

/// Rows that are written at once.
struct Block {
    /// Where in the window they are.
    range: Range<usize>,
    /// How many of them are used.
    used: u64,
    /// How many used rows come before them in the files.
    first: u64,
}

/// Cuts a window into blocks of at most `most` rows; `rows` counts the used ones of all windows.
fn blocks(window: &Window<'_>, most: usize, rows: &mut u64) -> Vec<Block> {
    let mut blocks = Vec::new();
    for start in (0..window.len()).step_by(most) {
        let range = start..window.len().min(start + most);
        let used = window.used(range.clone()) as u64;
        if used > 0 {
            blocks.push(Block {
                range,
                used,
                first: *rows,
            });
            *rows += used;
        }
    }
    blocks
}

impl Block {
    /// Writes the block's share of every part; returns the checksums of the shares.
    fn write(
        &self,
        snapshot: &Snapshot<'_>,
        window: &Window<'_>,
        parts: &[PartWriter],
        buffer: &mut Vec<u8>,
    ) -> Result<Sums> {
        let mut sums = Vec::with_capacity(parts.len());
        let level = Level::detect();
        for part in parts {
            let width = part.width as usize;
            buffer.resize(self.used as usize * width, 0);
            let entries = self.range.clone().filter_map(|at| window.entry(at));
            for ((key, row), bytes) in entries.zip(buffer.chunks_exact_mut(width)) {
                match part.values {
                    None => bytes.copy_from_slice(&key.to_le_bytes()),
                    Some(values) => {
                        let record = snapshot.row(row).ok_or_else(|| no_record(row))?;
                        put(level, values, record, bytes);
                    }
                }
            }
            sums.push(part.write(self.first, buffer)?);
        }
        Ok(sums)
    }
}

#[cold]
fn no_record(row: u32) -> Error {
    Error::new(Kind::Internal, "a key leads to a row that is none").with("row", row)
}

/// Writes the values of a record that one file has, little-endian, to their `bytes`.
fn put(level: Level, values: Place, record: &[f32], bytes: &mut [u8]) {
    let from = &record[values.start..];
    match values.dtype {
        RowDtype::Float32 => {
            for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(from) {
                *bytes = value.to_le_bytes();
            }
        }
        RowDtype::Bfloat16 | RowDtype::Float16 => to_bytes(level, from, bytes),
    }
}

/// One data file while it grows.
struct PartWriter {
    name: String,
    /// What it has of each record; keys are in none.
    values: Option<Place>,
    /// Bytes of a record.
    width: u64,
    file: Written,
}

impl PartWriter {
    fn of_values(table: &Path, name: &str, values: Place) -> Result<PartWriter> {
        let width = (values.count * values.dtype.bytes()) as u64;
        PartWriter::create(table, name, width, Some(values))
    }

    fn create(table: &Path, name: &str, width: u64, values: Option<Place>) -> Result<PartWriter> {
        make_dir(&table.join(name))?;
        Ok(PartWriter {
            name: name.to_owned(),
            values,
            width,
            file: Written::empty(table, &format!("{name}/{DATA}"))?,
        })
    }

    /// Writes records from record `first` on; returns their checksum.
    fn write(&self, first: u64, buffer: &[u8]) -> Result<u32> {
        self.file.write_at(first * self.width, buffer)
    }

    /// Takes in the checksum of the next `rows` records.
    fn append(&mut self, crc32c: u32, rows: u64) {
        self.file.take_in(crc32c, rows * self.width);
    }
}

/// Makes the directory of a part.
pub(super) fn make_dir(dir: &Path) -> Result<()> {
    named(
        DirBuilder::new().mode(DIR_MODE).create(dir),
        "make a directory",
        dir,
    )
}

fn create_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
        .map_err(|cause| refused("make a file", path, cause))
}
