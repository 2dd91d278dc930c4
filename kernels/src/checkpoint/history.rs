//! The history of a table in files: thresholds in one, how often and when each key was seen in the
//! other.

#![deny(clippy::arithmetic_side_effects)]

use super::block::{check, check_size, check_sum, Verdicts};
use super::format::{cut_off, damaged, named, BLOCK_BYTES, DATA, RECORDS, THRESHOLDS};
use super::manifest::Recorded;
use super::parts::open;
use super::rows::Written;
use super::sketch::{write_sketch, SketchReader};
use crate::history::{Seen, Settings};
use crate::partition::Partition;
use crate::{Error, Loading, Pool, Result, Snapshot, Table};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a key with its count and time.
const RECORD: u64 = 24;

/// Bytes before the records: the latest time.
const HEAD: u64 = 8;

/// Bytes of the three thresholds; the original may write more behind them.
const NUMBERS: u64 = 12;

/// Records that are read at once, 6 MiB.
const READ: usize = 256 << 10;

/// The latest time that a table takes, in seconds since 1970.
const LATEST: u32 = u32::MAX - 1;

/// Writes the history of a table, if it has one, into its directory; returns what the manifest says
/// of it.
///
/// [`Snapshot::each_known`] says what the files hold while others observe batches. Memory: what it
/// needs, and 1 MiB.
///
/// # Errors
/// `Io` for what the system refuses, with the file.
pub(super) fn write_history(
    snapshot: &Snapshot<'_>,
    pool: &Pool,
    dir: &Path,
    files: &mut Vec<Written>,
) -> Result<Option<Option<u32>>> {
    let Some(settings) = snapshot.settings() else {
        return Ok(None);
    };
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let numbers = [
        number(settings.access),
        settings.eviction.map_or(-1, number),
        i32::from(settings.counting),
    ];
    let numbers = numbers.map(i32::to_le_bytes);
    files.push(Written::whole(dir, THRESHOLDS, numbers.as_flattened())?);
    let mut file = Written::empty(dir, RECORDS)?;
    let mut buffer = i64::from(settings.latest).to_le_bytes().to_vec();
    snapshot.each_known(pool, &mut |known| {
        for &(key, seen) in known {
            let words = [key, seen.count.into(), seen.last.into()].map(i64::to_le_bytes);
            buffer.extend_from_slice(words.as_flattened());
            if buffer.len() >= BLOCK_BYTES {
                file.append(&buffer)?;
                buffer.clear();
            }
        }
        Ok(())
    })?;
    file.append(&buffer)?;
    files.push(file);
    write_sketch(snapshot, dir, files)?;
    Ok(Some(settings.configured))
}

/// Where the files of a history are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) thresholds: PathBuf,
    pub(super) records: PathBuf,
}

impl Files {
    /// Those in the directory of a table that has one; `listed` says of a name whether the manifest
    /// lists it, None if it lists nothing.
    pub(super) fn find(dir: &Path, listed: &dyn Fn(&str) -> Option<bool>) -> Option<Files> {
        let here = |name: &str| match listed(name) {
            Some(is_listed) => is_listed.then(|| dir.join(name)),
            None => unlisted(dir, name),
        };
        let (thresholds, records) = (here(THRESHOLDS), here(RECORDS));
        if thresholds.is_none() && records.is_none() {
            return None;
        }
        // If one of them is missing, its name is in the error.
        Some(Files {
            thresholds: thresholds.unwrap_or_else(|| dir.join(THRESHOLDS)),
            records: records.unwrap_or_else(|| dir.join(RECORDS)),
        })
    }
}

/// Where a file of the original is: under its name, or as the data file in a directory of that
/// name.
fn unlisted(dir: &Path, name: &str) -> Option<PathBuf> {
    let path = dir.join(name);
    if fs::metadata(&path).ok()?.is_dir() {
        return Some(path.join(DATA)).filter(|data| data.is_file());
    }
    Some(path)
}

