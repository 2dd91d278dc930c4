//! Reading rows by their keys, in one table or in many: `MxRecFind`.

use super::lists::{flag, length_of_each, members, on_only, Tensors};
use super::read::{
    of_each, Variables, BAGS, MANY_DIVISORS, MANY_ENDS, MANY_NORMS, MANY_WEIGHTS, NORMS, VARIABLES,
};
use super::resolve::MANY_IDS;
use super::support::{ids, on, rows_of_absent, HANDLES, KEY_TYPE, MEMBERS};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, OpKernel, Output};
use crate::threads::pool;
use mx_rec_kernels::{Absent, Error, KeysOf, Result, Table};

/// Rows of keys, read only.
pub(crate) struct Find {
    members: usize,
    /// How many members say what keys without a row get: none or all.
    absents: usize,
    /// How many members are pooled: none or all.
    bags: usize,
    /// How many norms there are: none, or one for each member.
    norms: usize,
    initial: bool,
    variables: Variables,
}

impl OpKernel for Find {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecFind",
        doc: "Looks keys up without making rows, in one table or in many: evaluation and \
              prediction. It gives a row for each id, or with `ends` a vector for each bag of ids, \
              as MxRecRead pools them.",
        inputs: &[
            HANDLES,
            VARIABLES,
            MANY_IDS,
            Arg {
                spec: "absent: A * float",
                shape: "A times (k, dim)",
                doc: "For each member what keys without a row get: k = 0 zeros, k = 1 this row, \
                      k = number of ids a row each. Padding always gets zeros.",
            },
            MANY_ENDS,
            MANY_WEIGHTS,
            MANY_DIVISORS,
            MANY_NORMS,
        ],
        outputs: &[Arg {
            spec: "rows: N * float",
            shape: "N times (e..., dim) if B or (s..., dim)",
            doc: "For each member its rows; zeros for padding.",
        }],
        attrs: &[
            MEMBERS,
            KEY_TYPE,
            Attr {
                spec: "A: int >= 0",
                doc: "0: keys without a row get what `initial` says. N: what `absent` says.",
            },
            BAGS,
            Attr {
                spec: "initial: int = 0",
                doc:
                    "0: keys without a row get zeros. 1: what their row would start with; A and B \
                      must be 0.",
            },
            NORMS,
        ],
        errors: "`INVALID_ARGUMENT` for another k, for ends that do not ascend from 0 to the \
                 number of ids, for weights that are not one for each id, for divisors that are \
                 not one for each bag, and for a norm that is not above 0 and finite.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let members = members(construction)?;
        let absents = length_of_each(construction, "A", members)?;
        let bags = length_of_each(construction, "B", members)?;
        let norms = length_of_each(construction, "L", bags)?;
        let initial = flag(construction, "initial")?;
        if initial && (absents > 0 || bags > 0) {
            return Err(Error::invalid("initial 1 needs A and B 0")
                .with("A", absents)
                .with("B", bags));
        }
        Ok(Self {
            members,
            absents,
            bags,
            norms,
            initial,
            variables: Variables::default(),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let mut inputs = Tensors::of(context);
        let tables = inputs.tables(self.members)?;
        self.variables.expect(&tables, &mut inputs)?;
        let asked = inputs.list(self.members)?;
        let absents = inputs.list(self.absents)?;
        let bags = inputs.bags(self.bags, self.norms)?;
        let mut group = Vec::with_capacity(self.members);
        for (at, (table, input)) in tables.iter().zip(&asked).enumerate() {
            let ids = ids(input)?;
            let absent = match absents.get(at) {
                Some(absent) => on(table, || rows_of_absent(absent, ids.len(), table.dim()))?,
                None if self.initial => Absent::Initial(table.config()),
                None => Absent::Zeros,
            };
            group.push(KeysOf {
                table,
                ids,
                absent,
                bags: None,
            });
        }
        on_only(&tables, || {
            for (keys, bags) in group.iter_mut().zip(&bags) {
                keys.bags = Some(bags.bags()?);
            }
            let mut outputs = of_each(context, &tables, &asked, &bags)?;
            let outs = outputs.iter_mut().map(Output::values).collect();
            Table::find_many(pool()?, &group, outs)?;
            context.set_all(0, outputs)
        })
    }
}
