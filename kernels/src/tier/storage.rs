//! What a log needs of whatever holds its bytes: one scratch file in each of several directories.

use std::io;
use std::sync::Arc;

/// One read of a batch.
#[derive(Debug)]
pub struct ReadAt<'b> {
    /// Whose file.
    pub directory: usize,
    /// The first byte.
    pub at: u64,
    /// To be filled.
    pub into: &'b mut [u8],
}

/// A batch of reads that failed.
#[derive(Debug)]
pub struct ReadFailure {
    /// Which of the reads: the first one that failed.
    pub read: usize,
    /// Why. A file that ends too early is `UnexpectedEof`.
    pub cause: io::Error,
}

/// Scratch files, one in each directory, directories numbered from 0.
///
/// What is written need not survive the process. Errors leave the files usable; what a failed
/// write was to replace is unspecified.
pub trait Storage: Send + Sync {
    /// How many directories there are, 1 or more.
    fn directories(&self) -> usize;

    /// What messages call the file of a directory: its path.
    fn name(&self, directory: usize) -> String;

    /// Takes space for bytes `from..from + bytes` of a file, so that writes there do not fail for
    /// want of it, as far as the file system can promise that.
    ///
    /// # Errors
    /// `StorageFull` and others of the system.
    fn reserve(&self, directory: usize, from: u64, bytes: u64) -> io::Result<()>;

    /// Gives the space of bytes `from..from + bytes` back; what they held is lost. Does nothing
    /// where the file system cannot.
    ///
    /// # Errors
    /// Those of the system.
    fn release(&self, directory: usize, from: u64, bytes: u64) -> io::Result<()>;

    /// Writes `bytes` from byte `at` of a file on.
    ///
    /// # Errors
    /// `StorageFull` and others of the system.
    fn write(&self, directory: usize, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills all of `reads`, which overlap in time.
    ///
    /// # Errors
    /// The first read, in the order of `reads`, that failed; no read is under way any more, and
    /// what the others hold is unspecified.
    fn read(&self, reads: &mut [ReadAt<'_>]) -> Result<(), ReadFailure>;

    /// Bytes that the file system of a directory still gives.
    ///
    /// # Errors
    /// Those of the system.
    fn free_space(&self, directory: usize) -> io::Result<u64>;

    /// Empty files in the same directories, of the same kind.
    ///
    /// # Errors
    /// Those of the system.
    fn another(&self) -> crate::Result<Arc<dyn Storage>>;
}