/// Reads the file of thresholds: access, eviction, and whether occurrences are counted.
///
/// # Errors
/// `DataLoss` for what they cannot be, `NotFound`, `Io`.
pub(super) fn read_thresholds(path: &Path) -> Result<(u32, Option<u32>, bool)> {
    let (mut file, size) = open(path)?;
    if size < NUMBERS || size.checked_rem(4) != Some(0) {
        return Err(damaged("the thresholds have a wrong size", path)
            .with("bytes", size)
            .with("expected", NUMBERS));
    }
    let mut words = [[0; 4]; 3];
    let read = file.read_exact(words.as_flattened_mut());
    named(read, "read a file", path)?;
    let [access, eviction, counting] = words.map(i32::from_le_bytes);
    let threshold = |name: &'static str, value: i32| match u32::try_from(value) {
        Ok(value) => Ok(Some(value)),
        Err(_) if value == -1 => Ok(None),
        Err(_) => Err(damaged("a threshold is negative", path).with(name, value)),
    };
    let access = threshold("access", access)?.unwrap_or(0);
    let eviction = threshold("eviction", eviction)?;
    if !(0..=1).contains(&counting) {
        let error = damaged("whether keys are counted is neither 0 nor 1", path);
        return Err(error.with("value", counting));
    }
    Ok((access, eviction, counting == 1))
}

/// The file of records, from its start on.
pub(super) struct Records {
    path: PathBuf,
    file: File,
    /// Records that were not read yet.
    pub(super) left: u64,
    /// Greatest batch timestamp seen, in seconds since 1970.
    pub(super) latest: u32,
    bytes: Vec<u8>,
    /// The checksum of what was read.
    crc: u32,
}

impl Records {
    /// Opens the file and reads what stands before the records.
    ///
    /// # Errors
    /// `DataLoss` for a size or a time that cannot be, `NotFound`, `Io`.
    pub(super) fn open(path: &Path) -> Result<Records> {
        let (mut file, size) = open(path)?;
        let records = size.checked_sub(HEAD).filter(|bytes| bytes % RECORD == 0);
        let Some(bytes) = records else {
            let error = damaged("the history has a wrong size: not 8 + 24 n bytes", path);
            return Err(error.with("bytes", size));
        };
        let mut head = [0; HEAD as usize];
        named(file.read_exact(&mut head), "read a file", path)?;
        let latest = i64::from_le_bytes(head);
        if latest < 0 {
            return Err(damaged("the history's time is negative", path).with("time", latest));
        }
        Ok(Records {
            path: path.to_owned(),
            file,
            left: bytes.checked_div(RECORD).unwrap_or(0),
            latest: u32::try_from(latest).unwrap_or(LATEST).min(LATEST),
            bytes: Vec::new(),
            crc: crc32c::crc32c(&head),
        })
    }

    /// Bytes of the records that were not read yet.
    pub(super) fn bytes(&self) -> u64 {
        self.left.saturating_mul(RECORD)
    }

    /// The next records, none at the end. Counts and times of more than 32 bits become the
    /// greatest.
    ///
    /// # Errors
    /// `DataLoss` for a negative count or time and for a file that became shorter, `Io`.
    pub(super) fn next(&mut self, known: &mut Vec<(i64, Seen)>) -> Result<()> {
        known.clear();
        let count = self.left.min(READ as u64);
        self.left = self.left.saturating_sub(count);
        let bytes = usize::try_from(count.saturating_mul(RECORD)).unwrap_or(usize::MAX);
        self.bytes.resize(bytes, 0);
        let read = self.file.read_exact(&mut self.bytes);
        read.map_err(|cause| cut_off(cause, &self.path))?;
        self.crc = crc32c::crc32c_append(self.crc, &self.bytes);
        let words: &[[[u8; 8]; 3]] = self.bytes.as_chunks().0.as_chunks().0;
        for record in words {
            let [key, count, last] = record.map(i64::from_le_bytes);
            let (Ok(many), Ok(time)) = (u64::try_from(count), u64::try_from(last)) else {
                let error = damaged("a key has a negative count or time", &self.path);
                return Err(error
                    .with("key", key)
                    .with("count", count)
                    .with("time", last));
            };
            let seen = Seen {
                count: u32::try_from(many).unwrap_or(u32::MAX),
                last: u32::try_from(time).unwrap_or(LATEST).min(LATEST),
            };
            known.push((key, seen));
        }
        Ok(())
    }
}

