//! The loop that updates rows of 2 bytes a value without a row of floats between.

use super::half_row::{HalfRow, StoredSlot};
use super::row::{step_columns, step_values, update, Rule};
use crate::halves::{
    encode_words, with_value, words, Bfloat16, By, Half, RowDraws, Unusual, Value,
};
use crate::simd::{in_blocks, Level, Vectorized};
use crate::RowDtype;

/// Runs `rule` over every column of a row as compiled for `level`, which reads, steps and rounds
/// in registers; `grad` is that of
/// [`RowOptimizer::update_half`](super::RowOptimizer::update_half). The first slots of the row are
/// those of the rule.
#[inline]
pub(super) fn update_half<const S: usize>(
    level: Level,
    rule: impl Rule<S>,
    row: &mut HalfRow<'_>,
    grad: &[f32],
) {
    let slots = row.slots.first_chunk::<S>();
    let slots = slots.expect("the place of every slot");
    let starts = slots.each_ref().map(|slot| slot.place.start);
    let halves = slots
        .iter()
        .filter(|slot| slot.place.dtype == RowDtype::Bfloat16);
    let halves = halves.count();
    let Some(draws) = row.draws().filter(|_| halves == 0 || halves == S) else {
        row.as_floats(grad.len(), |row, slots| {
            update(level, rule, row, slots, grad);
        });
        return;
    };
    let high = grad.len().div_ceil(2);
    if halves == 0 {
        let slots = Floats {
            low: starts,
            high: starts.map(|start| start + high),
        };
        run(level, rule, row, (draws, slots), grad);
    } else {
        let folded = row.folded.unwrap_or_default();
        let round = |slot: &StoredSlot| By(slot.draws.of(folded));
        let slots = Packed {
            level,
            starts,
            rounds: slots.each_ref().map(round),
        };
        run(level, rule, row, (draws, slots), grad);
    }
}

#[inline(always)]
fn run<const S: usize>(
    level: Level,
    rule: impl Rule<S>,
    row: &mut HalfRow<'_>,
    (draws, slots): (RowDraws, impl Slots<S>),
    grad: &[f32],
) {
    row.unusual += level.run(UpdateHalf {
        level,
        rule,
        half: row.half,
        draws,
        record: row.record,
        slots,
        grad,
    });
}

struct UpdateHalf<'a, R, K, const S: usize> {
    level: Level,
    rule: R,
    half: Half,
    draws: RowDraws,
    record: &'a mut [f32],
    slots: K,
    grad: &'a [f32],
}

/// As what a rule's slots are stored.
trait Slots<const S: usize>: Copy {
    /// Steps the columns number `at` and on of the first half of the columns and as many of the
    /// second one, of which weights and gradients are given.
    fn step<const N: usize>(
        self,
        rule: impl Rule<S>,
        weights: [&mut [f32; N]; 2],
        record: &mut [f32],
        grads: [&[f32]; 2],
        at: usize,
        found: &mut Unusual,
    );

    /// Steps the last column of the first half, which has no other beside it.
    fn step_last(
        self,
        rule: impl Rule<S>,
        weight: &mut [f32; 1],
        record: &mut [f32],
        grads: &[f32],
        at: usize,
        found: &mut Unusual,
    );
}

/// Floats, those of either half of the columns.
#[derive(Clone, Copy)]
struct Floats<const S: usize> {
    low: [usize; S],
    high: [usize; S],
}

impl<const S: usize> Slots<S> for Floats<S> {
    #[inline(always)]
    fn step<const N: usize>(
        self,
        rule: impl Rule<S>,
        [lows, highs]: [&mut [f32; N]; 2],
        record: &mut [f32],
        [low, high]: [&[f32]; 2],
        at: usize,
        _: &mut Unusual,
    ) {
        step_columns(rule, lows, record, self.low, low, at);
        step_columns(rule, highs, record, self.high, high, at);
    }

    #[inline(always)]
    fn step_last(
        self,
        rule: impl Rule<S>,
        weight: &mut [f32; 1],
        record: &mut [f32],
        grads: &[f32],
        at: usize,
        _: &mut Unusual,
    ) {
        step_columns(rule, weight, record, self.low, grads, at);
    }
}

