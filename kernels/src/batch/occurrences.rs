//! Which gradients of a batch belong to which row, in order of occurrence.

use super::numbering::{Numbering, Value};
use crate::sort::Sizes;

/// Words of 64 bits that may be cleared for each row to learn whether rows repeat.
const WORDS: usize = 8;

/// The rows of one owner with the positions of their gradients.
///
/// ```text
/// rows:  | row of number 0 | row of number 1 | ..      distinct, in order of first occurrence
/// firsts:| 4               | 7               | ..      position of the first gradient
/// ends:  | 2               | 2               | ..      empty if no row occurs twice
/// later: | 9, 12           |                 | ..      positions of the others
/// ```
#[derive(Default)]
pub(crate) struct Occurrences {
    rows: Vec<u32>,
    firsts: Vec<u32>,
    ends: Vec<u32>,
    later: Vec<u32>,
}

impl Occurrences {
    /// Groups `items`, pairs of a row and the position of a gradient, at most `size` of them, by
    /// row.
    pub(crate) fn new(items: impl Iterator<Item = (u32, u32)> + Clone, size: usize) -> Occurrences {
        if are_distinct(items.clone().map(|(row, _)| row), size) {
            return Occurrences::distinct(items, size);
        }
        let mut numbering = Numbering::new(size);
        let mut firsts = Vec::with_capacity(size);
        // Number and position of every gradient that is not the first of its row.
        let mut repeats: Vec<(u32, u32)> = Vec::new();
        let items = items.map(|(row, position)| (row, row.spread(), position));
        numbering.number(size, items, |position, number, is_new| match is_new {
            true => firsts.push(position),
            false => repeats.push((number, position)),
        });
        let rows = numbering.into_values();
        let (ends, later) = by_number(rows.len(), &repeats);
        Occurrences {
            rows,
            firsts,
            ends,
            later,
        }
    }

    /// Takes `items`, about `size` of them, whose rows are known to be distinct.
    pub(crate) fn distinct(items: impl Iterator<Item = (u32, u32)>, size: usize) -> Occurrences {
        let mut found = Occurrences {
            rows: Vec::with_capacity(size),
            firsts: Vec::with_capacity(size),
            ..Occurrences::default()
        };
        for (row, position) in items {
            found.rows.push(row);
            found.firsts.push(position);
        }
        found
    }

    /// The distinct rows, in order of first occurrence.
    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// For the row with this number the position of its first gradient, and those of the others.
    #[inline]
    pub(crate) fn of(&self, number: usize) -> (u32, &[u32]) {
        let later = match self.ends.get(number) {
            Some(&end) => {
                let start = if number == 0 {
                    0
                } else {
                    self.ends[number - 1]
                };
                &self.later[start as usize..end as usize]
            }
            None => &[],
        };
        (self.firsts[number], later)
    }
}

/// Whether rows, at most `size`, are known to be distinct: a bit for each row tells, unless there
/// are so many rows that the bits would take longer than to number these.
fn are_distinct(rows: impl Iterator<Item = u32> + Clone, size: usize) -> bool {
    let Some(last) = rows.clone().max() else {
        return true;
    };
    let words = last as usize / 64 + 1;
    if words > size * WORDS {
        return false;
    }
    let mut seen = vec![0_u64; words];
    let mut twice = 0;
    rows.for_each(|row| {
        let (word, bit) = (&mut seen[row as usize / 64], 1 << (row % 64));
        twice |= *word & bit;
        *word |= bit;
    });
    twice == 0
}

/// Sorts positions by the number of their row, stably; returns where each number ends.
fn by_number(numbers: usize, repeats: &[(u32, u32)]) -> (Vec<u32>, Vec<u32>) {
    if repeats.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let mut sizes = Sizes::new(vec![0_u32; numbers]);
    repeats
        .iter()
        .for_each(|&(number, _)| sizes.count(number as usize));
    let mut places = sizes.places();
    let mut later = vec![0_u32; repeats.len()];
    for &(number, position) in repeats {
        later[places.next(number as usize)] = position;
    }
    (places.ends(), later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_grouped_by_row_in_order() {
        let rows = [5, 9, 5, 7, 9, 5, 0];
        let items = rows
            .iter()
            .zip(10..)
            .map(|(&row, position)| (row, position));
        let found = Occurrences::new(items, rows.len());
        assert_eq!(found.rows(), [5, 9, 7, 0]);
        assert_eq!(found.of(0), (10, &[12, 15][..]));
        assert_eq!(found.of(1), (11, &[14][..]));
        assert_eq!(found.of(2), (13, &[][..]));
        assert_eq!(found.of(3), (16, &[][..]));
    }

    #[test]
    fn rows_that_occur_once_keep_their_order_in_any_number_of_rows() {
        // Bits tell at first, then there are too many rows for them.
        for step in [1, 63, 64, 1 << 22] {
            let rows: Vec<u32> = (0..900).map(|at| at * 7 % 900 * step + step - 1).collect();
            let found = Occurrences::new(rows.iter().copied().zip(5..), rows.len());
            assert_eq!(found.rows(), rows);
            assert!((0..900).all(|at| found.of(at) == (at as u32 + 5, &[][..])));
            let twice = rows.iter().chain(&rows[899..]).copied().zip(0..);
            let found = Occurrences::new(twice, rows.len() + 1);
            assert_eq!(found.rows(), rows);
            assert_eq!(found.of(899), (899, &[900][..]));
            assert!(rows.iter().max() == Some(&(900 * step - 1)));
        }
        let distinct = |rows: &[u32]| are_distinct(rows.iter().copied(), rows.len());
        assert!(distinct(&[]) && distinct(&[1023, 0]) && !distinct(&[1023, 1023]));
        assert!(!distinct(&[0, 1024]));
    }

    #[test]
    fn nothing_has_no_rows() {
        assert!(Occurrences::new(std::iter::empty(), 0).rows().is_empty());
    }
}
