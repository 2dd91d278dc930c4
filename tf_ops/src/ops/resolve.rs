//! Ops that give keys their rows: `MxRecIdOffset` in the step, `MxRecPrepare` before it, in the
//! input pipeline.

use super::lists::{flag, length, length_of_each, members, on_only, Tensors};
use super::support::{ids, limit, on, HANDLES, KEY_TYPE, LIMIT, MEMBERS};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, Lent, OpKernel, Output, Settable};
use crate::threads::pool;
use mx_rec_kernels::{Error, IdsOf, Lease, Result, Table};
use std::sync::Arc;

pub(super) const MANY_IDS: Arg = Arg {
    spec: "ids: N * T",
    shape: "N times (s...)",
    doc: "For each member keys, any rank.",
};
const OFFSETS: Arg = Arg {
    spec: "offsets: N * int64",
    shape: "N times (u)",
    doc: "For each member the row numbers of the distinct keys, in order of first occurrence.",
};
const INVERSE: Arg = Arg {
    spec: "inverse: N * int32",
    shape: "N times (s...)",
    doc: "For each member and id its place in offsets; -1 for padding and for keys without a row.",
};

/// Distinct keys and their rows.
pub(crate) struct IdOffset {
    members: usize,
    /// How many members are prepared: none or all.
    prepared: usize,
    create: bool,
    limit: Option<usize>,
}

