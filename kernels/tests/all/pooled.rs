//! Pooled lookups and their gradients against sums that are written down id by id.

use crate::singles::{Singles as _, Target};
use crate::support::{cases, created, is_whole, UNIFORM};
use mx_rec_kernels::{
    bag_divisors, reduce_pooled, restore_pooled, weight_gradients, Absent, Adagrad, Bags, Columns,
    DecayedSgd, Divisor, Ids, KeysOf, Kind, LazyAdam, LookupGradients, Pool, Result, RowOptimizer,
    RowsOf, Table, TableConfig,
};
use proptest::prelude::*;

fn table(dim: usize) -> Table {
    Table::new(TableConfig {
        seed: 5,
        initializer: UNIFORM,
        frozen_keys: vec![3],
        ..TableConfig::new("pooled", dim, 1 << 20)
    })
    .unwrap()
}

/// Bags whose rows are added up as they are.
pub(crate) fn sums(ends: &[i64]) -> mx_rec_kernels::Bags<'_> {
    mx_rec_kernels::Bags {
        ends,
        ..Bags::default()
    }
}

/// [`Table::embed_many`] of one pooled lookup.
pub(crate) fn embed_pooled(
    table: &Table,
    pool: &Pool,
    offsets: &[i64],
    inverse: &[i32],
    bags: &Bags<'_>,
    kept: &mut [f32],
    out: &mut [f32],
) -> Result<()> {
    let rows = RowsOf {
        table,
        offsets,
        inverse,
        bags: Some(*bags),
    };
    Table::embed_many(pool, &[rows], vec![out], vec![kept])
}

/// [`Table::find_many`] of one pooled lookup.
pub(crate) fn find_pooled(
    table: &Table,
    pool: &Pool,
    ids: Ids<'_>,
    bags: &Bags<'_>,
    absent: Absent<'_>,
    out: &mut [f32],
) -> Result<()> {
    let keys = KeysOf {
        table,
        ids,
        absent,
        bags: Some(*bags),
    };
    Table::find_many(pool, &[keys], vec![out])
}

/// A batch of bags.
#[derive(Clone, Debug)]
struct Batch {
    dim: usize,
    bags: Vec<Vec<i64>>,
    with_weights: bool,
    divisor: Option<Divisor>,
}

impl Batch {
    fn ids(&self) -> Vec<i64> {
        self.bags.concat()
    }

    fn ends(&self) -> Vec<i64> {
        let mut end = 0;
        let ends = self.bags.iter().map(|bag| {
            end += bag.len() as i64;
            end
        });
        ends.collect()
    }

    /// Some are 0 or below it.
    fn weights(&self) -> Option<Vec<f32>> {
        let n = self.ids().len();
        let weight = |at: usize| ((at * 7 + 3) % 11) as f32 * 0.25 - 0.5;
        self.with_weights.then(|| (0..n).map(weight).collect())
    }

    fn floats(&self, n: usize) -> Vec<f32> {
        let value = |at: usize| (at as f32 * 0.37).sin() * 10_f32.powi((at % 9) as i32 - 4);
        (0..n * self.dim).map(value).collect()
    }
}

fn batches() -> impl Strategy<Value = Batch> {
    let bag = proptest::collection::vec(-1_i64..30, 0..12);
    let divisor = prop_oneof![
        Just(None),
        Just(Some(Divisor::Weights)),
        Just(Some(Divisor::Root))
    ];
    (
        1..71_usize,
        proptest::collection::vec(bag, 0..30),
        any::<bool>(),
        divisor,
    )
        .prop_map(|(dim, bags, with_weights, divisor)| Batch {
            dim,
            bags,
            with_weights,
            divisor,
        })
}

/// Large enough for several threads and every part of their work. Keys lie so far `apart`: near
/// ones are found without a search.
fn large(dim: usize, with_weights: bool, divisor: Option<Divisor>, apart: i64) -> Batch {
    let bag = |bag: i64| -> Vec<i64> {
        let length = bag * bag % 37;
        (0..length)
            .map(|at| (at * at + bag * 31) % 500 - 1)
            .map(|id| if id == -1 { id } else { id * apart })
            .collect()
    };
    Batch {
        dim,
        // As many floats in each dim: 5 threads have parts to pool and to sum.
        bags: (0..24_000 / dim as i64).map(bag).collect(),
        with_weights,
        divisor,
    }
}

