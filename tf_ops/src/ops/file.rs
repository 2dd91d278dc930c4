//! Ops that write a table to files and read it back: `MxRecSave`, `MxRecLoad`.

use super::lists::{flag, Tensors};
use super::support::{on, on_any, table, PlainOp, HANDLE};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tables;
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{checkpoint, Error, Kind, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PATH: Arg = Arg {
    spec: "path: uint8",
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
const EPOCH: Arg = Arg {
    spec: "epoch: int64",
    shape: "()",
    doc: "What a later MxRecSave takes as `since`; 0 if the table does not track changes.",
};

pub(super) const PATHS: Arg = Arg {
    spec: "path: uint8",
    shape: "(b)",
    doc: "The table's directory in a checkpoint, as the bytes of a path; or several with a zero \
          byte between two: a whole save and the deltas that follow it, in order.",
};

/// Writes a table, or what changed in it.
#[derive(Default)]
pub(crate) struct Save;

impl PlainOp for Save {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSave",
        doc: "Writes all keys, embeddings and slots, and the admission history if there is one, \
              into a directory ([checkpoint-format.md](checkpoint-format.md)). A delta has only \
              the rows that changed after an earlier save or load, and the keys that lost their \
              rows after it ([incremental-checkpoints.md](incremental-checkpoints.md)); the \
              table's configuration must say `track_changes`.",
        inputs: &[
            HANDLE,
            PATH,
            Arg {
                spec: "since: int64",
                shape: "()",
                doc: "-1: everything is written. Otherwise a delta: the epoch that MxRecSave or \
                      MxRecLoad gave.",
            },
            Arg {
                spec: "least: int64",
                shape: "()",
                doc: "Of a delta: rows that fewer gradients reached since they were last written \
                      are left out, and stay candidates.",
            },
        ],
        outputs: &[
            Arg {
                spec: "rows: int64",
                shape: "()",
                doc: "Rows that were written.",
            },
            EPOCH,
            Arg {
                spec: "removed: int64",
                shape: "()",
                doc: "Keys that a load of the delta takes out.",
            },
        ],
        errors:
            "`UNKNOWN` with the system's words and the file; what stood under that path before is \
             then still there. Of a delta `INVALID_ARGUMENT` if changes are not tracked, or the \
             table was cleared or loaded after `since`. Of a part `NOT_FOUND` without the \
             directory that the path lies in, which the chief makes: the parameter server and \
             the chief need a common file system.",
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        on_any(context, |table| {
            let (handle, input) = (context.input(0)?.scalar::<i64>()?, context.input(1)?);
            let dir = path(&input)?;
            let has_parent = || dir.parent().is_some_and(Path::is_dir);
            if let Some(part) = tables::member(handle).ok().filter(|_| !has_parent()) {
                return Err(Error::new(
                    Kind::NotFound,
                    "the directory that the chief made for the save is not there: the chief and \
                     all parameter servers need a common file system",
                )
                .with("path", dir.display())
                .with("part", part.name.part.part()));
            }
            let since = context.input(2)?.scalar::<i64>()?;
            let saved = if since == -1 {
                checkpoint::save(table, pool()?, dir)?
            } else {
                let number = |value: i64, name: &str| {
                    u32::try_from(value).map_err(|_| {
                        Error::invalid(format!("{name} must be 0 to 4294967295"))
                            .with("value", value)
                    })
                };
                let least = number(context.input(3)?.scalar::<i64>()?, "least")?;
                let since = number(since, "since")?;
                checkpoint::save_delta(table, pool()?, dir, since, least)?
            };
            context.set_scalar(0, saved.rows as i64)?;
            context.set_scalar(1, i64::from(saved.epoch))?;
            context.set_scalar(2, saved.removed as i64)
        })
    }
}

/// Reads a table.
pub(crate) struct Load {
    is_chosen: bool,
}

impl OpKernel for Load {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecLoad",
        doc: "Replaces the whole content of the table by that of a directory, or of a directory \
              and the deltas that follow it, or nothing of it.",
        inputs: &[
            HANDLE,
            PATHS,
            Arg {
                spec: "slots: N * uint8",
                shape: "N times (c)",
                doc: "Names of the slots to read, with a zero byte between two; empty for none. \
                      Other slots start afresh. Names that the directory has not are passed over. \
                      `hist_rec` is the admission history; without it, rows count as admitted.",
            },
        ],
        outputs: &[
            Arg {
                spec: "rows: int64",
                shape: "()",
                doc: "Rows of the table.",
            },
            EPOCH,
        ],
        attrs: &[Attr {
            spec: "N: int >= 0",
            doc: "0: everything is read. 1: keys, embeddings and `slots`.",
        }],
        errors: "`NOT_FOUND` for a missing file, `DATA_LOSS` for files that do not fit together, \
                 `INVALID_ARGUMENT` for another dim, `RESOURCE_EXHAUSTED` for more rows than the \
                 table's capacity, unless a table of no larger one has saved them, `UNKNOWN` with \
                 the system's words.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let is_chosen = flag(construction, "N")?;
        Ok(Self { is_chosen })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        let slots = Tensors::from(context, 2, 2).list(usize::from(self.is_chosen))?;
        let slots = slots.first().map(Input::values::<u8>).transpose()?;
        on(&table, || {
            let wanted = |name: &str| {
                let is_named = |slots: &[u8]| {
                    slots
                        .split(|&byte| byte == 0)
                        .any(|slot| slot == name.as_bytes())
                };
                slots.is_none_or(is_named)
            };
            let loaded = checkpoint::load_chain(&table, pool()?, &paths(&input)?, &wanted)?;
            context.set_scalar(0, loaded.rows as i64)?;
            context.set_scalar(1, i64::from(loaded.epoch))
        })
    }
}
