//! Adam gives every row what TensorFlow's dense form gives it, and touches the rows of the batch.

mod deltas;

use crate::directory::Directory;
use crate::pooled::{embed_pooled, find_pooled};
use crate::singles::{Singles as _, Target};
use crate::support::{
    applied, field_update, found_rows, is_whole, key_gradients, known_offsets, rows_of,
};
use mx_rec_kernels::{
    checkpoint, Absent, Adam, Bags, Field, Ids, Initializer, KeysOf, Kind, LazyAdam, Pool, Push,
    RowOptimizer, RowsOf, Sgd, SlotValues, Table, TableConfig,
};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const DIM: usize = 5;

fn config(name: &str, frozen_keys: Vec<i64>) -> TableConfig {
    TableConfig {
        seed: 11,
        initializer: Initializer::TruncatedNormal {
            mean: 0.0,
            stddev: 0.1,
        },
        frozen_keys,
        ..TableConfig::new(name, DIM, 1 << 20)
    }
}

fn table() -> Arc<Table> {
    Arc::new(Table::new(config("t", Vec::new())).unwrap())
}

/// The settings of a step.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) lr: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
}

pub(crate) const USUAL: Numbers = Numbers {
    lr: 0.001,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
};

impl Numbers {
    pub(crate) fn powers(&self, step: i32) -> (f32, f32) {
        let power = |beta: f32| f64::from(beta).powi(step) as f32;
        (power(self.beta1), power(self.beta2))
    }

    fn adam(&self, step: i32) -> Adam {
        let (one, other) = self.powers(step);
        Adam::new(self.lr, self.beta1, self.beta2, self.epsilon, one, other).unwrap()
    }

    fn lazy(&self, step: i32) -> LazyAdam {
        let (one, other) = self.powers(step);
        LazyAdam::new(self.lr, self.beta1, self.beta2, self.epsilon, one, other).unwrap()
    }
}

/// The same numbers in every run.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }

    /// Distinct keys of a batch: few are in most of the batches, most in one or none.
    pub(crate) fn batch(&mut self, keys: i64, n: usize) -> Vec<i64> {
        let of = |x: f64| ((keys as f64).powf(x) - 1.0) as i64;
        let mut batch: Vec<i64> = (0..n).map(|_| of(self.next())).collect();
        batch.sort_unstable();
        batch.dedup();
        batch
    }

    /// Gradients of very different sizes, by key.
    pub(crate) fn grads(&mut self, keys: &[i64]) -> Vec<f32> {
        let size = |key: i64| 10.0_f64.powf(-6.0 + (key * 37 % 61) as f64 / 12.0);
        let all = keys.iter().flat_map(|&key| [size(key); DIM]);
        all.map(|size| (size * self.normal()) as f32).collect()
    }
}

/// Weights, m and v of all rows in float64, each of which moves in each step.
pub(crate) struct Dense(pub(crate) Vec<[f64; 3]>);

impl Dense {
    fn step(&mut self, numbers: Numbers, step: i32, keys: &[i64], grads: &[f32]) {
        let [lr, b1, b2, epsilon] =
            [numbers.lr, numbers.beta1, numbers.beta2, numbers.epsilon].map(f64::from);
        let (power1, power2) = numbers.powers(step);
        let lr = lr * (1.0 - f64::from(power2)).sqrt() / (1.0 - f64::from(power1));
        for [_, m, v] in &mut self.0 {
            *m *= b1;
            *v *= b2;
        }
        for (&key, grads) in keys.iter().zip(grads.chunks_exact(DIM)) {
            let row = &mut self.0[key as usize * DIM..];
            for ([_, m, v], &grad) in row.iter_mut().zip(grads) {
                let grad = f64::from(grad);
                *m += (1.0 - b1) * grad;
                *v += (1.0 - b2) * grad * grad;
            }
        }
        for [w, m, v] in &mut self.0 {
            *w -= lr * *m / (v.sqrt() + epsilon);
        }
    }

    /// The differences of all weights of a table from these.
    pub(crate) fn differences(&self, table: &Table, pool: &Pool) -> Vec<f64> {
        let mut rows = vec![0.0; self.0.len()];
        let keys: Vec<i64> = (0..(rows.len() / DIM) as i64).collect();
        table
            .find(pool, Ids::I64(&keys), Absent::Zeros, &mut rows)
            .unwrap();
        let pairs = rows.iter().zip(&self.0);
        // Where rows move far, beside what they are.
        let found = pairs.map(|(&found, [w, ..])| (f64::from(found) - w).abs() / w.abs().max(1.0));
        found.collect()
    }
}

