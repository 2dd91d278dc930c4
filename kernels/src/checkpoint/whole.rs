//! The manifest of a whole checkpoint, as far as it says which tables belong to it.
//!
//! `commit/sealed.rs` writes it; docs/checkpoint-format.md has its members.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::file::{content, Seal};
use super::format::{damaged, MANIFEST};
use crate::Result;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Display;
use std::path::Path;

/// What the names of directories that hold the tables of a checkpoint start with.
const PREFIXES: [&str; 2] = ["sparse-", "delta-sparse-"];

/// A longer manifest is refused; it has about 150 bytes for each table.
const LIMIT: u64 = 64 << 20;

/// The version without a checksum.
const UNSEALED: u64 = 2;

/// What stands before the digits of the checksum. Only a member of the outermost object is indented
/// by one space.
const OWN: &str = "\n \"crc32\": ";

/// Checks that the table in `dir` is the one with which its checkpoint was saved. `found` is what
/// its own manifest is, if it has one: its size and its `manifest_crc32c`.
///
/// Nothing is checked where `dir` lies in no directory of a checkpoint, or where the checkpoint was
/// saved before its manifest had seals.
///
/// # Errors
/// `DataLoss` with the table and both checksums if it is another, or if the manifest of the
/// checkpoint is damaged; `Io`.
pub(super) fn check_membership(dir: &Path, found: Option<Seal>) -> Result<()> {
    let (Some(name), Some(whole)) = (dir.file_name().and_then(|name| name.to_str()), dir.parent())
    else {
        return Ok(());
    };
    let holder = whole.file_name().and_then(|name| name.to_str());
    if !holder.is_some_and(|holder| PREFIXES.iter().any(|prefix| holder.starts_with(prefix))) {
        return Ok(());
    }
    let Some(expected) = seal(&whole.join(MANIFEST), name)? else {
        return Ok(());
    };
    if found == Some(expected) {
        return Ok(());
    }
    let message = "the table was saved with another checkpoint than the one it lies in";
    let mut error = damaged(message, &dir.join(MANIFEST))
        .with("table", name)
        .with("checkpoint", whole.display());
    if let Some(found) = found {
        error = error
            .with("bytes", found.bytes)
            .with("crc32c", format_args!("{:08x}", found.crc32c));
    }
    Err(error
        .with("expected_bytes", expected.bytes)
        .with("expected_crc32c", format_args!("{:08x}", expected.crc32c)))
}

/// What the manifest at `path` says of the manifest of the table `name`; `None` without such a
/// file, without seals, and if it does not list the table.
fn seal(path: &Path, name: &str) -> Result<Option<Seal>> {
    let Some(bytes) = content(path, LIMIT)? else {
        return Ok(None);
    };
    let refused = |cause: &dyn Display| {
        damaged("the checkpoint's manifest cannot be understood", path).with("cause", cause)
    };
    let text = String::from_utf8(bytes).map_err(|error| refused(&error))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| refused(&error))?;
    if json.get("format_version").and_then(Value::as_u64) == Some(UNSEALED)
        && json.get("crc32").is_none()
    {
        return Ok(None);
    }
    let recorded = json.get("crc32").and_then(Value::as_u64);
    let crc = own_checksum(&text).ok_or_else(|| refused(&"it has no checksum"))?;
    if recorded != Some(crc.into()) {
        let error = damaged(
            "the checksum of the checkpoint's manifest is not its own",
            path,
        );
        return Err(error
            .with("crc32", crc)
            .with("manifest", recorded.unwrap_or(0)));
    }
    let Json { tables } = serde_json::from_value(json).map_err(|error| refused(&error))?;
    let listed = tables.into_iter().find(|table| table.name == name);
    Ok(listed.and_then(|table| table.manifest))
}

#[derive(Deserialize)]
struct Json {
    tables: Vec<JsonTable>,
}

#[derive(Deserialize)]
struct JsonTable {
    name: String,
    #[serde(default)]
    manifest: Option<Seal>,
}

