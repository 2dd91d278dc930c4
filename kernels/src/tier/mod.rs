//! Rows on disk: a log of fixed-size records in scratch files, and the choice of rows that go there.
//!
//! It knows neither tables nor keys: a record is a row number, a key as it was given, and floats.
//!
//! | file | what |
//! |---|---|
//! | `storage` | what a log needs of whatever holds its bytes |
//! | `files` | scratch files, one in each directory |
//! | `scratch` | files that a killed process does not leave behind |
//! | `reader` | many reads at once: by threads |
//! | `faulty` | a storage that fails on request |
//! | `record` | the bytes of a record, and its checksum |
//! | `segments` | which slots of which segments are live |
//! | `log` | append, read, free |
//! | `reading` | a batch of reads, planned under a lock and done without one |
//! | `policy` | which frames of memory to empty |

mod faulty;
mod files;
mod log;
mod policy;
mod reader;
mod reading;
mod record;
mod scratch;
mod segments;
mod storage;

pub use faulty::{Faulty, Operation};
pub use files::Files;
pub use log::{Log, LogStats, Moved, Moves, Record};
pub use policy::Policy;
pub use reading::{Reading, Want};
pub use storage::{ReadAt, ReadFailure, Storage};
