//! Ops that change the rows of keys: `MxRecAssign`, `MxRecRemove`.

use super::support::{expect_row_each, ids, TableOp, HANDLE, IDS, KEY_TYPE};
use crate::op_def::{Arg, OpDef};
use crate::tf::Context;
use crate::threads::pool;
use mx_rec_kernels::{Result, Table};

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
