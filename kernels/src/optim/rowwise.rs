//! Adagrad and Adam whose second moments are one float for a row.

use super::description::{exactly, Number, Optimizer, OtherRows, Slot, LR, NOT_NEGATIVE, POSITIVE};
use super::half_row::HalfRow;
use super::half_update::update_half;
use super::lazy_adam::{self, Step};
use super::row::{update, RowOptimizer, Rule, SlotSpec};
use crate::simd::{Level, Vectorized};
use crate::Result;

pub(super) static ROWWISE_ADAGRAD: Optimizer = Optimizer {
    name: "rowwise_adagrad",
    doc: "Adagrad with one accumulator for a row, as EXACT_ROWWISE_ADAGRAD of FBGEMM: a += \
          mean(g^2) over the columns; w -= lr * g / (sqrt(a) + epsilon).",
    numbers: &[
        LR,
        Number::new("initial_accumulator", NOT_NEGATIVE, "What a starts at."),
        Number::new("epsilon", POSITIVE, "Keeps the quotient finite."),
    ],
    slots: &[Slot::at("RowwiseAdagrad_accumulator", "initial_accumulator", 0.0).per_row()],
    ignores_zeros: true,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(RowwiseAdagrad::new(exactly(numbers)?)?)),
};

pub(super) static ROWWISE_ADAM: Optimizer = Optimizer {
    name: "rowwise_adam",
    doc: "lazy_adam with one v for a row, as PARTIAL_ROWWISE_ADAM of FBGEMM: m = beta1 * m + (1 - \
          beta1) * g; v = beta2 * v + (1 - beta2) * mean(g^2) over the columns; w -= lr * sqrt(1 \
          - beta2_power) / (1 - beta1_power) * m / (sqrt(v) + epsilon).",
    numbers: &lazy_adam::numbers(NOT_NEGATIVE),
    slots: &[
        Slot::zeros("RowwiseAdam_momentum"),
        Slot::zeros("RowwiseAdam_velocity").per_row(),
    ],
    ignores_zeros: false,
    other_rows: OtherRows::Stay,
    make: |numbers| Ok(Box::new(RowwiseAdam::new(exactly(numbers)?)?)),
};

/// Columns that are summed side by side: the same sums on every instruction set.
const LANES: usize = 16;

/// The mean of the squares of a gradient: 16 sums, of the columns by their remainders, which are
/// added in halves.
struct MeanSquare<'a>(&'a [f32]);

impl Vectorized for MeanSquare<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let MeanSquare(grad) = self;
        let mut sums = [0.0; LANES];
        let (blocks, rest) = grad.as_chunks::<LANES>();
        for block in blocks {
            for (sum, g) in sums.iter_mut().zip(block) {
                *sum += g * g;
            }
        }
        for (sum, g) in sums.iter_mut().zip(rest) {
            *sum += g * g;
        }
        let mut width = LANES / 2;
        while width > 0 {
            for at in 0..width {
                sums[at] += sums[at + width];
            }
            width /= 2;
        }
        sums[0] / grad.len() as f32
    }
}

/// `a += mean(g^2); w -= lr g / (sqrt(a) + epsilon)`. Slot `RowwiseAdagrad_accumulator`, one float
/// for a row, holds `a`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowwiseAdagrad {
    lr: f32,
    initial_accumulator: f32,
    epsilon: f32,
    level: Level,
}

impl RowwiseAdagrad {
    /// A step of the optimizer's numbers, in their order.
    pub(super) fn new(numbers: [f32; 3]) -> Result<RowwiseAdagrad> {
        ROWWISE_ADAGRAD.check(&numbers)?;
        let [lr, initial_accumulator, epsilon] = numbers;
        Ok(RowwiseAdagrad {
            lr,
            initial_accumulator,
            epsilon,
            level: Level::detect(),
        })
    }
}

impl RowOptimizer for RowwiseAdagrad {
    fn slots(&self) -> Vec<SlotSpec> {
        ROWWISE_ADAGRAD.slots_from(self.initial_accumulator)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        let rule = self.rule(&mut row[slots[0]], grad);
        update(self.level, rule, row, &[], grad);
    }

    fn update_half(&self, row: &mut HalfRow<'_>, grad: &[f32]) {
        let rule = self.rule(row.slot_mut(0), grad);
        update_half(self.level, rule, row, grad);
    }
}

impl RowwiseAdagrad {
    /// Steps the accumulator; what is left to do for the columns.
    #[inline(always)]
    fn rule(&self, accumulator: &mut f32, grad: &[f32]) -> AdagradRule {
        *accumulator += self.level.run(MeanSquare(grad));
        AdagradRule {
            lr: self.lr,
            root: accumulator.sqrt() + self.epsilon,
        }
    }
}

#[derive(Clone, Copy)]
struct AdagradRule {
    lr: f32,
    root: f32,
}

impl Rule<0> for AdagradRule {
    #[inline(always)]
    fn step(self, weight: f32, _: [f32; 0], grad: f32) -> (f32, [f32; 0]) {
        (weight - self.lr * grad / self.root, [])
    }
}

/// Adam for the rows of the batch with one `v` for a row. Slots `RowwiseAdam_momentum`, a float for
/// each column, and `RowwiseAdam_velocity`, one for the row, start at 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowwiseAdam {
    step: Step,
    level: Level,
}

impl RowwiseAdam {
    /// A step of the optimizer's numbers, in their order.
    pub(super) fn new(numbers: [f32; 6]) -> Result<RowwiseAdam> {
        ROWWISE_ADAM.check(&numbers)?;
        Ok(RowwiseAdam {
            step: Step::new(numbers),
            level: Level::detect(),
        })
    }
}

