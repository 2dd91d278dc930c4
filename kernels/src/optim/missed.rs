//! What rows without a gradient have missed of the steps of Adam, and how they catch up.
//!
//! A row that had no gradient for k steps has `m beta1^k` and `v beta2^k`, and its weight has moved
//! by the sum over j = 1..k of `lr_j m beta1^j / (sqrt(v) q^j + epsilon)`, with q the root of beta2
//! and `lr_j` the learning rate of that step with the corrections of its bias in it.
//!
//! With `a = sqrt(v) + epsilon` and `r = sqrt(v) / a` the denominator is `a (1 - r (1 - q^j))`. As
//! r is at most 1 and `1 - q^j` small as long as `beta1^j` is not, the quotient is a series in it:
//! the sum is `m / a` times the sum over n of `r^n S_n`, where `S_n` is the sum of
//! `lr_j beta1^j (1 - q^j)^n`: numbers of the steps, and the same for all rows. So no row takes
//! longer the more steps it has missed, whatever its v is beside epsilon.
//!
//! Betas for which the series does not get as far replay the steps one by one.

use super::row::Decay;
use crate::halves::{with_value, words, Half, Value};
use crate::simd::{in_blocks, Level, Vectorized};
use crate::RowDtype;

/// Terms of the series.
const TERMS: usize = 5;

/// The series is used if what it leaves out is less than so large a part of the sum.
const LEFT_OUT: f64 = 1e-7;

/// Steps are left out of which all together move a row by less than so large a part of what the
/// first one does, at an even learning rate.
const TAIL: f64 = 1e-10;

/// Steps with the same betas and epsilon, for rows that have missed all of them.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The betas and the epsilon; its learning rate says nothing.
    pub(crate) decay: Decay,
    /// How many there are.
    pub(crate) count: usize,
    /// The number of the last one among the table's updates, if embeddings have 2 bytes a value.
    pub(crate) update: u64,
    /// The learning rates of the first ones; the others move no such row.
    pub(crate) rates: Vec<f32>,
}

/// The steps of a table, for rows that have missed some of them.
pub(crate) struct Missed {
    decay: Decay,
    level: Level,
    /// For 1.. steps after the last gradient `beta1^j (1 - q^j)^n`; later ones move no row.
    weights: Vec<[f64; TERMS]>,
    is_series: bool,
    /// The learning rate of each step.
    rates: Vec<f32>,
    /// For each step, the sums of the series over those that came after it.
    sums: Vec<[f64; TERMS]>,
    /// The powers of beta1 and beta2, from 0 to the number of steps.
    powers: Vec<[f64; 2]>,
}

impl Missed {
    /// The most steps.
    pub(crate) const MOST: usize = u16::MAX as usize - 1;

    /// No steps yet, of which all will have the betas and the epsilon of `decay`.
    pub(crate) fn new(decay: Decay) -> Missed {
        let (beta1, root) = (f64::from(decay.beta1), f64::from(decay.beta2).sqrt());
        let mut weights = Vec::new();
        let last = if decay.moves { Missed::MOST } else { 0 };
        let (mut power, mut rooted) = (1.0, 1.0);
        let (mut sum, mut left_out) = (0.0, 0.0);
        while weights.len() < last && power > TAIL * (1.0 - beta1) {
            power *= beta1;
            rooted *= root;
            let small = 1.0 - rooted;
            let mut term = power;
            weights.push([(); TERMS].map(|()| {
                let now = term;
                term *= small;
                now
            }));
            sum += power;
            if term > 0.0 {
                left_out += term / rooted;
            }
        }
        Missed {
            decay,
            level: Level::detect(),
            weights,
            is_series: left_out <= LEFT_OUT * sum,
            rates: Vec::new(),
            sums: vec![[0.0; TERMS]],
            powers: vec![[1.0; 2]],
        }
    }

    /// For rows that have missed all of `steps`: none of them is as it was after a later one.
    pub(crate) fn all(steps: &Steps) -> Missed {
        let mut missed = Missed::new(steps.decay);
        for (&rate, weights) in steps.rates.iter().zip(&missed.weights) {
            add(&mut missed.sums[0], rate, weights);
        }
        // There may be many of few steps each, and a file says how many steps there are.
        missed.weights.truncate(steps.rates.len());
        missed.weights.shrink_to_fit();
        missed.rates.clone_from(&steps.rates);
        let powers = (0..steps.count).fold([1.0; 2], |powers, _| missed.decayed(powers));
        missed.powers = vec![powers; 1 + steps.rates.len()];
        missed
    }

    /// The steps, for rows that have missed all of them; `None` if there were none. `update` is the
    /// number of the last one.
    pub(crate) fn told(&self, update: u64) -> Option<Steps> {
        let moving = self.steps().min(self.weights.len());
        (self.steps() > 0).then(|| Steps {
            decay: self.decay,
            count: self.steps(),
            update,
            rates: self.rates[..moving].to_vec(),
        })
    }

