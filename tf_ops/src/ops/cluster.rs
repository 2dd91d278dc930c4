//! What a worker does for tables on parameter servers: `MxRecClusterTable`, `MxRecDistinctSplit`,
//! `MxRecStitch`, `MxRecPackGradients`. Keys and values travel, never offsets or handles.

use super::lists::{flag, members, natural, Tensors};
use super::resolve::MANY_IDS;
use super::support::{
    expect_like, expect_rank, ids, limit, KEY_TYPE, LIKE, LIMIT, MEMBERS, VARIABLE,
};
use crate::config::Settings;
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, HoldBuffers, OpKernel, Output};
use crate::threads::pool;
use mx_rec_kernels::{
    check_parts, rows_of_part, stitch, Error, Result, RowDtype, SplitKeys, Splitter, StitchTo,
};
use std::ops::Range;

pub(super) const CONFIG: Arg = Arg {
    spec: "config: uint8",
    shape: "(n)",
    doc: "The configuration of the whole table, as MxRecTable takes it.",
};
pub(super) const PARTS: Attr = Attr {
    spec: "parts: int >= 1",
    doc: "Into how many parts the tables are cut; at most 4096.",
};
pub(super) const PART: Attr = Attr {
    spec: "part: int >= 0",
    doc: "The number of the part, of several that of the first.",
};
pub(super) const COUNT: Attr = Attr {
    spec: "count: int >= 1 = 1",
    doc: "How many parts, from `part` on.",
};

/// What stands for a table on parameter servers in the graph of a worker.
pub(crate) struct ClusterTable {
    /// The tables are in other processes, and their rows pass through this one in every step.
    _buffers: HoldBuffers,
}

