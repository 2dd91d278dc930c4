//! Reading rows by their offsets, in one table or in many: `MxRecRead`.

use super::bag_inputs::BagInputs;
use super::lists::{length, length_of_each, members, on_only, Tensors};
use super::pooled;
use super::support::{expect_like, expect_rank, on, table, HANDLES, MEMBERS};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel, Output};
use crate::threads::pool;
use mx_rec_kernels::{Error, Result, RowsOf, Table};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

pub(super) const VARIABLES: Arg = Arg {
    spec: "variables: N * float",
    shape: "N times (0, dim)",
    doc: "The variable of each member's table; it carries dim to shape inference and is what \
          gradients are taken of.",
};
pub(super) const MANY_ENDS: Arg = Arg {
    spec: "ends: B * int64",
    shape: "B times (e...)",
    doc:
        "For each member where its bags end among its ids, which count in the order in which they \
          lie; they ascend, and the last is the number of ids.",
};
pub(super) const MANY_WEIGHTS: Arg = Arg {
    spec: "weights: B * float",
    shape: "B times (w...)",
    doc: "For each member what the row of each of its ids is multiplied with; none: nothing.",
};
pub(super) const MANY_DIVISORS: Arg = Arg {
    spec: "divisors: B * float",
    shape: "B times (d...)",
    doc: "For each member what the sum of each of its bags is divided by, 0 gives zeros; none: \
          nothing.",
};
pub(super) const NORMS: Attr = Attr {
    spec: "L: int >= 0 = 0",
    doc: "0: no member's rows have a greatest norm. N: those of some have; B must be N.",
};
pub(super) const MANY_NORMS: Arg = Arg {
    doc: "For each member the greatest l2 norm of its rows: those with a greater one are scaled \
          down to it before they are added, as tf.clip_by_norm does it; none: no row is.",
    ..pooled::NORMS
};
pub(super) const BAGS: Attr = Attr {
    spec: "B: int >= 0",
    doc: "0: the rows of ids. N: those of bags, pooled.",
};

/// Rows by offset.
pub(crate) struct Read {
    members: usize,
    /// How many inverses there are: none, or one for each member.
    inverses: usize,
    /// How many members are pooled: none or all.
    bags: usize,
    /// How many norms there are: none, or one for each member.
    norms: usize,
    /// How many tensors it gives: one for each member, or one for all.
    tensors: usize,
    variables: Variables,
}

