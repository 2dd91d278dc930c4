//! Admission to the parts of tables that a parameter server holds: `MxRecPartObserve`.
//! `MxRecPull` with `create` 2 gives rows to keys that were counted often enough.

use super::admission::{thresholds, time, weight, TIMESTAMP, WEIGHT};
use super::cluster::{COUNT, PART, PARTS};
use super::cluster_rows::{keys_of, Members, Parts, CONFIGS, REQUEST, SHARED_ERRORS};
use super::support::on;
use crate::op_def::{Arg, Attr, OpDef};
use crate::tables;
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Error, Result, Thresholds};

/// Keys of a worker's batch, counted.
pub(crate) struct PartObserve {
    parts: Parts,
    members: Members,
    thresholds: Thresholds,
}

impl OpKernel for PartObserve {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPartObserve",
        doc: "MxRecObserve of the keys of a request: counts each `weight` times its occurrences, \
              and notes when it was seen. MxRecPull is to follow, after all lookups of the tables \
              in this step have been observed.",
        inputs: &[
            CONFIGS,
            REQUEST,
            Arg {
                spec: "times: int32",
                shape: "(k)",
                doc: "How often each key of the request occurs, of MxRecDistinctSplit.",
            },
            WEIGHT,
            Arg {
                doc: "As of MxRecObserve.",
                ..TIMESTAMP
            },
        ],
        outputs: &[Arg {
            spec: "observed: int64",
            shape: "()",
            doc: "How many keys were counted.",
        }],
        attrs: &[
            PART,
            PARTS,
            Attr {
                spec: "access_threshold: int",
                doc: "As of MxRecObserve.",
            },
            Attr {
                spec: "eviction_threshold: int",
                doc: "As of MxRecObserve.",
            },
            COUNT,
        ],
        errors: SHARED_ERRORS,
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            parts: Parts::of(construction)?,
            members: Members::default(),
            thresholds: thresholds(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (configs, request) = (context.input(0)?, context.input(1)?);
        let (times, weight) = (context.input(2)?, weight(&context.input(3)?)?);
        let time = time(&context.input(4)?)?;
        let members = self.members.of(configs.values::<u8>()?, &self.parts)?;
        let keys = keys_of(request.values::<i64>()?, &self.parts, members.len(), 1)?;
        let found = members
            .iter()
            .map(|member| member.find())
            .collect::<Result<Vec<_>>>()?;
        let total: usize = keys.iter().map(|keys| keys.len()).sum();
        let times = times.values::<i32>()?;
        let negative = times.iter().find(|&&times| times < 0);
        if times.len() != total || negative.is_some() {
            return Err(
                Error::invalid("times must be a count for each key of the request")
                    .with("times", times.len())
                    .with("keys", total),
            );
        }
        let times: Vec<u32> = times.iter().map(|&times| times.unsigned_abs()).collect();
        let mut rest = &times[..];
        for (part, keys) in found.iter().zip(keys) {
            let (own, behind) = rest.split_at_checked(keys.len()).unwrap_or_default();
            rest = behind;
            on(&part.table, || {
                let (step, limits) = (Some(context.step()), self.thresholds);
                let counts = (keys, own);
                part.table
                    .observe_counts(pool()?, step, counts, weight, time, limits)?;
                tables::counted(&part.table, context.step());
                Ok(())
            })?;
        }
        context.set_scalar(0, total as i64)
    }
}