/// Runs one expression for each of `$slots` slots, with the number of the slot as a constant: the
/// compiler does not unroll a loop over so much, and slots that are picked by a variable lie in
/// memory instead of registers.
macro_rules! each_slot {
    ($slots:expr, $slot:ident => $run:expr) => {{
        const { assert!($slots <= 3) };
        each_slot!($slots, $slot => $run, 0);
        each_slot!($slots, $slot => $run, 1);
        each_slot!($slots, $slot => $run, 2);
    }};
    ($slots:expr, $slot:ident => $run:expr, $number:literal) => {
        if $number < $slots {
            const $slot: usize = $number;
            $run
        }
    };
}

/// Values of bfloat16, in words as embeddings are.
#[derive(Clone, Copy)]
struct Packed<const S: usize> {
    level: Level,
    starts: [usize; S],
    rounds: [By; S],
}

impl<const S: usize> Slots<S> for Packed<S> {
    #[inline(always)]
    fn step<const N: usize>(
        self,
        rule: impl Rule<S>,
        [lows, highs]: [&mut [f32; N]; 2],
        record: &mut [f32],
        [low, high]: [&[f32]; 2],
        at: usize,
        found: &mut Unusual,
    ) {
        let (mut of_lows, mut of_highs) = ([[0.0; N]; S], [[0.0; N]; S]);
        each_slot!(S, SLOT => {
            let words = words(record, self.starts[SLOT] + at);
            [of_lows[SLOT], of_highs[SLOT]] = Bfloat16::decode_words::<N>(self.level, words);
        });
        step_values(rule, lows, &mut of_lows, low, at);
        step_values(rule, highs, &mut of_highs, high, at);
        each_slot!(S, SLOT => {
            let (round, start) = (self.rounds[SLOT], self.starts[SLOT] + at);
            let (lows, highs) = (of_lows[SLOT], of_highs[SLOT]);
            let words = encode_words::<Bfloat16, N>(round, at as u32, lows, highs, found);
            record[start..start + N].copy_from_slice(&words);
        });
    }

    #[inline(always)]
    fn step_last(
        self,
        rule: impl Rule<S>,
        weight: &mut [f32; 1],
        record: &mut [f32],
        grads: &[f32],
        at: usize,
        found: &mut Unusual,
    ) {
        let starts = self.starts.map(|start| start + at);
        let mut slots = starts.map(|start| [Bfloat16::decode(record[start].to_bits() & 0xFFFF)]);
        step_values(rule, weight, &mut slots, grads, at);
        for slot in 0..S {
            let round = self.rounds[slot];
            let word = encode_words::<Bfloat16, 1>(round, at as u32, slots[slot], [0.0], found);
            record[starts[slot]] = word[0];
        }
    }
}

impl<R: Rule<S>, K: Slots<S>, const S: usize> Vectorized for UpdateHalf<'_, R, K, S> {
    type Output = Unusual;

    #[inline(always)]
    fn run(self) -> Unusual {
        with_value!(self.half, V => self.of::<V>())
    }
}

