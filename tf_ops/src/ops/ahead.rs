//! Ops that resolve keys before their step: `MxRecPrepare` in the input pipeline, `MxRecClaim` in the step.

use super::definition::{Arg, OpDef};
use super::support::{
    ids, limit, on, resolve, resolved_shape, table, HANDLE, IDS, KEY_TYPE, LIMIT, RESOLVED,
};
use crate::tf::{Construction, Context, Kernel, ShapeContext};
use crate::threads::pool;
use mx_rec_kernels::Result;

/// Distinct keys and their rows, some steps early.
pub(crate) struct Prepare {
    limit: Option<usize>,
}

impl Kernel for Prepare {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPrepare",
        doc: "Does ahead of the step, in an input pipeline, what MxRecIdOffset with `create` 1 does in it. New keys get rows that no other \
              op sees until MxRecClaim enters them; a batch that is dropped leaves no trace. If the batch has more distinct keys than \
              `limit` or the table has no room for it, offsets are empty and restore is -1, and MxRecClaim does the work.",
        inputs: &[HANDLE, IDS],
        outputs: RESOLVED,
        attrs: &[KEY_TYPE, LIMIT],
        errors: "none of its own.",
        stateful: true,
    };

    fn shape(context: &ShapeContext) -> Result<()> {
        resolved_shape(context)
    }

    fn create(construction: &Construction) -> Result<Self> {
        let limit = limit(construction)?;
        Ok(Self { limit })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        on(&table, || {
            let mut restore = context.allocate::<i32>(&input.dims())?;
            let lease = table.prepare(pool()?, ids(&input)?, self.limit, restore.values());
            let offsets = context.lend(lease)?;
            context.set(0, offsets)?;
            context.set(1, restore)
        })
    }
}

/// What `Prepare` found, made true.
pub(crate) struct Claim {
    limit: Option<usize>,
}

impl Kernel for Claim {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecClaim",
        doc: "In the step that uses a batch from MxRecPrepare: enters its new keys into the table and passes offsets and restore on. If \
              they are not what MxRecPrepare made of this very ids tensor for this table, or keys of the batch were removed or the \
              table was cleared or loaded since, it ignores them and does what MxRecIdOffset with `create` 1 does. The result is the \
              same.",
        inputs: &[
            HANDLE,
            IDS,
            Arg { name: "prepared_offsets", dtype: "int64", shape: "(v)", doc: "Offsets from MxRecPrepare." },
            Arg { name: "prepared_restore", dtype: "int32", shape: "(s...)", doc: "Restore from MxRecPrepare." },
        ],
        outputs: RESOLVED,
        attrs: &[KEY_TYPE, LIMIT],
        errors: "those of MxRecIdOffset.",
        stateful: true,
    };

    fn shape(context: &ShapeContext) -> Result<()> {
        resolved_shape(context)
    }

    fn create(construction: &Construction) -> Result<Self> {
        let limit = limit(construction)?;
        Ok(Self { limit })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input) = (table(context)?, context.input(1)?);
        let (offsets, restore) = (context.input(2)?, context.input(3)?);
        on(&table, || {
            let same_shape = offsets.rank() == 1 && restore.dims() == input.dims();
            let (given, places) = (offsets.values::<i64>()?, restore.values::<i32>()?);
            if same_shape && table.claim(pool()?, ids(&input)?, given, self.limit, places)? {
                context.forward(0, &offsets)?;
                return context.forward(1, &restore);
            }
            resolve(context, &table, &input, self.limit)
        })
    }
}
