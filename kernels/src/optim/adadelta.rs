//! Adadelta.

use super::by_column::ByColumn;
use super::description::{exactly, Number, Optimizer, OtherRows, Slot, FRACTION, LR, NOT_NEGATIVE};
use super::row::Rule;
use crate::Result;

pub(super) static ADADELTA: Optimizer = Optimizer {
    name: "adadelta",
    doc: "As tf.train.AdadeltaOptimizer: a = rho * a + (1 - rho) * g^2; s = sqrt(u + epsilon) / \
          sqrt(a + epsilon) * g; u = rho * u + (1 - rho) * s^2; w -= lr * s.",
    numbers: &[
        LR,
        Number::new("rho", FRACTION, "Decay of the averages."),
        Number::new("epsilon", NOT_NEGATIVE, "Keeps the quotient finite."),
    ],
    slots: &[
        Slot::zeros("Adadelta_accum"),
        Slot::zeros("Adadelta_accum_update"),
    ],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(Adadelta::new(exactly(numbers)?)?)),
};

/// `a = rho a + (1 - rho) g^2; s = sqrt(u + epsilon) / sqrt(a + epsilon) g; u = rho u + (1 - rho)
/// s^2; w -= lr s` ([Zeiler](https://arxiv.org/abs/1212.5701)). Slots `Adadelta_accum` (a) and
/// `Adadelta_accum_update` (u).
pub(super) type Adadelta = ByColumn<Step, 2>;

impl Adadelta {
    /// A step with the numbers of [`ADADELTA`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 3]) -> Result<Adadelta> {
        ADADELTA.check(&numbers)?;
        let [lr, rho, epsilon] = numbers;
        let rest = 1.0 - rho;
        Ok(Adadelta::of(
            &ADADELTA,
            Step {
                lr,
                rho,
                rest,
                epsilon,
            },
        ))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    lr: f32,
    rho: f32,
    rest: f32,
    epsilon: f32,
}

impl Rule<2> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [squares, steps]: [f32; 2], grad: f32) -> (f32, [f32; 2]) {
        let squares = squares * self.rho + grad * grad * self.rest;
        let root = 1.0 / (squares + self.epsilon).sqrt();
        let step = (steps + self.epsilon).sqrt() * root * grad;
        let steps = steps * self.rho + step * step * self.rest;
        (weight - step * self.lr, [squares, steps])
    }
}
