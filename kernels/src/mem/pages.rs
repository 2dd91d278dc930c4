//! A zeroed array of fixed length that lives on huge pages when it is large.

use super::region::Region;
use crate::Result;
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

/// `[T]` of a length chosen once, first all zero.
///
/// Invariant: `start` is the first of `len` values that `owner` keeps alive and that nobody else
/// has a pointer to.
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
        region.touch();
        Ok(Pages {
            start: region.start().cast(),
            len,
            owner: Owner::Mapped(region),
        })
    }

    /// Bytes taken from the system.
    pub(crate) fn bytes(&self) -> usize {
        match &self.owner {
            Owner::Heap { .. } => self.len * size_of::<T>(),
            Owner::Mapped(region) => region.len(),
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
