//! Ops on many tables at once: `MxRecIdOffsetMany`, `MxRecPrepareMany`, `MxRecClaimMany`,
//! `MxRecEmbedMany`, `MxRecEmbedConcat`, `MxRecFindMany`.

use super::support::{
    expect_rank, expect_variable, ids, limit, on, rows_of_absent, HANDLES, KEY_TYPE, LIMIT, MEMBERS,
};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, Input, Lent, OpKernel, Output};
use crate::threads::pool;
use crate::{tables, trace};
use mx_rec_kernels::{Error, IdsOf, KeysOf, Lease, Result, RowsOf, Table};
use std::sync::Arc;

/// How many members the node has.
pub(super) fn members(construction: &Construction) -> Result<usize> {
    length(construction, "N")
}

/// How many tensors the lists have whose number attribute is `name`.
pub(super) fn length(construction: &Construction, name: &'static str) -> Result<usize> {
    let length = construction.int(name)?;
    usize::try_from(length)
        .map_err(|_| Error::invalid("a number of tensors must not be negative").with(name, length))
}

/// The inputs of a group: lists of as many tensors as the group has members, and single tensors.
pub(super) struct Lists<'a> {
    pub(super) context: &'a Context,
    pub(super) members: usize,
}

impl Lists<'_> {
    /// The tensors of the list that input number `arg` is, behind `lists` lists.
    pub(super) fn list(&self, arg: usize) -> Result<Vec<Input>> {
        let start = arg * self.members;
        let places = start..start + self.members;
        places.map(|at| self.context.tensor(at, arg)).collect()
    }

    /// The tables of the members.
    pub(super) fn tables(&self) -> Result<Vec<Arc<Table>>> {
        let handles = self.list(0)?;
        let tables = handles
            .iter()
            .map(|handle| tables::get(handle.scalar::<i64>()?))
            .collect::<Result<Vec<_>>>()?;
        tables.iter().for_each(trace::note);
        Ok(tables)
    }
}

pub(super) const MANY_IDS: Arg = Arg {
    name: "ids",
    dtype: "N * T",
    shape: "N times (s...)",
    doc: "For each member keys, any rank.",
};
/// The outputs of ops that resolve keys.
const MANY_RESOLVED: &[Arg] = &[
    Arg {
        name: "offsets",
        dtype: "N * int64",
        shape: "N times (u)",
        doc: "For each member the row numbers of the distinct keys, in order of first occurrence.",
    },
    Arg {
        name: "inverse",
        dtype: "N * int32",
        shape: "N times (s...)",
        doc: "For each member and id its place in offsets; -1 for padding.",
    },
];

/// Distinct keys and their rows, in many tables.
pub(crate) struct IdOffsetMany {
    members: usize,
    limit: Option<usize>,
}

impl OpKernel for IdOffsetMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecIdOffsetMany",
        doc: "MxRecIdOffset with `create` 1 in many tables at once: the same offsets, which are \
              leases, in each. Batches of one table get their rows in their order.",
        inputs: &[HANDLES, MANY_IDS],
        outputs: MANY_RESOLVED,
        attrs: &[MEMBERS, KEY_TYPE, LIMIT],
        errors: "those of MxRecIdOffset; no batch of any table then changes anything.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
            limit: limit(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (tables, inputs) = (lists.tables()?, lists.list(1)?);
        let inputs: Vec<&Input> = inputs.iter().collect();
        let resolved = resolve_many(context, &tables, &inputs, self.limit)?;
        set_resolved(context, members, resolved)
    }
}

/// Distinct keys and their rows in many tables, some steps early.
pub(crate) struct PrepareMany {
    members: usize,
    limit: Option<usize>,
}

impl OpKernel for PrepareMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPrepareMany",
        doc: "MxRecPrepare in many tables at once, each with ids of its own; `limit` holds for \
              each member. Members with the same ids are made distinct once, and their \
              inverse is -1 if it is so for all of them. A batch that cannot be prepared does not \
              keep the others from it.",
        inputs: &[HANDLES, MANY_IDS],
        outputs: MANY_RESOLVED,
        attrs: &[MEMBERS, KEY_TYPE, LIMIT],
        errors: "none of its own.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
            limit: limit(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (tables, inputs) = (lists.tables()?, lists.list(1)?);
        let inputs: Vec<&Input> = inputs.iter().collect();
        let prepare = |group: Vec<IdsOf<'_>>| {
            let pool = pool()?;
            Ok(Table::prepare_many(pool, group, self.limit))
        };
        set_resolved(
            context,
            members,
            with_leases(context, &tables, &inputs, prepare)?,
        )
    }
}

