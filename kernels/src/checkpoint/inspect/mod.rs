//! Looks at a saved table without a table in memory: what is there, whether it is whole, one row,
//! and what differs from another.
//!
//! `describe` says what is there, `verify` reads all of it, `row` finds one key, `diff` compares by
//! key, `history` is what admission knows; `progress` says how far the reading is. Every file is
//! untrusted.

mod describe;
mod diff;
mod history;
mod keys;
mod progress;
mod row;
mod verify;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod tests;

pub use describe::{describe, Description, Fault, PartSize, Slot};
pub use diff::{diff, Difference, PartDifference};
pub use history::{HistoryDifference, HistoryFacts, KeyHistory};
pub use keys::Keys;
pub use row::{row, Number, PartValues, Row};
pub use verify::{verify, Report};
