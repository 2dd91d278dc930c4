//! Which frames of memory to empty when rows need them: S3-FIFO.
//!
//! Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. Rows that are seen
//! once pass through a small queue and are gone soon, so that reading a whole table pushes nothing
//! out that is in use; rows that come back soon after they went have a place in the main queue.
//!
//! ```text
//! new row --------> small queue --not used again--> out, remembered for a while
//!                       | used again                    |
//!                       v                               | comes back
//!                   main queue <------------------------+
//!                    |      ^ used since: count less one
//!                    v      |
//!                   out <---+
//! ```

use crate::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::collections::VecDeque;

/// The highest count of a frame.
const MOST: u8 = 3;

/// After so many turns of the main queue every count is 0 and its frame seen once more.
const TURNS: usize = MOST as usize + 1;

/// The bits of a frame's count.
const COUNT: u8 = 0b11;

/// It holds a row.
const HELD: u8 = 0b100;

/// It stands in a queue.
const QUEUED: u8 = 0b1000;

/// The small queue's share of the frames that hold rows: 1 / SHARE.
const SHARE: usize = 20;

/// Rows of a bucket of [`Ghosts`].
const BUCKET: usize = 8;

/// No row.
const NONE: u32 = u32::MAX;

/// Chooses among frames that hold rows.
#[derive(Debug, Default)]
pub struct Policy {
    /// Count and flags of each frame.
    states: Vec<AtomicU8>,
    /// The row of each frame.
    rows: Vec<u32>,
    /// Frames, oldest first. One that was emptied by its owner stays where it is, and has its place
    /// again when it is filled.
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: Ghosts,
}

impl Policy {
    /// No frames.
    pub fn new() -> Policy {
        Policy::default()
    }

    /// A frame holds a row from now on, which is in use.
    pub fn admit(&mut self, frame: u32, row: u32) {
        let at = frame as usize;
        if at >= self.states.len() {
            self.states.resize_with(at + 1, AtomicU8::default);
            self.rows.resize(at + 1, NONE);
            self.ghosts.grow(self.states.len());
        }
        let state = self.states[at].get_mut();
        let is_queued = *state & QUEUED != 0;
        *state = HELD | QUEUED;
        self.rows[at] = row;
        let came_back = self.ghosts.take(row);
        if !is_queued {
            match came_back {
                true => self.main.push_back(frame),
                false => self.small.push_back(frame),
            }
        }
    }

    /// The row of a frame is used.
    #[inline(always)]
    pub fn touch(&self, frame: u32) {
        if let Some(state) = self.states.get(frame as usize) {
            let was = state.load(Relaxed);
            if was & COUNT < MOST {
                state.store(was + 1, Relaxed);
            }
        }
    }

    /// A frame holds no row any more.
    pub fn forget(&mut self, frame: u32) {
        if let Some(state) = self.states.get_mut(frame as usize) {
            *state.get_mut() &= QUEUED;
        }
    }

    /// Chooses `n` frames whose rows are to go, none of which is `pinned`, and appends them to
    /// `out`: they hold no row any more. Fewer if there are no more.
    pub fn victims(&mut self, n: usize, pinned: impl Fn(u32) -> bool, out: &mut Vec<u32>) {
        let end = out.len() + n;
        // Who is pinned keeps its queue, at its end. The small queue is gone through once, the main
        // one until every count is 0.
        let (mut of_small, mut of_main) = (self.small.len(), self.main.len() * TURNS);
        while out.len() < end && of_small + of_main > 0 {
            let queued = self.small.len() + self.main.len();
            let from_small = of_small > 0 && (self.small.len() * SHARE > queued || of_main == 0);
            let (queue, left) = match from_small {
                true => (&mut self.small, &mut of_small),
                false => (&mut self.main, &mut of_main),
            };
            *left -= 1;
            let Some(frame) = queue.pop_front() else {
                *left = 0;
                continue;
            };
            let state = self.states[frame as usize].get_mut();
            if *state & HELD == 0 {
                *state = 0;
            } else if pinned(frame) {
                queue.push_back(frame);
            } else if *state & COUNT == 0 {
                *state = 0;
                if from_small {
                    self.ghosts.put(self.rows[frame as usize]);
                }
                out.push(frame);
            } else if from_small {
                *state &= !COUNT;
                self.main.push_back(frame);
                of_main += TURNS;
            } else {
                *state -= 1;
                self.main.push_back(frame);
            }
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        let queues = self.small.capacity() + self.main.capacity();
        (self.states.capacity() + 4 * (self.rows.capacity() + queues + self.ghosts.rows.len()))
            as u64
    }
}

/// Rows that went lately, about as many as there are frames: buckets of rows, the latest first.
#[derive(Debug, Default)]
struct Ghosts {
    rows: Vec<u32>,
}

impl Ghosts {
    /// Makes place for the rows of so many frames.
    fn grow(&mut self, frames: usize) {
        if frames > self.rows.len() {
            let size = frames.next_power_of_two().max(BUCKET);
            let old = std::mem::replace(&mut self.rows, vec![NONE; size]);
            // The oldest of each bucket first.
            for row in old.into_iter().rev().filter(|&row| row != NONE) {
                self.put(row);
            }
        }
    }

