//! The one place where the instruction set is chosen.
//!
//! Scalar Rust is the meaning of every kernel. A kernel is one `#[inline(always)]` body that is
//! compiled three times: for the baseline of the target, for AVX2 and for AVX-512. Fused
//! multiply-add is never enabled, so all three give the same bits.

mod four;
mod level;

pub(crate) use four::{Four, FOUR};
#[cfg(test)]
pub(crate) use level::Isa;
pub(crate) use level::{Level, Vectorized};