impl OpKernel for Read {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRead",
        doc: "Copies rows out of one table or many: those of distinct keys, with `inverse` a row \
              for each id, and with `ends` a vector for each bag of ids. That is the sum of the \
              rows of its ids, each times its weight, in the order of the ids, divided by the \
              bag's divisor. No tensor lies between. The gradient with respect to a variable is an \
              IndexedSlices of the gradient of the distinct rows, which MxRecReduce, \
              MxRecReduceColumns and MxRecReducePooled sum, and the offsets; weights and divisors \
              have none.",
        inputs: &[
            HANDLES,
            VARIABLES,
            Arg {
                spec: "offsets: N * int64",
                shape: "N times (u)",
                doc: "For each member row numbers, as MxRecIdOffset gives them.",
            },
            Arg {
                spec: "inverse: R * int32",
                shape: "R times (s...)",
                doc: "For each member and id its place in offsets; -1: none.",
            },
            MANY_ENDS,
            MANY_WEIGHTS,
            MANY_DIVISORS,
            MANY_NORMS,
        ],
        outputs: &[
            Arg {
                spec: "rows: M * float",
                shape: "M times (e..., dim) if B or (s..., dim) if R or (u, dim)",
                doc: "For each member its rows; zeros for -1. Of one tensor for all: those of all \
                      members side by side, in their order.",
            },
            Arg {
                doc: "For each member the distinct rows as they were read, of which gradients of \
                      rows that were scaled down are computed; none without a norm.",
                ..pooled::KEPT
            },
        ],
        attrs: &[
            MEMBERS,
            Attr {
                spec: "R: int >= 0",
                doc: "0: the rows of distinct keys. N: those of ids.",
            },
            BAGS,
            Attr {
                spec: "M: int >= 1",
                doc:
                    "N: a tensor for each member. 1: one for all, a row for each id; its shape is \
                      not inferred.",
            },
            NORMS,
        ],
        errors: "`INVALID_ARGUMENT` for an offset that is no row in use, for a place outside of \
                 offsets, for members side by side of different shapes, for ends that do not \
                 ascend from 0 to the number of ids, for weights that are not one for each id, \
                 for divisors that are not one for each bag, and for a norm that is not above 0 \
                 and finite.",
        differentiable: true,
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        let inverses = length_of_each(construction, "R", members)?;
        let bags = length_of_each(construction, "B", members)?;
        let norms = length_of_each(construction, "L", bags)?;
        let tensors = length(construction, "M")?;
        let is_whole = tensors == 1 && inverses > 0 && bags == 0;
        if (tensors != members && !is_whole) || (bags > 0 && inverses == 0) {
            return Err(Error::invalid(
                "M must be N, or 1 with inverses and without bags, and B 0 without inverses",
            )
            .with("N", members)
            .with("R", inverses)
            .with("B", bags)
            .with("M", tensors));
        }
        Ok(Self {
            members,
            inverses,
            bags,
            norms,
            tensors,
            variables: Variables::default(),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        if (self.members, self.inverses, self.bags) == (1, 1, 0) {
            let table = table(context)?;
            return on(&table, || self.read_one(context, &table));
        }
        let mut inputs = Tensors::of(context);
        let tables = inputs.tables(self.members)?;
        self.variables.expect(&tables, &mut inputs)?;
        let offsets = inputs.list(self.members)?;
        for (table, offsets) in tables.iter().zip(&offsets) {
            on(table, || expect_rank(offsets, 1))?;
        }
        let inverses = inputs.list(self.inverses)?;
        let bags = inputs.bags(self.bags, self.norms)?;
        if inverses.is_empty() {
            return context.set_all(0, rows_of(context, &tables, &offsets)?);
        }
        let found = tables.iter().zip(&offsets).zip(&inverses);
        let found = found.map(|((table, offsets), inverse)| {
            Ok(RowsOf {
                table,
                offsets: offsets.values::<i64>()?,
                inverse: inverse.values::<i32>()?,
                bags: None,
            })
        });
        let mut group = found.collect::<Result<Vec<_>>>()?;
        on_only(&tables, || {
            if self.tensors != self.members {
                return read_side_by_side(context, &tables, &group, &inverses);
            }
            for (rows, bags) in group.iter_mut().zip(&bags) {
                rows.bags = Some(bags.bags()?);
            }
            let mut outputs = of_each(context, &tables, &inverses, &bags)?;
            let mut kept = of_kept(context, &group, bags.iter().take(self.norms))?;
            let outs = outputs.iter_mut().map(Output::values).collect();
            let rows = kept.iter_mut().map(Output::values).collect();
            Table::embed_many(pool()?, &group, outs, rows)?;
            outputs.extend(kept);
            context.set_all(0, outputs)
        })
    }
}

impl Read {
    /// A row for each id of the only table: the most frequent form, and the shortest, with no list.
    fn read_one(&self, context: &Context, table: &Arc<Table>) -> Result<()> {
        let (offsets, inverse) = (context.input(2)?, context.input(3)?);
        let mut inputs = Tensors::from(context, 1, 1);
        self.variables
            .expect(std::slice::from_ref(table), &mut inputs)?;
        expect_rank(&offsets, 1)?;
        let mut rows = context.allocate::<f32>(&inverse.dims_and(table.dim()))?;
        table.embed(
            pool()?,
            offsets.values::<i64>()?,
            inverse.values::<i32>()?,
            rows.values(),
        )?;
        context.set(0, rows)
    }
}

/// The variables of the members of a node, which say in the graph how wide rows are. A run has no
/// use for them: the first one that finds them to be those of their tables is the last to look.
#[derive(Default)]
pub(super) struct Variables(AtomicBool);

impl Variables {
    /// Refuses those that are not of their tables; they are the next list of the inputs.
    pub(super) fn expect(&self, tables: &[Arc<Table>], inputs: &mut Tensors<'_>) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            inputs.skip(tables.len());
            return Ok(());
        }
        let variables = inputs.list(tables.len())?;
        let mut all = tables.iter().zip(&variables);
        all.try_for_each(|(table, variable)| {
            on(table, || expect_like("variable", variable, table.config()))
        })?;
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Tensors with a row of its member's table for each of its ids, or for each of its bags.
pub(super) fn of_each(
    context: &Context,
    tables: &[Arc<Table>],
    ids: &[Input],
    bags: &[BagInputs],
) -> Result<Vec<Output<f32>>> {
    let all = tables.iter().zip(ids).enumerate();
    all.map(|(at, (table, ids))| match bags.get(at) {
        Some(bags) => context.allocate::<f32>(&bags.shape(table.dim())),
        None => context.allocate::<f32>(&ids.dims_and(table.dim())),
    })
    .collect()
}

/// The rows of distinct keys.
fn rows_of(
    context: &Context,
    tables: &[Arc<Table>],
    offsets: &[Input],
) -> Result<Vec<Output<f32>>> {
    let all = tables.iter().zip(offsets);
    let rows = all.map(|(table, offsets)| {
        let offsets = offsets.values::<i64>()?;
        let dims = [offsets.len() as i64, table.dim() as i64];
        let mut rows = context.allocate::<f32>(&dims)?;
        on(table, || table.lookup(pool()?, offsets, rows.values()))?;
        Ok(rows)
    });
    rows.collect()
}

/// Tensors for the distinct rows of members with a norm.
fn of_kept<'b>(
    context: &Context,
    group: &[RowsOf<'_>],
    bags: impl Iterator<Item = &'b BagInputs>,
) -> Result<Vec<Output<f32>>> {
    let all = group.iter().zip(bags);
    all.map(|(one, bags)| {
        let rows = if bags.has_norm() {
            one.offsets.len()
        } else {
            0
        };
        context.allocate::<f32>(&[rows as i64, one.table.dim() as i64])
    })
    .collect()
}

fn read_side_by_side(
    context: &Context,
    tables: &[Arc<Table>],
    group: &[RowsOf<'_>],
    inverses: &[Input],
) -> Result<()> {
    let first = inverses
        .first()
        .ok_or_else(|| Error::invalid("a group must have members"))?;
    for (table, inverse) in tables.iter().zip(inverses) {
        if inverse.dims() != first.dims() {
            return Err(Error::invalid("the ids of all members must have one shape")
                .with("table", &table.config().name)
                .with("shape", format_args!("{:?}", inverse.dims()))
                .with("first", format_args!("{:?}", first.dims())));
        }
    }
    let width = tables.iter().map(|table| table.dim()).sum();
    let mut output = context.allocate::<f32>(&first.dims_and(width))?;
    Table::embed_side_by_side(pool()?, group, output.values())?;
    context.set(0, output)
}
