//! Ops that write a table to files and read it back: `MxRecSave`, `MxRecLoad`, `MxRecWarmStart`.

use super::definition::{Arg, OpDef};
use super::support::{handle_to_scalar, on, table, HANDLE};
use crate::tf::{Construction, Context, Input, Kernel, ShapeContext};
use crate::threads::pool;
use mx_rec_kernels::{checkpoint, Error, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PATH: Arg = Arg {
    name: "path",
    dtype: "uint8",
    shape: "(b)",
    doc: "The table's directory in a checkpoint, as the bytes of a path.",
};

fn path(input: &Input) -> Result<&Path> {
    let bytes = input.values::<u8>()?;
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(Error::invalid(
            "path must not be empty or contain a zero byte",
        ));
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Writes a table.
pub(crate) struct Save;

impl Kernel for Save {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSave",
        doc: "Writes all keys, embeddings and slots into a directory ([checkpoint-format.md](checkpoint-format.md)).",
        inputs: &[HANDLE, PATH],
        outputs: &[Arg { name: "rows", dtype: "int64", shape: "()", doc: "Rows that were written." }],
        attrs: &[],
        errors: "`UNKNOWN` with the system's words and the file; what stood under that path before is then still there.",
        stateful: true,
    };

    fn shape(context: &ShapeContext) -> Result<()> {
        handle_to_scalar(context)
    }

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let rows = checkpoint::save(&table, pool()?, path(&input)?)?;
            context.set_scalar(0, rows as i64)
        })
    }
}

/// Reads a table.
pub(crate) struct Load;

impl Kernel for Load {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecLoad",
        doc: "Replaces the whole content of the table by that of a directory, or nothing of it.",
        inputs: &[HANDLE, PATH],
        outputs: &[Arg { name: "rows", dtype: "int64", shape: "()", doc: "Rows that were read." }],
        attrs: &[],
        errors: "`NOT_FOUND` for a missing file, `DATA_LOSS` for files that do not fit together, `INVALID_ARGUMENT` for another \
                 dim, `RESOURCE_EXHAUSTED` for more rows than the table's capacity, `UNKNOWN` with the system's words.",
        stateful: true,
    };

    fn shape(context: &ShapeContext) -> Result<()> {
        handle_to_scalar(context)
    }

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let rows = checkpoint::load(&table, pool()?, path(&input)?)?;
            context.set_scalar(0, rows as i64)
        })
    }
}

/// Reads a table of another model.
pub(crate) struct WarmStart;

impl Kernel for WarmStart {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecWarmStart",
        doc: "Replaces the whole content of the table by keys, embeddings and chosen slots of a directory, or nothing of it. Other \
              slots start afresh.",
        inputs: &[
            HANDLE,
            PATH,
            Arg {
                name: "slots",
                dtype: "uint8",
                shape: "(c)",
                doc: "Names of the slots to read, with a zero byte between two; empty for none. Names that the directory has \
                      not are passed over.",
            },
        ],
        outputs: &[Arg { name: "rows", dtype: "int64", shape: "()", doc: "Rows that were read." }],
        attrs: &[],
        errors: "Those of `MxRecLoad`.",
        stateful: true,
    };

    fn shape(context: &ShapeContext) -> Result<()> {
        handle_to_scalar(context)
    }

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let table = table(context)?;
        let (input, slots) = (context.input(1)?, context.input(2)?);
        let slots = slots.values::<u8>()?;
        on(&table, || {
            let wanted = |name: &str| {
                slots
                    .split(|byte| *byte == 0)
                    .any(|slot| slot == name.as_bytes())
            };
            let rows = checkpoint::load_slots(&table, pool()?, path(&input)?, &wanted)?;
            context.set_scalar(0, rows as i64)
        })
    }
}