    /// Whether the steps have the betas and the epsilon of `decay`, and move rows if it does.
    pub(crate) fn is_of(&self, decay: &Decay) -> bool {
        let numbers = |decay: &Decay| [decay.beta1, decay.beta2, decay.epsilon].map(f32::to_bits);
        numbers(&self.decay) == numbers(decay) && self.decay.moves == decay.moves
    }

    /// How many steps there were.
    pub(crate) fn steps(&self) -> usize {
        self.rates.len()
    }

    /// Adds a step of learning rate `lr`.
    pub(crate) fn push(&mut self, lr: f32) {
        let steps = self.rates.len() + 1;
        // Replays need no sums.
        let earlier = self.sums.iter_mut().rev().filter(|_| self.is_series);
        for (sums, weights) in earlier.zip(&self.weights) {
            add(sums, lr, weights);
        }
        self.rates.push(lr);
        self.sums.push([0.0; TERMS]);
        self.powers.push(self.decayed(self.powers[steps - 1]));
    }

    /// The powers of beta1 and beta2 after one more step.
    fn decayed(&self, [one, other]: [f64; 2]) -> [f64; 2] {
        let betas = [self.decay.beta1, self.decay.beta2].map(f64::from);
        [one * betas[0], other * betas[1]]
    }

    /// Brings a row, its weights and its slots, to the state after the last step, in place; before
    /// it was that after step `from`. `starts` says where m and v are in the slots.
    pub(crate) fn catch_up(
        &self,
        from: usize,
        weights: &mut [f32],
        slots: &mut [f32],
        starts: [usize; 2],
    ) {
        let Some(&[power1, power2]) = self.powers.get(self.steps() - from.min(self.steps())) else {
            return;
        };
        self.level.run(CatchUp {
            moves: self.moves(from),
            powers: [power1 as f32, power2 as f32],
            weights,
            slots,
            starts,
        });
    }

    /// Brings the weights alone of a row that is as it was after step `from` to the state after the
    /// last one.
    #[inline(always)]
    pub(crate) fn embedding(
        &self,
        from: usize,
        weights: &mut [f32],
        slots: &[f32],
        starts: [usize; 2],
    ) {
        if self.decay.moves {
            self.level.run(Embedding {
                moves: self.moves(from),
                weights,
                slots,
                starts,
            });
        }
    }

    /// The same of m and v of 2 bytes a value, in words as embeddings are.
    pub(crate) fn embedding_by_halves(
        &self,
        from: usize,
        weights: &mut [f32],
        half: Half,
        moments: [&[f32]; 2],
    ) {
        if self.decay.moves {
            self.level.run(ByHalves {
                level: self.level,
                moves: self.moves(from),
                weights,
                half,
                moments,
            });
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let sums = self.weights.capacity() + self.sums.capacity();
        sums * size_of::<[f64; TERMS]>() + self.rates.capacity() * 4 + self.powers.capacity() * 16
    }

    /// How a row moves that has missed the steps after step `from`.
    fn moves(&self, from: usize) -> Moves<'_> {
        let epsilon = self.decay.epsilon;
        if !self.decay.moves {
            return Moves::Stays;
        }
        if self.is_series {
            let sums = self.sums.get(from).copied().unwrap_or_default();
            return Moves::Series {
                sums: sums.map(|sum| sum as f32),
                epsilon,
            };
        }
        let rates = self.rates.get(from..).unwrap_or_default();
        Moves::Replay {
            rates: &rates[..rates.len().min(self.weights.len())],
            beta1: self.decay.beta1.into(),
            root: f64::from(self.decay.beta2).sqrt(),
            epsilon: epsilon.into(),
        }
    }
}

/// Whether a row misses nothing, whatever its last step is: its m and v, of which these are the
/// words, are zeros. Bits tell, since a word of two small values is a denormal float, which
/// processors may take for zero.
pub(crate) fn is_still(dtype: RowDtype, moments: [&[f32]; 2]) -> bool {
    let signs = match dtype.half() {
        None => 1 << 31,
        Some(_) => 1 << 31 | 1 << 15,
    };
    let is_zero = |words: &[f32]| words.iter().all(|word| word.to_bits() & !signs == 0);
    moments.into_iter().all(is_zero)
}

/// Adds a step to the sums of the series.
fn add(sums: &mut [f64; TERMS], lr: f32, weights: &[f64; TERMS]) {
    for (sum, weight) in sums.iter_mut().zip(weights) {
        *sum += f64::from(lr) * weight;
    }
}

/// How a row moves.
#[derive(Clone, Copy)]
enum Moves<'a> {
    /// Not at all.
    Stays,
    /// By the series.
    Series { sums: [f32; TERMS], epsilon: f32 },
    /// Step by step.
    Replay {
        rates: &'a [f32],
        beta1: f64,
        root: f64,
        epsilon: f64,
    },
}

