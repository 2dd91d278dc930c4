//! The manifest of a whole checkpoint: its tables with their seals, and a checksum of its own.

use super::steps::Outcome;
use crate::checkpoint::format::{damaged, named, MANIFEST};
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::whole::crc32;
use crate::{Error, Kind, Result};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{json, Map, Serializer, Value};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const FORMAT_VERSION: u32 = 3;

/// The text of the manifest of a checkpoint whose tables lie in `dir`: `content`, to whose `tables`
/// the seals of the tables come, and to which `format_version` and `crc32` come.
///
/// Every file of every table is compared with the size that the table's manifest has for it.
///
/// # Errors
/// `InvalidArgument` if `content` has no list `tables` with a `name` in each; `NotFound` or
/// `DataLoss` if a table or one of its files is missing or damaged; `Io`.
pub fn manifest(dir: &Path, content: &Map<String, Value>) -> Outcome<String> {
    let mut content = content.clone();
    let tables = content.get_mut("tables").and_then(Value::as_array_mut);
    let tables = tables.ok_or_else(|| Error::invalid("a manifest needs the list 'tables'"))?;
    for table in tables {
        let name = table.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| Error::invalid("a table of a manifest needs a 'name'"))?;
        let seal = seal_of(&dir.join(name))?;
        if let Some(table) = table.as_object_mut() {
            table.insert("manifest".to_owned(), seal);
        }
    }
    content.insert("format_version".to_owned(), FORMAT_VERSION.into());
    let crc = !crc32(!0, text(&content)?.as_bytes());
    content.insert("crc32".to_owned(), crc.into());
    Ok(text(&content)?)
}

/// Size and checksum of the manifest of the table in `dir`, which bind it to its checkpoint.
fn seal_of(dir: &Path) -> Result<Value> {
    let manifest = Manifest::read(dir)?;
    let Some((seal, files)) = manifest.seal.zip(manifest.files) else {
        return Err(Error::new(Kind::NotFound, "a saved table has no manifest")
            .with("path", dir.join(MANIFEST).display()));
    };
    for file in files {
        let path = dir.join(&file.path);
        let bytes = named(fs::metadata(&path), "find a saved file", &path)?.len();
        if bytes != file.seal.bytes {
            return Err(damaged("a saved file has another size", &path)
                .with("bytes", bytes)
                .with("expected", file.seal.bytes));
        }
    }
    Ok(json!(seal))
}

/// JSON with sorted members, an indent of 1 and ASCII only, and a line feed at the end.
fn text(content: &Map<String, Value>) -> Result<String> {
    let internal = |cause: &dyn std::fmt::Display| {
        Error::new(Kind::Internal, "a manifest cannot be written").with("cause", cause)
    };
    let mut bytes = Vec::new();
    let formatter = PrettyFormatter::with_indent(b" ");
    let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
    let written = content.serialize(&mut serializer);
    written.map_err(|error| internal(&error))?;
    let json = String::from_utf8(bytes).map_err(|error| internal(&error))?;
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || (' '..='~').contains(&character) {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}").map_err(|error| internal(&error))?;
            }
        }
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_sorted_and_ascii() {
        let content =
            json!({"b": [], "a": {"y\n\u{7f}\u{e9}\u{1f600}\u{1}": true, "x": [1, null]}});
        assert_eq!(
            text(content.as_object().unwrap()).unwrap(),
            "{\n \"a\": {\n  \"x\": [\n   1,\n   null\n  ],\n  \
             \"y\\n\\u007f\\u00e9\\ud83d\\ude00\\u0001\": true\n },\n \"b\": []\n}\n"
        );
    }
}
