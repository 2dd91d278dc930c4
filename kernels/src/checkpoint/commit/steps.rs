//! The steps that a commit takes on the disk, each told before it is taken, and what refuses them.

use crate::checkpoint::format::{full_disk, is_full};
use crate::checkpoint::rows::{DIR_MODE, FILE_MODE};
use crate::mem::exchange;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The result of a step.
pub(super) type Outcome<T> = std::result::Result<T, Refused>;

/// Why a commit cannot go on.
#[derive(Debug)]
pub enum Refused {
    /// The system refused a step; the paths are those of the step.
    System {
        /// What it said.
        cause: io::Error,
        /// What the step was about.
        path: PathBuf,
        /// Where something was to be renamed or linked to.
        other: Option<PathBuf>,
        /// How much was to be written, if anything was.
        bytes: Option<u64>,
    },
    /// Something else stands where a directory goes.
    NoDirectory(PathBuf),
    /// What is to be committed is not sound.
    Unsound(crate::Error),
}

impl Refused {
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Refused + '_ {
        Refused::system(path, None, None)
    }

    fn system<'a>(
        path: &'a Path,
        other: Option<&'a Path>,
        bytes: Option<u64>,
    ) -> impl FnOnce(io::Error) -> Refused + 'a {
        move |cause| Refused::System {
            cause,
            path: path.to_owned(),
            other: other.map(Path::to_owned),
            bytes,
        }
    }

    /// The error of a disk that is full, if this is one.
    pub fn full_disk(&self) -> Option<crate::Error> {
        match self {
            Refused::System {
                cause, path, bytes, ..
            } if is_full(cause) => Some(full_disk("save the tables", path, *bytes, cause)),
            _ => None,
        }
    }
}

impl From<crate::Error> for Refused {
    fn from(error: crate::Error) -> Refused {
        Refused::Unsound(error)
    }
}

/// What changes on the disk, or comes to be there for sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A directory is made.
    Make,
    /// A file is written.
    Write,
    /// A file or a directory is flushed to the disk.
    Flush,
    /// A file gets a second name.
    Link,
    /// A file is copied.
    Copy,
    /// A file or a directory is renamed.
    Rename,
    /// Two directories are exchanged. Where this is refused, they are renamed.
    Exchange,
    /// A file or a directory is removed. Where this is refused, it stays.
    Remove,
}

/// How much something that is told matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It is the usual.
    Info,
    /// Something had gone wrong before.
    Warning,
}

/// Takes steps on the disk and keeps what is to be told of them.
pub struct Steps<'a> {
    before: &'a mut dyn FnMut(Step, &Path) -> io::Result<()>,
    notes: Vec<(Level, String)>,
}

impl<'a> Steps<'a> {
    /// `before` is told of each step; an error of it is the system's.
    pub fn new(before: &'a mut dyn FnMut(Step, &Path) -> io::Result<()>) -> Steps<'a> {
        Steps {
            before,
            notes: Vec::new(),
        }
    }

    /// What is to be told to people, oldest first.
    pub fn into_notes(self) -> Vec<(Level, String)> {
        self.notes
    }

    pub(super) fn tell(&mut self, level: Level, text: String) {
        self.notes.push((level, text));
    }

    /// Makes a directory that is not there, with its parents if `with_parents`; then it may be.
    pub(super) fn make_dir(&mut self, path: &Path, with_parents: bool) -> Outcome<()> {
        if with_parents && path.is_dir() {
            return Ok(());
        }
        let mut builder = DirBuilder::new();
        builder.mode(DIR_MODE).recursive(with_parents);
        let made = (self.before)(Step::Make, path).and_then(|()| builder.create(path));
        made.map_err(Refused::at(path))
    }

    /// Writes a file that is not there and flushes it to the disk.
    pub(super) fn write(&mut self, path: &Path, content: &[u8]) -> Outcome<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        let written = (self.before)(Step::Write, path)
            .and_then(|()| options.open(path))
            .and_then(|mut file| file.write_all(content).map(|()| file))
            .and_then(|file| (self.before)(Step::Flush, path).and_then(|()| file.sync_all()));
        written.map_err(Refused::system(path, None, Some(content.len() as u64)))
    }

    /// Flushes a file or the entries of a directory to the disk.
    pub(super) fn flush(&mut self, path: &Path) -> Outcome<()> {
        let flushed = (self.before)(Step::Flush, path)
            .and_then(|()| File::open(path))
            .and_then(|file| file.sync_all());
        flushed.map_err(Refused::at(path))
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Outcome<()> {
        let renamed = (self.before)(Step::Rename, from).and_then(|()| fs::rename(from, to));
        renamed.map_err(Refused::system(from, Some(to), None))
    }

    /// Swaps two directories in one step; false where the system cannot.
    pub(super) fn exchange(&mut self, one: &Path, other: &Path) -> bool {
        let exchanged = (self.before)(Step::Exchange, one).and_then(|()| exchange(one, other));
        exchanged.is_ok()
    }

    /// Makes `to` a file with the content of `from`, or the same file if it may be that.
    pub(super) fn link(&mut self, from: &Path, to: &Path, may_share: bool) -> Outcome<()> {
        if may_share {
            let linked = (self.before)(Step::Link, from).and_then(|()| fs::hard_link(from, to));
            if linked.is_ok() {
                return Ok(());
            }
        }
        let copied = (self.before)(Step::Copy, from).and_then(|()| copy(from, to));
        copied.map_err(Refused::system(from, Some(to), None))?;
        self.flush(to)
    }

    /// Removes a file or a link, if the system lets us.
    pub(super) fn remove_file(&mut self, path: &Path) {
        if fs::symlink_metadata(path).is_ok() && (self.before)(Step::Remove, path).is_ok() {
            // What stays is found again by the next save.
            let _ = fs::remove_file(path);
        }
    }

    /// Removes a directory with what it holds, if the system lets us; no link is followed.
    pub(super) fn remove_tree(&mut self, path: &Path) {
        for name in list(path).unwrap_or_default() {
            let entry = path.join(name);
            if (self.before)(Step::Remove, &entry).is_err() {
                return;
            }
            let is_dir = fs::symlink_metadata(&entry).is_ok_and(|found| found.is_dir());
            // As above.
            let _ = if is_dir {
                fs::remove_dir_all(&entry)
            } else {
                fs::remove_file(&entry)
            };
        }
        if (self.before)(Step::Remove, path).is_ok() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The names in a directory, sorted. None of ours is other than UTF-8.
pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether something of this name is there, be it a link that leads nowhere.
pub(super) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Copies a file with its mode and its times.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    let found = fs::metadata(from)?;
    let times = FileTimes::new()
        .set_accessed(found.accessed()?)
        .set_modified(found.modified()?);
    OpenOptions::new().write(true).open(to)?.set_times(times)
}
