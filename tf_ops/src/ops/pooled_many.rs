//! Ops of many pooled lookups at once: `MxRecSparseBagsMany`, `MxRecEmbedPooledMany`, and one step
//! of an optimizer, `MxRecApply<Optimizer>ManyPooled`.

use super::apply::{Hyper, Optimizer};
use super::grouped::{members, on_first, Found, Lists, FOUND_INVERSE, FOUND_OFFSETS, VARIABLES};
use super::pooled::BagInputs;
use super::support::{columns, MEMBERS};
use super::support::{expect_last, expect_rank, expect_row_each, ids, on, HANDLES, KEY_TYPE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{self as kernels, BagsOf, Columns, Combiner, Error, LookupColumns, Result};
use mx_rec_kernels::{SparseRules, Table};

const MANY_ENDS: Arg = Arg {
    name: "ends",
    dtype: "N * int64",
    shape: "N times (b)",
    doc: "For each member where its bags end among its ids, as in MxRecEmbedPooled.",
};
const MANY_WEIGHTS: Arg = Arg {
    name: "weights",
    dtype: "N * float",
    shape: "N times (w...)",
    doc: "For each member the weights of its ids, or none.",
};
const MANY_DIVISORS: Arg = Arg {
    name: "divisors",
    dtype: "N * float",
    shape: "N times (d)",
    doc: "For each member the divisors of its bags, 0 gives zeros; or none.",
};

/// Sparse ids of many lookups to bags.
pub(crate) struct SparseBagsMany {
    members: usize,
    leaves_out: bool,
    fills: bool,
}

impl OpKernel for SparseBagsMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSparseBagsMany",
        doc: "The bags of sparse ids of many lookups, as tf.nn.safe_embedding_lookup_sparse makes \
              them: ids in any order come out in that of their bags, and what sums are divided by.",
        inputs: &[
            Arg {
                name: "indices",
                dtype: "N * int64",
                shape: "N times (n, 2)",
                doc: "For each member where its ids stand in their matrix; the row is the bag.",
            },
            Arg {
                name: "ids",
                dtype: "N * T",
                shape: "N times (n)",
                doc: "For each member its ids.",
            },
            Arg {
                name: "dense_shape",
                dtype: "N * int64",
                shape: "N times (2)",
                doc: "For each member the shape of its matrix.",
            },
            Arg {
                name: "rows",
                dtype: "int64",
                shape: "(members)",
                doc: "For each member what its ids have to be below.",
            },
            Arg {
                name: "combiners",
                dtype: "int32",
                shape: "(members)",
                doc: "For each member what sums are divided by: 0: nothing; 1: the number of ids \
                      (mean); 2: its root (sqrtn).",
            },
        ],
        outputs: &[
            Arg {
                name: "bag_ids",
                dtype: "N * int64",
                shape: "N times (k)",
                doc: "For each member its ids, those of each bag together, in their order.",
            },
            MANY_ENDS,
            Arg {
                doc: "For each member the divisors of its bags, 0 of one without ids; none if \
                      nothing is divided.",
                ..MANY_DIVISORS
            },
        ],
        attrs: &[
            MEMBERS,
            KEY_TYPE,
            Attr {
                spec: "leave_out: int = 0",
                doc: "1: negative ids are left out. 0: they are refused.",
            },
            Attr {
                spec: "fill: int = 0",
                doc: "1: a bag without ids gets the id 0 and the divisor 0, so that an optimizer \
                      updates row 0 with zeros, as TensorFlow does.",
            },
        ],
        errors: "`INVALID_ARGUMENT` for a bag outside of the matrix, an id outside of [0, rows), \
                 and another combiner.",
        stateful: false,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let flag = |name| match construction.int(name)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::invalid(format!("{name} must be 0 or 1")).with(name, other)),
        };
        Ok(Self {
            members: members(construction)?,
            leaves_out: flag("leave_out")?,
            fills: flag("fill")?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (indices, inputs, shapes) = (lists.list(0)?, lists.list(1)?, lists.list(2)?);
        let (rows, combiners) = (
            context.tensor(3 * members, 3)?,
            context.tensor(3 * members + 1, 4)?,
        );
        expect_rank(&rows, 1)?;
        expect_rank(&combiners, 1)?;
        let (rows, combiners) = (rows.values::<i64>()?, combiners.values::<i32>()?);
        if rows.len() != members || combiners.len() != members {
            return Err(
                Error::invalid("rows and combiners must have one entry for each member")
                    .with("rows", rows.len())
                    .with("combiners", combiners.len())
                    .with("members", members),
            );
        }
        let mut made = Vec::with_capacity(members);
        let all = indices.iter().zip(&inputs).zip(&shapes);
        for (at, ((indices, input), shape)) in all.enumerate() {
            let named = |error: Error| error.with("member", at);
            expect_rank(indices, 2).map_err(named)?;
            expect_rank(input, 1).map_err(named)?;
            let (&[bags, _], 2) = (shape.values::<i64>()?, indices.dim(1)) else {
                return Err(named(
                    Error::invalid("sparse ids must have rank 2")
                        .with("indices", format_args!("{:?}", indices.dims()))
                        .with("dense_shape", format_args!("{:?}", shape.dims())),
                ));
            };
            let bags = u64::try_from(bags)
                .ok()
                .filter(|&bags| bags <= kernels::MAX_CAPACITY)
                .and_then(|bags| usize::try_from(bags).ok())
                .ok_or_else(|| {
                    let error = Error::invalid("dense_shape has a wrong number of rows");
                    named(error.with("rows", bags))
                })?;
            let (rows, combiner) = (rows.get(at).copied(), combiners.get(at).copied());
            let rules = SparseRules {
                rows: rows.unwrap_or(0),
                combiner: match combiner {
                    Some(0) => Combiner::Sum,
                    Some(1) => Combiner::Mean,
                    Some(2) => Combiner::Root,
                    other => {
                        let error = Error::invalid("a combiner must be 0, 1 or 2");
                        return Err(named(error.with("combiner", other.unwrap_or(-1))));
                    }
                },
                leaves_out: self.leaves_out,
                fills: self.fills,
            };
            let given = indices.values::<i64>()?;
            made.push(kernels::sparse_bags(given, ids(input)?, bags, &rules).map_err(named)?);
        }
        for (at, bags) in made.into_iter().enumerate() {
            let mut out = context.allocate::<i64>(&[bags.ids.len() as i64])?;
            out.values().copy_from_slice(&bags.ids);
            let mut ends = context.allocate::<i64>(&[bags.ends.len() as i64])?;
            ends.values().copy_from_slice(&bags.ends);
            let mut divisors = context.allocate::<f32>(&[bags.divisors.len() as i64])?;
            divisors.values().copy_from_slice(&bags.divisors);
            context.set(at, out)?;
            context.set(members + at, ends)?;
            context.set(2 * members + at, divisors)?;
        }
        Ok(())
    }
}

