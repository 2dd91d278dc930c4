//! What the values of an embedding may be.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of the values of an embedding or a slot where they are stored. They are read and
/// updated as float32, whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowDtype {
    /// 4 bytes.
    #[default]
    Float32,
    /// The upper 2 bytes of a float32: its range, with 8 bits of precision.
    Bfloat16,
    /// IEEE 754 binary16: up to 65,504, with 11 bits of precision.
    Float16,
}

/// A type of 2 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Bfloat16,
    Float16,
}

/// How a float32 becomes a value of 2 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// To one of its two neighbours, with the probabilities that keep the mean, by random numbers
    /// that depend on the table's seed, the key, the column and the number of the update alone.
    #[default]
    Stochastic,
    /// To the nearer neighbour, to the even one from the middle. Changes of less than half the
    /// distance between neighbours are lost.
    Nearest,
}

impl RowDtype {
    /// Its name, as NumPy and TensorFlow have it.
    pub fn name(self) -> &'static str {
        match self {
            RowDtype::Float32 => "float32",
            RowDtype::Bfloat16 => "bfloat16",
            RowDtype::Float16 => "float16",
        }
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            RowDtype::Float32 => 4,
            RowDtype::Bfloat16 | RowDtype::Float16 => 2,
        }
    }

    /// The largest finite value.
    pub fn largest(self) -> f32 {
        match self.half() {
            None => f32::MAX,
            Some(half) => half.largest(),
        }
    }

    /// The type of 2 bytes that it is, if it is one.
    pub(crate) fn half(self) -> Option<Half> {
        match self {
            RowDtype::Float32 => None,
            RowDtype::Bfloat16 => Some(Half::Bfloat16),
            RowDtype::Float16 => Some(Half::Float16),
        }
    }

    /// Words of 4 bytes that `dim` values take.
    pub fn words(self, dim: usize) -> usize {
        match self.half() {
            None => dim,
            Some(_) => dim.div_ceil(2),
        }
    }
}

impl fmt::Display for RowDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Half {
    /// The largest finite value.
    pub(super) fn largest(self) -> f32 {
        match self {
            Half::Bfloat16 => f32::from_bits(0x7F7F_0000),
            Half::Float16 => 65_504.0,
        }
    }
}
