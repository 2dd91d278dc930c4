//! Updates that TensorFlow's ops compute: `MxRecReadRows` before them, `MxRecWriteRows` after them.

use super::lists::{members, Tensors};
use super::support::{expect_last, expect_rank, on, table, HANDLE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{checkpoint, Error, Field, FieldUpdate, Result, SlotSpec};
use std::collections::HashSet;

pub(super) const FIELDS: Arg = Arg {
    spec: "fields: N * uint8",
    shape: "N times (b)",
    doc: "Names of the fields in UTF-8: a slot, LazyAdam_momentum for one; the empty name is the \
          embedding.",
};
pub(super) const INITIAL: Arg = Arg {
    spec: "initial: float",
    shape: "(n)",
    doc: "For each field what it starts at in rows that lack it; the embedding's is ignored.",
};
const COUNT: Attr = Attr {
    spec: "N: int >= 1",
    doc: "Fields.",
};
const ERRORS: &str = "`INVALID_ARGUMENT` for an offset that was never given out and for a name or \
                      an initial value that no slot can have, `ABORTED` for an offset from before \
                      a restore or clear.";

/// The fields by their names and initial values.
pub(super) fn fields(names: &[Input], initial: &Input) -> Result<Vec<Field>> {
    expect_rank(initial, 1)?;
    let initial = initial.values::<f32>()?;
    if initial.len() != names.len() {
        return Err(
            Error::invalid("initial must have a value for each of the fields")
                .with("initial", initial.len())
                .with("fields", names.len()),
        );
    }
    let mut fields = Vec::with_capacity(names.len());
    let mut known = HashSet::new();
    for (name, &initial) in names.iter().zip(initial) {
        let name = String::from_utf8_lossy(name.values::<u8>()?).into_owned();
        if !known.insert(name.clone()) {
            return Err(Error::invalid("a field is named twice").with("field", name));
        }
        let field = if name.is_empty() {
            Field::Embedding
        } else {
            let name = name.into();
            let slot = SlotSpec {
                name,
                initial,
                per_row: false,
            };
            checkpoint::check_slot(&slot)?;
            Field::Slot(slot)
        };
        fields.push(field);
    }
    Ok(fields)
}

/// [`fields`] that must be slots.
pub(super) fn slots(names: &[Input], initial: &Input) -> Result<Vec<SlotSpec>> {
    let slots = fields(names, initial)?
        .into_iter()
        .map(|field| match field {
            Field::Slot(slot) => Ok(slot),
            Field::Embedding => Err(Error::invalid("a slot must have a name")),
        });
    slots.collect()
}

/// Offsets to the distinct rows and their fields.
pub(crate) struct ReadRows {
    fields: usize,
}

impl OpKernel for ReadRows {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecReadRows",
        doc: "Copies fields of the rows that gradients update, for an update that other ops \
              compute and MxRecWriteRows writes. Gradients of padding, and of keys that were \
              removed since their lookup, are left out; the latter are counted.",
        inputs: &[
            HANDLE,
            Arg {
                spec: "offsets: int64",
                shape: "(m)",
                doc: "Rows to update; they may repeat, -1 is left out.",
            },
            Arg {
                spec: "grad: float",
                shape: "(m, dim)",
                doc: "Gradients of the rows.",
            },
            FIELDS,
            INITIAL,
        ],
        outputs: &[
            Arg {
                spec: "rows: int64",
                shape: "(u)",
                doc: "The distinct rows, in order of first occurrence.",
            },
            Arg {
                spec: "indices: int64",
                shape: "(k)",
                doc: "For each gradient that was not left out its place in rows.",
            },
            Arg {
                spec: "gradients: float",
                shape: "(k, dim)",
                doc: "The gradients that were not left out.",
            },
            Arg {
                spec: "values: N * float",
                shape: "N times (u, dim)",
                doc: "Each field of the distinct rows.",
            },
        ],
        attrs: &[COUNT],
        errors: ERRORS,
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let fields = members(construction)?;
        Ok(Self { fields })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, offsets, grad) = (table(context)?, context.input(1)?, context.input(2)?);
        let mut inputs = Tensors::from(context, 3, 3);
        let (names, initial) = (inputs.list(self.fields)?, inputs.one()?);
        on(&table, || {
            let dim = table.dim();
            expect_rank(&offsets, 1)?;
            expect_rank(&grad, 2)?;
            expect_last(&grad, dim)?;
            if grad.dim(0) != offsets.dim(0) {
                return Err(
                    Error::invalid("grad must have a row for each of the offsets")
                        .with("grad", grad.dim(0))
                        .with("offsets", offsets.dim(0)),
                );
            }
            let fields = fields(&names, &initial)?;
            let found = table.batch_rows(offsets.values::<i64>()?)?;
            let rows_count = found.offsets().len() as i64;
            let mut values = Vec::with_capacity(fields.len());
            for field in &fields {
                let mut copied = context.allocate::<f32>(&[rows_count, dim as i64])?;
                found.read(pool()?, field, copied.values())?;
                values.push(copied);
            }
            let rows = context.vector(found.offsets())?;
            let indices = context.vector(found.places())?;
            if let Some(kept) = found.kept() {
                let all = grad.values::<f32>()?;
                let mut some = context.allocate::<f32>(&[kept.len() as i64, dim as i64])?;
                let places = some.values().chunks_exact_mut(dim);
                for (&at, place) in kept.iter().zip(places) {
                    if let Some(grad) = all.chunks_exact(dim).nth(at) {
                        place.copy_from_slice(grad);
                    }
                }
                context.set(2, some)?;
            } else {
                context.set(2, &grad)?;
            }
            context.set(0, rows)?;
            context.set(1, indices)?;
            context.set_all(3, values)
        })
    }
}

