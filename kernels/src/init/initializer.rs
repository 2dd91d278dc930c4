//! The initializers and how a row is filled by them.

use super::normal::{normal, truncated_normal};
use super::philox::{words, COLUMNS};
use crate::simd::{Level, Vectorized};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Standard deviation of a standard normal variable cut at two standard deviations; TensorFlow
/// divides by it.
const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;

/// The distributions of [`Initializer::VarianceScaling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Uniform within `sqrt(3 * variance)` of zero.
    Uniform,
    /// Normal.
    UntruncatedNormal,
    /// Normal, cut at two standard deviations, with the variance after the cut.
    TruncatedNormal,
}

/// What the scale of [`Initializer::VarianceScaling`] is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// `fan_in`.
    FanIn,
    /// `fan_out`.
    FanOut,
    /// The mean of both.
    FanAvg,
}

/// How the embedding of a new row is made.
///
/// Formulas are TensorFlow 1.15's. Random values are a pure function of (seed, key, column):
/// neither order nor threads nor the machine change a bit of them. As JSON it is an object whose
/// `kind` is the name in snake_case, beside the parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    /// All columns 0.
    Zeros,
    /// All columns 1.
    Ones,
    /// All columns this value.
    Constant {
        /// The value.
        value: f32,
    },
    /// `u * (max - min) + min` with `u` in [0, 1) of 24 bits; `max` itself occurs only if the sum
    /// rounds up to it.
    RandomUniform {
        /// Least value.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// Normal values, at most 6.4 standard deviations from the mean.
    RandomNormal {
        /// Mean.
        mean: f32,
        /// Standard deviation, at least 0.
        stddev: f32,
    },
    /// Normal values less than two standard deviations from the mean.
    TruncatedNormal {
        /// Mean.
        mean: f32,
        /// Standard deviation before the cut, at least 0.
        stddev: f32,
    },
    /// Values of mean 0 and variance `scale / max(1, fan)` (glorot, he, lecun).
    VarianceScaling {
        /// Scale of the variance, above 0.
        scale: f32,
        /// Which fan divides the scale.
        mode: Mode,
        /// Distribution of the values.
        distribution: Distribution,
        /// Number of inputs of the layer, above 0.
        fan_in: f64,
        /// Number of outputs of the layer, above 0.
        fan_out: f64,
    },
}

