//! Rows on disk: a log of fixed-size records in scratch files, and which rows go there.
//!
//! It knows neither tables nor keys: a record is a row number, a key as it was given, and floats.
//!
//! | file | what |
//! |---|---|
//! | `storage` | what a log needs of whatever holds its bytes |
//! | `files` | scratch files, one in each directory |
//! | `scratch` | files that a killed process does not leave behind |
//! | `reader`, `pending` | many reads at once: what memory holds, and what has to wait |
//! | `pages` | what reads past the page cache need |
//! | `uring`, `threads` | how that is read |
//! | `record` | the bytes of a record, and its checksum |
//! | `segments` | which slots of which segments are live |
//! | `log` | append, read, free, compact |
//! | `shared` | what a log and its readings share |
//! | `reading` | a batch of reads, planned under a lock and done without one |
//! | `policy` | which frames of memory to empty |

mod files;
mod log;
mod pages;
mod pending;
mod policy;
mod reader;
mod reading;
pub(crate) mod record;
mod scratch;
mod segments;
mod shared;
mod storage;
mod threads;
#[expect(
    unsafe_code,
    reason = "entries of io_uring name memory that the system writes to; safe batches of reads here"
)]
mod uring;

pub use files::{reads_by, Files};
pub use log::{Log, LogStats, Moved, Moves, Record};
pub use policy::Policy;
pub use reader::ReadBy;
pub use reading::{Reading, Want};
pub use storage::{ReadAt, ReadFailure, Storage};
