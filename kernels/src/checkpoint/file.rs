//! A file of a saved table: read from its start on or in places, and compared with what the
//! manifest says of it.

#![deny(clippy::arithmetic_side_effects)]

use super::format::{cut_off, damaged, named, read_digits, write_digits, BLOCK_BYTES};
use crate::{Kind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size and checksum of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Seal {
    pub(super) bytes: u64,
    /// CRC-32C, eight hexadecimal digits in JSON.
    #[serde(deserialize_with = "read_digits", serialize_with = "write_digits")]
    pub(super) crc32c: u32,
}

/// An open file, which was a plain one.
pub(super) struct SavedFile {
    pub(super) path: PathBuf,
    file: File,
    /// Bytes that it had when it was opened.
    pub(super) size: u64,
    /// Those that were not read yet.
    left: u64,
    /// What it should be, if its manifest has checksums.
    pub(super) expected: Option<Seal>,
    /// The checksum of what was read, if there is one to compare.
    crc: u32,
}

impl SavedFile {
    /// Opens a plain file and asks for its size.
    pub(super) fn open(path: &Path, expected: Option<Seal>) -> Result<SavedFile> {
        // Before the file is opened: a pipe would wait for its other end.
        let found = named(fs::metadata(path), "find a file of the checkpoint", path)?;
        if !found.is_file() {
            return Err(damaged("a part of the checkpoint is no plain file", path));
        }
        let file = named(File::open(path), "open a file", path)?;
        let size = named(file.metadata(), "look at a file", path)?.len();
        Ok(SavedFile {
            path: path.to_owned(),
            file,
            size,
            left: size,
            expected,
            crc: 0,
        })
    }

    /// Refuses another size than the manifest says.
    pub(super) fn check_size(&self) -> Result<()> {
        match self.expected {
            Some(expected) if expected.bytes != self.size => Err(damaged(
                "a file has another size than the manifest says",
                &self.path,
            )
            .with("bytes", self.size)
            .with("manifest", expected.bytes)),
            _ => Ok(()),
        }
    }

    /// After everything was read: compares size and checksum.
    pub(super) fn finish(&self) -> Result<()> {
        self.check_size()?;
        match self.expected {
            Some(expected) if expected.crc32c != self.crc => Err(damaged(
                "a file's checksum is not the manifest's",
                &self.path,
            )
            .with("crc32c", format_args!("{:08x}", self.crc))
            .with("manifest", format_args!("{:08x}", expected.crc32c))),
            _ => Ok(()),
        }
    }

    /// If there is something to compare: reads what was not read yet, then as
    /// [`SavedFile::finish`].
    pub(super) fn check(mut self) -> Result<()> {
        self.check_size()?;
        if self.expected.is_some() {
            self.each_block(&mut |_| Ok(true))?;
        }
        self.finish()
    }

    /// Fills `bytes` with the next ones.
    pub(super) fn read_exact(&mut self, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact(bytes);
        read.map_err(|cause| cut_off(cause, &self.path))?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        if self.expected.is_some() {
            self.crc = crc32c::crc32c_append(self.crc, bytes);
        }
        Ok(())
    }

    /// Calls `f` with what was not read yet, in blocks of 1 MiB, until it answers false.
    pub(super) fn each_block(&mut self, f: &mut dyn FnMut(&[u8]) -> Result<bool>) -> Result<()> {
        let mut block = Vec::new();
        while self.left > 0 {
            block.resize(self.left.min(BLOCK_BYTES as u64) as usize, 0);
            self.read_exact(&mut block)?;
            if !f(&block)? {
                break;
            }
        }
        Ok(())
    }

    /// Fills `bytes` with those from `start` on; [`SavedFile::append`] takes in their checksum.
    pub(super) fn read_at(&self, bytes: &mut [u8], start: u64) -> Result<()> {
        let read = self.file.read_exact_at(bytes, start);
        read.map_err(|cause| cut_off(cause, &self.path))
    }

    /// Takes in the checksum of the next `bytes` bytes.
    pub(super) fn append(&mut self, crc: u32, bytes: usize) {
        if self.expected.is_some() {
            self.crc = crc32c::crc32c_combine(self.crc, crc, bytes);
        }
    }
}

/// A file's bytes, at most `limit`; `None` if there is none.
pub(super) fn content(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let file = match SavedFile::open(path, None) {
        Ok(opened) => opened.file,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let read = file.take(limit).read_to_end(&mut bytes);
    named(read, "read a file", path)?;
    Ok(Some(bytes))
}
