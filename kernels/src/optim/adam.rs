//! Adam as tf.train.AdamOptimizer: each step decays the moments of all rows and moves all rows.
//! Also with the weights of the batch's rows decayed, as tf.contrib.opt.AdamWOptimizer.

use super::description::{exactly, Number, Optimizer, OtherRows, FINITE, POSITIVE};
use super::lazy_adam::{numbers, Step, MOMENTS};
use super::row::{ByColumn, Rule};
use crate::Result;

pub(super) static ADAM: Optimizer = Optimizer {
    name: "adam",
    doc:
        "Adam for all rows, as tf.train.AdamOptimizer: m = beta1 * m + (1 - beta1) * g; v = beta2 \
          * v + (1 - beta2) * g^2; w -= lr * sqrt(1 - beta2_power) / (1 - beta1_power) * m / \
          (sqrt(v) + epsilon), with g = 0 for rows without a gradient, which catch up when they \
          are read or updated next.",
    numbers: &numbers(POSITIVE),
    slots: MOMENTS,
    ignores_zeros: false,
    other_rows: OtherRows::Move,
    make: |numbers| Ok(Box::new(Adam::made(exactly(numbers)?)?)),
};

pub(super) static ADAMW: Optimizer = Optimizer {
    name: "adamw",
    doc: "As tf.contrib.opt.AdamWOptimizer: w += weight_change * w in rows with a gradient, and \
          then a step of adam.",
    numbers: &{
        let [lr, power1, power2, beta1, beta2, epsilon] = numbers(POSITIVE);
        let change = "What is added to a weight that has a gradient, as a part of it: minus \
                      TensorFlow's weight_decay.";
        let change = Number::new("weight_change", FINITE, change);
        [lr, power1, power2, beta1, beta2, epsilon, change]
    },
    slots: MOMENTS,
    ignores_zeros: false,
    other_rows: OtherRows::Move,
    make: |numbers| Ok(Box::new(AdamW::new(exactly(numbers)?)?)),
};

/// The step of [`LazyAdam`](super::LazyAdam) for rows with a gradient, and that with a gradient of
/// zeros for all others. The slots are those of LazyAdam.
pub type Adam = ByColumn<OfAll, 2>;

impl Adam {
    /// Step `t` of the optimizer: `beta1_power` and `beta2_power` are the betas to the power of
    /// `t`, `t` counting from 1.
    ///
    /// # Errors
    /// `InvalidArgument` if `lr` is negative or not finite, `epsilon` not finite and above 0, a
    /// beta or `beta2_power` lies outside [0, 1], or `beta1_power` outside [0, 1).
    pub fn new(
        lr: f32,
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        beta1_power: f32,
        beta2_power: f32,
    ) -> Result<Adam> {
        Adam::made([lr, beta1_power, beta2_power, beta1, beta2, epsilon])
    }

    fn made(numbers: [f32; 6]) -> Result<Adam> {
        ADAM.check(&numbers)?;
        let step = Step::new(numbers);
        Ok(Adam::of(&ADAM, OfAll(step)).decaying(step.decay(true)))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OfAll(Step);

impl Rule<2> for OfAll {
    #[inline(always)]
    fn step(self, weight: f32, moments: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        self.0.step(weight, moments, grad)
    }
}

/// The step of [`Adam`], with the weights of rows that have a gradient decayed before it
/// ([Loshchilov and Hutter](https://arxiv.org/abs/1711.05101), algorithm 2).
pub(super) type AdamW = ByColumn<Decayed, 2>;

impl AdamW {
    /// A step with the numbers of [`ADAMW`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 7]) -> Result<AdamW> {
        ADAMW.check(&numbers)?;
        let [of_adam @ .., change] = numbers;
        let adam = Step::new(of_adam);
        Ok(AdamW::of(&ADAMW, Decayed { adam, change }).decaying(adam.decay(true)))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Decayed {
    adam: Step,
    change: f32,
}

impl Rule<2> for Decayed {
    #[inline(always)]
    fn step(self, weight: f32, moments: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let weight = weight + self.change * weight;
        self.adam.step(weight, moments, grad)
    }
}
