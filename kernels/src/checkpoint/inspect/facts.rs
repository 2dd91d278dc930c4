//! What a table's manifest says, whatever its version.

use super::super::format::{damaged, is_slot_name, named, MANIFEST, MAX_SLOTS};
use super::super::reader::{open, read_manifest};
use super::layout::Slot;
use crate::{Kind, Result, SlotSpec};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The manifest from version 2 on.
const JSON: &str = "manifest.json";

/// A longer manifest is none.
const JSON_LIMIT: u64 = 1 << 20;

/// A file as the manifest lists it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Recorded {
    /// Its path below the table's directory.
    pub(super) path: String,
    pub(super) bytes: u64,
    #[serde(deserialize_with = "checksum")]
    pub(super) crc32c: u32,
}

/// A manifest of any version; without one, nothing but version 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) version: u32,
    /// The manifest's own path.
    pub(super) path: PathBuf,
    pub(super) rows: Option<u64>,
    pub(super) dim: Option<u64>,
    pub(super) slots: Vec<Slot>,
    /// Whether `slots` are all; else the directory tells.
    pub(super) lists_slots: bool,
    /// Files with checksums, from version 2 on.
    pub(super) files: Option<Vec<Recorded>>,
    /// The table's configuration, from version 2 on.
    pub(super) config: Option<serde_json::Value>,
}

/// Reads the manifest in `dir`.
///
/// # Errors
/// `DataLoss` or `Io` for a manifest that cannot be read.
pub(super) fn facts(dir: &Path) -> Result<Facts> {
    if let Some(facts) = json_facts(&dir.join(JSON))? {
        return Ok(facts);
    }
    let Some(manifest) = read_manifest(dir)? else {
        return Ok(Facts::default());
    };
    let slot = |slot: &SlotSpec| Slot {
        name: slot.name.to_string(),
        initial: Some(slot.initial),
    };
    Ok(Facts {
        version: 1,
        path: dir.join(MANIFEST),
        rows: Some(manifest.rows),
        dim: Some(manifest.dim as u64),
        slots: manifest.slots.iter().map(slot).collect(),
        lists_slots: true,
        files: None,
        config: None,
    })
}

/// The manifest of version 2, as far as it is needed here; other fields are passed over.
#[derive(Deserialize)]
struct Json {
    version: u32,
    table: serde_json::Value,
    rows: u64,
    slots: Vec<JsonSlot>,
    files: Vec<Recorded>,
}

#[derive(Deserialize)]
struct JsonSlot {
    name: String,
    initial: f32,
}

fn json_facts(path: &Path) -> Result<Option<Facts>> {
    let file = match open(path) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    named(
        file.take(JSON_LIMIT).read_to_end(&mut bytes),
        "read a file",
        path,
    )?;
    let refused = |cause: &dyn std::fmt::Display| {
        damaged("the manifest cannot be understood", path).with("cause", cause)
    };
    let json: Json = serde_json::from_slice(&bytes).map_err(|error| refused(&error))?;
    if json.version != 2 {
        return Err(damaged("the manifest is of another version", path)
            .with("version", json.version)
            .with("known", 2));
    }
    for (at, slot) in json.slots.iter().enumerate() {
        let is_twice = json
            .slots
            .iter()
            .skip(at + 1)
            .any(|other| other.name == slot.name);
        if is_twice || !is_slot_name(&slot.name) {
            return Err(refused(&"a slot's name is taken or no name").with("slot", &slot.name));
        }
    }
    if json.slots.len() > MAX_SLOTS {
        return Err(refused(&"there are too many slots"));
    }
    let dim = json.table.get("dim").and_then(serde_json::Value::as_u64);
    let dim = dim.ok_or_else(|| refused(&"the table has no dim"))?;
    let slot = |slot: JsonSlot| Slot {
        name: slot.name,
        initial: Some(slot.initial),
    };
    Ok(Some(Facts {
        version: 2,
        path: path.to_owned(),
        rows: Some(json.rows),
        dim: Some(dim),
        slots: json.slots.into_iter().map(slot).collect(),
        lists_slots: true,
        files: Some(json.files),
        config: Some(json.table),
    }))
}

/// A checksum, as a number or as eight hexadecimal digits.
fn checksum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u32),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Number(number) => Ok(number),
        Written::Text(text) => u32::from_str_radix(&text, 16).map_err(D::Error::custom),
    }
}
