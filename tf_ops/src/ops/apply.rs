//! One step of an optimizer: `MxRecApply<Optimizer>` by offset, `MxRecApply<Optimizer>ByRestore` by
//! offset with gradients that are not yet summed, `MxRecApply<Optimizer>Pooled` with those of bags
//! among them, `MxRecApply<Optimizer>ByIds` by key.

use super::pooled::BagInputs;
use super::support::{
    ends_of_sums, expect_last, expect_rank, expect_row_each, ids, on, sums, table, HANDLE, HANDLES,
    IDS, KEY_TYPE, MEMBERS,
};
use crate::op_def::{Arg, Attr, OpDef};
use crate::tf::{Construction, Context, Input, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{self as kernels, Error, LookupGradients, Result, RowOptimizer, Target};

/// What the ops of an optimizer share: their definitions, and the optimizer of one step.
pub(crate) trait Optimizer: Send + Sync + 'static {
    /// Definition of the op by offset.
    const BY_OFFSET: &'static OpDef;
    /// Definition of the op by offset with gradients of ids.
    const BY_RESTORE: &'static OpDef;
    /// Definition of the op by offset with gradients of ids and of bags.
    const POOLED: &'static OpDef;
    /// Definition of the op by key.
    const BY_ID: &'static OpDef;
    /// Definition of the op by offset of many tables.
    const MANY: &'static OpDef;
    /// Definition of the op by offset of many tables with gradients of ids.
    const MANY_BY_RESTORE: &'static OpDef;
    /// Definition of the op by offset of many tables with gradients of ids and of bags.
    const MANY_POOLED: &'static OpDef;

    /// Reads the node's attributes.
    fn read(construction: &Construction) -> Result<Self>
    where
        Self: Sized;

    /// The optimizer for one step; `hyper` gives the scalars after the gradient, in order.
    fn step(&self, hyper: &Hyper<'_>) -> Result<Box<dyn RowOptimizer>>;
}

/// The scalars of one run.
pub(crate) enum Hyper<'a> {
    /// Inputs of the op; `first` is the number of the first of them among all tensors, and among
    /// the inputs of the definition.
    Inputs {
        context: &'a Context,
        first: (usize, usize),
    },
    /// Values.
    Values(&'a [f32]),
}

impl<'a> Hyper<'a> {
    /// Those that begin with tensor number `tensor`, which is input number `arg` of the definition.
    pub(super) fn new(context: &'a Context, tensor: usize, arg: usize) -> Self {
        let first = (tensor, arg);
        Self::Inputs { context, first }
    }

    /// Scalar number `at` after the gradient.
    fn get(&self, at: usize) -> Result<f32> {
        match self {
            Hyper::Inputs { context, first } => {
                context.tensor(first.0 + at, first.1 + at)?.scalar::<f32>()
            }
            Hyper::Values(values) => values.get(at).copied().ok_or_else(|| {
                Error::invalid("hyper has too few numbers for the optimizer")
                    .with("hyper", values.len())
            }),
        }
    }
}

/// The op that takes offsets.
pub(crate) struct ByOffset<O>(O);

/// The op that takes offsets and the gradients of all ids, of one lookup or of several.
pub(crate) struct ByRestore<O> {
    optimizer: O,
    lookups: usize,
}

/// The op that takes offsets and the gradients of all ids or bags, of one lookup or of several.
pub(crate) struct Pooled<O>(ByRestore<O>);

/// The op that takes keys.
pub(crate) struct ById<O>(O);

impl<O: Optimizer> OpKernel for ByOffset<O> {
    const DEF: &'static OpDef = O::BY_OFFSET;

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self(O::read(construction)?))
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, offsets, grad) = (table(context)?, context.input(1)?, context.input(2)?);
        on(&table, || {
            expect_rank(&offsets, 1)?;
            expect_rank(&grad, 2)?;
            expect_last(&grad, table.dim())?;
            let optimizer = self.0.step(&Hyper::new(context, 3, 3))?;
            let target = Target::Offsets(offsets.values::<i64>()?);
            let updated =
                table.apply(pool()?, target, grad.values::<f32>()?, optimizer.as_ref())?;
            context.set_scalar(0, updated as i64)
        })
    }
}