/// A table with rows for all keys up to `keys`, and the same in float64.
pub(crate) fn both(pool: &Pool, keys: i64) -> (Arc<Table>, Dense) {
    let table = table();
    let all: Vec<i64> = (0..keys).collect();
    let mut inverse = vec![0; all.len()];
    let made = table.id_offset(pool, Ids::I64(&all), true, None, &mut inverse);
    drop(made.unwrap());
    let rows = found_rows(&table, pool, &all);
    let dense = rows.iter().map(|&w| [f64::from(w), 0.0, 0.0]).collect();
    (table, Dense(dense))
}

pub(crate) fn apply(
    table: &Table,
    pool: &Pool,
    keys: &[i64],
    grads: &[f32],
    step: &dyn RowOptimizer,
) {
    applied(table, pool, Target::Ids(Ids::I64(keys)), grads, step);
}

/// The greatest difference, and the one in the middle.
pub(crate) fn largest_and_median(mut differences: Vec<f64>) -> (f64, f64) {
    differences.sort_by(f64::total_cmp);
    (
        differences[differences.len() - 1],
        differences[differences.len() / 2],
    )
}

/// A schedule: it rises, stays, falls, and is 0 for some steps.
fn rate(step: i32) -> f32 {
    match step {
        ..=50 => 0.002 * step as f32 / 50.0,
        51..=600 => 0.002,
        601..=620 => 0.0,
        _ => 0.002 * 0.995_f32.powi(step - 620),
    }
}

/// Trains a table for each optimizer and what they should be, 1,000 steps; the largest and the
/// median difference of each.
///
/// `on_paper` does a step of all rows, `steps` makes those of the tables.
pub(crate) fn trained<const N: usize>(
    numbers: impl Fn(i32) -> Numbers,
    on_paper: impl Fn(&mut Dense, Numbers, i32, &[i64], &[f32]),
    steps: impl Fn(Numbers, i32) -> [Box<dyn RowOptimizer>; N],
) -> [(f64, f64); N] {
    const KEYS: i64 = 3000;
    let pool = Pool::new(2).unwrap();
    let (_, mut dense) = both(&pool, KEYS);
    let tables = [(); N].map(|()| both(&pool, KEYS).0);
    let mut draw = Draw(5);
    for step in 1..=1000 {
        let now = numbers(step);
        // Some keys come in the first and in a late batch alone, some batches have no key.
        let mut keys = match step {
            s if s % 97 == 0 => Vec::new(),
            _ => draw.batch(KEYS - 100, 40),
        };
        if [2, 902].contains(&step) {
            keys.extend(KEYS - 100..KEYS - 50);
        }
        let grads = draw.grads(&keys);
        on_paper(&mut dense, now, step, &keys, &grads);
        for (table, step) in tables.iter().zip(steps(now, step)) {
            apply(table, &pool, &keys, &grads, &*step);
        }
    }
    tables.map(|one| largest_and_median(dense.differences(&one, &pool)))
}

#[test]
fn every_row_has_the_numbers_of_dense_adam_after_a_thousand_steps_and_lazy_adam_has_not() {
    let numbers = |step| Numbers {
        lr: rate(step),
        ..USUAL
    };
    let [adam, lazy] = trained(numbers, Dense::step, |now, step| {
        [Box::new(now.adam(step)), Box::new(now.lazy(step))]
    });
    // Weights are about 0.1.
    assert!(adam.0 < 1e-6 && adam.1 < 1e-7, "{adam:?}");
    assert!(lazy.0 > 1e-3, "{lazy:?}");
}

