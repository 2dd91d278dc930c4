//! The life of the parts of tables that a parameter server holds: `MxRecPartInit`, `MxRecPart`,
//! `MxRecPartStage`, `MxRecPartDiscard`, `MxRecPartPublish`.

use super::cluster::{CONFIG, PART, PARTS};
use super::cluster_rows::partition;
use super::file::{paths, PATHS};
use super::support::{on, PlainOp, HANDLE};
use crate::config::Settings;
use crate::op_def::{Arg, OpDef};
use crate::tables::{self, Member, MemberReference, Part, MEMBERS, SHARED};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{checkpoint, Kind, Partition, Result};
use parking_lot::Mutex;
use std::sync::Arc;

const PART_HANDLE: Arg = Arg {
    doc: "Of MxRecPart.",
    ..HANDLE
};
const ROWS: Arg = Arg {
    spec: "rows: int64",
    shape: "()",
    doc: "Rows of the part.",
};

/// The part that input 0 stands for.
fn member(context: &Context) -> Result<Arc<Member>> {
    tables::member(context.input(0)?.scalar::<i64>()?)
}

/// An empty part.
#[derive(Default)]
pub(crate) struct Init;

impl PlainOp for Init {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPartInit",
        doc:
            "Makes the part, empty, in the place of whatever the process holds of the table: what \
              the chief does at the start of a job.",
        inputs: &[PART_HANDLE],
        outputs: &[ROWS],
        errors: "`INVALID_ARGUMENT` for a configuration of which no table can be made.",
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        let member = member(context)?;
        let (name, settings) = (member.name.clone(), member.settings.clone());
        let table = settings.make(Some(name.part))?;
        SHARED.renew(name, settings, Part::new(table));
        context.set_scalar(0, 0_i64)
    }
}

/// One node of `MxRecPart`; its handle ends with it.
pub(crate) struct PartNode {
    part: Partition,
    made: Mutex<Option<(Vec<u8>, MemberReference)>>,
}

impl OpKernel for PartNode {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPart",
        doc: "Stands for the part of a table: whatever the process holds of it when its handle is \
              used.",
        inputs: &[CONFIG],
        outputs: &[
            Arg {
                spec: "handle: int64",
                shape: "()",
                doc: "What the other ops on parts take, and MxRecTableStats, MxRecSave, \
                      MxRecSetThreshold and MxRecEvict. These four fail with `ABORTED` as \
                      long as the process has not got the part, and with \
                      `INVALID_ARGUMENT` if it holds it by another configuration.",
            },
            Arg {
                spec: "ready: int32",
                shape: "()",
                doc: "1 if the process holds the part, initialized or restored, by this \
                      configuration; otherwise 0.",
            },
            Arg {
                spec: "difference: uint8",
                shape: "(d)",
                doc: "A text in UTF-8, if the process holds the part by another configuration: \
                      the setting, and both values. Otherwise nothing.",
            },
        ],
        attrs: &[PART, PARTS],
        errors: "`INVALID_ARGUMENT` for a configuration that is not valid.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            part: partition(construction)?,
            made: Mutex::new(None),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let config = context.input(0)?;
        let json = config.values::<u8>()?;
        let mut made = self.made.lock();
        let number = match &*made {
            Some((config, reference)) if config == json => reference.number(),
            _ => {
                let member = Member::new(Settings::parse(json)?, self.part);
                let reference = MEMBERS.own(member);
                made.insert((json.to_vec(), reference)).1.number()
            }
        };
        drop(made);
        let found = tables::get_any(number);
        let difference = match &found {
            Err(error) if error.kind() == Kind::InvalidArgument => error.to_string(),
            _ => String::new(),
        };
        let text = context.vector(difference.as_bytes())?;
        context.set_scalar(0, number)?;
        context.set_scalar(1, i32::from(found.is_ok()))?;
        context.set(2, text)
    }
}

/// Reads a part, which waits to be published.
#[derive(Default)]
pub(crate) struct StagePart;

impl PlainOp for StagePart {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPartStage",
        doc: "Reads and checks the part's keys out of a table's directory in a checkpoint, \
              whatever the parts were in which it was saved, with their admission history. What \
              was read waits for MxRecPartPublish; until then nothing changes.",
        inputs: &[PART_HANDLE, PATHS],
        outputs: &[ROWS],
        errors: "those of MxRecLoad.",
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        let member = member(context)?;
        let (name, settings) = (member.name.clone(), member.settings.clone());
        let (table, input) = (settings.make(Some(name.part))?, context.input(1)?);
        let rows = on(&table, || {
            Ok(checkpoint::load_part(&table, pool()?, &paths(&input)?, name.part)?.rows)
        })?;
        SHARED.stage(name, settings, Part::new(table));
        context.set_scalar(0, rows as i64)
    }
}

/// Forgets what was read.
#[derive(Default)]
pub(crate) struct Discard;

impl PlainOp for Discard {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPartDiscard",
        doc:
            "Forgets what MxRecPartStage has read, after a restore that failed. The part stays as \
              it is.",
        inputs: &[PART_HANDLE],
        outputs: &[ROWS],
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        let member = member(context)?;
        SHARED.discard(&member.name);
        context.set_scalar(0, 0_i64)
    }
}

/// Opens what was read.
#[derive(Default)]
pub(crate) struct Publish;

impl PlainOp for Publish {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPartPublish",
        doc: "Opens what MxRecPartStage has read, in the place of whatever the process holds.",
        inputs: &[PART_HANDLE],
        outputs: &[ROWS],
        errors: "`ABORTED` if nothing waits: the process was started again meanwhile.",
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        let member = member(context)?;
        let published = SHARED.publish(&member.name)?;
        context.set_scalar(0, published.table.len() as i64)
    }
}
