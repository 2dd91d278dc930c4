//! Optimizers: one step for one row, in place, with the mathematics of TensorFlow 1.15's own.

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod by_column;
mod description;
mod ftrl;
mod half_row;
mod half_update;
mod lazy_adam;
mod missed;
mod momentum;
mod nadam;
mod optimizers;
mod proximal;
mod rmsprop;
mod row;
mod rowwise;
mod sgd;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod oracle;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use by_column::ByColumn;
pub use description::{Number, Optimizer, OtherRows, Range, Slot};
pub use half_row::HalfRow;
pub(crate) use half_row::{Room, StoredSlot};
pub use lazy_adam::LazyAdam;
pub(crate) use lazy_adam::MOMENTS;
pub(crate) use missed::{is_still, Missed, Steps};
pub use momentum::Momentum;
pub(crate) use optimizers::usual_start;
pub use optimizers::OPTIMIZERS;
pub use row::{Decay, RowOptimizer, SlotSpec};
pub use sgd::{DecayedSgd, Sgd};
