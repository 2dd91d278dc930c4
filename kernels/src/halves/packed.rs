//! Embeddings of 2 bytes a value in records of 4-byte words, and in files.
//!
//! Of `dim` values the first half lies in the lower halves of the words, the others in the upper
//! ones: so reading and writing them takes no shuffles. A word that has one value has zeros above.

use super::draws::RowDraws;
use super::dtype::Half;
use super::round::{with_value, Value};
use crate::simd::{in_blocks, Level, Vectorized};
use std::ops::AddAssign;

/// How many values of a row were not stored as they were but for rounding, or are no numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unusual {
    /// Finite values beyond the largest one.
    pub(crate) saturated: u64,
    /// Infinities and not-a-numbers.
    pub(crate) not_finite: u64,
}

impl AddAssign for Unusual {
    fn add_assign(&mut self, more: Unusual) {
        self.saturated += more.saturated;
        self.not_finite += more.not_finite;
    }
}

/// Reads an embedding, `out (dim)`, from the front of a record. In a hot loop that is compiled for
/// `level`.
#[inline(always)]
pub(crate) fn decode(level: Level, half: Half, record: &[f32], out: &mut [f32]) {
    with_value!(half, V => decode_values::<V>(level, record, out));
}

#[inline(always)]
fn decode_values<V: Value>(level: Level, record: &[f32], out: &mut [f32]) {
    let (low, high) = out.split_at_mut(out.len().div_ceil(2));
    let (low, last) = low.split_at_mut(high.len());
    let (record, behind) = record.split_at(high.len());
    in_blocks!(record.len(), [16, 8], (at, N) => {
        let [lows, highs] = V::decode_words::<N>(level, words(record, at));
        low[at..at + N].copy_from_slice(&lows);
        high[at..at + N].copy_from_slice(&highs);
    });
    for (out, word) in last.iter_mut().zip(behind) {
        *out = V::decode(word.to_bits() & 0xFFFF);
    }
}

/// `N` words of a record.
#[inline(always)]
pub(crate) fn words<const N: usize>(record: &[f32], at: usize) -> [u32; N] {
    let mut words = [0; N];
    for (word, value) in words.iter_mut().zip(&record[at..at + N]) {
        *word = value.to_bits();
    }
    words
}

/// The same outside of one.
pub(crate) fn read(level: Level, half: Half, record: &[f32], out: &mut [f32]) {
    level.run(Decode {
        level,
        half,
        record,
        out,
    });
}

struct Decode<'a> {
    level: Level,
    half: Half,
    record: &'a [f32],
    out: &'a mut [f32],
}

impl Vectorized for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        decode(self.level, self.half, self.record, self.out);
    }
}

/// Writes an embedding, `values (dim)`, to the front of a record: rounded by `draws`, or to the
/// nearest without.
pub(crate) fn encode(
    level: Level,
    half: Half,
    draws: Option<RowDraws>,
    values: &[f32],
    record: &mut [f32],
) -> Unusual {
    level.run(Encode {
        half,
        draws,
        values,
        record,
    })
}

struct Encode<'a> {
    half: Half,
    draws: Option<RowDraws>,
    values: &'a [f32],
    record: &'a mut [f32],
}

impl Vectorized for Encode<'_> {
    type Output = Unusual;

    #[inline(always)]
    fn run(self) -> Unusual {
        let (low, high) = self.values.split_at(self.values.len().div_ceil(2));
        let (record, half) = (&mut self.record[..low.len()], self.half);
        with_value!(half, V => match self.draws {
            Some(draws) => encode_values::<V, _>(By(draws), low, high, record),
            None => encode_values::<V, _>(ToNearest, low, high, record),
        })
    }
}

#[inline(always)]
fn encode_values<V: Value, R: Round<V>>(
    round: R,
    low: &[f32],
    high: &[f32],
    record: &mut [f32],
) -> Unusual {
    let mut found = Unusual::default();
    let pairs = high.len();
    let (low, last) = low.split_at(pairs);
    let (record, behind) = record.split_at_mut(pairs);
    in_blocks!(pairs, [16, 8], (at, N) => {
        let (mut lows, mut highs) = ([0.0; N], [0.0; N]);
        lows.copy_from_slice(&low[at..at + N]);
        highs.copy_from_slice(&high[at..at + N]);
        let words = encode_words::<V, N>(round, at as u32, lows, highs, &mut found);
        record[at..at + N].copy_from_slice(&words);
    });
    // A word that has one value: zero becomes zero by any rounding.
    for (value, out) in last.iter().zip(behind) {
        [*out] = encode_words::<V, 1>(round, pairs as u32, [*value], [0.0], &mut found);
    }
    found
}

