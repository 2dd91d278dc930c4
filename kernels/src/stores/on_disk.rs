//! Goes through all rows on disk in the order of their places.

use super::tiered::{append, free, reserved, Tiered};
use super::{HalfRows, Waiting};
use crate::mem::NONE;
use crate::tier::Want;
use crate::{Pool, Result};

/// Places of the log that are listed at once, at least.
const WINDOW: usize = 4 << 20;

/// About so many passes are made over the places of a larger table.
const PASSES: usize = 64;

/// About so many bytes of records are read at once.
const BATCH_BYTES: usize = 8 << 20;

impl Tiered {
    /// Calls `f` with all rows on disk in the order of their places, some thousand at a time.
    ///
    /// Memory: 4 bytes for each of 4,194,304 places, or of a 64th of the places if that is more.
    ///
    /// # Errors
    /// The first error of `f`; `ResourceExhausted` without memory.
    pub(crate) fn each_on_disk(&self, f: &mut dyn FnMut(&[Want]) -> Result<()>) -> Result<()> {
        let mut wants = Vec::new();
        let mut windows = Windows::of(self)?;
        while windows.fill(self) {
            for want in windows.wants() {
                wants.push(want);
                if wants.len() == self.most_at_once() {
                    f(&wants)?;
                    wants.clear();
                }
            }
        }
        match wants.is_empty() {
            true => Ok(()),
            false => f(&wants),
        }
    }

    /// Brings the rows on disk to the state after the last step. Those that move are written anew,
    /// some thousand at a time. Memory as [`Tiered::each_on_disk`], and about 16 MiB.
    ///
    /// # Errors
    /// `DataLoss` for a record that is damaged, and what the files refuse; `ResourceExhausted`
    /// without memory. Rows that have not caught up wait as before.
    pub(crate) fn catch_up_on_disk(
        &mut self,
        pool: &Pool,
        waiting: &Waiting,
        halves: Option<&HalfRows>,
    ) -> Result<()> {
        let mut wants = Vec::new();
        // Places that rows are written to may be in later windows: these rows wait no more.
        let mut windows = Windows::of(self)?;
        while windows.fill(self) {
            for want in windows.wants().filter(|want| waiting.waits(want.row)) {
                wants.push(want);
                if wants.len() == self.most_at_once() {
                    self.catch_up_records(pool, (waiting, halves), &wants)?;
                    wants.clear();
                }
            }
        }
        self.catch_up_records(pool, (waiting, halves), &wants)?;
        self.log.give_back();
        Ok(())
    }

    fn catch_up_records(
        &mut self,
        pool: &Pool,
        (waiting, halves): (&Waiting, Option<&HalfRows>),
        wants: &[Want],
    ) -> Result<()> {
        let width = self.width();
        let (mut keys, mut floats) = (vec![0; wants.len()], vec![0.0; wants.len() * width]);
        self.log.read(pool, wants, &mut floats, &mut keys)?;
        let (mut rows, mut old, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        for (at, want) in wants.iter().enumerate() {
            let own = at * width..(at + 1) * width;
            let row = &mut floats[own.clone()];
            if waiting.catch_up(want.row, row, halves, &mut decoded) {
                floats.copy_within(own, rows.len() * width);
                keys[rows.len()] = keys[at];
                rows.push(want.row);
                old.push(want.place);
            }
        }
        let places = append(&self.log, &rows, &keys, &floats, width)?;
        for (row, place) in rows.into_iter().zip(places) {
            self.moved(row, place);
        }
        free(&self.log, &old);
        wants.iter().for_each(|want| waiting.note(want.row, 0));
        Ok(())
    }

    /// How many records are read at once.
    fn most_at_once(&self) -> usize {
        (BATCH_BYTES / (self.width() * size_of::<f32>())).max(1)
    }
}

/// Consecutive places, and whose they are.
struct Windows {
    /// The first place.
    start: usize,
    /// By place: the row there.
    rows: Vec<u32>,
    /// Places of a window.
    size: usize,
    /// Where the last window ends.
    end: usize,
}

impl Windows {
    /// Those of the places there are, before the first one is filled.
    fn of(tiered: &Tiered) -> Result<Windows> {
        let end = on_disk(tiered).map(|(_, place)| place + 1).max();
        let end = end.unwrap_or(0);
        let size = WINDOW.max(end / PASSES).min(end);
        Ok(Windows {
            start: 0,
            rows: reserved(size)?,
            size,
            end,
        })
    }

    /// Goes to the next window. False: there is none.
    fn fill(&mut self, tiered: &Tiered) -> bool {
        self.start += self.rows.len();
        self.rows.clear();
        self.rows.resize(self.size.min(self.end - self.start), NONE);
        for (row, place) in on_disk(tiered) {
            let at = place.checked_sub(self.start);
            if let Some(found) = at.and_then(|at| self.rows.get_mut(at)) {
                *found = row;
            }
        }
        !self.rows.is_empty()
    }

    /// The rows of the window.
    fn wants(&self) -> impl Iterator<Item = Want> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, &row)| row != NONE).map(|(at, &row)| Want {
            place: (self.start + at) as u32,
            row,
        })
    }
}

/// All rows on disk and their places.
fn on_disk(tiered: &Tiered) -> impl Iterator<Item = (u32, usize)> + '_ {
    let rows = 0..tiered.rows() as u32;
    rows.filter_map(|row| Some((row, tiered.on_disk(row)? as usize)))
}
