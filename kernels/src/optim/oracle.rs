//! The optimizers as one would write them on paper, in float64, and the tests that hold the real ones against them.

use crate::simd::Level;

/// An optimizer that can be compiled for a chosen level.
pub(super) trait AtLevel: Sized {
    /// The same optimizer at `level`.
    fn at(self, level: Level) -> Self;
}
