//! Occurrences are counted exactly: by many threads at once, by several lookups of a step, and when
//! the table becomes another between counting and deciding.

use crate::directory::Directory;
use crate::support::{found_rows, pool, thresholds};
use mx_rec_kernels::{checkpoint, Ids, Initializer, Lease, Pool, Table, TableConfig};
use std::sync::Arc;

fn table(admission_sketch_bytes: u64) -> Arc<Table> {
    let config = TableConfig {
        seed: 5,
        initializer: Initializer::Constant { value: 1.0 },
        admission_sketch_bytes,
        ..TableConfig::new("counting", 1, 1 << 20)
    };
    Arc::new(Table::new(config).unwrap())
}

/// Counts a batch; returns its distinct keys and the place of each id.
fn observe(
    table: &Table,
    pool: &Pool,
    ids: &[i64],
    (weight, time): (u32, i64),
    (access, eviction): (u32, Option<u32>),
) -> (Arc<Vec<i64>>, Vec<i32>) {
    let limits = thresholds(access, eviction);
    let mut places = vec![0; ids.len()];
    let time = (time > 0).then_some(time);
    let keys = table.observe(None, pool, Ids::I64(ids), weight, time, limits, &mut places);
    (keys.unwrap(), places)
}

/// Decides about an observed batch; returns which ids have a row.
fn admit(table: &Arc<Table>, pool: &Pool, found: &(Arc<Vec<i64>>, Vec<i32>)) -> (Lease, Vec<bool>) {
    let mut inverse = vec![0; found.1.len()];
    let lease = table.admit(pool, &found.0, None, &found.1, &mut inverse);
    (lease.unwrap(), inverse.iter().map(|&at| at >= 0).collect())
}

/// Counts a batch and decides about it.
fn count(
    table: &Arc<Table>,
    pool: &Pool,
    ids: &[i64],
    observed: (u32, i64),
    limits: (u32, Option<u32>),
) {
    admit(table, pool, &observe(table, pool, ids, observed, limits));
}

/// How many of `keys` with rows were counted `access` times or more.
fn counted(table: &Table, keys: &[i64], access: u32) -> usize {
    table.set_access_threshold(access).unwrap();
    let rows = found_rows(table, &pool(), keys);
    rows.iter().filter(|&&value| value == 1.0).count()
}

#[test]
fn no_occurrence_is_lost_when_many_threads_count_the_same_rows() {
    // Two batches that were counted at once lost occurrences: each read a row's count before the
    // other had written it.
    for (keys, rounds) in [(3_i64, 4000), (9000, 40)] {
        let (table, threads) = (table(0), 6);
        let keys: Vec<i64> = (0..keys).map(|key| key * 31 - 7).collect();
        let pool = Pool::new(1).unwrap();
        count(&table, &pool, &keys, (1, 1), (1, None));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (table, keys) = (&table, &keys);
                scope.spawn(move || {
                    let pool = Pool::new(1 + thread as usize % 2).unwrap();
                    for round in 0..rounds {
                        // Every key twice, with a weight.
                        let twice: Vec<i64> = keys.iter().chain(keys).copied().collect();
                        let time = 10 + round * threads + thread;
                        observe(table, &pool, &twice, (3, time), (1, None));
                    }
                });
            }
        });
        let all = (1 + rounds * threads * 6) as u32;
        assert_eq!(
            counted(&table, &keys, all),
            keys.len(),
            "{} keys",
            keys.len()
        );
        assert_eq!(counted(&table, &keys, all + 1), 0, "{} keys", keys.len());
        // And the latest time of each: one second earlier none is stale, then all are.
        let latest = 10 + rounds * threads - 1;
        let stale = |time| {
            observe(&table, &pool, &[-1], (1, time), (1, Some(50)));
            table.evict().unwrap().0
        };
        assert_eq!(stale(latest + 49), 0);
        assert_eq!(stale(latest + 50), keys.len() as u64);
    }
}

#[test]
fn keys_without_rows_are_admitted_by_the_very_occurrence_that_is_due() {
    for sketch in [0, 1 << 22] {
        let (table, threads, rounds) = (table(sketch), 5_i64, 60);
        let keys: Vec<i64> = (0..700).map(|key| key * 977).collect();
        let due = (threads * rounds) as u32;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (table, keys) = (&table, &keys);
                scope.spawn(move || {
                    let pool = Pool::new(1).unwrap();
                    for round in 0..rounds - i64::from(thread == 0) {
                        let found = observe(table, &pool, keys, (1, round + 1), (due, None));
                        let (_, admitted) = admit(table, &pool, &found);
                        assert!(!admitted.contains(&true), "before the last occurrence");
                    }
                });
            }
        });
        let pool = Pool::new(2).unwrap();
        let found = observe(&table, &pool, &keys, (1, 1), (due, None));
        assert!(
            !admit(&table, &pool, &found).1.contains(&false),
            "sketch of {sketch}"
        );
        let stats = table.stats();
        let refused = (due as u64 - 1) * keys.len() as u64;
        assert_eq!((stats.new, stats.refused, stats.hits), (700, refused, 0));
    }
}