#[test]
fn other_betas_and_epsilons_and_numbers_that_change_between_steps_are_right_as_well() {
    let with = |beta1, beta2, epsilon| Numbers {
        lr: 0.001,
        beta1,
        beta2,
        epsilon,
    };
    let adam_alone = |numbers: &dyn Fn(i32) -> Numbers| {
        trained(numbers, Dense::step, |now, step| [Box::new(now.adam(step))])
    };
    let even = [
        with(0.9, 0.99, 1e-8),
        with(0.5, 0.9, 1e-3),
        with(0.99, 0.999, 1e-8),
        with(0.999, 0.9999, 1e-7),
        with(0.0, 0.999, 1e-8),
        with(0.9, 0.9999, 1.0),
        with(0.9, 0.0, 1e-4),
    ];
    for numbers in even.into_iter().step_by(if is_whole() { 1 } else { 3 }) {
        let [(largest, median)] = adam_alone(&|_| numbers);
        assert!(
            largest < 1e-5 && median < 1e-6,
            "{} {} {}: {largest} {median}",
            numbers.beta1,
            numbers.beta2,
            numbers.epsilon
        );
    }
    let [(largest, median)] = adam_alone(&|step| match step / 100 {
        0 | 4 => with(0.8, 0.999, 1e-8),
        1 | 5 | 6 => with(0.9, 0.999, 1e-6),
        2 => with(0.9, 0.99, 1e-6),
        _ => USUAL,
    });
    assert!(largest < 1e-6 && median < 1e-7, "{largest} {median}");
}

#[test]
fn rows_that_wait_for_thousands_of_steps_have_the_numbers_of_dense_adam() {
    // More steps than a small table keeps: all rows catch up in between.
    const STEPS: i32 = 5000;
    let pool = Pool::new(2).unwrap();
    let (table, mut dense) = both(&pool, 200);
    let mut draw = Draw(9);
    for step in 1..=STEPS {
        let mut keys = draw.batch(100, 2);
        // Some keys wait from the first step to the last.
        if [1, STEPS].contains(&step) {
            keys.extend(100..150);
        }
        let grads = draw.grads(&keys);
        dense.step(USUAL, step, &keys, &grads);
        apply(&table, &pool, &keys, &grads, &USUAL.adam(step));
    }
    let (largest, median) = largest_and_median(dense.differences(&table, &pool));
    assert!(largest < 1e-5 && median < 1e-7, "{largest} {median}");
}

/// What every verb that reads says of some keys: in all cases the same bits.
fn read_by_every_verb(table: &Arc<Table>, pool: &Pool, keys: &[i64]) -> Vec<Vec<u32>> {
    let (n, ids) = (keys.len(), Ids::I64(keys));
    let mut inverse = vec![0; n];
    let offsets = table
        .id_offset(pool, ids, false, None, &mut inverse)
        .unwrap();
    let ends: Vec<i64> = (1..=n as i64).collect();
    let bags = Bags {
        ends: &ends,
        ..Bags::default()
    };
    let rows = rows_of(table, &offsets, &inverse);
    let of_keys = KeysOf {
        table,
        ids,
        absent: Absent::Zeros,
        bags: None,
    };
    let pooled = RowsOf {
        bags: Some(bags),
        ..rows
    };
    let of_bags = KeysOf {
        bags: Some(bags),
        ..of_keys
    };
    type Read<'a> = Box<dyn Fn(&mut [f32]) + 'a>;
    let verbs: Vec<Read<'_>> = vec![
        Box::new(|out| {
            let mut rows = vec![0.0; offsets.len() * DIM];
            table.lookup(pool, &offsets, &mut rows).unwrap();
            for (out, &place) in out.chunks_exact_mut(DIM).zip(&inverse) {
                let row = rows.chunks_exact(DIM).nth(place as usize);
                out.copy_from_slice(row.unwrap_or(&[0.0; DIM]));
            }
        }),
        Box::new(|out| table.embed(pool, &offsets, &inverse, out).unwrap()),
        Box::new(|out| table.find(pool, ids, Absent::Zeros, out).unwrap()),
        Box::new(|out| {
            embed_pooled(table, pool, &offsets, &inverse, &bags, &mut [], out).unwrap();
        }),
        Box::new(|out| {
            find_pooled(table, pool, ids, &bags, Absent::Zeros, out).unwrap();
        }),
        Box::new(|out| {
            let mut other = vec![0.0; n * DIM];
            Table::embed_many(pool, &[rows, rows], vec![out, &mut other], Vec::new()).unwrap();
        }),
        Box::new(|out| {
            let mut other = vec![0.0; n * DIM];
            Table::find_many(pool, &[of_keys, of_keys], vec![out, &mut other]).unwrap();
        }),
        Box::new(|out| {
            let mut other = vec![0.0; n * DIM];
            Table::embed_many(pool, &[pooled, pooled], vec![out, &mut other], Vec::new()).unwrap();
        }),
        Box::new(|out| {
            let mut other = vec![0.0; n * DIM];
            Table::find_many(pool, &[of_bags, of_bags], vec![out, &mut other]).unwrap();
        }),
        Box::new(|out| {
            let mut both = vec![0.0; 2 * n * DIM];
            Table::embed_side_by_side(pool, &[rows, rows], &mut both).unwrap();
            let both = both.chunks_exact(2 * DIM);
            for (out, both) in out.chunks_exact_mut(DIM).zip(both) {
                assert_eq!(both[..DIM], both[DIM..]);
                out.copy_from_slice(&both[..DIM]);
            }
        }),
    ];
    let read = verbs.iter().map(|verb| {
        let mut out = vec![f32::NAN; n * DIM];
        verb(&mut out);
        out.iter().map(|value| value.to_bits()).collect()
    });
    read.collect()
}

