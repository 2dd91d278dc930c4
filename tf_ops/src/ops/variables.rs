//! Ops for tables that stand for variables of a stock model: `MxRecCheckedIds`, `MxRecFindInitial`.

use super::support::TableOp;
use super::support::{expect_rank, expect_variable, ids, HANDLE, IDS, KEY_TYPE, VARIABLE};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Absent, Error, Ids, Result, Table};

/// Ids that are rows of a variable.
pub(crate) struct CheckedIds;

impl OpKernel for CheckedIds {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecCheckedIds",
        doc: "Passes ids on if all of them are rows of a variable, as tf.gather demands.",
        inputs: &[
            IDS,
            Arg {
                name: "rows",
                dtype: "int64",
                shape: "()",
                doc: "Rows of the variable.",
            },
        ],
        outputs: &[Arg {
            name: "checked",
            dtype: "T",
            shape: "(s...)",
            doc: "The ids.",
        }],
        attrs: &[KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for an id outside of [0, rows).",
        stateful: false,
        differentiable: false,
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

/// Rows of keys, or what they would start with.
#[derive(Default)]
pub(crate) struct FindInitial;

impl TableOp for FindInitial {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecFindInitial",
        doc: "Looks keys up without making rows, as MxRecFind; a key without a row has the \
              embedding that its row would start with.",
        inputs: &[HANDLE, VARIABLE, IDS],
        outputs: &[Arg {
            name: "embedding",
            dtype: "float",
            shape: "(s..., dim)",
            doc: "The rows; zeros for padding.",
        }],
        attrs: &[KEY_TYPE],
        errors: "none of its own.",
        stateful: true,
        differentiable: false,
    };

    fn run(context: &Context, table: &Table) -> Result<()> {
        let input = context.input(2)?;
        let ids = ids(&input)?;
        expect_variable(&context.input(1)?, table)?;
        let mut dims = input.dims();
        dims.push(table.dim() as i64);
        let mut embedding = context.allocate::<f32>(&dims)?;
        table.find(
            pool()?,
            ids,
            Absent::Initial(table.config()),
            embedding.values(),
        )?;
        context.set(0, embedding)
    }
}
