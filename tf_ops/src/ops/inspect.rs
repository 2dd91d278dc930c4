//! Ops that give or empty the content of a table: `MxRecExport`, `MxRecClear`.

use super::fields::{fields, FIELDS, INITIAL};
use super::lists::{members, Tensors};
use super::support::{expect_rank, on, table, HANDLE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Error, Kind, Result, Snapshot};

/// Every row goes, or fields of rows start afresh.
pub(crate) struct Clear {
    fields: usize,
}

impl OpKernel for Clear {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecClear",
        doc: "Removes every row and gives the memory back to the system; or, if fields are named, \
              sets these of the rows of some keys to what those of new rows are, and adds slots \
              that rows lack. Rows of padding_keys, and those that another op removes or replaces \
              meanwhile, are left out.",
        inputs: &[
            HANDLE,
            FIELDS,
            INITIAL,
            Arg {
                spec: "keys: int64",
                shape: "(0) or (2)",
                doc: "The first key and the last one of the rows whose fields start afresh; none: \
                      all.",
            },
        ],
        outputs: &[Arg {
            spec: "cleared: int64",
            shape: "()",
            doc: "Rows that were in use; of how many the fields were set.",
        }],
        attrs: &[Attr {
            spec: "N: int >= 0",
            doc: "Fields; 0: rows are removed.",
        }],
        errors: "`INVALID_ARGUMENT` for a name or an initial value that no slot can have, and for \
                 keys that are not two or none.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let fields = members(construction)?;
        Ok(Self { fields })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let table = table(context)?;
        let mut inputs = Tensors::from(context, 1, 1);
        let (names, initial) = (inputs.list(self.fields)?, inputs.one()?);
        let keys = inputs.one()?;
        on(&table, || {
            let fields = fields(&names, &initial)?;
            expect_rank(&keys, 1)?;
            let keys = keys.values::<i64>()?;
            let range = match (fields.as_slice(), keys) {
                (_, []) => i64::MIN..=i64::MAX,
                ([_, ..], &[first, last]) => first..=last,
                _ => {
                    let what = "keys must be the first and the last one of the rows whose fields \
                                start afresh, or none";
                    return Err(Error::invalid(what)
                        .with("keys", keys.len())
                        .with("fields", fields.len()));
                }
            };
            let cleared = match fields.as_slice() {
                [] => table.clear(),
                fields => table.start_fields(pool()?, fields, range)?,
            };
            context.set_scalar(0, cleared as i64)
        })
    }
}

/// Keys and fields of their rows.
pub(crate) struct Export {
    fields: usize,
}

impl OpKernel for Export {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecExport",
        doc: "All keys, and fields of their rows, at one moment.",
        inputs: &[HANDLE, FIELDS],
        outputs: &[
            Arg {
                spec: "keys: int64",
                shape: "(n)",
                doc: "All keys, in the order of their rows.",
            },
            Arg {
                spec: "values: N * float",
                shape: "N times (n, dim)",
                doc: "Each field of the rows; (n, 1) for a slot of one float a row.",
            },
        ],
        attrs: &[Attr {
            spec: "N: int >= 0",
            doc: "Fields.",
        }],
        errors:
            "`RESOURCE_EXHAUSTED` if there is no memory for the copy; `NOT_FOUND` if the table \
                 has no such slot: no optimizer that keeps it has updated the table yet.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let fields = members(construction)?;
        Ok(Self { fields })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let table = table(context)?;
        let names = Tensors::from(context, 1, 1).list(self.fields)?;
        on(&table, || {
            let snapshot = table.snapshot();
            let (rows, dim) = (snapshot.rows() as i64, table.dim());
            let mut keys = context.allocate::<i64>(&[rows])?;
            let (mut parts, mut values) = (Vec::new(), Vec::new());
            for name in &names {
                let (start, width) = part_of(&snapshot, name, dim)?;
                parts.push((start, width));
                values.push(context.allocate::<f32>(&[rows, width as i64])?);
            }
            // Rows go from the table into the outputs, with no copy between.
            let mut key_places = keys.values().iter_mut();
            let places = values.iter_mut().zip(&parts);
            let places = places.map(|(out, (_, width))| out.values().chunks_exact_mut(*width));
            let mut places: Vec<_> = parts.iter().zip(places).collect();
            let differs = || Error::new(Kind::Internal, "the table has other rows than it told");
            snapshot.for_each_row(&mut |key, row| {
                *key_places.next().ok_or_else(differs)? = key;
                for ((start, width), places) in &mut places {
                    let found = row.get(*start..start + width).ok_or_else(differs)?;
                    places.next().ok_or_else(differs)?.copy_from_slice(found);
                }
                Ok(())
            })?;
            if key_places.next().is_some() {
                return Err(differs());
            }
            context.set(0, keys)?;
            context.set_all(1, values)
        })
    }
}

/// Where a field stands in a row, and how many floats it has.
fn part_of(snapshot: &Snapshot<'_>, name: &Input, dim: usize) -> Result<(usize, usize)> {
    let wanted = String::from_utf8_lossy(name.values::<u8>()?);
    if wanted.is_empty() {
        return Ok((0, dim));
    }
    let slots = snapshot.slots();
    let mut start = dim;
    for slot in slots {
        let width = slot.floats(dim);
        if slot.name == wanted {
            return Ok((start, width));
        }
        start += width;
    }
    let known: Vec<&str> = slots.iter().map(|slot| slot.name.as_ref()).collect();
    Err(Error::new(Kind::NotFound, "the table has no such slot")
        .with("slot", &wanted)
        .with("slots", format_args!("{known:?}")))
}
