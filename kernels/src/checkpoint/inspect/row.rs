//! Finds the row of one key.

use super::super::format::cut_off;
use super::super::parts::open;
use super::history::KeyHistory;
use super::layout::{Layout, PartFile};
use super::stream::{keys, values_of, Progress, Stream};
use crate::Result;
use serde::{Serialize, Serializer};
use std::os::unix::fs::FileExt;
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
    let layout = Layout::sound(dir)?;
    let Some((key_part, float_parts)) = layout.parts.split_first() else {
        return Ok(None);
    };
    let (file, bytes) = open(&key_part.path)?;
    let known = layout.history.as_ref().map_or(0, |found| found.bytes);
    let mut progress = Progress::new(bytes.saturating_add(known), tell);
    let mut stream = Stream::new(&key_part.path, file);
    let position = position(&mut stream, key, &mut progress)?;
    let parts = match position {
        Some(position) => {
            let parts = float_parts.iter().map(|part| values(part, position));
            parts.collect::<Result<_>>()?
        }
        None => Vec::new(),
    };
    let seen = match &layout.history {
        Some(found) => found.seen(key, &mut progress)?,
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
fn position(stream: &mut Stream, key: i64, progress: &mut Progress) -> Result<Option<u64>> {
    let mut before: u64 = 0;
    loop {
        let block = stream.next()?;
        if block.is_empty() {
            return Ok(None);
        }
        if let Some(at) = keys(block).position(|found| found == key) {
            return Ok(Some(before.saturating_add(at as u64)));
        }
        let bytes = block.len();
        before = before.saturating_add(bytes as u64 / 8);
        progress.advance(bytes)?;
    }
}

fn values(part: &PartFile, position: u64) -> Result<PartValues> {
    let width = part.width.unwrap_or(0);
    let (file, _) = open(&part.path)?;
    let mut bytes = vec![0; usize::try_from(width).unwrap_or(0)];
    file.read_exact_at(&mut bytes, position.saturating_mul(width))
        .map_err(|cause| cut_off(cause, &part.path))?;
    Ok(PartValues {
        name: part.name.clone(),
        values: values_of(part.dtype, &bytes).map(Number).collect(),
    })
}
