//! Proximal steps: gradient descent and Adagrad that draw weights to 0 behind each step.

use super::by_column::ByColumn;
use super::description::{exactly, Number, Optimizer, OtherRows, Slot, LR, NOT_NEGATIVE, POSITIVE};
use super::row::Rule;
use crate::Result;

const L1: Number = Number::new(
    "l1",
    NOT_NEGATIVE,
    "What absolute weights are drawn to 0 by.",
);
const L2: Number = Number::new(
    "l2",
    NOT_NEGATIVE,
    "What squares of weights are drawn to 0 by.",
);

pub(super) static PROXIMAL_SGD: Optimizer = Optimizer {
    name: "proximal_sgd",
    doc: "As tf.train.ProximalGradientDescentOptimizer: p = w - lr * g; w = sign(p) * max(|p| - \
          lr * l1, 0) / (1 + lr * l2).",
    numbers: &[LR, L1, L2],
    slots: &[],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(ProximalSgd::new(exactly(numbers)?)?)),
};

pub(super) static PROXIMAL_ADAGRAD: Optimizer = Optimizer {
    name: "proximal_adagrad",
    doc: "As tf.train.ProximalAdagradOptimizer: a += g^2; r = lr / sqrt(a); p = w - r * g; w = \
          sign(p) * max(|p| - r * l1, 0) / (1 + r * l2).",
    numbers: &[
        LR,
        Number::new("initial_accumulator", POSITIVE, "What a starts at."),
        L1,
        L2,
    ],
    slots: &[Slot::at(
        "ProximalAdagrad_accumulator",
        "initial_accumulator",
        0.1,
    )],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(ProximalAdagrad::new(exactly(numbers)?)?)),
};

/// `p = w - lr g; w = sign(p) max(|p| - lr l1, 0) / (1 + lr l2)`, forward-backward splitting
/// ([Duchi and Singer](https://jmlr.org/papers/v10/duchi09a.html)); no slots.
pub(super) type ProximalSgd = ByColumn<Descent, 0>;

impl ProximalSgd {
    /// A step with the numbers of [`PROXIMAL_SGD`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 3]) -> Result<ProximalSgd> {
        PROXIMAL_SGD.check(&numbers)?;
        let [lr, l1, l2] = numbers;
        let rule = Descent {
            lr,
            to: Shrinking { l1, l2 },
        };
        Ok(ProximalSgd::of(&PROXIMAL_SGD, rule))
    }
}

/// [`ProximalSgd`] with `lr / sqrt(a)` for its learning rate, where `a += g^2`. Slot
/// `ProximalAdagrad_accumulator` holds `a`.
pub(super) type ProximalAdagrad = ByColumn<Adaptive, 1>;

impl ProximalAdagrad {
    /// A step with the numbers of [`PROXIMAL_ADAGRAD`] in their order.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of its range.
    pub(super) fn new(numbers: [f32; 4]) -> Result<ProximalAdagrad> {
        PROXIMAL_ADAGRAD.check(&numbers)?;
        let [lr, initial_accumulator, l1, l2] = numbers;
        let rule = Adaptive {
            lr,
            to: Shrinking { l1, l2 },
        };
        Ok(ProximalAdagrad::of(&PROXIMAL_ADAGRAD, rule).starting(initial_accumulator))
    }
}

/// What draws weights to 0.
#[derive(Clone, Copy, Debug)]
struct Shrinking {
    l1: f32,
    l2: f32,
}

impl Shrinking {
    /// A weight behind a step of a learning rate.
    #[inline(always)]
    fn step(self, weight: f32, lr: f32, grad: f32) -> f32 {
        let moved = weight - grad * lr;
        let below = 1.0 + self.l2 * lr;
        if self.l1 > 0.0 {
            let rest = moved.abs() - lr * self.l1;
            // Not `f32::max`, which would hide a not-a-number.
            let rest = if rest < 0.0 { 0.0 } else { rest };
            let sign = if moved == 0.0 {
                0.0
            } else {
                1.0_f32.copysign(moved)
            };
            sign * rest / below
        } else {
            moved / below
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Descent {
    lr: f32,
    to: Shrinking,
}

impl Rule<0> for Descent {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        (self.to.step(weight, self.lr, grad), [])
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Adaptive {
    lr: f32,
    to: Shrinking,
}

impl Rule<1> for Adaptive {
    #[inline(always)]
    fn step(self, weight: f32, [accum]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let accum = accum + grad * grad;
        let lr = self.lr * (1.0 / accum.sqrt());
        (self.to.step(weight, lr, grad), [accum])
    }
}