/// The divisors, by hand.
fn divisors(batch: &Batch) -> Option<Vec<f32>> {
    let divisor = batch.divisor?;
    let weights = batch.weights();
    let mut at = 0;
    let mut all = Vec::new();
    for bag in &batch.bags {
        let mut sum = 0.0_f32;
        for &id in bag {
            let weight = weights.as_ref().map_or(1.0, |weights| weights[at]);
            at += 1;
            if id != -1 {
                sum += match divisor {
                    Divisor::Weights => weight,
                    Divisor::Root => weight * weight,
                };
            }
        }
        all.push(match divisor {
            Divisor::Weights => sum,
            Divisor::Root => sum.sqrt(),
        });
    }
    Some(all)
}

fn divide(row: &mut [f32], divisor: Option<f32>) {
    for value in row {
        *value = match divisor {
            None => *value,
            Some(0.0) => 0.0,
            Some(divisor) => *value / divisor,
        };
    }
}

/// The vectors of the bags from a row for each id.
fn pooled_by_hand(batch: &Batch, rows: &[f32], divisors: Option<&[f32]>) -> Vec<f32> {
    let (dim, weights) = (batch.dim, batch.weights());
    let mut at = 0;
    let mut out = Vec::new();
    for (number, bag) in batch.bags.iter().enumerate() {
        let mut sum = vec![0.0_f32; dim];
        for &id in bag {
            let row = &rows[at * dim..(at + 1) * dim];
            if id != -1 {
                for (sum, value) in sum.iter_mut().zip(row) {
                    match &weights {
                        None => *sum += value,
                        Some(weights) => *sum += value * weights[at],
                    }
                }
            }
            at += 1;
        }
        divide(&mut sum, divisors.map(|divisors| divisors[number]));
        out.extend(sum);
    }
    out
}

fn assert_bits(one: &[f32], other: &[f32], what: &str) {
    assert_eq!(one.len(), other.len(), "{what}");
    // A NaN has many representations; one must be where the other is.
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let differs = one.iter().zip(other).position(|(&a, &b)| !same(a, b));
    assert_eq!(differs, None, "{what}");
}

/// What [`Table::find_many`] gives for batches so small that each id is looked up by itself.
fn found_by_parts(table: &Table, ids: &[i64], absent: Absent<'_>) -> Vec<f32> {
    let (pool, dim) = (Pool::new(1).unwrap(), table.config().dim);
    let mut out = vec![9.0; ids.len() * dim];
    let parts = ids.chunks(1000).zip(out.chunks_mut(1000 * dim));
    for (at, (ids, out)) in parts.enumerate() {
        let absent = match absent {
            Absent::Rows(rows) => Absent::Rows(&rows[at * 1000 * dim..][..out.len()]),
            other => other,
        };
        table.find(&pool, Ids::I64(ids), absent, out).unwrap();
    }
    out
}

