//! Ops that write a table to files and read it back: `MxRecSave`, `MxRecSaveDelta`, `MxRecLoad`,
//! `MxRecWarmStart`.

use super::support::{on, table, HANDLE};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{checkpoint, Error, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(super) const PATH: Arg = Arg {
    name: "path",
    dtype: "uint8",
    shape: "(b)",
    doc: "The table's directory in a checkpoint, as the bytes of a path.",
};

pub(super) fn path(input: &Input) -> Result<&Path> {
    let bytes = input.values::<u8>()?;
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(Error::invalid(
            "path must not be empty or contain a zero byte",
        ));
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// The paths of an input, with a zero byte between two.
pub(super) fn paths(input: &Input) -> Result<Vec<&Path>> {
    let bytes = input.values::<u8>()?;
    let paths: Vec<&Path> = bytes
        .split(|byte| *byte == 0)
        .map(|path| Path::new(OsStr::from_bytes(path)))
        .collect();
    if paths.iter().any(|path| path.as_os_str().is_empty()) {
        return Err(Error::invalid("a path must not be empty"));
    }
    Ok(paths)
}

/// An epoch as it is given out: int64, because TensorFlow computes with it.
pub(super) const EPOCH: Arg = Arg {
    name: "epoch",
    dtype: "int64",
    shape: "()",
    doc: "What MxRecSaveDelta takes as `since` to tell what changed after this; 0 if the table \
          does not track changes.",
};

pub(super) const PATHS: Arg = Arg {
    name: "path",
    dtype: "uint8",
    shape: "(b)",
    doc: "The table's directory in a checkpoint, as the bytes of a path; or several with a zero \
          byte between two: a whole save and \
          the deltas that follow it, in order.",
};

/// Writes a table.
pub(crate) struct Save;

impl OpKernel for Save {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSave",
        doc: "Writes all keys, embeddings and slots, and the admission history if there is one, \
              into a directory \
              ([checkpoint-format.md](checkpoint-format.md)).",
        inputs: &[HANDLE, PATH],
        outputs: &[
            Arg {
                name: "rows",
                dtype: "int64",
                shape: "()",
                doc: "Rows that were \
            written.",
            },
            EPOCH,
        ],
        attrs: &[],
        errors:
            "`UNKNOWN` with the system's words and the file; what stood under that path before \
                 is then still there.",
        stateful: true,
        differentiable: false,
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let saved = checkpoint::save(&table, pool()?, path(&input)?)?;
            context.set_scalar(0, saved.rows as i64)?;
            context.set_scalar(1, i64::from(saved.epoch))
        })
    }
}

/// Writes what changed.
pub(crate) struct SaveDelta;

impl OpKernel for SaveDelta {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSaveDelta",
        doc:
            "Writes the rows that changed after an earlier save or load, the keys that lost their \
              rows after it, and the whole admission \
              history into a directory ([incremental-checkpoints.md](incremental-checkpoints.md)). \
              The table's configuration must say `track_changes`.",
        inputs: &[
            HANDLE,
            PATH,
            Arg {
                name: "since",
                dtype: "int64",
                shape: "()",
                doc: "The epoch that MxRecSave, \
                MxRecLoad or MxRecSaveDelta gave.",
            },
            Arg {
                name: "least",
                dtype: "int64",
                shape: "()",
                doc:
                    "Rows that fewer gradients reached since they were last written are left out, \
                      and stay candidates.",
            },
        ],
        outputs: &[
            Arg {
                name: "rows",
                dtype: "int64",
                shape: "()",
                doc: "Rows that were written.",
            },
            Arg {
                name: "removed",
                dtype: "int64",
                shape: "()",
                doc: "Keys that a load takes \
                out.",
            },
            EPOCH,
        ],
        attrs: &[],
        errors:
            "those of `MxRecSave`; `INVALID_ARGUMENT` if changes are not tracked, or the table \
                 was cleared or loaded after `since`.",
        stateful: true,
        differentiable: false,
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        let number = |at: usize, name: &str| -> Result<u32> {
            let value = context.input(at)?.scalar::<i64>()?;
            u32::try_from(value).map_err(|_| {
                Error::invalid(format!("{name} must be 0 to 4294967295")).with("value", value)
            })
        };
        on(&table, || {
            let (since, least) = (number(2, "since")?, number(3, "least")?);
            let saved = checkpoint::save_delta(&table, pool()?, path(&input)?, since, least)?;
            context.set_scalar(0, saved.rows as i64)?;
            context.set_scalar(1, saved.removed as i64)?;
            context.set_scalar(2, i64::from(saved.epoch))
        })
    }
}

/// Reads a table.
pub(crate) struct Load;

impl OpKernel for Load {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecLoad",
        doc: "Replaces the whole content of the table by that of a directory, or of a directory \
              and the deltas that follow it, or \
              nothing of it.",
        inputs: &[HANDLE, PATHS],
        outputs: &[
            Arg {
                name: "rows",
                dtype: "int64",
                shape: "()",
                doc: "Rows of the \
            table.",
            },
            EPOCH,
        ],
        attrs: &[],
        errors: "`NOT_FOUND` for a missing file, `DATA_LOSS` for files that do not fit together, \
                 `INVALID_ARGUMENT` for another dim, `RESOURCE_EXHAUSTED` for more rows than the \
                 table's capacity, unless a table of no larger one has saved them, `UNKNOWN` with \
                 the system's words.",
        stateful: true,
        differentiable: false,
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let loaded = checkpoint::load_chain(&table, pool()?, &paths(&input)?, &|_| true)?;
            context.set_scalar(0, loaded.rows as i64)?;
            context.set_scalar(1, i64::from(loaded.epoch))
        })
    }
}

/// Reads a table of another model.
pub(crate) struct WarmStart;

impl OpKernel for WarmStart {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecWarmStart",
        doc: "Replaces the whole content of the table by keys, embeddings and chosen slots of a \
              directory, or nothing of it. Other \
              slots start afresh.",
        inputs: &[
            HANDLE,
            PATHS,
            Arg {
                name: "slots",
                dtype: "uint8",
                shape: "(c)",
                doc: "Names of the slots to read, with a zero byte between two; empty for none. \
                      Names that the directory has \
                      not are passed over. `hist_rec` is the admission history; without it, rows \
                      count as admitted.",
            },
        ],
        outputs: &[Arg {
            name: "rows",
            dtype: "int64",
            shape: "()",
            doc: "Rows that were read.",
        }],
        attrs: &[],
        errors: "Those of `MxRecLoad`.",
        stateful: true,
        differentiable: false,
    };

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
            let loaded = checkpoint::load_chain(&table, pool()?, &paths(&input)?, &wanted)?;
            context.set_scalar(0, loaded.rows as i64)
        })
    }
}
