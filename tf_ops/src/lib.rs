//! The adapter: everything that knows TensorFlow.
//!
//! `sys` finds TensorFlow's C API in the process, `tf` makes it safe, `ops` is one file for each
//! family of ops. A kernel never sees a raw pointer; a panic never leaves `guard`.

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod config;
pub mod graph;
mod guard;
mod kept;
#[cfg(test)]
mod kept_tests;
mod load;
pub mod loads;
mod op_def;
pub mod ops;
mod registry;
#[cfg(test)]
mod registry_tests;
mod shapes;
mod shared;
#[cfg(test)]
mod shared_tests;
mod sync;
#[expect(unsafe_code, reason = "the C API is called here and wrapped in tf")]
mod sys;
mod tables;
#[expect(
    unsafe_code,
    reason = "what TensorFlow hands out gets safe owners here"
)]
mod tf;
mod threads;
pub mod trace;

pub use config::check as check_table;
pub use guard::panic_text;
pub use load::load;
pub use op_def::{Arg, Attr, OpDef};
pub use shapes::{infer as infer_shapes, Lengths, Shape};
pub use sys::LoadError;
pub use tables::held as held_by_tables;
