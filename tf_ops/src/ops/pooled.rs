//! Ops on bags of rows that are tensors: `MxRecRestorePooled` adds up the rows of every bag of ids,
//! `MxRecReducePooled` and `MxRecPooledWeightGradient` are its gradients. `bags.rs` has the ops
//! that describe bags.

use super::bag_inputs::BagInputs;
use super::lists::{flag, Tensors};
use super::rows::{OFFSETS, ROWS, ROWS_GRAD};
use super::support::{expect_one_each, expect_rank, IDS};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{self as kernels, Result};

const INVERSE: Arg = Arg {
    spec: "inverse: int32",
    shape: "(i...)",
    doc: "For each id its place in offsets; -1: none.",
};
pub(super) const BAG_IDS: Arg = Arg {
    shape: "(i...)",
    ..IDS
};
pub(super) const ENDS: Arg = Arg {
    spec: "ends: int64",
    shape: "(s...)",
    doc: "Where each bag ends among the ids, which count in the order in which they lie; they \
          ascend, and the last is the number of ids.",
};
pub(super) const WEIGHTS: Arg = Arg {
    spec: "weights: float",
    shape: "(w...)",
    doc: "For each id what its row is multiplied with; none: nothing.",
};
pub(super) const DIVISORS: Arg = Arg {
    spec: "divisors: float",
    shape: "(d...)",
    doc: "For each bag what its sum is divided by, 0 gives zeros; none: nothing.",
};
pub(super) const NORMS: Arg = Arg {
    spec: "norms: L * float",
    shape: "L times () or (0)",
    doc:
        "The greatest l2 norm of a row: rows with a greater one are scaled down to it before they \
          are added, as tf.clip_by_norm does it; none: no row is.",
};
pub(super) const KEPT: Arg = Arg {
    spec: "kept: L * float",
    shape: "L times (k, dim)",
    doc: "The distinct rows as they were read, of which the gradients of rows that were scaled \
          down are computed; without a norm there are none.",
};
const WITH_NORM: Attr = Attr {
    spec: "L: int >= 0 = 0",
    doc: "1: rows have a greatest norm. 0: they have none.",
};
const POOLED: Arg = Arg {
    spec: "pooled: float",
    shape: "(s..., dim)",
    doc: "A vector for each bag.",
};
const POOLED_GRAD: Arg = Arg {
    spec: "grad: float",
    shape: "(s..., dim)",
    doc: "Gradient of the bags' vectors.",
};
const BAG_ERRORS: &str = "`INVALID_ARGUMENT` for ends that do not ascend from 0 to the number of \
                          ids, for weights that are not one for each id, for divisors that are not \
                          one for each bag, for a norm that is not above 0 and finite, and for a \
                          place outside of rows.";

/// How many norms a node has: one, or none.
fn norms(construction: &Construction) -> Result<usize> {
    Ok(usize::from(flag(construction, "L")?))
}

/// Rows of distinct keys to pooled rows.
pub(crate) struct RestorePooled {
    norms: usize,
}

impl OpKernel for RestorePooled {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRestorePooled",
        doc: "Pools the rows of distinct keys as MxRecRead does, for rows that are a \
              tensor. It has gradients with respect to rows, weights and divisors.",
        inputs: &[ROWS, INVERSE, ENDS, WEIGHTS, DIVISORS, NORMS],
        outputs: &[POOLED],
        attrs: &[WITH_NORM],
        errors: BAG_ERRORS,
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            norms: norms(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (rows, inverse) = (context.input(0)?, context.input(1)?);
        expect_rank(&rows, 2)?;
        let given = BagInputs::read(context, 2, Some(3), Some(4))?;
        let norm = Tensors::from(context, 5, 5).list(self.norms)?.pop();
        let given = given.with_norm(norm);
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
pub(crate) struct ReducePooled {
    norms: usize,
}

impl OpKernel for ReducePooled {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecReducePooled",
        doc: "Sums for each row the gradients of the bags of its ids, each divided by the bag's \
              divisor and times the id's weight, in the order in which the ids occur. With a norm \
              the sum then goes through the scaling down of the row, as the gradient of \
              tf.clip_by_norm does.",
        inputs: &[
            POOLED_GRAD,
            INVERSE,
            ENDS,
            WEIGHTS,
            DIVISORS,
            NORMS,
            KEPT,
            OFFSETS,
        ],
        outputs: &[ROWS_GRAD],
        attrs: &[WITH_NORM],
        errors: BAG_ERRORS,
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            norms: norms(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (grad, inverse) = (context.input(0)?, context.input(1)?);
        let given = BagInputs::read(context, 2, Some(3), Some(4))?;
        let mut further = Tensors::from(context, 5, 5);
        let mut given = given.with_norm(further.list(self.norms)?.pop());
        if let Some(rows) = further.list(self.norms)?.pop() {
            given.keep(rows);
        }
        let offsets = further.one()?;
        let dim = expect_one_each(&grad, &given.ends)?;
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
pub(crate) struct PooledWeightGradient {
    norms: usize,
}

impl OpKernel for PooledWeightGradient {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPooledWeightGradient",
        doc:
            "For each id the scalar product of its row, scaled down, and the gradient of its bag, \
              divided by the bag's divisor: the gradient of MxRecRestorePooled with respect to the \
              weights.",
        inputs: &[POOLED_GRAD, ROWS, INVERSE, ENDS, DIVISORS, NORMS],
        outputs: &[Arg {
            shape: "(i...)",
            doc: "Gradient of the weights.",
            ..WEIGHTS
        }],
        attrs: &[WITH_NORM],
        errors: BAG_ERRORS,
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            norms: norms(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (grad, rows, inverse) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let given = BagInputs::read(context, 3, None, Some(4))?;
        let norm = Tensors::from(context, 5, 5).list(self.norms)?.pop();
        let given = given.with_norm(norm);
        let dim = expect_one_each(&grad, &given.ends)?;
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
