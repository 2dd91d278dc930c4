//! Opens the parts of a saved table: plain files, their attributes, and the slots of a directory
//! without a manifest.

#![deny(clippy::arithmetic_side_effects)]

use super::format::{damaged, is_slot_name, named, ATTRIBUTE};
use crate::optim::usual_start;
use crate::{Kind, Result, SlotSpec};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

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

/// A file's bytes, at most `limit`; `None` if there is none.
pub(super) fn content(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let file = match open(path) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let read = file.take(limit).read_to_end(&mut bytes);
    named(read, "read a file", path)?;
    Ok(Some(bytes))
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

pub(super) fn check_width(size: u64, expected: u64, path: &Path) -> Result<()> {
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
        // Matters only in a table that has not seen its optimizer yet: nothing else says it.
        let initial = usual_start(&name);
        slots.push(SlotSpec {
            name: name.into(),
            initial,
            per_row: false,
        });
    }
    slots.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(slots)
}
