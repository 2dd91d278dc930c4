//! Ops on pooled lookups of many tables at once: `MxRecEmbedPooledMany`, `MxRecFindPooledMany`.

use super::grouped::{Asked, Found, Lists, ABSENTS, FOUND_OFFSETS, VARIABLES};
use super::lists::members;
use super::pooled::BagInputs;
use super::resolve::MANY_IDS;
use super::support::{HANDLES, KEY_TYPE, MEMBERS};
use crate::op_def::{Arg, OpDef};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{BagsOf, KeyBagsOf, Result, Table};

const FOUND_INVERSE: Arg = Arg {
    name: "inverse",
    dtype: "N * int32",
    shape: "N times (i...)",
    doc: "For each member and id its place in offsets; -1: none.",
};
const MANY_BAG_IDS: Arg = Arg {
    shape: "N times (i...)",
    ..MANY_IDS
};
const MANY_ENDS: Arg = Arg {
    name: "ends",
    dtype: "N * int64",
    shape: "N times (s...)",
    doc: "For each member where its bags end among its ids, as in MxRecEmbedPooled.",
};
const MANY_WEIGHTS: Arg = Arg {
    name: "weights",
    dtype: "N * float",
    shape: "N times (w...)",
    doc: "For each member what the row of each of its ids is multiplied with; none: nothing.",
};
const MANY_DIVISORS: Arg = Arg {
    name: "divisors",
    dtype: "N * float",
    shape: "N times (d...)",
    doc: "For each member what the sum of each of its bags is divided by; none: nothing.",
};

const MANY_POOLED: Arg = Arg {
    name: "pooled",
    dtype: "N * float",
    shape: "N times (s..., dim)",
    doc: "For each member a vector for each of its bags.",
};

impl Lists<'_> {
    /// The bags of the members: ends, weights and divisors, the first of which is input `arg`.
    fn bags(&self, arg: usize) -> Result<Vec<BagInputs>> {
        let described = self.list(arg)?.into_iter().zip(self.list(arg + 1)?);
        let described = described.zip(self.list(arg + 2)?);
        let bags = described
            .map(|((ends, weights), divisors)| BagInputs::new(ends, Some(weights), Some(divisors)));
        Ok(bags.collect())
    }
}

/// Offsets to pooled rows, in many tables.
pub(crate) struct EmbedPooledMany {
    members: usize,
}

impl OpKernel for EmbedPooledMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecEmbedPooledMany",
        doc: "MxRecEmbedPooled in many tables at once.",
        inputs: &[
            HANDLES,
            VARIABLES,
            FOUND_OFFSETS,
            FOUND_INVERSE,
            MANY_ENDS,
            MANY_WEIGHTS,
            MANY_DIVISORS,
        ],
        outputs: &[MANY_POOLED],
        attrs: &[MEMBERS],
        errors: "those of MxRecEmbedPooled.",
        stateful: true,
        differentiable: true,
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        Ok(Self { members })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let members = self.members;
        let lists = Lists { context, members };
        let (found, given) = (Found::of(&lists)?, lists.bags(4)?);
        let all = found.tables.iter().zip(&given);
        let mut outputs = all
            .map(|(table, bags)| context.allocate::<f32>(&bags.shape(table.dim())))
            .collect::<Result<Vec<_>>>()?;
        let group = found.group()?.into_iter().zip(&given);
        let group = group
            .map(|(rows, bags)| {
                let bags = bags.bags()?;
                Ok(BagsOf { rows, bags })
            })
            .collect::<Result<Vec<_>>>()?;
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::embed_pooled_many(pool()?, &group, outs)?;
        context.set_all(outputs)
    }
}

/// Keys to pooled rows of many tables, read only.
pub(crate) struct FindPooledMany {
    members: usize,
}

impl OpKernel for FindPooledMany {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecFindPooledMany",
        doc: "MxRecFindPooled in many tables at once.",
        inputs: &[
            HANDLES,
            VARIABLES,
            MANY_BAG_IDS,
            MANY_ENDS,
            MANY_WEIGHTS,
            MANY_DIVISORS,
            ABSENTS,
        ],
        outputs: &[MANY_POOLED],
        attrs: &[MEMBERS, KEY_TYPE],
        errors: "those of MxRecFindPooled.",
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
        let (asked, given) = (Asked::of(&lists, 6)?, lists.bags(3)?);
        let group = asked.group()?.into_iter().zip(&given);
        let group = group
            .map(|(keys, bags)| {
                let bags = bags.bags()?;
                Ok(KeyBagsOf { keys, bags })
            })
            .collect::<Result<Vec<_>>>()?;
        let all = asked.tables.iter().zip(&given);
        let mut outputs = all
            .map(|(table, bags)| context.allocate::<f32>(&bags.shape(table.dim())))
            .collect::<Result<Vec<_>>>()?;
        let outs = outputs.iter_mut().map(|output| output.values()).collect();
        Table::find_pooled_many(pool()?, &group, outs)?;
        context.set_all(outputs)
    }
}
