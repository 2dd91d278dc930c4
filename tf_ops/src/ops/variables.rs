//! The op of tables that stand for variables of a stock model: `MxRecCheckedIds`.

use super::lists::{members, Tensors};
use super::support::{expect_rank, ids, KEY_TYPE, MEMBERS};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use mx_rec_kernels::{Error, Ids, Result};

/// Ids that are rows of variables.
pub(crate) struct CheckedIds {
    members: usize,
}

impl OpKernel for CheckedIds {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecCheckedIds",
        doc: "Passes ids on if all of them are rows of their variable, as tf.gather demands; of \
              one variable or of many.",
        inputs: &[
            Arg {
                spec: "ids: N * T",
                shape: "N times (s...)",
                doc: "For each member its ids, any rank.",
            },
            Arg {
                spec: "rows: int64",
                shape: "(members)",
                doc: "For each member the rows of its variable.",
            },
            Arg {
                spec: "names: uint8",
                shape: "(bytes)",
                doc: "For each member its name for errors, in UTF-8, a line each.",
            },
        ],
        outputs: &[Arg {
            spec: "checked: N * T",
            shape: "N times (s...)",
            doc: "The ids.",
        }],
        attrs: &[MEMBERS, KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for an id outside of [0, rows), of the first member that has \
                 one, and for another number of rows than there are members.",
        ..OpDef::STATELESS
    };

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self {
            members: members(construction)?,
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let mut lists = Tensors::of(context);
        let (inputs, rows, names) = (lists.list(self.members)?, lists.one()?, lists.one()?);
        expect_rank(&rows, 1)?;
        let rows = rows.values::<i64>()?;
        if rows.len() != self.members {
            return Err(Error::invalid("rows must have one entry for each member")
                .with("rows", rows.len())
                .with("members", self.members));
        }
        for (at, (input, &rows)) in inputs.iter().zip(rows).enumerate() {
            check(input, rows).map_err(|error| {
                let names = names.values::<u8>().unwrap_or_default();
                let name = names.split(|&byte| byte == b'\n').nth(at);
                error.with("of", String::from_utf8_lossy(name.unwrap_or_default()))
            })?;
        }
        let mut outputs = inputs.iter().enumerate();
        outputs.try_for_each(|(at, input)| context.set(at, input))
    }
}

/// Refuses ids that are no rows of a variable.
fn check(input: &Input, rows: i64) -> Result<()> {
    let found = ids(input)?;
    let outside = match found {
        Ids::I32(ids) => first_outside(ids, |&id| i64::from(id) < 0 || i64::from(id) >= rows),
        Ids::I64(ids) => first_outside(ids, |&id| id < 0 || id >= rows),
    };
    outside.map_or(Ok(()), |at| {
        let id = found.get(at);
        Err(Error::invalid(format!(
            "indices[{at}] = {id} is not in [0, {rows})"
        )))
    })
}

/// The place of the first id for which `is_outside` holds.
fn first_outside<T>(ids: &[T], is_outside: impl Fn(&T) -> bool) -> Option<usize> {
    // All at first: without a way out, the loop is vectorised.
    if !ids.iter().fold(false, |any, id| any | is_outside(id)) {
        return None;
    }
    ids.iter().position(is_outside)
}