#[test]
fn what_stays_the_same_in_a_row_is_not_written_and_what_is_more_than_fits_stays_the_most() {
    let (table, pool) = (table(0), Pool::new(1).unwrap());
    count(&table, &pool, &[5], (1, 9), (1, None));
    for _ in 0..3 {
        observe(&table, &pool, &[5, 5, 5], (u32::MAX / 2, 7), (1, None));
    }
    assert_eq!(counted(&table, &[5], u32::MAX), 1);
    table.set_access_threshold(0).unwrap();
    observe(&table, &pool, &[5], (1, 8), (1, Some(3)));
    assert_eq!(table.evict().unwrap().0, 0, "seen at 9, not at 7 or 8");
    observe(&table, &pool, &[-1], (1, 12), (1, Some(3)));
    assert_eq!(table.evict().unwrap().0, 1);
}

#[test]
fn between_counting_and_deciding_the_table_may_become_another() {
    let dir = Directory::new("between");
    let dir = dir.0.join("saved");
    let pool = Pool::new(2).unwrap();
    let limits = (2, Some(100));
    let saved = table(0);
    // In the files: 7 and 8 have rows, in this order; 9 was counted once.
    count(&saved, &pool, &[7, 7, 8, 8, 9], (1, 900), limits);
    checkpoint::save(&saved, &pool, &dir).unwrap();
    let made = |sketch| {
        let table = table(sketch);
        // 8 has row 0 here, 10 row 1, 7 row 2; 9 and 11 are counted once.
        let ids = [8, 8, 10, 10, 7, 7, 9, 11];
        count(&table, &pool, &ids, (1, 1000), limits);
        table
    };
    let row = |table: &Table, key| {
        let row = table.id_offset(&pool, Ids::I64(&[key]), false, None, &mut [0]);
        row.unwrap().first().copied()
    };
    let batch = [9, 8, 7, 10, 11, 12];
    for sketch in [0, 1 << 16] {
        for (what, change, expected) in [
            (
                "nothing",
                (|_: &Table| {}) as fn(&Table),
                [true, true, true, true, true, false],
            ),
            ("clear", |table| assert_eq!(table.clear(), 3), [false; 6]),
            (
                "remove",
                |table| assert_eq!(table.remove(Ids::I64(&[8, 11])).unwrap(), 1),
                [true, false, true, true, false, false],
            ),
            (
                "evict",
                |table| assert_eq!(table.evict().unwrap().0, 1),
                [true, true, true, true, true, false],
            ),
        ] {
            let table = made(sketch);
            // Stale when it is evicted, unlike those of the batch.
            count(&table, &pool, &[30, 30], (1, 950), limits);
            let found = observe(&table, &pool, &batch, (1, 1060), limits);
            if what == "clear" {
                table.remove(Ids::I64(&[30])).unwrap();
            }
            let before = table.stats();
            change(&table);
            let (lease, admitted) = admit(&table, &pool, &found);
            // A sketch remembers what a removed key had before its row, and keys that were removed
            // without one.
            let expected = match (sketch, what) {
                (1.., "remove") => [true, true, true, true, true, false],
                _ => expected,
            };
            assert_eq!(admitted, expected, "{what}, sketch of {sketch}");
            let rows: Vec<_> = batch.iter().filter_map(|&key| row(&table, key)).collect();
            assert_eq!(lease.offsets(), rows, "{what}");
            let stats = table.stats();
            let in_all = (stats.hits + stats.new + stats.refused)
                - (before.hits + before.new + before.refused);
            assert_eq!(in_all, batch.len() as u64, "{what}");
            let refused = expected.iter().filter(|&&admitted| !admitted).count();
            assert_eq!(stats.refused - before.refused, refused as u64, "{what}");
        }
        let table = made(sketch);
        let found = observe(&table, &pool, &batch, (1, 1060), limits);
        let before = table.stats();
        if sketch > 0 {
            continue;
        }
        checkpoint::load(&table, &pool, &dir).unwrap();
        let (lease, admitted) = admit(&table, &pool, &found);
        // As the files say, without the batch, which was counted in the table that is gone.
        assert_eq!(admitted, [false, true, true, false, false, false]);
        assert_eq!(lease.offsets(), [8, 7].map(|key| row(&table, key).unwrap()));
        let stats = table.stats();
        assert_eq!(
            (stats.hits - before.hits, stats.refused - before.refused),
            (2, 4)
        );
        drop(lease);
        let found = observe(&table, &pool, &[9], (1, 1060), limits);
        assert_eq!(admit(&table, &pool, &found).1, [true]);
    }
}
