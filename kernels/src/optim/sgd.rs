//! Gradient descent with weight decay.

use super::description::{exactly, Number, Optimizer, OtherRows, LR, NOT_NEGATIVE};
use super::row::{ByColumn, Rule};
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
pub type Sgd = ByColumn<Step, 0>;

impl Sgd {
    /// A step with learning rate `lr`; `weight_decay` 0 is plain gradient descent.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is negative or not finite.
    pub fn new(lr: f32, weight_decay: f32) -> Result<Sgd> {
        SGD.check(&[lr, weight_decay])?;
        Ok(Sgd::of(&SGD, Step { lr, weight_decay }))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    lr: f32,
    weight_decay: f32,
}

impl Rule<0> for Step {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        let grad = if self.weight_decay == 0.0 {
            grad
        } else {
            grad + self.weight_decay * weight
        };
        (weight - self.lr * grad, [])
    }
}