/// What `MxRecPrepare` found, made true in many tables.
pub(crate) struct ClaimMany {
    members: usize,
    limit: Option<usize>,
}

impl OpKernel for ClaimMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecClaimMany",
        doc: "MxRecClaim in many tables at once. Batches that cannot be claimed are resolved \
              together, as by MxRecIdOffsetMany.",
        inputs: &[
            HANDLES,
            MANY_IDS,
            Arg {
                name: "prepared_offsets",
                dtype: "N * int64",
                shape: "N times (v)",
                doc: "For each member offsets from MxRecPrepare.",
            },
            Arg {
                name: "prepared_inverse",
                dtype: "N * int32",
                shape: "N times (s...)",
                doc: "For each member inverse from MxRecPrepare.",
            },
        ],
        outputs: MANY_RESOLVED,
        attrs: &[MEMBERS, KEY_TYPE, LIMIT],
        errors: "those of MxRecIdOffset; batches that could be claimed are then in their tables.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
            limit: limit(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (tables, inputs) = (lists.tables()?, lists.list(1)?);
        let (offsets, inverses) = (lists.list(2)?, lists.list(3)?);
        let mut late = Vec::new();
        let prepared = offsets.iter().zip(&inverses);
        let claims = || tables.iter().zip(&inputs).zip(prepared.clone()).enumerate();
        let may_be_prepared = |input: &Input, offsets: &Input, inverse: &Input| {
            offsets.rank() == 1 && inverse.dims() == input.dims()
        };
        // What is refused is refused before the first member enters its keys.
        for (at, ((table, input), (offsets, inverse))) in claims() {
            on(table, || {
                if !may_be_prepared(input, offsets, inverse) {
                    return Ok(());
                }
                let (given, _) = (offsets.values::<i64>()?, inverse.values::<i32>()?);
                // The op is made once for each group of a session.
                let lookup = std::ptr::from_ref(self).addr().wrapping_add(at);
                table.expect_claim(lookup, ids(input)?, given, self.limit)
            })?;
        }
        for (at, ((table, input), (offsets, inverse))) in claims() {
            let is_claimed = on(table, || {
                if !may_be_prepared(input, offsets, inverse) {
                    return Ok(false);
                }
                let (given, places) = (offsets.values::<i64>()?, inverse.values::<i32>()?);
                table.claim_expected(pool()?, ids(input)?, given, self.limit, places)
            })?;
            if !is_claimed {
                late.push(at);
            }
        }
        let at = |list: &[usize]| -> (Vec<Arc<Table>>, Vec<&Input>) {
            let found = list
                .iter()
                .filter_map(|&at| Some((tables.get(at)?, inputs.get(at)?)));
            found
                .map(|(table, input)| (Arc::clone(table), input))
                .unzip()
        };
        let (late_tables, late_inputs) = at(&late);
        let resolved = resolve_many(context, &late_tables, &late_inputs, self.limit)?;
        let mut resolved = late.into_iter().zip(resolved).peekable();
        for (at, (offsets, inverse)) in offsets.iter().zip(&inverses).enumerate() {
            match resolved.next_if(|(late, _)| *late == at) {
                Some((_, (offsets, inverse))) => {
                    context.set(at, offsets)?;
                    context.set(members + at, inverse)?;
                }
                None => {
                    context.set(at, offsets)?;
                    context.set(members + at, inverse)?;
                }
            }
        }
        Ok(())
    }
}

/// The offsets and the inverse of batches of ids as the tables give them now; unknown keys get
/// rows.
fn resolve_many(
    context: &Context,
    tables: &[Arc<Table>],
    inputs: &[&Input],
    limit: Option<usize>,
) -> Result<Vec<(Lent, Output<i32>)>> {
    with_leases(context, tables, inputs, |group| {
        Table::lease_many(pool()?, group, limit)
    })
}

