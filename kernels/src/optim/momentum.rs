//! Momentum, with Nesterov's variant.

use super::description::{exactly, Number, Optimizer, OtherRows, Slot, FINITE, LR};
use super::row::{update, RowOptimizer, Rule, SlotSpec};
use crate::simd::Level;
use crate::Result;

const NUMBERS: &[Number] = &[LR, Number::new("momentum", FINITE, "Decay of the slot.")];
const SLOTS: &[Slot] = &[Slot::zeros("Momentum_momentum")];

pub(super) static MOMENTUM: Optimizer = Optimizer {
    name: "momentum",
    doc: "As tf.train.MomentumOptimizer: a = a * momentum + g; w -= lr * a.",
    numbers: NUMBERS,
    slots: SLOTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, momentum] = exactly(numbers)?;
        Ok(Box::new(Momentum::new(lr, momentum, false)?))
    },
};

pub(super) static NESTEROV: Optimizer = Optimizer {
    name: "nesterov",
    doc: "As tf.train.MomentumOptimizer with Nesterov: a = a * momentum + g; w -= lr * (g + \
          momentum * a).",
    numbers: NUMBERS,
    slots: SLOTS,
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, momentum] = exactly(numbers)?;
        Ok(Box::new(Momentum::new(lr, momentum, true)?))
    },
};

/// `a = a * momentum + g; w -= lr * a`, with Nesterov `w -= lr * g + lr * momentum * a`. Slot
/// `Momentum_momentum` holds `a`.
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    rule: Step,
    nesterov: bool,
    level: Level,
}

impl Momentum {
    /// A step with learning rate `lr`.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is not finite or `lr` is negative.
    pub fn new(lr: f32, momentum: f32, nesterov: bool) -> Result<Momentum> {
        let optimizer = if nesterov { &NESTEROV } else { &MOMENTUM };
        optimizer.check(&[lr, momentum])?;
        Ok(Momentum {
            rule: Step { lr, momentum },
            nesterov,
            level: Level::detect(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    lr: f32,
    momentum: f32,
}

impl Rule<1> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let accum = accum * self.momentum + grad;
        (weight - self.lr * accum, [accum])
    }
}

#[derive(Clone, Copy)]
struct Nesterov(Step);

impl Rule<1> for Nesterov {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let Nesterov(Step { lr, momentum }) = self;
        let accum = accum * momentum + grad;
        (weight - (grad * lr + accum * momentum * lr), [accum])
    }
}

impl RowOptimizer for Momentum {
    fn slots(&self) -> Vec<SlotSpec> {
        MOMENTUM.slots_from(0.0)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        if self.nesterov {
            update(self.level, Nesterov(self.rule), row, slots, grad);
        } else {
            update(self.level, self.rule, row, slots, grad);
        }
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for Momentum {
    fn at(self, level: Level) -> Momentum {
        Momentum { level, ..self }
    }
}
