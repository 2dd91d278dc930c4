//! Adagrad.

use super::description::{exactly, Number, Optimizer, OtherRows, Slot, LR, NOT_NEGATIVE, POSITIVE};
use super::row::{ByColumn, Rule};
use crate::Result;

pub(super) static ADAGRAD: Optimizer = Optimizer {
    name: "adagrad",
    doc: "As tf.train.AdagradOptimizer: a += g^2; w -= lr * g / sqrt(a).",
    numbers: &[
        LR,
        Number::new("initial_accumulator", POSITIVE, "What a starts at."),
    ],
    slots: &[Slot::at("Adagrad_accumulator", "initial_accumulator", 0.9)],
    ignores_zeros: true,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, initial_accumulator] = exactly(numbers)?;
        Ok(Box::new(Adagrad::new(lr, initial_accumulator)?))
    },
};

pub(super) static ADAGRAD_V2: Optimizer = Optimizer {
    name: "adagrad_v2",
    doc: "As tf.keras.optimizers.Adagrad: a += g^2; w -= lr * g / (sqrt(a) + epsilon).",
    numbers: &[
        LR,
        Number::new("epsilon", POSITIVE, "Added to the root of a."),
        Number::new("initial_accumulator", NOT_NEGATIVE, "What a starts at."),
    ],
    slots: ADAGRAD.slots,
    ignores_zeros: true,
    other_rows: OtherRows::Stay,
    make: |numbers| {
        let [lr, epsilon, initial_accumulator] = exactly(numbers)?;
        Ok(Box::new(Adagrad::with_epsilon(
            lr,
            epsilon,
            initial_accumulator,
        )?))
    },
};

/// `a += g^2; w -= lr * g / (sqrt(a) + epsilon)`. Slot `Adagrad_accumulator` holds `a`.
pub type Adagrad = ByColumn<Step, 1>;

impl Adagrad {
    /// A step with learning rate `lr`; accumulators of new rows start at `initial_accumulator`.
    ///
    /// # Errors
    /// `InvalidArgument` if an argument is not finite, `lr` is negative or `initial_accumulator` is
    /// not above 0.
    pub fn new(lr: f32, initial_accumulator: f32) -> Result<Adagrad> {
        ADAGRAD.check(&[lr, initial_accumulator])?;
        let rule = Step { lr, epsilon: 0.0 };
        Ok(Adagrad::of(&ADAGRAD, rule).starting(initial_accumulator))
    }

    /// The same with `epsilon` added to the root.
    pub(super) fn with_epsilon(lr: f32, epsilon: f32, initial_accumulator: f32) -> Result<Adagrad> {
        ADAGRAD_V2.check(&[lr, epsilon, initial_accumulator])?;
        let rule = Step { lr, epsilon };
        Ok(Adagrad::of(&ADAGRAD_V2, rule).starting(initial_accumulator))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    lr: f32,
    epsilon: f32,
}

impl Rule<1> for Step {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let accum = accum + grad * grad;
        let root = accum.sqrt() + self.epsilon;
        (weight - self.lr * grad / root, [accum])
    }
}
