//! What a table's directory holds, by its manifest, its attribute files and the sizes of its data
//! files.

use super::super::block::check_records;
use super::super::format::{damaged, named, ATTRIBUTE, DATA, EMBEDDING, KEY, KEY_BYTES};
use super::super::manifest::Manifest;
use super::super::parts::{attribute, check_width, find_slots, open};
use super::super::whole::check_membership;
use super::history::{find, Found, HistoryFacts};
use crate::{Error, Result, RowDtype, MAX_DIM};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

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
    /// What is wrong with manifest, attribute files and sizes; data files are not read.
    pub faults: Vec<Fault>,
}

/// Looks at the directory of a table; nothing but small files is read.
///
/// # Errors
/// `NotFound`, `DataLoss` or `Io` if `dir` is no directory that can be read. What is wrong inside
/// is in `faults`.
pub fn describe(dir: &Path) -> Result<Description> {
    let layout = Layout::read(dir)?;
    let part = |part: &PartFile| PartSize {
        name: part.name.clone(),
        bytes: part.bytes,
    };
    Ok(Description {
        version: layout.manifest.version,
        rows: layout.rows,
        dim: layout.dim,
        parts: layout.parts.iter().map(part).collect(),
        bytes: size_below(dir, 4),
        slots: layout.slots,
        history: layout.history.map(|found| found.history),
        config: layout.manifest.config,
        faults: layout.faults,
    })
}

/// A data file.
#[derive(Clone, Debug)]
pub(super) struct PartFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The type of its values; keys have none.
    pub(super) dtype: RowDtype,
    /// Bytes of a record, if its attribute is good.
    pub(super) width: Option<u64>,
    /// Bytes of the file; 0 if there is none.
    pub(super) bytes: u64,
}

/// A table's directory with the faults that show without reading data.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) manifest: Manifest,
    pub(super) slots: Vec<Slot>,
    pub(super) rows: Option<u64>,
    pub(super) dim: Option<u64>,
    /// The first is the keys.
    pub(super) parts: Vec<PartFile>,
    /// What admission and eviction know, if it is there and sound.
    pub(super) history: Option<Found>,
    pub(super) faults: Vec<Fault>,
}

impl Layout {
    pub(super) fn read(dir: &Path) -> Result<Layout> {
        if !named(fs::metadata(dir), "find the checkpoint", dir)?.is_dir() {
            return Err(damaged("the checkpoint is no directory", dir));
        }
        let mut faults = Vec::new();
        let mut fault = |error: &Error| faults.push(Fault::of(dir, error));
        let manifest = match Manifest::read(dir) {
            Ok(found) => {
                let manifest = found.unwrap_or_default();
                if let Err(error) = check_membership(dir, manifest.seal) {
                    fault(&error);
                }
                manifest
            }
            Err(error) => {
                fault(&error);
                Manifest::default()
            }
        };
        let is_told = manifest.version > 0;
        let slots = match is_told {
            true => manifest.slots.clone(),
            false => find_slots(dir)?,
        };
        let slots = slots.into_iter().map(|slot| Slot {
            name: slot.name.into_owned(),
            initial: is_told.then_some(slot.initial),
            per_row: slot.per_row,
        });
        let slots: Vec<Slot> = slots.collect();
        let keys = dir.join(KEY);
        let shape = attribute(&keys).and_then(|[rows, size]| {
            check_width(size, KEY_BYTES, &keys.join(ATTRIBUTE))?;
            Ok(rows)
        });
        let counted = shape.map_err(|error| fault(&error)).ok();
        if let Some(counted) = counted.filter(|_| is_told) {
            let rows = manifest.rows;
            if rows != counted {
                fault(
                    &damaged(
                        "the manifest has another number of rows than there are keys",
                        &manifest.path,
                    )
                    .with("manifest_rows", rows)
                    .with("rows", counted),
                );
            }
        }
        let rows = counted.or(is_told.then_some(manifest.rows));
        let mut dim = is_told.then_some(manifest.dim);
        let (float, stored) = (RowDtype::Float32, manifest.stored);
        let mut parts = vec![part(&keys, (KEY, float), Some(KEY_BYTES), rows, &mut fault)];
        let of_slots = slots.iter().map(|slot| {
            let dtype = stored.of_slot(slot.per_row);
            (slot.name.as_str(), slot.per_row, dtype)
        });
        for (name, per_row, dtype) in
            std::iter::once((EMBEDDING, false, stored.dtype)).chain(of_slots)
        {
            let path = dir.join(name);
            let count = if per_row { Some(1) } else { dim };
            let shape = value_shape(&path, rows, (count, dtype)).map_err(|error| fault(&error));
            if !per_row {
                dim = dim.or(shape.ok());
            }
            let width = shape
                .ok()
                .map(|count| count.saturating_mul(dtype.bytes() as u64));
            parts.push(part(&path, (name, dtype), width, rows, &mut fault));
        }
        let history = find(dir, &manifest, &mut fault);
        Ok(Layout {
            manifest,
            slots,
            rows,
            dim,
            parts,
            history,
            faults,
        })
    }

    /// The layout of a directory without a fault, whose data can be read as its shapes say.
    ///
    /// # Errors
    /// `DataLoss` with the first fault.
    pub(super) fn sound(dir: &Path) -> Result<Layout> {
        let layout = Layout::read(dir)?;
        match layout.faults.first() {
            None => Ok(layout),
            Some(fault) => Err(damaged(&fault.message, &dir.join(&fault.file))),
        }
    }
}

/// The number of values a row that an attribute file names, which must fit the rest.
fn value_shape(
    dir: &Path,
    rows: Option<u64>,
    (dim, dtype): (Option<u64>, RowDtype),
) -> Result<u64> {
    let [found, width, size] = attribute(dir)?;
    let path = dir.join(ATTRIBUTE);
    check_width(size, dtype.bytes() as u64, &path)?;
    if !(1..=MAX_DIM as u64).contains(&width) {
        return Err(damaged("no table has such a dim", &path)
            .with("dim", width)
            .with("limit", MAX_DIM));
    }
    if let Some(dim) = dim.filter(|dim| *dim != width) {
        return Err(damaged("a part has another dim than the table", &path)
            .with("dim", width)
            .with("table_dim", dim));
    }
    match rows.filter(|rows| *rows != found) {
        None => Ok(width),
        Some(rows) => Err(damaged(
            "a part has another number of rows than there are keys",
            &path,
        )
        .with("rows", found)
        .with("keys", rows)),
    }
}

/// The data file in `dir`, whose size must fit.
fn part(
    dir: &Path,
    (name, dtype): (&str, RowDtype),
    width: Option<u64>,
    rows: Option<u64>,
    fault: &mut dyn FnMut(&Error),
) -> PartFile {
    let path = dir.join(DATA);
    let bytes = match open(&path) {
        Ok((_, bytes)) => {
            if let (Some(width), Some(rows)) = (width, rows) {
                let checked = check_records(&path, bytes, rows, width);
                checked.unwrap_or_else(|error| fault(&error));
            }
            bytes
        }
        Err(error) => {
            fault(&error);
            0
        }
    };
    PartFile {
        name: name.to_owned(),
        path,
        dtype,
        width,
        bytes,
    }
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
