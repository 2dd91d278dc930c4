//! A piece of anonymous address space: zeros, committed as it is touched, given back when dropped.

use super::available_memory;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::Mutex;
use crate::{Error, Kind, Result};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The size and alignment of a huge page.
pub(super) const HUGE: usize = 2 << 20;

/// The size of a page when no huge one is to be had.
pub(super) const PAGE: usize = 4096;

/// An exclusively owned mapping of `len` zero bytes at `start`. Regions of at least [`HUGE`] bytes
/// are aligned to it.
pub(super) struct Region {
    start: NonNull<u8>,
    len: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: a region is plain memory that nobody else reads or writes; who may touch which part is up
// to its owner.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives out nothing but the address.
unsafe impl Sync for Region {}

/// `len` mapped bytes at `start`, which stay mapped for as long as this lives.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping gives no access to its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these are whole pages of a mapping that this owns, and nobody uses them after
        // their last owner.
        unsafe { unmap(self.start.as_ptr(), self.len) };
    }
}

/// Whole pages of a region that nobody has touched. Whichever thread is first asks the system for
/// them.
pub(crate) struct FreshPages {
    mapping: Arc<Mapping>,
    range: Range<usize>,
    asking: Mutex<()>,
    is_done: AtomicBool,
}

impl FreshPages {
    /// Asks the system for the pages, and changes no contents; waits for a thread that is about it.
    /// A kernel that cannot give them ahead gives them when they are touched.
    ///
    /// Two threads that touch a huge page for the first time make one each, and throw one away.
    pub(crate) fn ask(&self) {
        let _asking = self.asking.lock();
        if !self.is_done() {
            // SAFETY: the range lies in the mapping, which stays; its contents stay as they are,
            // so it does not matter who uses them meanwhile.
            unsafe {
                let address = self.mapping.start.as_ptr().add(self.range.start).cast();
                libc::madvise(address, self.range.len(), libc::MADV_POPULATE_WRITE);
            }
            self.is_done.store(true, Ordering::Release);
        }
    }

    /// Whether the system was asked and has answered.
    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Where they lie in memory.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.mapping.start.as_ptr().addr();
        start + self.range.start..start + self.range.end
    }
}

impl Region {
    /// Maps at least `bytes` (more than 0); asks for huge pages from byte `small` on.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses, or has not got so much.
    pub(super) fn new(bytes: usize, small: usize) -> Result<Region> {
        available_memory::check(bytes as u64)?;
        let mut region = Region::address_space(bytes)?;
        region.prefer_huge(small, region.len);
        Ok(region)
    }

    /// Maps at least `bytes` (more than 0), all or part of which may be touched later: who does so
    /// asks first how much memory there is.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses.
    pub(super) fn address_space(bytes: usize) -> Result<Region> {
        let refused = |cause: String| {
            Error::new(Kind::ResourceExhausted, "the system gives no more memory")
                .with("bytes", bytes)
                .with("cause", cause)
        };
        let len = bytes
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or_else(|| refused("the size overflows".into()))?;
        let spare = if len >= HUGE { HUGE } else { 0 };
        let mapped = len
            .checked_add(spare)
            .ok_or_else(|| refused("the size overflows".into()))?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory of
        // ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(refused(std::io::Error::last_os_error().to_string()));
        }
        let address = address.cast::<u8>();
        let before = if spare == 0 {
            0
        } else {
            address.align_offset(HUGE)
        };
        let start = address.wrapping_add(before);
        // SAFETY: two ranges of the mapping made above, each once: what lies before the region and
        // what lies behind it.
        unsafe {
            unmap(address, before);
            unmap(start.wrapping_add(len), mapped - before - len);
        }
        let start = NonNull::new(start).ok_or_else(|| refused("a mapping at address 0".into()))?;
        let mapping = Arc::new(Mapping { start, len });
        Ok(Region {
            start,
            len,
            mapping,
        })
    }

    /// The first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Mapped bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Asks for huge pages in `from..to`, whole pages.
    pub(super) fn prefer_huge(&mut self, from: usize, to: usize) {
        self.advise(from, to, libc::MADV_HUGEPAGE);
    }

    /// Asks for small pages in `from..to`, whole pages, also where the system prefers huge ones.
    pub(super) fn prefer_small(&mut self, from: usize, to: usize) {
        self.advise(from, to, libc::MADV_NOHUGEPAGE);
    }

    /// Moves contents that lie on small pages to huge ones. Where the system cannot at once, it may
    /// later.
    pub(super) fn collapse(&mut self, from: usize, to: usize) {
        self.prefer_huge(from, to);
        self.advise(from, to, libc::MADV_COLLAPSE);
    }

    fn advise(&mut self, from: usize, to: usize, advice: libc::c_int) {
        let to = to.min(self.len);
        if from < to {
            // SAFETY: the range lies in this mapping; the advice changes no contents. A kernel
            // without huge pages refuses it, which costs speed only.
            unsafe {
                libc::madvise(self.start.as_ptr().add(from).cast(), to - from, advice);
            }
        }
    }

    /// Commits the pages of `from..to`, which hold nothing yet or zeros. A page that is written
    /// before it is read costs one fault; one that is read first costs two, and with the second a
    /// word to every processor that runs this process.
    pub(super) fn touch(&mut self, from: usize, to: usize) {
        for at in (from..to.min(self.len)).step_by(PAGE) {
            // SAFETY: the byte lies in this mapping, and `&mut self` says that nobody else looks at
            // it. It is zero; written zero.
            unsafe { self.start.as_ptr().add(at).write_volatile(0) };
        }
    }

    /// The pages of `range`, whole pages within the region.
    pub(super) fn fresh_pages(&self, range: Range<usize>) -> FreshPages {
        let end = range.end.min(self.len);
        FreshPages {
            mapping: Arc::clone(&self.mapping),
            range: range.start.min(end)..end,
            asking: Mutex::new(()),
            is_done: AtomicBool::new(false),
        }
    }

    /// Gives the whole pages within `from..to` back to the system; they read as zeros afterwards.
    pub(super) fn release(&mut self, from: usize, to: usize) {
        let from = from.next_multiple_of(PAGE);
        let to = to.min(self.len) / PAGE * PAGE;
        if from < to {
            // SAFETY: the range lies in this mapping, and `&mut self` says that nobody else looks
            // at it.
            unsafe {
                let address = self.start.as_ptr().add(from).cast();
                libc::madvise(address, to - from, libc::MADV_DONTNEED);
            }
        }
    }
}

/// Unmaps `len` bytes; nothing if there are none.
///
/// # Safety
/// The bytes are whole pages of mappings of the caller, who unmaps each once, and nobody uses them
/// any more.
unsafe fn unmap(address: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: as the caller promises.
        unsafe { libc::munmap(address.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_region_is_aligned_zeroed_and_released() {
        let mut region = Region::new(3 * HUGE + 1, HUGE).unwrap();
        assert_eq!(region.start().as_ptr() as usize % HUGE, 0);
        assert_eq!(region.len(), 3 * HUGE + PAGE);
        let last = region.len() - 1;
        // SAFETY: both bytes lie in the region and nobody else has it.
        unsafe {
            assert_eq!(*region.start().as_ptr().add(last), 0);
            *region.start().as_ptr().add(last) = 7;
        }
        region.release(PAGE + 1, region.len());
        // SAFETY: as above.
        assert_eq!(unsafe { *region.start().as_ptr().add(last) }, 0);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        for bytes in [usize::MAX, usize::MAX / 2] {
            let error = Region::new(bytes, 0).err().unwrap();
            assert_eq!(error.kind(), Kind::ResourceExhausted);
        }
    }
}
