//! Rows that wait for steps of an optimizer that moves all rows: since which step, and how they are
//! read meanwhile.

use super::ReadRows;
use crate::optim::{Decay, Missed};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// The step of a row that does not wait: it is frozen.
const NEVER: u16 = u16::MAX;

/// A table begins anew with its steps after a share of its rows, but not before so many.
const LEAST_STEPS: usize = 2048;

/// The part of the rows that each step may cost when all of them catch up at once.
const SHARE: usize = 16;

/// The steps that rows may have missed, and the last one of each row.
///
/// A row whose m and v are zeros misses nothing, whatever its last step is: so new rows, and those
/// that start again, need none.
pub(crate) struct Waiting {
    missed: Missed,
    /// Where m and v are in a row.
    starts: [usize; 2],
    dim: usize,
    /// By row. Rows beyond have come since the last step.
    last: Vec<AtomicU16>,
}

impl Waiting {
    /// No steps yet; none of the rows `frozen` ever waits.
    pub(crate) fn new(
        decay: Decay,
        starts: [usize; 2],
        (dim, rows): (usize, usize),
        frozen: &[u32],
    ) -> Waiting {
        let mut last = Vec::new();
        last.resize_with(rows, AtomicU16::default);
        for &row in frozen {
            if let Some(last) = last.get_mut(row as usize) {
                *last.get_mut() = NEVER;
            }
        }
        Waiting {
            missed: Missed::new(decay),
            starts,
            dim,
            last,
        }
    }

    /// Whether the next step, of so many rows, can be one more of these.
    pub(crate) fn takes(&self, decay: &Decay, starts: [usize; 2], rows: usize) -> bool {
        let most = (rows / SHARE).clamp(LEAST_STEPS, Missed::MOST);
        self.starts == starts && self.missed.is_of(decay) && self.missed.steps() < most
    }

    /// Makes room for so many rows.
    pub(crate) fn fit(&mut self, rows: usize) {
        if rows > self.last.len() {
            // They are new, and miss nothing.
            self.last.resize_with(rows, AtomicU16::default);
        }
    }

    /// Brings a row to the state after the last step, in place. Returns whether it had missed one.
    pub(crate) fn catch_up(&self, number: u32, row: &mut [f32]) -> bool {
        let Some(from) = self.from(number) else {
            return false;
        };
        let slot = |start: usize| row.get(start..start + self.dim).unwrap_or_default();
        let is_zero = |start| slot(start).iter().all(|&value| value == 0.0);
        if self.starts.into_iter().all(is_zero) {
            return false;
        }
        self.missed.catch_up(from, row, self.starts, self.dim);
        true
    }

    /// Notes that a row has got the step that comes next.
    pub(crate) fn stepped(&self, number: u32) {
        if let Some(last) = self.last.get(number as usize) {
            last.store(self.missed.steps() as u16 + 1, Relaxed);
        }
    }

    /// Ends a step.
    pub(crate) fn push(&mut self, lr: f32) {
        self.missed.push(lr);
    }

    /// Notes that a row has got another number.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        let last = self.last.get(from as usize).map(|last| last.load(Relaxed));
        if let (Some(last), Some(place)) = (last, self.last.get_mut(to as usize)) {
            *place.get_mut() = last;
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.missed.bytes() + self.last.capacity() * size_of::<AtomicU16>()
    }

    /// The last step of a row that has missed some.
    #[inline(always)]
    fn from(&self, number: u32) -> Option<usize> {
        let last = self.last.get(number as usize)?.load(Relaxed);
        (usize::from(last) < self.missed.steps()).then_some(usize::from(last))
    }
}

/// Rows of which some wait, to be read as they are after the last step.
pub(crate) struct CaughtUp<'w, S> {
    pub(crate) rows: &'w S,
    pub(crate) waiting: &'w Waiting,
}

impl<S: ReadRows> ReadRows for CaughtUp<'_, S> {
    const WAIT: bool = true;

    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        self.rows.row(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, _: usize) {
        self.rows
            .prefetch(row, self.waiting.starts[1] + self.waiting.dim);
    }

    #[inline(always)]
    fn now<'s>(&'s self, number: u32, row: &'s [f32], scratch: &'s mut [f32]) -> &'s [f32] {
        match self.waiting.from(number) {
            None => row,
            Some(from) => {
                let missed = &self.waiting.missed;
                missed.embedding(from, row, self.waiting.starts, scratch);
                scratch
            }
        }
    }
}

/// As [`with_rows`](super::with_rows), with the rows of a content as they are after the last step.
macro_rules! with_rows_now {
    ($content:expr, $rows:ident => $run:expr) => {
        $crate::stores::with_rows!(&$content.store, rows => match &$content.waiting {
            None => {
                let $rows = rows;
                $run
            }
            Some(waiting) => {
                let $rows = &$crate::stores::CaughtUp { rows, waiting };
                $run
            }
        })
    };
}
pub(crate) use with_rows_now;