/// A history to load, its files open and the small one checked.
pub(super) struct HistoryReader<'m> {
    settings: Settings,
    records: Records,
    recorded: Option<&'m Recorded>,
    /// The counters of keys without rows, if they are a sketch that the table can take.
    sketch: Option<SketchReader<'m>>,
}

impl<'m> HistoryReader<'m> {
    /// Opens the history in the directory of `table`; None if it has none. `configured` is what the
    /// manifest says of it: without one, the threshold in force stands for the configured one.
    ///
    /// # Errors
    /// `DataLoss`, `NotFound` or `Io` with the file.
    pub(super) fn open(
        table: &Table,
        dir: &Path,
        configured: Option<Option<u32>>,
        verdicts: &mut Verdicts<'m>,
    ) -> Result<Option<Self>> {
        let Some(files) = Files::find(dir, &|name| verdicts.lists(name)) else {
            return Ok(None);
        };
        if let Some(recorded) = verdicts.take(THRESHOLDS)? {
            check(&files.thresholds, recorded)?;
        }
        let (access, eviction, counting) = read_thresholds(&files.thresholds)?;
        let recorded = verdicts.take(RECORDS)?;
        if let Some(recorded) = recorded {
            let (_, size) = open(&files.records)?;
            check_size(&files.records, recorded, size)?;
        }
        let records = Records::open(&files.records)?;
        let settings = Settings {
            access,
            eviction,
            counting,
            configured: configured.unwrap_or(Some(access)),
            latest: records.latest,
        };
        Ok(Some(Self {
            settings,
            records,
            recorded,
            sketch: SketchReader::open(table, dir, verdicts)?,
        }))
    }

    /// Puts the histories of all parts of a table beside its rows, of which all are there; of one
    /// part with `only`. The settings are those of the first, the time is the latest of all.
    ///
    /// # Errors
    /// `DataLoss` or `Io` with the file, and `DataLoss` if some of `directories` have none.
    pub(super) fn push_all(
        mut parts: Vec<&mut Self>,
        directories: usize,
        only: Option<Partition>,
        pool: &Pool,
        loading: &mut Loading<'_>,
    ) -> Result<()> {
        let Some(first) = parts.first() else {
            return Ok(());
        };
        if parts.len() != directories {
            return Err(damaged(
                "some parts of the table have an admission history and others have none",
                &first.records.path,
            ));
        }
        let mut settings = first.settings;
        let latest = parts.iter().map(|one| one.settings.latest).max();
        settings.latest = latest.unwrap_or(settings.latest);
        loading.start_history(settings)?;
        for part in &mut parts {
            part.push(only, pool, loading)?;
        }
        loading.complete_history();
        Ok(())
    }

    /// Puts the history beside the rows, then compares the checksum.
    fn push(
        &mut self,
        only: Option<Partition>,
        pool: &Pool,
        loading: &mut Loading<'_>,
    ) -> Result<()> {
        let path = self.records.path.clone();
        let named = |error: Error| error.with("path", path.display());
        if let Some(sketch) = &mut self.sketch {
            sketch.push(loading)?;
        }
        let mut known = Vec::new();
        while self.records.left > 0 {
            self.records.next(&mut known)?;
            if let Some(part) = only {
                known.retain(|&(key, _)| part.holds(key));
            }
            loading.import_history(pool, &known).map_err(named)?;
        }
        match self.recorded {
            Some(recorded) => check_sum(&path, recorded, self.records.crc),
            None => Ok(()),
        }
    }
}
