//! The one place where the instruction set is chosen, and the few loops that need more than plain Rust.
//!
//! Scalar Rust is the meaning of every kernel. A kernel is one `#[inline(always)]` body that is compiled three times: for the
//! baseline of the target, for AVX2 and for AVX-512. Fused multiply-add is never enabled, so all three give the same bits.

mod level;
mod rows;

pub(crate) use level::{Kernel, Level};
pub(crate) use rows::{add_row, prefetch, prefetch_row};

#[cfg(test)]
pub(crate) use level::Isa;
