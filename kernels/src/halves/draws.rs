//! Random numbers of the rounding of a row, by counter: a function of the table's seed, the key,
//! the column and the number of the update, and of nothing else.
//!
//! One word of 64 bits is mixed for a row, well; each two columns get a word of it by a mixer of 32
//! bits, which vectors run 8 or 16 lanes at a time. The mixers are the second half of a step of
//! SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
//! 2014) with the constants of Stafford's variant 13, and the two rounds of multiplication and
//! shift, found by search, of Wellons' "hash-prospector" with half of the row's word between them.

use crate::Ids;
use std::sync::Arc;

/// 2^64 and 2^32 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const GOLDEN_32: u32 = 0x9E37_79B9;

/// Random numbers of the roundings of one update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws(u64);

/// Those of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowDraws {
    start: u32,
    between: u32,
}

impl Draws {
    /// Those of an update of a table with this seed, or of a slot of it with the seed `table's ^
    /// stream`.
    #[inline(always)]
    pub(crate) fn new(seed: u64, update: u64) -> Draws {
        Draws(mixed(seed ^ mixed(update.wrapping_mul(GOLDEN))))
    }

    /// Those of the key that [`folded`] gave this of.
    #[inline(always)]
    pub(crate) fn of(self, folded: u32) -> RowDraws {
        let row = mixed(self.0.wrapping_add(u64::from(folded).wrapping_mul(GOLDEN)));
        RowDraws {
            start: row as u32,
            between: (row >> 32) as u32,
        }
    }
}

impl RowDraws {
    /// The bits of a word of two values: the lower 16 for the value in its lower half.
    #[inline(always)]
    pub(super) fn word(self, number: u32) -> u32 {
        let mut bits = self.start.wrapping_add(number.wrapping_mul(GOLDEN_32));
        bits = (bits ^ bits >> 16).wrapping_mul(0x21F0_AAAD);
        bits = (bits ^ bits >> 15 ^ self.between).wrapping_mul(0x735A_2D97);
        bits ^ bits >> 15
    }
}

/// [`folded`] of the distinct keys of a lookup, of which `inverse (n)` has the place of each of the
/// `ids (n)`, or -1.
pub(crate) fn folded_keys(ids: Ids<'_>, inverse: &[i32], distinct: usize) -> Arc<[u32]> {
    fn fold<T: Copy + Into<i64>>(ids: &[T], inverse: &[i32], all: &mut [u32]) {
        for (&id, &place) in ids.iter().zip(inverse) {
            if let Some(of_key) = all.get_mut(place as usize) {
                *of_key = folded(id.into());
            }
        }
    }
    let mut all = vec![0; distinct];
    match ids {
        Ids::I64(ids) => fold(ids, inverse, &mut all),
        Ids::I32(ids) => fold(ids, inverse, &mut all),
    }
    all.into()
}

/// What of a key rounding depends on.
#[inline(always)]
pub(crate) fn folded(key: i64) -> u32 {
    ((key as u64).wrapping_mul(GOLDEN) >> 32) as u32
}