/// Sets the outputs of an op that resolves keys.
fn set_resolved(
    context: &Context,
    members: usize,
    resolved: Vec<(Lent, Output<i32>)>,
) -> Result<()> {
    for (at, (offsets, inverse)) in resolved.into_iter().enumerate() {
        context.set(at, offsets)?;
        context.set(members + at, inverse)?;
    }
    Ok(())
}

/// The offsets and the inverse of batches of ids, as `lease` gives them.
fn with_leases(
    context: &Context,
    tables: &[Arc<Table>],
    inputs: &[&Input],
    lease: impl FnOnce(Vec<IdsOf<'_>>) -> Result<Vec<Lease>>,
) -> Result<Vec<(Lent, Output<i32>)>> {
    let mut inverses = inputs
        .iter()
        .map(|input| context.allocate::<i32>(&input.dims()))
        .collect::<Result<Vec<_>>>()?;
    let mut group = Vec::with_capacity(tables.len());
    for ((table, input), inverse) in tables.iter().zip(inputs).zip(&mut inverses) {
        group.push(IdsOf {
            table,
            ids: ids(input)?,
            inverse: inverse.values(),
        });
    }
    let offsets = lease(group)?
        .into_iter()
        .map(|lease| context.lend(lease))
        .collect::<Result<Vec<_>>>()?;
    Ok(offsets.into_iter().zip(inverses).collect())
}

pub(super) const VARIABLES: Arg = Arg {
    name: "variables",
    dtype: "N * float",
    shape: "N times (0, dim)",
    doc: "The variable of each member's table; it carries dim to shape inference and is what \
          gradients are taken of.",
};
pub(super) const FOUND_OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "N * int64",
    shape: "N times (u)",
    doc: "For each member row numbers, as MxRecIdOffset gives them.",
};
const FOUND_INVERSE: Arg = Arg {
    name: "inverse",
    dtype: "N * int32",
    shape: "N times (s...)",
    doc: "For each member and id its place in offsets; -1: none.",
};
const EMBED_ERRORS: &str = "`INVALID_ARGUMENT` for an offset that is no row in use, and for a \
                            place outside of offsets.";

/// The inputs of an op that reads rows by offset.
pub(super) struct Found {
    pub(super) tables: Vec<Arc<Table>>,
    offsets: Vec<Input>,
    inverses: Vec<Input>,
}

impl Found {
    pub(super) fn of(lists: &Lists<'_>) -> Result<Found> {
        let tables = lists.tables()?;
        for (table, variable) in tables.iter().zip(&lists.list(1)?) {
            on(table, || expect_variable(variable, table))?;
        }
        let (offsets, inverses) = (lists.list(2)?, lists.list(3)?);
        for (table, offsets) in tables.iter().zip(&offsets) {
            on(table, || expect_rank(offsets, 1))?;
        }
        Ok(Found {
            tables,
            offsets,
            inverses,
        })
    }

    pub(super) fn group(&self) -> Result<Vec<RowsOf<'_>>> {
        let inputs = self.tables.iter().zip(&self.offsets).zip(&self.inverses);
        let group = inputs.map(|((table, offsets), inverse)| {
            Ok(RowsOf {
                table,
                offsets: offsets.values::<i64>()?,
                inverse: inverse.values::<i32>()?,
            })
        });
        group.collect()
    }
}

/// The inputs of an op that reads rows by key.
pub(super) struct Asked {
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) ids: Vec<Input>,
    absents: Vec<Input>,
}

impl Asked {
    /// Those of an op whose input `absents` has what keys without a row get.
    pub(super) fn of(lists: &Lists<'_>, absents: usize) -> Result<Asked> {
        let tables = lists.tables()?;
        for (table, variable) in tables.iter().zip(&lists.list(1)?) {
            on(table, || expect_variable(variable, table))?;
        }
        Ok(Asked {
            tables,
            ids: lists.list(2)?,
            absents: lists.list(absents)?,
        })
    }

