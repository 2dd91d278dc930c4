//! Sums the gradients of all ids that share a row, in order of occurrence.

use super::restore::{out_of_range, shapes};
use crate::{Pool, Result};
use parking_lot::Mutex;

/// Work below this many floats stays on the caller.
const LEAST_FLOATS: usize = 1 << 16;

/// Rows of `out` that go to one thread together; threads take turns, because popular keys have low numbers.
const BLOCK: usize = 16;

/// Sums `grads[i]` into `out[restore[i]]`: `grads (n, dim)`, `restore (n)`, `out (u, dim)`.
///
/// A row is the sum of its gradients in order of occurrence, the same bits for any pool; a row without any is zeros, and
/// entries of -1 are dropped.
///
/// # Errors
/// `InvalidArgument` for a wrong length, `dim == 0`, or an entry of `restore` that is neither -1 nor a row.
pub fn reduce(
    pool: &Pool,
    grads: &[f32],
    dim: usize,
    restore: &[i32],
    out: &mut [f32],
) -> Result<()> {
    let distinct = shapes(out.len(), dim, restore.len(), grads.len())?;
    let parts = pool.parts(grads.len(), LEAST_FLOATS);
    let mut owned: Vec<Vec<&mut [f32]>> = (0..parts).map(|_| Vec::new()).collect();
    for (block, rows) in out.chunks_mut(BLOCK * dim).enumerate() {
        owned[block % parts].push(rows);
    }
    let bad = Mutex::new(None);
    pool.each(
        owned.into_iter().enumerate().collect(),
        |(part, mut blocks)| {
            let mut fresh = vec![true; blocks.iter().map(|rows| rows.len()).sum::<usize>() / dim];
            for (&at, grad) in restore.iter().zip(grads.chunks_exact(dim)) {
                let row = match usize::try_from(at) {
                    Ok(row) if row < distinct => row,
                    Err(_) if at == -1 => continue,
                    _ => {
                        *bad.lock() = Some(at);
                        return;
                    }
                };
                let (block, within) = (row / BLOCK, row % BLOCK);
                if block % parts != part {
                    continue;
                }
                let sum = &mut blocks[block / parts][within * dim..(within + 1) * dim];
                let first = &mut fresh[block / parts * BLOCK + within];
                if std::mem::take(first) {
                    sum.copy_from_slice(grad);
                } else {
                    sum.iter_mut()
                        .zip(grad)
                        .for_each(|(sum, grad)| *sum += grad);
                }
            }
            let rows = blocks
                .iter_mut()
                .flat_map(|rows| rows.chunks_exact_mut(dim));
            rows.zip(&fresh)
                .filter(|(_, &fresh)| fresh)
                .for_each(|(row, _)| row.fill(0.0));
        },
    );
    bad.into_inner()
        .map_or(Ok(()), |at| Err(out_of_range(at, distinct)))
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
    fn any_number_of_threads_gives_the_same_bits() {
        let (dim, n, distinct) = (24, 20_000, 777);
        let grads: Vec<f32> = (0..n * dim).map(|at| (at as f32 * 0.37).sin()).collect();
        let restore: Vec<i32> = (0..n)
            .map(|at| (at * at % (distinct + 1)) as i32 - 1)
            .collect();
        let run = |threads| {
            let mut out = vec![1.0; distinct * dim];
            reduce(
                &Pool::new(threads).unwrap(),
                &grads,
                dim,
                &restore,
                &mut out,
            )
            .unwrap();
            out.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(7));
    }

    #[test]
    fn entries_outside_the_rows_are_refused() {
        let pool = Pool::new(1).unwrap();
        assert!(reduce(&pool, &[1.0], 1, &[1], &mut [0.0]).is_err());
        assert!(reduce(&pool, &[1.0], 1, &[-2], &mut [0.0]).is_err());
        assert!(reduce(&pool, &[1.0, 2.0], 1, &[0], &mut [0.0]).is_err());
    }
}