impl Moves<'_> {
    /// Brings `N` columns of weights from `at` on to the state after the steps; returns m and v of
    /// before.
    #[inline(always)]
    fn columns<const N: usize>(
        &self,
        weights: &mut [f32],
        slots: &[f32],
        starts: [usize; 2],
        at: usize,
    ) -> ([f32; N], [f32; N]) {
        let (mut now, mut m, mut v) = ([0.0; N], [0.0; N], [0.0; N]);
        let [first, second] = starts.map(|start| start + at);
        now.copy_from_slice(&weights[at..at + N]);
        m.copy_from_slice(&slots[first..first + N]);
        v.copy_from_slice(&slots[second..second + N]);
        self.apply(&mut now, &m, &v);
        weights[at..at + N].copy_from_slice(&now);
        (m, v)
    }

    /// Takes from `weights` what the steps do to them.
    #[inline(always)]
    fn apply<const N: usize>(&self, weights: &mut [f32; N], m: &[f32; N], v: &[f32; N]) {
        match *self {
            Moves::Stays => {}
            Moves::Series { sums, epsilon } => {
                let [zero, one, two, three, four] = sums;
                for column in 0..N {
                    let below = v[column].abs().sqrt() + epsilon;
                    let share = 1.0 - epsilon / below;
                    let sum = four * share + three;
                    let sum = ((sum * share + two) * share + one) * share + zero;
                    weights[column] -= m[column] / below * sum;
                }
            }
            Moves::Replay {
                rates,
                beta1,
                root,
                epsilon,
            } => {
                let mut moved = [0.0_f64; N];
                let mut m: [f64; N] = std::array::from_fn(|column| m[column].into());
                let mut root_v: [f64; N] =
                    std::array::from_fn(|column| f64::from(v[column].abs()).sqrt());
                for &rate in rates {
                    let rate = f64::from(rate);
                    for column in 0..N {
                        m[column] *= beta1;
                        root_v[column] *= root;
                        moved[column] += rate * m[column] / (root_v[column] + epsilon);
                    }
                }
                for column in 0..N {
                    weights[column] = (f64::from(weights[column]) - moved[column]) as f32;
                }
            }
        }
    }
}

struct CatchUp<'a> {
    moves: Moves<'a>,
    powers: [f32; 2],
    weights: &'a mut [f32],
    slots: &'a mut [f32],
    starts: [usize; 2],
}

impl CatchUp<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize) {
        let starts = self.starts;
        let (mut m, mut v) = self
            .moves
            .columns::<N>(self.weights, self.slots, starts, at);
        let [first, second] = starts.map(|start| start + at);
        for column in 0..N {
            m[column] *= self.powers[0];
            v[column] *= self.powers[1];
        }
        self.slots[first..first + N].copy_from_slice(&m);
        self.slots[second..second + N].copy_from_slice(&v);
    }
}

impl Vectorized for CatchUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        in_blocks!(self.weights.len(), [16], (at, N) => self.block::<N>(at));
    }
}

struct Embedding<'a> {
    moves: Moves<'a>,
    weights: &'a mut [f32],
    slots: &'a [f32],
    starts: [usize; 2],
}

impl Embedding<'_> {
    #[inline(always)]
    fn block<const N: usize>(&mut self, at: usize) {
        let (starts, slots) = (self.starts, self.slots);
        self.moves.columns::<N>(self.weights, slots, starts, at);
    }
}

impl Vectorized for Embedding<'_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        in_blocks!(self.weights.len(), [16], (at, N) => self.block::<N>(at));
    }
}

struct ByHalves<'a> {
    level: Level,
    moves: Moves<'a>,
    weights: &'a mut [f32],
    half: Half,
    moments: [&'a [f32]; 2],
}

impl ByHalves<'_> {
    #[inline(always)]
    fn of<V: Value>(self) {
        let (low, high) = self.weights.split_at_mut(self.weights.len().div_ceil(2));
        let pairs = high.len();
        in_blocks!(pairs, [16, 8], (at, N) => {
            let moments = self.moments.map(|slot| words::<N>(slot, at));
            let [m, v] = moments.map(|words| V::decode_words::<N>(self.level, words));
            let both = [&mut low[at..at + N], &mut high[at..at + N]].into_iter();
            for (weights, (m, v)) in both.zip(m.iter().zip(&v)) {
                let mut now = [0.0; N];
                now.copy_from_slice(weights);
                self.moves.apply(&mut now, m, v);
                weights.copy_from_slice(&now);
            }
        });
        // A word that has one value.
        if let Some(weight) = low.get_mut(pairs) {
            let [m, v] = self
                .moments
                .map(|slot| [V::decode(slot[pairs].to_bits() & 0xFFFF)]);
            let mut now = [*weight];
            self.moves.apply(&mut now, &m, &v);
            [*weight] = now;
        }
    }
}

impl Vectorized for ByHalves<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        with_value!(self.half, V => self.of::<V>());
    }
}
