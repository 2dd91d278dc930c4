//! Nadam, Adam with Nesterov's momentum: the moments of all rows decay, and the rows of the batch
//! move.

use super::description::{
    exactly, Number, Optimizer, OtherRows, BELOW_ONE, FRACTION, LR, NOT_NEGATIVE,
};
use super::lazy_adam::{numbers, Step, MOMENTS};
use super::row::{ByColumn, Rule};
use crate::Result;

pub(super) static NADAM: Optimizer = Optimizer {
    name: "nadam",
    doc:
        "Nadam as tf.contrib.opt.NadamOptimizer: m = beta1 * m + (1 - beta1) * g; v = beta2 * v + \
          (1 - beta2) * g^2; w -= lr * sqrt(1 - beta2_power) / (1 - beta1_power) * (beta1 * m + (1 \
          - beta1) * g) / (sqrt(v) + epsilon). Rows without a gradient stay; their m and v decay, \
          when they are updated next.",
    numbers: &numbers(NOT_NEGATIVE),
    slots: MOMENTS,
    ignores_zeros: false,
    other_rows: OtherRows::Decay,
    make: |numbers| Ok(Box::new(Nadam::new(exactly(numbers)?)?)),
};

pub(super) static SCHEDULED_NADAM: Optimizer = Optimizer {
    name: "scheduled_nadam",
    doc:
        "Nadam with a schedule of momentums, as tf.keras.optimizers.Nadam: m and v as of nadam; w \
          -= lr * ((1 - momentum) * g / (1 - schedule) + next_momentum * m / (1 - next_schedule)) \
          / (sqrt(v / (1 - beta2_power)) + epsilon). Rows without a gradient stay; their m and v \
          decay, when they are updated next.",
    numbers: &[
        LR,
        Number::new("beta1", FRACTION, "Decay of m."),
        Number::new("beta2", FRACTION, "Decay of v."),
        Number::new("epsilon", NOT_NEGATIVE, "Keeps the quotient finite."),
        Number::new("momentum", FRACTION, "Momentum of this step."),
        Number::new("next_momentum", FRACTION, "Momentum of the next step."),
        Number::new(
            "schedule",
            BELOW_ONE,
            "Product of the momentums up to this step.",
        ),
        Number::new(
            "next_schedule",
            BELOW_ONE,
            "Product of the momentums up to the next step.",
        ),
        Number::new("beta2_power", BELOW_ONE, "beta2 to the power of the step."),
    ],
    slots: MOMENTS,
    ignores_zeros: false,
    other_rows: OtherRows::Decay,
    make: |numbers| Ok(Box::new(Nadam::scheduled(exactly(numbers)?)?)),
};

/// `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -= lr_t (a g + b m) / (sqrt(|c
/// v|) + epsilon)` with the numbers a, b and c of the step ([Dozat](
/// http://cs229.stanford.edu/proj2015/054_report.pdf), algorithm 8).
pub(super) type Nadam = ByColumn<Nesterov, 2>;

impl Nadam {
    /// A step with the numbers of [`NADAM`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 6]) -> Result<Nadam> {
        NADAM.check(&numbers)?;
        let adam = Step::new(numbers);
        let rule = Nesterov {
            adam,
            of_grad: adam.rest1,
            of_m: adam.beta1,
            of_v: 1.0,
        };
        Ok(Nadam::of(&NADAM, rule).decaying(adam.decay(false)))
    }

    /// A step with the numbers of [`SCHEDULED_NADAM`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn scheduled(numbers: [f32; 9]) -> Result<Nadam> {
        SCHEDULED_NADAM.check(&numbers)?;
        let [lr, beta1, beta2, epsilon, momentum, next_momentum, schedule, next_schedule, power] =
            numbers;
        let adam = Step::new([lr, 0.0, 0.0, beta1, beta2, epsilon]);
        let rule = Nesterov {
            adam,
            of_grad: (1.0 - momentum) / (1.0 - schedule),
            of_m: next_momentum / (1.0 - next_schedule),
            of_v: 1.0 / (1.0 - power),
        };
        Ok(Nadam::of(&SCHEDULED_NADAM, rule).decaying(adam.decay(false)))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Nesterov {
    adam: Step,
    of_grad: f32,
    of_m: f32,
    of_v: f32,
}

impl Rule<2> for Nesterov {
    #[inline(always)]
    fn step(self, weight: f32, moments: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let Nesterov { adam, .. } = self;
        let [m, v] = adam.moments(moments, grad);
        let above = adam.lr_t * (self.of_grad * grad + self.of_m * m);
        let weight = weight - above / ((self.of_v * v).abs().sqrt() + adam.epsilon);
        (weight, [m, v])
    }
}
