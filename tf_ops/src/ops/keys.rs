//! Ops that take keys: `MxRecIdOffset`, `MxRecFind`, `MxRecAssign`, `MxRecRemove`.

use super::support::{
    expect_row_each, expect_variable, ids, limit, on, resolve, rows_of_absent, table, TableOp,
    HANDLE, IDS, KEY_TYPE, LIMIT, RESOLVED, VARIABLE,
};
use crate::op_def::{Arg, Attr, OpDef};
use crate::shared_keys;
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Error, Result, SharedKeys, Table};
use std::sync::Arc;

/// Distinct keys and their rows.
pub(crate) struct IdOffset {
    create: bool,
    limit: Option<usize>,
    /// What is shared with other lookups by the same ids.
    shared: Option<Arc<SharedKeys>>,
}

impl OpKernel for IdOffset {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecIdOffset",
        doc: "Makes the keys of a batch distinct and gives each its row. New keys get rows if \
              `create` is 1; the offsets are then a *lease*: while they are in use, none of their \
              rows becomes the row of another key, whatever is removed.",
        inputs: &[HANDLE, IDS],
        outputs: RESOLVED,
        attrs: &[
            KEY_TYPE,
            Attr {
                spec: "create: int",
                doc: "1: unknown keys get rows; 0: they have none.",
            },
            LIMIT,
            Attr {
                spec: "shared: int = 0",
                doc: "The same positive number for lookups with `create` 1 by the same ids: the \
                      first one to run makes them distinct for all. The result is the same, \
                      whatever the numbers are; 0: nothing is shared.",
            },
        ],
        errors: "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity, \
                 `INVALID_ARGUMENT` for more distinct keys than `limit`. The batch then changes \
                 nothing.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let limit = limit(construction)?;
        let create = match construction.int("create")? {
            0 => false,
            1 => true,
            other => return Err(Error::invalid("create must be 0 or 1").with("create", other)),
        };
        let shared = match construction.int("shared")? {
            0 => None,
            number if number < 0 => {
                return Err(Error::invalid("shared must not be negative").with("shared", number));
            }
            number => create.then(|| shared_keys::of(number)),
        };
        Ok(Self {
            create,
            limit,
            shared,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            if let Some(shared) = &self.shared {
                // Each op that shares has one reference, and nobody else.
                let shared = (&**shared, Arc::strong_count(shared));
                let mut inverse = context.allocate::<i32>(&input.dims())?;
                let ids = ids(&input)?;
                let lease =
                    table.lease_shared(pool()?, ids, self.limit, inverse.values(), shared)?;
                let offsets = context.lend(lease)?;
                context.set(0, offsets)?;
                return context.set(1, inverse);
            }
            if self.create {
                return resolve(context, &table, &input, self.limit);
            }
            let mut inverse = context.allocate::<i32>(&input.dims())?;
            let found =
                table.id_offset(pool()?, ids(&input)?, false, self.limit, inverse.values())?;
            let mut offsets = context.allocate::<i64>(&[found.len() as i64])?;
            offsets.values().copy_from_slice(&found);
            context.set(0, offsets)?;
            context.set(1, inverse)
        })
    }
}

pub(super) const ABSENT: Arg = Arg {
    name: "absent",
    dtype: "float",
    shape: "(k, dim)",
    doc: "What keys without a row get: k = 0 zeros, k = 1 this row, k = number of ids \
          a row each. Padding always gets zeros.",
};

/// Rows of keys, read only.
#[derive(Default)]
pub(crate) struct Find;

impl TableOp for Find {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecFind",
        doc: "Looks keys up without making rows: evaluation and prediction.",
        inputs: &[HANDLE, VARIABLE, IDS, ABSENT],
        outputs: &[Arg {
            name: "embedding",
            dtype: "float",
            shape: "(s..., dim)",
            doc: "The rows.",
        }],
        attrs: &[KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for another k.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        let (input, absent) = (context.input(2)?, context.input(3)?);
        let ids = ids(&input)?;
        expect_variable(&context.input(1)?, table)?;
        let absent = rows_of_absent(&absent, ids.len(), table.dim())?;
        let mut dims = input.dims();
        dims.push(table.dim() as i64);
        let mut embedding = context.allocate::<f32>(&dims)?;
        table.find(pool()?, ids, absent, embedding.values())?;
        context.set(0, embedding)
    }
}

/// Sets rows.
#[derive(Default)]
pub(crate) struct Assign;

impl TableOp for Assign {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecAssign",
        doc: "Sets the embeddings of keys and makes rows for unknown ones; the optimizer's slots \
              of these rows start afresh. Of a key that occurs twice the last row counts; padding \
              is skipped.",
        inputs: &[
            HANDLE,
            IDS,
            Arg {
                name: "rows",
                dtype: "float",
                shape: "(s..., dim)",
                doc: "The embeddings.",
            },
        ],
        outputs: &[Arg {
            name: "size",
            dtype: "int64",
            shape: "()",
            doc: "Rows of the table afterwards.",
        }],
        attrs: &[KEY_TYPE],
        errors: "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        let (input, rows) = (context.input(1)?, context.input(2)?);
        expect_row_each(&rows, &input, table.dim())?;
        table.assign(pool()?, ids(&input)?, rows.values::<f32>()?)?;
        context.set_scalar(0, table.len() as i64)
    }
}

/// Removes keys.
#[derive(Default)]
pub(crate) struct Remove;

impl TableOp for Remove {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRemove",
        doc: "Removes keys with their rows and slots; the memory is used again, at once or when \
              the last offsets that name a row are no longer in use. A key that comes back starts \
              from its initial values.",
        inputs: &[HANDLE, IDS],
        outputs: &[Arg {
            name: "removed",
            dtype: "int64",
            shape: "()",
            doc: "How many keys had a row.",
        }],
        attrs: &[KEY_TYPE],
        errors: "none of its own.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        let input = context.input(1)?;
        let removed = table.remove(ids(&input)?)?;
        context.set_scalar(0, removed as i64)
    }
}
