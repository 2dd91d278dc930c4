//! A storage of scratch files, one in each directory.

use super::pages::open_again;
use super::reader::{self, ReadBy, Reader, Source};
use super::scratch::Scratch;
use super::{ReadAt, ReadFailure, Storage};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::{Error, Kind, Result};
use rustix::fs::{fadvise, fallocate, fdatasync, fstatvfs, Advice, FallocateFlags};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
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
    /// Of each file: itself again, for reads past the page cache. Empty if all go through it.
    direct: Vec<Option<File>>,
    /// A read past the page cache was refused after all.
    is_refused: AtomicBool,
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
            direct: Vec::new(),
            is_refused: AtomicBool::new(false),
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

    /// The same files, read past the page cache (`O_DIRECT`), in whole pages, where the file
    /// system allows that; what is written leaves the page cache as soon as it is on disk. Other
    /// files are read as before: [`Files::refused`] says which.
    pub fn past_page_cache(mut self) -> Files {
        let files = self.scratch.iter().map(Scratch::file);
        self.direct = files.map(|file| open_again(file).ok()).collect();
        self
    }

    /// The directories whose file system allows no reads past the page cache, if they were asked
    /// for.
    pub fn refused(&self) -> Vec<PathBuf> {
        let both = self.directories.iter().zip(&self.direct);
        let refused = both.filter(|(_, direct)| direct.is_none());
        refused.map(|(directory, _)| directory.clone()).collect()
    }

    /// The file of a directory for reads past the page cache.
    fn direct(&self, directory: usize) -> Option<&File> {
        let file = self.direct.get(directory)?.as_ref()?;
        (!self.is_refused.load(Relaxed)).then_some(file)
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

/// How this process reads rows that are not in memory from files in `directories`, past the page
/// cache if `is_direct` asks for that, for people: and why not, where it does not.
pub fn reads_by(directories: &[PathBuf], is_direct: bool) -> String {
    let means = reader::reads_by();
    if !is_direct {
        return means;
    }
    // Directories in which no file can be made are refused when the table is.
    let refused = Files::open(directories).map(|files| files.past_page_cache().refused());
    let refused: Vec<String> = refused
        .unwrap_or_default()
        .iter()
        .map(|directory| directory.display().to_string())
        .collect();
    match refused.is_empty() {
        true => format!("{means}, past the page cache"),
        false => format!(
            "{means}, past the page cache except in {}, whose file system refuses that",
            refused.join(", ")
        ),
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
        let file = self.scratch[directory].file();
        file.write_all_at(bytes, at)?;
        if self.direct(directory).is_some() {
            // Begins to write it to the disk: a read past the page cache would wait for that.
            let _ = fadvise(
                file,
                at,
                NonZeroU64::new(bytes.len() as u64),
                Advice::DontNeed,
            );
        }
        Ok(())
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) -> Result<(), ReadFailure> {
        let cached = |at: usize| Source {
            file: self.scratch[at].file(),
            is_direct: false,
        };
        if self.direct.is_empty() {
            return self.reader.read(cached, reads);
        }
        let source = |at: usize| match self.direct(at) {
            Some(file) => Source {
                file,
                is_direct: true,
            },
            None => cached(at),
        };
        match self.reader.read(source, reads) {
            // Some file systems open a file so, and refuse to read it.
            Err(failure) if failure.cause.kind() == io::ErrorKind::InvalidInput => {
                self.is_refused.store(true, Relaxed);
                self.reader.read(cached, reads)
            }
            outcome => outcome,
        }
    }

    fn free_space(&self, directory: usize) -> io::Result<u64> {
        let found = fstatvfs(self.scratch[directory].file())?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn another(&self) -> Result<Arc<dyn Storage>> {
        let files = Files::new(&self.directories, self.named)?;
        let files = files.read_by(self.reads_by())?;
        Ok(Arc::new(match self.direct.is_empty() {
            true => files,
            false => files.past_page_cache(),
        }))
    }
}
