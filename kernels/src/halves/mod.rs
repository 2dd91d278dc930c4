//! Embeddings and slots of 2 bytes a value: their types, how they are read as floats, and how
//! floats are rounded to them.
//!
//! All of it is arithmetic on integers, but for products that are exact: the same bits on every
//! instruction set, and whether or not the processor takes denormals for zeros.

mod draws;
mod dtype;
mod packed;
mod place;
mod round;
mod wire;

pub(crate) use draws::{folded, folded_keys, Draws, RowDraws};
pub(crate) use dtype::Half;
pub use dtype::{Rounding, RowDtype};
pub(crate) use packed::{
    decode, encode, encode_words, from_bytes, read, round_row, to_bytes, words, By, Unusual,
};
pub(crate) use place::{stream, Place};
pub(crate) use round::{with_value, Bfloat16, Float16, Value};
pub use wire::pack_rows;
pub(crate) use wire::unpack;
