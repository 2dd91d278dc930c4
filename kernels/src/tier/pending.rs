//! A read that has to wait for the disk.

use std::fs::File;

/// A read of a batch that is not complete.
pub(super) struct Pending<'r> {
    /// Which of the batch.
    pub(super) number: usize,
    pub(super) file: &'r File,
    /// Where the next byte is, and where it goes.
    pub(super) at: u64,
    pub(super) into: &'r mut [u8],
}
