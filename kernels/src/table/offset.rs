//! Offsets: a row number with the generation in which it was given out, so that a copy of an offset is as safe as the original.
//!
//! ```text
//! bit 63  62 .. 31      30 .. 0
//!     0   generation    row            generation is never 0
//! ```
//! -1 is padding, and 0 is nobody's: TensorFlow starts the accumulators of gradients in loops with index 0 and value 0. Every other
//! number that is not positive was never given out.
//!
//! The generation of a table moves on whenever a row leaves its key. [`Births`] notes for rows that are used again since when
//! they belong to their present key: an offset that is older is *stale*. A table whose rows never leave their keys stays in its
//! first generation and notes nothing.

use super::flight::Map;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a row number.
const ROW_BITS: u32 = 31;

/// The most rows of a table, those that wait to be used again included.
pub(super) const MAX_ROWS: usize = 1 << ROW_BITS;

/// How many stamps there are: all 32-bit numbers but 0.
const STAMPS: u32 = u32::MAX;

/// After so many generations offsets from before them are refused as those of a replaced content, so that births fit in 32 bits and no
/// stamp comes twice among those that are accepted.
const WINDOW: u64 = 1 << 31;

/// In the state of a [`Generation`]: an offset of it may have been given out.
const GIVEN: u64 = 1;

/// The row number in an offset that this table has given out.
#[inline(always)]
pub(super) fn row_of(offset: i64) -> u32 {
    offset as u32 & (MAX_ROWS as u32 - 1)
}

/// The generation of a table: a count that starts at 0, and its stamps, which start anywhere, so that the offset of another table
/// is recognised.
///
/// It moves on only if an offset may have been given out since it last did. Who gives offsets out holds the index, who moves it on has
/// the content for writing.
pub(super) struct Generation {
    /// `count << 1 | given`.
    state: AtomicU64,
    /// The first stamp, less 1.
    start: u32,
}

impl Default for Generation {
    fn default() -> Self {
        let start = RandomState::new().hash_one(0_u8) % u64::from(STAMPS);
        Generation {
            state: AtomicU64::new(0),
            start: start as u32,
        }
    }
}

impl Generation {
    /// The present generation in its place in an offset, to be given out with rows that belong to their keys now: `give() | row`.
    #[inline]
    pub(super) fn give(&self) -> i64 {
        let mut state = self.state.load(Ordering::Acquire);
        if state & GIVEN == 0 {
            state = self.state.fetch_or(GIVEN, Ordering::AcqRel);
        }
        self.stamp(state >> 1)
    }

    /// The present generation in its place in an offset.
    pub(super) fn present(&self) -> i64 {
        self.stamp(self.count())
    }

    /// How often it has moved on.
    fn count(&self) -> u64 {
        self.state.load(Ordering::Acquire) >> 1
    }

    /// Moves on, so that all offsets there are become those of an older generation. Returns the count.
    fn advance(&self) -> u64 {
        let state = self.state.load(Ordering::Acquire);
        let count = (state >> 1) + (state & GIVEN);
        if state & GIVEN != 0 {
            self.state.store(count << 1, Ordering::Release);
        }
        count
    }

    /// The generation of a count, in its place in an offset.
    #[inline]
    fn stamp(&self, count: u64) -> i64 {
        let turned = (u64::from(self.start) + count) % u64::from(STAMPS);
        ((turned + 1) << ROW_BITS) as i64
    }

    /// The count in which an offset was given out; `None` if this table cannot have done it.
    fn count_of(&self, offset: i64) -> Option<u64> {
        let stamp = u64::try_from(offset >> ROW_BITS).ok()?.checked_sub(1)?;
        let count = self.count();
        let now = (u64::from(self.start) + count) % u64::from(STAMPS);
        let turn = if now < stamp { u64::from(STAMPS) } else { 0 };
        let age = now + turn - stamp;
        count.checked_sub(age)
    }
}

/// Why an offset is not that of a row and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// The key was removed. The row is still its own, because a lease holds it: it may be read, and must not be changed.
    Retired(u32),
    /// The key was removed or its row moved; the row is free or another key's.
    Stale,
    /// The content was replaced.
    Replaced,
    /// The table never gave it out.
    Unknown,
}

/// Since when rows belong to their keys; the state behind the content's lock.
#[derive(Default)]
pub(super) struct Births {
    /// The count when the content was made: births count from here.
    floor: u64,
    /// By row: the generation since which it belongs to its key. 0, also beyond the end: it never left its first one.
    births: Vec<u32>,
    /// How many rows there ever were.
    high: usize,
    /// Rows whose keys were removed while leases hold them, with the births that the keys' offsets have.
    retired: Map<u32, u32>,
}

impl Births {
    /// Those of a content that takes the place of another one, with so many rows.
    pub(super) fn renewed(generation: &Generation, rows: usize) -> Births {
        Births {
            floor: generation.advance(),
            high: rows,
            ..Births::default()
        }
    }

    /// Rows leave their keys: offsets that were given out until now are older than all that follow.
    pub(super) fn advance(&mut self, generation: &Generation) {
        let count = generation.advance();
        if count - self.floor >= WINDOW {
            *self = Births {
                floor: count,
                high: self.high,
                ..Births::default()
            };
        }
    }

    /// Rows `rows` have become those of other keys. Rows behind the end that never were are left out.
    pub(super) fn renew(&mut self, generation: &Generation, rows: impl Iterator<Item = usize>) {
        let born = self.since_floor(generation);
        for row in rows {
            if row < self.high {
                if row >= self.births.len() {
                    self.births.resize(row + 1, 0);
                }
                self.births[row] = born;
            }
        }
    }

