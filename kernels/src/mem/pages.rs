//! A zeroed array of fixed length that lives on huge pages when it is large.

use super::region::Region;
use crate::Result;
use std::ops::{Deref, DerefMut};

/// Arrays from this size on are mapped; below, the heap serves better.
const MAPPED: usize = 64 << 10;

/// Types for which zero bytes are a value.
///
/// # Safety
/// The all-zero bit pattern must be a valid value, and the type must be plain data.
pub(crate) unsafe trait Zeroable: Copy + Send + Sync {
    /// That value.
    const ZERO: Self;
}

/// `[T]` of a length chosen once, first all zero.
pub(crate) struct Pages<T: Zeroable> {
    len: usize,
    place: Place<T>,
}

enum Place<T> {
    Heap(Vec<T>),
    Mapped(Region),
}

impl<T: Zeroable> Pages<T> {
    /// An array of `len` zeros.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no memory.
    pub(crate) fn new(len: usize) -> Result<Pages<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        let place = if bytes < MAPPED {
            Place::Heap(vec![T::ZERO; len])
        } else {
            Place::Mapped(Region::new(bytes, 0)?)
        };
        Ok(Pages { len, place })
    }

    /// Bytes taken from the system.
    pub(crate) fn bytes(&self) -> usize {
        match &self.place {
            Place::Heap(_) => self.len * size_of::<T>(),
            Place::Mapped(region) => region.len(),
        }
    }
}

impl<T: Zeroable> Deref for Pages<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match &self.place {
            Place::Heap(values) => values,
            // SAFETY: the region holds `len * size_of::<T>()` bytes by construction, page-aligned, which is more than any
            // `T` here needs; they started as zeros, a valid `T`, and only `T`s were written since. `&self` forbids
            // writing for as long as the slice lives.
            Place::Mapped(region) => unsafe {
                std::slice::from_raw_parts(region.start().as_ptr().cast(), self.len)
            },
        }
    }
}

impl<T: Zeroable> DerefMut for Pages<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.place {
            Place::Heap(values) => values,
            // SAFETY: as for `deref`; `&mut self` makes this the only access.
            Place::Mapped(region) => unsafe {
                std::slice::from_raw_parts_mut(region.start().as_ptr().cast(), self.len)
            },
        }
    }
}
