//! What belongs to a table's directory, as its manifest says: in JSON with checksums, of version 1
//! in lines of text.

use super::file::{content, Seal};
use super::format::{
    damaged, is_slot_name, named, read_digits, MANIFEST, MAX_SLOTS, STEPS, TEXT_MANIFEST,
};
use super::manifest_v1::ManifestV1;
use crate::{Error, Kind, Result, RowDtype, RowStorage, SlotSpec, TableConfig};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

/// The version in JSON.
const PLAIN: u32 = 2;

/// The version of a delta with steps: readers of earlier versions would leave them out.
const WITH_STEPS: u32 = 3;

/// The version of a table with embeddings of 2 bytes a value, or with slots of one float a row:
/// readers of earlier versions would take them for damaged.
const WITH_FORMS: u32 = 4;

/// The version of a table with slots of 2 bytes a value, likewise.
const WITH_HALF_SLOTS: u32 = 5;

/// A longer manifest is none.
const LIMIT: u64 = 1 << 20;

/// What stands before the eight digits of the manifest's own checksum.
const OWN: &[u8] = b"\"manifest_crc32c\": \"";

/// The digits in whose place the checksum comes.
const NO_DIGITS: &[u8; 8] = b"00000000";

/// A file as the manifest lists it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(super) struct Recorded {
    /// Its path below the table's directory.
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) seal: Seal,
}

impl Recorded {
    /// Its path in the table's directory `dir`.
    ///
    /// # Errors
    /// `DataLoss` of the manifest if that is a place outside of the directory.
    pub(super) fn below(&self, dir: &Path) -> Result<PathBuf> {
        let inside = |part: Component| matches!(part, Component::Normal(_));
        if Path::new(&self.path).components().all(inside) {
            return Ok(dir.join(&self.path));
        }
        let message = "the manifest lists a file outside of the table";
        Err(damaged(message, &dir.join(MANIFEST)).with("file", &self.path))
    }
}

/// A manifest of any version; by default that of files of the original, which have none: version 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Manifest {
    pub(super) version: u32,
    /// The manifest's own path.
    pub(super) path: PathBuf,
    /// Rows in every part.
    pub(super) rows: u64,
    /// Floats of an embedding and of each slot.
    pub(super) dim: u64,
    /// Slots in the order of a row, with the values at which new rows start.
    pub(super) slots: Vec<SlotSpec>,
    /// The types of the values of embeddings and slots, and how they are rounded.
    pub(super) stored: RowStorage,
    /// How many updates there were, if embeddings have 2 bytes a value.
    pub(super) updates: u64,
    /// Whether these are only the rows that changed since an earlier save.
    pub(super) is_delta: bool,
    /// All other files, from version 2 on.
    pub(super) files: Option<Vec<Recorded>>,
    /// The table's configuration, from version 2 on.
    pub(super) config: Option<Value>,
    /// What it says of the history: the configured access threshold, if there was one.
    pub(super) configured: Option<Option<u32>>,
    /// Its own size and `manifest_crc32c`, from version 2 on.
    pub(super) seal: Option<Seal>,
}

impl Manifest {
    /// The manifest in `dir`; the default for files of the original, which have none.
    ///
    /// # Errors
    /// `NotFound` or `DataLoss` if `dir` is missing or no directory; `DataLoss` for a manifest that
    /// is damaged or of an unknown version; `Io`.
    pub(super) fn read(dir: &Path) -> Result<Manifest> {
        if !named(std::fs::metadata(dir), "find the checkpoint", dir)?.is_dir() {
            return Err(damaged("the checkpoint is no directory", dir));
        }
        let path = dir.join(MANIFEST);
        if let Some(bytes) = content(&path, LIMIT)? {
            return Manifest::of_json(&bytes, &path);
        }
        let path = dir.join(TEXT_MANIFEST);
        let Some(bytes) = content(&path, LIMIT)? else {
            return Ok(Manifest::default());
        };
        let text =
            String::from_utf8(bytes).map_err(|_| damaged("the manifest is no text", &path))?;
        let text = ManifestV1::parse(&text).map_err(|message| damaged(message, &path))?;
        Ok(Manifest {
            version: 1,
            path,
            rows: text.rows,
            dim: text.dim,
            slots: text.slots,
            ..Manifest::default()
        })
    }

