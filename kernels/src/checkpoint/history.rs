//! The history of a table in files: thresholds in one, how often and when each key was seen in the
//! other.

#![deny(clippy::arithmetic_side_effects)]

use super::file::SavedFile;
use super::format::{damaged, BLOCK_BYTES, DATA, RECORDS, THRESHOLDS};
use super::listing::Listing;
use super::rows::Written;
use super::sketch::{write_sketch, SketchReader};
use crate::history::{Seen, Settings};
use crate::partition::Partition;
use crate::{Error, Loading, Pool, Result, Snapshot, Table};
use std::fs;
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
/// `DataLoss` for what they cannot be, and for another checksum than the manifest's; `Io`.
fn read_thresholds(mut file: SavedFile) -> Result<(u32, Option<u32>, bool)> {
    let size = file.size;
    if size < NUMBERS || size.checked_rem(4) != Some(0) {
        return Err(damaged("the thresholds have a wrong size", &file.path)
            .with("bytes", size)
            .with("expected", NUMBERS));
    }
    let mut words = [[0; 4]; 3];
    file.read_exact(words.as_flattened_mut())?;
    let path = file.path.clone();
    file.check()?;
    let [access, eviction, counting] = words.map(i32::from_le_bytes);
    let threshold = |name: &'static str, value: i32| match u32::try_from(value) {
        Ok(value) => Ok(Some(value)),
        Err(_) if value == -1 => Ok(None),
        Err(_) => Err(damaged("a threshold is negative", &path).with(name, value)),
    };
    let access = threshold("access", access)?.unwrap_or(0);
    let eviction = threshold("eviction", eviction)?;
    if !(0..=1).contains(&counting) {
        let error = damaged("whether keys are counted is neither 0 nor 1", &path);
        return Err(error.with("value", counting));
    }
    Ok((access, eviction, counting == 1))
}

/// The file of records, from its start on.
pub(super) struct Records {
    pub(super) file: SavedFile,
    /// Records that were not read yet.
    pub(super) left: u64,
    /// Greatest batch timestamp seen, in seconds since 1970.
    latest: u32,
    bytes: Vec<u8>,
}

impl Records {
    /// Reads what stands before the records.
    ///
    /// # Errors
    /// `DataLoss` for a size or a time that cannot be, `Io`.
    fn of(mut file: SavedFile) -> Result<Records> {
        let records = file.size.checked_sub(HEAD);
        let Some(bytes) = records.filter(|bytes| bytes % RECORD == 0) else {
            let message = "the history has a wrong size: not 8 + 24 n bytes";
            return Err(damaged(message, &file.path).with("bytes", file.size));
        };
        let mut head = [0; HEAD as usize];
        file.read_exact(&mut head)?;
        let latest = i64::from_le_bytes(head);
        if latest < 0 {
            return Err(damaged("the history's time is negative", &file.path).with("time", latest));
        }
        Ok(Records {
            file,
            left: bytes.checked_div(RECORD).unwrap_or(0),
            latest: u32::try_from(latest).unwrap_or(LATEST).min(LATEST),
            bytes: Vec::new(),
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
        self.file.read_exact(&mut self.bytes)?;
        let words: &[[[u8; 8]; 3]] = self.bytes.as_chunks().0.as_chunks().0;
        for record in words {
            let [key, count, last] = record.map(i64::from_le_bytes);
            let (Ok(many), Ok(time)) = (u64::try_from(count), u64::try_from(last)) else {
                let error = damaged("a key has a negative count or time", &self.file.path);
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

/// The history of a saved table, its files open and the small one checked.
pub(super) struct Found {
    pub(super) settings: Settings,
    pub(super) records: Records,
}

/// Opens the history in the directory of a table; None if it has none, or if something is wrong
/// with it, which goes to `errors`. `configured` is what the manifest says of it: without one, the
/// threshold in force stands for the configured one.
pub(super) fn find(
    dir: &Path,
    configured: Option<Option<u32>>,
    listing: &mut Listing,
    errors: &mut Vec<Error>,
) -> Option<Found> {
    let here = [THRESHOLDS, RECORDS].map(|name| match listing.lists(name) {
        Some(is_listed) => (name, is_listed.then(|| dir.join(name))),
        None => (name, unlisted(dir, name)),
    });
    if here.iter().all(|(_, path)| path.is_none()) {
        return None;
    }
    // If one of them is missing, its name is in the error.
    let [thresholds, records] = here.map(|(name, path)| -> Result<SavedFile> {
        let path = path.unwrap_or_else(|| dir.join(name));
        let file = SavedFile::open(&path, listing.take(name, &path)?)?;
        file.check_size()?;
        Ok(file)
    });
    let thresholds = thresholds.and_then(read_thresholds);
    let records = records.and_then(Records::of);
    let thresholds = thresholds.map_err(|error| errors.push(error)).ok();
    let records = records.map_err(|error| errors.push(error)).ok()?;
    let (access, eviction, counting) = thresholds?;
    let settings = Settings {
        access,
        eviction,
        counting,
        configured: configured.unwrap_or(Some(access)),
        latest: records.latest,
    };
    Some(Found { settings, records })
}

/// A history to load.
pub(super) struct HistoryReader {
    found: Found,
    /// The counters of keys without rows, if they are a sketch that the table can take.
    sketch: Option<SketchReader>,
}

impl HistoryReader {
    /// The history that was found in the directory of `table`.
    ///
    /// # Errors
    /// `DataLoss`, `NotFound` or `Io` with the file of the sketch.
    pub(super) fn new(table: &Table, found: Found, listing: &mut Listing) -> Result<Self> {
        let sketch = SketchReader::open(table, listing)?;
        Ok(Self { found, sketch })
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
                &first.found.records.file.path,
            ));
        }
        let mut settings = first.found.settings;
        let latest = parts.iter().map(|one| one.found.settings.latest).max();
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
        let records = &mut self.found.records;
        let path = records.file.path.clone();
        let named = |error: Error| error.with("path", path.display());
        if let Some(sketch) = &mut self.sketch {
            sketch.push(loading)?;
        }
        let mut known = Vec::new();
        while records.left > 0 {
            records.next(&mut known)?;
            if let Some(part) = only {
                known.retain(|&(key, _)| part.holds(key));
            }
            loading.import_history(pool, &known).map_err(named)?;
        }
        records.file.finish()
    }
}
