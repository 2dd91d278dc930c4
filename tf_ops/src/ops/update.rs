//! One step of an optimizer in the rows of tables: `MxRecUpdate`.

use super::bag_inputs::BagInputs;
use super::lists::{length, Tensors};
use super::pooled::KEPT;
use super::read::MANY_NORMS;
use super::support::{expect_last, expect_one_each, expect_rank, on, HANDLES, MEMBERS};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{
    Columns, Error, LookupGradients, Optimizer, Result, RowGradients, RowOptimizer, Table,
};
use std::sync::Arc;

pub(super) const OPTIMIZER: Attr = Attr {
    spec: "optimizer: int",
    doc: "Which: its number under Optimizers, at the end of this page.",
};
pub(super) const UPDATED: Arg = Arg {
    spec: "updated: int64",
    shape: "()",
    doc: "Distinct rows that were updated; rows of padding_keys are not.",
};

/// One step of an optimizer.
pub(crate) struct Update {
    optimizer: &'static Optimizer,
    members: usize,
    /// How many inverses, bags, norms, columns and numbers there are.
    lengths: [usize; 5],
}

impl OpKernel for Update {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecUpdate",
        doc:
            "One step of an optimizer in the rows of one table or of many. Gradients are those of \
              rows, or with `inverse` those of the ids of a lookup: MxRecReduce of each lookup in \
              the same op, and with `ends` MxRecReducePooled of those that are pooled; the same \
              bits without the tensors between. The gradients of a row are summed within each \
              member, then over the members of its table in order, and the row is updated once. If \
              one member fails, no row of any table changes.",
        inputs: &[
            HANDLES,
            Arg {
                spec: "offsets: N * int64",
                shape: "N times (u)",
                doc: "For each member the rows of its gradients, or those of its distinct keys; \
                      they may repeat, -1 is skipped.",
            },
            Arg {
                spec: "inverse: R * int32",
                shape: "R times (i...)",
                doc: "For each member and id its place in offsets; -1 is skipped.",
            },
            Arg {
                spec: "grad: N * float",
                shape: "N times (g..., width)",
                doc: "For each member the gradients of its rows (u, dim). With `inverse` that of \
                      its embeddings, or of a concatenation that they are columns of; with `ends` \
                      that of its bags' vectors.",
            },
            Arg {
                spec: "ends: B * int64",
                shape: "B times (e...)",
                doc: "For each member where its bags end among the ids, as in MxRecRead; \
                      none: it is not pooled.",
            },
            Arg {
                spec: "weights: B * float",
                shape: "B times (w...)",
                doc: "For each member the weights of its ids, or none.",
            },
            Arg {
                spec: "divisors: B * float",
                shape: "B times (d...)",
                doc: "For each member the divisors of its bags, or none.",
            },
            Arg {
                doc: "For each member the greatest norm of its rows when they were read, or none.",
                ..MANY_NORMS
            },
            Arg {
                doc: "For each member the distinct rows as they were read, in the order of \
                      offsets; without a norm there are none.",
                ..KEPT
            },
            Arg {
                spec: "columns: C * int32",
                shape: "C times (members)",
                doc: "For each member the first column of grad that is its own; -1: all are.",
            },
            Arg {
                spec: "hyper: H * float",
                shape: "H times ()",
                doc: "The optimizer's numbers.",
            },
        ],
        outputs: &[UPDATED],
        attrs: &[
            MEMBERS,
            Attr {
                spec: "R: int >= 0",
                doc: "0: gradients are those of rows. N: those of ids.",
            },
            Attr {
                spec: "B: int >= 0",
                doc: "0: no member is pooled. N: some are.",
            },
            Attr {
                spec: "L: int >= 0 = 0",
                doc: "0: no member has a greatest norm. N: some have; B must be N.",
            },
            Attr {
                spec: "C: int >= 0",
                doc: "0: all columns are a member's own. 1: `columns` says which.",
            },
            Attr {
                spec: "H: int >= 0",
                doc: "How many numbers the optimizer has.",
            },
            OPTIMIZER,
        ],
        errors: "`INVALID_ARGUMENT` for an offset that is no row in use, for a place outside of \
                 offsets, for ends, weights, divisors and norms that MxRecRead would refuse, for \
                 kept rows that are not one for each offset, and for a number that is not finite \
                 or out of its range.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = length(construction, "N")?;
        let mut lengths = [0; 5];
        for (count, name) in lengths.iter_mut().zip(["R", "B", "L", "C", "H"]) {
            *count = length(construction, name)?;
        }
        let optimizer = Optimizer::of(construction.int("optimizer")?)?;
        let [inverses, bags, norms, columns, _] = lengths;
        let wrong = |count: usize, full: usize| count != 0 && count != full;
        let needs_ids = inverses == 0 && (bags > 0 || columns > 0);
        let wrong_lists = wrong(inverses, members) || wrong(bags, members) || wrong(norms, bags);
        if wrong_lists || wrong(columns, 1) || needs_ids {
            return Err(Error::invalid(
                "R and B must be 0 or N, L 0 or B, C 0 or 1, and B and C 0 without inverses",
            )
            .with("N", members)
            .with("R", inverses)
            .with("B", bags)
            .with("L", norms)
            .with("C", columns));
        }
        Ok(Self {
            optimizer,
            members,
            lengths,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (members, [inverses, bags, norms, columns, numbers]) = (self.members, self.lengths);
        let mut inputs = Tensors::of(context);
        let tables = inputs.tables(members)?;
        let offsets = inputs.list(members)?;
        let inverses = inputs.list(inverses)?;
        let grads = inputs.list(members)?;
        let mut bags = inputs.bags(bags, norms)?;
        for (bags, kept) in bags.iter_mut().zip(inputs.list(norms)?) {
            bags.keep(kept);
        }
        let columns = inputs.list(columns)?;
        let hyper = inputs.list(numbers)?;
        let step = || on_first(&tables, || self.step(&hyper));
        if inverses.is_empty() {
            let mut group = Vec::with_capacity(members);
            for ((table, offsets), grad) in tables.iter().zip(&offsets).zip(&grads) {
                let rows = on(table, || {
                    expect_rank(offsets, 1)?;
                    expect_rank(grad, 2)?;
                    expect_last(grad, table.dim())?;
                    Ok(RowGradients {
                        offsets: offsets.values::<i64>()?,
                        grads: grad.values::<f32>()?,
                    })
                })?;
                group.push((&**table, rows));
            }
            let updated = Table::apply_many(pool()?, &group, step()?.as_ref())?;
            return context.set_scalar(0, updated as i64);
        }
        let firsts = match columns.first() {
            Some(columns) => Some(on_first(&tables, || first_columns(columns, members))?),
            None => None,
        };
        let mut lookups = Vec::with_capacity(members);
        for (at, ((offsets, inverse), grad)) in
            offsets.iter().zip(&inverses).zip(&grads).enumerate()
        {
            lookups.push(Lookup {
                offsets,
                inverse,
                grad,
                bags: bags.get(at),
                first: firsts.and_then(|firsts| usize::try_from(*firsts.get(at)?).ok()),
            });
        }
        let mut group = Vec::with_capacity(members);
        for (table, lookup) in tables.iter().zip(&lookups) {
            let gradients = on(table, || lookup.gradients(table.dim()))?;
            group.push((&**table, gradients));
        }
        let updated = Table::apply_lookups_many(pool()?, &group, step()?.as_ref())?;
        context.set_scalar(0, updated as i64)
    }
}

impl Update {
    /// The optimizer with the numbers of a run.
    fn step(&self, hyper: &[Input]) -> Result<Box<dyn RowOptimizer>> {
        let numbers = hyper.iter().enumerate().map(|(at, input)| {
            let number = input.scalar::<f32>();
            number.map_err(|error| match self.optimizer.numbers.get(at) {
                Some(number) => error.with("number", number.name),
                None => error,
            })
        });
        self.optimizer.step(&numbers.collect::<Result<Vec<f32>>>()?)
    }
}

/// The inputs of a member that are gradients of ids or of bags.
struct Lookup<'a> {
    offsets: &'a Input,
    inverse: &'a Input,
    grad: &'a Input,
    bags: Option<&'a BagInputs>,
    /// The first of its columns; none if all are its own.
    first: Option<usize>,
}