    pub(super) fn group(&self) -> Result<Vec<KeysOf<'_>>> {
        let inputs = self.tables.iter().zip(&self.ids).zip(&self.absents);
        let group = inputs.map(|((table, input), absent)| {
            let ids = ids(input)?;
            let absent = on(table, || rows_of_absent(absent, ids.len(), table.dim()))?;
            Ok(KeysOf { table, ids, absent })
        });
        group.collect()
    }
}

/// Offsets to embeddings, in many tables.
pub(crate) struct EmbedMany {
    members: usize,
}

impl OpKernel for EmbedMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEmbedMany",
        doc: "MxRecEmbed in many tables at once.",
        inputs: &[HANDLES, VARIABLES, FOUND_OFFSETS, FOUND_INVERSE],
        outputs: &[Arg {
            name: "embeddings",
            dtype: "N * float",
            shape: "N times (s..., dim)",
            doc: "For each member a row for each id; zeros for -1.",
        }],
        attrs: &[MEMBERS],
        errors: EMBED_ERRORS,
        stateful: true,
        differentiable: true,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let found = Found::of(&Lists { context, members })?;
        let mut outputs = found
            .tables
            .iter()
            .zip(&found.inverses)
            .map(|(table, inverse)| context.allocate::<f32>(&with_last(inverse, table.dim())))
            .collect::<Result<Vec<_>>>()?;
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::embed_many(pool()?, &found.group()?, outs)?;
        context.set_all(outputs)
    }
}

/// Offsets to embeddings of many tables, side by side.
pub(crate) struct EmbedConcat {
    members: usize,
}

impl OpKernel for EmbedConcat {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEmbedConcat",
        doc: "MxRecEmbedMany and the concatenation of the embeddings along their last dimension, \
              in the order of the members, in one.",
        inputs: &[HANDLES, VARIABLES, FOUND_OFFSETS, FOUND_INVERSE],
        outputs: &[Arg {
            name: "embedding",
            dtype: "float",
            shape: "(t..., width)",
            doc: "A row for each id: those of all members, side by side; zeros for -1.",
        }],
        attrs: &[MEMBERS],
        errors: "`INVALID_ARGUMENT` for an offset that is no row in use, for a place outside of \
                 offsets, and for members of different shapes.",
        stateful: true,
        differentiable: true,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let found = Found::of(&Lists { context, members })?;
        let first = found
            .inverses
            .first()
            .ok_or_else(|| Error::invalid("a group must have members"))?;
        for (table, inverse) in found.tables.iter().zip(&found.inverses) {
            if inverse.dims() != first.dims() {
                return Err(Error::invalid("the ids of all members must have one shape")
                    .with("table", &table.config().name)
                    .with("shape", format_args!("{:?}", inverse.dims()))
                    .with("first", format_args!("{:?}", first.dims())));
            }
        }
        let width = found.tables.iter().map(|table| table.dim()).sum();
        let mut output = context.allocate::<f32>(&with_last(first, width))?;
        Table::embed_side_by_side(pool()?, &found.group()?, output.values())?;
        context.set(0, output)
    }
}

/// The shape of an input with one dimension behind it.
fn with_last(input: &Input, last: usize) -> Vec<i64> {
    let mut dims = input.dims();
    dims.push(last as i64);
    dims
}

pub(super) const ABSENTS: Arg = Arg {
    name: "absent",
    dtype: "N * float",
    shape: "N times (k, dim)",
    doc: "For each member what keys without a row get, as in MxRecFind.",
};

/// Rows of keys of many tables, read only.
pub(crate) struct FindMany {
    members: usize,
}

impl OpKernel for FindMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecFindMany",
        doc: "MxRecFind in many tables at once.",
        inputs: &[HANDLES, VARIABLES, MANY_IDS, ABSENTS],
        outputs: &[Arg {
            name: "embeddings",
            dtype: "N * float",
            shape: "N times (s..., dim)",
            doc: "For each member the rows.",
        }],
        attrs: &[MEMBERS, KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for another k.",
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
        let asked = Asked::of(&lists, 3)?;
        let group = asked.group()?;
        let all = asked.tables.iter().zip(&asked.ids);
        let mut outputs = all
            .map(|(table, input)| context.allocate::<f32>(&with_last(input, table.dim())))
            .collect::<Result<Vec<_>>>()?;
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::find_many(pool()?, &group, outs)?;
        context.set_all(outputs)
    }
}
