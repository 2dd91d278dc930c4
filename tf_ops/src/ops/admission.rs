//! Ops of admission and eviction: `MxRecObserve`, `MxRecAdmit`, `MxRecSetThreshold`, `MxRecEvict`,
//! `MxRecTableStats`.

use super::support::{
    expect_rank, ids, limit, on, on_any, table, PlainOp, HANDLE, IDS, KEY_TYPE, LIMIT,
};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tables;
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Error, Result, Table, Thresholds, TierStats};

pub(super) const WEIGHT: Arg = Arg {
    spec: "weight: int32",
    shape: "()",
    doc: "Factor of the occurrences, 0 or more.",
};
pub(super) const TIMESTAMP: Arg = Arg {
    spec: "timestamp: int64",
    shape: "() or (0) or (1)",
    doc:
        "When the batch was made, in seconds since 1970 and 1..=4294967294; without a number it is \
          not noted.",
};

/// The keys of one lookup, counted.
pub(crate) struct Observe {
    thresholds: Thresholds,
}

/// A threshold that an attribute gives; -1 for none.
fn threshold(construction: &Construction, name: &'static str) -> Result<Option<u32>> {
    match construction.int(name)? {
        -1 => Ok(None),
        value => match u32::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Error::invalid("a threshold must be -1 or more").with(name, value)),
        },
    }
}

/// The attributes `access_threshold` and `eviction_threshold`.
pub(super) fn thresholds(construction: &Construction) -> Result<Thresholds> {
    let access = threshold(construction, "access_threshold")?.ok_or_else(|| {
        Error::invalid("access_threshold must not be negative").with("access_threshold", -1)
    })?;
    let eviction = threshold(construction, "eviction_threshold")?;
    Ok(Thresholds { access, eviction })
}

/// The factor of occurrences.
pub(super) fn weight(input: &Input) -> Result<u32> {
    let weight = input.scalar::<i32>()?;
    u32::try_from(weight)
        .map_err(|_| Error::invalid("weight must not be negative").with("weight", weight))
}

/// The time of a batch, if it has one.
pub(super) fn time(input: &Input) -> Result<Option<i64>> {
    if input.rank() > 1 || (input.rank() == 1 && input.dim(0) > 1) {
        return Err(Error::invalid("timestamp must be one number or none")
            .with("shape", format_args!("{:?}", input.dims())));
    }
    Ok(input.values::<i64>()?.first().copied())
}

impl OpKernel for Observe {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecObserve",
        doc: "Makes the keys of a batch distinct, counts each `weight` times its occurrences and \
              notes when it was seen. No key gets a row: MxRecAdmit is to follow, after all \
              lookups of the table in this step have been observed. From the first call on the \
              table has a history, of 8 bytes a row and at most 24 bytes a key without one, or of \
              admission_sketch_bytes for all of these.",
        inputs: &[HANDLE, IDS, WEIGHT, TIMESTAMP],
        outputs: &[
            Arg {
                spec: "keys: int64",
                shape: "(u)",
                doc: "The distinct keys, in order of first occurrence.",
            },
            Arg {
                spec: "places: int32",
                shape: "(s...)",
                doc: "For each id its place in keys; -1 for padding.",
            },
        ],
        attrs: &[
            KEY_TYPE,
            Attr {
                spec: "access_threshold: int",
                doc: "How often a key must be counted to get a row; 0: every key gets one and \
                      unknown keys are not counted. It holds for a table without a history; \
                      MxRecSetThreshold changes it.",
            },
            Attr {
                spec: "eviction_threshold: int",
                doc: "After how many seconds without being seen MxRecEvict lets a key go; -1: \
                      never.",
            },
        ],
        errors: "`INVALID_ARGUMENT` for a negative weight, a timestamp out of its range, or none \
                 with an eviction threshold; `RESOURCE_EXHAUSTED` without memory for \
                 admission_sketch_bytes. Nothing is counted then.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let thresholds = thresholds(construction)?;
        Ok(Self { thresholds })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let weight = weight(&context.input(2)?)?;
            let time = time(&context.input(3)?)?;
            let mut places = context.allocate::<i32>(&input.dims())?;
            let ids = ids(&input)?;
            let (step, limits) = (Some(context.step()), self.thresholds);
            let places_of = places.values();
            let found = table.observe(step, pool()?, ids, weight, time, limits, places_of)?;
            tables::counted(&table, context.step());
            context.set(0, context.vector(&found)?)?;
            context.set(1, places)
        })
    }
}

/// Rows for those keys of a batch that were counted often enough.
pub(crate) struct Admit {
    limit: Option<usize>,
}

