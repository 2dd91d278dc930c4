//! Looks at a saved table without a table in memory: what is there, whether it is whole, one row,
//! and what differs from another.
//!
//! `layout` finds the parts and checks their shapes, `verify` reads them all, `row` finds one key,
//! `diff` compares by key, `history` is what admission knows; `stream` has what reads in blocks and
//! says how far it is. Every file is untrusted.

mod diff;
mod history;
mod keys;
mod layout;
mod row;
mod stream;
mod verify;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod tests;

pub use diff::{diff, Difference, PartDifference};
pub use history::{HistoryDifference, HistoryFacts, KeyHistory};
pub use keys::Keys;
pub use layout::{describe, Description, Fault, PartSize, Slot};
pub use row::{row, Number, PartValues, Row};
pub use verify::{verify, Report};
