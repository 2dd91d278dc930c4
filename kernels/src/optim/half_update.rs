//! The loop that updates rows of 2 bytes a value without a row of floats between.

use super::half_row::HalfRow;
use super::row::{step_columns, update, Rule};
use crate::halves::{encode_words, with_value, words, By, Half, RowDraws, Unusual, Value};
use crate::simd::{in_blocks, Level, Vectorized};

/// Runs `rule` over every column of a row as compiled for `level`, which reads, steps and rounds
/// in registers; `slots` and `grad` are those of
/// [`RowOptimizer::update_half`](super::RowOptimizer::update_half).
#[inline]
pub(super) fn update_half<const S: usize>(
    level: Level,
    rule: impl Rule<S>,
    row: &mut HalfRow<'_>,
    slots: &[usize],
    grad: &[f32],
) {
    let Some(draws) = row.draws else {
        row.as_floats(grad.len(), slots, |row, slots| {
            update(level, rule, row, slots, grad);
        });
        return;
    };
    let starts = *slots.first_chunk().expect("the place of every slot");
    row.unusual += level.run(UpdateHalf {
        level,
        rule,
        half: row.half,
        draws,
        record: row.record,
        starts,
        grad,
    });
}

struct UpdateHalf<'a, R, const S: usize> {
    level: Level,
    rule: R,
    half: Half,
    draws: RowDraws,
    record: &'a mut [f32],
    starts: [usize; S],
    grad: &'a [f32],
}

impl<R: Rule<S>, const S: usize> Vectorized for UpdateHalf<'_, R, S> {
    type Output = Unusual;

    #[inline(always)]
    fn run(self) -> Unusual {
        with_value!(self.half, V => self.of::<V>())
    }
}

impl<R: Rule<S>, const S: usize> UpdateHalf<'_, R, S> {
    #[inline(always)]
    fn of<V: Value>(self) -> Unusual {
        let UpdateHalf {
            level,
            rule,
            draws,
            record,
            starts,
            grad,
            ..
        } = self;
        let (mut found, round) = (Unusual::default(), By(draws));
        let (low, high) = grad.split_at(grad.len().div_ceil(2));
        let upper = starts.map(|start| start + low.len());
        in_blocks!(high.len(), [16, 8], (at, N) => {
            let [mut lows, mut highs] = V::decode_words::<N>(level, words(record, at));
            step_columns(rule, &mut lows, record, starts, low, at);
            step_columns(rule, &mut highs, record, upper, high, at);
            let words = encode_words::<V, N>(round, at as u32, lows, highs, &mut found);
            record[at..at + N].copy_from_slice(&words);
        });
        // A word that has one value.
        let at = high.len();
        if at < low.len() {
            let [word] = words(record, at);
            let mut value = [V::decode(word & 0xFFFF)];
            step_columns(rule, &mut value, record, starts, low, at);
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
    use crate::halves::Draws;
    use crate::halves::{encode, read};
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
        dim: usize,
    ) -> (Vec<u32>, Unusual) {
        let odd = [0.0, -0.0, 1e-40, -1e-6, 1e20, f32::INFINITY, -2e5];
        let words = dim.div_ceil(2);
        let (mut record, mut room) = (vec![0.0; words], Room::default());
        encode(level, half, None, &numbers(3, dim), &mut record);
        let mut starts = Vec::new();
        for slot in at(1, level).slots() {
            starts.push(record.len());
            record.resize(record.len() + slot.floats(dim), slot.initial);
        }
        let mut found = Unusual::default();
        for t in 1..=4 {
            let mut grad = numbers(t as u64, dim);
            if t == 3 {
                let odd = odd.iter().cycle();
                grad.iter_mut().zip(odd).for_each(|(g, odd)| *g = *odd);
            }
            let draws = is_stochastic.then(|| Draws::new(5, t as u64).of(9));
            let mut row = HalfRow::new((level, half), draws, &mut record, &mut room);
            at(t, level).update_half(&mut row, &starts, &grad);
            found += row.unusual();
        }
        // The payload and sign of a NaN are the processor's business.
        let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
        let mut values = vec![0.0; dim];
        read(level, half, &record, &mut values);
        values.extend_from_slice(&record[words..]);
        (values.iter().map(bits).collect(), found)
    }

    /// Holds an optimizer against its steps of rows of floats, which are rounded one by one.
    pub(in super::super) fn expect_bits_of_floats(name: &str, at: At<'_>) {
        let scalar = Level::forced(Isa::Scalar).unwrap();
        for dim in (1..=67).chain([128]) {
            for half in [Half::Bfloat16, Half::Float16] {
                for is_stochastic in [true, false] {
                    let by_floats =
                        |t, level| -> Box<dyn RowOptimizer> { Box::new(ByFloats(at(t, level))) };
                    let expected = stepped(&by_floats, (scalar, half, is_stochastic), dim);
                    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
                        if let Some(level) = Level::forced(isa) {
                            let found = stepped(at, (level, half, is_stochastic), dim);
                            let what = format!("{name} {half:?} {is_stochastic} {isa:?} {dim}");
                            assert!(found == expected, "{what}");
                        }
                    }
                    assert!(dim < 8 || expected.1 != Unusual::default(), "{name}");
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
