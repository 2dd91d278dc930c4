//! Embeddings of 2 bytes a value in records of 4-byte words, and in files.
//!
//! Of `dim` values the first half lies in the lower halves of the words, the others in the upper
//! ones: so reading and writing them takes no shuffles. A word that has one value has zeros above.

use super::dtype::{Half, Rounding};
use super::round::{with_value, Value};
use crate::init::{sixteen, COLUMNS};
use crate::simd::{Level, Vectorized};

/// Marks the counters of roundings: those of initial values are below it.
const ROUNDINGS: u32 = 1 << 31;

/// Random numbers of the rounding of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    /// The table's.
    pub(crate) seed: u64,
    /// The upper and the lower half of the key, exclusive or.
    pub(crate) folded: u32,
    /// The number of the update.
    pub(crate) update: u64,
}

/// How many values of a row were not stored as they were but for rounding, or are no numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unusual {
    /// Finite values beyond the largest one.
    pub(crate) saturated: u64,
    /// Infinities and not-a-numbers.
    pub(crate) not_finite: u64,
}

impl Draws {
    /// Those of words `16 * group ..`; the lower half of a word is for the value in the lower half.
    #[inline(always)]
    fn words(self, group: u32) -> [u32; COLUMNS] {
        let rest = [self.update as u32, self.folded, (self.update >> 32) as u32];
        sixteen(self.seed, ROUNDINGS | (group * 4), rest)
    }
}

/// Reads an embedding, `out (dim)`, from the front of a record. In a hot loop that is compiled for
/// a level.
#[inline(always)]
pub(crate) fn decode(half: Half, record: &[f32], out: &mut [f32]) {
    with_value!(half, V => decode_values::<V>(record, out));
}

#[inline(always)]
fn decode_values<V: Value>(record: &[f32], out: &mut [f32]) {
    let (low, high) = out.split_at_mut(out.len().div_ceil(2));
    for (out, word) in low.iter_mut().zip(record) {
        *out = V::decode(word.to_bits() & 0xFFFF);
    }
    for (out, word) in high.iter_mut().zip(record) {
        *out = V::decode(word.to_bits() >> 16);
    }
}

/// The same outside of one.
pub(crate) fn read(level: Level, half: Half, record: &[f32], out: &mut [f32]) {
    level.run(Decode { half, record, out });
}

struct Decode<'a> {
    half: Half,
    record: &'a [f32],
    out: &'a mut [f32],
}

impl Vectorized for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        decode(self.half, self.record, self.out);
    }
}

/// Writes an embedding, `values (dim)`, to the front of a record: rounded by `draws`, or to the
/// nearest without.
pub(crate) fn encode(
    level: Level,
    half: Half,
    draws: Option<Draws>,
    values: &[f32],
    record: &mut [f32],
) -> Unusual {
    let largest = level.run(Encode {
        half,
        draws,
        values,
        record,
    });
    match largest <= half.largest().to_bits() {
        true => Unusual::default(),
        false => unusual(half, values),
    }
}

struct Encode<'a> {
    half: Half,
    draws: Option<Draws>,
    values: &'a [f32],
    record: &'a mut [f32],
}

impl Vectorized for Encode<'_> {
    /// The largest magnitude, as bits.
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Encode {
            half,
            draws,
            values,
            record,
        } = self;
        with_value!(half, V => match draws {
            Some(draws) => encode_values(values, record, |group| {
                let words = draws.words(group);
                move |at, value, shift| V::stochastic(value, words[at] >> shift & 0xFFFF)
            }),
            None => encode_values(values, record, |_| |_, value, _| V::nearest(value)),
        })
    }
}

/// `of_group(g)(w, value, s)` are the bits of a value of word `16 * g + w`, in whose lower half it
/// is if `s` is 0, else 16.
#[inline(always)]
fn encode_values<F: Fn(usize, f32, u32) -> u32>(
    values: &[f32],
    record: &mut [f32],
    of_group: impl Fn(u32) -> F,
) -> u32 {
    let mut largest = [0; COLUMNS];
    let words = values.len().div_ceil(2);
    let (low, high) = values.split_at(words);
    let (low, high) = (low.chunks(COLUMNS), high.chunks(COLUMNS));
    let out = record[..words].chunks_mut(COLUMNS);
    // A word that has one value may be alone in its group.
    let high = high.chain(std::iter::once(&[][..]));
    for (group, ((low, high), out)) in low.zip(high).zip(out).enumerate() {
        // Zeros become zeros by any rounding.
        let (mut lows, mut highs) = ([0.0; COLUMNS], [0.0; COLUMNS]);
        match (low.try_into(), high.try_into()) {
            // A full group, without the calls that copies of any length are.
            (Ok(low), Ok(high)) => (lows, highs) = (low, high),
            _ => {
                lows[..low.len()].copy_from_slice(low);
                highs[..high.len()].copy_from_slice(high);
            }
        }
        let bits = of_group(group as u32);
        let mut words = [0.0; COLUMNS];
        for (at, word) in words.iter_mut().enumerate() {
            let (low, high) = (bits(at, lows[at], 0), bits(at, highs[at], 16));
            *word = f32::from_bits(low | high << 16);
            let sizes = [lows[at], highs[at]].map(|value| value.to_bits() & 0x7FFF_FFFF);
            largest[at] = largest[at].max(sizes[0]).max(sizes[1]);
        }
        match out.first_chunk_mut::<COLUMNS>() {
            Some(out) => *out = words,
            None => out.copy_from_slice(&words[..out.len()]),
        }
    }
    largest.into_iter().fold(0, u32::max)
}

