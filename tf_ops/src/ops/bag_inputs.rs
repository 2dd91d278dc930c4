//! The inputs of ops that describe the bags of a pooled lookup.

use crate::tf::{Context, Dims, Input};
use mx_rec_kernels::{Bags, MaxNorm, Result};

/// The inputs that describe bags.
pub(super) struct BagInputs {
    pub(super) ends: Input,
    weights: Option<Input>,
    divisors: Option<Input>,
    norm: Option<Input>,
    kept: Option<Input>,
}

impl BagInputs {
    /// Those that stand at `ends`, `weights` and `divisors` among the inputs.
    pub(super) fn read(
        context: &Context,
        ends: usize,
        weights: Option<usize>,
        divisors: Option<usize>,
    ) -> Result<Self> {
        let given = |at: Option<usize>| at.map(|at| context.input(at)).transpose();
        Ok(Self::new(
            context.input(ends)?,
            given(weights)?,
            given(divisors)?,
        ))
    }

    /// Weights and divisors without an element are none.
    pub(super) fn new(ends: Input, weights: Option<Input>, divisors: Option<Input>) -> Self {
        Self {
            ends,
            weights: weights.filter(|input| !is_empty(input)),
            divisors: divisors.filter(|input| !is_empty(input)),
            norm: None,
            kept: None,
        }
    }

    /// The same with a greatest norm of the rows; one without an element is none.
    pub(super) fn with_norm(self, norm: Option<Input>) -> Self {
        Self {
            norm: norm.filter(|input| !is_empty(input)),
            ..self
        }
    }

    /// Adds the rows as they were read, for gradients.
    pub(super) fn keep(&mut self, rows: Input) {
        self.kept = Some(rows);
    }

    /// Whether the rows have a greatest norm.
    pub(super) fn has_norm(&self) -> bool {
        self.norm.is_some()
    }

    /// Whether there is no bag.
    pub(super) fn is_empty(&self) -> bool {
        is_empty(&self.ends)
    }

    /// The bags.
    pub(super) fn bags(&self) -> Result<Bags<'_>> {
        Ok(Bags {
            ends: self.ends.values::<i64>()?,
            weights: floats(&self.weights)?,
            divisors: floats(&self.divisors)?,
            max_norm: match &self.norm {
                Some(norm) => Some(MaxNorm {
                    norm: norm.scalar::<f32>()?,
                    rows: floats(&self.kept)?.unwrap_or_default(),
                }),
                None => None,
            },
        })
    }

    /// The shape of a vector for each bag.
    pub(super) fn shape(&self, dim: usize) -> Dims {
        self.ends.dims_and(dim)
    }
}

fn floats(input: &Option<Input>) -> Result<Option<&[f32]>> {
    input.as_ref().map(Input::values::<f32>).transpose()
}

fn is_empty(input: &Input) -> bool {
    input.dims().contains(&0)
}
