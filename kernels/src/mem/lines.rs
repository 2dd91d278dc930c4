//! A buffer of numbers in whole cache lines, whose address is its own while it lives.

use super::prefetch::LINE;
use crate::keeper::Keep;
use std::ops::{Deref, DerefMut};

/// Numbers of one line.
const NUMBERS: usize = LINE / size_of::<i64>();

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i64; NUMBERS]);

/// Numbers that start at a cache line. Also an empty buffer has a line, so that no two buffers
/// share an address.
///
/// Invariant: `len <= lines.len() * NUMBERS`, and there is a line.
pub(crate) struct Lines {
    lines: Vec<Line>,
    len: usize,
}

impl Lines {
    /// `len` zeros.
    pub(crate) fn new(len: usize) -> Lines {
        let lines = vec![Line([0; NUMBERS]); len.div_ceil(NUMBERS).max(1)];
        Lines { lines, len }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// How many numbers fit.
    pub(crate) fn room(&self) -> usize {
        self.lines.len() * NUMBERS
    }

    /// Makes the buffer `len` long, at most [`Lines::room`]; what it holds is unspecified.
    pub(crate) fn fit(&mut self, len: usize) {
        self.len = len.min(self.room());
    }
}

impl Keep for Lines {
    fn bytes(&self) -> usize {
        Lines::bytes(self)
    }
}

impl Deref for Lines {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        // SAFETY: by the invariant the lines hold `len` numbers without padding between them, all
        // initialised.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [i64] {
        // SAFETY: as above; `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_starts_at_a_line_of_its_own() {
        let mut buffers: Vec<Lines> = [0, 1, 8, 9, 1000].map(Lines::new).into();
        let mut starts: Vec<usize> = buffers.iter().map(|lines| lines.as_ptr().addr()).collect();
        assert!(starts.iter().all(|start| start % LINE == 0));
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), buffers.len());
        let rooms: Vec<usize> = buffers.iter().map(Lines::room).collect();
        assert_eq!(rooms, [8, 8, 8, 16, 1000]);
        buffers[4].fill(7);
        buffers[4].fit(3);
        assert_eq!(buffers[4][..], [7; 3]);
        buffers[4].fit(2000);
        assert_eq!(buffers[4].len(), 1000);
    }
}
