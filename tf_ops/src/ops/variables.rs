//! The op of tables that stand for variables of a stock model: `MxRecCheckedIds`.

use super::support::{expect_rank, ids, IDS, KEY_TYPE};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use mx_rec_kernels::{Error, Ids, Result};

/// Ids that are rows of a variable.
pub(crate) struct CheckedIds;

impl OpKernel for CheckedIds {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecCheckedIds",
        doc: "Passes ids on if all of them are rows of a variable, as tf.gather demands.",
        inputs: &[
            IDS,
            Arg {
                spec: "rows: int64",
                shape: "()",
                doc: "Rows of the variable.",
            },
        ],
        outputs: &[Arg {
            spec: "checked: T",
            shape: "(s...)",
            doc: "The ids.",
        }],
        attrs: &[KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for an id outside of [0, rows).",
        ..OpDef::STATELESS
    };

    fn create(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (input, rows) = (context.input(0)?, context.input(1)?);
        expect_rank(&rows, 0)?;
        let rows = rows.scalar::<i64>()?;
        let found = ids(&input)?;
        let outside = match found {
            Ids::I32(ids) => first_outside(ids, |&id| i64::from(id) < 0 || i64::from(id) >= rows),
            Ids::I64(ids) => first_outside(ids, |&id| id < 0 || id >= rows),
        };
        if let Some(at) = outside {
            let id = found.get(at);
            return Err(Error::invalid(format!(
                "indices[{at}] = {id} is not in [0, {rows})"
            )));
        }
        context.set(0, &input)
    }
}

/// The place of the first id for which `is_outside` holds.
fn first_outside<T>(ids: &[T], is_outside: impl Fn(&T) -> bool) -> Option<usize> {
    // All at first: without a way out, the loop is vectorised.
    if !ids.iter().fold(false, |any, id| any | is_outside(id)) {
        return None;
    }
    ids.iter().position(is_outside)
}