impl<R: Rule<S>, K: Slots<S>, const S: usize> UpdateHalf<'_, R, K, S> {
    #[inline(always)]
    fn of<V: Value>(self) -> Unusual {
        let UpdateHalf {
            level,
            rule,
            draws,
            record,
            slots,
            grad,
            ..
        } = self;
        let (mut found, round) = (Unusual::default(), By(draws));
        let (low, high) = grad.split_at(grad.len().div_ceil(2));
        in_blocks!(high.len(), [16, 8], (at, N) => {
            let [mut lows, mut highs] = V::decode_words::<N>(level, words(record, at));
            let weights = [&mut lows, &mut highs];
            slots.step(rule, weights, record, [low, high], at, &mut found);
            let words = encode_words::<V, N>(round, at as u32, lows, highs, &mut found);
            record[at..at + N].copy_from_slice(&words);
        });
        // A word that has one value.
        let at = high.len();
        if at < low.len() {
            let [word] = words(record, at);
            let mut value = [V::decode(word & 0xFFFF)];
            slots.step_last(rule, &mut value, record, low, at, &mut found);
            let word = encode_words::<V, 1>(round, at as u32, value, [0.0], &mut found);
            record[at..=at].copy_from_slice(&word);
        }
        found
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::half_row::Room;
    use super::super::oracle::{cases, numbers};
    use super::super::row::{RowOptimizer, SlotSpec};
    use super::*;
    use crate::halves::{encode, read, stream, Draws, Place};
    use crate::simd::Isa;

    /// A step at a level.
    type At<'a> = &'a dyn Fn(i32, Level) -> Box<dyn RowOptimizer>;

    /// An optimizer that has no way of its own.
    struct ByFloats(Box<dyn RowOptimizer>);

    impl RowOptimizer for ByFloats {
        fn slots(&self) -> Vec<SlotSpec> {
            self.0.slots()
        }

        fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
            self.0.update(row, slots, grad);
        }
    }

    /// The values and slots of a row after four steps of an optimizer, as bits, and how many of the
    /// values could not be stored.
    fn stepped(
        at: At<'_>,
        (level, half, is_stochastic): (Level, Half, bool),
        (dim, slot_dtype): (usize, RowDtype),
    ) -> (Vec<u32>, Unusual) {
        let odd = [0.0, -0.0, 1e-40, -1e-6, 1e20, f32::INFINITY, -2e5];
        let words = dim.div_ceil(2);
        let (mut record, mut room) = (vec![0.0; words], Room::default());
        encode(level, half, None, &numbers(3, dim), &mut record);
        let mut places = Vec::new();
        for slot in at(1, level).slots() {
            let dtype = match slot.per_row {
                true => RowDtype::Float32,
                false => slot_dtype,
            };
            let place = Place {
                start: record.len(),
                count: slot.floats(dim),
                dtype,
                stream: stream(&slot.name),
            };
            record.resize(place.start + place.words(), 0.0);
            place.fill(slot.initial, &mut record);
            places.push(place);
        }
        let mut found = Unusual::default();
        for t in 1..=4 {
            let mut grad = numbers(t as u64, dim);
            if t == 3 {
                let odd = odd.iter().cycle();
                grad.iter_mut().zip(odd).for_each(|(g, odd)| *g = *odd);
            }
            let draws = |stream: u64| Draws::new(5 ^ stream, t as u64);
            let slots = places.iter().map(|&place| StoredSlot {
                place,
                draws: draws(place.stream),
            });
            let slots: Vec<StoredSlot> = slots.collect();
            let rounding = (draws(0), is_stochastic.then_some(9));
            let mut row = HalfRow::new((level, half), rounding, &slots, &mut record, &mut room);
            at(t, level).update_half(&mut row, &grad);
            found += row.unusual();
        }
        // The payload and sign of a NaN are the processor's business.
        let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
        let mut values = vec![0.0; dim];
        read(level, half, &record, &mut values);
        for place in places {
            let start = values.len();
            values.resize(start + place.count, 0.0);
            place.read(level, &record, &mut values[start..]);
        }
        (values.iter().map(bits).collect(), found)
    }

    /// Holds an optimizer against its steps of rows of floats, which are rounded one by one.
    pub(in super::super) fn expect_bits_of_floats(name: &str, at: At<'_>) {
        let scalar = Level::forced(Isa::Scalar).unwrap();
        let dtypes = [RowDtype::Float32, RowDtype::Bfloat16];
        let dims = (1..=67).chain([128]);
        for dim in dims.flat_map(|dim| dtypes.map(|dtype| (dim, dtype))) {
            for half in [Half::Bfloat16, Half::Float16] {
                for is_stochastic in [true, false] {
                    let by_floats =
                        |t, level| -> Box<dyn RowOptimizer> { Box::new(ByFloats(at(t, level))) };
                    let expected = stepped(&by_floats, (scalar, half, is_stochastic), dim);
                    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
                        if let Some(level) = Level::forced(isa) {
                            let found = stepped(at, (level, half, is_stochastic), dim);
                            let what = format!("{name} {half:?} {is_stochastic} {isa:?} {dim:?}");
                            assert!(found == expected, "{what}");
                        }
                    }
                    assert!(dim.0 < 8 || expected.1 != Unusual::default(), "{name}");
                }
            }
        }
    }

    #[test]
    fn every_level_gives_the_bits_of_a_row_of_floats_that_is_rounded_for_every_width() {
        for case in cases() {
            expect_bits_of_floats(case.name, &*case.at);
        }
    }
}