impl Lookup<'_> {
    fn gradients(&self, dim: usize) -> Result<LookupGradients<'_>> {
        let (inverse, grad) = (self.inverse, self.grad);
        expect_rank(self.offsets, 1)?;
        if self.first.is_none() {
            expect_last(grad, dim)?;
        }
        let ids = inverse.values::<i32>()?;
        let pooled = self.bags.filter(|bags| !bags.is_empty());
        if let Some(bags) = pooled {
            expect_one_each(grad, &bags.ends)?;
        } else if self.bags.is_none() || !ids.is_empty() {
            expect_one_each(grad, inverse)?;
        }
        let width = grad.dims().last().map_or(0, |&width| width as usize);
        Ok(LookupGradients {
            offsets: self.offsets.values::<i64>()?,
            inverse: ids,
            grads: Columns::of(grad.values::<f32>()?, width, self.first.unwrap_or(0), dim)?,
            bags: pooled.map(BagInputs::bags).transpose()?,
        })
    }
}

/// The entries of the input `columns`, one for each member.
fn first_columns(input: &Input, members: usize) -> Result<&[i32]> {
    expect_rank(input, 1)?;
    let firsts = input.values::<i32>()?;
    if firsts.len() == members {
        return Ok(firsts);
    }
    Err(
        Error::invalid("columns must have one entry for each member")
            .with("columns", firsts.len())
            .with("members", members),
    )
}

/// Runs what is for all tables of a group; its error names the first of them.
fn on_first<T>(tables: &[Arc<Table>], work: impl FnOnce() -> Result<T>) -> Result<T> {
    match tables.first() {
        Some(table) => on(table, work),
        None => work(),
    }
}