impl RowOptimizer for RowwiseAdam {
    fn slots(&self) -> Vec<SlotSpec> {
        ROWWISE_ADAM.slots_from(0.0)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        let rule = self.rule(&mut row[slots[1]], grad);
        update(self.level, rule, row, slots, grad);
    }
}

impl RowwiseAdam {
    /// Steps v; what is left to do for the columns.
    #[inline(always)]
    fn rule(&self, v: &mut f32, grad: &[f32]) -> AdamRule {
        let step = self.step;
        *v = step.beta2 * *v + step.rest2 * self.level.run(MeanSquare(grad));
        AdamRule {
            step,
            root: v.abs().sqrt() + step.epsilon,
        }
    }
}

#[derive(Clone, Copy)]
struct AdamRule {
    step: Step,
    root: f32,
}

impl Rule<1> for AdamRule {
    #[inline(always)]
    fn step(self, weight: f32, [m]: [f32; 1], grad: f32) -> (f32, [f32; 1]) {
        let m = self.step.beta1 * m + self.step.rest1 * grad;
        (weight - self.step.lr_t * m / self.root, [m])
    }
}

#[cfg(test)]
mod tests {
    use super::super::half_update::tests::expect_bits_of_floats;
    use super::*;
    use crate::simd::Isa;

    fn grad(t: usize, dim: usize) -> Vec<f32> {
        let value = |at: usize| ((at * 37 + t * 101) % 89) as f32 / 89.0 - 0.4;
        (0..dim).map(value).collect()
    }

    type Made = fn(i32, Level) -> Box<dyn RowOptimizer>;

    fn powers(t: i32) -> [f64; 2] {
        [0.9_f64.powi(t), 0.99_f64.powi(t)]
    }

    const ADAGRAD: Made = |_, level| {
        let step = RowwiseAdagrad::new([0.3, 0.1, 1e-6]).unwrap();
        Box::new(RowwiseAdagrad { level, ..step })
    };
    const ADAM: Made = |t, level| {
        let [one, other] = powers(t).map(|power| power as f32);
        let step = RowwiseAdam::new([0.01, one, other, 0.9, 0.99, 1e-6]).unwrap();
        Box::new(RowwiseAdam { level, ..step })
    };

    #[test]
    fn both_follow_the_paper_over_many_steps() {
        for (dim, steps) in [(1, 300), (13, 300), (37, 300), (64, 50)] {
            let (mut row, mut adam) = (grad(999, dim), grad(999, dim));
            row.push(0.1);
            adam.resize(2 * dim + 1, 0.0);
            let (mut w, mut a) = (grad(999, dim), 0.1_f64);
            let mut w: Vec<f64> = w.drain(..).map(f64::from).collect();
            let (mut x, mut m, mut v) = (w.clone(), vec![0.0; dim], 0.0);
            for t in 1..=steps {
                let g = grad(t, dim);
                ADAGRAD(t as i32, Level::detect()).update(&mut row, &[dim], &g);
                ADAM(t as i32, Level::detect()).update(&mut adam, &[dim, 2 * dim], &g);
                let g: Vec<f64> = g.into_iter().map(f64::from).collect();
                let mean = g.iter().map(|g| g * g).sum::<f64>() / dim as f64;
                a += mean;
                v = 0.99 * v + 0.01 * mean;
                let [one, other] = powers(t as i32);
                let lr = 0.01 * (1.0 - other).sqrt() / (1.0 - one);
                for at in 0..dim {
                    w[at] -= 0.3 * g[at] / (a.sqrt() + 1e-6);
                    m[at] = 0.9 * m[at] + 0.1 * g[at];
                    x[at] -= lr * m[at] / (f64::sqrt(v) + 1e-6);
                }
            }
            let close = |found: f32, expected: f64| {
                let error = (f64::from(found) - expected).abs();
                assert!(
                    error <= 3e-5 * expected.abs().max(1.0),
                    "{found} {expected}"
                );
            };
            let expected = w.iter().copied().chain([a]);
            row.iter()
                .zip(expected)
                .for_each(|(&one, other)| close(one, other));
            let expected = x.iter().copied().chain(m).chain([v]);
            adam.iter()
                .zip(expected)
                .for_each(|(&one, other)| close(one, other));
        }
    }

    #[test]
    fn every_level_gives_the_bits_of_the_scalar_one() {
        for dim in (1..=67).chain([8192]) {
            for (made, slots) in [(ADAGRAD, vec![dim]), (ADAM, vec![dim, 2 * dim])] {
                let run = |isa| {
                    let level = Level::forced(isa)?;
                    let mut row = grad(7, dim);
                    row.resize(slots.len() * dim + 1, 0.0);
                    for t in 1..4 {
                        made(t, level).update(&mut row, &slots, &grad(t as usize, dim));
                    }
                    Some(row.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
                };
                let scalar = run(Isa::Scalar);
                for isa in [Isa::Avx2, Isa::Avx512] {
                    let wide = run(isa);
                    assert!(wide.is_none() || wide == scalar, "{isa:?} dim {dim}");
                }
            }
        }
    }

    #[test]
    fn rows_of_two_bytes_a_value_get_the_bits_of_floats_that_are_rounded() {
        expect_bits_of_floats("rowwise_adagrad", &ADAGRAD);
        expect_bits_of_floats("rowwise_adam", &ADAM);
    }
}
