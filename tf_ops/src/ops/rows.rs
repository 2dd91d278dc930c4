//! Ops on rows that are tensors: `MxRecRestore`, `MxRecReduce`, `MxRecReduceColumns`.

use super::lists::length;
use super::support::{columns, expect_one_each, expect_rank, PlainOp};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::Result;

const INVERSE: Arg = Arg {
    spec: "inverse: int32",
    shape: "(s...)",
    doc: "For each id its row, from MxRecIdOffset; -1: none.",
};

pub(super) const OFFSETS: Arg = Arg {
    spec: "offsets: int64",
    shape: "(u)",
    doc: "Only its length counts.",
};
pub(super) const ROWS: Arg = Arg {
    spec: "rows: float",
    shape: "(u, dim)",
    doc: "Rows of distinct keys.",
};
pub(super) const ROWS_GRAD: Arg = Arg {
    doc: "Gradient of the rows.",
    ..ROWS
};

/// Rows to embeddings.
#[derive(Default)]
pub(crate) struct Restore;

impl PlainOp for Restore {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRestore",
        doc: "Spreads the rows of distinct keys over the ids of the batch. Its gradient is \
              MxRecReduce.",
        inputs: &[ROWS, INVERSE],
        outputs: &[Arg {
            spec: "embedding: float",
            shape: "(s..., dim)",
            doc: "A row for each id; zeros for -1.",
        }],
        errors: "`INVALID_ARGUMENT` for a place outside of rows.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn run(context: &Context) -> Result<()> {
        let (rows, inverse) = (context.input(0)?, context.input(1)?);
        expect_rank(&rows, 2)?;
        let dim = rows.dim(1);
        let mut embedding = context.allocate::<f32>(&inverse.dims_and(dim as usize))?;
        mx_rec_kernels::restore(
            pool()?,
            rows.values::<f32>()?,
            dim as usize,
            inverse.values::<i32>()?,
            embedding.values(),
        )?;
        context.set(0, embedding)
    }
}

/// Gradients of concatenated embeddings to gradients of the rows of one table.
pub(crate) struct ReduceColumns {
    first: usize,
    dim: usize,
}

impl OpKernel for ReduceColumns {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecReduceColumns",
        doc: "MxRecReduce of neighbouring columns of a gradient: those that the embeddings of one \
              table have in a concatenation.",
        inputs: &[
            Arg {
                spec: "grad: float",
                shape: "(s..., width)",
                doc: "Gradient of the concatenation.",
            },
            INVERSE,
            OFFSETS,
        ],
        outputs: &[Arg {
            shape: "(u, columns)",
            ..ROWS_GRAD
        }],
        attrs: &[
            Attr {
                spec: "first: int >= 0",
                doc: "The first of the columns.",
            },
            Attr {
                spec: "dim: int >= 1",
                doc: "How many columns there are.",
            },
        ],
        errors:
            "`INVALID_ARGUMENT` for a place outside of rows, and for columns that grad has not.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            first: length(construction, "first")?,
            dim: length(construction, "dim")?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (grad, inverse, offsets) = (context.input(0)?, context.input(1)?, context.input(2)?);
        expect_rank(&offsets, 1)?;
        let columns = columns(&grad, &inverse, self.first, self.dim)?;
        let mut summed = context.allocate::<f32>(&[offsets.dim(0), self.dim as i64])?;
        let inverse = inverse.values::<i32>()?;
        mx_rec_kernels::reduce_columns(pool()?, columns, inverse, summed.values())?;
        context.set(0, summed)
    }
}

/// Gradients of embeddings to gradients of rows.
#[derive(Default)]
pub(crate) struct Reduce;

impl PlainOp for Reduce {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecReduce",
        doc: "Sums the gradients of ids that share a row, in the order in which they occur. Its \
              gradient is MxRecRestore.",
        inputs: &[
            Arg {
                spec: "grad: float",
                shape: "(s..., dim)",
                doc: "Gradient of the embeddings.",
            },
            INVERSE,
            OFFSETS,
        ],
        outputs: &[ROWS_GRAD],
        errors: "`INVALID_ARGUMENT` for a place outside of rows.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn run(context: &Context) -> Result<()> {
        let (grad, inverse, offsets) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let dim = expect_one_each(&grad, &inverse)?;
        expect_rank(&offsets, 1)?;
        let mut summed = context.allocate::<f32>(&[offsets.dim(0), dim as i64])?;
        mx_rec_kernels::reduce(
            pool()?,
            grad.values::<f32>()?,
            dim,
            inverse.values::<i32>()?,
            summed.values(),
        )?;
        context.set(0, summed)
    }
}
