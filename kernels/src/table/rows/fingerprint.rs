//! What a lease remembers of the ids it was prepared from and of the inverse it was prepared into:
//! buffers that are not its own, so that neither their addresses nor their contents can be relied
//! on later.

use crate::Ids;

/// Sums that do not wait for each other.
const LANES: usize = 4;

/// Odd numbers without a pattern.
const FACTORS: [u64; LANES] = [
    0x9E37_79B9_7F4A_7C15,
    0xC2B2_AE3D_27D4_EB4F,
    0xD6E8_FEB8_6659_FD93,
    0xA076_1D64_78BD_642F,
];

/// The lengths of ids and inverse, and 64 bits of their contents: other contents have other bits,
/// but for one in 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::table) struct Fingerprint {
    ids: usize,
    inverse: usize,
    bits: u64,
}

impl Fingerprint {
    /// That of a batch, on the caller's thread: a claim that asked the pool would wait behind the
    /// work of batches ahead.
    pub(in crate::table) fn of(ids: Ids<'_>, inverse: &[i32]) -> Fingerprint {
        let of_ids = match ids {
            Ids::I64(ids) => wide(ids),
            Ids::I32(ids) => !narrow(ids),
        };
        Fingerprint {
            ids: ids.len(),
            inverse: inverse.len(),
            bits: fold(of_ids, FACTORS[0]) ^ narrow(inverse),
        }
    }
}

/// The sum of 64-bit numbers.
fn wide(numbers: &[i64]) -> u64 {
    let mut sums = FACTORS;
    let (steps, rest) = numbers.as_chunks::<LANES>();
    for step in steps {
        for lane in 0..LANES {
            sums[lane] = fold(sums[lane] ^ step[lane] as u64, FACTORS[lane]);
        }
    }
    finish(sums, rest.iter().map(|&number| number as u64))
}

/// The sum of 32-bit numbers, two at a time.
fn narrow(numbers: &[i32]) -> u64 {
    let mut sums = FACTORS;
    let (steps, rest) = numbers.as_chunks::<{ 2 * LANES }>();
    for step in steps {
        for lane in 0..LANES {
            let (low, high) = (step[2 * lane] as u32, step[2 * lane + 1] as u32);
            let word = u64::from(low) | u64::from(high) << 32;
            sums[lane] = fold(sums[lane] ^ word, FACTORS[lane]);
        }
    }
    finish(sums, rest.iter().map(|&number| u64::from(number as u32)))
}

/// Takes in the numbers that fill no step, and joins the lanes.
fn finish(mut sums: [u64; LANES], rest: impl Iterator<Item = u64>) -> u64 {
    for number in rest {
        sums[0] = fold(sums[0] ^ number, FACTORS[1]);
    }
    sums.into_iter()
        .fold(0, |all, sum| fold(all ^ sum, FACTORS[3]))
}

/// Both halves of a product, on one another: every bit of it depends on every bit of `number`.
#[inline(always)]
fn fold(number: u64, factor: u64) -> u64 {
    let product = u128::from(number) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn any_change_of_any_number_shows() {
        for n in [0, 1, 3, 4, 7, 9, 16_383, 16_384, 32_773] {
            let ids: Vec<i64> = (0..n as i64).map(|at| at * 7 - 3).collect();
            let short: Vec<i32> = (0..n as i32).map(|at| at * 7 - 3).collect();
            let inverse: Vec<i32> = (0..n as i32).collect();
            let first = Fingerprint::of(Ids::I64(&ids), &inverse);
            let mut seen = HashSet::from([first.bits]);
            let narrow = Fingerprint::of(Ids::I32(&short), &inverse);
            assert!(seen.insert(narrow.bits), "{n}: the width");
            let mut changes = 2;
            for at in (0..n).step_by(1 + n / 20) {
                for bit in [0, 1, 31, 32, 62, 63] {
                    let mut ids = ids.clone();
                    ids[at] ^= 1 << bit;
                    seen.insert(Fingerprint::of(Ids::I64(&ids), &inverse).bits);
                    let mut inverse = inverse.clone();
                    inverse[at] ^= 1 << (bit % 32);
                    let changed = Fingerprint::of(Ids::I32(&short), &inverse);
                    seen.insert(changed.bits);
                    changes += 2;
                }
                // 0 and 32, 31 and 63 are one bit of the inverse.
                changes -= 2;
                let mut ids = ids.clone();
                ids.swap(at, n - 1 - at);
                changes += usize::from(seen.insert(Fingerprint::of(Ids::I64(&ids), &inverse).bits));
            }
            assert_eq!(seen.len(), changes, "{n}");
        }
    }
}
