//! Rows that several threads sum into, each its own: blocks of rows in turns, because popular keys
//! have low numbers.

use super::sums::add_row;

/// Rows that go to one thread together.
const BLOCK: usize = 16;

/// The rows of one thread: every `parts`-th block.
///
/// ```text
/// rows:   | 0 .. 15 | 16 .. 31 | 32 .. 47 | 48 .. 63 | ..
/// part:     0         1          0          1              of 2
/// own:      0 .. 15   0 .. 15    16 .. 31   16 .. 31       the row's number in its part
/// ```
pub(super) struct Turns<'a> {
    blocks: Vec<&'a mut [f32]>,
    dim: usize,
    part: usize,
    parts: usize,
}

impl<'a> Turns<'a> {
    /// Deals rows `(n, dim)` to `parts` threads.
    pub(super) fn deal(rows: &'a mut [f32], dim: usize, parts: usize) -> Vec<Turns<'a>> {
        let turns = |part| Turns {
            blocks: Vec::new(),
            dim,
            part,
            parts,
        };
        let mut dealt: Vec<Turns<'a>> = (0..parts).map(turns).collect();
        for (block, rows) in rows.chunks_mut(BLOCK * dim).enumerate() {
            dealt[block % parts].blocks.push(rows);
        }
        dealt
    }

    /// How many rows it has.
    pub(super) fn len(&self) -> usize {
        self.blocks.iter().map(|rows| rows.len()).sum::<usize>() / self.dim
    }

    /// The number of a row among its own; `None` if another thread has it.
    #[inline(always)]
    pub(super) fn own(&self, row: usize) -> Option<usize> {
        let (block, within) = (row / BLOCK, row % BLOCK);
        (block % self.parts == self.part).then(|| block / self.parts * BLOCK + within)
    }

    /// Adds a gradient to a row by its number among its own, or makes it the first.
    #[inline(always)]
    pub(super) fn add(&mut self, own: usize, grad: &[f32], is_first: bool) {
        let (block, within) = (own / BLOCK, own % BLOCK);
        let sum = &mut self.blocks[block][within * self.dim..(within + 1) * self.dim];
        if is_first {
            sum.copy_from_slice(grad);
        } else {
            add_row(grad, sum);
        }
    }

    /// All its rows, by their numbers.
    pub(super) fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> + use<'_, 'a> {
        let dim = self.dim;
        self.blocks
            .iter_mut()
            .flat_map(move |rows| rows.chunks_exact_mut(dim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_one_threads_and_keeps_what_is_added_to_it() {
        for (rows, parts) in [(0, 1), (1, 3), (16, 2), (100, 1), (100, 3), (513, 4)] {
            let dim = 3;
            let mut sums = vec![9.0; rows * dim];
            let mut seen = vec![0; rows];
            for mut turns in Turns::deal(&mut sums, dim, parts) {
                assert_eq!(turns.rows().count(), turns.len());
                for (row, seen) in seen.iter_mut().enumerate() {
                    let Some(own) = turns.own(row) else {
                        continue;
                    };
                    assert!(own < turns.len());
                    *seen += 1;
                    turns.add(own, &[row as f32, 1.0, 2.0], true);
                    turns.add(own, &[1.0, 0.5, 0.25], false);
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{rows} of {parts}");
            for (row, sum) in sums.chunks_exact(dim).enumerate() {
                assert_eq!(sum, [row as f32 + 1.0, 1.5, 2.25]);
            }
        }
    }
}