impl OpKernel for ClusterTable {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecClusterTable",
        doc:
            "Stands for a table that parameter servers hold in parts, each a range of the buckets \
              of its keys. It makes no table: MxRecPartInit does.",
        inputs: &[CONFIG, LIKE],
        outputs: &[VARIABLE],
        attrs: &[PARTS],
        errors: "`INVALID_ARGUMENT` for a configuration that is not valid, or whose dim is not \
                 that of `like`.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        check_parts(natural(construction, "parts")?)?;
        Ok(Self {
            _buffers: HoldBuffers::new(),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (config, like) = (context.input(0)?, context.input(1)?);
        let settings = Settings::parse(config.values::<u8>()?)?;
        expect_like("like", &like, &settings.table)?;
        context.set(0, &like)
    }
}

const KEYS: Arg = Arg {
    spec: "keys: N * int64",
    shape: "N times (u)",
    doc: "For each member its distinct keys: those of the first part, then those of the second, \
          and so on, in order of first occurrence.",
};
const PLACES: Arg = Arg {
    spec: "places: N * int32",
    shape: "N times (s...)",
    doc: "For each member and id its place in keys; -1 for padding.",
};
const COUNTS: Arg = Arg {
    spec: "counts: N * int64",
    shape: "N times (p)",
    doc: "For each member how many keys each part has.",
};

/// Distinct keys of lookups, by part.
pub(crate) struct DistinctSplit {
    members: usize,
    parts: u32,
    /// So many parts share a request.
    together: u32,
    counted: bool,
    limit: Option<usize>,
    splitter: Splitter,
}

impl OpKernel for DistinctSplit {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecDistinctSplit",
        doc: "Makes the ids of lookups distinct and sorts the keys by the part of the table that \
              holds them. It needs no table. A key is in bucket fmix64(key) mod 4096 (the \
              finalizer of MurmurHash3), and bucket b in part b * parts / 4096.",
        inputs: &[MANY_IDS],
        outputs: &[
            KEYS,
            PLACES,
            COUNTS,
            Arg {
                spec: "requests: int64",
                shape: "(r)",
                doc:
                    "For each part what MxRecPull takes: how many keys of each member it has, and \
                      then these keys, one member behind the other.",
            },
            Arg {
                spec: "sizes: int64",
                shape: "(parts / together)",
                doc: "How long each request is.",
            },
            Arg {
                spec: "times: int32",
                shape: "(k)",
                doc: "How often each key of the requests occurs, in their order; none without \
                      `counted`.",
            },
        ],
        attrs: &[
            MEMBERS,
            KEY_TYPE,
            PARTS,
            LIMIT,
            Attr {
                spec: "together: int >= 1 = 1",
                doc: "How many parts, one after the other, one process holds and one request is \
                      for.",
            },
            Attr {
                spec: "counted: int = 0",
                doc: "1: the occurrences of keys are counted, for MxRecPartObserve.",
            },
        ],
        errors: "`INVALID_ARGUMENT` for more distinct keys of a member than `limit`, and for \
                 `parts` that are no multiple of `together`.",
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        let parts = natural(construction, "parts")?;
        check_parts(parts)?;
        let together = natural(construction, "together")?;
        if together == 0 || !parts.is_multiple_of(together) {
            return Err(Error::invalid("parts must be a multiple of together")
                .with("parts", parts)
                .with("together", together));
        }
        Ok(Self {
            members: members(construction)?,
            parts,
            together,
            counted: construction.int("counted")? != 0,
            limit: limit(construction)?,
            splitter: Splitter::new()?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let inputs = Tensors::of(context).list(self.members)?;
        let mut places = Vec::with_capacity(self.members);
        for input in &inputs {
            places.push(context.allocate::<i32>(&input.dims())?);
        }
        let batches = inputs.iter().zip(&mut places);
        let batches = batches.map(|(input, places)| Ok((ids(input)?, places.values())));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let found = self.splitter.split_each(pool()?, batches, self.parts)?;
        for split in &found {
            if let Some(limit) = self.limit.filter(|&limit| split.keys.len() > limit) {
                return Err(
                    Error::invalid("the batch has more distinct keys than its limit")
                        .with("distinct", split.keys.len())
                        .with("limit", limit),
                );
            }
        }
        let parts = self.parts as usize;
        let total: usize = found.iter().map(|one| one.keys.len()).sum();
        let mut requests = context.allocate::<i64>(&[(total + parts * self.members) as i64])?;
        let mut sizes = vec![0_i64; parts / (self.together as usize).max(1)];
        let occurrences = self.occurrences(&found, &mut places);
        let mut times = context.allocate::<i32>(&[if self.counted { total as i64 } else { 0 }])?;
        let mut rest_times = times.values();
        let mut rest = requests.values();
        let mut starts = vec![0; self.members];
        for part in 0..parts {
            let before = rest.len();
            for one in &found {
                let count = one.counts.get(part).copied().unwrap_or(0);
                rest = put(rest, &[count as i64])?;
            }
            for (at, (one, start)) in found.iter().zip(&mut starts).enumerate() {
                let end = *start + one.counts.get(part).copied().unwrap_or(0);
                rest = put(rest, one.keys.get(*start..end).unwrap_or(&[]))?;
                if let Some(own) = occurrences.get(at) {
                    rest_times = put(rest_times, own.get(*start..end).unwrap_or(&[]))?;
                }
                *start = end;
            }
            if let Some(size) = sizes.get_mut(part / (self.together as usize).max(1)) {
                *size += (before - rest.len()) as i64;
            }
        }
        let keys = found.iter().map(|one| context.vector(&one.keys));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let counts = found.iter().map(|one| {
            let counts: Vec<i64> = one.counts.iter().map(|&count| count as i64).collect();
            context.vector(&counts)
        });
        let counts = counts.collect::<Result<Vec<_>>>()?;
        let sizes = context.vector(&sizes)?;
        context.set_all(0, keys)?;
        context.set_all(self.members, places)?;
        context.set_all(2 * self.members, counts)?;
        context.set(3 * self.members, requests)?;
        context.set(3 * self.members + 1, sizes)?;
        context.set(3 * self.members + 2, times)
    }
}

impl DistinctSplit {
    /// For each member how often each of its keys occurs; nothing if nobody wants to know.
    fn occurrences(&self, found: &[SplitKeys], places: &mut [Output<i32>]) -> Vec<Vec<i32>> {
        if !self.counted {
            return Vec::new();
        }
        let members = found.iter().zip(places);
        let counted = members.map(|(one, places)| {
            let mut times = vec![0_i32; one.keys.len()];
            for &place in places.values().iter() {
                if let Some(times) = usize::try_from(place).ok().and_then(|at| times.get_mut(at)) {
                    *times = times.saturating_add(1);
                }
            }
            times
        });
        counted.collect()
    }
}

/// Copies `values` to the front of `room`; what is left of it.
pub(super) fn put<'a, T: Copy>(room: &'a mut [T], values: &[T]) -> Result<&'a mut [T]> {
    let Some((front, rest)) = room.split_at_mut_checked(values.len()) else {
        return Err(Error::new(
            mx_rec_kernels::Kind::Internal,
            "a request has no room for its keys",
        ));
    };
    front.copy_from_slice(values);
    Ok(rest)
}

/// Rows of parts to embeddings.
pub(crate) struct Stitch {
    members: usize,
    packed: bool,
}

impl Stitch {
    /// As what the rows of each member were sent.
    fn row_dtypes(&self, inputs: &mut Tensors<'_>) -> Result<Vec<RowDtype>> {
        let numbers = inputs.list(usize::from(self.packed))?;
        let [numbers] = numbers.as_slice() else {
            return Ok(vec![RowDtype::Float32; self.members]);
        };
        let numbers = numbers.values::<i32>()?;
        if numbers.len() != self.members {
            return Err(
                Error::invalid("row_dtypes must have a number for each member")
                    .with("row_dtypes", numbers.len())
                    .with("members", self.members),
            );
        }
        let dtypes = numbers.iter().map(|&number| match number {
            0 => Ok(RowDtype::Float32),
            1 => Ok(RowDtype::Bfloat16),
            2 => Ok(RowDtype::Float16),
            _ => Err(Error::invalid("row_dtypes must be 0 to 2").with("row_dtypes", number)),
        });
        dtypes.collect()
    }
}