fn expect_all_forms(batch: &Batch, threads: usize) {
    let Batch { dim, .. } = *batch;
    let pool = Pool::new(threads).unwrap();
    let (ids, ends, weights) = (batch.ids(), batch.ends(), batch.weights());
    let n = ids.len();
    let plain = Bags {
        ends: &ends,
        weights: weights.as_deref(),
        ..Bags::default()
    };
    let by_hand = divisors(batch);
    if let (Some(divisor), Some(expected)) = (batch.divisor, &by_hand) {
        let mut found = vec![9.0; ends.len()];
        bag_divisors(&pool, Ids::I64(&ids), &plain, divisor, &mut found).unwrap();
        assert_bits(&found, expected, "divisors");
    }
    let bags = Bags {
        divisors: by_hand.as_deref(),
        ..plain
    };
    let table = table(dim);
    let mut inverse = vec![0; n];
    // Keys below 20 have rows; those of `absent` get what was asked for.
    let known: Vec<i64> = ids
        .iter()
        .map(|&id| if id < 20 { id } else { -1 })
        .collect();
    let create = |ids: &[i64], inverse: &mut [i32]| {
        table
            .id_offset(&pool, Ids::I64(ids), true, None, inverse)
            .unwrap()
    };
    create(&known, &mut inverse);

    let narrow: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let row: Vec<f32> = batch.floats(1);
    let rows_of_ids = batch.floats(n);
    let mut found = vec![9.0; ends.len() * dim];
    // At last with a threshold under which no key is admitted any more.
    for access in [0, 9] {
        if access > 0 {
            table.set_access_threshold(access).unwrap();
        }
        for absent in [Absent::Zeros, Absent::Row(&row), Absent::Rows(&rows_of_ids)] {
            let mut each = vec![9.0; n * dim];
            table
                .find(&pool, Ids::I64(&ids), absent, &mut each)
                .unwrap();
            assert_bits(&each, &found_by_parts(&table, &ids, absent), "find");
            let expected = pooled_by_hand(batch, &each, bags.divisors);
            for ids in [Ids::I64(&ids), Ids::I32(&narrow)] {
                found.fill(9.0);
                find_pooled(&table, &pool, ids, &bags, absent, &mut found).unwrap();
                assert_bits(&found, &expected, "find");
            }
        }
    }
    let initial = Absent::Initial(table.config());
    let mut each = vec![9.0; n * dim];
    table
        .find(&pool, Ids::I64(&ids), initial, &mut each)
        .unwrap();
    assert_bits(
        &each,
        &found_by_parts(&table, &ids, initial),
        "initial rows",
    );
    table.set_access_threshold(0).unwrap();

    let offsets = create(&ids, &mut inverse);
    let mut each = vec![9.0; n * dim];
    table.embed(&pool, &offsets, &inverse, &mut each).unwrap();
    let expected = pooled_by_hand(batch, &each, bags.divisors);
    embed_pooled(
        &table,
        &pool,
        &offsets,
        &inverse,
        &bags,
        &mut [],
        &mut found,
    )
    .unwrap();
    assert_bits(&found, &expected, "embed");
    let mut rows = vec![9.0; offsets.len() * dim];
    table.lookup(&pool, &offsets, &mut rows).unwrap();
    found.fill(9.0);
    restore_pooled(&pool, &rows, dim, &inverse, &bags, &mut found).unwrap();
    assert_bits(&found, &expected, "restore");

    // Gradients: of each row the sum over its occurrences, and of each weight.
    let grads = batch.floats(ends.len());
    let mut sums = vec![0.0_f32; offsets.len() * dim];
    let mut is_first = vec![true; offsets.len()];
    let mut of_weights = Vec::new();
    let mut at = 0;
    for (number, bag) in batch.bags.iter().enumerate() {
        let mut grad = grads[number * dim..(number + 1) * dim].to_vec();
        divide(&mut grad, bags.divisors.map(|divisors| divisors[number]));
        for _ in bag {
            let exact: f64 = match usize::try_from(inverse[at]) {
                Err(_) => 0.0,
                Ok(place) => {
                    let row = &rows[place * dim..(place + 1) * dim];
                    let sum = &mut sums[place * dim..(place + 1) * dim];
                    let first = std::mem::take(&mut is_first[place]);
                    for (sum, &value) in sum.iter_mut().zip(&grad) {
                        let value = weights
                            .as_ref()
                            .map_or(value, |weights| value * weights[at]);
                        *sum = if first { value } else { *sum + value };
                    }
                    row.iter()
                        .zip(&grad)
                        .map(|(&row, &grad)| f64::from(row) * f64::from(grad))
                        .sum()
                }
            };
            let size: f32 = grad.iter().map(|value| value.abs()).sum();
            of_weights.push((exact, f64::from(size)));
            at += 1;
        }
    }
    let mut reduced = vec![9.0; sums.len()];
    reduce_pooled(
        &pool,
        Columns::all(&grads, dim).unwrap(),
        &inverse,
        &bags,
        &mut reduced,
    )
    .unwrap();
    assert_bits(&reduced, &sums, "reduce");
    // The gradient of a concatenation: what stands beside its columns is not read.
    let (before, behind) = (3, 2);
    let wide: Vec<f32> = grads
        .chunks_exact(dim)
        .flat_map(|row| [&[f32::NAN; 3], row, &[f32::NAN; 2]].concat())
        .collect();
    let columns = Columns::of(&wide, before + dim + behind, before, dim).unwrap();
    reduced.fill(9.0);
    reduce_pooled(&pool, columns, &inverse, &bags, &mut reduced).unwrap();
    assert_bits(&reduced, &sums, "reduce columns");
    let mut dots = vec![9.0; n];
    weight_gradients(&pool, &rows, dim, &inverse, &bags, &grads, &mut dots).unwrap();
    for (found, (exact, size)) in dots.iter().zip(of_weights) {
        let gap = (f64::from(*found) - exact).abs();
        assert!(!size.is_finite() || gap <= 1e-5 * size, "{found} {exact}");
    }
}

