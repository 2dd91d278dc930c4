//! Ops that change the rows of keys: `MxRecAssign`, `MxRecRemove`.

use super::support::{expect_row_each, ids, on, table, TableOp, HANDLE, IDS, KEY_TYPE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Result, Table};

/// Sets rows.
pub(crate) struct Assign {
    saved: bool,
}

impl OpKernel for Assign {
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
        attrs: &[
            KEY_TYPE,
            Attr {
                spec: "saved: int = 0",
                doc:
                    "Whether the rows are those of a variable of a checkpoint: a table of 2 bytes \
                      a value rounds them as its conversion says, else to the nearest.",
            },
        ],
        errors: "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity; \
                 `INVALID_ARGUMENT` if saved, and the table has 2 bytes a value and no conversion.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let saved = construction.int("saved")? != 0;
        Ok(Self { saved })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let table = table(context)?;
        on(&table, || {
            let (input, rows) = (context.input(1)?, context.input(2)?);
            expect_row_each(&rows, &input, table.dim())?;
            let (ids, values) = (ids(&input)?, rows.values::<f32>()?);
            if self.saved {
                table.assign_saved(pool()?, ids, values)?;
            } else {
                table.assign(pool()?, ids, values)?;
            }
            context.set_scalar(0, table.len() as i64)
        })
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
