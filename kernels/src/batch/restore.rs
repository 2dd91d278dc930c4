//! Spreads the rows of distinct keys over the ids of a batch.

use crate::pool::{ranges, shares};
use crate::{Error, Pool, Result};

/// Work below this many floats stays on the caller.
const LEAST_FLOATS: usize = 1 << 16;

/// Copies `rows[inverse[i]]` to `out[i]`: `rows (u, dim)`, `inverse (n)`, `out (n, dim)`; zeros
/// where `inverse` is -1.
///
/// # Errors
/// `InvalidArgument` for a wrong length, `dim == 0`, or an entry of `inverse` that is neither -1
/// nor a row.
pub fn restore(
    pool: &Pool,
    rows: &[f32],
    dim: usize,
    inverse: &[i32],
    out: &mut [f32],
) -> Result<()> {
    let distinct = shapes(rows.len(), dim, inverse.len(), out.len())?;
    let parts = ranges(inverse.len(), pool.parts(out.len(), LEAST_FLOATS));
    pool.try_each(shares(out, dim, parts), |(range, out)| {
        for (&at, out) in inverse[range].iter().zip(out.chunks_exact_mut(dim)) {
            match usize::try_from(at)
                .ok()
                .and_then(|at| rows.get(at * dim..(at + 1) * dim))
            {
                Some(row) => out.copy_from_slice(row),
                None if at == -1 => out.fill(0.0),
                None => return Err(out_of_range(at, distinct)),
            }
        }
        Ok(())
    })
}

/// Checks the lengths of the four arguments and returns how many distinct rows there are.
pub(super) fn shapes(rows: usize, dim: usize, ids: usize, wide: usize) -> Result<usize> {
    if dim == 0 {
        return Err(Error::invalid("dim must not be 0"));
    }
    if !rows.is_multiple_of(dim) {
        return Err(Error::invalid("rows must be a multiple of dim")
            .with("rows", rows)
            .with("dim", dim));
    }
    if ids.checked_mul(dim) != Some(wide) {
        return Err(
            Error::invalid("inverse needs one entry per row of dim floats")
                .with("inverse", ids)
                .with("floats", wide)
                .with("dim", dim),
        );
    }
    Ok(rows / dim)
}

/// The error for an entry of `inverse` that names no row.
pub(crate) fn out_of_range(at: i32, distinct: usize) -> Error {
    Error::invalid("an entry of inverse is no row")
        .with("entry", at)
        .with("rows", distinct)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_and_minus_one_is_zeros() {
        let pool = Pool::new(2).unwrap();
        let mut out = [9.0; 8];
        restore(&pool, &[1.0, 2.0, 3.0, 4.0], 2, &[1, -1, 0, 1], &mut out).unwrap();
        assert_eq!(out, [3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn entries_outside_the_rows_are_refused() {
        let pool = Pool::new(1).unwrap();
        for bad in [-2, 2, i32::MIN, i32::MAX] {
            assert!(
                restore(&pool, &[1.0, 2.0], 1, &[0, bad], &mut [0.0; 2]).is_err(),
                "{bad}"
            );
        }
        assert!(restore(&pool, &[1.0, 2.0, 3.0], 2, &[0], &mut [0.0; 2]).is_err());
        assert!(restore(&pool, &[1.0, 2.0], 2, &[0], &mut [0.0; 3]).is_err());
        assert!(restore(&pool, &[], 0, &[], &mut []).is_err());
    }
}
