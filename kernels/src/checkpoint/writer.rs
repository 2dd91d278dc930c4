//! Writes a table: its files beside the destination, then a rename.

use super::format::{
    is_slot_name, key_attribute, named, refused, ATTRIBUTE, DATA, KEY, MANIFEST, MAX_SLOTS, REMOVED,
};
use super::history::write_history;
use super::manifest::{Manifest, Recorded};
use super::rows::{flush, make_dir, sync_dir, write_rows, Written, DIR_MODE};
use super::steps::write_steps;
use crate::{Error, Kind, Pool, Result, Table};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Directories of earlier saves that were cut off may lie in the way of a new one; so many are
/// stepped over.
const ATTEMPTS: u32 = 10_000;

/// Writes the whole table into the directory `dir`, which is made with its parents.
///
/// The files hold one moment of the table: updates wait. All threads of the pool write them into a
/// hidden directory beside `dir`; they are flushed to the disk and renamed, so `dir` holds all of
/// the new content or all of the old. An earlier checkpoint of that name is replaced; anything else
/// of that name is left alone. Memory beside the table: what
/// [`Snapshot::for_each_row`](crate::Snapshot::for_each_row) needs, and about 1 MiB a thread.
///
/// Batches may be observed meanwhile: every key is in the history once, with what was known of it
/// at some moment of the save.
///
/// # Errors
/// `InvalidArgument` if `dir` has no name, exists and is no checkpoint, or a slot's name cannot be
/// a directory; `Io` or `NotFound` with the path for what the system refuses. After an error `dir`
/// is as it was.
pub fn save(table: &Table, pool: &Pool, dir: &Path) -> Result<Saved> {
    place(table, pool, dir, None)
}

/// What a save has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Rows in the files.
    pub rows: u64,
    /// Keys that a delta takes out.
    pub removed: u64,
    /// The epoch that ended with the save's snapshot, for later deltas; 0 if the table does not
    /// track changes.
    pub epoch: u32,
}

/// [`save`] of the rows only that changed after epoch `since`, at least `least` times since they
/// were last written, and of the keys that lost their rows after it. A row that is left out for
/// `least` is a candidate of the next delta, and counts on. The history is all there. Rows that
/// steps of [`Adam`](crate::Adam) alone have moved are left out: these steps are there, and a load
/// moves the rows of the earlier save by them, to the bits of a whole save.
///
/// [`Table::track_changes`] must be on, and `since` the epoch of a [`Saved`] or of a load of this
/// table. How often a row changed is how many gradients reached it: one for each lookup and step in
/// which its key occurred.
///
/// # Errors
/// As [`save`]; `InvalidArgument` if changes are not tracked, or the whole content was replaced
/// after `since`.
pub fn save_delta(table: &Table, pool: &Pool, dir: &Path, since: u32, least: u32) -> Result<Saved> {
    table.forget_told(since);
    let epoch = since;
    place(table, pool, dir, Some(Since { epoch, least }))
}

/// What a delta follows, and what it leaves out.
#[derive(Clone, Copy)]
struct Since {
    epoch: u32,
    least: u32,
}

/// Writes beside `dir`, then renames.
fn place(table: &Table, pool: &Pool, dir: &Path, since: Option<Since>) -> Result<Saved> {
    let name = dir
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| {
            Error::invalid("a checkpoint needs a directory with a name in UTF-8")
                .with("path", dir.display())
        })?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    replaceable(dir)?;
    make_dirs(parent)?;
    let fresh = Scratch::beside(parent, name, "saving")?;
    let saved = write(table, pool, &fresh.path, since)?;
    install(fresh, dir, parent, name)?;
    Ok(saved)
}

/// Refuses to replace what is not a checkpoint.
fn replaceable(dir: &Path) -> Result<()> {
    let refuse = |message: &str| Err(Error::invalid(message).with("path", dir.display()));
    match fs::symlink_metadata(dir) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(refused("look at a directory", dir, cause)),
        Ok(found) if !found.is_dir() => refuse("the destination exists and is no directory"),
        Ok(_) => {
            let mut entries = named(fs::read_dir(dir), "read a directory", dir)?;
            if entries.next().is_none() || dir.join(KEY).join(ATTRIBUTE).is_file() {
                return Ok(());
            }
            refuse("the destination exists and is no checkpoint of a table: remove it first")
        }
    }
}