impl<O: Optimizer> OpKernel for ByRestore<O> {
    const DEF: &'static OpDef = O::BY_RESTORE;

    fn create(construction: &Construction) -> Result<Self> {
        let lookups = usize::try_from(construction.int("N")?)
            .map_err(|_| Error::invalid("N must not be negative"))?;
        let optimizer = O::read(construction)?;
        Ok(Self { optimizer, lookups })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let table = table(context)?;
        let list = |arg| list(context, arg, self.lookups);
        let (offsets, inverse, grad) = (list(1)?, list(2)?, list(3)?);
        let of_sums = grad.iter().zip(&inverse);
        let ends: Vec<_> = of_sums
            .map(|(grad, inverse)| ends_of_sums(grad, inverse))
            .collect();
        on(&table, || {
            let mut lookups = Vec::with_capacity(self.lookups);
            let lists = offsets.iter().zip(&inverse).zip(&grad).zip(&ends);
            for (((offsets, inverse), grad), ends) in lists {
                expect_rank(offsets, 1)?;
                match ends {
                    Some(_) => expect_last(grad, table.dim())?,
                    None => expect_row_each(grad, inverse, table.dim())?,
                }
                lookups.push(LookupGradients {
                    offsets: offsets.values::<i64>()?,
                    inverse: inverse.values::<i32>()?,
                    grads: grad.values::<f32>()?,
                    bags: sums(ends),
                });
            }
            let optimizer = self
                .optimizer
                .step(&Hyper::new(context, 1 + 3 * self.lookups, 4))?;
            let updated = table.apply_lookups(pool()?, &lookups, optimizer.as_ref())?;
            context.set_scalar(0, updated as i64)
        })
    }
}

impl<O: Optimizer> OpKernel for Pooled<O> {
    const DEF: &'static OpDef = O::POOLED;

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self(ByRestore::create(construction)?))
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let Self(ByRestore { optimizer, lookups }) = self;
        let table = table(context)?;
        let list = |arg| list(context, arg, *lookups);
        let (offsets, inverse, grad) = (list(1)?, list(2)?, list(3)?);
        let described = list(4)?.into_iter().zip(list(5)?).zip(list(6)?);
        let bags: Vec<BagInputs> = described
            .map(|((ends, weights), divisors)| BagInputs::new(ends, Some(weights), Some(divisors)))
            .collect();
        on(&table, || {
            let mut given = Vec::with_capacity(*lookups);
            let lists = offsets.iter().zip(&inverse).zip(&grad).zip(&bags);
            for (((offsets, inverse), grad), bags) in lists {
                given.push(of_lookup(table.dim(), offsets, inverse, grad, bags)?);
            }
            let optimizer = optimizer.step(&Hyper::new(context, 1 + 6 * lookups, 7))?;
            let updated = table.apply_lookups(pool()?, &given, optimizer.as_ref())?;
            context.set_scalar(0, updated as i64)
        })
    }
}

/// The gradients of a lookup that may be pooled.
pub(super) fn of_lookup<'a>(
    dim: usize,
    offsets: &'a Input,
    inverse: &'a Input,
    grad: &'a Input,
    bags: &'a BagInputs,
) -> Result<LookupGradients<'a>> {
    expect_rank(offsets, 1)?;
    expect_last(grad, dim)?;
    let is_pooled = !bags.is_empty();
    if is_pooled {
        bags.expect_each(grad)?;
    } else if !inverse.values::<i32>()?.is_empty() {
        expect_row_each(grad, inverse, dim)?;
    }
    Ok(LookupGradients {
        offsets: offsets.values::<i64>()?,
        inverse: inverse.values::<i32>()?,
        grads: grad.values::<f32>()?,
        bags: is_pooled.then(|| bags.bags()).transpose()?,
    })
}

