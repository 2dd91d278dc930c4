//! Looks at a saved table without a table in memory: what is there, whether it is whole, one row,
//! and what differs from another.
//!
//! `facts` reads the manifest, `layout` finds the parts and checks their shapes, `verify` reads
//! them all, `row` finds one key, `diff` compares by key, `history` is what admission knows;
//! `stream` has what reads in blocks and says how far it is. Every file is untrusted.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod diff;
mod facts;
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
pub use facts::Slot;
pub use history::{HistoryDifference, HistoryFacts, KeyHistory};
pub use keys::Keys;
pub use layout::{describe, Description, Fault, PartSize};
pub use row::{row, Number, PartValues, Row};
pub use verify::{verify, Report};
