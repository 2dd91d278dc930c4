//! A storage of scratch files, one in each directory.

use super::reader::{ReadBy, Reader};
use super::scratch::Scratch;
use super::{ReadAt, ReadFailure, Storage};
use crate::{Error, Kind, Result};
use rustix::fs::{fadvise, fallocate, fdatasync, fstatvfs, Advice, FallocateFlags};
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
            .map(|directory| {
                let scratch = Scratch::new(directory, named)?;
                // Rows are read one by one, so that reading ahead is of no use. Where the system
                // does not hear of it, it is slower.
                let _ = fadvise(scratch.file(), 0, None, Advice::Random);
                Ok(scratch)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Files {
            scratch,
            directories: directories.to_vec(),
            named,
            reader: Reader::new(),
        })
    }

    /// The same files, read in another way than the one that was found best.
    ///
    /// # Errors
    /// `Io` if the system does not have it.
    pub fn read_by(mut self, kind: ReadBy) -> Result<Files> {
        self.reader = Reader::of(kind).map_err(|cause| {
            Error::new(Kind::Io, "cannot read in this way").with("cause", cause)
        })?;
        Ok(self)
    }

    /// What reads.
    pub fn reads_by(&self) -> ReadBy {
        self.reader.kind()
    }

    /// Writes what is not written yet and drops the files from the page cache: to measure what
    /// disks do.
    ///
    /// # Errors
    /// `Io`.
    pub fn drop_cache(&self) -> Result<()> {
        for scratch in &self.scratch {
            let file = scratch.file();
            fdatasync(file)
                .and_then(|()| fadvise(file, 0, None, Advice::DontNeed))
                .map_err(|cause| {
                    Error::new(Kind::Io, "cannot drop a file from memory")
                        .with("file", scratch.path().display())
                        .with("cause", cause)
                })?;
        }
        Ok(())
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
        let files = Files::new(&self.directories, self.named)?;
        Ok(Arc::new(files.read_by(self.reads_by())?))
    }
}
