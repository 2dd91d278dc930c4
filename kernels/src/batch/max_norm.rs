//! Rows with a greatest l2 norm, scaled down as tf.clip_by_norm does it, and their gradients.

use crate::simd::{Level, Vectorized};
use crate::{Error, Result};

/// Numbers that are squared and added up beside each other, as in TensorFlow's builds with AVX.
const LANES: usize = 8;

/// The greatest l2 norm of the rows of a lookup: a greater one is scaled down to it before it is
/// added up.
#[derive(Clone, Copy, Debug)]
pub struct MaxNorm<'a> {
    /// The norm, above 0 and finite.
    pub norm: f32,
    /// The distinct rows as they were read, `(u, dim)`: of them gradients are computed. Empty where
    /// there are none.
    pub rows: &'a [f32],
}

impl MaxNorm<'_> {
    /// Refuses a norm that none can have.
    pub(crate) fn check(&self) -> Result<()> {
        match self.norm > 0.0 && self.norm.is_finite() {
            true => Ok(()),
            false => {
                Err(Error::invalid("max_norm must be above 0 and finite")
                    .with("max_norm", self.norm))
            }
        }
    }

    /// Refuses another number of rows than that of the distinct keys of a lookup.
    pub(crate) fn expect_rows(&self, distinct: usize, dim: usize) -> Result<()> {
        if self.rows.len() == distinct * dim {
            return Ok(());
        }
        Err(
            Error::invalid("gradients of rows with a max_norm need these")
                .with("floats", self.rows.len())
                .with("expected", distinct * dim),
        )
    }

    /// Makes the gradient of the scaled row of a key, `dim` floats, that of its row.
    ///
    /// With norm c, row w and gradient g it is `c / |w| * (g - w * (w . g) / |w|^2)` where `|w|` is
    /// c or more, computed in the order of TensorFlow's gradient of tf.clip_by_norm.
    pub(crate) fn gradient(&self, level: Level, number: usize, grad: &mut [f32]) {
        let row = &self.rows[number * grad.len()..][..grad.len()];
        let norm = self.norm;
        level.run(Gradient { row, norm, grad });
    }
}

/// The l2 norm of a row: 0 for zeros, and NaN where a float is.
#[inline(always)]
fn norm_of(row: &[f32]) -> f32 {
    let squares = dot(row, row);
    match squares > 0.0 {
        true => squares.sqrt(),
        false => squares,
    }
}

/// The greater one; NaN if `norm` is.
#[inline(always)]
fn at_least(norm: f32, least: f32) -> f32 {
    match norm < least {
        true => least,
        false => norm,
    }
}

/// Scales a row down, into `out` of its size. Must be inlined into the entry of a level.
#[inline(always)]
pub(super) fn scale_down(row: &[f32], norm: f32, out: &mut [f32]) {
    let divisor = at_least(norm_of(row), norm);
    for (out, value) in out.iter_mut().zip(row) {
        *out = value * norm / divisor;
    }
}

/// The scalar product of rows of one size: the same bits at every level.
#[inline(always)]
pub(super) fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (ones, rest) = one.as_chunks::<LANES>();
    let (others, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in ones.iter().zip(others) {
        for ((sum, one), other) in sums.iter_mut().zip(one).zip(other) {
            *sum += one * other;
        }
    }
    // Halves are added up until one is left.
    let [a, b, c, d, e, f, g, h] = sums;
    let whole = ((a + e) + (c + g)) + ((b + f) + (d + h));
    let rest = rest.iter().zip(other_rest);
    rest.map(|(one, other)| one * other)
        .fold(0.0, |sum, product| sum + product)
        + whole
}

struct Gradient<'a> {
    row: &'a [f32],
    norm: f32,
    grad: &'a mut [f32],
}

