//! Files in blocks, with a caller who is told how far it is and may stop it.

use super::super::format::{cut_off, refused, BLOCK_BYTES};
use super::super::parts::open;
use crate::halves::from_bytes;
use crate::simd::Level;
use crate::{Error, Kind, Result, RowDtype};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How far a long reading is. The caller is told `(bytes done, bytes in all)` and answers whether
/// to go on.
pub(super) struct Progress<'a> {
    done: u64,
    total: u64,
    tell: &'a mut dyn FnMut(u64, u64) -> bool,
    stopped: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(total: u64, tell: &'a mut dyn FnMut(u64, u64) -> bool) -> Progress<'a> {
        Progress {
            done: 0,
            total,
            tell,
            stopped: false,
        }
    }

    /// Counts bytes that were read.
    ///
    /// # Errors
    /// `Io` if the caller wants no more.
    pub(super) fn advance(&mut self, bytes: usize) -> Result<()> {
        // Files may grow while they are read: never more than all.
        self.done = self.done.saturating_add(bytes as u64).min(self.total);
        if (self.tell)(self.done, self.total) {
            return Ok(());
        }
        self.stopped = true;
        Err(Error::new(Kind::Io, "the caller stopped it"))
    }

    /// Whether the caller stopped it: then an error is not the file's.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }
}

/// A file that is read from its start in blocks of at most 1 MiB.
pub(super) struct Stream {
    path: PathBuf,
    file: File,
    block: Vec<u8>,
}

impl Stream {
    pub(super) fn new(path: &Path, file: File) -> Stream {
        Stream {
            path: path.to_owned(),
            file,
            block: Vec::new(),
        }
    }

    /// Opens a plain file.
    pub(super) fn open(path: &Path) -> Result<Stream> {
        Ok(Stream::new(path, open(path)?.0))
    }

    /// The next bytes, as many as there are until `BLOCK_BYTES`; none at the end.
    pub(super) fn next(&mut self) -> Result<&[u8]> {
        self.block.resize(BLOCK_BYTES, 0);
        let mut filled = 0;
        while let Some(rest) = self.block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(refused("read a file", &self.path, cause)),
            }
        }
        self.block.truncate(filled);
        Ok(&self.block)
    }

    /// Fills `bytes` from where the last read ended.
    pub(super) fn read_exact(&mut self, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact(bytes);
        read.map_err(|cause| cut_off(cause, &self.path))
    }
}

/// The keys in whole records of `bytes`.
pub(super) fn keys(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    bytes
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, i64::from_le_bytes))
}

/// The values of a type in whole records of `bytes`, as floats.
pub(super) fn values_of(dtype: RowDtype, bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let value = move |bytes: &[u8]| match dtype.half() {
        None => bytes.try_into().map_or(0.0, f32::from_le_bytes),
        Some(half) => {
            let mut value = [0.0];
            from_bytes(Level::detect(), half, bytes, &mut value);
            value[0]
        }
    };
    bytes.chunks_exact(dtype.bytes()).map(value)
}
