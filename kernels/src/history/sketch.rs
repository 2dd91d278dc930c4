//! Counters of keys without a row in a fixed amount of memory, for billions of rare keys: a
//! count-min sketch.
//!
//! Formulas: G. Cormode and S. Muthukrishnan, An improved data stream summary: the count-min sketch
//! and its applications, Journal of Algorithms 55 (2005). What a key is said to have is never less
//! than what it has. It is more than `e / w * N` too much with probability `e^-4` = 1.8 % at most,
//! where `w` is the width, in cells, and `N` the sum of all counts added since the cells were empty
//! (what [`Sketch::drop_stale`] emptied is less again): Markov's inequality in each of four rows.

use super::Seen;
use crate::index::{hash, scale};
use crate::mem::{check_available, each_asked, prefetch};
use crate::pool::ranges;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::{Error, Kind, Pool, Result, PADDING};

/// Rows of cells. One more makes the probability of a large error e times smaller, but takes a
/// cache miss more a key and, of the same memory, its part of the width.
const DEPTH: usize = 4;

/// A thread should have at least so many keys.
const KEYS: usize = 4096;

/// Cells that are looked through at once by [`Sketch::drop_stale`].
const PIECE: usize = 64 << 10;

/// Factors and summands of [`row_hash`], drawn once at random. Another program finds the cells of a
/// key by the same.
const ROWS: [(u128, u128); DEPTH] = [
    (
        0x0FA7_854F_9DAE_13BB_9D56_14C5_3A2A_2CB9,
        0x4B6D_F744_162C_8D38_FFBE_A1E3_E537_6DFE,
    ),
    (
        0x8FC5_4C2A_4B08_8E2D_D4EF_DF9B_265F_36C8,
        0x6C55_C090_B263_026C_7183_C2C7_63C8_338B,
    ),
    (
        0xEAA2_05D1_DE51_8938_0EEC_57DC_73BD_FE4A,
        0x4F25_7025_4A5F_4DA2_649B_6B0B_A993_9A93,
    ),
    (
        0x3E56_59BC_1BE2_5069_940C_9591_ED6F_0A21,
        0x8FAB_DBBA_33A4_2E43_7558_CFFA_90C5_4388,
    ),
];

/// Four rows of cells; a key has one in each.
///
/// A cell has the sum of the counts of its keys and the latest of their times. Additions are plain:
/// they are the same in any order and on any number of threads, which conservative ones, that add
/// to the least cell only, are not.
///
/// ```text
///          0                            width
///   row 0  | . . . . K . . . . . . . . |      a cell: Seen::pack, 8 bytes, 0 = nothing
///   row 1  | . K . . . . . . . . . . . |      K: the cells of one key, whose count
///   row 2  | . . . . . . . . . . K . . |      and time are the least of the four
///   row 3  | . . . . . . . K . . . . . |
/// ```
pub(crate) struct Sketch {
    cells: Vec<AtomicU64>,
    width: usize,
}

impl Sketch {
    /// Empty cells in at most `bytes` bytes, 32 at least.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system has not got the memory.
    pub(crate) fn new(bytes: u64) -> Result<Sketch> {
        let refused = || Error::new(Kind::ResourceExhausted, "no memory for counters of keys");
        let width = usize::try_from(Sketch::shape_of(bytes).0).map_err(|_| refused())?;
        check_available(bytes)?;
        let mut cells = Vec::new();
        let reserved = cells.try_reserve_exact(width.saturating_mul(DEPTH));
        reserved.map_err(|cause| refused().with("cause", cause))?;
        cells.resize_with(width * DEPTH, AtomicU64::default);
        Ok(Sketch { cells, width })
    }

    /// Width and depth, in cells, of a sketch of at most so many bytes, 32 at least.
    pub(crate) fn shape_of(bytes: u64) -> (u64, u64) {
        let column = (DEPTH * size_of::<AtomicU64>()) as u64;
        ((bytes / column).max(1), DEPTH as u64)
    }

