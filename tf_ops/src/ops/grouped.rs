//! Ops on many tables at once: `MxRecEmbedMany`, `MxRecEmbedConcat`, `MxRecFindMany`.

use super::lists::{members, Tensors};
use super::resolve::MANY_IDS;
use super::support::{
    expect_rank, expect_variable, ids, on, rows_of_absent, HANDLES, KEY_TYPE, MEMBERS,
};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{Error, KeysOf, Result, RowsOf, Table};
use std::sync::Arc;

/// The inputs of a group: lists of as many tensors as the group has members.
pub(super) struct Lists<'a> {
    pub(super) context: &'a Context,
    pub(super) members: usize,
}

impl Lists<'_> {
    /// The tensors of the list that input number `arg` is, behind `lists` lists.
    pub(super) fn list(&self, arg: usize) -> Result<Vec<Input>> {
        let start = arg * self.members;
        let places = start..start + self.members;
        places.map(|at| self.context.tensor(at, arg)).collect()
    }

    /// The tables of the members.
    pub(super) fn tables(&self) -> Result<Vec<Arc<Table>>> {
        Tensors::of(self.context).tables(self.members)
    }
}

pub(super) const VARIABLES: Arg = Arg {
    name: "variables",
    dtype: "N * float",
    shape: "N times (0, dim)",
    doc: "The variable of each member's table; it carries dim to shape inference and is what \
          gradients are taken of.",
};
pub(super) const FOUND_OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "N * int64",
    shape: "N times (u)",
    doc: "For each member row numbers, as MxRecIdOffset gives them.",
};
const FOUND_INVERSE: Arg = Arg {
    name: "inverse",
    dtype: "N * int32",
    shape: "N times (s...)",
    doc: "For each member and id its place in offsets; -1: none.",
};
const EMBED_ERRORS: &str = "`INVALID_ARGUMENT` for an offset that is no row in use, and for a \
                            place outside of offsets.";

/// The inputs of an op that reads rows by offset.
pub(super) struct Found {
    pub(super) tables: Vec<Arc<Table>>,
    offsets: Vec<Input>,
    inverses: Vec<Input>,
}

impl Found {
    pub(super) fn of(lists: &Lists<'_>) -> Result<Found> {
        let tables = lists.tables()?;
        for (table, variable) in tables.iter().zip(&lists.list(1)?) {
            on(table, || expect_variable(variable, table))?;
        }
        let (offsets, inverses) = (lists.list(2)?, lists.list(3)?);
        for (table, offsets) in tables.iter().zip(&offsets) {
            on(table, || expect_rank(offsets, 1))?;
        }
        Ok(Found {
            tables,
            offsets,
            inverses,
        })
    }

    pub(super) fn group(&self) -> Result<Vec<RowsOf<'_>>> {
        let inputs = self.tables.iter().zip(&self.offsets).zip(&self.inverses);
        let group = inputs.map(|((table, offsets), inverse)| {
            Ok(RowsOf {
                table,
                offsets: offsets.values::<i64>()?,
                inverse: inverse.values::<i32>()?,
            })
        });
        group.collect()
    }
}

/// The inputs of an op that reads rows by key.
pub(super) struct Asked {
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) ids: Vec<Input>,
    absents: Vec<Input>,
}

impl Asked {
    /// Those of an op whose input `absents` has what keys without a row get.
    pub(super) fn of(lists: &Lists<'_>, absents: usize) -> Result<Asked> {
        let tables = lists.tables()?;
        for (table, variable) in tables.iter().zip(&lists.list(1)?) {
            on(table, || expect_variable(variable, table))?;
        }
        Ok(Asked {
            tables,
            ids: lists.list(2)?,
            absents: lists.list(absents)?,
        })
    }

    pub(super) fn group(&self) -> Result<Vec<KeysOf<'_>>> {
        let inputs = self.tables.iter().zip(&self.ids).zip(&self.absents);
        let group = inputs.map(|((table, input), absent)| {
            let ids = ids(input)?;
            let absent = on(table, || rows_of_absent(absent, ids.len(), table.dim()))?;
            Ok(KeysOf { table, ids, absent })
        });
        group.collect()
    }
}