impl OpKernel for Stitch {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecStitch",
        doc: "Spreads the rows that the parts sent over the ids of lookups. Its gradient with \
              respect to a variable is an IndexedSlices of MxRecReduce and the keys.",
        inputs: &[
            Arg {
                spec: "variables: N * float",
                shape: "N times (0, dim)",
                doc: "The variable of each member's table; it carries dim and is what gradients \
                      are taken of.",
            },
            KEYS,
            COUNTS,
            PLACES,
            Arg {
                spec: "row_dtypes: P * int32",
                shape: "P times (n)",
                doc: "As what each member's rows were sent: 0 for float32, 1 for bfloat16, 2 for \
                      float16.",
            },
            Arg {
                spec: "rows: float",
                shape: "(f)",
                doc: "What MxRecPull gave for each part, one part behind the other.",
            },
        ],
        outputs: &[Arg {
            spec: "embeddings: N * float",
            shape: "N times (s..., dim)",
            doc: "For each member a row for each id; zeros for -1.",
        }],
        attrs: &[
            MEMBERS,
            Attr {
                spec: "P: int >= 0 = 0",
                doc: "1 if MxRecPull is `packed`; 0: all rows are float32.",
            },
        ],
        errors:
            "`INVALID_ARGUMENT` for keys or rows that are not as many as the counts say, for a \
                 place that is none and for a number that is no type.",
        differentiable: true,
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        let packed = flag(construction, "P")?;
        Ok(Self { members, packed })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let mut inputs = Tensors::of(context);
        let (variables, keys) = (inputs.list(self.members)?, inputs.list(self.members)?);
        let (counts, places) = (inputs.list(self.members)?, inputs.list(self.members)?);
        let dtypes = self.row_dtypes(&mut inputs)?;
        let rows = inputs.one()?;
        let mut outputs = Vec::with_capacity(self.members);
        for (variable, places) in variables.iter().zip(&places) {
            expect_rank(variable, 2)?;
            let dim = variable.dim(1) as usize;
            outputs.push(context.allocate::<f32>(&places.dims_and(dim))?);
        }
        for (keys, counts) in keys.iter().zip(&counts) {
            let (keys, counts) = (keys.values::<i64>()?.len(), counts.values::<i64>()?);
            let sum = counts
                .iter()
                .fold(0_i64, |sum, &one| sum.saturating_add(one));
            if i64::try_from(keys).ok() != Some(sum) {
                return Err(Error::invalid("the counts must be those of the keys")
                    .with("keys", keys)
                    .with("counts", sum));
            }
        }
        let mut lookups = Vec::with_capacity(self.members);
        let inputs = variables.iter().zip(&counts).zip(&places).zip(dtypes);
        for ((((variable, counts), places), dtype), out) in inputs.zip(&mut outputs) {
            lookups.push(StitchTo {
                dim: variable.dim(1) as usize,
                dtype,
                counts: counts.values::<i64>()?,
                places: places.values::<i32>()?,
                out: out.values(),
            });
        }
        stitch(pool()?, rows.values::<f32>()?, lookups)?;
        context.set_all(0, outputs)
    }
}

/// The gradients that one part gets.
pub(crate) struct PackGradients {
    members: usize,
    parts: Range<usize>,
}

impl OpKernel for PackGradients {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPackGradients",
        doc: "The gradients of the keys of some parts, as MxRecPush takes them.",
        inputs: &[
            Arg {
                spec: "grads: N * float",
                shape: "N times (u, dim)",
                doc: "For each member the gradients of its distinct keys, in the order of \
                      MxRecDistinctSplit.",
            },
            COUNTS,
        ],
        outputs: &[Arg {
            spec: "packed: float",
            shape: "(f)",
            doc: "Those of the first part, one member behind the other, then those of the second, \
                  and so on.",
        }],
        attrs: &[MEMBERS, PART, COUNT],
        errors: "`INVALID_ARGUMENT` for gradients that are not as many as the counts say.",
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        let (part, count) = (
            natural(construction, "part")?,
            natural(construction, "count")?,
        );
        // No more than a table can have.
        check_parts(count)?;
        let part = part as usize;
        Ok(Self {
            members: members(construction)?,
            parts: part..part.saturating_add(count as usize),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let mut inputs = Tensors::of(context);
        let (grads, counts) = (inputs.list(self.members)?, inputs.list(self.members)?);
        let mut found = Vec::with_capacity(self.members * self.parts.len());
        for part in self.parts.clone() {
            for (grad, counts) in grads.iter().zip(&counts) {
                expect_rank(grad, 2)?;
                let (rows, counts) = (grad.values::<f32>()?, counts.values::<i64>()?);
                found.push(rows_of_part(rows, grad.dim(1) as usize, counts, part)?);
            }
        }
        let floats: usize = found.iter().map(|rows| rows.len()).sum();
        let mut packed = context.allocate::<f32>(&[floats as i64])?;
        let mut rest = packed.values();
        for rows in found {
            rest = put(rest, rows)?;
        }
        context.set(0, packed)
    }
}