/// The checksum of a manifest's text without the line that has its own; `None` if it has no such
/// line.
fn own_checksum(text: &str) -> Option<u32> {
    let start = text.find(OWN)?;
    let (before, rest) = text.split_at_checked(start)?;
    // The line ends with a comma: other members come after it.
    let line = rest.get(1..)?.find('\n')?.checked_add(1)?;
    let rest = rest.get(line..)?;
    Some(!crc32(crc32(!0, before.as_bytes()), rest.as_bytes()))
}

/// CRC-32 of IEEE 802.3, as zlib has it, bit by bit: a manifest is short. Starts with `!0` and is
/// complemented at the end.
pub(super) fn crc32(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::temp::Temp;
    use crate::Kind;
    use proptest::prelude::*;
    use std::fs;

    /// As it is on disk; `SUM` stands for the digits of the checksum.
    const TEXT: &str = r#"{
 "crc32": SUM,
 "dense": true,
 "format_version": 3,
 "tables": [
  {
   "manifest": {
    "bytes": 7,
    "crc32c": "0000abcd"
   },
   "name": "users",
   "rows": 2
  }
 ]
}
"#;

    fn signed(text: &str) -> String {
        let sum = own_checksum(text).unwrap();
        text.replace("SUM", &sum.to_string())
    }

    fn found(bytes: u64, crc32c: u32) -> Option<Seal> {
        Some(Seal { bytes, crc32c })
    }

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(!crc32(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_table_belongs_to_the_checkpoint_that_has_its_seal() {
        let temp = Temp::new();
        for (holder, is_checked) in [
            ("sparse-m-1", true),
            ("delta-sparse-m-1", true),
            ("m-1", false),
        ] {
            let dir = temp.0.join(holder);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(MANIFEST), signed(TEXT)).unwrap();
            let users = dir.join("users");
            check_membership(&users, found(7, 0xabcd)).unwrap();
            check_membership(&dir.join("others"), None).unwrap();
            for other in [found(8, 0xabcd), found(7, 0xabce), None] {
                let checked = check_membership(&users, other);
                assert_eq!(checked.is_err(), is_checked, "{holder}");
                if let Err(error) = checked {
                    assert_eq!(error.kind(), Kind::DataLoss);
                    let text = error.to_string();
                    assert!(text.contains("users") && text.contains(holder), "{text}");
                }
            }
        }
    }

    #[test]
    fn manifests_of_before_bind_nothing() {
        let temp = Temp::new();
        let dir = temp.0.join("sparse-m-1");
        fs::create_dir_all(&dir).unwrap();
        check_membership(&dir.join("users"), None).unwrap();
        let listed = "\"tables\": [{\"name\": \"users\"}]";
        for text in [
            format!("{{\"format_version\": 2, {listed}}}"),
            signed(&format!(
                "{{\n \"crc32\": SUM,\n \"format_version\": 3,\n {listed}\n}}\n"
            )),
        ] {
            fs::write(dir.join(MANIFEST), text).unwrap();
            check_membership(&dir.join("users"), None).unwrap();
        }
    }

    #[test]
    fn a_changed_bit_of_the_manifest_is_found() {
        let temp = Temp::new();
        let dir = temp.0.join("sparse-m-1");
        fs::create_dir_all(&dir).unwrap();
        let whole = signed(TEXT).into_bytes();
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.join(MANIFEST), changed).unwrap();
            assert!(
                check_membership(&dir.join("users"), found(7, 0xabcd)).is_err(),
                "bit {bit}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*", value in "\\PC{0,20}") {
            let temp = Temp::new();
            let dir = temp.0.join("sparse-m-1");
            fs::create_dir_all(&dir).unwrap();
            for text in [text, signed(&TEXT.replace("\"0000abcd\"", &value))] {
                fs::write(dir.join(MANIFEST), text).unwrap();
                let _ = check_membership(&dir.join("users"), None);
            }
        }
    }
}
