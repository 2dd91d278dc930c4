//! Random bits by counter: Philox-4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3" (SC 2011), run for sixteen columns at a time.

/// Columns that one call makes.
pub(super) const COLUMNS: usize = 16;

/// Counters that run side by side; each gives four words.
const LANES: usize = 4;

const ROUNDS: u32 = 10;
const MULTIPLIER: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One column's word each for columns `16 * group ..`: the Philox key is the seed, the counter is
/// (block, 0, key).
///
/// Block `4 * group + lane` gives columns `lane`, `lane + 4`, `lane + 8` and `lane + 12` of the
/// group, so that four lanes are written without a transposition.
#[inline(always)]
pub(crate) fn words(seed: u64, key: i64, group: u32) -> [u32; COLUMNS] {
    // Each number is the low half of a 64-bit lane, so that a lane's product is one widening
    // multiplication; what is in the high halves does not matter.
    let mut counter = [
        std::array::from_fn(|lane| u64::from(group) * LANES as u64 + lane as u64),
        [0; LANES],
        [key as u64; LANES],
        [(key >> 32) as u64; LANES],
    ];
    let (mut first, mut second) = (seed as u32, (seed >> 32) as u32);
    for _ in 0..ROUNDS {
        counter = round(counter, first, second);
        first = first.wrapping_add(WEYL[0]);
        second = second.wrapping_add(WEYL[1]);
    }
    let mut words = [0; COLUMNS];
    for (words, lanes) in words.chunks_exact_mut(LANES).zip(&counter) {
        for (word, &lane) in words.iter_mut().zip(lanes) {
            *word = lane as u32;
        }
    }
    words
}

#[inline(always)]
fn round(counter: [[u64; LANES]; 4], first: u32, second: u32) -> [[u64; LANES]; 4] {
    let mut next = [[0; LANES]; 4];
    for lane in 0..LANES {
        let even = low(counter[0][lane]) * MULTIPLIER[0];
        let odd = low(counter[2][lane]) * MULTIPLIER[1];
        next[0][lane] = (odd >> 32) ^ counter[1][lane] ^ u64::from(first);
        next[1][lane] = odd;
        next[2][lane] = (even >> 32) ^ counter[3][lane] ^ u64::from(second);
        next[3][lane] = even;
    }
    next
}

#[inline(always)]
fn low(word: u64) -> u64 {
    word & 0xFFFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with the algorithm: (counter, key, result).
    #[test]
    fn the_published_known_answers_come_out() {
        let run = |counter: [u32; 4], key: [u32; 2]| {
            let mut lanes = counter.map(|word| [u64::from(word); LANES]);
            let [mut first, mut second] = key;
            for _ in 0..ROUNDS {
                lanes = round(lanes, first, second);
                first = first.wrapping_add(WEYL[0]);
                second = second.wrapping_add(WEYL[1]);
            }
            lanes.map(|lane| lane[0] as u32)
        };
        assert_eq!(
            run([0; 4], [0; 2]),
            [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]
        );
        assert_eq!(
            run([u32::MAX; 4], [u32::MAX; 2]),
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
        );
        assert_eq!(
            run(
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0]
            ),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }

    #[test]
    fn a_group_starts_with_the_first_words_of_its_four_blocks() {
        assert_eq!(words(0, 0, 0)[0], 0x6627_E8D5);
        assert_eq!(words(0, 0, 0)[4], 0xE169_C58D);
        assert_eq!(words(0, 0, 0)[8], 0xBC57_AC4C);
        assert_eq!(words(0, 0, 0)[12], 0x9B00_DBD8);
    }
}