impl OpKernel for IdOffset {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecIdOffset",
        doc: "Makes the keys of a batch distinct and gives each its row, in one table or in many. \
              New keys get rows if `create` is 1; the offsets are then *leases*: while they are in \
              use, none of their rows becomes the row of another key, whatever is removed. Batches \
              of one table get their rows in their order. With what MxRecPrepare has prepared, the \
              op enters the new keys of the batch into the table and passes offsets and inverse \
              on. If they are not what MxRecPrepare made of this very ids tensor for this table, \
              or keys of the batch were removed or the table was cleared or loaded since, it does \
              all the work itself. The result is the same.",
        inputs: &[
            HANDLES,
            MANY_IDS,
            Arg {
                spec: "prepared_offsets: P * int64",
                shape: "P times (v)",
                doc: "For each member offsets from MxRecPrepare.",
            },
            Arg {
                spec: "prepared_inverse: P * int32",
                shape: "P times (s...)",
                doc: "For each member its inverse from MxRecPrepare.",
            },
        ],
        outputs: &[OFFSETS, INVERSE],
        attrs: &[
            MEMBERS,
            Attr {
                spec: "P: int >= 0",
                doc: "0: nothing is prepared. N: all members are; `create` must be 1.",
            },
            KEY_TYPE,
            Attr {
                spec: "create: int",
                doc: "1: unknown keys get rows; 0: they have none.",
            },
            LIMIT,
        ],
        errors: "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity, \
                 `INVALID_ARGUMENT` for more distinct keys than `limit`. No batch of any table \
                 then changes anything, but those that were prepared may be in their tables.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        let prepared = length_of_each(construction, "P", members)?;
        let create = flag(construction, "create")?;
        if prepared > 0 && !create {
            return Err(Error::invalid("what is prepared needs create 1").with("P", prepared));
        }
        Ok(Self {
            members,
            prepared,
            create,
            limit: limit(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let mut inputs = Tensors::of(context);
        let tables = inputs.tables(self.members)?;
        let ids = inputs.list(self.members)?;
        if self.prepared > 0 {
            let (offsets, inverses) = (inputs.list(self.prepared)?, inputs.list(self.prepared)?);
            let late = self.late(&tables, &ids, &offsets, &inverses)?;
            let found = late
                .iter()
                .filter_map(|&at| Some((tables.get(at)?, ids.get(at)?)));
            let (some, their): (Vec<&Arc<Table>>, Vec<&Input>) = found.unzip();
            let resolved = on_only(&tables, || self.resolve(context, &some, &their))?;
            return set_claimed(context, (&offsets, &inverses), late, resolved);
        }
        let (tables_of_all, of_all) = (tables.iter().collect::<Vec<_>>(), ids.iter().collect());
        on_only(&tables, || match self.create {
            true => {
                let (offsets, inverses) = self.resolve(context, &tables_of_all, &of_all)?;
                set_resolved(context, offsets, inverses)
            }
            false => {
                let (offsets, inverses) = self.find(context, &tables_of_all, &of_all)?;
                set_resolved(context, offsets, inverses)
            }
        })
    }
}

/// Offsets and inverse of each member.
type Resolved<T> = (Vec<T>, Vec<Output<i32>>);

impl IdOffset {
    /// Enters the keys of the batches that are as they were prepared, and returns the places of the
    /// others.
    fn late(
        &self,
        tables: &[Arc<Table>],
        inputs: &[Input],
        offsets: &[Input],
        inverses: &[Input],
    ) -> Result<Vec<usize>> {
        let prepared = offsets.iter().zip(inverses);
        let claims = || tables.iter().zip(inputs).zip(prepared.clone()).enumerate();
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
        let mut late = Vec::new();
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
        Ok(late)
    }

    /// The offsets and the inverse of batches of ids; unknown keys get rows.
    fn resolve(
        &self,
        context: &Context,
        tables: &[&Arc<Table>],
        inputs: &Vec<&Input>,
    ) -> Result<Resolved<Lent>> {
        with_leases(context, tables, inputs, |group| {
            Table::lease_many(pool()?, group, self.limit)
        })
    }

    /// The same, but no key gets a row.
    fn find(
        &self,
        context: &Context,
        tables: &[&Arc<Table>],
        inputs: &Vec<&Input>,
    ) -> Result<Resolved<Output<i64>>> {
        let (mut all, mut inverses) = (Vec::new(), Vec::new());
        for (table, input) in tables.iter().zip(inputs) {
            let mut inverse = context.allocate::<i32>(&input.dims())?;
            let found = on(table, || {
                table.id_offset(pool()?, ids(input)?, false, self.limit, inverse.values())
            })?;
            all.push(context.vector(&found)?);
            inverses.push(inverse);
        }
        Ok((all, inverses))
    }
}

/// Distinct keys and their rows, some steps early.
pub(crate) struct Prepare {
    members: usize,
    /// How many tensors of ids there are: one for all tables, or one for each.
    ids: usize,
    limit: Option<usize>,
}

impl OpKernel for Prepare {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPrepare",
        doc: "Does ahead of the step, in an input pipeline, what MxRecIdOffset with `create` 1 \
              does in it, in one table or in many, by the same ids or by ids of their own. New \
              keys get rows that no other op sees until MxRecIdOffset enters them; a batch that is \
              dropped leaves no trace. For a table of which the batch has more distinct keys than \
              `limit`, or that has no room for it, offsets are empty, and MxRecIdOffset does the \
              work; the others are prepared all the same. Equal ids are made distinct once, and \
              their inverse is -1 if no table could prepare them.",
        inputs: &[
            HANDLES,
            Arg {
                spec: "ids: M * T",
                shape: "M times (s...)",
                doc: "Keys, any rank.",
            },
        ],
        outputs: &[
            OFFSETS,
            Arg {
                spec: "inverse: M * int32",
                shape: "M times (s...)",
                doc: "For each id its place in offsets; -1 for padding.",
            },
        ],
        attrs: &[
            MEMBERS,
            Attr {
                spec: "M: int >= 1",
                doc: "1: all tables are looked up by the same ids. N: each by ids of its own.",
            },
            KEY_TYPE,
            LIMIT,
        ],
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let (members, ids) = (members(construction)?, length(construction, "M")?);
        if ids != 1 && ids != members {
            return Err(Error::invalid("M must be 1 or N")
                .with("N", members)
                .with("M", ids));
        }
        Ok(Self {
            members,
            ids,
            limit: limit(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let mut inputs = Tensors::of(context);
        let tables = inputs.tables(self.members)?;
        let inputs = inputs.list(self.ids)?;
        let (offsets, inverses) = match inputs.as_slice() {
            [input] => {
                let mut inverse = context.allocate::<i32>(&input.dims())?;
                let (ids, limit) = (ids(input)?, self.limit);
                let leases = Table::prepare_all(&tables, pool()?, ids, limit, inverse.values());
                (lent(context, leases)?, vec![inverse])
            }
            _ => {
                let (tables, inputs): (Vec<_>, Vec<_>) =
                    (tables.iter().collect(), inputs.iter().collect());
                with_leases(context, &tables, &inputs, |group| {
                    Ok(Table::prepare_many(pool()?, group, self.limit))
                })?
            }
        };
        set_resolved(context, offsets, inverses)
    }
}

/// Sets the outputs of an op that resolves keys.
fn set_resolved(
    context: &Context,
    offsets: Vec<impl Settable>,
    inverses: Vec<Output<i32>>,
) -> Result<()> {
    let members = offsets.len();
    context.set_all(0, offsets)?;
    context.set_all(members, inverses)
}

/// Sets the outputs to what was prepared, and for the members at `late` to what was resolved.
fn set_claimed(
    context: &Context,
    (offsets, inverses): (&[Input], &[Input]),
    late: Vec<usize>,
    resolved: Resolved<Lent>,
) -> Result<()> {
    let members = offsets.len();
    let mut resolved = late
        .into_iter()
        .zip(resolved.0.into_iter().zip(resolved.1))
        .peekable();
    for (at, (offsets, inverse)) in offsets.iter().zip(inverses).enumerate() {
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

/// The offsets and the inverse of batches of ids, as `lease` gives them.
fn with_leases(
    context: &Context,
    tables: &[&Arc<Table>],
    inputs: &[&Input],
    lease: impl FnOnce(Vec<IdsOf<'_>>) -> Result<Vec<Lease>>,
) -> Result<Resolved<Lent>> {
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
    Ok((lent(context, lease(group)?)?, inverses))
}

/// Leases as tensors.
fn lent(context: &Context, leases: Vec<Lease>) -> Result<Vec<Lent>> {
    leases
        .into_iter()
        .map(|lease| context.lend(lease))
        .collect()
}
