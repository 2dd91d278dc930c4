//! Dirty pages of files on their way to the disk early, so that the flush at the end is short.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Starts to write `len` bytes of `file` from `start` on to the disk and does not wait. Only speed
/// depends on it.
pub(crate) fn start_writeback(file: &File, start: u64, len: u64) {
    let (Ok(start), Ok(len)) = (i64::try_from(start), i64::try_from(len)) else {
        return;
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the call touches no
    // memory of the process. What a file system refuses is left to the flush.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE);
    }
}
