//! Ops that change the rows of keys: `MxRecAssign`, `MxRecRemove`.

use super::fields::slots;
use super::lists::{length, Tensors};
use super::support::{expect_row_each, ids, on, table, PlainOp, HANDLE, IDS, KEY_TYPE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Result, SlotValues};

/// Sets rows and slots.
pub(crate) struct Assign {
    slots: usize,
    saved: bool,
}

impl OpKernel for Assign {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecAssign",
        doc: "Sets the embeddings of keys and makes rows for unknown ones; the optimizer's slots \
              of these rows start afresh, or are set as well, and added if rows lack them. Of a \
              key that occurs twice the last row counts; padding is skipped.",
        inputs: &[
            HANDLE,
            IDS,
            Arg {
                spec: "rows: float",
                shape: "(s..., dim)",
                doc: "The embeddings.",
            },
            Arg {
                spec: "slots: N * uint8",
                shape: "N times (b)",
                doc: "Names of slots in UTF-8, LazyAdam_momentum for one.",
            },
            Arg {
                spec: "initial: float",
                shape: "(n)",
                doc: "For each slot what it starts at in rows that lack it.",
            },
            Arg {
                spec: "values: N * float",
                shape: "N times (s..., dim)",
                doc: "For each slot its values; of shape (0, dim): it starts afresh, and is not \
                      added.",
            },
        ],
        outputs: &[Arg {
            spec: "size: int64",
            shape: "()",
            doc: "Rows of the table afterwards.",
        }],
        attrs: &[
            KEY_TYPE,
            Attr {
                spec: "N: int >= 0",
                doc: "Slots.",
            },
            Attr {
                spec: "saved: int = 0",
                doc: "Whether the values are those of a checkpoint and may be of another type: a \
                      table of 2 bytes a value rounds them as its conversion says, else to the \
                      nearest.",
            },
        ],
        errors: "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity; \
                 `INVALID_ARGUMENT` for a name or an initial value that no slot can have, and if \
                 saved, and the table has 2 bytes a value and no conversion.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            slots: length(construction, "N")?,
            saved: construction.int("saved")? != 0,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let table = table(context)?;
        let mut inputs = Tensors::from(context, 1, 1);
        let (input, rows) = (inputs.one()?, inputs.one()?);
        let (names, initial) = (inputs.list(self.slots)?, inputs.one()?);
        let given = inputs.list(self.slots)?;
        on(&table, || {
            expect_row_each(&rows, &input, table.dim())?;
            let mut filled = Vec::with_capacity(self.slots);
            for (slot, values) in slots(&names, &initial)?.into_iter().zip(&given) {
                if *values.dims() != [0, table.dim() as i64] {
                    expect_row_each(values, &input, table.dim())?;
                    let values = values.values::<f32>()?;
                    filled.push(SlotValues { slot, values });
                }
            }
            let rows = rows.values::<f32>()?;
            table.fill(pool()?, ids(&input)?, rows, &filled, self.saved)?;
            context.set_scalar(0, table.len() as i64)
        })
    }
}

/// Removes keys.
#[derive(Default)]
pub(crate) struct Remove;

impl PlainOp for Remove {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecRemove",
        doc: "Removes keys with their rows and slots; the memory is used again, at once or when \
              the last offsets that name a row are no longer in use. A key that comes back starts \
              from its initial values.",
        inputs: &[HANDLE, IDS],
        outputs: &[Arg {
            spec: "removed: int64",
            shape: "()",
            doc: "How many keys had a row.",
        }],
        attrs: &[KEY_TYPE],
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let removed = table.remove(ids(&input)?)?;
            context.set_scalar(0, removed as i64)
        })
    }
}
