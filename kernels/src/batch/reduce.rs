//! Sums the gradients of all ids that share a row, in order of occurrence.

use super::columns::Columns;
use super::restore::{out_of_range, shapes};
use super::sums::add_row;
use super::turns::Turns;
use crate::mem::BLOCK;
use crate::simd::{Level, Vectorized};
use crate::{Pool, Result};

/// Work below this many floats stays on the caller.
const LEAST_FLOATS: usize = 1 << 16;

/// Sums `grads[i]` into `out[inverse[i]]`: `grads (n, dim)`, `inverse (n)`, `out (u, dim)`.
///
/// A row is the sum of its gradients in order of occurrence, the same bits for any pool; a row
/// without any is zeros, and entries of -1 are dropped.
///
/// # Errors
/// `InvalidArgument` for a wrong length, `dim == 0`, or an entry of `inverse` that is neither -1
/// nor a row.
pub fn reduce(
    pool: &Pool,
    grads: &[f32],
    dim: usize,
    inverse: &[i32],
    out: &mut [f32],
) -> Result<()> {
    shapes(out.len(), dim, inverse.len(), grads.len())?;
    reduce_columns(pool, Columns::all(grads, dim)?, inverse, out)
}

/// [`reduce`] of gradients that are columns of a matrix.
///
/// # Errors
/// As there.
pub fn reduce_columns(
    pool: &Pool,
    grads: Columns<'_>,
    inverse: &[i32],
    out: &mut [f32],
) -> Result<()> {
    let dim = grads.dim();
    let distinct = shapes(out.len(), dim, inverse.len(), grads.len() * dim)?;
    expect_rows(inverse, distinct)?;
    sum_rows(pool, grads, inverse, out);
    Ok(())
}

/// Refuses an entry of `inverse` that is neither -1 nor one of so many rows.
pub(crate) fn expect_rows(inverse: &[i32], rows: usize) -> Result<()> {
    // -1 is the first number here.
    let number = |at: i32| at.wrapping_add(1) as u32 as usize;
    let last = inverse.iter().map(|&at| number(at)).max();
    if last.is_none_or(|last| last <= rows) {
        return Ok(());
    }
    let wrong = inverse.iter().find(|&&at| number(at) > rows);
    wrong.map_or(Ok(()), |&at| Err(out_of_range(at, rows)))
}

/// [`reduce_columns`] by an `inverse` that [`expect_rows`] takes, of as many entries as there are
/// gradients.
pub(crate) fn sum_rows(pool: &Pool, grads: Columns<'_>, inverse: &[i32], out: &mut [f32]) {
    let dim = grads.dim();
    let parts = pool.parts(inverse.len() * dim, LEAST_FLOATS);
    if parts == 1 {
        return Level::detect().run(Alone {
            grads,
            inverse,
            out,
        });
    }
    pool.each(Turns::deal(out, dim, parts), |mut sums| {
        let mut fresh = vec![true; sums.len()];
        for (&at, grad) in inverse.iter().zip(grads.rows()) {
            let Ok(row) = usize::try_from(at) else {
                continue;
            };
            if let Some(own) = sums.own(row) {
                let is_first = std::mem::take(&mut fresh[own]);
                sums.add(own, grad, is_first);
            }
        }
        let rows = sums.rows().zip(&fresh);
        rows.filter(|(_, &fresh)| fresh)
            .for_each(|(row, _)| row.fill(0.0));
    });
}

/// All sums, made by one thread.
struct Alone<'a> {
    grads: Columns<'a>,
    inverse: &'a [i32],
    out: &'a mut [f32],
}

impl Vectorized for Alone<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.grads.dim() {
            1 => self.sum(add::<1>),
            8 => self.sum(add::<8>),
            16 => self.sum(add::<16>),
            32 => self.sum(add::<32>),
            _ => self.sum(add_row),
        }
    }
}

