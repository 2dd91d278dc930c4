//! Offsets: a row number with the generation since which the row belongs to its key. A copy of an
//! offset is as safe as the original.
//!
//! ```text
//! bit 63  62 .. 31      30 .. 0
//!     0   generation    row            generation is never 0
//! ```
//! A key has one and the same offset as long as it has its row. -1 is padding, and 0 is nobody's:
//! TensorFlow starts the accumulators of gradients in loops with index 0 and value 0. Every other
//! number that is not positive was never given out.

use crate::mem::NONE;
use crate::table::rows::key_map::KeyMap;
use std::hash::{BuildHasher, RandomState};

/// Bits of a row number.
const ROW_BITS: u32 = 31;

/// The most rows of a table, those that wait to be used again included.
pub(in crate::table) const MAX_ROWS: usize = 1 << ROW_BITS;

/// After so many births all offsets there are count as those of a replaced content. So no
/// generation comes twice among those that are accepted.
const MOST: u32 = 1 << 31;

/// The row number in an offset that this table has given out.
#[inline(always)]
pub(in crate::table) fn row_of(offset: i64) -> u32 {
    offset as u32 & (MAX_ROWS as u32 - 1)
}

/// Why an offset is not that of a key and its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::table) enum Unfit {
    /// The key was removed. The row is still its own, because a lease holds it: it may be read, and
    /// must not be changed.
    Retired(u32),
    /// The key was removed or its row moved; the row is free or another key's.
    Stale,
    /// The content was replaced.
    Replaced,
    /// The table never gave it out.
    Unknown,
}

/// The generation since which each row belongs to its key.
///
/// Generations count from the birth of the content. A row that no key ever left has generation 0,
/// and no memory. A row that is freed gets the next generation at once, which nobody was given: so
/// all offsets of it become stale. It has its own lock, the last of all, because offsets are made
/// under the index's lock and judged under the content's.
pub(in crate::table) struct Births {
    /// Generation 0 in its place in an offset; it starts anywhere, so that the offset of another
    /// table is recognised.
    base: u32,
    /// How many generations the table had before this content.
    before: u64,
    /// The greatest generation that a row of a key has.
    latest: u32,
    /// By row: its generation. Beyond the end it is 0.
    births: Vec<u32>,
    /// The least generation for rows beyond the end that come again.
    cut: u32,
    /// How many rows there ever were.
    high: usize,
    /// Rows whose keys were removed while leases hold them, with the generation that they had.
    retired: KeyMap<u32, u32>,
    /// How often keys were removed from this content.
    removals: u32,
    /// By row: how often they had been when its key got a row. Beyond the end it is 0. A key that
    /// was removed and comes back has another number, and one whose row moves keeps its own, which
    /// are the two things that generations do not tell.
    keyed: Vec<u32>,
}

impl Default for Births {
    fn default() -> Self {
        let base = RandomState::new().hash_one(0_u8) % u64::from(u32::MAX);
        Births::new(base as u32 + 1)
    }
}

impl Births {
    /// No rows, and a first generation other than 0.
    fn new(base: u32) -> Births {
        Births {
            base,
            before: 0,
            latest: 0,
            births: Vec::new(),
            cut: 0,
            high: 0,
            retired: KeyMap::default(),
            removals: 0,
            keyed: Vec::new(),
        }
    }

    /// The birth of the key of a row: never 0, another number whenever the key gets a row anew, and
    /// the same if its row moves.
    #[inline(always)]
    pub(in crate::table) fn birth(&self, row: u32) -> i32 {
        let keyed = self.keyed.get(row as usize).copied().unwrap_or(0);
        // 32 bits, whatever number they are.
        (keyed + 1) as i32
    }

    /// Keys are removed.
    fn removed(&mut self) {
        self.removals = (self.removals + 1) % u32::MAX;
    }

    /// Notes how often keys had been removed when the key of a row got one.
    fn set_keyed(&mut self, row: u32, removals: u32) {
        let row = row as usize;
        if row >= self.keyed.len() && removals > 0 {
            self.keyed.resize(row + 1, 0);
        }
        if let Some(keyed) = self.keyed.get_mut(row) {
            *keyed = removals;
        }
    }

