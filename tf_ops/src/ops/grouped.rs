//! Ops on many tables at once: one step of an optimizer, `MxRecApply<Optimizer>Many` and
//! `MxRecApply<Optimizer>ManyByRestore`.

use super::apply::{Hyper, Optimizer};
use super::support::{expect_last, expect_rank, on};
use crate::op_def::OpDef;
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use crate::{tables, trace};
use mx_rec_kernels::{Columns, Error, LookupColumns, Result, RowGradients, Table};
use std::sync::Arc;

/// How many members the node has.
fn members(construction: &Construction) -> Result<usize> {
    usize::try_from(construction.int("N")?).map_err(|_| Error::invalid("N must not be negative"))
}

/// The inputs of a group: lists of as many tensors as the group has members, and single tensors.
struct Lists<'a> {
    context: &'a Context,
    members: usize,
}

impl Lists<'_> {
    /// The tensors of the list that input number `arg` is, behind `lists` lists.
    fn list(&self, arg: usize) -> Result<Vec<Input>> {
        let start = arg * self.members;
        let places = start..start + self.members;
        places.map(|at| self.context.tensor(at, arg)).collect()
    }

    /// The tables of the members.
    fn tables(&self) -> Result<Vec<Arc<Table>>> {
        let handles = self.list(0)?;
        let tables = handles
            .iter()
            .map(|handle| tables::get(handle.scalar::<i64>()?))
            .collect::<Result<Vec<_>>>()?;
        tables.iter().for_each(trace::note);
        Ok(tables)
    }
}

/// The op that takes offsets.
pub(crate) struct ApplyMany<O> {
    optimizer: O,
    members: usize,
}

impl<O: Optimizer> OpKernel for ApplyMany<O> {
    const DEF: &'static OpDef = O::MANY;

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
            optimizer: O::read(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (tables, offsets, grads) = (lists.tables()?, lists.list(1)?, lists.list(2)?);
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
        let step = self.optimizer.step(&Hyper::new(context, 3 * members, 3))?;
        let updated = Table::apply_many(pool()?, &group, step.as_ref())?;
        context.set_scalar(0, updated as i64)
    }
}

/// The op that takes offsets and the gradients of all ids of lookups.
pub(crate) struct ApplyManyByRestore<O> {
    optimizer: O,
    members: usize,
}

impl<O: Optimizer> OpKernel for ApplyManyByRestore<O> {
    const DEF: &'static OpDef = O::MANY_BY_RESTORE;

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
        let (inverses, grads) = (lists.list(2)?, lists.list(3)?);
        let columns = context.tensor(4 * members, 4)?;
        expect_rank(&columns, 1)?;
        let columns = columns.values::<i32>()?;
        if columns.len() != members {
            return Err(
                Error::invalid("columns must have one entry for each member")
                    .with("columns", columns.len())
                    .with("members", members),
            );
        }
        let mut group = Vec::with_capacity(members);
        let inputs = offsets.iter().zip(&inverses).zip(&grads).zip(columns);
        for (table, (((offsets, inverse), grad), &column)) in tables.iter().zip(inputs) {
            let lookup = on(table, || {
                expect_rank(offsets, 1)?;
                Ok(LookupColumns {
                    offsets: offsets.values::<i64>()?,
                    inverse: inverse.values::<i32>()?,
                    grads: own_columns(grad, inverse, column, table.dim())?,
                })
            })?;
            group.push((&**table, lookup));
        }
        let step = self
            .optimizer
            .step(&Hyper::new(context, 4 * members + 1, 5))?;
        let updated = Table::apply_lookups_many(pool()?, &group, step.as_ref())?;
        context.set_scalar(0, updated as i64)
    }
}

/// The columns of a gradient that are those of one table: `dim` from number `column` on, or all.
fn own_columns<'a>(
    grad: &'a Input,
    inverse: &Input,
    column: i32,
    dim: usize,
) -> Result<Columns<'a>> {
    let (of_grad, of_ids) = (grad.dims(), inverse.dims());
    let Some((&width, _)) = of_grad
        .split_last()
        .filter(|(_, ids)| *ids == of_ids.as_slice())
    else {
        return Err(Error::invalid(
            "grad must have the shape of inverse and one dimension behind it",
        )
        .with("grad", format_args!("{of_grad:?}"))
        .with("inverse", format_args!("{of_ids:?}")));
    };
    let Ok(first) = usize::try_from(column) else {
        expect_last(grad, dim)?;
        return Columns::all(grad.values::<f32>()?, dim);
    };
    let width = usize::try_from(width).unwrap_or(0);
    Columns::of(grad.values::<f32>()?, width, first, dim)
}
