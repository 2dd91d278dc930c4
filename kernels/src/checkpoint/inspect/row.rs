//! Finds the row of one key.

use super::super::block::Column;
use super::describe::layout;
use super::history::{seen, KeyHistory};
use super::progress::{keys, values_of, Progress};
use crate::Result;
use serde::{Serialize, Serializer};
use std::path::Path;

/// A float that JSON can tell: a number with as few digits as its bits need, or `"NaN"`,
/// `"Infinity"`, `"-Infinity"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number(pub f32);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_finite() => serializer.serialize_f32(value),
            value if value.is_nan() => serializer.serialize_str("NaN"),
            value if value > 0.0 => serializer.serialize_str("Infinity"),
            _ => serializer.serialize_str("-Infinity"),
        }
    }
}

/// The values of a row in one part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartValues {
    /// `embedding` or a slot's name.
    pub name: String,
    /// As many as the table's dim.
    pub values: Vec<Number>,
}

/// The row of a key and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its place in the files, from 0; none without a row.
    pub position: Option<u64>,
    /// The embedding, then the slots; empty without a row.
    pub parts: Vec<PartValues>,
    /// What admission and eviction know of it, if they do.
    pub seen: Option<KeyHistory>,
}

/// The row of `key` in the table in `dir` and what its history knows of it, or none if it has
/// neither. `tell` as for [`super::verify`]. Memory: a few MiB.
///
/// # Errors
/// `NotFound`, `DataLoss` or `Io` with the file's path.
pub fn row(dir: &Path, key: i64, tell: &mut dyn FnMut(u64, u64) -> bool) -> Result<Option<Row>> {
    let mut layout = layout(dir)?.sound()?;
    let mut columns = layout.columns().into_iter();
    let Some(mut key_column) = columns.next() else {
        return Ok(None);
    };
    let known = layout
        .history
        .as_ref()
        .map_or(0, |found| found.records.bytes());
    let mut progress = Progress::new(key_column.file.size.saturating_add(known), tell);
    let position = position(&mut key_column, key, &mut progress)?;
    let parts = match position {
        Some(position) => {
            let parts = columns.map(|column| values(&column, position));
            parts.collect::<Result<_>>()?
        }
        None => Vec::new(),
    };
    let seen = match layout.history {
        Some(found) => seen(found, key, &mut progress)?,
        None => None,
    };
    let row = Row {
        position,
        parts,
        seen,
    };
    Ok(Some(row).filter(|row| row.position.is_some() || row.seen.is_some()))
}

/// The place of a key among all keys, if it is there.
fn position(column: &mut Column, key: i64, progress: &mut Progress) -> Result<Option<u64>> {
    let (mut position, mut before) = (None, 0);
    column.file.each_block(&mut |block| {
        let at = keys(block).position(|found| found == key);
        position = at.map(|at| before + at as u64);
        before += block.len() as u64 / 8;
        if position.is_none() {
            progress.advance(block.len())?;
        }
        Ok(position.is_none())
    })?;
    Ok(position)
}

fn values(column: &Column, position: u64) -> Result<PartValues> {
    let mut bytes = vec![0; usize::try_from(column.width).unwrap_or(0)];
    let start = position.saturating_mul(column.width);
    column.file.read_at(&mut bytes, start)?;
    Ok(PartValues {
        name: column.name.clone(),
        values: values_of(column.dtype, &bytes).map(Number).collect(),
    })
}