/// Steps with the bags' gradients, beside steps with sums that were made before, of two pooled
/// lookups and a plain one.
fn expect_same_steps(batch: &Batch, threads: usize, optimizer: &dyn RowOptimizer) {
    let Batch { dim, .. } = *batch;
    let pool = Pool::new(threads).unwrap();
    let (ids, ends, weights) = (batch.ids(), batch.ends(), batch.weights());
    let by_hand = divisors(batch);
    let bags = Bags {
        ends: &ends,
        weights: weights.as_deref(),
        divisors: by_hand.as_deref(),
        max_norm: None,
    };
    let tables = [table(dim), table(dim)];
    let grads = batch.floats(ends.len());
    let of_ids = batch.floats(ids.len());
    for _ in 0..2 {
        let mut found = Vec::new();
        for table in &tables {
            let (offsets, inverse) = created(table, &pool, &ids);
            found.push((offsets, inverse));
        }
        let (offsets, inverse) = &found[0];
        let pooled = LookupGradients {
            offsets,
            inverse,
            grads: Columns::all(&grads, batch.dim).unwrap(),
            bags: Some(bags),
        };
        let plain = LookupGradients {
            grads: Columns::all(&of_ids, batch.dim).unwrap(),
            bags: None,
            ..pooled
        };
        let updated = tables[0]
            .apply_lookups(&pool, &[pooled, plain, pooled], optimizer)
            .unwrap();
        let (offsets, inverse) = &found[1];
        let mut sums = vec![0.0; offsets.len() * dim];
        reduce_pooled(
            &pool,
            Columns::all(&grads, dim).unwrap(),
            inverse,
            &bags,
            &mut sums,
        )
        .unwrap();
        let mut more = vec![0.0; offsets.len() * dim];
        mx_rec_kernels::reduce(&pool, &of_ids, dim, inverse, &mut more).unwrap();
        let joined = [&sums[..], &more, &sums].concat();
        let target = offsets.repeat(3);
        let target = Target::Offsets(&target);
        assert_eq!(
            updated,
            tables[1].apply(&pool, target, &joined, optimizer).unwrap()
        );
    }
    let [one, other] = tables.map(|table| table.export().unwrap());
    assert_eq!(one.keys, other.keys);
    assert_bits(&one.embedding, &other.embedding, "embeddings");
    for ((_, one), (_, other)) in one.slots.iter().zip(&other.slots) {
        assert_bits(one, other, "slots");
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn every_form_gives_the_sums_that_are_written_down(batch in batches(), threads in 1..3_usize) {
        expect_all_forms(&batch, threads);
    }

    #[test]
    fn steps_with_gradients_of_bags_are_those_with_their_sums(
        batch in batches(),
        threads in 1..3_usize,
    ) {
        let adam = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
        expect_same_steps(&batch, threads, &adam);
        expect_same_steps(&batch, threads, &DecayedSgd::new(0.1, 0.01).unwrap());
    }
}

#[test]
fn large_batches_are_the_same_on_any_number_of_threads() {
    let kinds = [
        (8, false, None),
        (16, true, None),
        (32, false, Some(Divisor::Weights)),
        (64, true, Some(Divisor::Root)),
        (33, false, None),
    ];
    for (number, (dim, with_weights, divisor)) in kinds.into_iter().enumerate() {
        let [near, far] = [1, 1_000_003].map(|apart| large(dim, with_weights, divisor, apart));
        for threads in [5, 2, 1].into_iter().take(if is_whole() { 3 } else { 1 }) {
            for (turn, batch) in [&near, &far].into_iter().enumerate() {
                if is_whole() || turn == number % 2 {
                    expect_all_forms(batch, threads);
                }
            }
            // Updates do not look keys up.
            expect_same_steps(&near, threads, &Adagrad::new(0.1, 0.1).unwrap());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_changes_nothing() {
    let (table, pool) = (table(2), Pool::new(1).unwrap());
    let mut inverse = [0; 3];
    let ids = [7, 8, 7];
    let offsets = table
        .id_offset(&pool, Ids::I64(&ids), true, None, &mut inverse)
        .unwrap();
    let before = table.export().unwrap();
    let good = Bags {
        ends: &[1, 3],
        ..Bags::default()
    };
    let adam = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    let grads = [1.0; 4];
    let mut out = [9.0; 4];
    for (bags, inverse, message) in [
        (
            Bags {
                ends: &[1, 2],
                ..good
            },
            &inverse[..],
            "the last bag",
        ),
        (
            Bags {
                ends: &[4, 3],
                ..good
            },
            &inverse,
            "end=4",
        ),
        (
            Bags {
                ends: &[2, 1],
                ..good
            },
            &inverse,
            "end before=2",
        ),
        (
            Bags {
                weights: Some(&[1.0]),
                ..good
            },
            &inverse,
            "argument=weights",
        ),
        (
            Bags {
                divisors: Some(&[1.0]),
                ..good
            },
            &inverse,
            "argument=divisors",
        ),
        (good, &[0, 2, 0], "entry=2"),
        (good, &[0, -2, 0], "entry=-2"),
    ] {
        let lookup = LookupGradients {
            offsets: &offsets,
            inverse,
            grads: Columns::all(&grads, table.dim()).unwrap(),
            bags: Some(bags),
        };
        let errors = [
            embed_pooled(&table, &pool, &offsets, inverse, &bags, &mut [], &mut out),
            table.apply_lookups(&pool, &[lookup], &adam).map(drop),
        ];
        for error in errors {
            let text = error.unwrap_err().to_string();
            assert!(
                text.contains(message) && text.contains("table=pooled"),
                "{text}"
            );
        }
        if !message.starts_with("entry") {
            let ids = Ids::I64(&ids);
            let error = find_pooled(&table, &pool, ids, &bags, Absent::Zeros, &mut out);
            assert!(error.unwrap_err().to_string().contains(message));
        }
    }
    let short = LookupGradients {
        offsets: &offsets,
        inverse: &inverse,
        grads: Columns::all(&[1.0; 6], table.dim()).unwrap(),
        bags: Some(good),
    };
    assert!(table.apply_lookups(&pool, &[short], &adam).is_err());
    assert!(embed_pooled(
        &table,
        &pool,
        &offsets,
        &inverse,
        &good,
        &mut [],
        &mut [0.0; 6]
    )
    .is_err());
    assert!(embed_pooled(
        &table,
        &pool,
        &[offsets[0], 5],
        &inverse,
        &good,
        &mut [],
        &mut out
    )
    .is_err());
    assert_eq!(table.export().unwrap(), before);
}

#[test]
fn a_key_that_went_is_dropped_and_a_replaced_table_is_an_error_that_can_be_repeated() {
    let (table, pool) = (table(2), Pool::new(2).unwrap());
    let ids = [7, 8, 7, 9];
    let resolve = || {
        let (offsets, inverse) = created(&table, &pool, &ids);
        (offsets, inverse)
    };
    let bags = Bags {
        ends: &[2, 4],
        ..Bags::default()
    };
    let adam = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    let step = |(offsets, inverse): &(Vec<i64>, Vec<i32>)| {
        let lookup = LookupGradients {
            offsets,
            inverse,
            grads: Columns::all(&[1.0; 4], table.dim()).unwrap(),
            bags: Some(bags),
        };
        table.apply_lookups(&pool, &[lookup], &adam)
    };
    let mut out = [9.0; 4];
    let old = resolve();
    assert_eq!(table.remove(Ids::I64(&[7])).unwrap(), 1);
    assert_eq!(step(&old).unwrap(), 2);
    assert_eq!(table.stats().stale, 1);
    assert!(embed_pooled(&table, &pool, &old.0, &old.1, &bags, &mut [], &mut out).is_err());
    let old = resolve();
    table.clear();
    let again = resolve();
    let before = table.export().unwrap();
    let errors = [
        step(&old).map(drop),
        embed_pooled(&table, &pool, &old.0, &old.1, &bags, &mut [], &mut out),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().kind(), Kind::Aborted);
    }
    assert_eq!(table.export().unwrap(), before);
    assert_eq!(step(&again).unwrap(), 3);
}
