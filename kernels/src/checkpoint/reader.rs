//! Reads a table back; everything on disk is untrusted until it was checked.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::format::{
    damaged, is_slot_name, named, refused, ATTRIBUTE, BLOCK_BYTES, DATA, EMBEDDING, FLOAT_BYTES,
    KEY, KEY_BYTES, MANIFEST, MAX_SLOTS,
};
use super::manifest::Manifest;
use crate::{Error, Kind, Pool, Result, SlotSpec, Table};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A longer manifest is none.
const MANIFEST_LIMIT: u64 = 1 << 20;

/// Slots that start elsewhere than at 0 when nothing says so: the defaults of the Python package's optimizers. Matters only for
/// files without a manifest in a table that has not seen its optimizer yet.
const INITIAL: [(&str, f32); 2] = [("Adagrad_accumulator", 0.9), ("Ftrl_accum", 0.1)];

/// Replaces the content of `table` by that of the directory `dir`, all or nothing, and returns the number of rows.
///
/// Slots on disk are restored, also those the table does not have yet: a table learns its optimizer at the first step. Slots of
/// the table that are not on disk start at their initial values. A slot's value for new rows is the table's own, else the
/// manifest's. Without a manifest every subdirectory with an attribute file of a row's shape is a slot.
///
/// # Errors
/// The table is as it was, and the message names the file: `NotFound` for a missing file; `DataLoss` for an attribute, a size
/// or a manifest that does not fit the rest, for a padding key and for one that occurs twice; `InvalidArgument` for another
/// dim than the table's; `ResourceExhausted` for more rows than its capacity; `Io` for what the system refuses.
pub fn load(table: &Table, pool: &Pool, dir: &Path) -> Result<u64> {
    let manifest = read_manifest(dir)?;
    let rows = check_keys(table, dir)?;
    if let Some(manifest) = &manifest {
        if manifest.rows != rows || manifest.dim != table.dim() {
            check_dim(table, manifest.dim as u64, &dir.join(MANIFEST))?;
            return Err(damaged(
                "the manifest has another number of rows",
                &dir.join(MANIFEST),
            )
            .with("manifest_rows", manifest.rows)
            .with("rows", rows));
        }
    }
    let mut keys = Part::open(&dir.join(KEY), rows, KEY_BYTES)?;
    let width = (table.dim() as u64).saturating_mul(FLOAT_BYTES);
    check_floats(table, &dir.join(EMBEDDING), rows)?;
    let mut embedding = Part::open(&dir.join(EMBEDDING), rows, width)?;

    let on_disk = match manifest {
        Some(manifest) => manifest.slots,
        None => find_slots(dir)?,
    };
    if on_disk.len() > MAX_SLOTS {
        return Err(
            damaged("the checkpoint has more slots than a table may have", dir)
                .with("slots", on_disk.len())
                .with("limit", MAX_SLOTS),
        );
    }
    let mut specs = table.slots();
    for slot in &on_disk {
        if !specs.iter().any(|spec| spec.name == slot.name) {
            specs.push(slot.clone());
        }
    }
    let mut slots = Vec::new();
    for spec in &specs {
        let part = if on_disk.iter().any(|slot| slot.name == spec.name) {
            let path = dir.join(spec.name.as_ref());
            check_floats(table, &path, rows)?;
            Some(Part::open(&path, rows, width)?)
        } else {
            None
        };
        slots.push(Slot {
            part,
            initial: spec.initial,
            values: Vec::new(),
        });
    }

    let block = (BLOCK_BYTES as u64).checked_div(width).unwrap_or(0).max(1);
    let (mut key_values, mut embedding_values) = (Vec::new(), Vec::new());
    table.load(pool, &specs, &mut |loading| {
        let mut left = rows;
        while left > 0 {
            let count = left.min(block);
            keys.read_keys(count, &mut key_values)?;
            embedding.read_floats(count, width, &mut embedding_values)?;
            for slot in &mut slots {
                slot.read(count, width, embedding_values.len())?;
            }
            let values: Vec<&[f32]> = slots.iter().map(|slot| slot.values.as_slice()).collect();
            loading
                .push(&key_values, &embedding_values, &values)
                .map_err(|error| error.with("path", dir.display()))?;
            left = left.saturating_sub(count);
        }
        Ok(())
    })
}

/// A slot while it is read, or while it is made up for lack of a file.
struct Slot {
    part: Option<Part>,
    initial: f32,
    values: Vec<f32>,
}

impl Slot {
    fn read(&mut self, rows: u64, width: u64, floats: usize) -> Result<()> {
        match &mut self.part {
            Some(part) => part.read_floats(rows, width, &mut self.values),
            None => {
                self.values.resize(floats, self.initial);
                Ok(())
            }
        }
    }
}

/// A data file whose size was checked, read from start to end.
struct Part {
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
}

impl Part {
    /// Opens the data file in `dir`, which must hold `rows` records of `width` bytes.
    fn open(dir: &Path, rows: u64, width: u64) -> Result<Part> {
        let path = dir.join(DATA);
        let (file, size) = open(&path)?;
        if rows.checked_mul(width) != Some(size) {
            return Err(
                damaged("a file's size is not what its attribute says", &path)
                    .with("bytes", size)
                    .with("rows", rows)
                    .with("bytes_per_row", width),
            );
        }
        Ok(Part {
            path,
            file,
            bytes: Vec::new(),
        })
    }

