//! Adagrad.

use super::check::{not_negative, positive};
use super::row::{update, RowOptimizer, Rule, SlotSpec};
use crate::simd::Level;
use crate::Result;

/// `a += g^2; w -= lr * g / sqrt(a)`. Slot `Adagrad_accumulator` holds `a`.
#[derive(Clone, Copy, Debug)]
pub struct Adagrad {
    rule: Step,
    initial_accumulator: f32,
    level: Level,
}

impl Adagrad {
    /// A step with learning rate `lr`; accumulators of new rows start at `initial_accumulator`.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is not finite, `lr` is negative or `initial_accumulator` is
    /// not above 0.
    pub fn new(lr: f32, initial_accumulator: f32) -> Result<Adagrad> {
        not_negative("adagrad", "lr", lr)?;
        positive("adagrad", "initial_accumulator", initial_accumulator)?;
        Ok(Adagrad {
            rule: Step { lr },
            initial_accumulator,
            level: Level::detect(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    lr: f32,
}

impl Rule<1> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let accum = accum + grad * grad;
        (weight - self.lr * grad / accum.sqrt(), [accum])
    }
}

impl RowOptimizer for Adagrad {
    fn slots(&self) -> Vec<SlotSpec> {
        vec![SlotSpec::new(
            "Adagrad_accumulator",
            self.initial_accumulator,
        )]
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        update(self.level, self.rule, row, slots, grad);
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for Adagrad {
    fn at(self, level: Level) -> Adagrad {
        Adagrad { level, ..self }
    }
}
