//! Claims about a table that no single history shows: threads, index size, limits, refusals.

use crate::singles::{Export, Singles as _, Target};
use crate::support::{applied, created, expect_error, found_rows, gradients, UNIFORM};
use mx_rec_kernels::{
    Absent, Columns, Ids, Kind, LazyAdam, LookupGradients, Pool, Sgd, Table, TableConfig,
};

fn table(dim: usize, capacity: u64) -> Table {
    Table::new(TableConfig {
        seed: 5,
        initializer: UNIFORM,
        ..TableConfig::new("claims", dim, capacity)
    })
    .unwrap()
}

fn scattered(n: usize, seed: i64, range: i64) -> Vec<i64> {
    (0..n as i64)
        .map(|at| ((at + seed) * 2_654_435_761 % range) * 7 - 3)
        .collect()
}

/// The row numbers in offsets, which hold generations too.
pub(crate) fn rows(offsets: &[i64]) -> Vec<i64> {
    offsets.iter().map(|offset| offset & 0x7fff_ffff).collect()
}

pub(crate) fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn many_steps_on_any_number_of_threads_give_the_same_bits() {
    let run = |threads| -> (Export, Vec<i64>, Vec<i32>) {
        let (pool, table) = (Pool::new(threads).unwrap(), table(20, 1 << 20));
        let (mut all_offsets, mut all_restores) = (Vec::new(), Vec::new());
        for step in 0..4 {
            let ids = scattered(30_000, step * 9_000, 40_000);
            let grads: Vec<f32> = (0..ids.len() * 20)
                .map(|at| (at as f32 * 0.1).sin())
                .collect();
            let adam = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
            let (offsets, inverse) = created(&table, &pool, &ids);
            applied(&table, &pool, Target::Ids(Ids::I64(&ids)), &grads, &adam);
            let repeated: Vec<i64> = inverse.iter().map(|&at| offsets[at as usize]).collect();
            applied(&table, &pool, Target::Offsets(&repeated), &grads, &adam);
            table.remove(Ids::I64(&ids[..100])).unwrap();
            all_offsets.extend(rows(&offsets));
            all_restores.extend(inverse);
        }
        (table.export().unwrap(), all_offsets, all_restores)
    };
    let one = run(1);
    assert!(one.0.keys.len() > 20_000);
    for threads in [2, 5] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn threads_at_once_lose_no_update() {
    let (table, pool) = (table(8, 1 << 20), Pool::new(3).unwrap());
    let zeros = vec![0.0; 4000 * 8];
    let ids = scattered(4000, 0, 3000);
    table.assign(&pool, Ids::I64(&ids), &zeros).unwrap();
    let sgd = Sgd::new(1.0).unwrap();
    let steps = 50;
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (table, pool, ids, sgd) = (&table, &pool, &ids, &sgd);
            scope.spawn(move || {
                let grads = vec![-1.0; ids.len() * 8];
                for _ in 0..steps {
                    if worker == 0 {
                        let (offsets, inverse) = created(table, pool, ids);
                        let repeated: Vec<i64> =
                            inverse.iter().map(|&at| offsets[at as usize]).collect();
                        applied(table, pool, Target::Offsets(&repeated), &grads, sgd);
                    } else {
                        applied(table, pool, Target::Ids(Ids::I64(ids)), &grads, sgd);
                    }
                }
            });
        }
        scope.spawn(|| {
            for step in 0..steps {
                let others = scattered(3000, 1_000_000 + step * 3000, 1 << 40);
                created(&table, &pool, &others);
                let out = found_rows(&table, &pool, &ids);
                assert!(out
                    .chunks(8)
                    .all(|row| row.iter().all(|value| *value == row[0])));
                table.remove(Ids::I64(&others)).unwrap();
            }
        });
    });
    let out = found_rows(&table, &pool, &ids);
    for (id, row) in ids.iter().zip(out.chunks(8)) {
        let times = ids.iter().filter(|other| *other == id).count();
        assert_eq!(row, [(times * 3 * steps as usize) as f32; 8]);
    }
}

