//! Scratch files that a killed process does not leave behind.
//!
//! | the file system | the file | after a kill |
//! |---|---|---|
//! | makes files without a name (`O_TMPFILE`) | never has a name | nothing is left |
//! | lets go of the name of an open file | loses its name before the first byte | nothing is left |
//! | does neither | keeps its name, and its maker a lock on it | the next start removes it |
//!
//! A lock ends with its process, whichever way that ends. So a file of that name whose lock is
//! free is nobody's, and one whose lock is held is never touched.

use crate::{Error, Kind, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How the names of scratch files begin and end; in between the process and a number.
const PREFIX: &str = "mx_rec-rows-";
const SUFFIX: &str = ".scratch";

/// An open scratch file. Dropping it ends it, name and all.
#[derive(Debug)]
pub(super) struct Scratch {
    file: File,
    path: PathBuf,
    has_name: bool,
}

impl Scratch {
    /// A new file in `directory`, after what killed processes left there is removed. With `named`
    /// it keeps its name, as on file systems that cannot do without.
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument` for what is not a directory or a link to one, `Io`.
    pub(super) fn new(directory: &Path, named: bool) -> Result<Scratch> {
        check(directory)?;
        clean(directory);
        if !named {
            if let Ok(file) = unnamed(directory) {
                return Ok(Scratch {
                    file,
                    path: directory.join(format!("{PREFIX}{}{SUFFIX}", std::process::id())),
                    has_name: false,
                });
            }
        }
        let (file, path) = locked(directory)?;
        let has_name = named || fs::remove_file(&path).is_err();
        Ok(Scratch {
            file,
            path,
            has_name,
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Its path, or what that would be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.has_name {
            // Before the lock ends. If it fails, the next start does it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether `directory` may hold scratch files, as far as can be told without making one.
fn check(directory: &Path) -> Result<()> {
    let found = fs::symlink_metadata(directory).map_err(|cause| failed(directory, &cause))?;
    if found.is_symlink() || !found.is_dir() {
        let what = match found.is_symlink() {
            true => "a directory for rows on disk must not be a symbolic link",
            false => "rows on disk need a directory, and this is none",
        };
        return Err(Error::invalid(what).with("directory", directory.display()));
    }
    Ok(())
}

/// A file that never has a name.
fn unnamed(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
}

/// A file with a name and a lock.
fn locked(directory: &Path) -> Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("{PREFIX}{}-{number}{SUFFIX}", std::process::id());
        let path = directory.join(name);
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = match made {
            Ok(file) => file,
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(cause) => return Err(failed(directory, &cause)),
        };
        match file.try_lock() {
            // Somebody who cleans was faster with the lock: to them the file is nobody's.
            Err(TryLockError::WouldBlock) => continue,
            // Nobody can lock here, so that nobody who cleans takes the file for nobody's.
            Err(TryLockError::Error(_)) => {}
            Ok(()) if !is_at(&file, &path) => continue,
            Ok(()) => {}
        }
        return Ok((file, path));
    }
}

/// Whether `path` still names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(path)) => number(file) == number(path),
        _ => false,
    }
}

/// Removes the scratch files in `directory` whose processes are gone. What cannot be removed stays.
fn clean(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !name.starts_with(PREFIX) || !name.ends_with(SUFFIX) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else {
            continue;
        };
        if file.try_lock().is_ok() && is_at(&file, &path) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The error of a directory in which no file can be made.
fn failed(directory: &Path, cause: &io::Error) -> Error {
    let kind = match cause.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::ResourceExhausted,
        _ => Kind::Io,
    };
    Error::new(kind, "cannot make a file for rows on disk")
        .with("directory", directory.display())
        .with("cause", cause)
}