    fn of_json(bytes: &[u8], path: &Path) -> Result<Manifest> {
        let refused = |cause: &dyn Display| {
            damaged("the manifest cannot be understood", path).with("cause", cause)
        };
        let json: Json = serde_json::from_slice(bytes).map_err(|error| refused(&error))?;
        if !(PLAIN..=WITH_HALF_SLOTS).contains(&json.version) {
            return Err(damaged("the manifest is of another version", path)
                .with("version", json.version)
                .with("known", WITH_HALF_SLOTS));
        }
        let crc = own_checksum(bytes).ok_or_else(|| refused(&"its checksum is not at the end"))?;
        if crc != json.manifest_crc32c {
            return Err(damaged("the manifest's checksum is not its own", path)
                .with("crc32c", format_args!("{crc:08x}"))
                .with("manifest", format_args!("{:08x}", json.manifest_crc32c)));
        }
        if json.slots.len() > MAX_SLOTS {
            return Err(refused(&"there are too many slots"));
        }
        let mut slots: Vec<SlotSpec> = Vec::new();
        for slot in json.slots {
            let is_twice = slots.iter().any(|earlier| earlier.name == slot.name);
            if is_twice || !is_slot_name(&slot.name) {
                return Err(refused(&"a slot's name is taken or no name").with("slot", &slot.name));
            }
            slots.push(SlotSpec {
                name: slot.name.into(),
                initial: slot.initial,
                per_row: slot.per_row,
            });
        }
        let dim = json.table.get("dim").and_then(Value::as_u64);
        let dim = dim.ok_or_else(|| refused(&"the table has no dim"))?;
        let stored = match json.table.get("row_storage") {
            None => RowStorage::default(),
            Some(stored) => RowStorage::deserialize(stored).map_err(|error| refused(&error))?,
        };
        Ok(Manifest {
            version: json.version,
            path: path.to_owned(),
            rows: json.rows,
            dim,
            slots,
            stored,
            updates: json.updates,
            is_delta: json.delta,
            files: Some(json.files),
            config: Some(json.table),
            configured: json.history.map(|history| history.configured_access),
            seal: Some(Seal {
                bytes: bytes.len() as u64,
                crc32c: crc,
            }),
        })
    }

    /// The row budget of the table that was saved, of all its parts, from version 2 on. Parts that
    /// earlier versions saved say their own instead, which is no larger.
    pub(super) fn capacity(&self) -> Option<u64> {
        self.config.as_ref()?.get("capacity")?.as_u64()
    }

    /// The bytes of the manifest of a table with these files. `configured` is of its history, if it
    /// has one, and `updates` of embeddings of 2 bytes a value.
    ///
    /// # Errors
    /// `Internal` if it would be longer than a reader reads.
    pub(super) fn bytes(
        config: &TableConfig,
        rows: u64,
        slots: &[SlotSpec],
        is_delta: bool,
        (configured, updates): (Option<Option<u32>>, Option<u64>),
        files: &[Recorded],
    ) -> Result<Vec<u8>> {
        let has_forms = updates.is_some() || slots.iter().any(|slot| slot.per_row);
        let slot = |slot: &SlotSpec| match slot.per_row {
            false => json!({"name": slot.name, "initial": slot.initial}),
            true => json!({"name": slot.name, "initial": slot.initial, "per_row": true}),
        };
        let slots: Vec<Value> = slots.iter().map(slot).collect();
        let has_steps = files.iter().any(|file| file.path == STEPS);
        let version = match (has_forms, has_steps) {
            _ if config.row_storage.slot_dtype != RowDtype::Float32 => WITH_HALF_SLOTS,
            (true, _) => WITH_FORMS,
            (_, true) => WITH_STEPS,
            _ => PLAIN,
        };
        let mut body = json!({
            "version": version,
            "table": config,
            "rows": rows,
            "slots": slots,
            "delta": is_delta,
            "files": files,
        });
        if let (Some(access), Some(body)) = (configured, body.as_object_mut()) {
            body.insert("history".into(), json!({"configured_access": access}));
        }
        if let (Some(updates), Some(body)) = (updates, body.as_object_mut()) {
            body.insert("updates".into(), updates.into());
        }
        let failed = |cause: &dyn Display| {
            Error::new(Kind::Internal, "the manifest cannot be written").with("cause", cause)
        };
        let mut bytes = serde_json::to_vec_pretty(&body).map_err(|error| failed(&error))?;
        // Its own checksum is the last member, of a form that a reader finds again.
        bytes.truncate(bytes.len().saturating_sub(2));
        bytes.extend_from_slice(b",\n  ");
        bytes.extend_from_slice(OWN);
        bytes.extend_from_slice(NO_DIGITS);
        bytes.extend_from_slice(b"\"\n}\n");
        if bytes.len() as u64 > LIMIT {
            return Err(failed(&"it is too long"));
        }
        sign(&mut bytes);
        Ok(bytes)
    }
}