impl<O: Optimizer> OpKernel for ById<O> {
    const DEF: &'static OpDef = O::BY_ID;

    fn create(construction: &Construction) -> Result<Self> {
        Ok(Self(O::read(construction)?))
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (table, input, grad) = (table(context)?, context.input(1)?, context.input(2)?);
        on(&table, || {
            expect_row_each(&grad, &input, table.dim())?;
            let optimizer = self.0.step(&Hyper::new(context, 3, 3))?;
            let target = Target::Ids(ids(&input)?);
            let updated =
                table.apply(pool()?, target, grad.values::<f32>()?, optimizer.as_ref())?;
            context.set_scalar(0, updated as i64)
        })
    }
}

/// The tensors of input `arg`, a list: the handle comes first, then lists of `lookups` tensors.
fn list(context: &Context, arg: usize, lookups: usize) -> Result<Vec<Input>> {
    let start = 1 + (arg - 1) * lookups;
    (start..start + lookups)
        .map(|at| context.tensor(at, arg))
        .collect()
}

const fn scalar(name: &'static str, doc: &'static str) -> Arg {
    Arg {
        name,
        dtype: "float",
        shape: "()",
        doc,
    }
}

const OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "int64",
    shape: "(m)",
    doc: "Rows to update; they may repeat, -1 is skipped.",
};
const GRAD: Arg = Arg {
    name: "grad",
    dtype: "float",
    shape: "(m, dim)",
    doc: "Gradients of the rows.",
};
const ID_GRAD: Arg = Arg {
    name: "grad",
    dtype: "float",
    shape: "(s..., dim)",
    doc: "Gradients of the ids.",
};
const LIST_OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "N * int64",
    shape: "N times (u)",
    doc: "For each lookup the rows of its distinct keys; they may repeat, -1 is skipped.",
};
const LIST_INVERSE: Arg = Arg {
    name: "inverse",
    dtype: "N * int32",
    shape: "N times (s...)",
    doc: "For each lookup and id its place in offsets; -1 is skipped.",
};
const LIST_GRAD: Arg = Arg {
    name: "grad",
    dtype: "N * float",
    shape: "N times (g..., dim)",
    doc: "For each lookup the gradient of its embeddings, or with one dimension less that of the \
          sums of its embeddings over the last dimension of the ids.",
};
const POOLED_INVERSE: Arg = Arg {
    shape: "N times (i...)",
    ..LIST_INVERSE
};
const POOLED_GRAD: Arg = Arg {
    shape: "N times (s..., dim)",
    doc: "For each lookup the gradient of its bags' vectors, or of its embeddings.",
    ..LIST_GRAD
};
const LIST_ENDS: Arg = Arg {
    name: "ends",
    dtype: "N * int64",
    shape: "N times (e...)",
    doc: "For each lookup where its bags end among the ids, as in MxRecEmbedPooled; none: the \
          lookup is not pooled.",
};
const LIST_WEIGHTS: Arg = Arg {
    name: "weights",
    dtype: "N * float",
    shape: "N times (w...)",
    doc: "For each lookup the weights of its ids, or none.",
};
const LIST_DIVISORS: Arg = Arg {
    name: "divisors",
    dtype: "N * float",
    shape: "N times (d...)",
    doc: "For each lookup the divisors of its bags, or none.",
};
const MANY_OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "N * int64",
    shape: "N times (m)",
    doc: "For each member the rows to update; they may repeat, -1 is skipped.",
};
const MANY_GRAD: Arg = Arg {
    name: "grad",
    dtype: "N * float",
    shape: "N times (m, dim)",
    doc: "For each member the gradients of the rows.",
};
const LOOKUP_OFFSETS: Arg = Arg {
    name: "offsets",
    dtype: "N * int64",
    shape: "N times (u)",
    doc: "For each member, a lookup, the rows of its distinct keys; they may repeat, -1 is \
          skipped.",
};
const LOOKUP_INVERSE: Arg = Arg {
    name: "inverse",
    dtype: "N * int32",
    shape: "N times (s...)",
    doc: "For each member and id its place in offsets; -1 is skipped.",
};
const LOOKUP_GRAD: Arg = Arg {
    name: "grad",
    dtype: "N * float",
    shape: "N times (g..., width)",
    doc: "For each member the gradient of its embeddings, or of a concatenation that they are \
          columns of; or with one dimension less that of the sums of its embeddings over the last \
          dimension of the ids, which has no other columns.",
};
const MANY_POOLED_INVERSE: Arg = Arg {
    shape: "N times (i...)",
    ..LOOKUP_INVERSE
};
const MANY_POOLED_GRAD: Arg = Arg {
    shape: "N times (s..., width)",
    doc: "For each member the gradient of its bags' vectors, or of its embeddings, or of a \
          concatenation that they are columns of.",
    ..LOOKUP_GRAD
};
const COLUMNS: Arg = Arg {
    name: "columns",
    dtype: "int32",
    shape: "(members)",
    doc: "For each member the first column of grad that is its own; -1: all are.",
};

