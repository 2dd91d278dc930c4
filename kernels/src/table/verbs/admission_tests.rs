//! Admission while somebody else changes the table between two of its locks.

use crate::table::{Table, TableConfig, Thresholds};
use crate::{Ids, Pool};
use std::sync::Arc;

fn table() -> Arc<Table> {
    let config = TableConfig {
        seed: 5,
        ..TableConfig::new("between", 2, 100)
    };
    Arc::new(Table::new(config).unwrap())
}

/// Waits until `done`.
fn wait(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Admits `keys` with `limit`, where `change` waits for the index before the admission has it for
/// writing: it decides, `change` comes,
/// it decides again. Returns the rows of the keys, -1 for none, or the error.
fn admit_around(
    table: &Arc<Table>,
    keys: &[i64],
    limit: Option<usize>,
    change: impl FnOnce() + Send,
) -> crate::Result<Vec<i64>> {
    std::thread::scope(|scope| {
        let held = table.history().write();
        let admitted = scope.spawn(|| {
            let places: Vec<i32> = (0..keys.len() as i32).collect();
            let mut inverse = vec![0; keys.len()];
            let pool = Pool::new(1).unwrap();
            let lease = table.admit(&pool, keys, limit, &places, &mut inverse)?;
            let row = |&at: &i32| lease.offsets().get(at as usize).copied().unwrap_or(-1);
            Ok(inverse.iter().map(row).collect())
        });
        // It has looked the keys up, or will, and waits for the history with the index in its
        // hands.
        wait(|| table.index().is_locked());
        let changed = scope.spawn(change);
        wait(|| table.index().try_read().is_none());
        drop(held);
        changed.join().unwrap();
        admitted.join().unwrap()
    })
}

fn observe(table: &Table, ids: &[i64], access: u32) {
    let limits = Thresholds {
        access,
        eviction: None,
    };
    let pool = Pool::new(1).unwrap();
    let mut places = vec![0; ids.len()];
    let observed = table.observe(None, &pool, Ids::I64(ids), 1, None, limits, &mut places);
    observed.unwrap();
}

fn enter(table: &Table, ids: &[i64]) {
    let pool = Pool::new(1).unwrap();
    let mut inverse = vec![0; ids.len()];
    let entered = table.id_offset(&pool, Ids::I64(ids), true, None, &mut inverse);
    entered.unwrap();
}

fn row(table: &Table, key: i64) -> i64 {
    let pool = Pool::new(1).unwrap();
    let found = table.id_offset(&pool, Ids::I64(&[key]), false, None, &mut [0]);
    found.unwrap().first().copied().unwrap_or(-1)
}

#[test]
fn the_limit_holds_for_what_is_decided_last_and_nothing_is_counted_beyond_it() {
    // The limit was compared before the second decision only: a lease had more rows than the graph
    // has room for.
    let table = table();
    observe(&table, &[1, 1, 2, 3], 2);
    let before = table.stats();
    let admitted = admit_around(&table, &[1, 2, 3], Some(1), || enter(&table, &[2]));
    let error = admitted.unwrap_err().to_string();
    assert!(
        error.contains("between") && error.contains("distinct=2") && error.contains("limit=1"),
        "{error}"
    );
    let after = table.stats();
    // One row, that of the other thread.
    assert_eq!((after.rows, after.new), (1, before.new + 1));
    assert_eq!((after.hits, after.refused), (before.hits, before.refused));
    let admitted = admit_around(&table, &[1, 2, 3], Some(2), || enter(&table, &[9]));
    assert_eq!(admitted.unwrap(), [row(&table, 1), row(&table, 2), -1]);
    let after = table.stats();
    assert_eq!((after.rows, after.hits, after.refused), (3, 1, 1));
}

#[test]
fn nothing_is_counted_by_an_admission_over_the_budget() {
    let table = table();
    let all: Vec<i64> = (1000..1100).collect();
    observe(&table, &[1, 2], 1);
    let before = table.stats();
    let admitted = admit_around(&table, &[1, 2], None, || enter(&table, &all));
    assert!(admitted.unwrap_err().to_string().contains("capacity"));
    let after = table.stats();
    assert_eq!(
        (after.hits, after.new - before.new, after.refused),
        (0, 100, 0)
    );
}

#[test]
fn a_table_that_is_cleared_while_keys_are_admitted_has_counted_nothing() {
    let table = table();
    enter(&table, &[7]);
    observe(&table, &[1, 1, 2, 2], 2);
    // One change: between two the admission might come.
    let admitted = admit_around(&table, &[1, 2], None, || {
        table.clear();
    });
    assert_eq!(admitted.unwrap(), [-1, -1]);
    let stats = table.stats();
    assert_eq!((stats.rows, stats.new, stats.refused), (0, 1, 2));
}

#[test]
fn keys_that_are_removed_while_they_are_admitted_are_refused() {
    let table = table();
    enter(&table, &[2, 3]);
    observe(&table, &[1, 1, 2, 2, 3, 3], 2);
    let admitted = admit_around(&table, &[1, 2, 3], None, || {
        table.remove(Ids::I64(&[2])).unwrap();
    });
    assert_eq!(admitted.unwrap(), [row(&table, 1), -1, row(&table, 3)]);
    assert_eq!(row(&table, 2), -1);
}

#[test]
fn a_key_admitted_below_a_threshold_that_rises_meanwhile_keeps_its_count() {
    // It got its row by the old threshold, and the new one for its count, without having been seen
    // so often.
    let table = table();
    observe(&table, &[1, 1, 2], 2);
    std::thread::scope(|scope| {
        let history = table.history().write();
        let admitted = scope.spawn(|| {
            let (pool, mut inverse) = (Pool::new(1).unwrap(), [0; 2]);
            let lease = table.admit(&pool, &[1, 2], None, &[0, 1], &mut inverse);
            lease.map(|lease| lease.offsets().len()).unwrap()
        });
        wait(|| table.index().is_locked());
        // It decides, and waits for the index.
        let index = table.index().read();
        drop(history);
        wait(|| table.index().try_read().is_none());
        let raised = scope.spawn(|| table.set_access_threshold(5).unwrap());
        // Whoever changes the threshold now waits as well.
        let start = std::time::Instant::now();
        wait(|| raised.is_finished() || start.elapsed().as_millis() > 100);
        drop(index);
        assert_eq!(admitted.join().unwrap(), 1);
        raised.join().unwrap();
    });
    assert!(row(&table, 1) >= 0);
    let (pool, mut inverse) = (Pool::new(1).unwrap(), [0]);
    for (more, expected) in [(2, -1), (1, 0)] {
        observe(&table, &[1, 1][..more], 2);
        let lease = table.admit(&pool, &[1], None, &[0], &mut inverse);
        assert_eq!(lease.unwrap().offsets().len() as i32, expected + 1);
        assert_eq!(inverse, [expected], "counted 4 times, then 5 times");
    }
}
