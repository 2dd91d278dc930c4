//! A zeroed array that lives on huge pages when it is large, and can become longer where it is.

use super::available_memory;
use super::region::{Region, HUGE, PAGE};
use crate::{Error, Kind, Result};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Arrays from this size on are mapped; below, the heap serves better.
const MAPPED: usize = 32 << 10;

/// Types for which zero bytes are a value.
///
/// # Safety
/// The all-zero bit pattern must be a valid value, and the type must be plain data.
pub(crate) unsafe trait Zeroable: Copy + Send + Sync {
    /// That value.
    const ZERO: Self;
}

// SAFETY: an integer; zero is one.
unsafe impl Zeroable for u32 {
    const ZERO: u32 = 0;
}

/// `[T]`, first all zero.
///
/// ```text
/// mapped: | huge pages, as many as the array fills | small pages | room: address space only |
///         0                                   multiple of HUGE   len
/// ```
/// Invariant: `start` is the first of `len` values that `owner` keeps alive and that nobody else
/// has a pointer to. What `owner` has behind them is zeros or was never touched.
pub(crate) struct Pages<T: Zeroable> {
    start: NonNull<T>,
    len: usize,
    owner: Owner<T>,
}

enum Owner<T> {
    /// Never looked at again: it is there to be dropped.
    Heap {
        _values: Vec<T>,
    },
    Mapped(Region),
}

// SAFETY: this owns its values like a `Vec<T>`, and they are plain data.
unsafe impl<T: Zeroable> Send for Pages<T> {}
// SAFETY: as above; `&Pages` gives out `&[T]` only.
unsafe impl<T: Zeroable> Sync for Pages<T> {}

impl<T: Zeroable> Pages<T> {
    /// An array of `len` zeros.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(crate) fn new(len: usize) -> Result<Pages<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes < MAPPED {
            let mut values = vec![T::ZERO; len];
            let start = NonNull::new(values.as_mut_ptr()).unwrap_or(NonNull::dangling());
            return Ok(Pages {
                start,
                len,
                owner: Owner::Heap { _values: values },
            });
        }
        let mut region = Region::new(bytes, 0)?;
        region.touch(0, bytes);
        Ok(Pages::mapped(region, len))
    }

    /// An array of `len` zeros that can become `most` long where it is, if the system gives address
    /// space for that.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory for `len` of them.
    pub(crate) fn with_room(len: usize, most: usize) -> Result<Pages<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        let room = most.saturating_mul(size_of::<T>());
        if bytes < MAPPED || most <= len {
            return Pages::new(len);
        }
        available_memory::check(bytes as u64)?;
        let Ok(mut region) = Region::address_space(room) else {
            return Pages::new(len);
        };
        let small = huge_end(bytes);
        region.prefer_huge(0, small);
        region.prefer_small(small, room);
        region.touch(0, bytes);
        Ok(Pages::mapped(region, len))
    }

    /// Makes the array `len` long where it is. `None`: it was made without room for that, and is as
    /// it was. Else new values are zeros, and those from the returned place on, which were in the
    /// way of huge pages, are in `tail` instead: their places are zeros as well.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no memory; the array is as it was.
    pub(crate) fn extend(&mut self, len: usize, tail: &mut Vec<T>) -> Result<Option<usize>> {
        const { assert!(HUGE.is_multiple_of(size_of::<T>())) };
        let (old, new) = (
            self.len * size_of::<T>(),
            len.saturating_mul(size_of::<T>()),
        );
        let huge = huge_end(old)..huge_end(new);
        let kept = match huge.is_empty() {
            true => self.len,
            false => (huge.start / size_of::<T>()).min(self.len),
        };
        let values: &[T] = self;
        let moved = values.get(kept..).unwrap_or_default();
        let Owner::Mapped(region) = &self.owner else {
            return Ok(None);
        };
        if new <= old || new > region.len() {
            return Ok(None);
        }
        let more = new - old + size_of_val(moved);
        available_memory::check(more as u64)?;
        tail.clear();
        tail.try_reserve_exact(moved.len()).map_err(|_| {
            Error::new(Kind::ResourceExhausted, "no memory for an array to grow")
                .with("bytes", more)
        })?;
        tail.extend_from_slice(moved);
        // Nothing below this fails.
        let Owner::Mapped(region) = &mut self.owner else {
            return Ok(None);
        };
        if huge.is_empty() {
            region.touch(old.next_multiple_of(PAGE), new);
        } else {
            // A page that was small stays so, unless it goes first.
            region.release(huge.start, huge.start + HUGE);
            region.prefer_huge(huge.start, huge.end);
            region.touch(huge.start.min(old.next_multiple_of(PAGE)), new);
        }
        self.len = len;
        Ok(Some(kept))
    }

    /// The first `len` values of a region.
    fn mapped(region: Region, len: usize) -> Pages<T> {
        Pages {
            start: region.start().cast(),
            len,
            owner: Owner::Mapped(region),
        }
    }

    /// Bytes taken from the system.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = self.len * size_of::<T>();
        match &self.owner {
            Owner::Heap { .. } => bytes,
            Owner::Mapped(_) => bytes.next_multiple_of(PAGE),
        }
    }
}