const LOOKUPS: Attr = Attr {
    spec: "N: int >= 1",
    doc: "Lookups of the table.",
};
const UPDATED: Arg = Arg {
    name: "updated",
    dtype: "int64",
    shape: "()",
    doc: "Distinct rows that were updated; rows of padding_keys are not.",
};
const LR: Arg = scalar("lr", "Learning rate.");
const ERRORS: &str = "`INVALID_ARGUMENT` for an offset that is no row in use, and for a scalar \
                      that is not finite or out of its range.";
const INVERSE_ERRORS: &str = "`INVALID_ARGUMENT` for an offset that is no row in use, for a place \
                              outside of offsets, and for a scalar that is not finite or out of \
                              its range.";
const POOLED_ERRORS: &str = "`INVALID_ARGUMENT` for an offset that is no row in use, for a place \
                             outside of offsets, for ends, weights and divisors that \
                             MxRecEmbedPooled would refuse, and for a scalar that is not finite or \
                             out of its range.";
const ID_ERRORS: &str = "`RESOURCE_EXHAUSTED` if new rows would exceed the table's capacity, \
                         `INVALID_ARGUMENT` for a scalar that is not finite or out of its range.";

/// The definitions of an optimizer's ops, which differ in their first inputs only.
macro_rules! definitions {
    ($name:literal, $doc:literal, [$($hyper:expr),*], [$($attr:expr),*]) => {
        const BY_OFFSET: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name),
            doc: concat!($doc, " Gradients of the same row are summed in the order in which they \
                                occur, then the row is updated once."),
            inputs: &[HANDLE, OFFSETS, GRAD, $($hyper),*],
            outputs: &[UPDATED],
            attrs: &[$($attr),*],
            errors: ERRORS,
            stateful: true,
            differentiable: false,
        };
        const BY_RESTORE: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name, "ByRestore"),
            doc: concat!(
                "MxRecReduce of each lookup and MxRecApply", $name, " of all in one: the same bits \
                                                                     without the tensors between. \
                                                                     The gradients of a row are \
                                                                     summed within each lookup, \
                                                                     then over the lookups in \
                                                                     order."
            ),
            inputs: &[HANDLE, LIST_OFFSETS, LIST_INVERSE, LIST_GRAD, $($hyper),*],
            outputs: &[UPDATED],
            attrs: &[LOOKUPS, $($attr),*],
            errors: INVERSE_ERRORS,
            stateful: true,
            differentiable: false,
        };
        const POOLED: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name, "Pooled"),
            doc: concat!(
                "As MxRecApply", $name, "ByRestore, with pooled lookups among the others: \
                                         MxRecReducePooled of these in the same op, the same bits."
            ),
            inputs: &[
                HANDLE,
                LIST_OFFSETS,
                POOLED_INVERSE,
                POOLED_GRAD,
                LIST_ENDS,
                LIST_WEIGHTS,
                LIST_DIVISORS,
                $($hyper),*
            ],
            outputs: &[UPDATED],
            attrs: &[LOOKUPS, $($attr),*],
            errors: POOLED_ERRORS,
            stateful: true,
            differentiable: false,
        };
        const BY_ID: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name, "ByIds"),
            doc: concat!("As MxRecApply", $name, ", with keys in place of offsets: unknown keys \
                                                  get rows first, padding is skipped."),
            inputs: &[HANDLE, IDS, ID_GRAD, $($hyper),*],
            outputs: &[UPDATED],
            attrs: &[KEY_TYPE, $($attr),*],
            errors: ID_ERRORS,
            stateful: true,
            differentiable: false,
        };
        const MANY: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name, "Many"),
            doc: concat!(
                "MxRecApply", $name, " in many tables at once: the same bits in each. Members of \
                                      one table count as one batch, in their order. If one \
                                      member fails, no row of any table changes."
            ),
            inputs: &[HANDLES, MANY_OFFSETS, MANY_GRAD, $($hyper),*],
            outputs: &[UPDATED],
            attrs: &[MEMBERS, $($attr),*],
            errors: ERRORS,
            stateful: true,
            differentiable: false,
        };
        const MANY_BY_RESTORE: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name, "ManyByRestore"),
            doc: concat!(
                "MxRecApply", $name, "ByRestore in many tables at once: the same bits in each. \
                                      Members of one table are its lookups, in their order. If \
                                      one member fails, no row of any table changes."
            ),
            inputs: &[
                HANDLES,
                LOOKUP_OFFSETS,
                LOOKUP_INVERSE,
                LOOKUP_GRAD,
                COLUMNS,
                $($hyper),*
            ],
            outputs: &[UPDATED],
            attrs: &[MEMBERS, $($attr),*],
            errors: INVERSE_ERRORS,
            stateful: true,
            differentiable: false,
        };
        const MANY_POOLED: &'static OpDef = &OpDef {
            name: concat!("MxRecApply", $name, "ManyPooled"),
            doc: concat!(
                "MxRecApply", $name, "Pooled in many tables at once: the same bits in each. \
                                      Members of one table are its lookups, in their order. If \
                                      one member fails, no row of any table changes."
            ),
            inputs: &[
                HANDLES,
                LOOKUP_OFFSETS,
                MANY_POOLED_INVERSE,
                MANY_POOLED_GRAD,
                LIST_ENDS,
                LIST_WEIGHTS,
                LIST_DIVISORS,
                COLUMNS,
                $($hyper),*
            ],
            outputs: &[UPDATED],
            attrs: &[MEMBERS, $($attr),*],
            errors: POOLED_ERRORS,
            stateful: true,
            differentiable: false,
        };
    };
}

