//! A table on disk: one directory with its keys, its embeddings and its optimizer slots.
//!
//! `docs/checkpoint-format.md` has the bytes. `format` says what the files are, `writer` makes them
//! beside their destination and renames them into place, `reader` believes nothing it has not
//! checked. `history` and `sketch` have the files of admission, `steps` has that of Adam's steps.
//! `commit` puts all tables of a checkpoint into place at once.

mod block;
pub mod commit;
mod format;
mod history;
pub mod inspect;
mod manifest;
mod manifest_v1;
mod partitioned;
mod parts;
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