impl Alone<'_> {
    /// Sums begin at -0.0, to which any number is added without a change of its bits: which
    /// gradient of a row is the first comes in no order that could be foreseen.
    #[inline(always)]
    fn sum(self, add: impl Fn(&[f32], &mut [f32])) {
        let dim = self.grads.dim();
        let distinct = self.out.len() / dim;
        self.out.fill(-0.0);
        let mut fresh = vec![true; distinct];
        for (&at, grad) in self.inverse.iter().zip(self.grads.rows()) {
            // -1 is beyond all rows.
            let row = at as u32 as usize;
            let Some(fresh) = fresh.get_mut(row) else {
                continue;
            };
            *fresh = false;
            self.grads.ask_behind(grad, BLOCK);
            add(grad, &mut self.out[row * dim..(row + 1) * dim]);
        }
        let rows = self.out.chunks_exact_mut(dim).zip(&fresh);
        rows.filter(|(_, &fresh)| fresh)
            .for_each(|(row, _)| row.fill(0.0));
    }
}

/// Adds a row of `N` floats.
#[inline(always)]
fn add<const N: usize>(row: &[f32], sum: &mut [f32]) {
    if let (Some(row), Some(sum)) = (row.first_chunk::<N>(), sum.first_chunk_mut::<N>()) {
        add_row(row, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_summed_in_order_and_rows_without_gradient_are_zeros() {
        let grads = [1e8, 1.0, -1e8, 5.0, 7.0];
        let mut out = [9.0; 3];
        reduce(
            &Pool::new(1).unwrap(),
            &grads,
            1,
            &[0, 0, 0, 2, -1],
            &mut out,
        )
        .unwrap();
        assert_eq!(out, [(1e8_f32 + 1.0) - 1e8, 0.0, 5.0]);
    }

    #[test]
    fn one_thread_and_several_agree_in_every_bit_on_every_dim() {
        let special = [-0.0, 0.0, f32::NAN, f32::INFINITY, 1e-42, -1.5];
        for dim in [1, 2, 8, 16, 17, 32, 64] {
            let (n, distinct) = (70_000 / dim + 9_000, 3_000);
            let grads: Vec<f32> = (0..n * dim)
                .map(|at| match at % 11 {
                    0 => special[at / 11 % special.len()],
                    _ => (at as f32 * 0.37).sin(),
                })
                .collect();
            // Rows without a gradient, with one, and with many.
            let inverse: Vec<i32> = (0..n)
                .map(|at| (at * at % distinct / 2) as i32 - 1)
                .collect();
            let run = |threads| {
                let pool = Pool::new(threads).unwrap();
                let mut out = vec![7.0; distinct * dim];
                reduce(&pool, &grads, dim, &inverse, &mut out).unwrap();
                out.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>()
            };
            let one = run(1);
            assert!(
                [2, 7].into_iter().all(|threads| run(threads) == one),
                "{dim}"
            );
        }
    }

    #[test]
    fn a_sum_of_negative_zeros_is_one_and_a_row_without_gradient_is_not() {
        for (dim, grads) in [(1, vec![-0.0; 2]), (3, vec![-0.0; 6])] {
            let mut out = vec![5.0; 3 * dim];
            reduce(&Pool::new(1).unwrap(), &grads, dim, &[1, 1], &mut out).unwrap();
            let signs: Vec<bool> = out.iter().map(|sum| sum.is_sign_negative()).collect();
            assert!(out.iter().all(|&sum| sum == 0.0));
            let expected = [[false].repeat(dim), [true].repeat(dim), [false].repeat(dim)];
            assert_eq!(signs, expected.concat());
        }
    }

    #[test]
    fn entries_outside_the_rows_are_refused() {
        let pool = Pool::new(1).unwrap();
        assert!(reduce(&pool, &[1.0], 1, &[1], &mut [0.0]).is_err());
        assert!(reduce(&pool, &[1.0], 1, &[-2], &mut [0.0]).is_err());
        assert!(reduce(&pool, &[1.0, 2.0], 1, &[0], &mut [0.0]).is_err());
    }
}