    /// There are `rows` rows.
    pub(super) fn grown(&mut self, rows: usize) {
        self.high = self.high.max(rows);
    }

    /// Rows from `rows` on are gone; should they come again, [`Births::renew`] notes it.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.births.truncate(rows);
        self.births.shrink_to_fit();
    }

    /// A row that a lease holds has left its key, just after [`Births::advance`].
    pub(super) fn retire(&mut self, generation: &Generation, row: u32) {
        let before = self.births.get(row as usize).copied().unwrap_or(0);
        self.renew(generation, std::iter::once(row as usize));
        self.retired.insert(row, before);
    }

    /// No lease holds these rows any more.
    pub(super) fn release(&mut self, rows: &[u32]) {
        if !self.retired.is_empty() {
            for row in rows {
                self.retired.remove(row);
            }
        }
    }

    /// What an offset stands for that is not of the present generation; `is_used` says which rows are there and not free.
    pub(super) fn judge(
        &self,
        generation: &Generation,
        offset: i64,
        is_used: impl Fn(u32) -> bool,
    ) -> Result<u32, Unfit> {
        let given = generation.count_of(offset).ok_or(Unfit::Unknown)?;
        let given = given.checked_sub(self.floor).ok_or(Unfit::Replaced)?;
        let row = row_of(offset);
        if row as usize >= self.high {
            return Err(Unfit::Unknown);
        }
        if !is_used(row) {
            return Err(Unfit::Stale);
        }
        let born = self.births.get(row as usize).copied().unwrap_or(0);
        if given >= u64::from(born) {
            return Ok(row);
        }
        match self.retired.get(&row) {
            Some(&before) if given >= u64::from(before) => Err(Unfit::Retired(row)),
            _ => Err(Unfit::Stale),
        }
    }

    /// Bytes held, about.
    pub(super) fn bytes(&self) -> usize {
        4 * self.births.capacity() + 16 * self.retired.capacity()
    }

    /// The present count from the floor on, which [`WINDOW`] keeps small.
    fn since_floor(&self, generation: &Generation) -> u32 {
        u32::try_from(generation.count() - self.floor).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u32, count: u64) -> Generation {
        Generation {
            state: AtomicU64::new(count << 1),
            start,
        }
    }

    #[test]
    fn a_generation_moves_on_only_after_it_was_given_out() {
        let generation = at(7, 0);
        assert_eq!((generation.advance(), generation.advance()), (0, 0));
        let first = generation.give();
        assert_eq!(first, 8 << ROW_BITS);
        assert_eq!(generation.give(), first);
        assert_eq!((generation.advance(), generation.advance()), (1, 1));
        assert_eq!(generation.give(), 9 << ROW_BITS);
    }

    #[test]
    fn stamps_wrap_without_0_and_tell_their_count() {
        let generation = at(u32::MAX - 2, 0);
        let mut stamps = Vec::new();
        for count in 0..4 {
            stamps.push(generation.give() >> ROW_BITS);
            for (count, stamp) in stamps.iter().enumerate() {
                let offset = stamp << ROW_BITS | 5;
                assert_eq!(generation.count_of(offset), Some(count as u64));
            }
            assert_eq!(generation.advance(), count + 1);
        }
        let last = i64::from(u32::MAX);
        assert_eq!(stamps, [last - 1, last, 1, 2]);
        // Those of the future and of the time before the table.
        for stamp in [4, last - 2] {
            assert_eq!(generation.count_of(stamp << ROW_BITS), None);
        }
        for offset in [5, -2, i64::MIN] {
            assert_eq!(generation.count_of(offset), None);
        }
    }

    #[test]
    fn two_generations_start_apart() {
        let starts: Vec<u32> = (0..4).map(|_| Generation::default().start).collect();
        assert!(starts.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn after_very_many_generations_the_old_offsets_are_those_of_a_replaced_content() {
        let generation = at(3, WINDOW - 2);
        let mut births = Births::default();
        births.grown(10);
        let old = generation.give() | 4;
        let judge = |births: &Births, offset| births.judge(&generation, offset, |_| true);
        births.advance(&generation);
        births.renew(&generation, [2].into_iter());
        assert_eq!(judge(&births, old), Ok(4));
        assert_eq!(judge(&births, old ^ 4 ^ 2), Err(Unfit::Stale));
        let last = generation.give() | 2;
        assert_eq!(judge(&births, last), Ok(2));
        births.advance(&generation);
        assert_eq!(judge(&births, old), Err(Unfit::Replaced));
        assert_eq!(judge(&births, last), Err(Unfit::Replaced));
        let new = generation.give() | 2;
        births.renew(&generation, [3].into_iter());
        assert_eq!(judge(&births, new), Ok(2));
        assert_eq!(judge(&births, new | 1), Ok(3));
    }

    #[test]
    fn a_retired_row_is_still_its_own_until_it_is_released() {
        let generation = at(3, 0);
        let mut births = Births::default();
        births.grown(10);
        let judge = |births: &Births, offset| births.judge(&generation, offset, |_| true);
        let first = generation.give() | 4;
        births.advance(&generation);
        births.renew(&generation, [4].into_iter());
        let second = generation.give() | 4;
        births.advance(&generation);
        births.retire(&generation, 4);
        assert_eq!(judge(&births, first), Err(Unfit::Stale));
        assert_eq!(judge(&births, second), Err(Unfit::Retired(4)));
        births.release(&[4]);
        assert_eq!(judge(&births, second), Err(Unfit::Stale));
    }
}
