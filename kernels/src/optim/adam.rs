//! Adam as tf.train.AdamOptimizer: each step decays the moments of all rows and moves all rows.

use super::description::{exactly, Optimizer, POSITIVE};
use super::lazy_adam::{numbers, LazyAdam, MOMENTS};
use super::row::{Decay, RowOptimizer, SlotSpec};
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
    moves_all_rows: true,
    make: |numbers| Ok(Box::new(Adam(LazyAdam::of(&ADAM, exactly(numbers)?)?))),
};

/// The step of [`LazyAdam`] for rows with a gradient, and that with a gradient of zeros for all
/// others. The slots are those of LazyAdam.
#[derive(Clone, Copy, Debug)]
pub struct Adam(LazyAdam);

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
        LazyAdam::of(&ADAM, numbers).map(Adam)
    }
}

impl RowOptimizer for Adam {
    fn slots(&self) -> Vec<SlotSpec> {
        self.0.slots()
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        self.0.update(row, slots, grad);
    }

    fn decay(&self) -> Option<Decay> {
        Some(self.0.decay())
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for Adam {
    fn at(self, level: crate::simd::Level) -> Adam {
        Adam(self.0.at(level))
    }
}