impl<T: Zeroable> Deref for Pages<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: by the invariant `len` values lie at `start`, aligned: the heap aligns for `T`,
        // and a region is aligned to a page, more than any `T` here needs. They started as zeros, a
        // valid `T`, and only `T`s were written since. `&self` forbids writing for as long as the
        // slice lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for Pages<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Where the huge pages of an array of so many bytes end. What is left of it is on small pages,
/// unless it fills half of a huge one.
fn huge_end(bytes: usize) -> usize {
    match bytes < HUGE {
        true => 0,
        false => bytes.saturating_add(HUGE / 2) / HUGE * HUGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: an integer; zero is one.
    unsafe impl Zeroable for u64 {
        const ZERO: u64 = 0;
    }

    /// What is read of the values of an extended array: those of `tail`, and the others in place.
    fn joined(pages: &Pages<u64>, kept: usize, tail: &[u64], old: usize) -> Vec<u64> {
        let mut values = pages[..kept].to_vec();
        values.extend(tail);
        assert_eq!(values.len(), old);
        assert!(pages[kept..].iter().all(|&value| value == 0));
        values
    }

    #[test]
    fn an_array_with_room_becomes_longer_where_it_is() {
        const MIB: usize = (1 << 20) / size_of::<u64>();
        let most = 9 * MIB;
        let mut pages = Pages::with_room(MIB / 2, most).unwrap();
        let start = pages.as_ptr();
        let mut tail = Vec::new();
        // On small pages, over the first huge page, from small pages to a huge one that is half
        // empty, over several, to the end of the room.
        for (len, kept) in [
            (MIB, MIB / 2),
            (2 * MIB + 100, 0),
            (3 * MIB + 1, 2 * MIB),
            (7 * MIB, 3 * MIB + 1),
            (most, 7 * MIB),
        ] {
            let old = pages.len();
            let before: Vec<u64> = (0..old as u64).map(|at| at * 7 + len as u64).collect();
            pages.copy_from_slice(&before);
            assert_eq!(pages.extend(len, &mut tail).unwrap(), Some(kept));
            assert_eq!((pages.as_ptr(), pages.len()), (start, len));
            assert_eq!(joined(&pages, kept, &tail, old), before);
            assert_eq!(
                pages.bytes(),
                (len * size_of::<u64>()).next_multiple_of(PAGE)
            );
        }
        assert_eq!(pages.extend(most + 4096, &mut tail).unwrap(), None);
        assert_eq!(pages.len(), most);
    }

    #[test]
    fn an_array_without_room_stays_as_it_is() {
        let mut tail = Vec::new();
        for mut pages in [Pages::<u64>::new(5).unwrap(), Pages::new(1 << 16).unwrap()] {
            let len = pages.len();
            pages.fill(3);
            assert_eq!(pages.extend(len + 1000, &mut tail).unwrap(), None);
            assert!(pages.len() == len && pages.iter().all(|&value| value == 3));
        }
        // More address space than there is: the array has no room, and is there.
        let pages = Pages::<u64>::with_room(1 << 16, usize::MAX).unwrap();
        assert_eq!(pages.len(), 1 << 16);
    }

    #[test]
    fn an_array_that_gets_no_memory_is_as_it_was() {
        let available = available_memory::available().unwrap() as usize / size_of::<u64>();
        let mut pages = Pages::<u64>::with_room(1 << 16, 2 * available).unwrap();
        pages.fill(9);
        let error = pages.extend(available, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), Kind::ResourceExhausted);
        assert!(pages.len() == 1 << 16 && pages.iter().all(|&value| value == 9));
    }
}