impl Vectorized for Gradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Gradient { row, norm, grad } = self;
        let own = norm_of(row);
        let divisor = at_least(own, norm);
        // Of the divisor, which is the norm of the row: -row * norm / divisor / divisor each.
        let mut of_divisor = 0.0;
        if own >= norm {
            let scaled = row.iter().map(|value| -(value * norm) / divisor / divisor);
            of_divisor = scaled.zip(&*grad).map(|(scaled, grad)| grad * scaled).sum();
        }
        let of_squares = of_divisor * 0.5 / own;
        for (grad, value) in grad.iter_mut().zip(row) {
            let straight = *grad / divisor * norm;
            *grad = match own >= norm {
                true => straight + value * of_squares + value * of_squares,
                false => straight,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(row: &[f32], norm: f32) -> Vec<f32> {
        let mut out = vec![7.0; row.len()];
        scale_down(row, norm, &mut out);
        out
    }

    #[test]
    fn rows_get_at_most_the_norm_and_smaller_ones_keep_theirs() {
        assert_eq!(scaled(&[3.0, 4.0], 1.0), [3.0 / 5.0, 4.0 / 5.0]);
        assert_eq!(scaled(&[3.0, 4.0], 5.0), [3.0, 4.0]);
        assert_eq!(scaled(&[3.0, 4.0], 8.0), [3.0, 4.0]);
        assert_eq!(scaled(&[0.0; 3], 1.0), [0.0; 3]);
        let row: Vec<f32> = (0..19).map(|at| (at as f32 * 0.7).sin()).collect();
        let norm = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!((norm(&scaled(&row, 0.5)) - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_row_with_nan_is_nan_and_one_without_end_is_zeros_beside_it() {
        assert!(scaled(&[f32::NAN, 1.0], 1.0)
            .iter()
            .all(|value| value.is_nan()));
        let infinite = scaled(&[f32::INFINITY, 1.0], 1.0);
        assert!(infinite[0].is_nan() && infinite[1] == 0.0);
    }

    #[test]
    fn the_gradient_is_that_of_differences() {
        for dim in [1, 2, 8, 16, 19, 64] {
            let row: Vec<f32> = (0..dim).map(|at| (at as f32 + 0.3).sin()).collect();
            let grads: Vec<f32> = (0..dim).map(|at| (at as f32 * 1.3 + 1.0).cos()).collect();
            for norm in [0.25, 100.0] {
                let value = |row: &[f64]| {
                    let own = row.iter().map(|value| value * value).sum::<f64>().sqrt();
                    let scale = f64::from(norm) / own.max(f64::from(norm));
                    let sum = row.iter().zip(&grads);
                    sum.map(|(value, &grad)| value * scale * f64::from(grad))
                        .sum::<f64>()
                };
                let mut found = grads.clone();
                let max_norm = MaxNorm { norm, rows: &row };
                max_norm.gradient(Level::detect(), 0, &mut found);
                for (at, &found) in found.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut row: Vec<f64> = row.iter().map(|&one| f64::from(one)).collect();
                        row[at] += by;
                        value(&row)
                    };
                    let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    let difference = (f64::from(found) - expected).abs();
                    assert!(difference < 1e-5, "{dim} {norm} {at}: {difference}");
                }
            }
        }
    }

    #[test]
    fn a_row_of_zeros_passes_its_gradient_on() {
        let max_norm = MaxNorm {
            norm: 2.0,
            rows: &[0.0; 3],
        };
        let mut grad = [1.0, -2.0, 3.0];
        max_norm.gradient(Level::detect(), 0, &mut grad);
        assert_eq!(grad, [1.0, -2.0, 3.0]);
    }

    #[test]
    fn norms_that_none_can_have_and_rows_of_another_number_are_refused() {
        for norm in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(MaxNorm { norm, rows: &[] }.check().is_err());
        }
        let one = MaxNorm {
            norm: 1.0,
            rows: &[1.0; 4],
        };
        assert!(one.expect_rows(2, 2).is_ok() && one.expect_rows(2, 3).is_err());
    }
}
