//! Values of new rows: a pure function of (seed, key, column), whatever the threads, the batches or
//! the machine.

mod initializer;
mod normal;
mod philox;

pub use initializer::{Distribution, Initializer, Mode};
#[cfg(test)]
pub(crate) use philox::words;
