//! RMSProp with momentum, also in the centered form.

use super::description::{
    exactly, Number, Optimizer, OtherRows, Slot, FINITE, FRACTION, LR, NOT_NEGATIVE,
};
use super::row::{ByColumn, Rule};
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
    make: |numbers| Ok(Box::new(RmsProp::new(exactly(numbers)?)?)),
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
    make: |numbers| Ok(Box::new(Centered::new(exactly(numbers)?)?)),
};

/// `s = decay s + (1 - decay) g^2; a = momentum a + lr g / sqrt(s + epsilon); w -= a`; centered,
/// with `c = decay c + (1 - decay) g` and `s - c^2 + epsilon` under the root.
///
/// Slots: `RMSProp_rms` holds `s`, `RMSProp_mg` holds `c` and `RMSProp_momentum` holds `a`. Where
/// rounding makes what is under the root negative, the row becomes not-a-number, as in TensorFlow.
pub(super) type RmsProp = ByColumn<Step, 2>;

impl RmsProp {
    /// A step with the numbers of [`RMSPROP`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 5]) -> Result<RmsProp> {
        RMSPROP.check(&numbers)?;
        Ok(RmsProp::of(&RMSPROP, Step::new(numbers)).starting(numbers[4]))
    }
}

/// [`RmsProp`] in the centered form.
pub(super) type Centered = ByColumn<CenteredStep, 3>;

impl Centered {
    /// A step with the numbers of [`CENTERED_RMSPROP`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 5]) -> Result<Centered> {
        CENTERED_RMSPROP.check(&numbers)?;
        let rule = CenteredStep(Step::new(numbers));
        Ok(Centered::of(&CENTERED_RMSPROP, rule).starting(numbers[4]))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    lr: f32,
    decay: f32,
    rest: f32,
    momentum: f32,
    epsilon: f32,
}

impl Step {
    fn new([lr, decay, momentum, epsilon, _]: [f32; 5]) -> Step {
        Step {
            lr,
            decay,
            rest: 1.0 - decay,
            momentum,
            epsilon,
        }
    }

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

#[derive(Clone, Copy, Debug)]
pub(super) struct CenteredStep(Step);

impl Rule<3> for CenteredStep {
    #[inline(always)]
    fn step(self, weight: f32, [rms, mean, moved]: [f32; 3], grad: f32) -> (f32, [f32; 3]) {
        let CenteredStep(step) = self;
        let rms = step.squares(rms, grad);
        let mean = mean * step.decay + grad * step.rest;
        let moved = step.moved(moved, rms + step.epsilon - mean * mean, grad);
        (weight - moved, [rms, mean, moved])
    }
}
