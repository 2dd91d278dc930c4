//! Memory of large outputs, which is used again from one step to the next.
//!
//! A step's embeddings are tens of megabytes. Fresh from the system, each page of them costs a fault, which takes longer
//! than writing it; and small pages cost address translation. Kept buffers on huge pages have neither cost.

use parking_lot::Mutex;
use std::alloc::{alloc, dealloc, Layout};
use std::ptr::NonNull;

/// Outputs of so many bytes or more get a buffer from here.
pub(super) const LARGE: usize = 1 << 20;

/// Size and alignment of a huge page; buffers are multiples of it.
const HUGE: usize = 2 << 20;

/// Bytes that are kept at the most, in all.
const KEEP: usize = 256 << 20;

/// Memory that nobody else refers to, at least as long as asked for and aligned to a huge page.
#[derive(Debug)]
pub(super) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a buffer is plain memory with one owner.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(size: usize) -> Option<Buffer> {
        let layout = Layout::from_size_align(size, HUGE)
            .ok()
            .filter(|_| size > 0)?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the range is the allocation made above; the advice changes no contents, and a system without huge pages
        // refuses it.
        unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
        Some(Buffer { start, layout })
    }

    /// Gives the memory up to be carried by two raw values; [`Buffer::from_raw`] takes it over again.
    pub(super) fn into_raw(self) -> (*mut u8, usize) {
        let raw = (self.start.as_ptr(), self.layout.size());
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// The values come from one [`Buffer::into_raw`], and are taken over once.
    pub(super) unsafe fn from_raw(start: *mut u8, size: usize) -> Option<Buffer> {
        let layout = Layout::from_size_align(size, HUGE).ok()?;
        Some(Buffer {
            start: NonNull::new(start)?,
            layout,
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Buffers that wait to be used again, the latest last.
struct Kept {
    buffers: Vec<Buffer>,
    bytes: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    buffers: Vec::new(),
    bytes: 0,
});

/// A buffer of at least `bytes` (more than 0) with undefined contents, or `None` if there is no memory.
pub(super) fn take(bytes: usize) -> Option<Buffer> {
    let size = bytes.checked_next_multiple_of(HUGE)?;
    let fits = |buffer: &Buffer| (size..=size + size / 4).contains(&buffer.layout.size());
    let mut kept = KEPT.lock();
    if let Some(at) = kept.buffers.iter().rposition(fits) {
        let buffer = kept.buffers.remove(at);
        kept.bytes -= buffer.layout.size();
        return Some(buffer);
    }
    drop(kept);
    Buffer::new(size)
}

/// Takes a buffer back, to be used again or, beyond what is kept, in place of the oldest ones.
pub(super) fn give_back(buffer: Buffer) {
    let size = buffer.layout.size();
    if size > KEEP {
        return;
    }
    let mut kept = KEPT.lock();
    kept.buffers.push(buffer);
    kept.bytes += size;
    let mut too_many = 0;
    let mut bytes = kept.bytes;
    for buffer in &kept.buffers {
        if bytes <= KEEP {
            break;
        }
        too_many += 1;
        bytes -= buffer.layout.size();
    }
    kept.bytes = bytes;
    let old: Vec<Buffer> = kept.buffers.drain(..too_many).collect();
    drop(kept);
    drop(old);
}

/// Gives all that is kept back to the system.
pub(crate) fn release_all() {
    let mut kept = KEPT.lock();
    let old = std::mem::take(&mut kept.buffers);
    kept.bytes = 0;
    drop(kept);
    drop(old);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_came_back_serves_again_and_the_oldest_go_first() {
        let first = take(3 * HUGE - 5).unwrap();
        let start = first.start;
        give_back(first);
        let again = take(3 * HUGE - HUGE / 2).unwrap();
        assert_eq!(again.start, start);
        assert_eq!(start.as_ptr() as usize % HUGE, 0);
        give_back(again);
        let other = take(8 * HUGE).unwrap();
        assert_ne!(other.start, start);
        for _ in 0..3 {
            give_back(Buffer::new(KEEP / 2).unwrap());
        }
        give_back(other);
        let kept = KEPT.lock();
        assert!(kept.bytes <= KEEP);
        assert_eq!(
            kept.bytes,
            kept.buffers
                .iter()
                .map(|buffer| buffer.layout.size())
                .sum::<usize>()
        );
        assert!(kept.buffers.iter().all(|buffer| buffer.start != start));
        drop(kept);
        release_all();
        assert_eq!(KEPT.lock().bytes, 0);
    }
}