/// Writes all files of a table into the empty directory `dir` and flushes them to the disk.
fn write(table: &Table, pool: &Pool, dir: &Path, since: Option<Since>) -> Result<Saved> {
    let snapshot = table.snapshot_on(pool);
    let slots = snapshot.slots().to_vec();
    if let Some(slot) = slots.iter().find(|slot| !is_slot_name(&slot.name)) {
        return Err(Error::invalid("a slot's name cannot be a directory").with("slot", &slot.name));
    }
    if slots.len() > MAX_SLOTS {
        return Err(Error::invalid("a table with so many slots cannot be saved")
            .with("slots", slots.len())
            .with("limit", MAX_SLOTS));
    }
    if let Some(since) = since.filter(|since| !snapshot.reaches(since.epoch)) {
        return Err(Error::invalid(
            "no delta can be made since then: changes are not tracked, or the content was replaced",
        )
        .with("table", &table.config().name)
        .with("since", since.epoch));
    }
    let epoch = snapshot.close();
    let keep = |row: u32| match since {
        Some(since) => snapshot.has_changed(row, since.epoch, since.least),
        None => true,
    };
    let (rows, mut files) = write_rows(&snapshot, pool, dir, &keep)?;
    let updates = snapshot.updates();
    let configured = write_history(&snapshot, pool, dir, &mut files)?;
    let mut removed = 0;
    if let Some(since) = since {
        let keys = snapshot.removed_since(since.epoch);
        removed = keys.len() as u64;
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        make_dir(&dir.join(REMOVED))?;
        let attribute = key_attribute(removed);
        let name = |file: &str| format!("{REMOVED}/{file}");
        files.push(Written::whole(dir, &name(ATTRIBUTE), &attribute)?);
        files.push(Written::whole(dir, &name(DATA), &bytes)?);
        files.extend(write_steps(&snapshot, since.epoch, dir)?);
    } else if rows != snapshot.rows() {
        return Err(Error::new(
            Kind::Internal,
            "a table gave another number of rows than it has",
        )
        .with("rows", snapshot.rows())
        .with("given", rows));
    }
    let written = since.unwrap_or(Since { epoch: 0, least: 0 });
    snapshot.written(written.epoch, written.least);
    drop(snapshot);
    let recorded: Vec<Recorded> = files.iter().map(|file| file.recorded.clone()).collect();
    let manifest = Manifest::bytes(
        table.config(),
        rows,
        &slots,
        since.is_some(),
        (configured, updates),
        &recorded,
    )?;
    files.push(Written::whole(dir, MANIFEST, &manifest)?);
    flush(pool, dir, files)?;
    Ok(Saved {
        rows,
        removed,
        epoch,
    })
}

/// A hidden directory that is removed with all it holds unless it was moved away.
struct Scratch {
    path: PathBuf,
    moved: bool,
}

impl Scratch {
    /// `parent/.name.purpose-<process>-<number>`, made anew.
    fn beside(parent: &Path, name: &str, purpose: &str) -> Result<Scratch> {
        let process = std::process::id();
        for attempt in 0..ATTEMPTS {
            let path = parent.join(format!(".{name}.{purpose}-{process}-{attempt}"));
            match DirBuilder::new().mode(DIR_MODE).create(&path) {
                Ok(()) => return Ok(Scratch { path, moved: false }),
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(refused("make a directory", &path, cause)),
            }
        }
        Err(
            Error::new(Kind::Io, "too many leftovers of earlier saves: remove them")
                .with("path", parent.display()),
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.moved {
            // Best effort: what stays behind is hidden and harms nothing.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Renames `fresh` to `dir`; an earlier checkpoint there is moved away first and removed last.
///
/// Another save of the same `dir` may do so at the same time: each starts over until it has its
/// turn, and the last stays.
fn install(mut fresh: Scratch, dir: &Path, parent: &Path, name: &str) -> Result<()> {
    let mut old = None;
    for _ in 0..ATTEMPTS {
        if fs::symlink_metadata(dir).is_ok() {
            let scratch = Scratch::beside(parent, name, "old")?;
            // A rename onto an empty directory replaces it.
            match fs::rename(dir, &scratch.path) {
                Ok(()) => old = Some(scratch),
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(refused("move the earlier checkpoint away", dir, cause)),
            }
        }
        let cause = match fs::rename(&fresh.path, dir) {
            Ok(()) => {
                fresh.moved = true;
                return sync_dir(parent);
            }
            Err(cause) => cause,
        };
        if matches!(
            cause.kind(),
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
        ) {
            continue;
        }
        let mut error = refused("rename a checkpoint into place", dir, cause);
        if let Some(mut old) = old {
            // Whether it comes back or not: the only good copy is not removed.
            old.moved = true;
            if fs::rename(&old.path, dir).is_err() {
                error = error.with("earlier_checkpoint", old.path.display());
            }
        }
        return Err(error);
    }
    Err(
        Error::new(Kind::Io, "other saves keep replacing this checkpoint")
            .with("path", dir.display()),
    )
}

/// Makes `dir` and its parents, each flushed into the directory that holds it.
fn make_dirs(dir: &Path) -> Result<()> {
    let missing: Vec<&Path> = dir
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .collect();
    let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir);
    named(made, "make a directory", dir)?;
    let holder = |dir: &Path| match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    };
    missing.into_iter().try_for_each(holder)
}