    /// Width and depth, in cells.
    pub(crate) fn shape(&self) -> (u64, u64) {
        (self.width as u64, DEPTH as u64)
    }

    /// The cells from number `from` on, row after row.
    pub(crate) fn cells(&self, from: usize) -> impl Iterator<Item = u64> + '_ {
        self.cells.iter().skip(from).map(|cell| cell.load(Relaxed))
    }

    /// Sets cells from number `from` on, as [`Sketch::cells`] gave them; cells out of range are
    /// ignored.
    pub(crate) fn fill(&self, from: usize, cells: impl Iterator<Item = u64>) {
        for (cell, word) in self.cells.iter().skip(from).zip(cells) {
            cell.store(word, Relaxed);
        }
    }

    /// Adds to the cells of a key. Padding has none.
    pub(crate) fn add(&self, key: i64, seen: Seen) {
        if key != PADDING {
            self.change(key, |cell| cell.add(seen.count, seen.last));
        }
    }

    /// Takes back what was added to the cells of a key. A cell that counts nothing any more is
    /// emptied.
    pub(crate) fn subtract(&self, key: i64, count: u32) {
        if key != PADDING {
            self.change(key, |cell| match cell.count.saturating_sub(count) {
                0 => Seen::default(),
                count => Seen { count, ..cell },
            });
        }
    }

    /// Notes when a key was last seen, if it may have been counted: if none of its cells is empty.
    pub(crate) fn touch(&self, key: i64, last: u32) {
        // A cell that is emptied meanwhile stays so: without a count a time would say that
        // something is known.
        let noted = |cell: Seen| match cell.is_nothing() {
            true => cell,
            false => cell.add(0, last),
        };
        if self.get(key).is_some() {
            self.change(key, noted);
        }
    }

    /// The least count and the least time of the cells of a key: not less than what was added for
    /// it. None if it has an empty one.
    pub(crate) fn get(&self, key: i64) -> Option<Seen> {
        let mut least = Seen {
            count: u32::MAX,
            last: u32::MAX,
        };
        for at in self.places(key) {
            let cell = Seen::unpack(self.cells[at].load(Relaxed));
            if cell.is_nothing() {
                return None;
            }
            least.count = least.count.min(cell.count);
            least.last = least.last.min(cell.last);
        }
        Some(least).filter(|_| key != PADDING)
    }

    /// Starts to bring the cells of a key into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, key: i64) {
        self.places(key)
            .into_iter()
            .for_each(|at| prefetch(&self.cells[at]));
    }

    /// Calls `f` with the place of every key and the key, on all threads of the pool, with the
    /// cells of later keys on their way.
    pub(crate) fn visit(&self, pool: &Pool, keys: &[i64], f: impl Fn(usize, i64) + Sync) {
        let parts = ranges(keys.len(), pool.parts(keys.len(), KEYS));
        pool.each(parts, |range| {
            let items = range.clone().zip(&keys[range]);
            let ask = |sketch: &&Sketch, (_, &key): (usize, &i64)| sketch.prefetch(key);
            each_asked(self, items, ask, |_, (at, &key)| f(at, key));
        });
    }

    /// The counts of keys, 0 of those that have none.
    pub(crate) fn counts(&self, pool: &Pool, keys: &[i64]) -> Vec<u32> {
        let counts: Vec<AtomicU32> = keys.iter().map(|_| AtomicU32::new(0)).collect();
        self.visit(pool, keys, |at, key| {
            let count = self.get(key).unwrap_or_default().count;
            counts[at].store(count, Relaxed);
        });
        counts.into_iter().map(AtomicU32::into_inner).collect()
    }

    /// Empties those cells of one of [`Sketch::pieces`] pieces that `stale` names.
    ///
    /// A key whose time is stale loses its count unless fresher keys share all its cells.
    pub(crate) fn drop_stale(&self, piece: usize, stale: impl Fn(Seen) -> bool) {
        for cell in self.cells.chunks(PIECE).nth(piece).unwrap_or_default() {
            // Whoever adds meanwhile makes it fresh: then it is not stale any more.
            let emptied = |word| (word != 0 && stale(Seen::unpack(word))).then_some(0);
            cell.fetch_update(Relaxed, Relaxed, emptied).ok();
        }
    }

    /// Into how many pieces the cells are divided.
    pub(crate) fn pieces(&self) -> usize {
        self.cells.len().div_ceil(PIECE)
    }

    /// Empties all cells.
    pub(crate) fn clear(&mut self) {
        self.cells.iter_mut().for_each(|cell| *cell.get_mut() = 0);
    }

    /// Bytes held: those it was made with, down to whole columns of 32.
    pub(crate) fn bytes(&self) -> u64 {
        (self.cells.capacity() * size_of::<AtomicU64>()) as u64
    }

    fn change(&self, key: i64, to: impl Fn(Seen) -> Seen) {
        for at in self.places(key) {
            let changed = |word| Some(to(Seen::unpack(word)).pack());
            self.cells[at].fetch_update(Relaxed, Relaxed, changed).ok();
        }
    }

    /// Where the cells of a key are.
    #[inline]
    fn places(&self, key: i64) -> [usize; DEPTH] {
        let key = hash(key);
        std::array::from_fn(|row| row * self.width + scale(row_hash(row, key), self.width))
    }
}