/// Fields of rows to the table.
pub(crate) struct WriteRows {
    fields: usize,
    sets: bool,
}

impl OpKernel for WriteRows {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecWriteRows",
        doc: "Writes what an update has made of rows that MxRecReadRows copied. A float that is \
              still the old one becomes the new one; to one that another update has changed since, \
              the difference between new and old is added. Slots that rows lack are added first. \
              Keys that were removed since are left out and counted.",
        inputs: &[
            HANDLE,
            Arg {
                spec: "rows: int64",
                shape: "(u)",
                doc: "Distinct rows, from MxRecReadRows.",
            },
            FIELDS,
            INITIAL,
            Arg {
                spec: "old: N * float",
                shape: "N times (u, dim)",
                doc: "The fields as they were read.",
            },
            Arg {
                spec: "new: N * float",
                shape: "N times (u, dim)",
                doc: "The fields as they should be.",
            },
        ],
        outputs: &[Arg {
            spec: "updated: int64",
            shape: "()",
            doc: "Rows that were written; rows of padding_keys are not.",
        }],
        attrs: &[
            COUNT,
            Attr {
                spec: "sets: int = 0",
                doc: "Whether the new values are given, not what an update has made of the row: \
                      values of 2 bytes are rounded to the nearest.",
            },
        ],
        errors: ERRORS,
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let fields = members(construction)?;
        let sets = construction.int("sets")? != 0;
        Ok(Self { fields, sets })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, rows) = (table(context)?, context.input(1)?);
        let mut inputs = Tensors::from(context, 2, 2);
        let (names, initial) = (inputs.list(self.fields)?, inputs.one()?);
        let (old, new) = (inputs.list(self.fields)?, inputs.list(self.fields)?);
        on(&table, || {
            expect_rank(&rows, 1)?;
            for values in old.iter().chain(&new) {
                expect_rank(values, 2)?;
                expect_last(values, table.dim())?;
            }
            let mut updates = Vec::with_capacity(self.fields);
            for (field, (old, new)) in fields(&names, &initial)?
                .into_iter()
                .zip(old.iter().zip(&new))
            {
                updates.push(FieldUpdate {
                    field,
                    old: old.values::<f32>()?,
                    new: new.values::<f32>()?,
                });
            }
            let (pool, rows) = (pool()?, rows.values::<i64>()?);
            let updated = table.write_fields(pool, rows, &updates, self.sets)?;
            context.set_scalar(0, updated as i64)
        })
    }
}
