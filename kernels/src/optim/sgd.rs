//! Gradient descent with weight decay.

use super::description::{exactly, Number, Optimizer, OtherRows, LR, NOT_NEGATIVE};
use super::half_row::HalfRow;
use super::half_update::update_half;
use super::row::{update, RowOptimizer, Rule, SlotSpec};
use crate::simd::Level;
use crate::Result;

pub(super) static SGD: Optimizer = Optimizer {
    name: "sgd",
    doc: "Gradient descent: w -= lr * (g + weight_decay * w).",
    numbers: &[LR, Number::new("weight_decay", NOT_NEGATIVE, "0: none.")],
    slots: &[],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, weight_decay] = exactly(numbers)?;
        Ok(Box::new(Sgd::new(lr, weight_decay)?))
    },
};

/// `w -= lr * (g + weight_decay * w)`; no slots.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    lr: f32,
    weight_decay: f32,
    level: Level,
}

impl Sgd {
    /// A step with learning rate `lr`; `weight_decay` 0 is plain gradient descent.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is negative or not finite.
    pub fn new(lr: f32, weight_decay: f32) -> Result<Sgd> {
        SGD.check(&[lr, weight_decay])?;
        Ok(Sgd {
            lr,
            weight_decay,
            level: Level::detect(),
        })
    }
}

#[derive(Clone, Copy)]
struct Plain {
    lr: f32,
}

impl Rule<0> for Plain {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        (weight - self.lr * grad, [])
    }
}

#[derive(Clone, Copy)]
struct Decaying {
    lr: f32,
    weight_decay: f32,
}

impl Rule<0> for Decaying {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        (weight - self.lr * (grad + self.weight_decay * weight), [])
    }
}

impl RowOptimizer for Sgd {
    fn slots(&self) -> Vec<SlotSpec> {
        SGD.slots_from(0.0)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        let Sgd {
            lr,
            weight_decay,
            level,
        } = *self;
        if weight_decay == 0.0 {
            update(level, Plain { lr }, row, slots, grad);
        } else {
            update(level, Decaying { lr, weight_decay }, row, slots, grad);
        }
    }

    fn update_half(&self, row: &mut HalfRow<'_>, slots: &[usize], grad: &[f32]) {
        if self.weight_decay == 0.0 {
            update_half(self.level, Plain { lr: self.lr }, row, slots, grad);
        } else {
            row.as_floats(grad.len(), slots, |row, slots| {
                self.update(row, slots, grad)
            });
        }
    }
}

#[cfg(test)]
impl super::oracle::AtLevel for Sgd {
    fn at(self, level: Level) -> Sgd {
        Sgd { level, ..self }
    }
}