impl Initializer {
    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidArgument` naming the parameter and its value: not finite, `min > max`, `max - min`
    /// beyond float32, `stddev < 0`, `scale <= 0`, `fan_in <= 0` or `fan_out <= 0`.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Initializer::Zeros | Initializer::Ones => Ok(()),
            Initializer::Constant { value } => finite("value", value),
            Initializer::RandomUniform { min, max } => {
                finite("min", min)?;
                finite("max", max)?;
                if min > max {
                    return Err(Error::invalid("initializer: min must not be above max")
                        .with("min", min)
                        .with("max", max));
                }
                if !(max - min).is_finite() {
                    return Err(Error::invalid("initializer: max - min must fit float32")
                        .with("min", min)
                        .with("max", max));
                }
                Ok(())
            }
            Initializer::RandomNormal { mean, stddev }
            | Initializer::TruncatedNormal { mean, stddev } => {
                finite("mean", mean)?;
                finite("stddev", stddev)?;
                if stddev < 0.0 {
                    return Err(Error::invalid("initializer: stddev must not be negative")
                        .with("stddev", stddev));
                }
                Ok(())
            }
            Initializer::VarianceScaling {
                scale,
                fan_in,
                fan_out,
                ..
            } => {
                positive("scale", f64::from(scale))?;
                positive("fan_in", fan_in)?;
                positive("fan_out", fan_out)
            }
        }
    }

    /// No value is further from zero than this.
    pub(crate) fn bound(&self) -> f64 {
        let normal =
            |mean: f32, stddev: f32, most: f64| f64::from(mean).abs() + most * f64::from(stddev);
        match *self {
            Initializer::Zeros => 0.0,
            Initializer::Ones => 1.0,
            Initializer::Constant { value } => f64::from(value).abs(),
            Initializer::RandomUniform { min, max } => f64::from(min.abs().max(max.abs())),
            Initializer::RandomNormal { mean, stddev } => normal(mean, stddev, 6.5),
            Initializer::TruncatedNormal { mean, stddev } => normal(mean, stddev, 2.0),
            // A fan counts as 1 at least.
            Initializer::VarianceScaling { scale, .. } => f64::from(scale).sqrt() * 6.5,
        }
    }

    /// Makes the embedding of `key`: column `c` of `out` `(dim)` depends on `seed`, `key` and `c`
    /// alone.
    pub fn fill(&self, seed: u64, key: i64, out: &mut [f32]) {
        self.fill_at(Level::detect(), seed, key, out);
    }

    fn fill_at(&self, level: Level, seed: u64, key: i64, out: &mut [f32]) {
        let random = match self.resolve() {
            Resolved::Constant(value) => return out.fill(value),
            Resolved::Random(random) => random,
        };
        let Random {
            kind,
            factor,
            shift,
        } = random;
        // One kernel per distribution: the choice is made per row, not per column.
        match kind {
            Distribution::Uniform => {
                level.run(Fill {
                    seed,
                    key,
                    out,
                    value: |word| uniform(word) * factor + shift,
                });
            }
            Distribution::UntruncatedNormal => {
                level.run(Fill {
                    seed,
                    key,
                    out,
                    value: |word| normal(word) * factor + shift,
                });
            }
            Distribution::TruncatedNormal => level.run(Fill {
                seed,
                key,
                out,
                value: |word| truncated_normal(word) * factor + shift,
            }),
        }
    }

    /// The initializer as a constant or as `random * factor + shift`.
    fn resolve(&self) -> Resolved {
        let random = |kind, factor, shift| {
            Resolved::Random(Random {
                kind,
                factor,
                shift,
            })
        };
        match *self {
            Initializer::Zeros => Resolved::Constant(0.0),
            Initializer::Ones => Resolved::Constant(1.0),
            Initializer::Constant { value } => Resolved::Constant(value),
            Initializer::RandomUniform { min, max } => {
                random(Distribution::Uniform, max - min, min)
            }
            Initializer::RandomNormal { mean, stddev } => {
                random(Distribution::UntruncatedNormal, stddev, mean)
            }
            Initializer::TruncatedNormal { mean, stddev } => {
                random(Distribution::TruncatedNormal, stddev, mean)
            }
            Initializer::VarianceScaling {
                scale,
                mode,
                distribution,
                fan_in,
                fan_out,
            } => {
                let fan = match mode {
                    Mode::FanIn => fan_in,
                    Mode::FanOut => fan_out,
                    Mode::FanAvg => (fan_in + fan_out) / 2.0,
                };
                let variance = f64::from(scale) / fan.max(1.0);
                match distribution {
                    Distribution::Uniform => {
                        let limit = (3.0 * variance).sqrt() as f32;
                        random(distribution, limit - -limit, -limit)
                    }
                    Distribution::UntruncatedNormal => {
                        random(distribution, variance.sqrt() as f32, 0.0)
                    }
                    Distribution::TruncatedNormal => random(
                        distribution,
                        (variance.sqrt() / TRUNCATED_STDDEV) as f32,
                        0.0,
                    ),
                }
            }
        }
    }
}

enum Resolved {
    Constant(f32),
    Random(Random),
}

struct Random {
    kind: Distribution,
    factor: f32,
    shift: f32,
}

/// `out[c] = value(word c)`, sixteen columns at a time.
struct Fill<'a, F> {
    seed: u64,
    key: i64,
    out: &'a mut [f32],
    value: F,
}

impl<F: Fn(u32) -> f32> Vectorized for Fill<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Fill {
            seed,
            key,
            out,
            value,
        } = self;
        for (group, out) in (0..).zip(out.chunks_mut(COLUMNS)) {
            let mut columns = [0.0; COLUMNS];
            for (column, word) in columns.iter_mut().zip(words(seed, key, group)) {
                *column = value(word);
            }
            // Two copies, because one of a known length is a single store.
            match <&mut [f32; COLUMNS]>::try_from(&mut *out) {
                Ok(out) => *out = columns,
                Err(_) => out.copy_from_slice(&columns[..out.len()]),
            }
        }
    }
}

/// The top 24 bits as a number in [0, 1).
#[inline(always)]
fn uniform(word: u32) -> f32 {
    (word >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

fn finite(name: &'static str, value: f32) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(format!("initializer: {name} must be finite")).with(name, value))
}

fn positive(name: &'static str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::invalid(format!("initializer: {name} must be finite and above 0")).with(name, value))
}

#[cfg(test)]
#[path = "initializer_tests.rs"]
mod tests;