impl OpKernel for Admit {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecAdmit",
        doc: "Gives rows to those keys of MxRecObserve that were counted often enough, with what \
              other lookups of this step counted. The offsets are a lease, as those of \
              MxRecIdOffset are.",
        inputs: &[
            HANDLE,
            Arg {
                spec: "keys: int64",
                shape: "(v)",
                doc: "Distinct keys from MxRecObserve.",
            },
            Arg {
                spec: "places: int32",
                shape: "(s...)",
                doc: "For each id its place in keys; -1 for padding.",
            },
        ],
        outputs: &[
            Arg {
                spec: "offsets: int64",
                shape: "(u)",
                doc: "Row numbers of the admitted keys, in the order of keys.",
            },
            Arg {
                spec: "inverse: int32",
                shape: "(s...)",
                doc: "For each id its place in offsets; -1 for padding and for keys that are not \
                      admitted.",
            },
        ],
        attrs: &[LIMIT],
        errors: "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity, \
                 `INVALID_ARGUMENT` for more admitted keys than `limit`, for a place that is none, \
                 and for a new key that comes twice or is padding. No row is made then.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let limit = limit(construction)?;
        Ok(Self { limit })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, keys, places) = (table(context)?, context.input(1)?, context.input(2)?);
        on(&table, || {
            expect_rank(&keys, 1)?;
            let mut inverse = context.allocate::<i32>(&places.dims())?;
            let (given, places) = (keys.values::<i64>()?, places.values::<i32>()?);
            let lease = table.admit(pool()?, given, self.limit, places, inverse.values())?;
            let offsets = context.lend(lease)?;
            context.set(0, offsets)?;
            context.set(1, inverse)
        })
    }
}

/// Another threshold of admission.
#[derive(Default)]
pub(crate) struct SetThreshold;

impl PlainOp for SetThreshold {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecSetThreshold",
        doc: "Changes how often a key must be counted to get a row. Keys below the threshold that \
              have a row keep it, and are treated as not admitted. Before the first MxRecObserve \
              it takes the place of its `access_threshold`.",
        inputs: &[
            HANDLE,
            Arg {
                spec: "value: int32",
                shape: "()",
                doc: "The new threshold; 0: the threshold stays, and keys are not counted any \
                      more.",
            },
        ],
        outputs: &[Arg {
            spec: "output: int32",
            shape: "()",
            doc: "The value.",
        }],
        errors: "`INVALID_ARGUMENT` for a negative value; `RESOURCE_EXHAUSTED` without memory for \
                 admission_sketch_bytes, before the first MxRecObserve.",
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        on_any(context, |table| {
            let value = context.input(1)?.scalar::<i32>()?;
            let access = u32::try_from(value).map_err(|_| {
                Error::invalid("the access threshold must not be negative").with("value", value)
            })?;
            table.set_access_threshold(access)?;
            context.set_scalar(0, value)
        })
    }
}

/// Stale keys go.
#[derive(Default)]
pub(crate) struct Evict;

impl PlainOp for Evict {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEvict",
        doc: "Lets go of the keys that were not seen for the eviction threshold, counted from the \
              latest timestamp: rows, slots and history; none before an MxRecObserve has given the \
              table an eviction threshold. Other ops get their turn meanwhile. If half of the rows \
              are free then, the system gets their memory back.",
        inputs: &[HANDLE],
        outputs: &[Arg {
            spec: "counts: int64",
            shape: "(2)",
            doc: "Keys that went, and keys that are still known; both with those that never had a \
                  row, except in a table with admission_sketch_bytes.",
        }],
        errors:
            "`RESOURCE_EXHAUSTED` without memory for a list of rows. Keys that went before the \
             error stay gone.",
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        on_any(context, |table| {
            let (gone, known) = table.evict()?;
            context.set(0, context.vector(&[gone as i64, known as i64])?)
        })
    }
}

/// Numbers of a table.
#[derive(Default)]
pub(crate) struct Stats;

impl PlainOp for Stats {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecTableStats",
        doc: "What a table holds, and what has happened to it since it was made.",
        inputs: &[HANDLE],
        outputs: &[Arg {
            spec: "stats: int64",
            shape: "(23)",
            doc: "Rows in use; the row budget; bytes of rows, of the index, of the history; rows \
                  for each thousand of the budget; distinct keys of training batches that had a \
                  row, that got one, and that were refused; keys that were evicted; gradients \
                  that were dropped because their keys were removed after the lookup, each \
                  offset once an update; rows in memory, on disk; the most rows in memory; \
                  distinct rows of batches that were in memory, that were read from disk; bytes \
                  read, written; bytes of the files; nanoseconds that steps waited for rows; \
                  batches ahead whose rows were let go for want of memory; of embeddings of 2 \
                  bytes a value, finite values that were beyond the largest one and became it, and \
                  infinities and not-a-numbers that were written, since the table was made or \
                  restored.",
        }],
        ..OpDef::STATEFUL
    };

    fn run(context: &Context) -> Result<()> {
        on_any(context, |table| {
            context.set(0, context.vector(&numbers(table))?)
        })
    }
}

/// The numbers of a table, in the order of the output `stats`.
fn numbers(table: &Table) -> [i64; 23] {
    let stats = table.stats();
    let load = stats.rows.saturating_mul(1000) / stats.capacity.max(1);
    // A table without a tier has all rows in memory, and finds them there without counting.
    let tier = stats.tier.unwrap_or(TierStats {
        ram_rows: stats.capacity,
        rows_in_memory: stats.rows,
        ..TierStats::default()
    });
    let values = [
        stats.rows,
        stats.capacity,
        stats.rows_bytes,
        stats.index_bytes,
        stats.history_bytes,
        load,
        stats.hits,
        stats.new,
        stats.refused,
        stats.evicted,
        stats.stale,
        tier.rows_in_memory,
        tier.rows_on_disk,
        tier.ram_rows,
        tier.hits,
        tier.misses,
        tier.bytes_read,
        tier.bytes_written,
        tier.bytes_on_disk,
        tier.wait_nanoseconds,
        tier.given_up,
        stats.saturated,
        stats.not_finite,
    ];
    values.map(|value| value as i64)
}
