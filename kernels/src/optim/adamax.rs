//! AdaMax, Adam with the infinity norm of gradients in the place of their squares.

use super::description::{
    exactly, Number, Optimizer, OtherRows, Slot, BELOW_ONE, FRACTION, LR, NOT_NEGATIVE,
};
use super::row::{ByColumn, Rule};
use crate::Result;

pub(super) static ADAMAX: Optimizer = Optimizer {
    name: "adamax",
    doc: "AdaMax for the rows of the batch, as tf.contrib.opt.AdaMaxOptimizer: m = beta1 * m + (1 \
          - beta1) * g; u = max(beta2 * u, |g|); w -= lr / (1 - beta1_power) * m / (u + epsilon).",
    numbers: &[
        LR,
        Number::new(
            "beta1_power",
            BELOW_ONE,
            "beta1 to the power of the step, which counts from 1.",
        ),
        Number::new("beta1", FRACTION, "Decay of m."),
        Number::new("beta2", FRACTION, "Decay of u."),
        Number::new("epsilon", NOT_NEGATIVE, "Keeps the quotient finite."),
    ],
    slots: &[
        Slot::zeros("AdaMax_momentum"),
        Slot::zeros("AdaMax_infinity_norm"),
    ],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(AdaMax::new(exactly(numbers)?)?)),
};

/// `m = beta1 m + (1 - beta1) g; u = max(beta2 u, |g|); w -= lr / (1 - beta1^t) m / (u + epsilon)`
/// ([Kingma and Ba](https://arxiv.org/abs/1412.6980), section 7.1). Slots `AdaMax_momentum` (m) and
/// `AdaMax_infinity_norm` (u) start at 0.
pub(super) type AdaMax = ByColumn<Step, 2>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    lr_t: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    epsilon: f32,
}

impl AdaMax {
    /// A step with the numbers of [`ADAMAX`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 5]) -> Result<AdaMax> {
        ADAMAX.check(&numbers)?;
        let [lr, beta1_power, beta1, beta2, epsilon] = numbers;
        let rule = Step {
            lr_t: lr / (1.0 - beta1_power),
            beta1,
            rest1: 1.0 - beta1,
            beta2,
            epsilon,
        };
        Ok(AdaMax::of(&ADAMAX, rule))
    }
}

impl Rule<2> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [m, u]: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let m = self.beta1 * m + self.rest1 * grad;
        let (decayed, size) = (self.beta2 * u, grad.abs());
        let u = if decayed < size { size } else { decayed };
        let weight = weight - self.lr_t * (m / (u + self.epsilon));
        (weight, [m, u])
    }
}
