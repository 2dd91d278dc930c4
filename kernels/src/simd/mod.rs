//! The one place where the instruction set is chosen.
//!
//! Scalar Rust is the meaning of every kernel. A kernel is one `#[inline(always)]` body that is
//! compiled three times: for the baseline of the target, for AVX2 and for AVX-512. Fused
//! multiply-add is never enabled, so all three give the same bits.

mod float16;
mod four;
mod level;

pub(crate) use float16::WORDS as FLOAT16_WORDS;
pub(crate) use four::{Four, FOUR};
#[cfg(test)]
pub(crate) use level::Isa;
pub(crate) use level::{Level, Vectorized};

/// Runs one expression for each block of columns, with the first column and with the number of
/// columns as a constant: as many as can be of the first size, one more of each other size, and the
/// rest one by one. 16 are one 512-bit vector, or two or four smaller ones.
macro_rules! in_blocks {
    ($count:expr, [$first:literal $(, $other:literal)*], ($at:ident, $N:ident) => $run:expr) => {{
        let count: usize = $count;
        let mut $at = 0;
        while $at + $first <= count {
            const $N: usize = $first;
            $run;
            $at += $N;
        }
        $(if $at + $other <= count {
            const $N: usize = $other;
            $run;
            $at += $N;
        })*
        while $at < count {
            const $N: usize = 1;
            $run;
            $at += $N;
        }
    }};
}
pub(crate) use in_blocks;
