//! Embeddings on their way between processes: those of 2 bytes a value as records have them.

use super::dtype::RowDtype;
use super::packed::{encode, read};
use crate::pool::{ranges, shares};
use crate::simd::Level;
use crate::{Error, Pool, Result};

/// A thread should have at least so many floats: to wake one takes as long.
const LEAST_FLOATS: usize = 1 << 16;

/// Writes embeddings `rows (n, dim)` that a table of `dtype` has as words, `out (n, words)` with
/// [`RowDtype::words`] a row. Nothing is lost: the values are some of `dtype`; others become the
/// nearest.
///
/// # Errors
/// `InvalidArgument` for a wrong length.
pub fn pack_rows(
    pool: &Pool,
    dtype: RowDtype,
    dim: usize,
    rows: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let words = dtype.words(dim);
    let n = rows.len().checked_div(dim).unwrap_or(0);
    if n.checked_mul(dim) != Some(rows.len()) || n.checked_mul(words) != Some(out.len()) {
        return Err(Error::invalid("packed rows need room for each row")
            .with("floats", rows.len())
            .with("dim", dim)
            .with("words", out.len()));
    }
    let Some(half) = dtype.half() else {
        out.copy_from_slice(rows);
        return Ok(());
    };
    let level = Level::detect();
    let bounds = ranges(n, pool.parts(rows.len(), LEAST_FLOATS));
    pool.each(shares(out, words, bounds), |(range, out)| {
        let rows = rows[range.start * dim..range.end * dim].chunks_exact(dim);
        for (row, out) in rows.zip(out.chunks_exact_mut(words)) {
            encode(level, half, None, row, out);
        }
    });
    Ok(())
}

/// Reads the words of one embedding, as [`pack_rows`] has them.
pub(crate) fn unpack(level: Level, dtype: RowDtype, words: &[f32], out: &mut [f32]) {
    match dtype.half() {
        None => out.copy_from_slice(words),
        Some(half) => read(level, half, words, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_of_two_bytes_come_back_as_they_are() -> Result<()> {
        for dtype in [RowDtype::Bfloat16, RowDtype::Float16] {
            for threads in [1, 2] {
                let (pool, dim) = (Pool::new(threads)?, 7);
                // In an odd dimension, with all bits that a word can have.
                let n = 65_536_usize.div_ceil(dim);
                let bits = |at: usize| (at % 65_536) as u32;
                let words: Vec<f32> = (0..n * dtype.words(dim))
                    .map(|at| match at % 4 {
                        3 => f32::from_bits(bits(7 * (at / 4) + 6)),
                        word => {
                            let first = 7 * (at / 4) + word;
                            f32::from_bits(bits(first) | bits(first + 3) << 16)
                        }
                    })
                    .collect();
                let mut rows = vec![0.0; n * dim];
                let level = Level::detect();
                for (words, row) in words.chunks(4).zip(rows.chunks_mut(dim)) {
                    unpack(level, dtype, words, row);
                }
                let mut packed = vec![1.0; words.len()];
                pack_rows(&pool, dtype, dim, &rows, &mut packed)?;
                let mut again = vec![0.0; rows.len()];
                for (words, row) in packed.chunks(4).zip(again.chunks_mut(dim)) {
                    unpack(level, dtype, words, row);
                }
                for (one, other) in rows.iter().zip(&again) {
                    let are_nan = one.is_nan() && other.is_nan();
                    assert!(are_nan || one.to_bits() == other.to_bits(), "{one} {other}");
                }
                assert!(rows.iter().any(|value| value.is_nan()));
            }
        }
        Ok(())
    }

    #[test]
    fn room_that_does_not_fit_is_refused() -> Result<()> {
        let pool = Pool::new(1)?;
        for (rows, dim, words) in [(6, 3, 3), (7, 3, 4), (6, 3, 6), (6, 0, 0)] {
            let mut out = vec![0.0; words];
            let found = pack_rows(&pool, RowDtype::Float16, dim, &vec![0.0; rows], &mut out);
            let text = found.err().map(|error| error.to_string());
            assert!(
                text.unwrap_or_default().contains("packed rows"),
                "{rows} {dim}"
            );
        }
        Ok(())
    }
}
