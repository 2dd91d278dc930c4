//! One value: 2 bytes to a float32, and a float32 to 2 bytes.
//!
//! Infinities stay what they are, and so do not-a-numbers but for bits of their payload; those of
//! float16 are read as quiet ones, as processors read them. A finite value beyond the largest one
//! becomes the largest one (it saturates).

use crate::simd::{Level, FLOAT16_WORDS};

const EXPONENT: u32 = 0x7F80_0000;
const MAGNITUDE: u32 = 0x7FFF_FFFF;
/// Float16's exponents are so much smaller than float32's, in float32's bits.
const REBIAS: u32 = 112 << 23;
/// The smallest normal float16, and its infinity, in the place that float32 has for them.
const LEAST_NORMAL: u32 = 0x400 << 13;
const INFINITE: u32 = 0x7C00 << 13;
/// The smallest normal float16, 2^-14, as a float32. Below it float16 has multiples of 2^-24.
const SMALLEST_NORMAL: u32 = 113 << 23;

/// A type of 2 bytes; the bits are in the lower half of a word, the upper half is 0.
pub(crate) trait Value: Copy {
    /// The largest finite magnitude, as the bits of a float32.
    const LARGEST: u32;

    /// The float32 of the same value.
    fn decode(half: u32) -> f32;

    /// Those of words of two values: of their lower halves, and of the upper ones. In a hot loop
    /// that is compiled for `level`.
    #[inline(always)]
    fn decode_words<const N: usize>(_level: Level, words: [u32; N]) -> [[f32; N]; 2] {
        decode_each::<Self, N>(words)
    }

    /// Rounds a value of at most the largest magnitude to a neighbour: to the one of larger
    /// magnitude if its distance from the other, in parts of the distance between both, and
    /// `random / 2^16` (below 1) are 1 or more together.
    fn stochastic(value: f32, random: u32) -> u32;

    /// [`Value::stochastic`] of a usual value, which most are.
    fn usual_stochastic(value: f32, random: u32) -> u32;

    /// Whether a value is usual, which none is that needs [`Value::beyond`].
    fn is_usual(value: f32) -> bool;

    /// Rounds a value of at most the largest magnitude to the nearer neighbour, to the even one
    /// from the middle.
    fn nearest(value: f32) -> u32;

    /// What becomes of a value that is larger, or no number.
    fn beyond(value: f32) -> u32;

    /// Whether a value needs [`Value::beyond`].
    #[inline(always)]
    fn is_beyond(value: f32) -> bool {
        value.to_bits() & MAGNITUDE > Self::LARGEST
    }

