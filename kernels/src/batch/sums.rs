//! Sums of rows: in registers where the width is a usual one.

/// A sum of rows of one width.
pub(super) trait RowSum {
    /// Makes it zeros.
    fn clear(&mut self);

    /// Adds a row.
    fn add(&mut self, row: &[f32]);

    /// Adds a row times a weight.
    fn add_times(&mut self, row: &[f32], weight: f32);

    /// Makes it a row times a weight.
    fn set_times(&mut self, row: &[f32], weight: f32);

    /// The sum.
    fn values(&mut self) -> &mut [f32];
}

/// Of `D` columns.
pub(super) struct Fixed<const D: usize>(pub(super) [f32; D]);

impl<const D: usize> RowSum for Fixed<D> {
    #[inline(always)]
    fn clear(&mut self) {
        self.0 = [0.0; D];
    }

    #[inline(always)]
    fn add(&mut self, row: &[f32]) {
        if let Some(row) = row.first_chunk::<D>() {
            for (sum, value) in self.0.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }

    #[inline(always)]
    fn add_times(&mut self, row: &[f32], weight: f32) {
        if let Some(row) = row.first_chunk::<D>() {
            for (sum, value) in self.0.iter_mut().zip(row) {
                *sum += value * weight;
            }
        }
    }

    #[inline(always)]
    fn set_times(&mut self, row: &[f32], weight: f32) {
        if let Some(row) = row.first_chunk::<D>() {
            for (sum, value) in self.0.iter_mut().zip(row) {
                *sum = value * weight;
            }
        }
    }

    #[inline(always)]
    fn values(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

/// Of any number of columns.
pub(super) struct Wide<'a>(pub(super) &'a mut [f32]);

impl RowSum for Wide<'_> {
    #[inline(always)]
    fn clear(&mut self) {
        self.0.fill(0.0);
    }

    #[inline(always)]
    fn add(&mut self, row: &[f32]) {
        for (sum, value) in self.0.iter_mut().zip(row) {
            *sum += value;
        }
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
    fn values(&mut self) -> &mut [f32] {
        self.0
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
        8 => work.with(Fixed([0.0; 8])),
        16 => work.with(Fixed([0.0; 16])),
        32 => work.with(Fixed([0.0; 32])),
        64 => work.with(Fixed([0.0; 64])),
        _ => work.with(Wide(&mut vec![0.0; dim])),
    }
}
