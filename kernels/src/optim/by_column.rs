//! The one type of the optimizers that treat all columns of a row alike.

use super::description::Optimizer;
use super::half_row::HalfRow;
use super::half_update::update_half;
use super::row::{update, Decay, RowOptimizer, Rule, SlotSpec};
use crate::simd::Level;

/// One step of an optimizer that is the same for every column of a row.
#[derive(Clone, Copy, Debug)]
pub struct ByColumn<R, const S: usize> {
    rule: R,
    form: &'static Optimizer,
    /// What slots start at for which a number says it.
    start: f32,
    decay: Option<Decay>,
    level: Level,
}

impl<R, const S: usize> ByColumn<R, S> {
    /// A step of the optimizer `form`, of numbers that were checked.
    pub(super) fn of(form: &'static Optimizer, rule: R) -> Self {
        ByColumn {
            rule,
            form,
            start: 0.0,
            decay: None,
            level: Level::detect(),
        }
    }

    /// The same with slots that start at a number.
    pub(super) fn starting(self, start: f32) -> Self {
        ByColumn { start, ..self }
    }

    /// The same with what it does to rows without a gradient.
    pub(super) fn decaying(self, decay: Decay) -> Self {
        let decay = Some(decay);
        ByColumn { decay, ..self }
    }

    /// The same, compiled for `level`.
    pub(super) fn at(self, level: Level) -> Self {
        ByColumn { level, ..self }
    }
}

impl<R: Rule<S> + Sync, const S: usize> RowOptimizer for ByColumn<R, S> {
    fn slots(&self) -> Vec<SlotSpec> {
        self.form.slots_from(self.start)
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        update(self.level, self.rule, row, slots, grad);
    }

    fn update_half(&self, row: &mut HalfRow<'_>, grad: &[f32]) {
        update_half(self.level, self.rule, row, grad);
    }

    fn decay(&self) -> Option<Decay> {
        self.decay
    }
}
