//! Ops that describe the bags of a pooled lookup: `MxRecBagEnds`, `MxRecRaggedBagEnds`,
//! `MxRecSparseBagEnds`, `MxRecBagWeights`, `MxRecBagDivisors`.

use super::bag_inputs::BagInputs;
use super::pooled::{BAG_IDS, DIVISORS, ENDS, WEIGHTS};
use super::support::{expect_rank, ids, PlainOp, IDS, KEY_TYPE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{self as kernels, Divisor, Error, Result};

/// Ids of one length to bags.
#[derive(Default)]
pub(crate) struct BagEnds;

impl PlainOp for BagEnds {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecBagEnds",
        doc: "The bags of ids that lie along the last dimension.",
        inputs: &[Arg {
            shape: "(s..., l)",
            doc: "Ids or their inverse; only the shape counts.",
            ..IDS
        }],
        outputs: &[ENDS],
        attrs: &[KEY_TYPE],
        ..OpDef::STATELESS
    };

    fn run(context: &Context) -> Result<()> {
        let dims = context.input(0)?.dims();
        let Some((length, bags)) = dims.split_last() else {
            return Err(Error::invalid("ids must not be a scalar"));
        };
        let mut ends = context.allocate::<i64>(bags)?;
        let mut end = 0;
        for value in ends.values() {
            end += length;
            *value = end;
        }
        context.set(0, ends)
    }
}

/// Row splits of ragged ids to bags.
#[derive(Default)]
pub(crate) struct RaggedBagEnds;

impl PlainOp for RaggedBagEnds {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRaggedBagEnds",
        doc: "The bags of ragged ids: those of one row belong together.",
        inputs: &[Arg {
            spec: "row_splits: T",
            shape: "(k)",
            doc: "Where the rows begin, and where the last one ends; the first is 0.",
        }],
        outputs: &[Arg {
            shape: "(b)",
            ..ENDS
        }],
        attrs: &[Attr {
            spec: "T: {int32, int64}",
            doc: "Type of the row splits.",
        }],
        errors: "`INVALID_ARGUMENT` for row splits that do not begin with 0.",
        ..OpDef::STATELESS
    };

    fn run(context: &Context) -> Result<()> {
        let splits = context.input(0)?;
        expect_rank(&splits, 1)?;
        let given = ids(&splits)?;
        if given.is_empty() || given.get(0) != 0 {
            return Err(Error::invalid("row_splits must begin with 0")
                .with("shape", format_args!("{:?}", splits.dims()))
                .with("first", given.get(0)));
        }
        let mut ends = context.allocate::<i64>(&[splits.dim(0) - 1])?;
        for (at, end) in ends.values().iter_mut().enumerate() {
            *end = given.get(at + 1);
        }
        context.set(0, ends)
    }
}

/// Indices of sparse ids to bags.
#[derive(Default)]
pub(crate) struct SparseBagEnds;

impl PlainOp for SparseBagEnds {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSparseBagEnds",
        doc: "The bags of sparse ids: those of one row belong together.",
        inputs: &[
            Arg {
                spec: "indices: int64",
                shape: "(n, 2)",
                doc: "Where the ids stand in their matrix, in the order of the rows.",
            },
            Arg {
                spec: "dense_shape: int64",
                shape: "(2)",
                doc: "The shape of the matrix.",
            },
        ],
        outputs: &[Arg {
            shape: "(b)",
            ..ENDS
        }],
        errors: "`INVALID_ARGUMENT` for rows that do not ascend or lie outside of the matrix.",
        ..OpDef::STATELESS
    };

    fn run(context: &Context) -> Result<()> {
        let (indices, shape) = (context.input(0)?, context.input(1)?);
        expect_rank(&indices, 2)?;
        let (&[rows, _], 2) = (shape.values::<i64>()?, indices.dim(1)) else {
            return Err(Error::invalid("sparse ids must have rank 2")
                .with("indices", format_args!("{:?}", indices.dims()))
                .with("dense_shape", format_args!("{:?}", shape.dims())));
        };
        let mut ends = context.allocate::<i64>(&[rows])?;
        kernels::sparse_bag_ends(indices.values::<i64>()?, 2, ends.values())?;
        context.set(0, ends)
    }
}

/// Weights, checked against their ids.
#[derive(Default)]
pub(crate) struct BagWeights;

impl PlainOp for BagWeights {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecBagWeights",
        doc: "Weights as they are, if there is one for each id. Its gradient is that of its \
              result.",
        inputs: &[
            Arg {
                shape: "(s...)",
                doc: "For each id what its row is multiplied with.",
                ..WEIGHTS
            },
            Arg {
                doc: "Ids or their inverse; only the shape counts.",
                ..IDS
            },
        ],
        outputs: &[Arg {
            spec: "checked: float",
            shape: "(s...)",
            doc: "The weights.",
        }],
        attrs: &[KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for weights of another shape than the ids.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn run(context: &Context) -> Result<()> {
        let (weights, ids) = (context.input(0)?, context.input(1)?);
        if weights.dims() != ids.dims() {
            return Err(Error::invalid("weights must have the shape of the ids")
                .with("weights", format_args!("{:?}", weights.dims()))
                .with("ids", format_args!("{:?}", ids.dims())));
        }
        context.set(0, &weights)
    }
}

/// Weights to what sums are divided by.
pub(crate) struct BagDivisors(Divisor);

impl OpKernel for BagDivisors {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecBagDivisors",
        doc: "What the sum of each bag is divided by. Padding counts as if it were not there. It \
              has a gradient with respect to the weights.",
        inputs: &[BAG_IDS, ENDS, WEIGHTS],
        outputs: &[Arg {
            shape: "(s...)",
            doc: "A divisor for each bag, 0 for one without ids.",
            ..DIVISORS
        }],
        attrs: &[
            KEY_TYPE,
            Attr {
                spec: "combiner: int",
                doc: "1: the sum of the weights (mean); 2: the root of the sum of their squares \
                      (sqrtn). Ids without weights have weight 1.",
            },
        ],
        errors: "`INVALID_ARGUMENT` for ends that do not ascend from 0 to the number of ids, and \
                 for weights that are not one for each id.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        match construction.int("combiner")? {
            1 => Ok(Self(Divisor::Weights)),
            2 => Ok(Self(Divisor::Root)),
            other => Err(Error::invalid("combiner must be 1 or 2").with("combiner", other)),
        }
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let input = context.input(0)?;
        let given = BagInputs::read(context, 1, Some(2), None)?;
        let mut divisors = context.allocate::<f32>(&given.ends.dims())?;
        let bags = given.bags()?;
        kernels::bag_divisors(pool()?, ids(&input)?, &bags, self.0, divisors.values())?;
        context.set(0, divisors)
    }
}
