//! One embedding table: keys, rows, and every verb on them.
//!
//! | file | what |
//! |---|---|
//! | `config`, `args` | settings, arguments and results |
//! | `content`, `free_rows` | rows in use, free, frozen; the slots of a row |
//! | `changes` | which rows changed since which save |
//! | `offset` | row numbers that tell their generation |
//! | `engine` | the table: locks, new rows, removal |
//! | `lease`, `flight`, `fingerprint` | batches ahead: staged rows, and offsets that outlive a removal |
//! | `read` | lookup and find |
//! | `admission`, `observed`, `evict` | which keys get rows, and which lose them |
//! | `apply` | updates and assignment |
//! | `export`, `load`, `history_io` | the whole content, out and in; its history |

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

pub use admission::{Stats, Thresholds};
pub use args::{Absent, Export, LookupGradients, Memory, Target};
pub use config::{TableConfig, MAX_CAPACITY, MAX_DIM};
pub use engine::Table;
pub use export::Snapshot;
pub(crate) use export::Window;
pub use lease::Lease;
pub(crate) use load::BuiltContent;
pub use load::Loading;
