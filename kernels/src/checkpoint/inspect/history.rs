//! What a table's files say of admission: thresholds, what is known of a key, and how it differs
//! from another table's.

use super::super::format::{damaged, RECORDS, THRESHOLDS};
use super::super::history::{read_thresholds, Files, Records};
use super::super::manifest::Manifest;
use super::keys::{room, sort, Keys};
use super::stream::Progress;
use crate::{Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The history of a table, but for what is known of each key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryFacts {
    /// Keys that something is known of, with rows and without.
    pub keys: u64,
    /// Occurrences from which on a key gets a row.
    pub access: u32,
    /// The same as the program's configuration gave it; none if it gave none.
    pub configured_access: Option<u32>,
    /// Seconds after which a key that was not seen goes; none for never.
    pub eviction: Option<u32>,
    /// Whether occurrences are counted.
    pub counting: bool,
    /// Greatest batch timestamp seen, in seconds since 1970; 0 for none.
    pub latest: u32,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KeyHistory {
    /// How often it was counted.
    pub count: u32,
    /// When it was last seen, in seconds since 1970; 0 without a time.
    pub last: u32,
}

/// How the histories of two tables differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryDifference {
    /// That of the first table, if it has one.
    pub here: Option<HistoryFacts>,
    /// That of the second table, if it has one.
    pub there: Option<HistoryFacts>,
    /// Keys that only the first knows.
    pub only_here: Keys,
    /// Keys that only the second knows.
    pub only_there: Keys,
    /// Keys of both with another count or time.
    pub differing: Keys,
}

impl HistoryDifference {
    /// Whether nothing differs.
    pub(super) fn is_none(&self) -> bool {
        self.here == self.there
            && self.only_here.count + self.only_there.count + self.differing.count == 0
    }
}

/// A history on disk whose thresholds and sizes are good.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) history: HistoryFacts,
    pub(super) records: PathBuf,
    /// Bytes of the records.
    pub(super) bytes: u64,
}

/// Finds the history in the directory of a table; none if there is none, or if something is wrong
/// with it, which `fault` is told.
pub(super) fn find(
    dir: &Path,
    manifest: &Manifest,
    fault: &mut dyn FnMut(&Error),
) -> Option<Found> {
    let lists = |name: &str| {
        let files = manifest.files.as_ref()?;
        Some(files.iter().any(|file| file.path == name))
    };
    let files = Files::find(dir, &lists)?;
    let mut is_whole = true;
    for name in [THRESHOLDS, RECORDS] {
        if lists(name) == Some(false) {
            let error = damaged("the manifest does not list this file", &dir.join(name));
            fault(&error);
            is_whole = false;
        }
    }
    let thresholds = read_thresholds(&files.thresholds).map_err(|error| fault(&error));
    let records = Records::open(&files.records).map_err(|error| fault(&error));
    let (Ok((access, eviction, counting)), Ok(records), true) = (thresholds, records, is_whole)
    else {
        return None;
    };
    Some(Found {
        history: HistoryFacts {
            keys: records.left,
            access,
            configured_access: manifest.configured.unwrap_or(Some(access)),
            eviction,
            counting,
            latest: records.latest,
        },
        records: files.records,
        bytes: records.bytes(),
    })
}

impl Found {
    /// What is known of a key. Memory: some MiB.
    ///
    /// # Errors
    /// As [`Records::next`], and `Io` if the caller wants no more.
    pub(super) fn seen(&self, wanted: i64, progress: &mut Progress) -> Result<Option<KeyHistory>> {
        let mut seen = None;
        self.each(progress, &mut |key, found| {
            seen = seen.or((key == wanted).then_some(found));
            Ok(seen.is_none())
        })?;
        Ok(seen)
    }

    /// Calls `f` with every key until it answers false.
    fn each(
        &self,
        progress: &mut Progress,
        f: &mut dyn FnMut(i64, KeyHistory) -> Result<bool>,
    ) -> Result<()> {
        let mut records = Records::open(&self.records)?;
        let mut known = Vec::new();
        while records.left > 0 {
            let before = records.bytes();
            records.next(&mut known)?;
            for &(key, seen) in &known {
                let (count, last) = (seen.count, seen.last);
                if !f(key, KeyHistory { count, last })? {
                    return Ok(());
                }
            }
            progress.advance((before - records.bytes()) as usize)?;
        }
        Ok(())
    }

    /// All keys, ascending: 16 bytes each.
    fn sorted(&self, progress: &mut Progress) -> Result<Vec<(i64, KeyHistory)>> {
        let mut all: Vec<(i64, KeyHistory)> = room(self.history.keys, &self.records)?;
        self.each(progress, &mut |key, seen| {
            all.push((key, seen));
            Ok(true)
        })?;
        sort(&mut all, &self.records)?;
        Ok(all)
    }
}

/// Compares two histories; none if neither table has one. Memory: 16 bytes for each key of both.
pub(super) fn compare(
    here: Option<&Found>,
    there: Option<&Found>,
    progress: &mut Progress,
) -> Result<Option<HistoryDifference>> {
    if here.is_none() && there.is_none() {
        return Ok(None);
    }
    let mut sorted = |found: Option<&Found>| match found {
        Some(found) => found.sorted(progress),
        None => Ok(Vec::new()),
    };
    let (one, other) = (sorted(here)?, sorted(there)?);
    let history = |found: Option<&Found>| found.map(|found| found.history.clone());
    let mut difference = HistoryDifference {
        here: history(here),
        there: history(there),
        only_here: Keys::default(),
        only_there: Keys::default(),
        differing: Keys::default(),
    };
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    loop {
        let (first, second) = (one.peek(), other.peek());
        let is_here = second.is_none_or(|second| first.is_some_and(|first| first.0 <= second.0));
        let is_there = first.is_none_or(|first| second.is_some_and(|second| second.0 <= first.0));
        let here = if is_here { one.next() } else { None };
        let there = if is_there { other.next() } else { None };
        match (here, there) {
            (Some(here), Some(there)) if here.1 == there.1 => {}
            (Some((key, _)), Some(_)) => difference.differing.add(*key),
            (Some((key, _)), None) => difference.only_here.add(*key),
            (None, Some((key, _))) => difference.only_there.add(*key),
            (None, None) => return Ok(Some(difference)),
        }
    }
}
