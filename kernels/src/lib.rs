//! The engine: embedding tables that grow, their rows, their optimizers and their files.
//!
//! It knows nothing of TensorFlow or Python, keeps no global state and reads no environment. It
//! reads a clock only to measure how long batches wait for a disk.

#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as mx_rec_kernels;

mod batch;
pub mod checkpoint;
mod error;
mod halves;
mod history;
mod ids;
mod index;
mod init;
mod keeper;
#[expect(
    unsafe_code,
    reason = "memory of rows and of the index, by the page, gets safe owners here"
)]
mod mem;
mod optim;
mod partition;
mod pool;
#[cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "functions compiled for more instructions are entered here, after a look at \
                  the machine"
    )
)]
mod simd;
#[cfg(test)]
#[path = "../tests/singles/mod.rs"]
mod singles;
mod sort;
mod stores;
mod sync;
mod table;
pub mod tier;
#[cfg(test)]
mod whole;

pub use batch::{
    bag_divisors, reduce, reduce_columns, reduce_pooled, restore, restore_pooled, rows_of_part,
    sparse_bag_ends, sparse_bags, stitch, weight_gradients, Bags, Columns, Combiner, Divisor,
    MaxNorm, SparseBags, SparseRules, SplitKeys, Splitter, StitchTo,
};
pub use error::{Error, Kind, Result};
pub use halves::{pack_rows, Rounding, RowDtype};
pub use ids::{Ids, PADDING};
pub use init::{Distribution, Initializer, Mode};
pub use optim::{
    Adagrad, Adam, ByColumn, Decay, DecayedSgd, HalfRow, LazyAdam, Momentum, Number, Optimizer,
    OtherRows, Range, RowOptimizer, Sgd, Slot, SlotSpec, OPTIMIZERS,
};
pub use partition::{check_parts, Partition, BUCKETS};
pub use pool::Pool;
pub use table::{
    Absent, BatchRows, Field, FieldUpdate, IdsOf, KeyGradients, KeysOf, Lease, Loading,
    LookupGradients, Memory, Push, Pushed, RowGradients, RowStorage, RowsOf, SlotValues, Snapshot,
    Stats, Table, TableConfig, Thresholds, TierConfig, TierStats, MAX_CAPACITY, MAX_DIM,
};