#[test]
fn the_index_stays_within_twenty_bytes_a_row_at_any_moment() {
    let (table, pool) = (table(1, 4_000_000), Pool::new(2).unwrap());
    let mut peak = 0.0_f64;
    let keys: Vec<i64> = (0..1_000_000)
        .map(|at| at * 11 - 1_000_000)
        .filter(|&key| key != -1)
        .collect();
    for (batch, ids) in keys.chunks(20_000).enumerate() {
        created(&table, &pool, ids);
        if batch >= 10 {
            peak = peak.max(table.memory().index_bytes as f64 / table.len() as f64);
        }
    }
    assert!(peak <= 20.5, "{peak} bytes");
    assert!(table.memory().index_bytes as f64 / table.len() as f64 <= 20.0);
}

/// Where a quarter of the keys occur, in no order, the array that takes them is there before the
/// shards have given them up.
#[test]
fn the_index_of_small_keys_takes_twenty_bytes_a_row_but_while_they_move() {
    let (table, pool) = (table(1, 4_000_000), Pool::new(2).unwrap());
    let mut told = Vec::new();
    let keys: Vec<i64> = (0..1_200_000)
        .map(|at| at * 0x9E37_79B1 % (1 << 22))
        .collect();
    for ids in keys.chunks(20_000) {
        created(&table, &pool, ids);
        told.push(table.memory().index_bytes as f64 / table.len() as f64);
    }
    let most = told.iter().skip(10).copied().fold(0.0, f64::max);
    assert!(most <= 34.0, "{most} bytes");
    let above = told.iter().skip(10).filter(|&&bytes| bytes > 20.5).count();
    assert!((1..=16).contains(&above), "{above}: {told:?}");
    assert!(told.last().is_some_and(|&bytes| bytes <= 18.5), "{told:?}");
}

#[test]
fn a_batch_over_the_budget_changes_nothing() {
    let (table, pool) = (table(3, 1000), Pool::new(2).unwrap());
    let ids: Vec<i64> = (0..900).collect();
    created(&table, &pool, &ids);
    let before = table.export().unwrap();
    let (more, rows) = ((800..1100).collect::<Vec<i64>>(), vec![7.0; 900]);
    let mut inverse = vec![0; 300];
    let sgd = Sgd::new(1.0).unwrap();
    let errors = [
        table
            .id_offset(&pool, Ids::I64(&more), true, None, &mut inverse)
            .map(drop),
        table.assign(&pool, Ids::I64(&more), &rows),
        table
            .apply(&pool, Target::Ids(Ids::I64(&more)), &rows, &sgd)
            .map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err();
        expect_error(&error, Kind::ResourceExhausted, &["claims", "1000"]);
    }
    assert_eq!(table.export().unwrap(), before);
    created(&table, &pool, &(900..1000).collect::<Vec<i64>>());
    assert_eq!(table.len(), 1000);
}

#[test]
fn offsets_that_are_no_row_are_refused_by_name_and_value() {
    let (table, pool, other) = (table(2, 100), Pool::new(1).unwrap(), table(2, 100));
    let good = created(&table, &pool, &[10, 11, 12]).0;
    let foreign = created(&other, &pool, &[10]).0[0];
    table.remove(Ids::I64(&[11])).unwrap();
    let sgd = Sgd::new(1.0).unwrap();
    let before = table.export().unwrap();
    let (first, behind) = (good[0], good[0] + 3);
    let future = first + (5 << 31);
    for bad in [
        -2,
        1,
        3,
        i64::MIN,
        i64::MAX,
        1 << 32,
        foreign,
        behind,
        future,
    ] {
        let lookup = table
            .lookup(&pool, &[first, bad], &mut [0.0; 4])
            .unwrap_err();
        let embed = table
            .embed(&pool, &[first, bad], &[0, 1], &mut [0.0; 4])
            .unwrap_err();
        let apply = table
            .apply(&pool, Target::Offsets(&[first, bad]), &[1.0; 4], &sgd)
            .unwrap_err();
        let fused = table
            .apply_lookups(&pool, &[of(2, &[first, bad], &[0, 0], &[1.0; 4])], &sgd)
            .unwrap_err();
        for error in [lookup, embed, apply, fused] {
            expect_error(
                &error,
                Kind::InvalidArgument,
                &["claims", &format!("offset={bad}")],
            );
        }
    }
    assert_eq!(table.export().unwrap(), before);
    let mut out = [9.0; 6];
    table.lookup(&pool, &[-1, good[2], 0], &mut out).unwrap();
    assert_eq!((&out[..2], &out[4..]), (&[0.0; 2][..], &[0.0; 2][..]));
}

