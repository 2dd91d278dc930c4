//! Names, attributes and errors that the writer and the reader of checkpoints share.

use crate::{Error, Kind, Result, RowDtype, SlotSpec};
use rustix::fs::statvfs;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::Serializer;
use std::io;
use std::path::Path;

/// Directory of the keys.
pub(super) const KEY: &str = "key";
/// Directory of the embeddings.
pub(super) const EMBEDDING: &str = "embedding";
/// Directory of the keys that a delta takes out.
pub(super) const REMOVED: &str = "removed";
/// File of the values in each directory.
pub(super) const DATA: &str = "slice.data";
/// File of the shape in each directory.
pub(super) const ATTRIBUTE: &str = "slice.attribute";
/// File in the table's directory that says what belongs to it; files of the original have none.
pub(super) const MANIFEST: &str = "manifest.json";
/// The same in version 1.
pub(super) const TEXT_MANIFEST: &str = "manifest";
/// File of the thresholds of admission and eviction.
pub(super) const THRESHOLDS: &str = "table_2_thresh";
/// File of how often and when keys were seen. Who loads a table says by this name whether it wants
/// the history.
pub(super) const RECORDS: &str = "hist_rec";
/// File of the counters of keys without rows, of a table that counts them in a sketch.
pub(super) const SKETCH: &str = "hist_sketch";
/// File of the steps that rows which a delta has not have missed.
pub(super) const STEPS: &str = "missed_steps";
/// Names that are no slots; the original writes the last one for statistics.
pub(super) const NOT_SLOTS: [&str; 8] = [
    KEY,
    EMBEDDING,
    REMOVED,
    THRESHOLDS,
    RECORDS,
    SKETCH,
    STEPS,
    "key_count_map",
];

/// Bytes of a key.
pub(super) const KEY_BYTES: u64 = 8;
/// Bytes of a float.
pub(super) const FLOAT_BYTES: u64 = 4;

/// Slots of a table at most; no optimizer has more than a few, and a reader must stop somewhere.
pub(super) const MAX_SLOTS: usize = 64;

/// Bytes that are gathered for one file before they go to the system, and that are read at once.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// The attribute file of keys: `n, 8`.
pub(super) fn key_attribute(rows: u64) -> Vec<u8> {
    words(&[rows, KEY_BYTES])
}

/// The attribute file of embeddings and slots: `n, values of a row, bytes of a value`.
pub(super) fn value_attribute(rows: u64, count: usize, dtype: RowDtype) -> Vec<u8> {
    words(&[rows, count as u64, dtype.bytes() as u64])
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Whether `name` may be the directory of a slot: letters, digits, `_`, `-`, `.`, at most 255 of
/// them, no leading dot, and not a name with another meaning.
pub(super) fn is_slot_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=255).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && name != MANIFEST
        && name != TEXT_MANIFEST
        && !NOT_SLOTS.contains(&name)
}

/// Checks that a slot can be saved: its name is that of a directory, as `LazyAdam_momentum` is, and
/// its initial value is finite.
///
/// # Errors
/// `InvalidArgument` with the slot and what is wrong with it.
pub fn check_slot(slot: &SlotSpec) -> Result<()> {
    if !is_slot_name(&slot.name) {
        return Err(Error::invalid(
            "the name of a slot must have 1 to 255 letters, digits, '_', '-' and '.', no leading \
             '.', and be none of the names of a table's own files",
        )
        .with("slot", format_args!("{:?}", slot.name)));
    }
    if !slot.initial.is_finite() {
        return Err(Error::invalid("the initial value of a slot must be finite")
            .with("slot", &slot.name)
            .with("initial", slot.initial));
    }
    Ok(())
}

/// Whether the system refused for want of space on a disk.
pub(super) fn is_full(cause: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(cause.kind(), StorageFull | QuotaExceeded)
}

/// `ResourceExhausted` for want of space at `path`, for so many bytes if that is known.
pub(super) fn full_disk(action: &str, path: &Path, bytes: Option<u64>, cause: &io::Error) -> Error {
    let error = Error::new(
        Kind::ResourceExhausted,
        format!("cannot {action}: the disk is full"),
    );
    let error = error.with("path", path.display());
    let error = match bytes {
        Some(bytes) => error.with("bytes", bytes),
        None => error,
    };
    // The file itself may not be there.
    let free = path.ancestors().find_map(|place| statvfs(place).ok());
    let error = match free {
        Some(found) => error.with("free_bytes", found.f_bavail.saturating_mul(found.f_frsize)),
        None => error,
    };
    error.with("cause", cause)
}

/// The error of a write of so many bytes that the system refused.
pub(super) fn written(result: io::Result<()>, bytes: usize, path: &Path) -> Result<()> {
    result.map_err(|cause| match is_full(&cause) {
        true => full_disk("write a file", path, Some(bytes as u64), &cause),
        false => refused("write a file", path, cause),
    })
}

/// What the operating system said about `path`: `NotFound`, `ResourceExhausted` or `Io`.
pub(super) fn refused(action: &str, path: &Path, cause: io::Error) -> Error {
    if is_full(&cause) {
        return full_disk(action, path, None, &cause);
    }
    let kind = match cause.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Io,
    };
    Error::new(kind, format!("cannot {action}"))
        .with("path", path.display())
        .with("cause", cause)
}

/// `DataLoss` in the file at `path`.
pub(super) fn damaged(message: &str, path: &Path) -> Error {
    Error::new(Kind::DataLoss, message).with("path", path.display())
}

/// The error of a read that must be complete.
pub(super) fn cut_off(cause: io::Error, path: &Path) -> Error {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => damaged("a file became shorter while it was read", path),
        _ => refused("read a file", path, cause),
    }
}

/// Attaches a closure's path to the errors of the system.
pub(super) fn named<T>(result: io::Result<T>, action: &str, path: &Path) -> Result<T> {
    result.map_err(|cause| refused(action, path, cause))
}

/// Reads a checksum of eight hexadecimal digits.
pub(super) fn read_digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    let plain = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = u32::from_str_radix(&text, 16).ok().filter(|_| plain);
    value.ok_or_else(|| D::Error::custom("a checksum is not eight hexadecimal digits"))
}

/// Writes a checksum as [`read_digits`] reads it.
pub(super) fn write_digits<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{value:08x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_little_endian_words() {
        assert_eq!(
            key_attribute(258),
            [2, 1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(value_attribute(1, 16, crate::RowDtype::Float32).len(), 24);
        assert_eq!(
            value_attribute(1, 16, crate::RowDtype::Float32)[8..10],
            [16, 0]
        );
    }

    #[test]
    fn slot_names_are_plain_and_not_taken() {
        for good in ["LazyAdam_momentum", "a", "x-1.b"] {
            assert!(is_slot_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "a/b",
            "key",
            "embedding",
            "manifest",
            "manifest.json",
            "hist_rec",
            "hist_sketch",
            "a b",
        ] {
            assert!(!is_slot_name(bad), "{bad}");
        }
        assert!(!is_slot_name(&"x".repeat(256)));
    }

    #[test]
    fn a_slot_that_cannot_be_saved_is_refused_by_its_name() {
        let check = |name: &'static str, initial| {
            let name = name.into();
            check_slot(&SlotSpec {
                name,
                initial,
                per_row: false,
            })
            .map_err(|error| error.to_string())
        };
        assert_eq!(check("Own_m", -0.5), Ok(()));
        for (name, initial) in [("a/b", 0.0), ("key", 0.0), ("m", f32::INFINITY)] {
            let text = check(name, initial).unwrap_err();
            assert!(text.contains(name), "{text}");
        }
    }
}
