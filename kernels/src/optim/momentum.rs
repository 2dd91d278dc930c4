//! Momentum, with Nesterov's variant.

use super::description::{exactly, Number, Optimizer, OtherRows, Slot, FINITE, LR};
use super::row::{ByColumn, Rule};
use crate::Result;

const NUMBERS: &[Number] = &[LR, Number::new("momentum", FINITE, "Decay of the slot.")];
const SLOTS: &[Slot] = &[Slot::zeros("Momentum_momentum")];

pub(super) static MOMENTUM: Optimizer = Optimizer {
    name: "momentum",
    doc: "As tf.train.MomentumOptimizer: a = a * momentum + g; w -= lr * a.",
    numbers: NUMBERS,
    slots: SLOTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, momentum] = exactly(numbers)?;
        Ok(Box::new(Momentum::new(lr, momentum, false)?))
    },
};

pub(super) static NESTEROV: Optimizer = Optimizer {
    name: "nesterov",
    doc: "As tf.train.MomentumOptimizer with Nesterov: a = a * momentum + g; w -= lr * (g + \
          momentum * a).",
    numbers: NUMBERS,
    slots: SLOTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, momentum] = exactly(numbers)?;
        Ok(Box::new(Momentum::new(lr, momentum, true)?))
    },
};

/// `a = a * momentum + g; w -= lr * a`, with Nesterov `w -= lr * g + lr * momentum * a`. Slot
/// `Momentum_momentum` holds `a`.
pub type Momentum = ByColumn<Step, 1>;

impl Momentum {
    /// A step with learning rate `lr`.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is not finite or `lr` is negative.
    pub fn new(lr: f32, momentum: f32, nesterov: bool) -> Result<Momentum> {
        let form = if nesterov { &NESTEROV } else { &MOMENTUM };
        form.check(&[lr, momentum])?;
        let rule = Step {
            lr,
            momentum,
            nesterov,
        };
        Ok(Momentum::of(form, rule))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    lr: f32,
    momentum: f32,
    nesterov: bool,
}

impl Rule<1> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let Step { lr, momentum, .. } = self;
        let accum = accum * momentum + grad;
        let change = if self.nesterov {
            grad * lr + accum * momentum * lr
        } else {
            lr * accum
        };
        (weight - change, [accum])
    }
}
