//! `MxRecTable`: the op that owns a table.

use super::support::{expect_like, LIKE, VARIABLE};
use crate::config::Settings;
use crate::op_def::{Arg, OpDef};
use crate::tables::{self, Reference, TABLES};
use crate::tf::{Construction, Context, OpKernel, Output};
use mx_rec_kernels::{Error, Result};
use parking_lot::Mutex;

/// One node of `MxRecTable` in one session; its table goes with the reference.
pub(crate) struct MakeTable {
    made: Mutex<Option<Made>>,
}

struct Made {
    config: Vec<u8>,
    table: Reference,
    /// The op's outputs, which are the same in every run.
    variable: Output<f32>,
    handle: Output<i64>,
}

impl Drop for Made {
    fn drop(&mut self) {
        tables::note_end(&self.table);
    }
}

impl OpKernel for MakeTable {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecTable",
        doc: "A table of embeddings. It is made when the node first runs in a session, stays the \
              same at every later run, and is freed when the session closes. `config` is a JSON \
              object with name (str), dim (1 to 8192), capacity (rows, 1 to 2000000000), seed (0 \
              to 2^64 - 1), init_param (factor of new rows), padding_keys (keys whose rows are \
              never updated) and initializer: an object with `kind` zeros, ones, constant (value), \
              random_uniform (min, max), random_normal (mean, stddev), truncated_normal (mean, \
              stddev) or variance_scaling (scale, mode: fan_in, fan_out, fan_avg; distribution: \
              uniform, untruncated_normal, truncated_normal; fan_in; fan_out). It may have \
              track_changes: true, for deltas, and admission_sketch_bytes (0, or 1024 to \
              2^40): keys that are counted before they get rows then share so many bytes, in which \
              some are counted too high; with 0 each has an exact counter. It may have tier, an \
              object with ram_rows (1 to 2000000000) and directories (one or more): rows beyond \
              ram_rows are then in files there, which hold nothing that outlives the table. With \
              direct: true in it they are read past the page cache. It may have row_storage, an \
              object with dtype (float32, bfloat16 or float16), slot_dtype (float32 or bfloat16), \
              rounding (stochastic or nearest: of updates) and conversion (the same, or null: how \
              a restore rounds values of another type, which it refuses without): as what \
              embeddings and slots are stored. A part on a \
              parameter server may have any_seed: true: its seed is nobody's choice, and whoever \
              names the part by another finds it.",
        inputs: &[
            Arg {
                spec: "config: uint8",
                shape: "(n)",
                doc: "The configuration, JSON in UTF-8.",
            },
            LIKE,
        ],
        outputs: &[
            VARIABLE,
            Arg {
                spec: "handle: int64",
                shape: "()",
                doc: "The table's number, never that of another table of the process.",
            },
        ],
        errors: "`INVALID_ARGUMENT` for a configuration that is not valid, that differs from the \
                 one the table was made with, or whose dim is not that of `like`.",
        ..OpDef::STATEFUL
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self {
            made: Mutex::new(None),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let config = context.input(0)?;
        let json = config.values::<u8>()?;
        let mut made = self.made.lock();
        let made = match &mut *made {
            Some(made) if made.config == json => made,
            Some(_) => {
                return Err(Error::invalid(
                    "the table was made with another configuration in this session",
                ));
            }
            none => {
                let (settings, like) = (Settings::parse(json)?, context.input(1)?);
                expect_like("like", &like, &settings.table)?;
                let variable = context.allocate::<f32>(&like.dims())?;
                let mut handle = context.allocate::<i64>(&[])?;
                let table = TABLES.own(settings.make(None)?);
                handle.values().fill(table.number());
                none.insert(Made {
                    config: json.to_vec(),
                    table,
                    variable,
                    handle,
                })
            }
        };
        context.set(0, &made.variable)?;
        context.set(1, &made.handle)
    }
}