/// Gradient descent.
pub(crate) struct Sgd;

impl Optimizer for Sgd {
    definitions!(
        "Sgd",
        "Gradient descent: w -= lr * (g + weight_decay * w).",
        [LR, scalar("weight_decay", "0: none.")],
        []
    );

    fn read(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn step(&self, hyper: &Hyper<'_>) -> Result<Box<dyn RowOptimizer>> {
        Ok(Box::new(kernels::Sgd::new(hyper.get(0)?, hyper.get(1)?)?))
    }
}

/// Momentum.
pub(crate) struct Momentum {
    nesterov: bool,
}

impl Optimizer for Momentum {
    definitions!(
        "Momentum",
        "Momentum as tf.train.MomentumOptimizer: a = a * momentum + g; w -= lr * a, or with \
         Nesterov w -= lr * (g + momentum * a). Slot Momentum_momentum.",
        [LR, scalar("momentum", "Decay of the slot.")],
        [Attr {
            spec: "nesterov: int = 0",
            doc: "1: Nesterov's form."
        }]
    );

    fn read(construction: &Construction) -> Result<Self> {
        match construction.int("nesterov")? {
            0 => Ok(Self { nesterov: false }),
            1 => Ok(Self { nesterov: true }),
            other => Err(Error::invalid("nesterov must be 0 or 1").with("nesterov", other)),
        }
    }

