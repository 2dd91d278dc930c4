//! A storage of scratch files, one in each directory.

use super::reader::Reader;
use super::scratch::Scratch;
use super::{ReadAt, ReadFailure, Storage};
use crate::{Error, Result};
use rustix::fs::{fallocate, fstatvfs, FallocateFlags};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Scratch files in directories of a file system.
#[derive(Debug)]
pub struct Files {
    scratch: Vec<Scratch>,
    directories: Vec<PathBuf>,
    named: bool,
    reader: Reader,
}

impl Files {
    /// A new file in each of `directories`, which must exist and must not be links. What killed
    /// processes left there is removed; files of live ones are never touched.
    ///
    /// # Errors
    /// `InvalidArgument` for no directory, a link or what is none; `NotFound`; `Io` and
    /// `ResourceExhausted` where no file can be made. All name the directory.
    pub fn open(directories: &[PathBuf]) -> Result<Files> {
        Files::new(directories, false)
    }

    /// As [`Files::open`], with files that keep their names until they are dropped, as on file
    /// systems that need that.
    ///
    /// # Errors
    /// As for [`Files::open`].
    pub fn open_named(directories: &[PathBuf]) -> Result<Files> {
        Files::new(directories, true)
    }

    fn new(directories: &[PathBuf], named: bool) -> Result<Files> {
        if directories.is_empty() {
            return Err(Error::invalid("rows on disk need at least one directory"));
        }
        let scratch = directories
            .iter()
            .map(|directory| Scratch::new(directory, named))
            .collect::<Result<Vec<_>>>()?;
        Ok(Files {
            scratch,
            directories: directories.to_vec(),
            named,
            reader: Reader::new(),
        })
    }

    /// What reads: for logs of what a machine does.
    pub fn reader(&self) -> &'static str {
        self.reader.name()
    }
}

impl Storage for Files {
    fn directories(&self) -> usize {
        self.scratch.len()
    }

    fn name(&self, directory: usize) -> String {
        self.scratch[directory].path().display().to_string()
    }

    fn reserve(&self, directory: usize, from: u64, bytes: u64) -> io::Result<()> {
        let file = self.scratch[directory].file();
        match fallocate(file, FallocateFlags::empty(), from, bytes) {
            // The space is taken when it is written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn release(&self, directory: usize, from: u64, bytes: u64) -> io::Result<()> {
        let file = self.scratch[directory].file();
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(file, how, from, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn write(&self, directory: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.scratch[directory].file().write_all_at(bytes, at)
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) -> Result<(), ReadFailure> {
        self.reader.read(|at| self.scratch[at].file(), reads)
    }

    fn free_space(&self, directory: usize) -> io::Result<u64> {
        let found = fstatvfs(self.scratch[directory].file())?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn another(&self) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(Files::new(&self.directories, self.named)?))
    }
}