    fn bucket(&mut self, row: u32) -> &mut [u32] {
        let hash = row.wrapping_mul(0x9e37_79b9);
        let buckets = (self.rows.len() / BUCKET) as u64;
        let at = ((u64::from(hash) * buckets) >> 32) as usize * BUCKET;
        &mut self.rows[at..at + BUCKET]
    }

    fn put(&mut self, row: u32) {
        let bucket = self.bucket(row);
        bucket.rotate_right(1);
        bucket[0] = row;
    }

    /// Whether a row went lately. It is forgotten.
    fn take(&mut self, row: u32) -> bool {
        let bucket = self.bucket(row);
        let Some(at) = bucket.iter().position(|&one| one == row) else {
            return false;
        };
        bucket[at..].rotate_left(1);
        bucket[BUCKET - 1] = NONE;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn policy(frames: u32) -> Policy {
        let mut policy = Policy::new();
        (0..frames).for_each(|frame| policy.admit(frame, frame));
        policy
    }

    fn victims(policy: &mut Policy, n: usize) -> Vec<u32> {
        let mut out = Vec::new();
        policy.victims(n, |_| false, &mut out);
        out
    }

    #[test]
    fn rows_that_are_used_stay_while_a_scan_goes_through() {
        let mut policy = policy(100);
        (0..50).for_each(|frame| policy.touch(frame));
        // The other fifty go, and then those of the scan alone.
        for row in 100..1_000 {
            let gone = victims(&mut policy, 1);
            assert!(gone[0] >= 50, "row {row} took frame {}", gone[0]);
            policy.admit(gone[0], row);
            if row % 50 == 0 {
                (0..50).for_each(|frame| policy.touch(frame));
            }
        }
    }

    #[test]
    fn a_row_that_comes_back_soon_outlives_one_that_is_new() {
        let mut policy = policy(100);
        (1..100).for_each(|frame| policy.touch(frame));
        assert_eq!(victims(&mut policy, 1), [0]);
        policy.admit(0, 0);
        // The small queue is above its share from here on.
        (100..120).for_each(|frame| policy.admit(frame, frame));
        let gone = victims(&mut policy, 10);
        assert!(gone.iter().all(|&frame| frame >= 100), "{gone:?}");
    }

    #[test]
    fn what_is_pinned_stays_and_too_many_pins_give_fewer_victims() {
        for touches in 0..5 {
            let mut policy = policy(100);
            for _ in 0..touches {
                (0..100).for_each(|frame| policy.touch(frame));
            }
            let mut out = Vec::new();
            policy.victims(80, |frame| frame % 2 == 0, &mut out);
            out.sort_unstable();
            assert_eq!(
                out,
                (0..100).filter(|frame| frame % 2 == 1).collect::<Vec<_>>()
            );
            assert_eq!(victims(&mut policy, 100).len(), 50);
            assert!(victims(&mut policy, 1).is_empty());
        }
    }

    proptest! {
        #[test]
        fn every_frame_that_holds_a_row_is_given_out_once(
            verbs in proptest::collection::vec((0..5_u8, 0..40_u32), 1..300),
        ) {
            let (mut policy, mut held) = (Policy::new(), BTreeMap::new());
            for (verb, frame) in verbs {
                match verb {
                    0 | 1 => {
                        if held.insert(frame, frame * 3).is_none() {
                            policy.admit(frame, frame * 3);
                        }
                    }
                    2 => policy.touch(frame),
                    3 => {
                        if held.remove(&frame).is_some() {
                            policy.forget(frame);
                        }
                    }
                    _ => {
                        let n = frame as usize % 7;
                        let mut out = Vec::new();
                        policy.victims(n, |frame| frame % 5 == 0, &mut out);
                        let free = held.keys().filter(|&frame| frame % 5 != 0).count();
                        prop_assert_eq!(out.len(), n.min(free));
                        for frame in out {
                            prop_assert!(frame % 5 != 0 && held.remove(&frame).is_some());
                        }
                    }
                }
            }
            let out = victims(&mut policy, 100);
            prop_assert_eq!(out.len(), held.len());
            prop_assert!(out.iter().all(|frame| held.contains_key(frame)));
        }
    }
}
