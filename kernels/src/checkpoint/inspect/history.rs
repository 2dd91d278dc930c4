//! What a table's files say of admission: thresholds, what is known of a key, and how it differs
//! from another table's.

use super::super::history::Found;
use super::keys::{room, sort, Keys};
use super::progress::Progress;
use crate::Result;
use serde::Serialize;

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

/// What a history is, but for what is known of each key.
pub(super) fn facts(found: &Found) -> HistoryFacts {
    let settings = &found.settings;
    HistoryFacts {
        keys: found.records.left,
        access: settings.access,
        configured_access: settings.configured,
        eviction: settings.eviction,
        counting: settings.counting,
        latest: settings.latest,
    }
}

/// What is known of a key. Memory: some MiB.
///
/// # Errors
/// As `Records::next`, and `Io` if the caller wants no more.
pub(super) fn seen(
    found: Found,
    wanted: i64,
    progress: &mut Progress,
) -> Result<Option<KeyHistory>> {
    let mut seen = None;
    each(found, progress, &mut |key, found| {
        seen = seen.or((key == wanted).then_some(found));
        seen.is_none()
    })?;
    Ok(seen)
}

/// Calls `f` with every key until it answers false.
fn each(
    mut found: Found,
    progress: &mut Progress,
    f: &mut dyn FnMut(i64, KeyHistory) -> bool,
) -> Result<()> {
    let records = &mut found.records;
    let mut known = Vec::new();
    while records.left > 0 {
        let before = records.bytes();
        records.next(&mut known)?;
        for &(key, seen) in &known {
            let (count, last) = (seen.count, seen.last);
            if !f(key, KeyHistory { count, last }) {
                return Ok(());
            }
        }
        progress.advance((before - records.bytes()) as usize)?;
    }
    Ok(())
}

/// All keys, ascending: 16 bytes each.
fn sorted(found: Found, progress: &mut Progress) -> Result<Vec<(i64, KeyHistory)>> {
    let path = found.records.file.path.clone();
    let mut all: Vec<(i64, KeyHistory)> = room(found.records.left, &path)?;
    each(found, progress, &mut |key, seen| {
        all.push((key, seen));
        true
    })?;
    sort(&mut all, &path)?;
    Ok(all)
}

/// Compares two histories; none if neither table has one. Memory: 16 bytes for each key of both.
pub(super) fn compare(
    here: Option<Found>,
    there: Option<Found>,
    progress: &mut Progress,
) -> Result<Option<HistoryDifference>> {
    if here.is_none() && there.is_none() {
        return Ok(None);
    }
    let [(here, one), (there, other)] = [here, there].map(|found| {
        let history = found.as_ref().map(facts);
        let sorted = found.map_or(Ok(Vec::new()), |found| sorted(found, progress));
        (history, sorted)
    });
    let (one, other) = (one?, other?);
    let mut difference = HistoryDifference {
        here,
        there,
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
