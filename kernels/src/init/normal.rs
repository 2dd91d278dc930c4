//! The inverse of the normal distribution's cumulative function, in float32, without branches.
//!
//! The rational approximations are those of Wichura, "Algorithm AS 241: the percentage points of
//! the normal distribution" (Applied Statistics 37, 1988), routine PPND7: relative error about
//! 1e-7. Its third one, for tails below 1.4e-11, is not needed: the smallest tail that 32 random
//! bits give is 2^-33.

#![expect(
    clippy::excessive_precision,
    reason = "coefficients stand as they were published"
)]

/// Mass of the normal distribution within two standard deviations.
const WITHIN_TWO: f32 = 0.954_499_7;

/// The largest float below two.
const BELOW_TWO: f32 = 1.999_999_9;

/// A standard normal value from 32 random bits: one is the sign, 31 choose the tail in (0, 0.5]. At
/// most 6.4 in magnitude.
#[inline(always)]
pub(super) fn normal(word: u32) -> f32 {
    let tail = ((word & 0x7FFF_FFFF) as i32 as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    signed(quantile(tail, 0.5 - tail), word)
}

/// A standard normal value cut at two standard deviations, as if values outside had been drawn
/// again.
#[inline(always)]
pub(super) fn truncated_normal(word: u32) -> f32 {
    let part = ((word & 0x7FFF_FFFF) as i32 as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    let centre = (0.5 - part) * WITHIN_TWO;
    let value = quantile(0.5 - centre, centre);
    signed(if value < BELOW_TWO { value } else { BELOW_TWO }, word)
}

/// The value that a normal variable exceeds with probability `tail` in (1e-11, 0.5]; `centre` is
/// `0.5 - tail`.
#[inline(always)]
fn quantile(tail: f32, centre: f32) -> f32 {
    let near = 0.180_625 - centre * centre;
    let near_top = centre
        * (((59.109_374_720 * near + 159.291_132_02) * near + 50.434_271_938) * near
            + 3.387_132_717_9);
    let near_bottom =
        ((67.187_563_600 * near + 78.757_757_664) * near + 17.895_169_469) * near + 1.0;

    let far = (-ln(tail)).sqrt() - 1.6;
    let far_top = ((0.170_238_211_03 * far + 1.306_728_481_6) * far + 2.756_815_390_0) * far
        + 1.423_437_277_7;
    let far_bottom = (0.120_211_329_75 * far + 0.737_001_642_50) * far + 1.0;

    let is_near = centre <= 0.425;
    let top = if is_near { near_top } else { far_top };
    let bottom = if is_near { near_bottom } else { far_bottom };
    top / bottom
}

/// The natural logarithm of a normal positive number, to about 1e-7: `ln(2^e * m) = e ln 2 + 2
/// artanh((m - 1) / (m + 1))`.
#[inline(always)]
fn ln(x: f32) -> f32 {
    /// Bits of sqrt(0.5), so that the mantissa is brought into [sqrt(0.5), sqrt(2)).
    const LEAST: u32 = 0x3F35_04F3;
    let bits = x.to_bits().wrapping_sub(LEAST);
    let exponent = (bits as i32 >> 23) as f32;
    let mantissa = f32::from_bits((bits & 0x007F_FFFF) + LEAST);
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = (((1.0 / 9.0 * square + 1.0 / 7.0) * square + 0.2) * square + 1.0 / 3.0) * square;
    exponent * std::f32::consts::LN_2 + 2.0 * (ratio + ratio * series)
}

/// `magnitude` with the top bit of `word` as its sign.
#[inline(always)]
fn signed(magnitude: f32, word: u32) -> f32 {
    f32::from_bits(magnitude.to_bits() ^ (word & 0x8000_0000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_published_percentage_points() {
        // Standard normal quantiles to ten digits; AS 241 gives the first three as its own check.
        for (tail, value) in [
            (0.25, 0.674_489_750_2),
            (0.001, 3.090_232_306_2),
            (1e-10, 6.361_340_902_4),
            (0.5, 0.0),
            (0.4, 0.253_347_103_1),
            (0.1, 1.281_551_565_5),
            (0.025, 1.959_963_984_5),
            (0.005, 2.575_829_303_5),
            (1e-6, 4.753_424_308_8),
        ] {
            let got = f64::from(quantile(tail, 0.5 - tail));
            assert!(
                (got - value).abs() <= 1e-6 * value.max(1.0),
                "{tail}: {got} {value}"
            );
        }
    }

    #[test]
    fn the_two_branches_meet() {
        let (near, far) = (
            quantile(0.075_000_01, 0.424_999_99),
            quantile(0.074_999_99, 0.425_000_02),
        );
        assert!((near - far).abs() < 2e-6, "{near} {far}");
    }

    #[test]
    fn logarithms_agree_with_the_standard_library() {
        for step in 1..100_000 {
            let x = (step as f32 / 100_000.0).powi(5) + 1e-12;
            let (got, want) = (f64::from(ln(x)), f64::from(x).ln());
            assert!(
                (got - want).abs() <= 3e-7 * want.abs().max(1.0),
                "{x}: {got} {want}"
            );
        }
    }

    #[test]
    fn extreme_words_give_bounded_values_of_both_signs() {
        assert!((6.2..6.5).contains(&normal(0)));
        assert_eq!(normal(0x8000_0000), -normal(0));
        assert_eq!(normal(0x7FFF_FFFF), 0.0);
        assert!((1.999..2.0).contains(&truncated_normal(0)));
        assert_eq!(truncated_normal(u32::MAX), 0.0);
    }
}
