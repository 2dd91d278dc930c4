//! The life of the parts of tables that a parameter server holds: `MxRecPartInit`,
//! `MxRecPartReady`, `MxRecPartStats`, `MxRecPartSave`, `MxRecPartStage`, `MxRecPartDiscard`,
//! `MxRecPartPublish`, `MxRecPartSetThreshold`, `MxRecPartEvict`.

use super::admission::numbers;
use super::cluster::{PART, PARTS};
use super::cluster_rows::{partition, Member};
use super::file::{path, paths, EPOCH, PATH, PATHS};
use super::support::on;
use crate::config::Settings;
use crate::op_def::{Arg, OpDef};
use crate::tables::{Part, SHARED};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{checkpoint, Error, Kind, Partition, Result};

const CONFIG: Arg = Arg {
    name: "config",
    dtype: "uint8",
    shape: "(n)",
    doc: "The configuration of the whole table, as MxRecTable takes it.",
};
const ROWS: Arg = Arg {
    name: "rows",
    dtype: "int64",
    shape: "()",
    doc: "Rows of the part.",
};
const NOT_OPEN: &str = "`ABORTED` if the process has not got the part, `INVALID_ARGUMENT` for \
                        another configuration than the one it was made with.";

/// The member that input 0 configures.
fn member(context: &Context, part: Partition) -> Result<Member> {
    let config = context.input(0)?;
    let settings = Settings::parse(config.values::<u8>()?)?;
    Ok(Member::new(settings, part))
}

