//! Gradient descent with weight decay.

use super::by_column::ByColumn;
use super::description::{exactly, Number, Optimizer, OtherRows, LR, NOT_NEGATIVE};
use super::row::Rule;
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
        Ok(match weight_decay == 0.0 {
            true => Box::new(Sgd::new(lr)?),
            false => Box::new(DecayedSgd::new(lr, weight_decay)?),
        })
    },
};

/// `w -= lr * g`; no slots.
pub type Sgd = ByColumn<Step, 0>;

impl Sgd {
    /// A step with learning rate `lr`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is negative or not finite.
    pub fn new(lr: f32) -> Result<Sgd> {
        SGD.check(&[lr, 0.0])?;
        Ok(Sgd::of(&SGD, Step { lr }))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    lr: f32,
}

impl Rule<0> for Step {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        (weight - self.lr * grad, [])
    }
}

/// `w -= lr * (g + weight_decay * w)`; no slots.
pub type DecayedSgd = ByColumn<DecayedStep, 0>;

impl DecayedSgd {
    /// A step with learning rate `lr` and decay `weight_decay`.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is negative or not finite.
    pub fn new(lr: f32, weight_decay: f32) -> Result<DecayedSgd> {
        SGD.check(&[lr, weight_decay])?;
        Ok(DecayedSgd::of(&SGD, DecayedStep { lr, weight_decay }))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct DecayedStep {
    lr: f32,
    weight_decay: f32,
}

impl Rule<0> for DecayedStep {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        (weight - self.lr * (grad + self.weight_decay * weight), [])
    }
}
