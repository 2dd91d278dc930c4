//! What an optimizer is to a table, and the one loop in which every optimizer updates a row.

use super::half_row::HalfRow;
use crate::simd::{in_blocks, Level, Vectorized};
use std::borrow::Cow;

/// One slot of a row: floats beside the embedding that belong to an optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotSpec {
    /// Name, also of its directory in a checkpoint: `LazyAdam_momentum`.
    pub name: Cow<'static, str>,
    /// Value of every column in a new row.
    pub initial: f32,
    /// Whether it is one float for the row. Else it has `dim`, one for each column.
    pub per_row: bool,
}

impl SlotSpec {
    /// A slot of an optimizer of this crate.
    pub(super) fn new(name: &'static str, initial: f32, per_row: bool) -> SlotSpec {
        SlotSpec {
            name: Cow::Borrowed(name),
            initial,
            per_row,
        }
    }

    /// Whether it is the same as another one, to the bits of what it starts at.
    pub(crate) fn is(&self, other: &SlotSpec) -> bool {
        let parts = |slot: &SlotSpec| (slot.per_row, slot.initial.to_bits());
        parts(self) == parts(other) && self.name == other.name
    }

    /// Floats of it in a row of `dim` columns.
    pub fn floats(&self, dim: usize) -> usize {
        if self.per_row {
            1
        } else {
            dim
        }
    }
}

/// One step of an optimizer with its hyperparameters.
///
/// Not-a-numbers, infinities and denormals go through the arithmetic as they do in TensorFlow's
/// kernels.
pub trait RowOptimizer: Sync {
    /// The slots a row needs, in the order in which [`RowOptimizer::update`] expects their places.
    fn slots(&self) -> Vec<SlotSpec>;

    /// Updates one row in place.
    ///
    /// `row` is the whole row `[embedding | slot ..]`; `slots[i]` is the index in it of the first
    /// float of the `i`-th slot of [`RowOptimizer::slots`]; `grad (dim)` is the summed gradient of
    /// the row. The embedding and the slots must not overlap.
    ///
    /// # Panics
    /// If `row` does not hold `dim` floats at 0 and those of every slot at its place, or `slots`
    /// has fewer entries than the optimizer has slots.
    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]);

    /// [`RowOptimizer::update`] of a row whose embedding has 2 bytes a value. The result has the
    /// bits that [`RowOptimizer::update`] gives, rounded: who has no quicker way needs none.
    ///
    /// # Panics
    /// As [`RowOptimizer::update`].
    fn update_half(&self, row: &mut HalfRow<'_>, grad: &[f32]) {
        row.as_floats(grad.len(), |row, slots| self.update(row, slots, grad));
    }

    /// What the step does to rows without a gradient; `None`: nothing. A table does it when
    /// somebody reads or updates them.
    fn decay(&self) -> Option<Decay> {
        None
    }
}

/// What a step of Adam does to rows without a gradient, whose first two slots are m and v: `m =
/// beta1 m; v = beta2 v`, and if it moves them `w -= lr m / (sqrt(v) + epsilon)`.
#[derive(Clone, Copy, Debug)]
pub struct Decay {
    /// Decay of m.
    pub beta1: f32,
    /// Decay of v.
    pub beta2: f32,
    /// Keeps the quotient finite; above 0.
    pub epsilon: f32,
    /// The learning rate, with the corrections of the moments' bias in it.
    pub lr: f32,
    /// Whether it moves them; `lr` and `epsilon` are of no use otherwise.
    pub moves: bool,
}

/// The mathematics of one column with `S` slots: (weight, slots, gradient) to (weight, slots).
pub(super) trait Rule<const S: usize>: Copy {
    /// One step. Must be `#[inline(always)]`, see [`Vectorized`].
    fn step(self, weight: f32, slots: [f32; S], grad: f32) -> (f32, [f32; S]);
}

/// Runs `rule` over every column of a row as compiled for `level`; the arguments are those of
/// [`RowOptimizer::update`].
#[inline]
pub(super) fn update<const S: usize>(
    level: Level,
    rule: impl Rule<S>,
    row: &mut [f32],
    slots: &[usize],
    grad: &[f32],
) {
    let starts = *slots.first_chunk().expect("the place of every slot");
    level.run(Update {
        rule,
        row,
        starts,
        grad,
    });
}

struct Update<'a, R, const S: usize> {
    rule: R,
    row: &'a mut [f32],
    starts: [usize; S],
    grad: &'a [f32],
}

impl<R: Rule<S>, const S: usize> Vectorized for Update<'_, R, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Update {
            rule,
            row,
            starts,
            grad,
        } = self;
        in_blocks!(grad.len(), [16, 8, 4], (at, N) => {
            let mut weights = [0.0; N];
            weights.copy_from_slice(&row[at..at + N]);
            step_columns(rule, &mut weights, row, starts, grad, at);
            row[at..at + N].copy_from_slice(&weights);
        });
    }
}

/// Columns `at .. at + N`, of which the weights are given: everything is read before anything is
/// written, so the compiler may use vectors without asking whether embedding and slots overlap.
#[inline(always)]
pub(super) fn step_columns<const N: usize, const S: usize>(
    rule: impl Rule<S>,
    weights: &mut [f32; N],
    row: &mut [f32],
    starts: [usize; S],
    grad: &[f32],
    at: usize,
) {
    let mut slots = [[0.0; N]; S];
    for (slot, start) in slots.iter_mut().zip(starts) {
        slot.copy_from_slice(&row[start + at..start + at + N]);
    }
    step_values(rule, weights, &mut slots, grad, at);
    for (slot, start) in slots.iter().zip(starts) {
        row[start + at..start + at + N].copy_from_slice(slot);
    }
}

/// The same of which the slots are given, too.
#[inline(always)]
pub(super) fn step_values<const N: usize, const S: usize>(
    rule: impl Rule<S>,
    weights: &mut [f32; N],
    slots: &mut [[f32; N]; S],
    grad: &[f32],
    at: usize,
) {
    let mut grads = [0.0; N];
    grads.copy_from_slice(&grad[at..at + N]);
    for column in 0..N {
        let old = std::array::from_fn(|slot| slots[slot][column]);
        let (weight, new) = rule.step(weights[column], old, grads[column]);
        weights[column] = weight;
        for slot in 0..S {
            slots[slot][column] = new[slot];
        }
    }
}
