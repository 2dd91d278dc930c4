//! Which frames of memory to empty when rows need them.

use crate::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The highest count of a frame.
const MOST: u8 = 3;

/// A frame without a row.
const EMPTY: u8 = u8::MAX;

/// Chooses among frames that hold rows.
#[derive(Debug, Default)]
pub struct Policy {
    counts: Vec<AtomicU8>,
    hand: usize,
}

impl Policy {
    /// No frames.
    pub fn new() -> Policy {
        Policy::default()
    }

    /// A frame holds a row from now on, which is in use.
    pub fn admit(&mut self, frame: u32, row: u32) {
        let _ = row;
        let frame = frame as usize;
        if frame >= self.counts.len() {
            self.counts.resize_with(frame + 1, || AtomicU8::new(EMPTY));
        }
        *self.counts[frame].get_mut() = 0;
    }

    /// The row of a frame is used.
    #[inline(always)]
    pub fn touch(&self, frame: u32) {
        if let Some(count) = self.counts.get(frame as usize) {
            let was = count.load(Relaxed);
            if was < MOST {
                count.store(was + 1, Relaxed);
            }
        }
    }

    /// A frame holds no row any more.
    pub fn forget(&mut self, frame: u32) {
        if let Some(count) = self.counts.get_mut(frame as usize) {
            *count.get_mut() = EMPTY;
        }
    }

    /// Chooses `n` frames whose rows are to go, none of which is `pinned`, and appends them to
    /// `out`: they hold no row any more. Fewer if there are no more.
    pub fn victims(&mut self, n: usize, pinned: impl Fn(u32) -> bool, out: &mut Vec<u32>) {
        let end = out.len() + n;
        // Every count is 0 after so many turns.
        let mut left = self.counts.len() * (MOST as usize + 2);
        while out.len() < end && left > 0 {
            left -= 1;
            let frame = self.hand;
            self.hand = (frame + 1) % self.counts.len();
            let count = self.counts[frame].get_mut();
            match *count {
                EMPTY => {}
                0 if !pinned(frame as u32) => {
                    *count = EMPTY;
                    out.push(frame as u32);
                }
                0 => {}
                _ => *count -= 1,
            }
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.counts.capacity() as u64
    }
}