/// The bits of every row with its slots, by key: all rows catch up.
fn content(table: &Table) -> BTreeMap<i64, Vec<u32>> {
    let export = table.export().unwrap();
    let row = |at: usize| {
        let range = at * DIM..(at + 1) * DIM;
        let slots = export.slots.iter().map(|(_, slot)| &slot[range.clone()]);
        let all = [&export.embedding[range.clone()]].into_iter().chain(slots);
        all.flatten().map(|value| value.to_bits()).collect()
    };
    let keys = export.keys.iter().enumerate();
    keys.map(|(at, &key)| (key, row(at))).collect()
}

/// `steps` steps, from `from`, of batches that are the same in every run.
fn train(table: &Table, pool: &Pool, steps: std::ops::Range<i32>) {
    for step in steps {
        let mut draw = Draw(step as u64 + 1);
        let keys = draw.batch(5000, 3000);
        let grads = draw.grads(&keys);
        apply(table, pool, &keys, &grads, &USUAL.adam(step));
    }
}

#[test]
fn every_reader_sees_the_same_bits_on_any_number_of_threads_and_changes_none() {
    let keys: Vec<i64> = (0..5000).chain([7, 7, 4999]).collect();
    let mut seen = Vec::new();
    for threads in [1, 3] {
        let (pool, table) = (Pool::new(threads).unwrap(), table());
        train(&table, &pool, 1..30);
        let before = read_by_every_verb(&table, &pool, &keys);
        assert!(before.iter().all(|read| *read == before[0]));
        assert_eq!(read_by_every_verb(&table, &pool, &keys), before);
        let content = content(&table);
        // All have caught up now, and the bits are the same.
        assert_eq!(read_by_every_verb(&table, &pool, &keys), before);
        for (at, key) in keys.iter().enumerate() {
            let row = content.get(key).map_or(&[0; DIM][..], |row| &row[..DIM]);
            assert_eq!(row, &before[0][at * DIM..(at + 1) * DIM], "{key}");
        }
        seen.push((before[0].clone(), content));
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn an_empty_batch_is_a_step_and_neither_is_one_that_fails_nor_one_of_another_table() {
    let pool = Pool::new(2).unwrap();
    let (one, other) = (table(), table());
    for table in [&one, &other] {
        apply(table, &pool, &[5], &[0.5; DIM], &USUAL.adam(1));
    }
    let row = |table: &Table| found_rows(table, &pool, &[5]);
    let start = row(&one);
    assert_eq!(row(&other), start);
    apply(&other, &pool, &[], &[], &USUAL.adam(2));
    assert_eq!(row(&one), start);
    assert!((row(&other)[0] - start[0]).abs() > 1e-4);
    // An offset that nobody was given.
    let wrong = other.apply(&pool, Target::Offsets(&[77]), &[1.0; DIM], &USUAL.adam(3));
    let now = row(&other);
    assert_eq!(wrong.unwrap_err().kind(), Kind::InvalidArgument);
    assert_eq!(row(&other), now);
    // In a group each table has one step, however many members it has.
    let lookup =
        crate::support::gradients(&[], &[], mx_rec_kernels::Columns::all(&[], DIM).unwrap());
    let group = [(&*one, lookup), (&*other, lookup), (&*one, lookup)];
    Table::apply_lookups_many(&pool, &group, &USUAL.adam(2)).unwrap();
    assert_eq!(row(&one), now);
}

#[test]
fn another_optimizer_and_written_fields_come_upon_rows_that_have_caught_up() {
    let pool = Pool::new(2).unwrap();
    let (table, mut dense) = both(&pool, 50);
    let keys: Vec<i64> = (0..50).collect();
    let grads = Draw(3).grads(&keys);
    dense.step(USUAL, 1, &keys, &grads);
    apply(&table, &pool, &keys, &grads, &USUAL.adam(1));
    for step in 2..5 {
        dense.step(USUAL, step, &[], &[]);
        apply(&table, &pool, &[], &[], &USUAL.adam(step));
    }
    // Of a gradient of zeros nothing moves; all rows have caught up all the same.
    apply(&table, &pool, &[3], &[0.0; DIM], &Sgd::new(0.1).unwrap());
    for step in 5..8 {
        dense.step(USUAL, step, &[9], &[0.25; DIM]);
        apply(&table, &pool, &[9], &[0.25; DIM], &USUAL.adam(step));
    }
    let offsets = known_offsets(&table, &pool, &[7]).0;
    let mut old = [0.0; DIM];
    {
        let rows = table.batch_rows(&offsets).unwrap();
        rows.read(&pool, &Field::Embedding, &mut old).unwrap();
    }
    for (found, [w, ..]) in old.iter().zip(&dense.0[7 * DIM..]) {
        assert!((f64::from(*found) - w).abs() < 1e-7);
    }
    dense.step(USUAL, 8, &[], &[]);
    apply(&table, &pool, &[], &[], &USUAL.adam(8));
    let new = old.map(|value| value + 1.0);
    let update = field_update(Field::Embedding, &old, &new);
    table
        .write_fields(&pool, &offsets, &[update], false)
        .unwrap();
    for [w, ..] in &mut dense.0[7 * DIM..8 * DIM] {
        *w += 1.0;
    }
    dense.step(USUAL, 9, &[], &[]);
    apply(&table, &pool, &[], &[], &USUAL.adam(9));
    let (largest, _) = largest_and_median(dense.differences(&table, &pool));
    assert!(largest < 1e-6, "{largest}");
}

/// Filled with a row that waits, and with one of a key that had none: neither has missed the steps
/// before, and each misses those that follow.
#[test]
fn rows_that_are_filled_wait_from_then_on() {
    let pool = Pool::new(2).unwrap();
    let (table, mut dense) = both(&pool, 40);
    let all: Vec<i64> = (0..20).collect();
    let grads = Draw(3).grads(&all);
    for step in 1..6 {
        dense.step(USUAL, step, &all, &grads);
        apply(&table, &pool, &all, &grads, &USUAL.adam(step));
    }
    let filled: Vec<i64> = (10..30).collect();
    let value = |number: usize, at: usize| ((at * 7919 + number) % 97) as f32 / 970.0 + 0.001;
    let values = |number: usize| -> Vec<f32> {
        (0..filled.len() * DIM)
            .map(|at| value(number, at))
            .collect()
    };
    let (rows, m, v) = (values(0), values(1), values(2));
    let slots: Vec<SlotValues<'_>> = USUAL
        .adam(1)
        .slots()
        .into_iter()
        .zip([&m, &v])
        .map(|(slot, values)| SlotValues { slot, values })
        .collect();
    let ids = Ids::I64(&filled);
    table.fill(&pool, ids, &rows, &slots, false).unwrap();
    let own = 10 * DIM..30 * DIM;
    for (at, one) in dense.0[own].iter_mut().enumerate() {
        *one = [rows[at], m[at], v[at]].map(f64::from);
    }
    for step in 6..12 {
        let few = [15, 35];
        let grads = Draw(step as u64).grads(&few);
        dense.step(USUAL, step, &few, &grads);
        apply(&table, &pool, &few, &grads, &USUAL.adam(step));
    }
    let (largest, _) = largest_and_median(dense.differences(&table, &pool));
    assert!(largest < 1e-6, "{largest}");
}

#[test]
fn a_key_that_comes_back_starts_anew_and_rows_that_move_keep_their_steps() {
    let pool = Pool::new(2).unwrap();
    const KEYS: i64 = 40_000;
    let (table, mut dense) = both(&pool, KEYS);
    let all: Vec<i64> = (0..KEYS).collect();
    let grads = Draw(3).grads(&all);
    dense.step(USUAL, 1, &all, &grads);
    apply(&table, &pool, &all, &grads, &USUAL.adam(1));
    let late: Vec<i64> = (KEYS - 100..KEYS).collect();
    let few = Draw(4).grads(&late);
    dense.step(USUAL, 2, &late, &few);
    apply(&table, &pool, &late, &few, &USUAL.adam(2));
    // Most rows go: the others move to the front.
    let gone: Vec<i64> = (10..KEYS - 200).collect();
    table.remove(Ids::I64(&gone)).unwrap();
    table.evict().unwrap();
    let fresh = self::table();
    let mut initial = vec![0.0; DIM];
    let absent = Absent::Initial(fresh.config());
    fresh
        .find(&pool, Ids::I64(&[20]), absent, &mut initial)
        .unwrap();
    for (at, key) in (20..4000).enumerate() {
        let mut inverse = [0];
        let made = table.id_offset(&pool, Ids::I64(&[key]), true, None, &mut inverse);
        drop(made.unwrap());
        let row = found_rows(&table, &pool, &[key]);
        assert!(at > 0 || row == initial);
    }
    for step in 3..20 {
        dense.step(USUAL, step, &[], &[]);
        apply(&table, &pool, &[], &[], &USUAL.adam(step));
    }
    let row = found_rows(&table, &pool, &[20]);
    assert_eq!(row, initial);
    let differences = dense.differences(&table, &pool);
    let stayed = (0..10).chain(KEYS - 200..KEYS);
    for key in stayed {
        let at = key as usize * DIM;
        for &difference in &differences[at..at + DIM] {
            assert!(difference < 1e-6, "{key}: {difference}");
        }
    }
}

#[test]
fn a_frozen_key_does_not_move_even_if_a_checkpoint_has_brought_it_moments() {
    let pool = Pool::new(2).unwrap();
    let temp = Directory::new("adam");
    let (first, _) = both(&pool, 20);
    let keys: Vec<i64> = (0..20).collect();
    apply(&first, &pool, &keys, &Draw(3).grads(&keys), &USUAL.adam(1));
    checkpoint::save(&first, &pool, &temp.0.join("t")).unwrap();
    let table = Table::new(config("t", vec![4])).unwrap();
    checkpoint::load(&table, &pool, &temp.0.join("t")).unwrap();
    let before = content(&table);
    for step in 2..9 {
        apply(&table, &pool, &[4, 6], &[0.5; 2 * DIM], &USUAL.adam(step));
    }
    let row = found_rows(&table, &pool, &[4]);
    assert_eq!(crate::table::bits(&row), before[&4][..DIM]);
    let after = content(&table);
    assert_eq!(after[&4], before[&4]);
    assert_ne!(after[&5], before[&5]);
}

#[test]
fn a_restored_table_goes_on_with_the_bits_of_the_one_that_was_saved() {
    let (pool, temp) = (Pool::new(2).unwrap(), Directory::new("adam"));
    let (saved, restored) = (table(), table());
    train(&saved, &pool, 1..20);
    checkpoint::save(&saved, &pool, &temp.0.join("t")).unwrap();
    train(&saved, &pool, 20..40);
    // One that has steps of its own behind it.
    train(&restored, &pool, 1..30);
    checkpoint::load(&restored, &pool, &temp.0.join("t")).unwrap();
    train(&restored, &pool, 20..40);
    assert_eq!(content(&restored), content(&saved));
}

#[test]
fn pushes_of_several_threads_with_and_without_keys_are_each_a_step_of_all_rows() {
    let pool = Pool::new(2).unwrap();
    let (pushed, serial) = (table(), table());
    let others: Vec<i64> = (0..30).collect();
    for table in [&pushed, &serial] {
        let keys: Vec<i64> = (-10..30).collect();
        apply(table, &pool, &keys, &Draw(7).grads(&keys), &USUAL.adam(3));
    }
    // Of steps with the same numbers their order does not matter to rows without a gradient.
    let step = USUAL.adam(9);
    let push = |keys: &[i64]| {
        let grads = vec![0.5; keys.len() * DIM];
        let grads = [key_gradients(keys, &grads)];
        let push = Push {
            table: &pushed,
            grads: grads.to_vec(),
            optimizer: &step,
        };
        Table::push_many(&Pool::new(1).unwrap(), &[push]).unwrap();
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let push = &push;
            scope.spawn(move || (0..50).for_each(|at| push(&[-2 - thread][..at % 2])));
        }
    });
    for _ in 0..150 {
        apply(&serial, &pool, &[], &[], &step);
    }
    let (found, expected) = (content(&pushed), content(&serial));
    for key in &others {
        assert_eq!(found[key], expected[key], "{key}");
    }
    assert_ne!(found[&-2], expected[&-2]);
}
