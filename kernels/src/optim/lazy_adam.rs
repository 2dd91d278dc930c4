//! Adam whose moments move only in rows that have a gradient.

use super::by_column::ByColumn;
use super::description::{
    exactly, Number, Optimizer, OtherRows, Range, Slot, BELOW_ONE, FRACTION, LR, NOT_NEGATIVE,
};
use super::row::{Decay, Rule};
use crate::Result;

/// m and v. A checkpoint of either form of Adam goes on in the other.
pub(crate) const MOMENTS: &[Slot; 2] = &[
    Slot::zeros("LazyAdam_momentum"),
    Slot::zeros("LazyAdam_velocity"),
];

pub(super) static LAZY_ADAM: Optimizer = Optimizer {
    name: "lazy_adam",
    doc: "Adam for the rows of the batch, as tf.contrib.opt.LazyAdamOptimizer: m = beta1 * m + (1 \
          - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; w -= lr * sqrt(1 - beta2_power) / (1 - \
          beta1_power) * m / (sqrt(v) + epsilon).",
    numbers: &numbers(NOT_NEGATIVE),
    slots: MOMENTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(LazyAdam::made(exactly(numbers)?)?)),
};

/// The numbers of both forms of Adam.
pub(super) const fn numbers(epsilon: Range) -> [Number; 6] {
    [
        LR,
        Number::new(
            "beta1_power",
            BELOW_ONE,
            "beta1 to the power of the step, which counts from 1.",
        ),
        Number::new("beta2_power", FRACTION, "beta2 to the power of the step."),
        Number::new("beta1", FRACTION, "Decay of m."),
        Number::new("beta2", FRACTION, "Decay of v."),
        Number::new("epsilon", epsilon, "Keeps the quotient finite."),
    ]
}

/// `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -= lr_t m / (sqrt(|v|) +
/// epsilon)` with `lr_t = lr sqrt(1 - beta2^t) / (1 - beta1^t)`. Slots `LazyAdam_momentum` (m) and
/// `LazyAdam_velocity` (v) start at 0.
pub type LazyAdam = ByColumn<Step, 2>;

impl LazyAdam {
    /// Step `t` of the optimizer: `beta1_power` and `beta2_power` are the betas to the power of
    /// `t`, `t` counting from 1.
    ///
    /// # Errors
    /// `InvalidArgument` if `lr` or `epsilon` is negative or not finite, a beta or `beta2_power`
    /// lies outside [0, 1], or `beta1_power` outside [0, 1).
    pub fn new(
        lr: f32,
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        beta1_power: f32,
        beta2_power: f32,
    ) -> Result<LazyAdam> {
        LazyAdam::made([lr, beta1_power, beta2_power, beta1, beta2, epsilon])
    }

    fn made(numbers: [f32; 6]) -> Result<LazyAdam> {
        LAZY_ADAM.check(&numbers)?;
        Ok(LazyAdam::of(&LAZY_ADAM, Step::new(numbers)))
    }
}

/// A step of Adam in a row that has a gradient.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub(super) lr_t: f32,
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) rest1: f32,
    pub(super) rest2: f32,
    pub(super) epsilon: f32,
}

impl Step {
    /// A step of the optimizer's numbers, in their order.
    pub(super) fn new([lr, beta1_power, beta2_power, beta1, beta2, epsilon]: [f32; 6]) -> Step {
        Step {
            lr_t: lr * (1.0 - beta2_power).sqrt() / (1.0 - beta1_power),
            beta1,
            beta2,
            rest1: 1.0 - beta1,
            rest2: 1.0 - beta2,
            epsilon,
        }
    }

    /// What the step does to rows without a gradient, in the form that moves these, too, or in the
    /// one in which only their moments decay.
    pub(super) fn decay(&self, moves: bool) -> Decay {
        // Numbers that move no row are those of any other such step, also in a delta's file.
        let (epsilon, lr) = if moves {
            (self.epsilon, self.lr_t)
        } else {
            (1.0, 0.0)
        };
        Decay {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon,
            lr,
            moves,
        }
    }

    /// The new moments.
    #[inline(always)]
    pub(super) fn moments(self, [m, v]: [f32; 2], grad: f32) -> [f32; 2] {
        let m = self.beta1 * m + self.rest1 * grad;
        let v = self.beta2 * v + self.rest2 * (grad * grad);
        [m, v]
    }
}

impl Rule<2> for Step {
    #[inline(always)]
    fn step(self, weight: f32, moments: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let [m, v] = self.moments(moments, grad);
        let weight = weight - self.lr_t * m / (v.abs().sqrt() + self.epsilon);
        (weight, [m, v])
    }
}