    fn read(&mut self, rows: u64, width: u64) -> Result<&[u8]> {
        // At most a block, or one row: the caller's count is a share of a size that was checked.
        let size = usize::try_from(rows.saturating_mul(width)).unwrap_or(usize::MAX);
        self.bytes.resize(size, 0);
        match self.file.read_exact(&mut self.bytes) {
            Ok(()) => Ok(&self.bytes),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Err(damaged(
                "a file became shorter while it was read",
                &self.path,
            )),
            Err(cause) => Err(refused("read a file", &self.path, cause)),
        }
    }

    fn read_keys(&mut self, rows: u64, keys: &mut Vec<i64>) -> Result<()> {
        let bytes = self.read(rows, KEY_BYTES)?;
        let word = |word: &[u8]| word.try_into().map_or(0, i64::from_le_bytes);
        keys.clear();
        keys.extend(bytes.chunks_exact(8).map(word));
        Ok(())
    }

    fn read_floats(&mut self, rows: u64, width: u64, values: &mut Vec<f32>) -> Result<()> {
        let bytes = self.read(rows, width)?;
        let word = |word: &[u8]| word.try_into().map_or(0.0, f32::from_le_bytes);
        values.clear();
        values.extend(bytes.chunks_exact(4).map(word));
        Ok(())
    }
}

/// Opens a plain file for reading and asks for its size.
pub(super) fn open(path: &Path) -> Result<(File, u64)> {
    // Before the file is opened: a pipe would wait for its other end.
    let found = named(fs::metadata(path), "find a file of the checkpoint", path)?;
    if !found.is_file() {
        return Err(damaged("a part of the checkpoint is no plain file", path));
    }
    let file = named(File::open(path), "open a file", path)?;
    let size = named(file.metadata(), "look at a file", path)?.len();
    Ok((file, size))
}

/// The words of the attribute file in `dir`, of which there must be `N`, none negative.
pub(super) fn attribute<const N: usize>(dir: &Path) -> Result<[u64; N]> {
    let path = dir.join(ATTRIBUTE);
    let (mut file, size) = open(&path)?;
    let mut words = [[0; 8]; N];
    if size != size_of_val(&words) as u64 {
        return Err(damaged("an attribute file has a wrong size", &path)
            .with("bytes", size)
            .with("expected", size_of_val(&words)));
    }
    named(
        file.read_exact(words.as_flattened_mut()),
        "read a file",
        &path,
    )?;
    let words = words.map(i64::from_le_bytes);
    if words.iter().any(|&word| word < 0) {
        return Err(damaged("an attribute file has a negative number", &path));
    }
    Ok(words.map(i64::unsigned_abs))
}

/// Checks the attribute of the keys and returns the number of rows.
fn check_keys(table: &Table, dir: &Path) -> Result<u64> {
    let dir = dir.join(KEY);
    let [rows, size] = attribute(&dir)?;
    let path = dir.join(ATTRIBUTE);
    check_size(size, KEY_BYTES, &path)?;
    if rows > table.capacity() {
        return Err(Error::new(
            Kind::ResourceExhausted,
            "the checkpoint has more rows than the table's capacity",
        )
        .with("table", &table.config().name)
        .with("rows", rows)
        .with("capacity", table.capacity())
        .with("path", path.display()));
    }
    Ok(rows)
}

/// Checks the attribute of the embeddings or of a slot.
fn check_floats(table: &Table, dir: &Path, rows: u64) -> Result<()> {
    let [found, dim, size] = attribute(dir)?;
    let path = dir.join(ATTRIBUTE);
    check_size(size, FLOAT_BYTES, &path)?;
    check_dim(table, dim, &path)?;
    if found != rows {
        return Err(damaged(
            "a part has another number of rows than there are keys",
            &path,
        )
        .with("rows", found)
        .with("keys", rows));
    }
    Ok(())
}

fn check_dim(table: &Table, dim: u64, path: &Path) -> Result<()> {
    if dim == table.dim() as u64 {
        return Ok(());
    }
    Err(
        Error::invalid("the checkpoint has another dim than the table")
            .with("table", &table.config().name)
            .with("checkpoint_dim", dim)
            .with("table_dim", table.dim())
            .with("path", path.display()),
    )
}

pub(super) fn check_size(size: u64, expected: u64, path: &Path) -> Result<()> {
    if size == expected {
        return Ok(());
    }
    Err(damaged(
        "an attribute file names another number of bytes a value",
        path,
    )
    .with("bytes", size)
    .with("expected", expected))
}

/// The manifest in `dir`, if there is one.
pub(super) fn read_manifest(dir: &Path) -> Result<Option<Manifest>> {
    let path = dir.join(MANIFEST);
    if !named(fs::metadata(dir), "find the checkpoint", dir)?.is_dir() {
        return Err(damaged("the checkpoint is no directory", dir));
    }
    let file = match open(&path) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    let mut limited = file.take(MANIFEST_LIMIT);
    named(limited.read_to_end(&mut text), "read a file", &path)?;
    let text = String::from_utf8(text).map_err(|_| damaged("the manifest is no text", &path))?;
    Manifest::parse(&text)
        .map(Some)
        .map_err(|message| damaged(message, &path))
}

/// The slots in a directory without a manifest, by name.
pub(super) fn find_slots(dir: &Path) -> Result<Vec<SlotSpec>> {
    let mut slots: Vec<SlotSpec> = Vec::new();
    for entry in named(fs::read_dir(dir), "read a directory", dir)? {
        let entry = named(entry, "read a directory", dir)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_slot_name(&name) || !entry.path().join(ATTRIBUTE).is_file() {
            continue;
        }
        let known = INITIAL.iter().find(|(slot, _)| *slot == name);
        let initial = known.map_or(0.0, |&(_, initial)| initial);
        slots.push(SlotSpec {
            name: name.into(),
            initial,
        });
    }
    slots.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(slots)
}
