//! RMSProp with momentum, also in the centered form.

use super::description::{
    exactly, Number, Optimizer, OtherRows, Slot, FINITE, FRACTION, LR, NOT_NEGATIVE,
};
use super::row::{update, RowOptimizer, Rule, SlotSpec};
use crate::simd::Level;
use crate::Result;

const NUMBERS: &[Number] = &[
    LR,
    Number::new("decay", FRACTION, "Decay of the averages."),
    Number::new("momentum", FINITE, "Decay of a."),
    Number::new("epsilon", NOT_NEGATIVE, "Keeps the quotient finite."),
    Number::new("initial_rms", NOT_NEGATIVE, "What s starts at."),
];
const RMS: Slot = Slot::at("RMSProp_rms", "initial_rms", 1.0);
const MOMENTUM: Slot = Slot::zeros("RMSProp_momentum");

pub(super) static RMSPROP: Optimizer = Optimizer {
    name: "rmsprop",
    doc:
        "As tf.train.RMSPropOptimizer: s = decay * s + (1 - decay) * g^2; a = momentum * a + lr * \
          g / sqrt(s + epsilon); w -= a.",
    numbers: NUMBERS,
    slots: &[RMS, MOMENTUM],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(RmsProp::new(exactly(numbers)?, false)?)),
};

pub(super) static CENTERED_RMSPROP: Optimizer = Optimizer {
    name: "centered_rmsprop",
    doc:
        "As tf.train.RMSPropOptimizer with centered: s = decay * s + (1 - decay) * g^2; c = decay \
          * c + (1 - decay) * g; a = momentum * a + lr * g / sqrt(s - c^2 + epsilon); w -= a.",
    numbers: NUMBERS,
    slots: &[RMS, Slot::zeros("RMSProp_mg"), MOMENTUM],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(RmsProp::new(exactly(numbers)?, true)?)),
};

/// `s = decay s + (1 - decay) g^2; a = momentum a + lr g / sqrt(s + epsilon); w -= a`; centered,
/// with `c = decay c + (1 - decay) g` and `s - c^2 + epsilon` under the root.
///
/// Slots: `RMSProp_rms` holds `s`, `RMSProp_mg` holds `c` and `RMSProp_momentum` holds `a`. Where
/// rounding makes what is under the root negative, the row becomes not-a-number, as in TensorFlow.
#[derive(Clone, Copy, Debug)]
pub(super) struct RmsProp {
    rule: Step,
    centered: bool,
    initial_rms: f32,
    level: Level,
}

impl RmsProp {
    /// A step with the numbers of [`RMSPROP`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 5], centered: bool) -> Result<RmsProp> {
        RmsProp::optimizer(centered).check(&numbers)?;
        let [lr, decay, momentum, epsilon, initial_rms] = numbers;
        let rule = Step {
            lr,
            decay,
            rest: 1.0 - decay,
            momentum,
            epsilon,
        };
        Ok(RmsProp {
            rule,
            centered,
            initial_rms,
            level: Level::detect(),
        })
    }

    fn optimizer(centered: bool) -> &'static Optimizer {
        if centered {
            &CENTERED_RMSPROP
        } else {
            &RMSPROP
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    lr: f32,
    decay: f32,
    rest: f32,
    momentum: f32,
    epsilon: f32,
}

impl Step {
    /// The new average of squares.
    #[inline(always)]
    fn squares(self, rms: f32, grad: f32) -> f32 {
        rms * self.decay + grad * grad * self.rest
    }

    /// What is subtracted from the weight; `below` stands under the root.
    #[inline(always)]
    fn moved(self, moved: f32, below: f32, grad: f32) -> f32 {
        moved * self.momentum + 1.0 / below.sqrt() * self.lr * grad
    }
}

impl Rule<2> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [rms, moved]: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let rms = self.squares(rms, grad);
        let moved = self.moved(moved, rms + self.epsilon, grad);
        (weight - moved, [rms, moved])
    }
}

#[derive(Clone, Copy)]
struct Centered(Step);

impl Rule<3> for Centered {
    #[inline(always)]
    fn step(self, weight: f32, [rms, mean, moved]: [f32; 3], grad: f32) -> (f32, [f32; 3]) {
        let Centered(step) = self;
        let rms = step.squares(rms, grad);
        let mean = mean * step.decay + grad * step.rest;
        let moved = step.moved(moved, rms + step.epsilon - mean * mean, grad);
        (weight - moved, [rms, mean, moved])
    }
}

impl RowOptimizer for RmsProp {
    fn slots(&self) -> Vec<SlotSpec> {
        RmsProp::optimizer(self.centered).slots_from(self.initial_rms)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        if self.centered {
            update(self.level, Centered(self.rule), row, slots, grad);
        } else {
            update(self.level, self.rule, row, slots, grad);
        }
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for RmsProp {
    fn at(self, level: Level) -> RmsProp {
        RmsProp { level, ..self }
    }
}
