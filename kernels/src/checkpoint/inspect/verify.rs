//! Reads every file of a table and tells all that is wrong.

use super::super::block::{check_size, check_sum};
use super::super::format::damaged;
use super::super::manifest::Recorded;
use super::super::parts::open;
use super::keys::room;
use super::layout::{Fault, Layout};
use super::stream::{keys, Progress, Stream};
use crate::{Error, Result, PADDING};
use serde::Serialize;
use std::path::{Path, PathBuf};

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
    let layout = Layout::read(dir)?;
    let mut faults = layout.faults.clone();
    let files = files(dir, &layout, &mut faults);
    let mut report = Report {
        version: layout.manifest.version,
        rows: layout.rows,
        files: 0,
        bytes: 0,
        checksums: 0,
        faults: Vec::new(),
    };
    let mut opened = Vec::new();
    for file in &files {
        match open(&file.path) {
            Ok((open, size)) => opened.push((file, open, size)),
            // The layout may have said it already.
            Err(error) => push(&mut faults, Fault::of(dir, &error)),
        }
    }
    let total = opened
        .iter()
        .fold(0, |sum: u64, (.., size)| sum.saturating_add(*size));
    let mut progress = Progress::new(total, tell);
    for (file, open, size) in opened {
        let mut stream = Stream::new(&file.path, open);
        let read = check(file, &mut stream, size, &mut progress);
        if progress.stopped() {
            return read.map(|_| report);
        }
        match read {
            Ok(found) => {
                report.files += 1;
                report.bytes = report.bytes.saturating_add(size);
                report.checksums += u64::from(file.recorded.is_some());
                faults.extend(found.iter().map(|error| Fault::of(dir, error)));
            }
            Err(error) => push(&mut faults, Fault::of(dir, &error)),
        }
    }
    report.faults = faults;
    Ok(report)
}

/// A file to read.
struct Wanted<'a> {
    path: PathBuf,
    recorded: Option<&'a Recorded>,
    holds: Holds,
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

/// The data files of the layout, then what else the manifest lists.
fn files<'a>(dir: &Path, layout: &'a Layout, faults: &mut Vec<Fault>) -> Vec<Wanted<'a>> {
    let listed = layout.manifest.files.as_deref();
    let mut files: Vec<Wanted<'a>> = Vec::new();
    for (at, part) in layout.parts.iter().enumerate() {
        let recorded = listed
            .unwrap_or_default()
            .iter()
            .find(|recorded| dir.join(&recorded.path) == part.path);
        if listed.is_some() && recorded.is_none() {
            let error = damaged("the manifest does not list this file", &part.path);
            faults.push(Fault::of(dir, &error));
        }
        files.push(Wanted {
            path: part.path.clone(),
            recorded,
            holds: if at == 0 { Holds::Keys } else { Holds::Other },
        });
    }
    if let Some(found) = &layout.history {
        let is_it = |recorded: &&Recorded| dir.join(&recorded.path) == found.records;
        files.push(Wanted {
            path: found.records.clone(),
            recorded: listed.unwrap_or_default().iter().find(is_it),
            holds: Holds::Records,
        });
    }
    for recorded in listed.unwrap_or_default() {
        let path = dir.join(&recorded.path);
        if files.iter().any(|file| file.path == path) {
            continue;
        }
        if !recorded.is_inside() {
            let error = damaged(
                "the manifest lists a file outside of the table",
                &layout.manifest.path,
            );
            faults.push(Fault::of(dir, &error.with("file", &recorded.path)));
            continue;
        }
        files.push(Wanted {
            path,
            recorded: Some(recorded),
            holds: Holds::Other,
        });
    }
    files
}

/// Adds a fault unless that file has the same one.
fn push(faults: &mut Vec<Fault>, fault: Fault) {
    if !faults.contains(&fault) {
        faults.push(fault);
    }
}

/// Reads one file; returns what is wrong with its content.
fn check(
    file: &Wanted,
    stream: &mut Stream,
    size: u64,
    progress: &mut Progress,
) -> Result<Vec<Error>> {
    let mut faults = Vec::new();
    let mut crc = 0;
    let mut length: u64 = 0;
    let mut negative: u64 = 0;
    let per_key = match file.holds {
        Holds::Other => None,
        Holds::Keys => Some(8),
        Holds::Records => Some(24),
    };
    let mut found = room(per_key.map_or(0, |bytes| size / bytes), &file.path)?;
    loop {
        let block = stream.next()?;
        if block.is_empty() {
            break;
        }
        if file.recorded.is_some() {
            crc = crc32c::crc32c_append(crc, block);
        }
        match file.holds {
            Holds::Other => {}
            Holds::Keys => found.extend(keys(block)),
            Holds::Records => {
                // Every third word behind the first is a key.
                let words = keys(block).zip(length / 8..);
                for (word, at) in words.filter(|(_, at)| *at > 0) {
                    if at % 3 == 1 {
                        found.push(word);
                    } else if word < 0 {
                        negative += 1;
                    }
                }
            }
        }
        length = length.saturating_add(block.len() as u64);
        let bytes = block.len();
        progress.advance(bytes)?;
    }
    if let Some(recorded) = file.recorded {
        let compared = check_size(&file.path, recorded, length)
            .and_then(|()| check_sum(&file.path, recorded, crc));
        faults.extend(compared.err());
    }
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