    /// The offset of a row that belongs to a key.
    #[inline(always)]
    pub(in crate::table) fn offset(&self, row: u32) -> i64 {
        let born = self.births.get(row as usize).copied().unwrap_or(0);
        self.numbered(row, born)
    }

    /// What offsets have beside their rows as long as no row was freed.
    pub(in crate::table) fn plain(&self) -> i64 {
        i64::from(self.base) << ROW_BITS
    }

    /// Whether that holds: no row was freed.
    pub(in crate::table) fn is_plain(&self) -> bool {
        self.births.is_empty()
    }

    /// The row of an offset: [`NONE`] for -1 and for 0. `rows` is how many rows there are.
    #[inline(always)]
    pub(in crate::table) fn row(&self, offset: i64, rows: u64) -> Result<u32, Unfit> {
        // As long as no row was freed, and for rows that never were.
        let plain = (offset ^ self.plain()) as u64;
        if plain < rows && plain >= self.births.len() as u64 {
            return Ok(plain as u32);
        }
        let row = row_of(offset);
        match self.births.get(row as usize) {
            Some(&born) if offset == self.numbered(row, born) && u64::from(row) < rows => Ok(row),
            _ => self.judge(offset, rows),
        }
    }

    /// Rows get keys: those of `rows` that others had before get a new generation. There are `end`
    /// rows now.
    pub(in crate::table) fn take(&mut self, rows: &[u32], end: usize) {
        for &row in rows {
            if (row as usize) < self.high {
                self.born(row);
            }
            self.set_keyed(row, self.removals);
        }
        self.high = self.high.max(end);
    }

    /// Rows are free: nobody was given the generation that they have from now on.
    pub(in crate::table) fn free(&mut self, rows: &[u32]) {
        self.removed();
        for &row in rows {
            *self.of(row) = self.latest + 1;
            self.retired.remove(&row);
        }
    }

    /// A key moves from one row to another one, which is free.
    pub(in crate::table) fn moved(&mut self, from: u32, to: u32) {
        self.born(to);
        *self.of(from) = self.latest + 1;
        let keyed = self.keyed.get(from as usize).copied();
        self.set_keyed(to, keyed.unwrap_or(0));
    }

    /// A row that a lease holds has lost its key.
    pub(in crate::table) fn retire(&mut self, row: u32) {
        self.removed();
        let next = self.latest + 1;
        let before = std::mem::replace(self.of(row), next);
        self.retired.insert(row, before);
    }

    /// The rows from `rows` on, all of them free, are gone.
    pub(in crate::table) fn truncate(&mut self, rows: usize) {
        self.births.truncate(rows);
        self.births.shrink_to_fit();
        self.keyed.truncate(rows);
        self.keyed.shrink_to_fit();
        self.cut = self.latest + 1;
    }

    /// Another content with so many rows takes the place of this one.
    pub(in crate::table) fn replaced(&mut self, rows: usize) {
        let next = self.latest + 1;
        *self = Births {
            before: self.before + u64::from(next),
            high: rows,
            ..Births::new(self.stamp(next))
        };
    }

    /// Bytes held, about.
    pub(in crate::table) fn bytes(&self) -> usize {
        4 * (self.births.capacity() + self.keyed.capacity()) + 16 * self.retired.capacity()
    }

    /// A row that others had before gets a key.
    fn born(&mut self, row: u32) {
        let least = match self.births.get(row as usize) {
            Some(&least) => least,
            None => self.cut,
        };
        if least > self.latest {
            if self.latest >= MOST {
                let (removals, keyed) = (self.removals, std::mem::take(&mut self.keyed));
                self.replaced(self.high);
                (self.removals, self.keyed) = (removals, keyed);
            } else {
                self.latest += 1;
            }
        }
        let latest = self.latest;
        *self.of(row) = latest;
    }

    /// The generation of a row.
    fn of(&mut self, row: u32) -> &mut u32 {
        let row = row as usize;
        if row >= self.births.len() {
            self.births.resize(row + 1, 0);
        }
        &mut self.births[row]
    }

    #[inline(always)]
    fn numbered(&self, row: u32, born: u32) -> i64 {
        i64::from(self.stamp(born)) << ROW_BITS | i64::from(row)
    }

    /// A generation in an offset: they wrap, and leave 0 out.
    #[inline(always)]
    fn stamp(&self, born: u32) -> u32 {
        let (stamp, wraps) = self.base.overflowing_add(born);
        stamp + u32::from(wraps)
    }