/// Offsets to embeddings, in many tables.
pub(crate) struct EmbedMany {
    members: usize,
}

impl OpKernel for EmbedMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEmbedMany",
        doc: "MxRecEmbed in many tables at once.",
        inputs: &[HANDLES, VARIABLES, FOUND_OFFSETS, FOUND_INVERSE],
        outputs: &[Arg {
            name: "embeddings",
            dtype: "N * float",
            shape: "N times (s..., dim)",
            doc: "For each member a row for each id; zeros for -1.",
        }],
        attrs: &[MEMBERS],
        errors: EMBED_ERRORS,
        stateful: true,
        differentiable: true,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let found = Found::of(&Lists { context, members })?;
        let mut outputs = found
            .tables
            .iter()
            .zip(&found.inverses)
            .map(|(table, inverse)| context.allocate::<f32>(&with_last(inverse, table.dim())))
            .collect::<Result<Vec<_>>>()?;
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::embed_many(pool()?, &found.group()?, outs)?;
        context.set_all(outputs)
    }
}

/// Offsets to embeddings of many tables, side by side.
pub(crate) struct EmbedConcat {
    members: usize,
}

impl OpKernel for EmbedConcat {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEmbedConcat",
        doc: "MxRecEmbedMany and the concatenation of the embeddings along their last dimension, \
              in the order of the members, in one.",
        inputs: &[HANDLES, VARIABLES, FOUND_OFFSETS, FOUND_INVERSE],
        outputs: &[Arg {
            name: "embedding",
            dtype: "float",
            shape: "(t..., width)",
            doc: "A row for each id: those of all members, side by side; zeros for -1.",
        }],
        attrs: &[MEMBERS],
        errors: "`INVALID_ARGUMENT` for an offset that is no row in use, for a place outside of \
                 offsets, and for members of different shapes.",
        stateful: true,
        differentiable: true,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let found = Found::of(&Lists { context, members })?;
        let first = found
            .inverses
            .first()
            .ok_or_else(|| Error::invalid("a group must have members"))?;
        for (table, inverse) in found.tables.iter().zip(&found.inverses) {
            if inverse.dims() != first.dims() {
                return Err(Error::invalid("the ids of all members must have one shape")
                    .with("table", &table.config().name)
                    .with("shape", format_args!("{:?}", inverse.dims()))
                    .with("first", format_args!("{:?}", first.dims())));
            }
        }
        let width = found.tables.iter().map(|table| table.dim()).sum();
        let mut output = context.allocate::<f32>(&with_last(first, width))?;
        Table::embed_side_by_side(pool()?, &found.group()?, output.values())?;
        context.set(0, output)
    }
}

/// The shape of an input with one dimension behind it.
fn with_last(input: &Input, last: usize) -> Vec<i64> {
    let mut dims = input.dims();
    dims.push(last as i64);
    dims
}

pub(super) const ABSENTS: Arg = Arg {
    name: "absent",
    dtype: "N * float",
    shape: "N times (k, dim)",
    doc: "For each member what keys without a row get, as in MxRecFind.",
};

/// Rows of keys of many tables, read only.
pub(crate) struct FindMany {
    members: usize,
}

impl OpKernel for FindMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecFindMany",
        doc: "MxRecFind in many tables at once.",
        inputs: &[HANDLES, VARIABLES, MANY_IDS, ABSENTS],
        outputs: &[Arg {
            name: "embeddings",
            dtype: "N * float",
            shape: "N times (s..., dim)",
            doc: "For each member the rows.",
        }],
        attrs: &[MEMBERS, KEY_TYPE],
        errors: "`INVALID_ARGUMENT` for another k.",
        stateful: true,
        differentiable: false,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let asked = Asked::of(&lists, 3)?;
        let group = asked.group()?;
        let all = asked.tables.iter().zip(&asked.ids);
        let mut outputs = all
            .map(|(table, input)| context.allocate::<f32>(&with_last(input, table.dim())))
            .collect::<Result<Vec<_>>>()?;
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::find_many(pool()?, &group, outs)?;
        context.set_all(outputs)
    }
}
