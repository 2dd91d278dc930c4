//! Describes a table's directory, and what is wrong with it.

use super::super::layout::{Layout, Part};
use super::super::manifest::Manifest;
use super::history::{facts, HistoryFacts};
use crate::{Error, Result};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// What is wrong with one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its path below the table's directory; `.` is the directory.
    pub file: String,
    /// What is wrong, with the values.
    pub message: String,
}

impl Fault {
    /// The fault that an error of a reader is; the file is the one that it names.
    pub(super) fn of(dir: &Path, error: &Error) -> Fault {
        // As errors show it, so that a name that is no UTF-8 is found in them.
        let dir = dir.display().to_string();
        let mut file = ".".to_owned();
        let mut values = Vec::new();
        for (name, value) in error.context() {
            if *name == "path" {
                let below = Path::new(value).strip_prefix(&dir);
                file = below.map_or(value.clone(), |below| below.display().to_string());
            } else {
                values.push(format!("{name}={value}"));
            }
        }
        let mut message = error.message().to_owned();
        if !values.is_empty() {
            message += &format!(" ({})", values.join(", "));
        }
        Fault {
            file: if file.is_empty() { ".".into() } else { file },
            message,
        }
    }
}

/// The size of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartSize {
    /// `key`, `embedding` or a slot's name.
    pub name: String,
    /// Bytes of its data file; 0 if there is none.
    pub bytes: u64,
}

/// A slot as the manifest names it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slot {
    /// Its name, which is that of its directory.
    pub name: String,
    /// Where new rows start; none if no manifest says it.
    pub initial: Option<f32>,
    /// Whether it is one float for a row; told only where it is so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_row: bool,
}

/// What a table's directory holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// Version of the format; 0 is the original's, without a manifest.
    pub version: u32,
    /// Number of rows; none if no file tells.
    pub rows: Option<u64>,
    /// Keys that a delta takes out; none of a whole save, and if no file tells.
    pub removed: Option<u64>,
    /// Floats of an embedding and of each slot; none if no file tells.
    pub dim: Option<u64>,
    /// The slots, in the order of a row.
    pub slots: Vec<Slot>,
    /// Key, embedding and slots.
    pub parts: Vec<PartSize>,
    /// Bytes of all files in the directory, whatever they are.
    pub bytes: u64,
    /// What admission and eviction know, if the table has a history.
    pub history: Option<HistoryFacts>,
    /// What the manifest says of the table's configuration, if it does.
    pub config: Option<serde_json::Value>,
    /// What is wrong with manifest, attribute files, thresholds and sizes; data files are not read.
    pub faults: Vec<Fault>,
}

/// Looks at the directory of a table; nothing but small files is read.
///
/// # Errors
/// `NotFound`, `DataLoss` or `Io` if `dir` is no directory that can be read. What is wrong inside
/// is in `faults`.
pub fn describe(dir: &Path) -> Result<Description> {
    let layout = layout(dir)?;
    let is_told = layout.manifest.version > 0;
    let part = |part: &Part| PartSize {
        name: part.name.clone(),
        bytes: part.file.as_ref().map_or(0, |file| file.size),
    };
    let slots = layout.slots.into_iter().map(|slot| Slot {
        name: slot.name.into_owned(),
        initial: is_told.then_some(slot.initial),
        per_row: slot.per_row,
    });
    Ok(Description {
        version: layout.manifest.version,
        rows: layout.rows,
        removed: layout.removed_keys,
        dim: layout.dim,
        parts: layout.parts.iter().map(part).collect(),
        bytes: size_below(dir, 4),
        slots: slots.collect(),
        history: layout.history.as_ref().map(facts),
        config: layout.manifest.config,
        faults: layout
            .errors
            .iter()
            .map(|error| Fault::of(dir, error))
            .collect(),
    })
}

/// The layout of a directory, whatever is wrong with it.
pub(super) fn layout(dir: &Path) -> Result<Layout> {
    Layout::read(dir, Manifest::read(dir), None, &|_| true)
}

/// Bytes of the plain files in a directory and, to a depth, below; what cannot be read counts
/// nothing.
fn size_below(dir: &Path, depth: u32) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() && depth > 0 => size_below(&entry.path(), depth - 1),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    };
    entries.map(size).fold(0, u64::saturating_add)
}