/// The words number `first` and on of values that lie in their lower and in their upper halves. In
/// a hot loop that is compiled for a level.
#[inline(always)]
pub(crate) fn encode_words<V: Value, const N: usize>(
    round: impl Round<V>,
    first: u32,
    low: [f32; N],
    high: [f32; N],
    found: &mut Unusual,
) -> [f32; N] {
    let (mut words, mut are_usual) = ([0; N], true);
    for at in 0..N {
        words[at] = word(round.usual(first + at as u32, low[at], high[at]));
        are_usual &= V::is_usual(low[at]) & V::is_usual(high[at]);
    }
    if !are_usual {
        // Without a function of its own: what that sees has to be in memory, also if it is not
        // called.
        let (mut beyond, mut not_finite) = (0, 0);
        for at in 0..N {
            let [low, high] = [low[at], high[at]];
            let both = round.both(first + at as u32, low, high);
            words[at] = word([stored::<V>(low, both[0]), stored::<V>(high, both[1])]);
            for value in [low, high] {
                beyond += u32::from(V::is_beyond(value));
                not_finite += u32::from(!value.is_finite());
            }
        }
        found.saturated += u64::from(beyond - not_finite);
        found.not_finite += u64::from(not_finite);
    }
    let mut values = [0.0; N];
    for (value, word) in values.iter_mut().zip(words) {
        *value = f32::from_bits(word);
    }
    values
}

/// What is stored of a value that becomes `rounded` if it fits.
#[inline(always)]
fn stored<V: Value>(value: f32, rounded: u32) -> u32 {
    match V::is_beyond(value) {
        true => V::beyond(value),
        false => rounded,
    }
}

#[inline(always)]
fn word([low, high]: [u32; 2]) -> u32 {
    low & 0xFFFF | high << 16
}

/// How values that fit are rounded.
pub(crate) trait Round<V>: Copy {
    /// The bits of the two values of a word, of which the lower 16 count; those of a value that
    /// does not fit are of no use.
    fn both(self, word: u32, low: f32, high: f32) -> [u32; 2];

    /// The same of usual values.
    fn usual(self, word: u32, low: f32, high: f32) -> [u32; 2];
}

/// Stochastically.
#[derive(Clone, Copy)]
pub(crate) struct By(pub(crate) RowDraws);

#[derive(Clone, Copy)]
struct ToNearest;

impl<V: Value> Round<V> for By {
    #[inline(always)]
    fn both(self, word: u32, low: f32, high: f32) -> [u32; 2] {
        let bits = self.0.word(word);
        [
            V::stochastic(low, bits & 0xFFFF),
            V::stochastic(high, bits >> 16),
        ]
    }

    #[inline(always)]
    fn usual(self, word: u32, low: f32, high: f32) -> [u32; 2] {
        let bits = self.0.word(word);
        [
            V::usual_stochastic(low, bits & 0xFFFF),
            V::usual_stochastic(high, bits >> 16),
        ]
    }
}

impl<V: Value> Round<V> for ToNearest {
    #[inline(always)]
    fn both(self, _: u32, low: f32, high: f32) -> [u32; 2] {
        [low, high].map(V::nearest)
    }

    #[inline(always)]
    fn usual(self, word: u32, low: f32, high: f32) -> [u32; 2] {
        Round::<V>::both(self, word, low, high)
    }
}

/// Writes `count` times the same value, rounded to the nearest, to `words`.
pub(crate) fn fill(half: Half, value: f32, count: usize, words: &mut [f32]) {
    let both = with_value!(half, V => stored::<V>(value, V::nearest(value))) & 0xFFFF;
    words.fill(f32::from_bits(both | both << 16));
    if let (1, Some(last)) = (count % 2, words.last_mut()) {
        *last = f32::from_bits(both);
    }
}

/// Rounds an embedding, in place, to what is read of it when [`encode`] has written it.
pub(crate) fn round_row(level: Level, half: Half, draws: Option<RowDraws>, values: &mut [f32]) {
    level.run(RoundRow {
        level,
        half,
        draws,
        values,
    });
}

struct RoundRow<'a> {
    level: Level,
    half: Half,
    draws: Option<RowDraws>,
    values: &'a mut [f32],
}

impl Vectorized for RoundRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        with_value!(self.half, V => match self.draws {
            Some(draws) => round_values::<V>(self.level, By(draws), self.values),
            None => round_values::<V>(self.level, ToNearest, self.values),
        });
    }
}

