//! Follow the regularised leader (FTRL-proximal) with l1, l2 and l2 shrinkage.

use super::description::{
    exactly, Number, Optimizer, OtherRows, Slot, NOT_NEGATIVE, NOT_POSITIVE, POSITIVE,
};
use super::row::{ByColumn, RowOptimizer, Rule};
use crate::simd::Level;
use crate::{Error, Result};

pub(super) static FTRL: Optimizer = Optimizer {
    name: "ftrl",
    doc: "FTRL as tf.train.FtrlOptimizer.",
    numbers: &[
        Number::new("lr", POSITIVE, "Learning rate; it divides."),
        Number::new(
            "lr_power",
            NOT_POSITIVE,
            "Power of the accumulator; -0.5 is the usual one.",
        ),
        Number::new(
            "initial_accumulator",
            NOT_NEGATIVE,
            "What the accumulator starts at.",
        ),
        Number::new("l1", NOT_NEGATIVE, "L1 regularization."),
        Number::new("l2", NOT_NEGATIVE, "L2 regularization."),
        Number::new(
            "l2_shrinkage",
            NOT_NEGATIVE,
            "L2 penalty on the weights in the gradient.",
        ),
    ],
    slots: &[
        Slot::at("Ftrl_accum", "initial_accumulator", 0.1),
        Slot::zeros("Ftrl_linear"),
    ],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| ftrl(exactly(numbers)?, Level::detect()),
};

/// With `p = -lr_power`, `a' = a + g^2` and `h = g + 2 l2_shrinkage w`:
/// `z += h - (a'^p - a^p) / lr * w; w = (clip(z, -l1, l1) - z) / (a'^p / lr + 2 l2); a = a'`.
///
/// Slots: `Ftrl_accum` holds `a`, `Ftrl_linear` holds `z`. Shrinkage pulls at the weights and
/// leaves the accumulator alone, as in TensorFlow's `SparseApplyFtrlV2`. Only `lr_power` -0.5 is
/// fast: others need a power function per column.
///
/// # Errors
/// `InvalidArgument` if a number is out of its range, or `lr` is too small to divide by.
pub(super) fn ftrl(numbers: [f32; 6], level: Level) -> Result<Box<dyn RowOptimizer>> {
    FTRL.check(&numbers)?;
    let [lr, lr_power, start, l1, l2, l2_shrinkage] = numbers;
    if !lr.is_normal() {
        return Err(Error::invalid("ftrl: lr is too small to divide by").with("lr", lr));
    }
    let step = Step {
        lr,
        power: -lr_power,
        l1,
        twice_l2: 2.0 * l2,
        pull: 2.0 * l2_shrinkage,
    };
    if lr_power == -0.5 {
        let step = ByColumn::of(&FTRL, Sqrt(step));
        return Ok(Box::new(step.starting(start).at(level)));
    }
    let step = ByColumn::of(&FTRL, Power(step));
    Ok(Box::new(step.starting(start).at(level)))
}

#[derive(Clone, Copy, Debug)]
struct Step {
    lr: f32,
    power: f32,
    l1: f32,
    twice_l2: f32,
    pull: f32,
}

impl Step {
    /// One step, `root` being the accumulator to the power `-lr_power`.
    #[inline(always)]
    fn with(
        self,
        root: impl Fn(f32) -> f32,
        weight: f32,
        [accum, linear]: [f32; 2],
        grad: f32,
    ) -> (f32, [f32; 2]) {
        let next = accum + grad * grad;
        let (root_next, root_old) = (root(next), root(accum));
        let pulled = grad + self.pull * weight;
        let linear = linear + (pulled - (root_next - root_old) / self.lr * weight);
        let below = if linear > self.l1 { self.l1 } else { linear };
        let clipped = if below < -self.l1 { -self.l1 } else { below };
        let weight = (clipped - linear) / (root_next / self.lr + self.twice_l2);
        (weight, [next, linear])
    }
}

/// `lr_power == -0.5`.
#[derive(Clone, Copy)]
struct Sqrt(Step);

impl Rule<2> for Sqrt {
    #[inline(always)]
    fn step(self, weight: f32, slots: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        self.0.with(f32::sqrt, weight, slots, grad)
    }
}

/// Any `lr_power`.
#[derive(Clone, Copy)]
struct Power(Step);

impl Rule<2> for Power {
    #[inline(always)]
    fn step(self, weight: f32, slots: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let power = self.0.power;
        self.0.with(|accum| accum.powf(power), weight, slots, grad)
    }
}
