//! Follow the regularised leader (FTRL-proximal) with l1, l2 and l2 shrinkage.

use super::description::{
    exactly, Number, Optimizer, OtherRows, Slot, NOT_NEGATIVE, NOT_POSITIVE, POSITIVE,
};
use super::row::{update, RowOptimizer, Rule, SlotSpec};
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
    make: |numbers| {
        let [lr, lr_power, initial_accumulator, l1, l2, l2_shrinkage] = exactly(numbers)?;
        let step = Ftrl::new(lr, lr_power, initial_accumulator, l1, l2, l2_shrinkage)?;
        Ok(Box::new(step))
    },
};

/// With `p = -lr_power`, `a' = a + g^2` and `h = g + 2 l2_shrinkage w`:
/// `z += h - (a'^p - a^p) / lr * w; w = (clip(z, -l1, l1) - z) / (a'^p / lr + 2 l2); a = a'`.
///
/// Slots: `Ftrl_accum` holds `a`, `Ftrl_linear` holds `z`. Shrinkage pulls at the weights and
/// leaves the accumulator alone, as in TensorFlow's `SparseApplyFtrlV2`. Only `lr_power` -0.5 is
/// fast: others need a power function per column.
#[derive(Clone, Copy, Debug)]
pub struct Ftrl {
    rule: Step,
    initial_accumulator: f32,
    level: Level,
}

impl Ftrl {
    /// A step with learning rate `lr`; accumulators of new rows start at `initial_accumulator`.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is not finite, `lr` is not above 0 (it divides), `lr_power`
    /// is above 0, or another argument is negative.
    pub fn new(
        lr: f32,
        lr_power: f32,
        initial_accumulator: f32,
        l1: f32,
        l2: f32,
        l2_shrinkage: f32,
    ) -> Result<Ftrl> {
        FTRL.check(&[lr, lr_power, initial_accumulator, l1, l2, l2_shrinkage])?;
        if !lr.is_normal() {
            return Err(Error::invalid("ftrl: lr is too small to divide by").with("lr", lr));
        }
        let rule = Step {
            lr,
            power: -lr_power,
            l1,
            twice_l2: 2.0 * l2,
            pull: 2.0 * l2_shrinkage,
        };
        Ok(Ftrl {
            rule,
            initial_accumulator,
            level: Level::detect(),
        })
    }
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

impl RowOptimizer for Ftrl {
    fn slots(&self) -> Vec<SlotSpec> {
        FTRL.slots_from(self.initial_accumulator)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        if self.rule.power == 0.5 {
            update(self.level, Sqrt(self.rule), row, slots, grad);
        } else {
            update(self.level, Power(self.rule), row, slots, grad);
        }
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for Ftrl {
    fn at(self, level: Level) -> Ftrl {
        Ftrl { level, ..self }
    }
}
