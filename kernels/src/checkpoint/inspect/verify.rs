//! Reads every file of a table and tells all that is wrong.

use super::super::file::SavedFile;
use super::super::format::damaged;
use super::super::layout::Layout;
use super::describe::{layout, Fault};
use super::keys::room;
use super::progress::{keys, Progress};
use crate::{Error, Result, PADDING};
use serde::Serialize;
use std::path::Path;

/// What was read, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of the format; 0 is the original's, without a manifest.
    pub version: u32,
    /// Number of rows; none if no file tells.
    pub rows: Option<u64>,
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files whose checksum was compared; 0 below version 2, which has none.
    pub checksums: u64,
    /// All faults, by file in the order of the layout.
    pub faults: Vec<Fault>,
}

/// Reads every file of the table in `dir`, and tells every fault: missing files, shapes and sizes
/// that do not fit, padding keys, keys that occur twice, and, from version 2 on, files that the
/// manifest lacks, and other sizes or checksums than it says.
///
/// `tell` gets `(bytes read, bytes in all)` at least once for each MiB and answers whether to go
/// on. Memory: 8 bytes a key and a few MiB.
///
/// # Errors
/// As [`super::describe`], and `Io` if `tell` wants no more.
pub fn verify(dir: &Path, tell: &mut dyn FnMut(u64, u64) -> bool) -> Result<Report> {
    let mut layout = layout(dir)?;
    let mut report = Report {
        version: layout.manifest.version,
        rows: layout.rows,
        files: 0,
        bytes: 0,
        checksums: 0,
        faults: Vec::new(),
    };
    let (files, refused) = files(dir, &mut layout);
    let mut faults = Vec::new();
    let mut fault = |error: &Error| {
        let fault = Fault::of(dir, error);
        // The layout may have said it already.
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    };
    layout.errors.iter().chain(&refused).for_each(&mut fault);
    let sizes = files.iter().map(|(file, _)| file.size);
    let mut progress = Progress::new(sizes.fold(0, u64::saturating_add), tell);
    for (mut file, holds) in files {
        let read = check(&mut file, holds, &mut progress);
        if progress.stopped() {
            return read.map(|_| report);
        }
        match read {
            Ok(found) => {
                report.files += 1;
                report.bytes = report.bytes.saturating_add(file.size);
                report.checksums += u64::from(file.expected.is_some());
                found.iter().for_each(&mut fault);
            }
            Err(error) => fault(&error),
        }
    }
    report.faults = faults;
    Ok(report)
}

/// What is checked in a file beside its size and checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Nothing.
    Other,
    /// Keys, one after the other.
    Keys,
    /// A time, then keys with counts and times.
    Records,
}

/// The data files of the layout, then what else the manifest lists; and what is wrong with those
/// that cannot be read.
fn files(dir: &Path, layout: &mut Layout) -> (Vec<(SavedFile, Holds)>, Vec<Error>) {
    let mut files: Vec<(SavedFile, Holds)> = Vec::new();
    let mut errors = Vec::new();
    let holds = std::iter::once(Holds::Keys).chain(std::iter::repeat(Holds::Other));
    let data = layout.parts.drain(..).map(|part| part.file);
    files.extend(
        data.zip(holds)
            .filter_map(|(file, holds)| Some((file?, holds))),
    );
    if let Some(found) = &layout.history {
        let records = &found.records.file;
        match SavedFile::open(&records.path, records.expected) {
            Ok(file) => files.push((file, Holds::Records)),
            Err(error) => errors.push(error),
        }
    }
    for recorded in layout.manifest.files.as_deref().unwrap_or_default() {
        let file = match recorded.below(dir) {
            Ok(path) if files.iter().any(|(file, _)| file.path == path) => continue,
            Ok(path) => SavedFile::open(&path, Some(recorded.seal)),
            Err(error) => Err(error),
        };
        match file {
            Ok(file) => files.push((file, Holds::Other)),
            Err(error) => errors.push(error),
        }
    }
    (files, errors)
}

/// Reads one file; returns what is wrong with its content.
fn check(file: &mut SavedFile, holds: Holds, progress: &mut Progress) -> Result<Vec<Error>> {
    let mut faults = Vec::new();
    let mut words: u64 = 0;
    let mut negative: u64 = 0;
    let per_key = match holds {
        Holds::Other => None,
        Holds::Keys => Some(8),
        Holds::Records => Some(24),
    };
    let mut found = room(per_key.map_or(0, |bytes| file.size / bytes), &file.path)?;
    file.each_block(&mut |block| {
        match holds {
            Holds::Other => {}
            Holds::Keys => found.extend(keys(block)),
            Holds::Records => {
                // Every third word behind the first is a key.
                for (word, at) in keys(block).zip(words..).filter(|(_, at)| *at > 0) {
                    if at % 3 == 1 {
                        found.push(word);
                    } else if word < 0 {
                        negative += 1;
                    }
                }
                words += block.len() as u64 / 8;
            }
        }
        progress.advance(block.len())?;
        Ok(true)
    })?;
    faults.extend(file.finish().err());
    if negative > 0 {
        let error = damaged("counts or times are negative", &file.path);
        faults.push(error.with("times", negative));
    }
    key_faults(&mut found, &file.path, &mut faults);
    Ok(faults)
}

/// What is wrong with these keys, which are sorted on the way.
fn key_faults(keys: &mut [i64], path: &Path, faults: &mut Vec<Error>) {
    keys.sort_unstable();
    let padding =
        keys.partition_point(|key| *key <= PADDING) - keys.partition_point(|key| *key < PADDING);
    if padding > 0 {
        let error = damaged("a key is the padding key -1", path);
        faults.push(error.with("times", padding));
    }
    let repeated = |pair: &&[i64]| pair.first() == pair.last() && pair.first() != Some(&PADDING);
    let mut twice = keys.windows(2).filter(repeated).peekable();
    if let Some(key) = twice.peek().and_then(|pair| pair.first()).copied() {
        let error = damaged("keys occur more than once", path);
        faults.push(error.with("first", key).with("surplus_rows", twice.count()));
    }
}
