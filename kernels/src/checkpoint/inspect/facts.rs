//! What a table's manifest says, whatever its version, in the form in which it is told.

use super::super::manifest::{Manifest, Recorded};
use super::super::whole::Seal;
use crate::{Result, RowDtype, SlotSpec};
use serde::Serialize;
use std::path::{Path, PathBuf};

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

/// A manifest of any version; without one, nothing but version 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) version: u32,
    /// The manifest's own path.
    pub(super) path: PathBuf,
    pub(super) rows: Option<u64>,
    pub(super) dim: Option<u64>,
    /// The type of the embeddings' values.
    pub(super) row_dtype: RowDtype,
    pub(super) slots: Vec<Slot>,
    /// Whether `slots` are all; else the directory tells.
    pub(super) lists_slots: bool,
    /// Files with checksums, from version 2 on.
    pub(super) files: Option<Vec<Recorded>>,
    /// The table's configuration, from version 2 on.
    pub(super) config: Option<serde_json::Value>,
    /// What it says of the history: the configured access threshold, if there was one.
    pub(super) configured: Option<Option<u32>>,
    /// The manifest's own size and checksum, from version 2 on.
    pub(super) seal: Option<Seal>,
}

/// Reads the manifest in `dir`.
///
/// # Errors
/// `DataLoss` or `Io` for a manifest that cannot be read.
pub(super) fn facts(dir: &Path) -> Result<Facts> {
    let Some(manifest) = Manifest::read(dir)? else {
        return Ok(Facts::default());
    };
    let slot = |slot: &SlotSpec| Slot {
        name: slot.name.to_string(),
        initial: Some(slot.initial),
        per_row: slot.per_row,
    };
    Ok(Facts {
        version: manifest.version,
        path: manifest.path,
        rows: Some(manifest.rows),
        dim: Some(manifest.dim),
        row_dtype: manifest.row_dtype,
        slots: manifest.slots.iter().map(slot).collect(),
        lists_slots: true,
        files: manifest.files,
        config: manifest.config,
        configured: manifest.configured,
        seal: manifest.seal,
    })
}