/// What of some values is not stored as it is.
#[cold]
fn unusual(half: Half, values: &[f32]) -> Unusual {
    let largest = half.largest().to_bits();
    let saturated = values.iter().filter(|value| value.is_finite());
    let saturated = saturated.filter(|value| value.abs().to_bits() > largest);
    Unusual {
        saturated: saturated.count() as u64,
        not_finite: values.iter().filter(|value| !value.is_finite()).count() as u64,
    }
}

/// Rounds values in place, to the nearest: what is read of an embedding that was written so.
pub(crate) fn round_all(half: Half, values: &mut [f32]) {
    for value in values {
        *value = with_value!(half, V => V::decode(V::nearest(*value)));
    }
}

/// Rounds an embedding, in place, to what is read of it when [`encode`] has written it.
pub(crate) fn round_row(level: Level, half: Half, draws: Option<Draws>, values: &mut [f32]) {
    let mut record = vec![0.0; values.len().div_ceil(2)];
    encode(level, half, draws, values, &mut record);
    read(level, half, &record, values);
}

/// What of a key rounding depends on.
pub(crate) fn folded(key: i64) -> u32 {
    key as u32 ^ (key >> 32) as u32
}

/// Appends the embedding of `dim` values at the front of a record as it is in files: 2 bytes a
/// value, little-endian, in the order of the columns.
pub(crate) fn push_bytes(record: &[f32], dim: usize, bytes: &mut Vec<u8>) {
    let words = &record[..dim.div_ceil(2)];
    let low = words.iter().map(|word| word.to_bits() as u16);
    let high = words.iter().map(|word| (word.to_bits() >> 16) as u16);
    for half in low.chain(high).take(dim) {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
}

/// Reads values of 2 bytes, as they are in files, as floats.
pub(crate) fn from_bytes(half: Half, bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        let bits = u32::from(u16::from_le_bytes(bytes));
        *value = with_value!(half, V => V::decode(bits));
    }
}

impl Rounding {
    /// The random numbers of a rounding, if it takes some.
    pub(crate) fn draws(self, draws: Draws) -> Option<Draws> {
        (self == Rounding::Stochastic).then_some(draws)
    }
}

#[cfg(test)]
mod tests {
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

    /// The words of the generator one by one, as the documents say.
    fn random(draws: Draws, dim: usize, column: usize) -> u32 {
        let words = dim.div_ceil(2);
        let word = draws.words((column % words / COLUMNS) as u32)[column % words % COLUMNS];
        word >> (16 * (column / words)) & 0xFFFF
    }

    #[test]
    fn every_level_packs_and_reads_every_width_as_one_value_after_the_other() {
        let draws = Draws {
            seed: 77,
            folded: 5,
            update: 3 << 32 | 9,
        };
        for dim in (1..=67).chain([128, 8191, 8192]) {
            let values = values(dim);
            for half in [Half::Bfloat16, Half::Float16] {
                for draws in [None, Some(draws)] {
                    let one = |column: usize| {
                        let value = values[column];
                        let random = draws.map(|draws| random(draws, dim, column));
                        with_value!(half, V => V::decode(match random {
                            Some(random) => V::stochastic(value, random),
                            None => V::nearest(value),
                        }))
                    };
                    let expected: Vec<u32> = (0..dim).map(|at| one(at).to_bits()).collect();
                    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
                        let Some(level) = Level::forced(isa) else {
                            continue;
                        };
                        let mut record = vec![7.0; dim.div_ceil(2) + 1];
                        encode(level, half, draws, &values, &mut record);
                        assert_eq!(record[dim.div_ceil(2)], 7.0);
                        let mut out = vec![0.0; dim];
                        level.run(Decode {
                            half,
                            record: &record,
                            out: &mut out,
                        });
                        let found: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                        assert_eq!(found, expected, "{half:?} {isa:?} dim {dim}");
                        let (mut bytes, mut back) = (Vec::new(), vec![0.0; dim]);
                        push_bytes(&record, dim, &mut bytes);
                        assert_eq!(bytes.len(), 2 * dim);
                        from_bytes(half, &bytes, &mut back);
                        assert!(back.iter().map(|value| value.to_bits()).eq(found));
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
                let draws = Some(Draws {
                    seed: 1,
                    folded: 2,
                    update,
                });
                let mut record = [0.0; 16];
                encode(level, half, draws, &[value; 32], &mut record);
                let mut out = [0.0; 32];
                decode(half, &record, &mut out);
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
