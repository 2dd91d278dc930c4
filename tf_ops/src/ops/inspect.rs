//! Ops that give or empty the content of a table: `MxRecExport`, `MxRecExportSlot`, `MxRecClear`.

use super::support::{TableOp, HANDLE};
use crate::op_def::{Arg, OpDef};
use crate::tf::Context;
use mx_rec_kernels::{Error, Kind, Result, Snapshot, Table};

/// Every row goes.
#[derive(Default)]
pub(crate) struct Clear;

impl TableOp for Clear {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecClear",
        doc: "Removes every row and gives the memory back to the system.",
        inputs: &[HANDLE],
        outputs: &[Arg {
            name: "removed",
            dtype: "int64",
            shape: "()",
            doc: "Rows that were in use.",
        }],
        attrs: &[],
        errors: "none of its own.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        context.set_scalar(0, table.clear() as i64)
    }
}

const KEYS: Arg = Arg {
    name: "keys",
    dtype: "int64",
    shape: "(n)",
    doc: "All keys, in the order of their rows.",
};

/// Gives all keys and one part of their rows, number `part`: 0 is the embedding, 1 the first slot.
/// Rows go from the table into the outputs, with no copy between.
fn set_export(context: &Context, snapshot: &Snapshot<'_>, dim: usize, part: usize) -> Result<()> {
    let n = snapshot.rows() as i64;
    let mut keys = context.allocate::<i64>(&[n])?;
    let mut values = context.allocate::<f32>(&[n, dim as i64])?;
    let mut places = keys
        .values()
        .iter_mut()
        .zip(values.values().chunks_exact_mut(dim));
    snapshot.for_each_row(&mut |key, row| {
        let found = row.chunks_exact(dim).nth(part);
        let (Some((key_place, place)), Some(found)) = (places.next(), found) else {
            return Err(Error::new(
                Kind::Internal,
                "the table has more rows or fewer slots than it told",
            ));
        };
        *key_place = key;
        place.copy_from_slice(found);
        Ok(())
    })?;
    if places.next().is_some() {
        return Err(Error::new(
            Kind::Internal,
            "the table has fewer rows than it told",
        ));
    }
    context.set(0, keys)?;
    context.set(1, values)
}

/// Keys and embeddings.
#[derive(Default)]
pub(crate) struct Export;

impl TableOp for Export {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecExport",
        doc: "All keys and embeddings at one moment.",
        inputs: &[HANDLE],
        outputs: &[
            KEYS,
            Arg {
                name: "embedding",
                dtype: "float",
                shape: "(n, dim)",
                doc: "Their embeddings.",
            },
        ],
        attrs: &[],
        errors: "`RESOURCE_EXHAUSTED` if there is no memory for the copy.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        set_export(context, &table.snapshot(), table.dim(), 0)
    }
}

/// Keys and the values of one slot.
#[derive(Default)]
pub(crate) struct ExportSlot;

impl TableOp for ExportSlot {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecExportSlot",
        doc: "All keys and the values of one optimizer slot at one moment.",
        inputs: &[
            HANDLE,
            Arg {
                name: "slot",
                dtype: "uint8",
                shape: "(b)",
                doc: "Name of the slot in UTF-8, LazyAdam_momentum for one.",
            },
        ],
        outputs: &[
            KEYS,
            Arg {
                name: "values",
                dtype: "float",
                shape: "(n, dim)",
                doc: "The slot's values.",
            },
        ],
        attrs: &[],
        errors:
            "`NOT_FOUND` if the table has no such slot: no optimizer that keeps it has updated the \
             table yet.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        let name = context.input(1)?;
        let wanted = String::from_utf8_lossy(name.values::<u8>()?);
        let snapshot = table.snapshot();
        let slots = snapshot.slots();
        let Some(at) = slots.iter().position(|slot| slot.name == wanted) else {
            let known: Vec<&str> = slots.iter().map(|slot| slot.name.as_ref()).collect();
            return Err(Error::new(Kind::NotFound, "the table has no such slot")
                .with("slot", &wanted)
                .with("slots", format_args!("{known:?}")));
        };
        set_export(context, &snapshot, table.dim(), 1 + at)
    }
}
