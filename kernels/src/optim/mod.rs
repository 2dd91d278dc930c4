//! Optimizers: one step for one row, in place, with the mathematics of TensorFlow 1.15's own.

mod adagrad;
mod check;
mod ftrl;
mod lazy_adam;
mod momentum;
mod row;
mod sgd;

#[cfg(test)]
mod oracle;

pub use adagrad::Adagrad;
pub use ftrl::Ftrl;
pub use lazy_adam::LazyAdam;
pub use momentum::Momentum;
pub use row::{RowOptimizer, SlotSpec};
pub use sgd::Sgd;
