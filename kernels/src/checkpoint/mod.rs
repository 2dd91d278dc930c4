//! A table on disk: one directory with its keys, its embeddings and its optimizer slots.
//!
//! `docs/checkpoint-format.md` has the bytes. `format` says what the files are, `writer` makes them
//! beside their destination and renames them into place. `file` compares what is read with the
//! manifest, `layout` finds the parts, and `reader` believes nothing that was not checked. `history`
//! and `sketch` have the files of admission, `steps` has that of Adam's steps. `inspect` looks at
//! files without a table, and `commit` puts all tables of a checkpoint into place at once.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod block;
pub mod commit;
mod file;
mod format;
mod history;
pub mod inspect;
mod layout;
mod listing;
mod manifest;
mod manifest_v1;
mod partitioned;
mod reader;
mod rows;
mod sketch;
mod steps;
mod whole;
mod writer;

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod temp;
#[cfg(test)]
mod tests;

pub use format::check_slot;
pub use reader::{load, load_chain, load_part, Loaded, StagedLoad};
pub use writer::{save, save_delta, Saved};