    /// How many generations after the first stamp of this content another one is, and how many
    /// before.
    fn distances(&self, stamp: u32) -> (u32, u32) {
        let after = stamp.wrapping_sub(self.base) - u32::from(stamp < self.base);
        let before = self.base.wrapping_sub(stamp) - u32::from(stamp > self.base);
        (after, before)
    }

    /// [`Births::row`] of any offset.
    fn judge(&self, offset: i64, rows: u64) -> Result<u32, Unfit> {
        if offset == -1 || offset == 0 {
            return Ok(NONE);
        }
        let stamp = u32::try_from(offset >> ROW_BITS).unwrap_or(0);
        let row = row_of(offset);
        if stamp == 0 {
            return Err(Unfit::Unknown);
        }
        let (born, before) = self.distances(stamp);
        match self.births.get(row as usize).copied().unwrap_or(0) {
            present if present == born && u64::from(row) < rows => return Ok(row),
            _ if born > self.latest && u64::from(before) <= self.before => {
                return Err(Unfit::Replaced);
            }
            _ if born > self.latest || row as usize >= self.high => return Err(Unfit::Unknown),
            _ => {}
        }
        match self.retired.get(&row) {
            Some(&before) if before == born => Err(Unfit::Retired(row)),
            _ => Err(Unfit::Stale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn births(base: u32, rows: usize) -> Births {
        let mut births = Births::new(base);
        births.take(&[], rows);
        births
    }

    #[test]
    fn a_row_has_one_offset_until_it_is_freed() {
        let mut births = births(7, 10);
        let first = births.offset(4);
        assert_eq!(first, 7 << ROW_BITS | 4);
        assert_eq!(births.row(first, 10), Ok(4));
        assert!(births.is_plain() && births.plain() | 4 == first);
        births.free(&[2]);
        assert_eq!(births.offset(4), first);
        births.free(&[4]);
        assert_eq!(births.row(first, 10), Err(Unfit::Stale));
        births.take(&[4], 10);
        let second = births.offset(4);
        assert_eq!(births.row(first, 10), Err(Unfit::Stale));
        assert_eq!(births.row(second, 10), Ok(4));
        // Freed long ago, used now: no generation is spent on it.
        births.take(&[2], 10);
        assert_eq!(births.latest, 1);
        assert_eq!(births.offset(2) >> ROW_BITS, second >> ROW_BITS);
        assert_eq!(births.row(first ^ 4 ^ 2, 10), Err(Unfit::Stale));
        assert_eq!(births.row(births.offset(9), 10), Ok(9));
    }

    #[test]
    fn a_key_has_one_birth_until_it_is_removed_wherever_its_row_moves() {
        let mut births = births(7, 10);
        assert_eq!((births.birth(0), births.birth(9)), (1, 1));
        births.free(&[2, 4]);
        // Another key gets the row, and a fresh row has the generation that the old one had.
        births.take(&[4, 10], 11);
        assert_eq!(births.offset(10) >> ROW_BITS, 7);
        let first = births.birth(10);
        assert!(first != 1 && births.birth(4) == first && births.birth(3) == 1);
        births.moved(10, 2);
        births.truncate(10);
        assert_eq!((births.birth(2), births.birth(3)), (first, 1));
        births.moved(3, 5);
        assert_eq!(births.birth(5), 1);
        births.retire(2);
        births.take(&[10], 11);
        assert!(![first, 1].contains(&births.birth(10)));
        // A row that lost its key before any had been removed is no exception.
        let mut births = self::births(7, 1);
        births.retire(0);
        births.take(&[1], 2);
        assert_ne!(births.birth(1), births.birth(0));
        births.removals = u32::MAX - 1;
        births.set_keyed(1, births.removals);
        assert_ne!(births.birth(1), 0);
        births.latest = MOST;
        births.free(&[0]);
        births.take(&[0], 2);
        assert_eq!(births.birth(1), -1);
    }

    #[test]
    fn numbers_that_were_never_given_out_are_unknown() {
        let mut births = births(7, 10);
        let first = births.offset(0);
        for offset in [
            5,
            -2,
            i64::MIN,
            i64::MAX,
            first + 10,
            first + (1 << ROW_BITS),
        ] {
            assert_eq!(births.row(offset, 10), Err(Unfit::Unknown), "{offset}");
        }
        let before = first - (1 << ROW_BITS);
        assert_eq!(births.row(before, 10), Err(Unfit::Unknown));
        births.free(&[3]);
        births.take(&[3], 10);
        assert_eq!(
            births.row(first + 3 + (2 << ROW_BITS), 10),
            Err(Unfit::Unknown)
        );
        assert_eq!(
            (births.row(0, 10), births.row(-1, 10)),
            (Ok(NONE), Ok(NONE))
        );
    }

    #[test]
    fn a_replaced_content_is_told_from_a_removed_key() {
        let mut births = births(7, 10);
        let mut given = vec![births.offset(3)];
        births.free(&[3]);
        births.take(&[3], 10);
        given.push(births.offset(3));
        births.replaced(5);
        births.replaced(8);
        for &offset in &given {
            assert_eq!(births.row(offset, 8), Err(Unfit::Replaced));
        }
        assert_eq!(births.row(births.offset(7), 8), Ok(7));
        assert_eq!(births.row(6 << ROW_BITS, 8), Err(Unfit::Unknown));
    }

    #[test]
    fn generations_wrap_without_0() {
        let mut births = births(u32::MAX - 1, 3);
        let mut given = Vec::new();
        for _ in 0..4 {
            given.push(births.offset(1));
            births.free(&[1]);
            births.take(&[1], 3);
        }
        let stamps: Vec<i64> = given.iter().map(|offset| offset >> ROW_BITS).collect();
        let last = i64::from(u32::MAX);
        assert_eq!(stamps, [last - 1, last, 1, 2]);
        assert!(given
            .iter()
            .all(|&old| births.row(old, 3) == Err(Unfit::Stale)));
        assert_eq!(births.row(births.offset(1), 3), Ok(1));
        births.replaced(3);
        assert!(given
            .iter()
            .all(|&old| births.row(old, 3) == Err(Unfit::Replaced)));
        assert_eq!(births.row((last - 2) << ROW_BITS, 3), Err(Unfit::Unknown));
    }

    #[test]
    fn when_generations_run_out_the_old_offsets_are_those_of_a_replaced_content() {
        let mut births = births(7, 3);
        births.free(&[0, 1]);
        births.latest = MOST;
        births.take(&[0], 3);
        let old = [births.offset(2), births.offset(0)];
        births.free(&[0]);
        births.take(&[0], 3);
        assert_eq!(births.latest, 0);
        assert!(old
            .iter()
            .all(|&old| births.row(old, 3) == Err(Unfit::Replaced)));
        births.take(&[1], 3);
        for row in 0..3 {
            assert_eq!(births.row(births.offset(row), 3), Ok(row));
        }
    }

    #[test]
    fn a_retired_row_is_still_its_own_until_it_is_freed() {
        let mut births = births(7, 10);
        let first = births.offset(4);
        births.free(&[4]);
        births.take(&[4], 10);
        let second = births.offset(4);
        births.retire(4);
        assert_eq!(births.row(first, 10), Err(Unfit::Stale));
        assert_eq!(births.row(second, 10), Err(Unfit::Retired(4)));
        births.free(&[4]);
        assert_eq!(births.row(second, 10), Err(Unfit::Stale));
    }

    #[test]
    fn rows_that_were_cut_off_come_again_as_new_ones() {
        let mut births = births(7, 10);
        let (first, kept) = (births.offset(8), births.offset(3));
        births.free(&[7, 8, 9]);
        births.truncate(7);
        assert_eq!(births.row(first, 7), Err(Unfit::Stale));
        births.take(&[7, 8], 9);
        assert_eq!(births.row(first, 9), Err(Unfit::Stale));
        assert_eq!(births.row(births.offset(8), 9), Ok(8));
        assert_eq!(births.row(kept, 9), Ok(3));
        births.take(&[9, 10], 11);
        for row in [9, 10] {
            assert_eq!(births.row(births.offset(row), 11), Ok(row));
        }
    }

    #[test]
    fn tables_start_apart() {
        let bases: Vec<u32> = (0..4).map(|_| Births::default().base).collect();
        assert!(bases.windows(2).any(|pair| pair[0] != pair[1]));
        assert!(!bases.contains(&0));
    }
}
