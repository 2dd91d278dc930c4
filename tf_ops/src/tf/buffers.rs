//! Memory of outputs beyond a few pages, which is used again from one step to the next.
//!
//! A step's embeddings are tens of megabytes. Fresh from the system, each page of them costs a
//! fault, which takes longer than writing it; and small pages cost address translation. Kept
//! buffers on huge pages have neither cost.
//!
//! Every byte of a buffer is initialised at all times: it comes as a zero page from the system, and
//! whoever had the buffer before wrote numbers. So an output hands out `&mut [T]` without an
//! unwritten element in it, and no page is filled for that.

use crate::kept::{self, Kept, Limits};
use std::ptr::NonNull;
use std::sync::LazyLock;

/// Outputs of so many bytes or more get a buffer from here. Below it, filling with zeros takes a
/// microsecond.
pub(super) const LARGE: usize = 64 << 10;

/// Size of a page; small buffers are multiples of it.
const PAGE: usize = 4 << 10;

/// Size and alignment of a huge page; buffers of [`ON_HUGE_PAGES`] or more are multiples of it.
const HUGE: usize = 2 << 20;

/// Buffers of so many bytes or more lie on huge pages.
const ON_HUGE_PAGES: usize = 1 << 20;

static KEPT: LazyLock<Kept<Buffer>> = LazyLock::new(|| {
    Kept::new(Limits {
        bytes: 256 << 20,
        buffers: 512,
    })
});

/// While one of these is there, buffers are kept for the next step.
#[derive(Debug)]
pub(crate) struct Hold(());

impl Hold {
    pub(crate) fn new() -> Self {
        KEPT.hold();
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        KEPT.release();
    }
}

/// Memory that nobody else refers to, initialised, and aligned to a page or a huge page.
#[derive(Debug)]
pub(super) struct Buffer {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a buffer is plain memory with one owner.
unsafe impl Send for Buffer {}

impl kept::Bytes for Buffer {
    fn bytes(&self) -> usize {
        self.size
    }
}

impl Buffer {
    /// `size` zeros (more than 0, a multiple of [`PAGE`], and of [`HUGE`] if they are to lie on
    /// huge pages).
    fn new(size: usize) -> Option<Buffer> {
        if size < ON_HUGE_PAGES {
            return Some(Buffer {
                start: map(size)?,
                size,
            });
        }
        let room = size.checked_add(HUGE)?;
        let first = map(room)?;
        let before = first.as_ptr().align_offset(HUGE);
        // SAFETY: `before + size <= room`: both parts around the buffer lie in the mapping made
        // above, start and end at pages, and nobody refers to them. The advice changes no contents;
        // a system without huge pages refuses it.
        unsafe {
            let start = first.add(before);
            unmap(first, before);
            unmap(start.add(size), room - before - size);
            libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
            Some(Buffer { start, size })
        }
    }

    /// Gives the memory up to be carried by two raw values; [`Buffer::from_raw`] takes it over
    /// again.
    pub(super) fn into_raw(self) -> (*mut u8, usize) {
        let raw = (self.start.as_ptr(), self.size);
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// The values come from one [`Buffer::into_raw`], and are taken over once.
    pub(super) unsafe fn from_raw(start: *mut u8, size: usize) -> Option<Buffer> {
        Some(Buffer {
            start: NonNull::new(start)?,
            size,
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: a mapping of this size that the buffer owns and that nobody refers to any more.
        unsafe { unmap(self.start, self.size) }
    }
}

/// `size` bytes of zero pages.
fn map(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new private mapping, at an address that the system chooses, touches no other
    // memory.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(start.cast())
}

/// Gives pages back to the system.
///
/// # Safety
/// They are whole pages of a mapping that [`map`] made, and nobody refers to them any more.
unsafe fn unmap(start: NonNull<u8>, size: usize) {
    if size > 0 {
        // SAFETY: the caller says so.
        unsafe { libc::munmap(start.as_ptr().cast(), size) };
    }
}

/// An initialised buffer of at least `bytes` (more than 0) with unspecified contents, or `None` if
/// there is no memory.
pub(super) fn take(bytes: usize) -> Option<Buffer> {
    let step = if bytes < ON_HUGE_PAGES { PAGE } else { HUGE };
    let size = bytes.checked_next_multiple_of(step)?;
    KEPT.take(size).or_else(|| Buffer::new(size))
}

/// Takes a buffer back, to be used again while there are tables.
pub(super) fn give_back(buffer: Buffer) {
    KEPT.give_back(buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(buffer: &mut Buffer) -> &mut [u8] {
        // SAFETY: the buffer owns so many initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.size) }
    }

    #[test]
    fn a_fresh_buffer_is_initialised_and_lies_on_whole_pages() {
        for (asked, size, alignment) in [
            (1, PAGE, PAGE),
            (LARGE + 1, LARGE + PAGE, PAGE),
            (ON_HUGE_PAGES - 1, ON_HUGE_PAGES, PAGE),
            (ON_HUGE_PAGES, HUGE, HUGE),
            (3 * HUGE - 5, 3 * HUGE, HUGE),
        ] {
            let mut buffer = take(asked).unwrap();
            assert_eq!(buffer.size, size);
            assert_eq!(buffer.start.as_ptr() as usize % alignment, 0);
            assert!(bytes(&mut buffer).iter().all(|&byte| byte == 0));
            bytes(&mut buffer).fill(7);
        }
    }

    #[test]
    fn a_buffer_that_came_back_serves_again_while_somebody_holds_them_open() {
        // Of a size that no other test uses.
        let size = 11 * HUGE;
        let hold = Hold::new();
        let first = take(size - 5).unwrap();
        let start = first.start;
        give_back(first);
        let (raw, len) = take(size - HUGE / 2).unwrap().into_raw();
        assert_eq!((raw, len), (start.as_ptr(), size));
        // SAFETY: the values of the line above, once.
        give_back(unsafe { Buffer::from_raw(raw, len) }.unwrap());
        drop(hold);
        assert!(KEPT.take(size).is_none());
    }

    #[test]
    fn memory_that_cannot_be_had_is_none() {
        assert!(take(usize::MAX).is_none());
        assert!(take(usize::MAX - 4 * HUGE).is_none());
    }
}