#[inline(always)]
fn round_values<V: Value>(level: Level, round: impl Round<V>, values: &mut [f32]) {
    let (low, high) = values.split_at_mut(values.len().div_ceil(2));
    let pairs = high.len();
    let (low, last) = low.split_at_mut(pairs);
    let mut found = Unusual::default();
    in_blocks!(pairs, [16, 8], (at, N) => {
        let (mut lows, mut highs) = ([0.0; N], [0.0; N]);
        lows.copy_from_slice(&low[at..at + N]);
        highs.copy_from_slice(&high[at..at + N]);
        let words = encode_words::<V, N>(round, at as u32, lows, highs, &mut found);
        let [lows, highs] = V::decode_words::<N>(level, self::words(&words, 0));
        low[at..at + N].copy_from_slice(&lows);
        high[at..at + N].copy_from_slice(&highs);
    });
    for value in last {
        let [word] = encode_words::<V, 1>(round, pairs as u32, [*value], [0.0], &mut found);
        *value = V::decode(word.to_bits() & 0xFFFF);
    }
}

/// Writes the embedding at the front of a record as it is in files, `bytes (2 dim)`: 2 bytes a
/// value, little-endian, in the order of the columns.
pub(crate) fn to_bytes(level: Level, record: &[f32], bytes: &mut [u8]) {
    let (values, _) = bytes.as_chunks_mut();
    level.run(ToBytes { record, values });
}

struct ToBytes<'a> {
    record: &'a [f32],
    values: &'a mut [[u8; 2]],
}

impl Vectorized for ToBytes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (low, high) = self.values.split_at_mut(self.values.len().div_ceil(2));
        for (value, word) in low.iter_mut().zip(self.record) {
            *value = (word.to_bits() as u16).to_le_bytes();
        }
        for (value, word) in high.iter_mut().zip(self.record) {
            *value = ((word.to_bits() >> 16) as u16).to_le_bytes();
        }
    }
}

/// Reads values of 2 bytes, as they are in files, as floats.
pub(crate) fn from_bytes(level: Level, half: Half, bytes: &[u8], values: &mut [f32]) {
    let (bytes, _) = bytes.as_chunks();
    level.run(FromBytes {
        half,
        bytes,
        values,
    });
}

struct FromBytes<'a> {
    half: Half,
    bytes: &'a [[u8; 2]],
    values: &'a mut [f32],
}

