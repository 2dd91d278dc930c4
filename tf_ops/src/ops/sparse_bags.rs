//! The op that makes the bags of many sparse lookups at once: `MxRecSparseBagsMany`.

use super::lists::{flag, members, Tensors};
use super::support::{expect_rank, ids, KEY_TYPE, MEMBERS};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use mx_rec_kernels::{self as kernels, Combiner, Error, Result, SparseRules};

const MANY_ENDS: Arg = Arg {
    spec: "ends: N * int64",
    shape: "N times (b)",
    doc: "For each member where its bags end among its ids, as in MxRecRead.",
};
const MANY_DIVISORS: Arg = Arg {
    spec: "divisors: N * float",
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
                spec: "indices: N * int64",
                shape: "N times (n, 2)",
                doc: "For each member where its ids stand in their matrix; the row is the bag.",
            },
            Arg {
                spec: "ids: N * T",
                shape: "N times (n)",
                doc: "For each member its ids.",
            },
            Arg {
                spec: "dense_shape: N * int64",
                shape: "N times (2)",
                doc: "For each member the shape of its matrix.",
            },
            Arg {
                spec: "rows: int64",
                shape: "(members)",
                doc: "For each member what its ids have to be below.",
            },
            Arg {
                spec: "combiners: int32",
                shape: "(members)",
                doc: "For each member what sums are divided by: 0: nothing; 1: the number of ids \
                      (mean); 2: its root (sqrtn).",
            },
        ],
        outputs: &[
            Arg {
                spec: "bag_ids: N * int64",
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
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
            leaves_out: flag(construction, "leave_out")?,
            fills: flag(construction, "fill")?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let mut lists = Tensors::of(context);
        let (indices, inputs, shapes) = (
            lists.list(members)?,
            lists.list(members)?,
            lists.list(members)?,
        );
        let (rows, combiners) = (lists.one()?, lists.one()?);
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
            context.set(at, context.vector(&bags.ids)?)?;
            context.set(members + at, context.vector(&bags.ends)?)?;
            context.set(2 * members + at, context.vector(&bags.divisors)?)?;
        }
        Ok(())
    }
}
