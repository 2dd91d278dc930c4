//! Sums of rows: in registers where the width is a usual one.

use crate::simd::{Four, FOUR};

/// A sum of rows of one width.
pub(super) trait RowSum {
    /// Makes it zeros.
    fn clear(&mut self);

    /// Makes it a row.
    fn set(&mut self, row: &[f32]);

    /// Adds a row.
    fn add(&mut self, row: &[f32]);

    /// Adds a row times a weight.
    fn add_times(&mut self, row: &[f32], weight: f32);

    /// Makes it a row times a weight.
    fn set_times(&mut self, row: &[f32], weight: f32);

    /// Writes the sum.
    fn put(&self, out: &mut [f32]);
}

/// Of `4 * N` columns.
pub(super) struct Fixed<const N: usize>([Four; N]);

impl<const N: usize> Fixed<N> {
    /// Combines the sum with a row that is wide enough.
    #[inline(always)]
    fn with(&mut self, row: &[f32], combine: impl Fn(Four, Four) -> Four) {
        let (row, _) = row.as_chunks::<FOUR>();
        if let Some(row) = row.first_chunk::<N>() {
            for (sum, value) in self.0.iter_mut().zip(row) {
                *sum = combine(*sum, Four::of(value));
            }
        }
    }
}

impl<const N: usize> RowSum for Fixed<N> {
    #[inline(always)]
    fn clear(&mut self) {
        self.0 = [Four::all(0.0); N];
    }

    #[inline(always)]
    fn set(&mut self, row: &[f32]) {
        self.with(row, |_, value| value);
    }

    #[inline(always)]
    fn add(&mut self, row: &[f32]) {
        self.with(row, Four::plus);
    }

    #[inline(always)]
    fn add_times(&mut self, row: &[f32], weight: f32) {
        let weight = Four::all(weight);
        self.with(row, |sum, value| sum.plus(value.times(weight)));
    }

    #[inline(always)]
    fn set_times(&mut self, row: &[f32], weight: f32) {
        let weight = Four::all(weight);
        self.with(row, |_, value| value.times(weight));
    }

    #[inline(always)]
    fn put(&self, out: &mut [f32]) {
        let (out, _) = out.as_chunks_mut::<FOUR>();
        for (out, sum) in out.iter_mut().zip(&self.0) {
            sum.put(out);
        }
    }
}

/// Of any number of columns.
pub(super) struct Wide<'a>(&'a mut [f32]);

impl RowSum for Wide<'_> {
    #[inline(always)]
    fn clear(&mut self) {
        self.0.fill(0.0);
    }

    #[inline(always)]
    fn set(&mut self, row: &[f32]) {
        for (sum, value) in self.0.iter_mut().zip(row) {
            *sum = *value;
        }
    }

    #[inline(always)]
    fn add(&mut self, row: &[f32]) {
        add_row(row, self.0);
    }

    #[inline(always)]
    fn add_times(&mut self, row: &[f32], weight: f32) {
        for (sum, value) in self.0.iter_mut().zip(row) {
            *sum += value * weight;
        }
    }

    #[inline(always)]
    fn set_times(&mut self, row: &[f32], weight: f32) {
        for (sum, value) in self.0.iter_mut().zip(row) {
            *sum = value * weight;
        }
    }

    #[inline(always)]
    fn put(&self, out: &mut [f32]) {
        out.copy_from_slice(self.0);
    }
}

/// Floats that are added at once.
const LANES: usize = 16;

/// Adds a row that is wide enough to a sum. Floats are added by the sixteen before any of these is
/// written: otherwise the compiler would add one by one, since it does not know that row and sum
/// are apart.
///
/// # Panics
/// If the row is narrower than the sum.
#[inline(always)]
pub(crate) fn add_row(row: &[f32], sum: &mut [f32]) {
    let (rows, last) = row[..sum.len()].as_chunks::<LANES>();
    let (sums, others) = sum.as_chunks_mut::<LANES>();
    for (sum, row) in sums.iter_mut().zip(rows) {
        *sum = std::array::from_fn(|at| sum[at] + row[at]);
    }
    for (sum, one) in others.iter_mut().zip(last) {
        *sum += one;
    }
}

/// A computation with a sum of `dim` columns.
pub(super) trait WithSum {
    /// What it gives.
    type Output;

    /// Does it. Must be `#[inline(always)]`, see [`Vectorized`](crate::simd::Vectorized).
    fn with(self, sum: impl RowSum) -> Self::Output;
}

/// Runs `work` with a sum of `dim` columns; it holds anything.
#[inline(always)]
pub(super) fn with_sum<W: WithSum>(dim: usize, work: W) -> W::Output {
    match dim {
        8 => work.with(Fixed([Four::all(0.0); 2])),
        16 => work.with(Fixed([Four::all(0.0); 4])),
        32 => work.with(Fixed([Four::all(0.0); 8])),
        64 => work.with(Fixed([Four::all(0.0); 16])),
        _ => work.with(Wide(&mut vec![0.0; dim])),
    }
}