/// Offsets to pooled rows, in many tables.
pub(crate) struct EmbedPooledMany {
    members: usize,
}

impl OpKernel for EmbedPooledMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEmbedPooledMany",
        doc: "MxRecEmbedPooled in many tables at once.",
        inputs: &[
            HANDLES,
            VARIABLES,
            FOUND_OFFSETS,
            FOUND_INVERSE,
            MANY_ENDS,
            MANY_WEIGHTS,
            MANY_DIVISORS,
        ],
        outputs: &[Arg {
            name: "pooled",
            dtype: "N * float",
            shape: "N times (b, dim)",
            doc: "For each member a vector for each bag.",
        }],
        attrs: &[MEMBERS],
        errors: "those of MxRecEmbedPooled.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let found = Found::of(&lists)?;
        let bags = bags(&lists)?;
        let mut outputs = Vec::with_capacity(members);
        let mut group = Vec::with_capacity(members);
        for (rows, bags) in found.group()?.into_iter().zip(&bags) {
            outputs.push(context.allocate::<f32>(&bags.shape(rows.table.dim()))?);
            let bags = on(rows.table, || bags.bags())?;
            group.push(BagsOf { rows, bags });
        }
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::embed_pooled_many(pool()?, &group, outs)?;
        for (at, output) in outputs.into_iter().enumerate() {
            context.set(at, output)?;
        }
        Ok(())
    }
}

/// The bags that the lists 4, 5 and 6 describe.
fn bags(lists: &Lists<'_>) -> Result<Vec<BagInputs>> {
    let described = lists.list(4)?.into_iter().zip(lists.list(5)?);
    let described = described.zip(lists.list(6)?);
    Ok(described
        .map(|((ends, weights), divisors)| BagInputs::new(ends, Some(weights), Some(divisors)))
        .collect())
}

/// The op that takes offsets and the gradients of all ids or bags of lookups of many tables.
pub(crate) struct ApplyManyPooled<O> {
    optimizer: O,
    members: usize,
}

impl<O: Optimizer> OpKernel for ApplyManyPooled<O> {
    const DEF: &'static OpDef = O::MANY_POOLED;

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
            optimizer: O::read(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (tables, offsets) = (lists.tables()?, lists.list(1)?);
        let (inverses, grads, bags) = (lists.list(2)?, lists.list(3)?, bags(&lists)?);
        let mut group = Vec::with_capacity(members);
        let inputs = offsets.iter().zip(&inverses).zip(&grads).zip(&bags);
        for (table, (((offsets, inverse), grad), bags)) in tables.iter().zip(inputs) {
            let lookup = on(table, || {
                expect_rank(offsets, 1)?;
                expect_last(grad, table.dim())?;
                let is_pooled = !bags.is_empty();
                if is_pooled {
                    bags.expect_each(grad)?;
                } else if !inverse.values::<i32>()?.is_empty() {
                    expect_row_each(grad, inverse, table.dim())?;
                }
                let floats = grad.values::<f32>()?;
                Ok(LookupColumns {
                    offsets: offsets.values::<i64>()?,
                    inverse: inverse.values::<i32>()?,
                    grads: match is_pooled {
                        true => Columns::of(floats, table.dim(), 0, table.dim())?,
                        false => columns(grad, inverse, 0, table.dim())?,
                    },
                    bags: is_pooled.then(|| bags.bags()).transpose()?,
                })
            })?;
            group.push((&**table, lookup));
        }
        let step = on_first(&tables, || {
            self.optimizer.step(&Hyper::new(context, 7 * members, 7))
        })?;
        let updated = Table::apply_lookups_many(pool()?, &group, step.as_ref())?;
        context.set_scalar(0, updated as i64)
    }
}
