//! Ops on rows that are tensors: `MxRecRestore`, `MxRecReduce`, `MxRecReduceColumns`.

use super::support::{columns, expect_rank};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Error, Result};

const INVERSE: Arg = Arg {
    spec: "inverse: int32",
    shape: "(s...)",
    doc: "For each id its row, from MxRecIdOffset; -1: none.",
};

/// The size of the last dimension, which must be there.
fn last(input: &Input) -> Result<i64> {
    input
        .rank()
        .checked_sub(1)
        .map(|at| input.dim(at))
        .ok_or_else(|| Error::invalid(format!("{} must not be a scalar", input.name())))
}

/// Rows to embeddings.
pub(crate) struct Restore;

impl OpKernel for Restore {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRestore",
        doc: "Spreads the rows of distinct keys over the ids of the batch. Its gradient is \
              MxRecReduce.",
        inputs: &[
            Arg {
                spec: "rows: float",
                shape: "(u, dim)",
                doc: "Rows of distinct keys.",
            },
            INVERSE,
        ],
        outputs: &[Arg {
            spec: "embedding: float",
            shape: "(s..., dim)",
            doc: "A row for each id; zeros for -1.",
        }],
        errors: "`INVALID_ARGUMENT` for a place outside of rows.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (rows, inverse) = (context.input(0)?, context.input(1)?);
        expect_rank(&rows, 2)?;
        let dim = last(&rows)?;
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
            Arg {
                spec: "offsets: int64",
                shape: "(u)",
                doc: "Only its length counts.",
            },
        ],
        outputs: &[Arg {
            spec: "rows: float",
            shape: "(u, columns)",
            doc: "Gradient of the rows.",
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
        let natural = |name: &str| -> Result<usize> {
            let value = construction.int(name)?;
            usize::try_from(value)
                .map_err(|_| Error::invalid(format!("{name} must not be negative")))
        };
        Ok(Self {
            first: natural("first")?,
            dim: natural("dim")?,
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
pub(crate) struct Reduce;

impl OpKernel for Reduce {
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
            Arg {
                spec: "offsets: int64",
                shape: "(u)",
                doc: "Only its length counts.",
            },
        ],
        outputs: &[Arg {
            spec: "rows: float",
            shape: "(u, dim)",
            doc: "Gradient of the rows.",
        }],
        errors: "`INVALID_ARGUMENT` for a place outside of rows.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (grad, inverse, offsets) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let dim = last(&grad)?;
        let of_ids = grad.dims();
        if of_ids.split_last().map(|(_, ids)| ids) != Some(&inverse.dims()) {
            return Err(
                Error::invalid("grad must have the shape of inverse and dim behind it")
                    .with("grad", format_args!("{of_ids:?}"))
                    .with("inverse", format_args!("{:?}", inverse.dims())),
            );
        }
        expect_rank(&offsets, 1)?;
        let rows = offsets.dim(0);
        let mut summed = context.allocate::<f32>(&[rows, dim])?;
        mx_rec_kernels::reduce(
            pool()?,
            grad.values::<f32>()?,
            dim as usize,
            inverse.values::<i32>()?,
            summed.values(),
        )?;
        context.set(0, summed)
    }
}
