//! Memory that begins at a page, for reads past the page cache, and what such reads need of files.

use crate::sync::Mutex;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Where reads past the page cache begin and end, in files and in memory: a multiple of what any
/// usual disk asks for (512 or 4096 bytes).
pub(super) const PAGE: usize = 4096;

/// Buffers that wait for the next batch, and the bytes of one that is kept.
const KEPT: usize = 4;
const MOST_KEPT: usize = 16 << 20;

/// The pages that hold some bytes of a file: the first byte of the first page, and how many bytes
/// they are.
pub(super) fn around(at: u64, bytes: usize) -> (u64, usize) {
    let page = PAGE as u64;
    let start = at - at % page;
    let end = (at + bytes as u64).next_multiple_of(page);
    (start, (end - start) as usize)
}

/// The same file again, for reads past the page cache.
///
/// # Errors
/// Those of the system; `InvalidInput` if the file system has no such reads.
pub(super) fn open_again(file: &File) -> io::Result<File> {
    // The only name of a file that has lost its own, or never had one.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(name, flags, Mode::empty())?))
}

/// Memory for pages, used again and again.
#[derive(Default)]
pub(super) struct Pages {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

impl Pages {
    /// Runs `f` on `bytes` bytes that begin at a page; what they hold is unspecified.
    pub(super) fn with<T>(&self, bytes: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = self.idle.lock().pop().unwrap_or_default();
        let room = bytes + PAGE;
        if buffer.len() < room {
            buffer = vec![0; room];
        }
        let start = buffer.as_ptr().align_offset(PAGE);
        let done = f(&mut buffer[start..start + bytes]);
        let mut idle = self.idle.lock();
        if idle.len() < KEPT && buffer.len() <= MOST_KEPT {
            idle.push(buffer);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::{around, open_again, Pages, PAGE};
    use std::fs::File;
    use std::io::ErrorKind;

    #[test]
    fn pages_around_bytes_hold_all_of_them_and_no_more() {
        for (at, bytes, expected) in [
            (0, 1, (0, 4096)),
            (4095, 1, (0, 4096)),
            (4095, 2, (0, 8192)),
            (4096, 4096, (4096, 4096)),
            (8191, 5000, (4096, 12288)),
            (1 << 40, 788, (1 << 40, 4096)),
        ] {
            assert_eq!(around(at, bytes), expected, "{at} {bytes}");
        }
    }

    #[test]
    fn memory_for_pages_begins_at_a_page_each_time() {
        let pages = Pages::default();
        for bytes in [0, 1, PAGE, 3 * PAGE, 2 * PAGE, 20 << 20] {
            pages.with(bytes, |memory| {
                assert_eq!((memory.len(), memory.as_ptr().addr() % PAGE), (bytes, 0));
            });
        }
    }

    #[test]
    fn a_file_system_without_such_reads_says_so() {
        let file = File::open("/proc/self/status").unwrap();
        let error = open_again(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
