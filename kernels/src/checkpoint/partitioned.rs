//! Directories of a saved table: one of its own, or one for each of its parts.

#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "places are counted, and below the number of keys"
    )
)]

use super::format::{damaged, named};
use crate::partition::Partition;
use crate::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// One directory with rows of a table.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) dir: PathBuf,
    /// The part that it holds; `None` for the whole table.
    pub(super) partition: Option<Partition>,
}

/// The directories that hold the table `dir`: itself if it is there, else those of its parts, all
/// of them or, with `wanted`, those that may have a key of that part.
///
/// # Errors
/// `DataLoss` if a part is missing, or there are parts of two saves; `Io`.
pub(super) fn sources(dir: &Path, wanted: Option<Partition>) -> Result<Vec<Source>> {
    let whole = || {
        vec![Source {
            dir: dir.to_owned(),
            partition: None,
        }]
    };
    let (Some(table), Some(parent)) =
        (dir.file_name().and_then(|name| name.to_str()), dir.parent())
    else {
        return Ok(whole());
    };
    if dir.exists() || !parent.is_dir() {
        return Ok(whole());
    }
    let mut found = Vec::new();
    for entry in named(fs::read_dir(parent), "read a directory", parent)? {
        let entry = named(entry, "read a directory", parent)?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if let Some((_, partition)) = Partition::parse(&name).filter(|(of, _)| *of == table) {
            found.push(Source {
                dir: entry.path(),
                partition: Some(partition),
            });
        }
    }
    found.sort_by_key(|one| one.partition.map(|one| one.part()));
    let Some(parts) = found.first().and_then(|one| one.partition) else {
        return Ok(whole());
    };
    let expected = (0..parts.parts()).map(|part| Partition::new(part, parts.parts()).ok());
    if !expected.eq(found.iter().map(|one| one.partition)) {
        return Err(damaged("the parts of a table are not complete", dir)
            .with("table", table)
            .with("found", found.len())
            .with("parts", parts.parts()));
    }
    if let Some(wanted) = wanted {
        found.retain(|one| one.partition.is_none_or(|one| one.overlaps(&wanted)));
    }
    Ok(found)
}

/// Keeps the keys that a part holds, and their rows in each of `columns`, of as many floats a row
/// as `widths` says.
pub(super) fn retain(
    part: Partition,
    keys: &mut Vec<i64>,
    columns: &mut [Vec<f32>],
    widths: &[usize],
) {
    let mut kept = 0;
    for at in 0..keys.len() {
        if !part.holds(keys[at]) {
            continue;
        }
        if kept < at {
            keys[kept] = keys[at];
            for (column, &width) in columns.iter_mut().zip(widths) {
                column.copy_within(at * width..(at + 1) * width, kept * width);
            }
        }
        kept += 1;
    }
    keys.truncate(kept);
    for (column, &width) in columns.iter_mut().zip(widths) {
        column.truncate(kept * width);
    }
}
