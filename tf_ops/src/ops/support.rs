//! What the ops share: common arguments, reading inputs, naming the table in errors.

use crate::op_def::{Arg, Attr, OpDef};
use crate::tables;
pub(super) use crate::tables::on;
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::trace;
use mx_rec_kernels::{Absent, Columns, Error, Ids, Result, Table, TableConfig};
use std::sync::Arc;

pub(super) const HANDLE: Arg = Arg {
    spec: "handle: int64",
    shape: "()",
    doc: "The table.",
};
pub(super) const HANDLES: Arg = Arg {
    spec: "handles: N * int64",
    shape: "N times ()",
    doc: "The table of each member of the group; a table may come several times.",
};
pub(super) const MEMBERS: Attr = Attr {
    spec: "N: int >= 1",
    doc: "Members of the group.",
};
pub(super) const IDS: Arg = Arg {
    spec: "ids: T",
    shape: "(s...)",
    doc: "Keys, any rank.",
};
pub(super) const KEY_TYPE: Attr = Attr {
    spec: "T: {int32, int64}",
    doc: "Type of the ids; int32 is widened.",
};

pub(super) const LIKE: Arg = Arg {
    spec: "like: float",
    shape: "(0, dim)",
    doc: "No row; its shape states dim.",
};
pub(super) const VARIABLE: Arg = Arg {
    spec: "variable: float",
    shape: "(0, dim)",
    doc: "What lookups take and gradients are taken of.",
};
pub(super) const LIMIT: Attr = Attr {
    spec: "limit: int = 0",
    doc: "The most distinct keys a batch may have; 0: no limit.",
};
/// The attribute `limit`.
pub(super) fn limit(construction: &Construction) -> Result<Option<usize>> {
    let limit = construction.int("limit")?;
    if limit < 0 {
        return Err(Error::invalid("limit must not be negative").with("limit", limit));
    }
    Ok(usize::try_from(limit).ok().filter(|&limit| limit > 0))
}

/// An op that keeps nothing between two runs.
pub(crate) trait PlainOp: Default + Send + Sync + 'static {
    /// What it is.
    const DEF: &'static OpDef;

    /// Runs it. Outputs are set last; after an error none is.
    fn run(context: &Context) -> Result<()>;
}

impl<O: PlainOp> OpKernel for O {
    const DEF: &'static OpDef = <O as PlainOp>::DEF;

    fn create(_: &Construction) -> Result<Self> {
        Ok(O::default())
    }

    fn compute(&self, context: &Context) -> Result<()> {
        O::run(context)
    }
}

/// Runs `work` on the table that input 0 names, or on the part that a parameter server holds. Its
/// error names the table.
pub(super) fn on_any(context: &Context, work: impl FnOnce(&Table) -> Result<()>) -> Result<()> {
    let table = found(context, tables::get_any)?;
    on(&table, || work(&table))
}

/// The table that input 0 names.
pub(super) fn table(context: &Context) -> Result<Arc<Table>> {
    found(context, tables::get)
}

fn found(context: &Context, find: fn(i64) -> Result<Arc<Table>>) -> Result<Arc<Table>> {
    let table = find(context.input(0)?.scalar::<i64>()?)?;
    trace::note(&table);
    Ok(table)
}

/// The keys of an input.
pub(super) fn ids(input: &Input) -> Result<Ids<'_>> {
    if input.is::<i32>() {
        Ok(Ids::I32(input.values::<i32>()?))
    } else {
        Ok(Ids::I64(input.values::<i64>()?))
    }
}

/// Refuses an input whose rank is not `rank`.
pub(super) fn expect_rank(input: &Input, rank: usize) -> Result<()> {
    if input.rank() == rank {
        return Ok(());
    }
    Err(
        Error::invalid(format!("{} must have rank {rank}", input.name()))
            .with("shape", format_args!("{:?}", input.dims())),
    )
}

/// Refuses a size of an input's last dimension that is not `dim`, and a scalar.
pub(super) fn expect_last(input: &Input, dim: usize) -> Result<()> {
    let last = input.rank().checked_sub(1).map(|at| input.dim(at));
    if last == i64::try_from(dim).ok() && last.is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the last dimension of {} must be the table's dim",
        input.name()
    ))
    .with("shape", format_args!("{:?}", input.dims()))
    .with("dim", dim))
}

/// Refuses rows that are not one for each id: the shape of `ids` with the table's dim behind it.
pub(super) fn expect_row_each(rows: &Input, ids: &Input, dim: usize) -> Result<()> {
    expect_last(rows, dim)?;
    expect_one_each(rows, ids).map(drop)
}

/// Refuses rows of any width that are not one for each id, and returns their width.
pub(super) fn expect_one_each(rows: &Input, ids: &Input) -> Result<usize> {
    let (of_rows, of_ids) = (rows.dims(), ids.dims());
    if let Some((&width, _)) = of_rows.split_last().filter(|(_, ids)| **ids == *of_ids) {
        return Ok(usize::try_from(width).unwrap_or(0));
    }
    Err(Error::invalid(format!(
        "{} must have the shape of {} and dim behind it",
        rows.name(),
        ids.name()
    ))
    .with(rows.name(), format_args!("{of_rows:?}"))
    .with(ids.name(), format_args!("{of_ids:?}")))
}

/// `dim` columns of a gradient from number `first` on, one row for each of the ids of `inverse`.
pub(super) fn columns<'a>(
    grad: &'a Input,
    inverse: &Input,
    first: usize,
    dim: usize,
) -> Result<Columns<'a>> {
    let (of_grad, of_ids) = (grad.dims(), inverse.dims());
    match of_grad.split_last() {
        Some((&width, ids)) if *ids == *of_ids => {
            let width = usize::try_from(width).unwrap_or(0);
            Columns::of(grad.values::<f32>()?, width, first, dim)
        }
        _ => Err(
            Error::invalid("grad must have the shape of inverse and one dimension behind it")
                .with("grad", format_args!("{of_grad:?}"))
                .with("inverse", format_args!("{of_ids:?}")),
        ),
    }
}

/// What keys without a row get: no row, one for all, or one for each of `ids` ids.
pub(super) fn rows_of_absent(absent: &Input, ids: usize, dim: usize) -> Result<Absent<'_>> {
    expect_rank(absent, 2)?;
    let rows = absent.values::<f32>()?;
    let given = absent.dim(0);
    if given != 0 {
        expect_last(absent, dim)?;
    }
    match given {
        0 => Ok(Absent::Zeros),
        1 => Ok(Absent::Row(rows)),
        n if n == ids as i64 => Ok(Absent::Rows(rows)),
        n => Err(
            Error::invalid("absent must have 0 rows, 1, or one for each id")
                .with("absent", n)
                .with("ids", ids),
        ),
    }
}

/// Refuses a tensor, `like` or a `variable`, that does not state the dim of a table: shape (0,
/// dim).
pub(super) fn expect_like(name: &str, like: &Input, config: &TableConfig) -> Result<()> {
    if *like.dims() == [0, config.dim as i64] {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must have shape (0, dim)"))
        .with("table", &config.name)
        .with("shape", format_args!("{:?}", like.dims()))
        .with("dim", config.dim))
}
