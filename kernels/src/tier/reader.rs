//! Many reads at once.

use super::{ReadAt, ReadFailure};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What reads batches.
#[derive(Debug)]
pub(super) struct Reader;

impl Reader {
    pub(super) fn new() -> Reader {
        Reader
    }

    pub(super) fn name(&self) -> &'static str {
        "threads"
    }

    pub(super) fn read<'f>(
        &self,
        file: impl Fn(usize) -> &'f File,
        reads: &mut [ReadAt<'_>],
    ) -> Result<(), ReadFailure> {
        for (at, read) in reads.iter_mut().enumerate() {
            file(read.directory)
                .read_exact_at(read.into, read.at)
                .map_err(|cause| ReadFailure { read: at, cause })?;
        }
        Ok(())
    }
}