    /// Rounds any value, as `round` does those that fit.
    #[cfg(test)]
    fn any(value: f32, round: impl Fn(f32) -> u32) -> u32 {
        match Self::is_beyond(value) {
            true => Self::beyond(value),
            false => round(value),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Bfloat16;

#[derive(Clone, Copy)]
pub(crate) struct Float16;

/// [`Value::decode_words`] by arithmetic. In loops: closures over arrays are not made vectors of.
#[inline(always)]
fn decode_each<V: Value, const N: usize>(words: [u32; N]) -> [[f32; N]; 2] {
    let mut values = [[0.0; N]; 2];
    for at in 0..N {
        values[0][at] = V::decode(words[at] & 0xFFFF);
        values[1][at] = V::decode(words[at] >> 16);
    }
    values
}

impl Value for Bfloat16 {
    const LARGEST: u32 = 0x7F7F_0000;

    #[inline(always)]
    fn decode(half: u32) -> f32 {
        f32::from_bits(half << 16)
    }

    #[inline(always)]
    fn stochastic(value: f32, random: u32) -> u32 {
        value.to_bits().wrapping_add(random) >> 16
    }

    #[inline(always)]
    fn usual_stochastic(value: f32, random: u32) -> u32 {
        Self::stochastic(value, random)
    }

    #[inline(always)]
    fn is_usual(value: f32) -> bool {
        !Self::is_beyond(value)
    }

    #[inline(always)]
    fn nearest(value: f32) -> u32 {
        Self::stochastic(value, 0x7FFF + (value.to_bits() >> 16 & 1))
    }

    #[inline(always)]
    fn beyond(value: f32) -> u32 {
        let bits = value.to_bits();
        // A payload in the lower bits alone would be lost, and leave an infinity.
        let quiet = u32::from(bits & MAGNITUDE > EXPONENT) << 6;
        match bits & MAGNITUDE < EXPONENT {
            true => bits >> 16 & 0x8000 | Self::LARGEST >> 16,
            false => bits >> 16 | quiet,
        }
    }
}

impl Float16 {
    /// `add` decides about the lower 13 bits of a normal magnitude; `small` is what becomes of a
    /// smaller one.
    #[inline(always)]
    fn add(value: f32, add: u32, small: u32) -> u32 {
        let bits = value.to_bits();
        let magnitude = bits & MAGNITUDE;
        let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(add) >> 13;
        let half = if magnitude >= SMALLEST_NORMAL {
            normal
        } else {
            small
        };
        bits >> 16 & 0x8000 | half
    }
}

impl Value for Float16 {
    const LARGEST: u32 = 0x477F_E000;

    #[inline(always)]
    fn decode(half: u32) -> f32 {
        let magnitude = (half & 0x7FFF) << 13;
        let normal = magnitude.wrapping_add(REBIAS);
        // A multiple of 2^-24 below 2^-14: the difference of two normal numbers.
        let more = f32::from_bits(magnitude.wrapping_add(SMALLEST_NORMAL));
        let small = (more - f32::from_bits(SMALLEST_NORMAL)).to_bits();
        let quiet = u32::from(magnitude > INFINITE) << 22;
        let bits = if magnitude >= INFINITE {
            magnitude | EXPONENT | quiet
        } else if magnitude >= LEAST_NORMAL {
            normal
        } else {
            small
        };
        f32::from_bits((half & 0x8000) << 16 | bits)
    }

    #[inline(always)]
    fn decode_words<const N: usize>(level: Level, words: [u32; N]) -> [[f32; N]; 2] {
        let (mut low, mut high) = ([0.0; N], [0.0; N]);
        let (blocks, rest) = words.as_chunks::<FLOAT16_WORDS>();
        let (lows, highs) = (low.as_chunks_mut().0, high.as_chunks_mut().0);
        let mut blocks = blocks.iter().zip(lows).zip(highs);
        let is_read = blocks.all(|((words, low), high)| level.read_float16(words, low, high));
        match is_read && rest.is_empty() {
            true => [low, high],
            false => decode_each::<Self, N>(words),
        }
    }

    #[inline(always)]
    fn stochastic(value: f32, random: u32) -> u32 {
        // A small magnitude in multiples of 2^-40, of which 2^16 are one of 2^-24. By shifts: a
        // conversion to integers that saturates is none of vectors.
        let magnitude = value.to_bits() & MAGNITUDE;
        let mantissa = magnitude & 0x7F_FFFF | 0x80_0000;
        let shift = 112_u32.wrapping_sub(magnitude >> 23).min(31);
        let parts = mantissa << 2 >> shift;
        Self::add(value, random & 0x1FFF, parts.wrapping_add(random) >> 16)
    }

    #[inline(always)]
    fn usual_stochastic(value: f32, random: u32) -> u32 {
        let bits = value.to_bits();
        let moved = (bits & MAGNITUDE).wrapping_sub(REBIAS);
        bits >> 16 & 0x8000 | moved.wrapping_add(random & 0x1FFF) >> 13
    }

    /// It is normal.
    #[inline(always)]
    fn is_usual(value: f32) -> bool {
        let above = (value.to_bits() & MAGNITUDE).wrapping_sub(SMALLEST_NORMAL);
        above <= Self::LARGEST - SMALLEST_NORMAL
    }

    #[inline(always)]
    fn nearest(value: f32) -> u32 {
        let half = f32::from_bits(126 << 23);
        // The last bit of a float32 between 0.5 and 1 is 2^-24.
        let small = (value.abs() + half).to_bits().wrapping_sub(half.to_bits());
        let odd = value.to_bits() >> 13 & 1;
        Self::add(value, 0xFFF + odd, small)
    }

    #[inline(always)]
    fn beyond(value: f32) -> u32 {
        let magnitude = value.to_bits() & MAGNITUDE;
        let quiet = u32::from(magnitude > EXPONENT) << 9;
        let half = match magnitude < EXPONENT {
            true => 0x7BFF,
            false => 0x7C00 | quiet | magnitude >> 13 & 0x3FF,
        };
        value.to_bits() >> 16 & 0x8000 | half
    }
}

/// Runs one expression for a type that is known at run time.
macro_rules! with_value {
    ($half:expr, $value:ident => $run:expr) => {
        match $half {
            Half::Bfloat16 => {
                type $value = $crate::halves::Bfloat16;
                $run
            }
            Half::Float16 => {
                type $value = $crate::halves::Float16;
                $run
            }
        }
    };
}
pub(crate) use with_value;

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a float16 by the definition of IEEE 754.
    fn defined(half: u32) -> f64 {
        let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = (half >> 10 & 31, f64::from(half & 0x3FF));
        sign * match exponent {
            0 => fraction * 2_f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent as i32 - 15),
        }
    }

    fn nearest<V: Value>(value: f32) -> u32 {
        V::any(value, V::nearest)
    }

    fn stochastic<V: Value>(value: f32, random: u32) -> u32 {
        V::any(value, |value| V::stochastic(value, random))
    }

    fn value_of<V: Value>(half: u32, is_float16: bool) -> f64 {
        if is_float16 {
            defined(half)
        } else {
            f64::from(V::decode(half))
        }
    }

    #[test]
    fn every_float16_is_read_as_its_definition_says() {
        for half in 0..=0xFFFF {
            let (found, expected) = (f64::from(Float16::decode(half)), defined(half));
            let same = found.to_bits() == expected.to_bits();
            assert!(same || (found.is_nan() && expected.is_nan()), "{half:04x}");
        }
    }

    #[test]
    fn every_half_comes_back_by_either_rounding() {
        fn check<V: Value>() {
            for half in 0..=0xFFFF_u32 {
                let value = V::decode(half);
                for back in [
                    nearest::<V>(value),
                    stochastic::<V>(value, 0),
                    stochastic::<V>(value, 0xFFFF),
                ] {
                    // A not-a-number may become quiet.
                    assert!(back == half || (value.is_nan() && V::decode(back).is_nan()));
                }
            }
        }
        check::<Bfloat16>();
        check::<Float16>();
    }

    /// Neighbours below and above of a finite magnitude, by search among all values.
    fn neighbours<V: Value>(values: &[f64], value: f32) -> (u32, u32) {
        let value = f64::from(value.abs());
        let above = values.partition_point(|&one| one < value);
        let above = above.min(values.len() - 1);
        let below = match values[above] > value {
            true => above.saturating_sub(1),
            false => above,
        };
        (below as u32, above as u32)
    }

    fn check_neighbours<V: Value>(is_float16: bool) {
        let last = V::nearest(f32::from_bits(V::LARGEST));
        let values: Vec<f64> = (0..=last).map(|h| value_of::<V>(h, is_float16)).collect();
        let mut state = 1_u32;
        for round in 0..200_000 {
            state = state.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
            let spread = state ^ state >> 15;
            let value = match round % 4 {
                // Near the small float16 values, and across their normal range.
                0 => f32::from_bits((0x3300_0000 + spread % 0x0700_0000) & MAGNITUDE),
                1 => f32::from_bits(0x3800_0000 + spread % 0x1000_0000),
                2 => f32::from_bits(spread & MAGNITUDE),
                _ => f32::from_bits(0x4700_0000 + spread % 0x0100_0000),
            };
            let value = if spread & 1 == 0 { value } else { -value };
            if !value.is_finite() {
                continue;
            }
            let (below, above) = neighbours::<V>(&values, value);
            let sign = u32::from(value.is_sign_negative()) << 15;
            let size = f64::from(value.abs());
            let (low, high) = (values[below as usize], values[above as usize]);
            let nearest = nearest::<V>(value);
            let middle = (low + high) / 2.0;
            let expected = if size > high || size > middle {
                above
            } else if size < middle || below == above {
                below
            } else {
                below + (below & 1)
            };
            assert_eq!(nearest, sign | expected, "{value:e}");
            let share = if low == high {
                0.0
            } else {
                (size - low) / (high - low)
            };
            for random in [0, 1, 0x1FFF, spread & 0xFFFF, 0xFFFE, 0xFFFF] {
                let found = stochastic::<V>(value, random);
                assert!(found == sign | below || found == sign | above, "{value:e}");
                // All bits that decide count: those of float16's normal values are 13.
                let is_small = is_float16 && size < 2_f64.powi(-14);
                let draw = if is_float16 && !is_small {
                    f64::from(random & 0x1FFF) / 8192.0
                } else {
                    f64::from(random) / 65536.0
                };
                // Of a small value bits below 2^-40 are dropped.
                let slack = if is_small { 2_f64.powi(-16) } else { 0.0 };
                if share + draw < 1.0 {
                    assert_eq!(found, sign | below, "{value:e} {random}");
                } else if share + draw >= 1.0 + slack && low < high {
                    assert_eq!(found, sign | above, "{value:e} {random}");
                }
            }
        }
    }

    #[test]
    fn values_go_to_their_neighbours_as_often_as_their_distance_says() {
        check_neighbours::<Bfloat16>(false);
        check_neighbours::<Float16>(true);
    }

    #[test]
    fn values_beyond_the_largest_saturate_and_infinities_stay() {
        fn check<V: Value>(beyond: &[f32]) {
            let largest = f32::from_bits(V::LARGEST);
            for sign in [1.0_f32, -1.0] {
                for &value in beyond {
                    for half in [
                        nearest::<V>(sign * value),
                        stochastic::<V>(sign * value, 0xFFFF),
                    ] {
                        assert_eq!(V::decode(half), sign * largest, "{value:e}");
                    }
                }
                let infinity = sign * f32::INFINITY;
                assert_eq!(V::decode(nearest::<V>(infinity)), infinity);
                assert_eq!(V::decode(stochastic::<V>(infinity, 0xFFFF)), infinity);
            }
            for bits in [0x7FC0_0000, 0x7F80_0001, 0xFFFF_FFFF] {
                let value = f32::from_bits(bits);
                assert!(V::decode(nearest::<V>(value)).is_nan());
                assert!(V::decode(stochastic::<V>(value, 0xFFFF)).is_nan());
            }
        }
        check::<Bfloat16>(&[f32::MAX, f32::from_bits(0x7F7F_0001)]);
        check::<Float16>(&[f32::MAX, 65_504.01, 65_519.0, 65_520.0, 1e9]);
    }
}