    fn step(&self, hyper: &Hyper<'_>) -> Result<Box<dyn RowOptimizer>> {
        Ok(Box::new(kernels::Momentum::new(
            hyper.get(0)?,
            hyper.get(1)?,
            self.nesterov,
        )?))
    }
}

/// Adagrad.
pub(crate) struct Adagrad;

impl Optimizer for Adagrad {
    definitions!(
        "Adagrad",
        "Adagrad as tf.train.AdagradOptimizer: a += g^2; w -= lr * g / sqrt(a). Slot \
         Adagrad_accumulator.",
        [
            LR,
            scalar("initial_accumulator", "What a starts at; above 0.")
        ],
        []
    );

    fn read(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn step(&self, hyper: &Hyper<'_>) -> Result<Box<dyn RowOptimizer>> {
        Ok(Box::new(kernels::Adagrad::new(
            hyper.get(0)?,
            hyper.get(1)?,
        )?))
    }
}

/// Adam for the rows of a batch.
pub(crate) struct LazyAdam;

impl Optimizer for LazyAdam {
    definitions!(
        "LazyAdam",
        "Adam for the rows of the batch, as tf.contrib.opt.LazyAdamOptimizer: m = beta1 * m + (1 - \
         beta1) * g; v = beta2 * v + (1 - beta2) * g^2; w -= lr * sqrt(1 - beta2_power) / (1 - \
         beta1_power) * m / (sqrt(v) + epsilon). Slots LazyAdam_momentum, LazyAdam_velocity.",
        [
            LR,
            scalar("beta1_power", "beta1 to the power of the step, which counts from 1."),
            scalar("beta2_power", "beta2 to the power of the step."),
            scalar("beta1", "Decay of m."),
            scalar("beta2", "Decay of v."),
            scalar("epsilon", "Keeps the quotient finite.")
        ],
        []
    );

    fn read(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn step(&self, hyper: &Hyper<'_>) -> Result<Box<dyn RowOptimizer>> {
        let (lr, beta1_power, beta2_power) = (hyper.get(0)?, hyper.get(1)?, hyper.get(2)?);
        let (beta1, beta2, epsilon) = (hyper.get(3)?, hyper.get(4)?, hyper.get(5)?);
        let step = kernels::LazyAdam::new(lr, beta1, beta2, epsilon, beta1_power, beta2_power)?;
        Ok(Box::new(step))
    }
}

/// Follow the regularized leader.
pub(crate) struct Ftrl;

impl Optimizer for Ftrl {
    definitions!(
        "Ftrl",
        "FTRL as tf.train.FtrlOptimizer. Slots Ftrl_accum, Ftrl_linear.",
        [
            LR,
            scalar(
                "lr_power",
                "Power of the accumulator, at most 0; -0.5 is the usual one."
            ),
            scalar("initial_accumulator", "What the accumulator starts at."),
            scalar("l1", "L1 regularization."),
            scalar("l2", "L2 regularization."),
            scalar("l2_shrinkage", "L2 penalty on the weights in the gradient.")
        ],
        []
    );

    fn read(_: &Construction) -> Result<Self> {
        Ok(Self)
    }

    fn step(&self, hyper: &Hyper<'_>) -> Result<Box<dyn RowOptimizer>> {
        let (lr, lr_power, initial) = (hyper.get(0)?, hyper.get(1)?, hyper.get(2)?);
        let (l1, l2, l2_shrinkage) = (hyper.get(3)?, hyper.get(4)?, hyper.get(5)?);
        Ok(Box::new(kernels::Ftrl::new(
            lr,
            lr_power,
            initial,
            l1,
            l2,
            l2_shrinkage,
        )?))
    }
}