/// 64 bits of a mixed key for one row.
///
/// The upper half of `a * key + b` modulo 2^128 takes, for random `a` and `b`, the values of any
/// two keys independently of each other, as the error bound needs (M. Dietzfelbinger, Universal
/// hashing and k-wise independent random variables via integer arithmetic without primes, STACS
/// 1996). The rows are independent of each other, since their numbers are. Keys are mixed before,
/// since keys in regular steps would otherwise meet in regular steps; a bijection leaves the rest
/// as it is.
#[inline]
fn row_hash(row: usize, key: u64) -> u64 {
    let (factor, summand) = ROWS[row];
    (factor.wrapping_mul(key.into()).wrapping_add(summand) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn seen(count: u32, last: u32) -> Seen {
        Seen { count, last }
    }

    fn words(sketch: &Sketch) -> Vec<u64> {
        sketch.cells(0).collect()
    }

    /// Evenly distributed numbers in 0..1, the same in every run.
    fn uniform(at: u64) -> f64 {
        (hash(at as i64 ^ 0x5bd1_e995) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// How many of the keys of a stream are estimated too high by more than `e / w * N`, and the
    /// greatest number that may be.
    fn beyond(stream: impl Iterator<Item = i64>, bytes: u64) -> (usize, usize) {
        let sketch = Sketch::new(bytes).unwrap();
        let mut truth: HashMap<i64, u32> = HashMap::new();
        let mut all = 0_u64;
        for key in stream {
            sketch.add(key, seen(1, 1));
            *truth.entry(key).or_default() += 1;
            all += 1;
        }
        let bound = std::f64::consts::E / sketch.width as f64 * all as f64;
        let errors = truth.iter().map(|(&key, &count)| {
            let estimate = sketch.get(key).unwrap().count;
            assert!(estimate >= count, "{key}: {estimate} of {count}");
            f64::from(estimate - count)
        });
        let beyond = errors.filter(|&error| error > bound).count();
        (beyond, (truth.len() as f64 * (-4.0_f64).exp()) as usize)
    }

    #[test]
    fn of_even_and_of_skewed_streams_fewer_than_the_stated_share_is_beyond_the_bound() {
        for bytes in [1 << 10, 16 << 10, 1 << 20] {
            let even = (0..300_000).map(|at| (uniform(at) * 1e5) as i64);
            let (found, most) = beyond(even, bytes);
            assert!(found <= most, "even, {bytes} bytes: {found} of {most}");
            // Zipf with exponent 1 over 1e6 keys: the logarithm of the rank is even.
            let skewed = (0..300_000).map(|at| 1e6_f64.powf(uniform(at)) as i64);
            let (found, most) = beyond(skewed, bytes);
            assert!(found <= most, "skewed, {bytes} bytes: {found} of {most}");
        }
    }

    #[test]
    fn keys_in_regular_steps_meet_no_more_often_than_others() {
        for step in [1_i64, 64, 1 << 20, 1 << 44, -3] {
            let keys = (0..50_000).map(|at: i64| at.wrapping_mul(step));
            let (found, most) = beyond(keys.clone().chain(keys), 200_000);
            assert!(found <= most, "step {step}: {found} of {most}");
        }
    }

    #[test]
    fn it_takes_the_bytes_it_was_given_whatever_comes() {
        for bytes in [32, 1024, 1055, 1 << 20, 3_000_000] {
            let sketch = Sketch::new(bytes).unwrap();
            (0..20_000).for_each(|key| sketch.add(key * 77, seen(1, 1)));
            assert_eq!(sketch.bytes(), bytes / 32 * 32);
        }
        let error = Sketch::new(1 << 50).err().unwrap();
        assert_eq!(error.kind(), Kind::ResourceExhausted);
    }

    #[test]
    fn any_number_of_threads_leaves_the_same_cells() {
        let run = |threads: i64| {
            let sketch = Sketch::new(4096).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let sketch = &sketch;
                    scope.spawn(move || {
                        for at in (thread..40_000).step_by(threads as usize) {
                            sketch.add(at % 999, seen(at as u32 % 7, at as u32));
                        }
                    });
                }
            });
            words(&sketch)
        };
        let one = run(1);
        assert!(run(2) == one && run(7) == one);
    }

    #[test]
    fn counts_saturate_and_padding_has_none() {
        let mut sketch = Sketch::new(1024).unwrap();
        sketch.add(7, seen(u32::MAX - 1, 5));
        sketch.add(7, seen(9, 3));
        assert_eq!(sketch.get(7), Some(seen(u32::MAX, 5)));
        sketch.clear();
        sketch.add(PADDING, seen(1, 1));
        sketch.touch(7, 6);
        assert!(words(&sketch).iter().all(|&word| word == 0));
        assert_eq!((sketch.get(PADDING), sketch.get(7)), (None, None));
    }

    proptest! {
        #[test]
        fn no_key_is_said_to_have_less_or_to_be_staler_than_it_is(
            bytes in 32..4096_u64,
            verbs in proptest::collection::vec((0..8_u8, any::<i16>(), 1..9_u32), 1..300),
        ) {
            let sketch = Sketch::new(bytes).unwrap();
            let mut truth: HashMap<i64, Seen> = HashMap::new();
            let mut latest = 1;
            for (verb, key, number) in verbs {
                let key = i64::from(key % 64) << 40;
                match verb {
                    0 => latest += number,
                    1 => {
                        let stale = |one: Seen| one.last != 0 && latest - one.last >= 12;
                        (0..sketch.pieces()).for_each(|piece| sketch.drop_stale(piece, stale));
                        truth.retain(|_, one| !stale(*one));
                    }
                    2 => {
                        sketch.touch(key, latest);
                        truth.entry(key).and_modify(|one| one.last = latest);
                    }
                    _ => {
                        sketch.add(key, seen(number, latest));
                        let one = truth.entry(key).or_default();
                        *one = one.add(number, latest);
                    }
                }
                for (&key, one) in &truth {
                    let estimate = sketch.get(key).unwrap_or_default();
                    prop_assert!(estimate.count >= one.count && estimate.last >= one.last, "{key}: \
                        {estimate:?} of {one:?}");
                    prop_assert!(estimate.last <= latest);
                }
            }
        }
    }
}
