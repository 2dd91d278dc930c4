//! The names of what belongs to a checkpoint, beside it and hidden.

use super::steps::{exists, list};
use crate::checkpoint::format::MANIFEST;
use crate::{Error, Result};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const SPARSE: &str = "sparse-";
const DELTA: &str = "delta-";

/// What a hidden directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Tables that are being saved, or what an exchange put there: those that were replaced.
    Saving,
    /// Tables that were replaced where directories cannot be exchanged.
    Old,
    /// A delta that a whole save replaced, or the other way round.
    Other,
    /// Variables that were replaced.
    Undo,
    /// What is being removed.
    Gone,
    /// Says that a save of these tables is under way, from its begin until its variables are there.
    Owner,
}

const USES: [(Use, &str); 6] = [
    (Use::Owner, "owner"),
    (Use::Saving, "saving"),
    (Use::Old, "old"),
    (Use::Other, "other"),
    (Use::Undo, "undo"),
    (Use::Gone, "gone"),
];

/// The directory of a checkpoint's tables: `<dir>/sparse-<base>-<step>`, or `delta-` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: PathBuf,
    pub(super) name: String,
}

impl Place {
    /// # Errors
    /// `InvalidArgument` if the name is none of a directory of tables.
    pub(super) fn new(directory: &Path) -> Result<Place> {
        let name = directory.file_name().and_then(|name| name.to_str());
        match (name, directory.parent()) {
            (Some(name), Some(parent)) if is_tables(name) => Ok(Place {
                parent: parent.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(Error::invalid("no directory of tables has such a name")
                .with("path", directory.display())),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    pub(super) fn beside(&self, name: &str) -> Place {
        Place {
            parent: self.parent.clone(),
            name: name.to_owned(),
        }
    }

    /// Of a whole save of the step of a delta, and the other way round.
    pub(super) fn other_kind(&self) -> Place {
        match self.name.strip_prefix(DELTA) {
            Some(whole) => self.beside(whole),
            None => self.beside(&format!("{DELTA}{}", self.name)),
        }
    }

    /// The hidden directory of a save.
    pub(super) fn hidden(&self, what: Use, token: &str) -> PathBuf {
        let name = USES.iter().find(|(one, _)| *one == what);
        let name = name.map_or("", |(_, name)| name);
        self.parent.join(format!(".{}.{name}-{token}", self.name))
    }

    /// Whether a hidden directory of a save is there.
    pub(super) fn has_hidden(&self, token: &str) -> bool {
        let mut uses = USES.iter();
        uses.any(|(what, _)| exists(&self.hidden(*what, token)))
    }

    /// What the names of the variables' files begin with: `<base>-<step>`.
    pub(super) fn checkpoint(&self) -> &str {
        let whole = self.name.strip_prefix(DELTA).unwrap_or(&self.name);
        whole.strip_prefix(SPARSE).unwrap_or(whole)
    }

    /// `<base>`.
    pub(super) fn base(&self) -> &str {
        without_step(self.checkpoint())
    }

    /// The index of the variables.
    pub(super) fn index(&self) -> String {
        format!("{}.index", self.checkpoint())
    }

    /// The manifest of the directory, `None` where none can be read.
    pub(super) fn manifest(&self) -> Option<Value> {
        let text = fs::read(self.path().join(MANIFEST)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Which save made the directory; `None` where it does not say.
    pub(super) fn token(&self) -> Option<String> {
        self.manifest()?.get("staging")?.as_str().map(str::to_owned)
    }
}

/// A hidden directory of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hidden {
    /// The whole name.
    pub(super) entry: String,
    /// The directory of tables that it is of.
    pub(super) name: String,
    pub(super) what: Use,
    /// The process and which of its saves it was, `<process>-<number>`.
    pub(super) token: String,
}

impl Hidden {
    /// `.<name>.<use>-<process>-<number>`.
    pub(super) fn parse(entry: &str) -> Option<Hidden> {
        let (name, rest) = entry.strip_prefix('.')?.rsplit_once('.')?;
        let (what, token) = rest.split_once('-')?;
        let (process, number) = token.split_once('-')?;
        let (what, _) = USES.iter().find(|(_, text)| *text == what)?;
        let has_base = is_tables(name) && !name.ends_with("sparse-");
        (has_base && is_number(process) && is_number(number)).then(|| Hidden {
            entry: entry.to_owned(),
            name: name.to_owned(),
            what: *what,
            token: token.to_owned(),
        })
    }

    /// The digits of the process that made it.
    pub(super) fn process(&self) -> &str {
        self.token.split('-').next().unwrap_or_default()
    }
}

/// The names of the files of a checkpoint's variables.
pub(super) fn variables(parent: &Path, checkpoint: &str) -> io::Result<Vec<String>> {
    let mut names = list(parent)?;
    names.retain(|name| {
        let rest = name.strip_prefix(checkpoint);
        rest.and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|rest| matches!(rest, "index" | "meta") || is_data(rest))
    });
    Ok(names)
}

/// Whether a file has data of a checkpoint's variables, or is one that TensorFlow makes data or an
/// index of.
pub(super) fn is_unnamed(name: &str, checkpoint: &str) -> bool {
    let rest = name.strip_prefix(checkpoint);
    let Some(rest) = rest.and_then(|rest| rest.strip_prefix('.')) else {
        return false;
    };
    is_data(rest) || is_half_written(rest)
}

/// Whether these are the tables of a checkpoint with this base name, a delta's or not.
pub(super) fn is_of(name: &str, base: &str) -> bool {
    let whole = name.strip_prefix(DELTA).unwrap_or(name);
    let checkpoint = whole.strip_prefix(SPARSE);
    checkpoint.is_some_and(|one| one == base || without_step(one) == base)
}

/// Whether TensorFlow gives this name to a file while it writes the state file, or the variables or
/// the graph of a checkpoint with this base name.
pub(super) fn is_temporary(name: &str, base: &str) -> bool {
    let has = |text: &str, before| text.strip_prefix(before).is_some_and(is_hexadecimal);
    if has(name, "checkpoint.tmp") {
        return true;
    }
    let of_step = |rest: &str| {
        let is_half_written = || rest.strip_prefix('.').is_some_and(is_half_written);
        has(rest, "_temp_") || has(rest, ".meta.tmp") || is_half_written()
    };
    let Some(rest) = name.strip_prefix(base) else {
        return false;
    };
    let step = rest.strip_prefix('-').map(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest.split_at(digits)
    });
    of_step(rest) || step.is_some_and(|(digits, rest)| !digits.is_empty() && of_step(rest))
}

fn is_tables(name: &str) -> bool {
    name.strip_prefix(DELTA).unwrap_or(name).starts_with(SPARSE)
}

/// `index.tempstate<number>`, and data of that kind.
fn is_half_written(rest: &str) -> bool {
    let parts = rest.rsplit_once(".tempstate");
    parts.is_some_and(|(file, number)| is_number(number) && (file == "index" || is_data(file)))
}

/// `data-<number>-of-<number>`.
fn is_data(name: &str) -> bool {
    let numbers = name.strip_prefix("data-");
    let pair = numbers.and_then(|numbers| numbers.split_once("-of-"));
    pair.is_some_and(|(shard, shards)| is_number(shard) && is_number(shards))
}

fn without_step(checkpoint: &str) -> &str {
    match checkpoint.rsplit_once('-') {
        Some((base, step)) if is_number(step) => base,
        _ => checkpoint,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hexadecimal(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    !text.is_empty() && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_directories_are_told_by_their_names() {
        let found = Hidden::parse(".delta-sparse-m.old-x-1.saving-12-3").unwrap();
        assert_eq!(found.name, "delta-sparse-m.old-x-1");
        assert_eq!((found.what, found.process()), (Use::Saving, "12"));
        let place = Place::new(Path::new("/d").join(&found.name).as_path()).unwrap();
        let path = place.hidden(found.what, &found.token);
        assert_eq!(path, Path::new("/d").join(&found.entry));
        for other in [
            "sparse-m.saving-12-3",
            ".sparse-.saving-12-3",
            ".m.saving-12-3",
            ".sparse-m.saving-12",
            ".sparse-m.saving-12-",
            ".sparse-m.saving-12-3-4",
            ".sparse-m.save-12-3",
            ".sparse-m.saving-0123456789abcdef",
        ] {
            assert_eq!(Hidden::parse(other), None, "{other}");
        }
    }

    #[test]
    fn what_belongs_to_a_base_name_is_told_by_its_name() {
        for (name, base) in [
            ("sparse-m-1", "m"),
            ("delta-sparse-m-1", "m"),
            ("sparse-m", "m"),
            ("sparse-2020", "2020"),
            ("sparse-m-1-2", "m-1"),
        ] {
            assert!(is_of(name, base), "{name}");
            assert_eq!(Place::new(Path::new(name)).unwrap().base(), base);
        }
        for (name, base) in [("sparse-mm-1", "m"), ("sparse-m-1", "m-"), ("m-1", "m")] {
            assert!(!is_of(name, base), "{name}");
        }
        assert!(Place::new(Path::new("/d/m-1")).is_err());
        let delta = Place::new(Path::new("/d/delta-sparse-m-1")).unwrap();
        assert_eq!(delta.other_kind().name, "sparse-m-1");
        assert_eq!(delta.other_kind().other_kind(), delta);
        assert_eq!(delta.index(), "m-1.index");
    }

    #[test]
    fn temporary_files_of_tensorflow_are_told_by_their_names() {
        for name in [
            "checkpoint.tmp0123abc",
            "m-3.index.tempstate77",
            "m.index.tempstate77",
            "m-3.data-00000-of-00001.tempstate78",
            "m-3.meta.tmp0f",
            "m-3_temp_0f",
        ] {
            assert!(is_temporary(name, "m"), "{name}");
        }
        for name in [
            "checkpoint",
            "checkpoint.tmp",
            "other-3.index.tempstate77",
            "m-3.notes",
            "m-3.index",
            "m-3.index.tempstate",
            "m-.index.tempstate7",
            "m-3.data-0.tempstate7",
            "m-3.meta.tmp0F",
        ] {
            assert!(!is_temporary(name, "m"), "{name}");
        }
    }
}
