//! Ops on bags of rows that are tensors: `MxRecRestorePooled` adds up the rows of every bag of ids,
//! `MxRecReducePooled` and `MxRecPooledWeightGradient` are its gradients. `bags.rs` has the ops
//! that describe bags.

use super::support::{expect_rank, IDS};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{self as kernels, Bags, Error, Result};

const OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "int64",
    shape: "(u)",
    doc: "Row numbers of the distinct keys.",
};
const INVERSE: Arg = Arg {
    name: "inverse",
    dtype: "int32",
    shape: "(i...)",
    doc: "For each id its place in offsets; -1: none.",
};
pub(super) const BAG_IDS: Arg = Arg {
    shape: "(i...)",
    ..IDS
};
pub(super) const ENDS: Arg = Arg {
    name: "ends",
    dtype: "int64",
    shape: "(s...)",
    doc: "Where each bag ends among the ids, which count in the order in which they lie; they \
          ascend, and the last is the number of ids.",
};
pub(super) const WEIGHTS: Arg = Arg {
    name: "weights",
    dtype: "float",
    shape: "(w...)",
    doc: "For each id what its row is multiplied with; none: nothing.",
};
pub(super) const DIVISORS: Arg = Arg {
    name: "divisors",
    dtype: "float",
    shape: "(d...)",
    doc: "For each bag what its sum is divided by, 0 gives zeros; none: nothing.",
};
const ROWS: Arg = Arg {
    name: "rows",
    dtype: "float",
    shape: "(u, dim)",
    doc: "Rows of distinct keys.",
};
const POOLED: Arg = Arg {
    name: "pooled",
    dtype: "float",
    shape: "(s..., dim)",
    doc: "A vector for each bag.",
};
const POOLED_GRAD: Arg = Arg {
    name: "grad",
    dtype: "float",
    shape: "(s..., dim)",
    doc: "Gradient of the bags' vectors.",
};
const BAG_ERRORS: &str = "`INVALID_ARGUMENT` for ends that do not ascend from 0 to the number of \
                          ids, for weights that are not one for each id, for divisors that are not \
                          one for each bag, and for a place outside of rows.";

/// The inputs that describe bags.
pub(super) struct BagInputs {
    pub(super) ends: Input,
    weights: Option<Input>,
    divisors: Option<Input>,
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
        }
    }

    /// Whether there is no bag.
    pub(super) fn is_empty(&self) -> bool {
        is_empty(&self.ends)
    }

    /// The bags.
    pub(super) fn bags(&self) -> Result<Bags<'_>> {
        Ok(Bags {
            ends: self.ends.values::<i64>()?,
            weights: self
                .weights
                .as_ref()
                .map(Input::values::<f32>)
                .transpose()?,
            divisors: self
                .divisors
                .as_ref()
                .map(Input::values::<f32>)
                .transpose()?,
        })
    }

    /// The shape of a vector for each bag.
    pub(super) fn shape(&self, dim: usize) -> Vec<i64> {
        let mut dims = self.ends.dims();
        dims.push(dim as i64);
        dims
    }

    /// Refuses an input that is not one vector for each bag, and returns the vectors' width.
    pub(super) fn expect_each(&self, vectors: &Input) -> Result<usize> {
        let (dims, bags) = (vectors.dims(), self.ends.dims());
        match dims.split_last() {
            Some((dim, of_vectors)) if of_vectors == bags => Ok(usize::try_from(*dim).unwrap_or(0)),
            _ => Err(Error::invalid(format!(
                "{} must have the shape of ends and dim behind it",
                vectors.name()
            ))
            .with(vectors.name(), format_args!("{dims:?}"))
            .with("ends", format_args!("{bags:?}"))),
        }
    }
}

fn is_empty(input: &Input) -> bool {
    input.dims().contains(&0)
}

/// Rows of distinct keys to pooled rows.
pub(crate) struct RestorePooled;

impl OpKernel for RestorePooled {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRestorePooled",
        doc: "Pools the rows of distinct keys as MxRecRead does, for rows that are a \
              tensor. It has gradients with respect to rows, weights and divisors.",
        inputs: &[ROWS, INVERSE, ENDS, WEIGHTS, DIVISORS],
        outputs: &[POOLED],
        attrs: &[],
        errors: BAG_ERRORS,
        stateful: false,
        differentiable: true,
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (rows, inverse) = (context.input(0)?, context.input(1)?);
        expect_rank(&rows, 2)?;
        let given = BagInputs::read(context, 2, Some(3), Some(4))?;
        let dim = usize::try_from(rows.dim(1)).unwrap_or(0);
        let mut pooled = context.allocate::<f32>(&given.shape(dim))?;
        kernels::restore_pooled(
            pool()?,
            rows.values::<f32>()?,
            dim,
            inverse.values::<i32>()?,
            &given.bags()?,
            pooled.values(),
        )?;
        context.set(0, pooled)
    }
}

/// Gradients of bags to gradients of rows.
pub(crate) struct ReducePooled;

impl OpKernel for ReducePooled {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecReducePooled",
        doc: "Sums for each row the gradients of the bags of its ids, each divided by the bag's \
              divisor and times the id's weight, in the order in which the ids occur.",
        inputs: &[
            POOLED_GRAD,
            INVERSE,
            ENDS,
            WEIGHTS,
            DIVISORS,
            Arg {
                doc: "Only its length counts.",
                ..OFFSETS
            },
        ],
        outputs: &[Arg {
            doc: "Gradient of the rows.",
            ..ROWS
        }],
        attrs: &[],
        errors: BAG_ERRORS,
        stateful: false,
        differentiable: true,
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (grad, inverse, offsets) = (context.input(0)?, context.input(1)?, context.input(5)?);
        let given = BagInputs::read(context, 2, Some(3), Some(4))?;
        let dim = given.expect_each(&grad)?;
        expect_rank(&offsets, 1)?;
        let mut rows = context.allocate::<f32>(&[offsets.dim(0), dim as i64])?;
        kernels::reduce_pooled(
            pool()?,
            kernels::Columns::all(grad.values::<f32>()?, dim)?,
            inverse.values::<i32>()?,
            &given.bags()?,
            rows.values(),
        )?;
        context.set(0, rows)
    }
}

/// Gradients of bags to gradients of weights.
pub(crate) struct PooledWeightGradient;

impl OpKernel for PooledWeightGradient {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPooledWeightGradient",
        doc: "For each id the scalar product of its row and the gradient of its bag, divided by \
              the bag's divisor: the gradient of MxRecRestorePooled with respect to the weights.",
        inputs: &[POOLED_GRAD, ROWS, INVERSE, ENDS, DIVISORS],
        outputs: &[Arg {
            shape: "(i...)",
            doc: "Gradient of the weights.",
            ..WEIGHTS
        }],
        attrs: &[],
        errors: BAG_ERRORS,
        stateful: false,
        differentiable: true,
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (grad, rows, inverse) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let given = BagInputs::read(context, 3, None, Some(4))?;
        let dim = given.expect_each(&grad)?;
        expect_rank(&rows, 2)?;
        let mut weights = context.allocate::<f32>(&inverse.dims())?;
        kernels::weight_gradients(
            pool()?,
            rows.values::<f32>()?,
            dim,
            inverse.values::<i32>()?,
            &given.bags()?,
            grad.values::<f32>()?,
            weights.values(),
        )?;
        context.set(0, weights)
    }
}