#[test]
fn places_outside_of_the_offsets_are_refused_and_change_nothing() {
    let (table, pool) = (table(2, 100), Pool::new(1).unwrap());
    let rows = created(&table, &pool, &[10, 11]).0;
    let sgd = Sgd::new(1.0).unwrap();
    let before = table.export().unwrap();
    for bad in [-2, 2, i32::MIN, i32::MAX] {
        let embed = table
            .embed(&pool, &rows, &[0, bad], &mut [0.0; 4])
            .unwrap_err();
        let good = of(2, &rows[1..], &[0], &[1.0; 2]);
        let fused = table
            .apply_lookups(&pool, &[good, of(2, &rows, &[0, bad], &[1.0; 4])], &sgd)
            .unwrap_err();
        for error in [embed, fused] {
            expect_error(
                &error,
                Kind::InvalidArgument,
                &["claims", &format!("entry={bad}")],
            );
        }
    }
    assert_eq!(table.export().unwrap(), before);
}

/// The gradients of one lookup.
fn of<'a>(
    dim: usize,
    offsets: &'a [i64],
    inverse: &'a [i32],
    grads: &'a [f32],
) -> LookupGradients<'a> {
    gradients(offsets, inverse, Columns::all(grads, dim).unwrap())
}

#[test]
fn lookups_are_applied_as_if_each_were_reduced_and_the_sums_joined() {
    const DIM: usize = 20;
    let adam = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    for (threads, sizes) in [(1, vec![5000]), (2, vec![5000, 7000, 0, 300]), (3, vec![])] {
        let pool = Pool::new(threads).unwrap();
        let (fused, plain) = (table(DIM, 1 << 20), table(DIM, 1 << 20));
        for step in 0..3 {
            let lookups: Vec<_> = (0..)
                .zip(&sizes)
                .map(|(number, &n)| {
                    let mut ids = scattered(n, step * 500 + number * 100, 900);
                    ids.iter_mut().step_by(7).for_each(|id| *id = -1);
                    let (offsets, inverse) = created(&fused, &pool, &ids);
                    let others = created(&plain, &pool, &ids).0;
                    assert_eq!(rows(&others), rows(&offsets));
                    let grads: Vec<f32> = (0..n * DIM)
                        .map(|at| ((at as f32 + number as f32) * 0.1).sin() * 1e3)
                        .collect();
                    (offsets, others, inverse, grads)
                })
                .collect();
            let (mut joined, mut sums) = (Vec::new(), Vec::new());
            for (_, offsets, inverse, grads) in &lookups {
                let mut sum = vec![0.0; offsets.len() * DIM];
                mx_rec_kernels::reduce(&pool, grads, DIM, inverse, &mut sum).unwrap();
                joined.extend(offsets);
                sums.extend(sum);
            }
            let parts: Vec<LookupGradients<'_>> = lookups
                .iter()
                .map(|(o, _, r, g)| of(DIM, o, r, g))
                .collect();
            assert_eq!(
                fused.apply_lookups(&pool, &parts, &adam).unwrap(),
                plain
                    .apply(&pool, Target::Offsets(&joined), &sums, &adam)
                    .unwrap()
            );
        }
        assert!(fused.export().unwrap() == plain.export().unwrap());
    }
}

