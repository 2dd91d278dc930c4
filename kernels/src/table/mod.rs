//! One embedding table: keys, rows, and every verb on them.
//!
//! | file | what |
//! |---|---|
//! | `config`, `args` | settings, arguments and results |
//! | `content`, `free_rows` | rows in use, free, frozen; the slots of a row |
//! | `changes` | which rows changed since which save |
//! | `offset` | row numbers that tell their generation |
//! | `rows` | what a table has by row number: content, flight, offsets |
//! | `engine` | the table: locks, new rows, removal |
//! | `lease`, `flight`, `fingerprint` | batches ahead: staged rows, and offsets that outlive a removal |
//! | `read` | lookup and find |
//! | `admission`, `observed`, `evict` | which keys get rows, and which lose them |
//! | `apply` | updates and assignment |
//! | `export`, `load`, `history_io` | the whole content, out and in; its history |
//!
//! # Locks
//!
//! Who needs several takes them in this order, and gives them back in any:
//!
//! | lock | guards |
//! |---|---|
//! | `index` | which key has which row |
//! | `flight` | what batches on their way hold |
//! | `content` | the rows' floats, and which rows are used |
//! | `births` | since when rows belong to their keys; taken inside of `Content` and `Rows` alone |
//! | `history` | how often keys were seen |
//!
//! `observed`, `scratch` and the kept buffers are taken for a moment, and no other lock while they are
//! held. Index and content are held for a whole batch, so that the key work of one batch overlaps the
//! update of another. Work handed to a [`Pool`](crate::Pool) takes no lock but one of a shard of
//! counters. Generations of rows change only under the content's write lock; rows leave their keys
//! only under the index's as well.

mod admission;
#[cfg(test)]
mod admission_tests;
mod apply;
mod args;
mod changes;
mod config;
mod content;
mod engine;
mod evict;
mod export;
mod fingerprint;
mod flight;
mod free_rows;
mod history_io;
mod lease;
mod load;
mod observed;
mod offset;
mod read;
mod rows;

pub use admission::{Stats, Thresholds};
pub use args::{Absent, Export, LookupGradients, Memory, Target};
pub use config::{TableConfig, MAX_CAPACITY, MAX_DIM};
pub use engine::Table;
pub use export::Snapshot;
pub(crate) use export::Window;
pub use lease::Lease;
pub(crate) use load::BuiltContent;
pub use load::Loading;