/// Puts the checksum of a manifest into its place.
pub(super) fn sign(bytes: &mut [u8]) {
    if let (Some(crc), Some(at)) = (own_checksum(bytes), digits(bytes)) {
        if let Some(place) = bytes.get_mut(at..at + NO_DIGITS.len()) {
            place.copy_from_slice(format!("{crc:08x}").as_bytes());
        }
    }
}

/// The checksum of a manifest's bytes with zeros in the place of its own; `None` if that is not the
/// last member.
fn own_checksum(bytes: &[u8]) -> Option<u32> {
    let at = digits(bytes)?;
    let rest = bytes.get(at + NO_DIGITS.len()..)?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(bytes.get(..at)?), NO_DIGITS);
    Some(crc32c::crc32c_append(crc, rest))
}

/// Where the digits of a manifest's own checksum start.
fn digits(bytes: &[u8]) -> Option<usize> {
    let before = bytes.len().checked_sub(OWN.len() + NO_DIGITS.len() + 4)?;
    (bytes.get(before..before + OWN.len())? == OWN).then_some(before + OWN.len())
}

/// The JSON; other members are ignored.
#[derive(Deserialize)]
struct Json {
    version: u32,
    table: Value,
    rows: u64,
    slots: Vec<JsonSlot>,
    #[serde(default)]
    delta: bool,
    files: Vec<Recorded>,
    #[serde(default)]
    history: Option<JsonHistory>,
    #[serde(default)]
    updates: u64,
    #[serde(deserialize_with = "read_digits")]
    manifest_crc32c: u32,
}

#[derive(Deserialize)]
struct JsonHistory {
    configured_access: Option<u32>,
}

#[derive(Deserialize)]
struct JsonSlot {
    name: String,
    initial: f32,
    #[serde(default)]
    per_row: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Initializer;
    use proptest::prelude::*;

    fn config() -> TableConfig {
        TableConfig {
            seed: u64::MAX,
            initializer: Initializer::RandomNormal {
                mean: 0.0,
                stddev: 0.1,
            },
            init_param: 0.5,
            frozen_keys: vec![i64::MIN, 3],
            ..TableConfig::new("users", 2, 10)
        }
    }

    fn bytes() -> Vec<u8> {
        let slots = [SlotSpec {
            name: "Ftrl_accum".into(),
            initial: 0.1,
            per_row: false,
        }];
        let files = [Recorded {
            path: "key/slice.data".into(),
            seal: Seal {
                bytes: 24,
                crc32c: 0xab,
            },
        }];
        Manifest::bytes(&config(), 3, &slots, false, (Some(Some(7)), None), &files).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Manifest> {
        Manifest::of_json(bytes, Path::new("manifest.json"))
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let manifest = read(&bytes()).unwrap();
        assert_eq!((manifest.version, manifest.rows, manifest.dim), (2, 3, 2));
        assert_eq!(manifest.slots[0].initial.to_bits(), 0.1_f32.to_bits());
        assert_eq!(manifest.configured, Some(Some(7)));
        let file = &manifest.files.unwrap()[0];
        assert_eq!(
            (file.path.as_str(), file.seal.bytes, file.seal.crc32c),
            ("key/slice.data", 24, 0xab)
        );
        let config = manifest.config.unwrap();
        assert_eq!(config["seed"], u64::MAX);
        assert_eq!(config["initializer"]["kind"], "random_normal");
        assert_eq!(config["padding_keys"][0], i64::MIN);
        assert!(String::from_utf8(bytes())
            .unwrap()
            .contains("\"crc32c\": \"000000ab\""));
    }

    #[test]
    fn any_bit_that_was_flipped_and_any_cut_is_found() {
        let whole = bytes();
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // The digits of a checksum may change their case.
            let same = changed.eq_ignore_ascii_case(&whole);
            assert!(read(&changed).is_err() || same, "bit {bit}");
        }
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn another_version_and_bad_slots_are_refused_by_name() {
        for (from, to, message) in [
            ("\"version\": 2", "\"version\": 6", "another version"),
            ("Ftrl_accum", "../x", "no name"),
            ("\"dim\"", "\"dims\"", "no dim"),
            ("000000ab", "ab", "eight hexadecimal digits"),
        ] {
            let text = String::from_utf8(bytes()).unwrap().replace(from, to);
            let mut changed = text.into_bytes();
            sign(&mut changed);
            let error = read(&changed).unwrap_err();
            assert_eq!(error.kind(), Kind::DataLoss);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(text in "\\PC*", cut in 0usize..400) {
            let _ = read(text.as_bytes());
            let mut bytes = bytes();
            bytes.splice(cut.min(bytes.len())..cut.min(bytes.len()), text.into_bytes());
            sign(&mut bytes);
            let _ = read(&bytes);
        }
    }
}