#[test]
fn offsets_that_repeat_or_are_missing_count_as_in_apply() {
    let (fused, plain, pool) = (table(1, 100), table(1, 100), Pool::new(1).unwrap());
    let [of_fused, of_plain] = [&fused, &plain].map(|table| {
        let rows = created(table, &pool, &[10, 11, 12]).0;
        [rows[2], -1, rows[2], rows[0], 0]
    });
    let adam = LazyAdam::new(0.1, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    let sums = [1.0 + 4.0, 2.0, 3.0, 0.0, 6.0];
    let inverse = [0, 1, 2, 0, -1, 4];
    let lookup = of(1, &of_fused, &inverse, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(fused.apply_lookups(&pool, &[lookup], &adam).unwrap(), 2);
    applied(&plain, &pool, Target::Offsets(&of_plain), &sums, &adam);
    assert_eq!(fused.export().unwrap(), plain.export().unwrap());
}

#[test]
fn arguments_of_the_wrong_length_are_refused_by_name() {
    let (table, pool) = (table(2, 100), Pool::new(1).unwrap());
    let ids = Ids::I64(&[1, 2]);
    let sgd = Sgd::new(1.0).unwrap();
    let errors = [
        (
            "inverse",
            table.id_offset(&pool, ids, true, None, &mut [0]).map(drop),
        ),
        ("out", table.lookup(&pool, &[-1], &mut [0.0; 3])),
        ("out", table.find(&pool, ids, Absent::Zeros, &mut [0.0; 3])),
        (
            "absent",
            table.find(&pool, ids, Absent::Row(&[0.0]), &mut [0.0; 4]),
        ),
        (
            "absent",
            table.find(&pool, ids, Absent::Rows(&[0.0; 2]), &mut [0.0; 4]),
        ),
        (
            "grads",
            table
                .apply(&pool, Target::Offsets(&[-1, -1]), &[0.0; 2], &sgd)
                .map(drop),
        ),
        ("rows", table.assign(&pool, ids, &[0.0; 5])),
        ("out", table.embed(&pool, &[], &[-1], &mut [0.0; 3])),
        (
            "grads",
            table
                .apply_lookups(&pool, &[of(2, &[], &[-1, -1], &[0.0; 2])], &sgd)
                .map(drop),
        ),
    ];
    for (argument, result) in errors {
        let error = result.unwrap_err();
        expect_error(
            &error,
            Kind::InvalidArgument,
            &[&format!("argument={argument}")],
        );
    }
    assert!(table.is_empty());
}

#[test]
fn extreme_keys_narrow_ids_and_empty_batches_are_ordinary() {
    let (table, pool) = (table(4, 100), Pool::new(2).unwrap());
    let (offsets, inverse) = created(&table, &pool, &[-1, 0, i64::MIN, i64::MAX, 0, -1, i64::MIN]);
    assert_eq!(
        (rows(&offsets), inverse),
        (vec![0, 1, 2], vec![-1, 0, 1, 2, 0, -1, 1])
    );
    assert!(created(&table, &pool, &[]).0.is_empty());
    let mut inverse = [7; 3];
    let narrow = table.id_offset(
        &pool,
        Ids::I32(&[i32::MIN, -1, 0]),
        true,
        None,
        &mut inverse,
    );
    assert_eq!((rows(&narrow.unwrap()), inverse), (vec![3, 0], [0, -1, 1]));
    let wide = created(&table, &pool, &[i64::from(i32::MIN)]).0;
    assert_eq!(rows(&wide), [3]);
    table.lookup(&pool, &[], &mut []).unwrap();
    table
        .find(&pool, Ids::I32(&[]), Absent::Zeros, &mut [])
        .unwrap();
    let sgd = Sgd::new(1.0).unwrap();
    assert_eq!(
        table.apply(&pool, Target::Offsets(&[]), &[], &sgd).unwrap(),
        0
    );
    table.assign(&pool, Ids::I64(&[]), &[]).unwrap();
    assert_eq!(table.remove(Ids::I64(&[-1, 55])).unwrap(), 0);
    assert_eq!(table.len(), 4);
}

#[test]
fn a_failed_load_leaves_the_table_as_it_was() {
    let (table, pool) = (table(1, 5), Pool::new(1).unwrap());
    created(&table, &pool, &[1, 2]);
    let before = table.export().unwrap();
    for (keys, kind) in [
        (vec![5, 5], Kind::DataLoss),
        (vec![-1], Kind::DataLoss),
        ((0..6).collect(), Kind::ResourceExhausted),
    ] {
        let rows = vec![0.0; keys.len()];
        let error = table.load(&pool, &[], &mut |loading| loading.push(&keys, &rows, &[]));
        assert_eq!(error.unwrap_err().kind(), kind);
    }
    assert_eq!(table.export().unwrap(), before);
}
