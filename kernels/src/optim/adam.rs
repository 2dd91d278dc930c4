//! Adam as tf.train.AdamOptimizer: each step decays the moments of all rows and moves all rows.

use super::description::{exactly, Number, Optimizer, BELOW_ONE, FRACTION, LR, POSITIVE};
use super::lazy_adam::{Step, MOMENTS};
use super::row::{update, Decay, RowOptimizer, SlotSpec};
use crate::simd::Level;
use crate::Result;

pub(super) static ADAM: Optimizer = Optimizer {
    name: "adam",
    doc:
        "Adam for all rows, as tf.train.AdamOptimizer: m = beta1 * m + (1 - beta1) * g; v = beta2 \
          * v + (1 - beta2) * g^2; w -= lr * sqrt(1 - beta2_power) / (1 - beta1_power) * m / \
          (sqrt(v) + epsilon), with g = 0 for rows without a gradient, which catch up when they \
          are read or updated next.",
    numbers: &[
        LR,
        Number::new(
            "beta1_power",
            BELOW_ONE,
            "beta1 to the power of the step, which counts from 1.",
        ),
        Number::new("beta2_power", FRACTION, "beta2 to the power of the step."),
        Number::new("beta1", FRACTION, "Decay of m."),
        Number::new("beta2", FRACTION, "Decay of v."),
        Number::new("epsilon", POSITIVE, "Keeps the quotient finite."),
    ],
    slots: MOMENTS,
    ignores_zeros: false,
    moves_all_rows: true,
    make: |numbers| {
        let [lr, beta1_power, beta2_power, beta1, beta2, epsilon] = exactly(numbers)?;
        let step = Adam::new(lr, beta1, beta2, epsilon, beta1_power, beta2_power)?;
        Ok(Box::new(step))
    },
};

/// The step of [`LazyAdam`](super::LazyAdam) for rows with a gradient, and that with a gradient of
/// zeros for all others. The slots are those of LazyAdam.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    rule: Step,
    level: Level,
}

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
        let numbers = [lr, beta1_power, beta2_power, beta1, beta2, epsilon];
        ADAM.check(&numbers)?;
        Ok(Adam {
            rule: Step::new(numbers),
            level: Level::detect(),
        })
    }
}

impl RowOptimizer for Adam {
    fn slots(&self) -> Vec<SlotSpec> {
        ADAM.slots_from(0.0)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        update(self.level, self.rule, row, slots, grad);
    }

    fn decay(&self) -> Option<Decay> {
        Some(self.rule.decay())
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for Adam {
    fn at(self, level: Level) -> Adam {
        Adam { level, ..self }
    }
}