/// An op on one part.
macro_rules! part_op {
    (
        $(#[$doc:meta])* $type:ident,
        $def:expr,
        |$context:ident, $member:ident, $part:ident| $run:expr
    ) => {
        $(#[$doc])*
        pub(crate) struct $type {
            part: Partition,
        }

        impl OpKernel for $type {
            const DEF: &'static OpDef = &$def;

            fn create(construction: &Construction) -> Result<Self> {
                Ok(Self {
                    part: partition(construction)?,
                })
            }

            fn compute(&self, $context: &Context) -> Result<()> {
                let ($member, $part) = (member($context, self.part)?, self.part);
                let _ = $part;
                $run
            }
        }
    };
}

part_op!(
    /// An empty part.
    Init,
    OpDef {
        name: "MxRecPartInit",
        doc: "Makes the part, empty, in the place of whatever the process holds of the table: what \
              the chief does at the start of a job.",
        inputs: &[CONFIG],
        outputs: &[ROWS],
        attrs: &[PART, PARTS],
        errors: "`INVALID_ARGUMENT` for a configuration that is not valid.",
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let table = member.settings.make(Some(part))?;
        SHARED.renew(member.name, member.settings, Part::new(table));
        context.set_scalar(0, 0_i64)
    }
);

part_op!(
    /// Whether a part is there.
    Ready,
    OpDef {
        name: "MxRecPartReady",
        doc: "Whether the process holds the part, initialized or restored, by this configuration.",
        inputs: &[CONFIG],
        outputs: &[
            Arg {
                name: "ready",
                dtype: "int32",
                shape: "()",
                doc: "1 or 0.",
            },
            Arg {
                name: "difference",
                dtype: "uint8",
                shape: "(d)",
                doc: "A text in UTF-8, if the process holds the part by another configuration: \
                      the setting, and both values. Otherwise nothing.",
            },
        ],
        attrs: &[PART, PARTS],
        errors: "`INVALID_ARGUMENT` for a configuration that is not valid.",
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let found = SHARED.find(&member.name, &member.settings);
        let difference = match &found {
            Err(error) if error.kind() == Kind::InvalidArgument => error.to_string(),
            _ => String::new(),
        };
        let mut text = context.allocate::<u8>(&[difference.len() as i64])?;
        text.values().copy_from_slice(difference.as_bytes());
        context.set_scalar(0, i32::from(found.is_ok()))?;
        context.set(1, text)
    }
);

part_op!(
    /// Numbers of a part.
    PartStats,
    OpDef {
        name: "MxRecPartStats",
        doc: "The numbers of MxRecTableStats, of a part.",
        inputs: &[CONFIG],
        outputs: &[Arg {
            name: "stats",
            dtype: "int64",
            shape: "(21)",
            doc: "As of MxRecTableStats.",
        }],
        attrs: &[PART, PARTS],
        errors: NOT_OPEN,
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let values = numbers(&member.find()?.table);
        let mut output = context.allocate::<i64>(&[values.len() as i64])?;
        output.values().copy_from_slice(&values);
        context.set(0, output)
    }
);

part_op!(
    /// Writes a part.
    SavePart,
    OpDef {
        name: "MxRecPartSave",
        doc: "Writes the part into a directory, as MxRecSave does a table. The directory that it \
              is to lie in must be there: the chief has made it.",
        inputs: &[CONFIG, PATH],
        outputs: &[ROWS, EPOCH],
        attrs: &[PART, PARTS],
        errors: "those of MxRecSave; `NOT_FOUND` without the directory: the parameter server and \
                 the chief need a common file system; `ABORTED` if the process has not got the \
                 part.",
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let (found, input) = (member.find()?, context.input(1)?);
        on(&found.table, || {
            let dir = path(&input)?;
            if !dir.parent().is_some_and(|parent| parent.is_dir()) {
                return Err(Error::new(
                    Kind::NotFound,
                    "the directory that the chief made for the save is not there: the chief and \
                     all parameter servers need a common file system",
                )
                .with("path", dir.display())
                .with("part", part.part()));
            }
            let saved = checkpoint::save(&found.table, pool()?, dir)?;
            context.set_scalar(0, saved.rows as i64)?;
            context.set_scalar(1, i64::from(saved.epoch))
        })
    }
);

part_op!(
    /// Reads a part, which waits to be published.
    StagePart,
    OpDef {
        name: "MxRecPartStage",
        doc: "Reads and checks the part's keys out of a table's directory in a checkpoint, \
              whatever the parts were in which it was saved, with their admission history. What \
              was read waits for MxRecPartPublish; until then nothing changes.",
        inputs: &[CONFIG, PATHS],
        outputs: &[ROWS],
        attrs: &[PART, PARTS],
        errors: "those of MxRecLoad.",
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let table = member.settings.make(Some(part))?;
        let input = context.input(1)?;
        let rows = on(&table, || {
            Ok(checkpoint::load_part(&table, pool()?, &paths(&input)?, part)?.rows)
        })?;
        SHARED.stage(member.name, member.settings, Part::new(table));
        context.set_scalar(0, rows as i64)
    }
);

part_op!(
    /// Forgets what was read.
    Discard,
    OpDef {
        name: "MxRecPartDiscard",
        doc: "Forgets what MxRecPartStage has read, after a restore that failed. The part stays as \
              it is.",
        inputs: &[CONFIG],
        outputs: &[ROWS],
        attrs: &[PART, PARTS],
        errors: "`INVALID_ARGUMENT` for a configuration that is not valid.",
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        SHARED.discard(&member.name);
        context.set_scalar(0, 0_i64)
    }
);

part_op!(
    /// Opens what was read.
    Publish,
    OpDef {
        name: "MxRecPartPublish",
        doc: "Opens what MxRecPartStage has read, in the place of whatever the process holds.",
        inputs: &[CONFIG],
        outputs: &[ROWS],
        attrs: &[PART, PARTS],
        errors: "`ABORTED` if nothing waits: the process was started again meanwhile.",
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let published = SHARED.publish(&member.name)?;
        context.set_scalar(0, published.table.len() as i64)
    }
);

part_op!(
    /// Another threshold of admission to a part.
    PartSetThreshold,
    OpDef {
        name: "MxRecPartSetThreshold",
        doc: "MxRecSetThreshold of a part.",
        inputs: &[
            CONFIG,
            Arg {
                name: "value",
                dtype: "int32",
                shape: "()",
                doc: "The new threshold; 0: the threshold stays, and keys are not counted any \
                      more.",
            },
        ],
        outputs: &[Arg {
            name: "output",
            dtype: "int32",
            shape: "()",
            doc: "The value.",
        }],
        attrs: &[PART, PARTS],
        errors: NOT_OPEN,
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let found = member.find()?;
        on(&found.table, || {
            let value = context.input(1)?.scalar::<i32>()?;
            let access = u32::try_from(value).map_err(|_| {
                Error::invalid("the access threshold must not be negative").with("value", value)
            })?;
            found.table.set_access_threshold(access)?;
            context.set_scalar(0, value)
        })
    }
);

part_op!(
    /// Stale keys of a part go.
    PartEvict,
    OpDef {
        name: "MxRecPartEvict",
        doc: "MxRecEvict of a part.",
        inputs: &[CONFIG],
        outputs: &[Arg {
            name: "counts",
            dtype: "int64",
            shape: "(2)",
            doc: "As of MxRecEvict.",
        }],
        attrs: &[PART, PARTS],
        errors: NOT_OPEN,
        stateful: true,
        differentiable: false,
    },
    |context, member, part| {
        let found = member.find()?;
        on(&found.table, || {
            let (gone, known) = found.table.evict()?;
            let mut output = context.allocate::<i64>(&[2])?;
            output
                .values()
                .copy_from_slice(&[gone as i64, known as i64]);
            context.set(0, output)
        })
    }
);