impl Vectorized for FromBytes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        with_value!(self.half, V => {
            for (value, &bytes) in self.values.iter_mut().zip(self.bytes) {
                *value = V::decode(u32::from(u16::from_le_bytes(bytes)));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::draws::Draws;
    use super::super::round::{Bfloat16, Float16};
    use super::*;
    use crate::simd::Isa;

    fn values(dim: usize) -> Vec<f32> {
        let odd = [0.0, -0.0, 1e-40, -3e-6, 6e-8, 65_504.0, 7e4, f32::INFINITY];
        let value = |at: usize| match at % 11 {
            0 => odd[at / 11 % odd.len()],
            _ => ((at * 7919 % 1013) as f32 / 1013.0 - 0.5) * 1.5_f32.powi(at as i32 % 40 - 25),
        };
        (0..dim).map(value).collect()
    }

    #[test]
    fn every_level_packs_and_reads_every_width_as_one_value_after_the_other() {
        let draws = Draws::new(77, 3 << 32 | 9).of(5);
        for dim in (1..=67).chain([128, 8191, 8192]) {
            let (values, words) = (values(dim), dim.div_ceil(2));
            for half in [Half::Bfloat16, Half::Float16] {
                for draws in [None, Some(draws)] {
                    let one = |column: usize| {
                        let value = values[column];
                        let (word, half_of) = (column % words, column / words);
                        let random = draws.map(|draws: RowDraws| {
                            draws.word(word as u32) >> (16 * half_of) & 0xFFFF
                        });
                        with_value!(half, V => V::decode(V::any(value, |value| match random {
                            Some(random) => V::stochastic(value, random),
                            None => V::nearest(value),
                        })))
                    };
                    let expected: Vec<u32> = (0..dim).map(|at| one(at).to_bits()).collect();
                    for level in levels() {
                        let mut record = vec![7.0; dim.div_ceil(2) + 1];
                        encode(level, half, draws, &values, &mut record);
                        assert_eq!(record[dim.div_ceil(2)], 7.0);
                        let mut out = vec![0.0; dim];
                        read(level, half, &record, &mut out);
                        let found: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                        assert_eq!(found, expected, "{half:?} {level:?} dim {dim}");
                        let mut rounded = values.clone();
                        round_row(level, half, draws, &mut rounded);
                        assert!(rounded
                            .iter()
                            .map(|value| value.to_bits())
                            .eq(expected.clone()));
                        let (mut bytes, mut back) = (vec![7; 2 * dim], vec![0.0; dim]);
                        to_bytes(level, &record, &mut bytes);
                        from_bytes(level, half, &bytes, &mut back);
                        assert!(back.iter().map(|value| value.to_bits()).eq(found));
                    }
                }
            }
        }
    }

    fn levels() -> impl Iterator<Item = Level> {
        let all = [Isa::Scalar, Isa::Avx2, Isa::Avx512];
        all.into_iter().filter_map(Level::forced)
    }

    #[test]
    fn every_level_reads_all_halves_and_rounds_floats_of_any_bits_as_one_by_one() {
        for half in [Half::Bfloat16, Half::Float16] {
            let record: Vec<f32> = (0..1 << 15)
                .map(|word| f32::from_bits(word | (word + (1 << 15)) << 16))
                .collect();
            for level in levels() {
                let mut out = vec![0.0; 1 << 16];
                read(level, half, &record, &mut out);
                for (bits, found) in (0..).zip(out) {
                    let expected = with_value!(half, V => V::decode(bits));
                    assert_eq!(found.to_bits(), expected.to_bits(), "{half:?} {bits:04x}");
                }
            }
            let mut bits = 1_u32;
            for row in 0..3000 {
                let mut value = || {
                    bits = bits.wrapping_mul(0x2C92_77B5).wrapping_add(0x3C6E_F35F);
                    // Also many of small exponents, and many near the ends of the ranges.
                    match row % 3 {
                        0 => f32::from_bits(bits ^ bits >> 13),
                        1 => f32::from_bits(bits & 0x87FF_FFFF | 0x3000_0000),
                        _ => f32::from_bits(bits & 0xC0FF_FFFF | 0x4700_0000),
                    }
                };
                let values: Vec<f32> = (0..37).map(|_| value()).collect();
                let of_row = Draws::new(3, row).of(bits);
                for draws in [None, Some(of_row)] {
                    let one = |(column, &value): (usize, &f32)| {
                        let random = of_row.word(column as u32 % 19) >> (column / 19 * 16);
                        with_value!(half, V => V::any(value, |value| match draws {
                            Some(_) => V::stochastic(value, random & 0xFFFF),
                            None => V::nearest(value),
                        }))
                    };
                    let expected: Vec<u32> = values.iter().enumerate().map(one).collect();
                    for level in levels() {
                        let mut record = [0.0; 19];
                        encode(level, half, draws, &values, &mut record);
                        let mut bytes = [0; 2 * 37];
                        to_bytes(level, &record, &mut bytes);
                        let found = bytes.as_chunks().0.iter();
                        let found = found.map(|&pair| u32::from(u16::from_le_bytes(pair)));
                        assert!(found.eq(expected.iter().copied()), "{half:?} row {row}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_value() {
        let level = Level::detect();
        let value = 0.300_123_4_f32;
        for half in [Half::Bfloat16, Half::Float16] {
            let (mut sum, updates) = (0.0, 4000_u64);
            for update in 0..updates {
                let draws = Some(Draws::new(1, update).of(2));
                let mut record = [0.0; 16];
                encode(level, half, draws, &[value; 32], &mut record);
                let mut out = [0.0; 32];
                read(level, half, &record, &mut out);
                sum += out.iter().map(|&one| f64::from(one)).sum::<f64>() / 32.0;
            }
            let step = match half {
                Half::Bfloat16 => f64::from(Bfloat16::decode(0x3E9A) - Bfloat16::decode(0x3E99)),
                Half::Float16 => f64::from(Float16::decode(0x34CE) - Float16::decode(0x34CD)),
            };
            let error = (sum / updates as f64 - f64::from(value)).abs();
            // The deviation of the mean of n roundings is less than step / (2 sqrt(n)).
            assert!(
                error < 4.0 * step / 2.0 / (updates as f64 * 32.0).sqrt(),
                "{half:?}"
            );
        }
    }

    #[test]
    fn values_that_are_not_stored_as_they_are_count() {
        let values = [1.0, 65_504.0, -65_505.0, f32::NAN, f32::NEG_INFINITY, 1e30];
        let mut record = [0.0; 3];
        let found = encode(Level::detect(), Half::Float16, None, &values, &mut record);
        assert_eq!((found.saturated, found.not_finite), (2, 2));
        let found = encode(Level::detect(), Half::Bfloat16, None, &values, &mut record);
        assert_eq!((found.saturated, found.not_finite), (0, 2));
    }
}
