//! Momentum, with Nesterov's variant, of TensorFlow's optimizer and of Keras'.

use super::by_column::ByColumn;
use super::description::{exactly, Number, Optimizer, OtherRows, Slot, FINITE, LR};
use super::row::Rule;
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

const KERAS_SLOTS: &[Slot] = &[Slot::zeros("KerasMomentum_momentum")];

pub(super) static KERAS_MOMENTUM: Optimizer = Optimizer {
    name: "keras_momentum",
    doc: "As tf.keras.optimizers.SGD with a momentum: a = a * momentum - lr * g; w += a.",
    numbers: NUMBERS,
    slots: KERAS_SLOTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(KerasMomentum::new(exactly(numbers)?, false)?)),
};

pub(super) static KERAS_NESTEROV: Optimizer = Optimizer {
    name: "keras_nesterov",
    doc: "As tf.keras.optimizers.SGD with nesterov: a = a * momentum - lr * g; w += momentum * a \
          - lr * g.",
    numbers: NUMBERS,
    slots: KERAS_SLOTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(KerasMomentum::new(exactly(numbers)?, true)?)),
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

/// `a = a * momentum - lr * g; w += a`, with Nesterov `w += a * momentum - lr * g`: not
/// [`Momentum`] where the learning rate changes. Slot `KerasMomentum_momentum` holds `a`.
pub(super) type KerasMomentum = ByColumn<KerasStep, 1>;

impl KerasMomentum {
    /// A step with the numbers of [`KERAS_MOMENTUM`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 2], nesterov: bool) -> Result<KerasMomentum> {
        let form = if nesterov {
            &KERAS_NESTEROV
        } else {
            &KERAS_MOMENTUM
        };
        form.check(&numbers)?;
        let [lr, momentum] = numbers;
        let rule = KerasStep(Step {
            lr,
            momentum,
            nesterov,
        });
        Ok(KerasMomentum::of(form, rule))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KerasStep(Step);

impl Rule<1> for KerasStep {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let Step { lr, momentum, .. } = self.0;
        let accum = accum * momentum - grad * lr;
        let change = if self.0.nesterov {
            accum * momentum - grad * lr
        } else {
            accum
        };
        (weight + change, [accum])
    }
}
