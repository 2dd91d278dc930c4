//! Ops that resolve keys before their step: `MxRecPrepare` in the input pipeline, `MxRecClaim` in
//! the step.

use super::support::{ids, limit, on, resolve, table, HANDLE, IDS, KEY_TYPE, LIMIT, RESOLVED};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use crate::{tables, trace};
use mx_rec_kernels::{Error, Result, Table};

/// Distinct keys and their rows in one or several tables, some steps early.
pub(crate) struct Prepare {
    tables: usize,
    limit: Option<usize>,
}

impl OpKernel for Prepare {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPrepare",
        doc: "Does ahead of the step, in an input pipeline, what MxRecIdOffset with `create` 1 \
              does in it, for all tables that are looked up by the same ids. New keys get rows \
              that no other op sees until MxRecClaim enters them; a batch that is dropped leaves \
              no trace. For a table of which the batch has more distinct keys than `limit`, or \
              that has no room for it, offsets are empty, and MxRecClaim does the work; inverse is \
              -1 if it is so for all of them.",
        inputs: &[
            Arg {
                name: "handles",
                dtype: "N * int64",
                shape: "N times ()",
                doc: "The tables.",
            },
            IDS,
        ],
        outputs: &[
            Arg {
                name: "offsets",
                dtype: "N * int64",
                shape: "N times (u)",
                doc: "For each table the row numbers of the distinct keys, in order of first \
                      occurrence.",
            },
            Arg {
                name: "inverse",
                dtype: "int32",
                shape: "(s...)",
                doc: "For each id its place in offsets; -1 for padding.",
            },
        ],
        attrs: &[
            Attr {
                spec: "N: int >= 1",
                doc: "Tables.",
            },
            KEY_TYPE,
            LIMIT,
        ],
        errors: "none of its own.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let tables = usize::try_from(construction.int("N")?)
            .map_err(|_| Error::invalid("N must not be negative"))?;
        let limit = limit(construction)?;
        Ok(Self { tables, limit })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let tables = (0..self.tables)
            .map(|at| tables::get(context.tensor(at, 0)?.scalar::<i64>()?))
            .collect::<Result<Vec<_>>>()?;
        tables.iter().for_each(trace::note);
        let input = context.tensor(self.tables, 1)?;
        let mut inverse = context.allocate::<i32>(&input.dims())?;
        let (ids, limit) = (ids(&input)?, self.limit);
        let leases = Table::prepare_all(&tables, pool()?, ids, limit, inverse.values());
        let offsets = leases
            .into_iter()
            .map(|lease| context.lend(lease))
            .collect::<Result<Vec<_>>>()?;
        for (at, offsets) in offsets.into_iter().enumerate() {
            context.set(at, offsets)?;
        }
        context.set(self.tables, inverse)
    }
}

/// What `Prepare` found, made true.
pub(crate) struct Claim {
    limit: Option<usize>,
}

impl OpKernel for Claim {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecClaim",
        doc: "In the step that uses a batch from MxRecPrepare: enters its new keys into the table \
              and passes offsets and inverse on. If they are not what MxRecPrepare made of this \
              very ids tensor for this table, or keys of the batch were removed or the table was \
              cleared or loaded since, it ignores them and does what MxRecIdOffset with `create` 1 \
              does. The result is the same.",
        inputs: &[
            HANDLE,
            IDS,
            Arg {
                name: "prepared_offsets",
                dtype: "int64",
                shape: "(v)",
                doc: "Offsets from MxRecPrepare.",
            },
            Arg {
                name: "prepared_inverse",
                dtype: "int32",
                shape: "(s...)",
                doc: "Inverse from MxRecPrepare.",
            },
        ],
        outputs: RESOLVED,
        attrs: &[KEY_TYPE, LIMIT],
        errors: "those of MxRecIdOffset.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let limit = limit(construction)?;
        Ok(Self { limit })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        let (offsets, inverse) = (context.input(2)?, context.input(3)?);
        on(&table, || {
            let same_shape = offsets.rank() == 1 && inverse.dims() == input.dims();
            let (given, places) = (offsets.values::<i64>()?, inverse.values::<i32>()?);
            // The op is made once for each lookup of a session.
            let lookup = std::ptr::from_ref(self).addr();
            let limit = self.limit;
            if same_shape && table.claim_of(lookup, pool()?, ids(&input)?, given, limit, places)? {
                context.set(0, &offsets)?;
                return context.set(1, &inverse);
            }
            resolve(context, &table, &input, self.limit)
        })
    }
}