#[inline(always)]
pub(super) fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::words;
    use crate::whole::is_whole;

    /// (seed, folded key, update, word) to the bits of a word.
    type Generator = fn([u64; 4]) -> u32;

    fn ours([seed, folded, update, word]: [u64; 4]) -> u32 {
        Draws::new(seed, update).of(folded as u32).word(word as u32)
    }

    /// The quality to be had: Philox-4x32-10.
    fn philox([seed, folded, update, word]: [u64; 4]) -> u32 {
        words(seed, (update << 32 | folded) as i64, word as u32 / 16)[word as usize % 16]
    }

    /// The same without the second mixer.
    fn unmixed([seed, folded, update, word]: [u64; 4]) -> u32 {
        let row = Draws::new(seed, update).of(folded as u32);
        row.start ^ (word as u32).wrapping_mul(GOLDEN_32)
    }

    /// And without the first.
    fn unmixed_rows([seed, folded, update, word]: [u64; 4]) -> u32 {
        let row = RowDraws {
            start: (seed as u32).wrapping_add((folded as u32).wrapping_mul(GOLDEN_32)),
            between: update as u32,
        };
        row.word(word as u32)
    }

    /// From a number to another one of the same axis.
    type Move = Box<dyn Fn(u64) -> u64>;

    /// Where draw `at` is taken if `axis` varies, and the others stay as `round` has them.
    fn place(axis: usize, round: u64, at: u64) -> [u64; 4] {
        let mut place = [3, 1000, 5, 7].map(|first| first * (round + 1) + (round << 13));
        place[3] %= 4096;
        place[axis] = place[axis].wrapping_add(at);
        place
    }

    fn halves(bits: u32) -> [u32; 2] {
        [bits & 0xFFFF, bits >> 16]
    }

    /// Chi-square of equally probable bins, as standard deviations from its mean.
    fn chi_square(counts: &[u32]) -> f64 {
        let bins = counts.len() as f64;
        let expected = f64::from(counts.iter().sum::<u32>()) / bins;
        let parts = counts
            .iter()
            .map(|&count| (f64::from(count) - expected).powi(2));
        (parts.sum::<f64>() / expected - (bins - 1.0)) / (2.0 * (bins - 1.0)).sqrt()
    }

    /// The largest of all statistics of `n` draws each, as standard deviations from what chance
    /// makes them.
    fn worst(of: Generator, n: u64) -> (f64, String) {
        let (mut worst, mut name) = (0.0_f64, String::new());
        let mut note = |deviations: f64, what: String| {
            if deviations.abs() > worst {
                (worst, name) = (deviations.abs(), what);
            }
        };
        // A uniform number of 16 bits has this deviation; so does the product of two, squared.
        let deviation = 65_536.0 / 12_f64.sqrt();
        let centred = |half: u32| (f64::from(half) - 32_767.5) / deviation;
        let root = (n as f64).sqrt();
        for axis in 0..4 {
            for round in 0..3 {
                let mut bins = vec![[0_u32; 256]; 4];
                let mut sums = [0.0; 2];
                for at in 0..n {
                    let found = halves(of(place(axis, round, at)));
                    for (half, value) in found.into_iter().enumerate() {
                        bins[half][value as usize >> 8] += 1;
                        bins[2 + half][value as usize & 0xFF] += 1;
                        sums[half] += centred(value);
                    }
                }
                for (at, bins) in bins.iter().enumerate() {
                    note(chi_square(bins), format!("axis {axis} bins {at}"));
                }
                for sum in sums {
                    note(sum / root, format!("axis {axis} mean"));
                }
            }
        }
        // Neighbours and numbers that differ in one bit, in each of the four.
        for (axis, bits) in [64, 32, 32, 12].into_iter().enumerate() {
            let others: Vec<(String, Move)> = (0..bits)
                .map(|bit| -> (String, Move) {
                    (format!("bit {bit}"), Box::new(move |one| one ^ 1 << bit))
                })
                .chain((1..4).map(|by| -> (String, Move) {
                    (format!("after {by}"), Box::new(move |one| one + by))
                }))
                .collect();
            for (what, other) in others {
                let (mut products, mut pairs) = ([0.0; 4], vec![[0_u32; 256]; 4]);
                let mut flips = [0_u32; 32];
                for at in 0..n {
                    // Another axis varies, so that no pair is met twice.
                    let here = place((axis + 1) % 4, 1, at);
                    let mut there = here;
                    there[axis] = other(there[axis]);
                    let (one, two) = (of(here), of(there));
                    for (bit, flips) in flips.iter_mut().enumerate() {
                        *flips += (one ^ two) >> bit & 1;
                    }
                    let (one, two) = (halves(one), halves(two));
                    for (number, (a, b)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate()
                    {
                        products[number] += centred(one[a]) * centred(two[b]);
                        let shift = if number % 2 == 0 { 12 } else { 4 };
                        let bin = (one[a] >> shift & 15) << 4 | (two[b] >> shift & 15);
                        pairs[number][bin as usize] += 1;
                    }
                }
                let named = |kind: &str| format!("axis {axis} {what} {kind}");
                for sum in products {
                    note(sum / root, named("product"));
                }
                for pairs in &pairs {
                    note(chi_square(pairs), named("pairs"));
                }
                for count in flips {
                    let expected = n as f64 / 2.0;
                    note((f64::from(count) - expected) / (root / 2.0), named("flips"));
                }
            }
        }
        // Both halves of a word.
        let mut sum = 0.0;
        for at in 0..n {
            let [one, two] = halves(of(place(1, 2, at)));
            sum += centred(one) * centred(two);
        }
        note(sum / root, "halves of a word".to_owned());
        (worst, name)
    }

    #[test]
    fn they_are_as_random_as_philox_to_statistics_that_find_weaker_ones() {
        let n = if is_whole() { 1 << 14 } else { 1 << 12 };
        // Some 8,000 statistics, of which chance takes the largest to 4, of chi-squares to 5.
        for (name, of) in [("ours", ours as Generator), ("philox", philox)] {
            let (worst, what) = worst(of, n);
            assert!(worst < 5.5, "{name}: {worst} in {what}");
        }
        for (name, of) in [("words", unmixed as Generator), ("rows", unmixed_rows)] {
            assert!(worst(of, n).0 > 20.0, "{name}");
        }
    }

    /// Of the formula in the documents, by Python's integers.
    #[test]
    fn they_are_those_of_the_formula() {
        let known: [((u64, i64, u64, u32), u32); 4] = [
            ((0, 0, 0, 0), 0x0000_0000),
            ((77, 5, 9, 3), 0x2501_A10B),
            ((u64::MAX, -1, 1 << 40, 31), 0x0383_6740),
            ((0x1234_5678_9ABC_DEF0, (1 << 33) + 7, 1, 4095), 0xCF24_DCC6),
        ];
        for ((seed, key, update, word), bits) in known {
            let found = Draws::new(seed, update).of(folded(key)).word(word);
            assert_eq!(found, bits, "{seed} {key} {update} {word}");
        }
    }

    #[test]
    fn small_keys_and_fields_of_keys_share_no_numbers() {
        let keys = (0..100_i64).flat_map(|field| (0..1000).map(move |id| field << 32 | id));
        let mut found: Vec<u32> = keys.chain(-1000..0).map(folded).collect();
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count);
    }
}
