//! Adam whose moments move only in rows that have a gradient.

use super::description::{
    exactly, Number, Optimizer, OtherRows, Range, Slot, BELOW_ONE, FRACTION, LR, NOT_NEGATIVE,
};
use super::half_row::HalfRow;
use super::half_update::update_half;
use super::row::{update, Decay, RowOptimizer, Rule, SlotSpec};
use crate::simd::Level;
use crate::Result;

/// m and v. A checkpoint of either form of Adam goes on in the other.
pub(crate) const MOMENTS: &[Slot] = &[
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
    make: |numbers| Ok(Box::new(LazyAdam::of(&LAZY_ADAM, exactly(numbers)?)?)),
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
#[derive(Clone, Copy, Debug)]
pub struct LazyAdam {
    pub(super) rule: Step,
    pub(super) level: Level,
}

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
        let numbers = [lr, beta1_power, beta2_power, beta1, beta2, epsilon];
        LazyAdam::of(&LAZY_ADAM, numbers)
    }

    /// A step of the numbers of a form of Adam, in their order.
    pub(super) fn of(form: &Optimizer, numbers: [f32; 6]) -> Result<LazyAdam> {
        form.check(&numbers)?;
        Ok(LazyAdam {
            rule: Step::new(numbers),
            level: Level::detect(),
        })
    }

    /// What the step does to rows without a gradient, in the form that moves these, too, or in the
    /// one in which only their moments decay.
    pub(super) fn decay(&self, moves: bool) -> Decay {
        // Numbers that move no row are those of any other such step, also in a delta's file.
        let (epsilon, lr) = if moves {
            (self.rule.epsilon, self.rule.lr_t)
        } else {
            (1.0, 0.0)
        };
        Decay {
            beta1: self.rule.beta1,
            beta2: self.rule.beta2,
            epsilon,
            lr,
            moves,
        }
    }
}

/// A step of Adam in a row that has a gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
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
}

impl Step {
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

impl RowOptimizer for LazyAdam {
    fn slots(&self) -> Vec<SlotSpec> {
        LAZY_ADAM.slots_from(0.0)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        update(self.level, self.rule, row, slots, grad);
    }

    fn update_half(&self, row: &mut HalfRow<'_>, slots: &[usize], grad: &[f32]) {
        update_half(self.level, self.rule, row, slots, grad);
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for LazyAdam {
    fn at(self, level: Level) -> LazyAdam {
        LazyAdam { level, ..self }
    }
}
