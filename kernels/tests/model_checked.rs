//! A table under many schedules of its threads, chosen by a model checker: what is counted, what
//! batches hold, how work is shared.
//!
//! ```text
//! cargo test -p mx_rec_kernels --features model --test model_checked
//! ```
//! `MX_REC_MODEL_SCHEDULES` sets how many schedules each test tries. A failure prints the schedule
//! that `shuttle::replay` repeats.

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
mod singles;

use crate::singles::{Singles as _, Target};
use mx_rec_kernels::checkpoint::{save, StagedLoad};
use mx_rec_kernels::tier::Files;
use mx_rec_kernels::{
    Absent, Error, Ids, Initializer, Pool, RowsOf, Sgd, Table, TableConfig, Thresholds,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{thread, Config, Runner};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

const DIM: usize = 2;

const INITIALIZER: Initializer = Initializer::RandomUniform { min: 1.0, max: 2.0 };

/// Tries `run` under schedules at random, and under ones that change threads at a few points only.
fn try_schedules(run: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = std::env::var("MX_REC_MODEL_SCHEDULES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150);
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(run);
    Runner::new(PctScheduler::new(3, schedules), config).run(run);
}

fn table() -> Arc<Table> {
    Arc::new(Table::new(config()).unwrap())
}

/// A table with so many rows in memory.
fn tiered(ram_rows: u64) -> Arc<Table> {
    let files = Files::open(&[std::env::temp_dir()]).unwrap();
    Arc::new(Table::tiered_on(config(), ram_rows, Arc::new(files)).unwrap())
}

fn config() -> TableConfig {
    TableConfig {
        seed: 5,
        initializer: INITIALIZER,
        ..TableConfig::new("model", DIM, 64)
    }
}

/// The first values of a key's row.
fn first(key: i64) -> [f32; DIM] {
    let mut row = [0.0; DIM];
    INITIALIZER.fill(5, key, &mut row);
    row
}

/// The rows behind offsets are those of the keys of `ids`.
fn expect_rows(table: &Table, pool: &Pool, ids: &[i64], offsets: &[i64], inverse: &[i32]) {
    let mut rows = vec![9.0; ids.len() * DIM];
    table.embed(pool, offsets, inverse, &mut rows).unwrap();
    for ((&id, &at), row) in ids.iter().zip(inverse).zip(rows.chunks_exact(DIM)) {
        let expected = if at < 0 { [0.0; DIM] } else { first(id) };
        assert_eq!(row, expected, "the row of {id}");
    }
}

fn observe(table: &Table, pool: &Pool, ids: &[i64], access: u32) -> (Arc<Vec<i64>>, Vec<i32>) {
    let limits = Thresholds {
        access,
        eviction: Some(10),
    };
    let mut places = vec![0; ids.len()];
    let keys = table.observe(None, pool, Ids::I64(ids), 1, Some(100), limits, &mut places);
    (keys.unwrap(), places)
}

/// After all leases have ended nothing is left over: when the last key goes, so does the memory.
fn expect_nothing_left(table: &Arc<Table>, pool: &Pool) {
    drop(
        table
            .lease(pool, Ids::I64(&[1000]), None, &mut [0])
            .unwrap(),
    );
    let keys = table.export().unwrap().keys;
    assert_eq!(keys.len() as u64, table.len());
    table.remove(Ids::I64(&keys)).unwrap();
    assert_eq!((table.len(), table.memory().rows_bytes), (0, 0));
}

#[test]
fn what_threads_count_at_once_adds_up() {
    try_schedules(|| {
        let table = table();
        let pool = Pool::new(1).unwrap();
        let with_row = observe(&table, &pool, &[1], 1);
        table
            .admit(&pool, &with_row.0, None, &with_row.1, &mut [0])
            .unwrap();
        table.set_access_threshold(4).unwrap();
        let count = |table: Arc<Table>| {
            move || {
                let pool = Pool::new(1).unwrap();
                observe(&table, &pool, &[1, 2, 2], 4);
            }
        };
        let threads: Vec<_> = (0..3)
            .map(|_| thread::spawn(count(Arc::clone(&table))))
            .collect();
        threads.into_iter().for_each(|one| one.join().unwrap());
        // 1 was counted 4 times, 2 was counted 6 times.
        for (access, expected) in [(4, [0, 1]), (5, [-1, 0]), (6, [-1, 0]), (7, [-1, -1])] {
            table.set_access_threshold(access).unwrap();
            let mut inverse = [9, 9];
            table
                .admit(&pool, &[1, 2], None, &[0, 1], &mut inverse)
                .unwrap();
            assert_eq!(inverse, expected, "threshold {access}");
            table.set_access_threshold(1).unwrap();
        }
    });
}

#[test]
fn a_threshold_set_by_hand_is_not_lost_to_a_first_batch() {
    try_schedules(|| {
        let table = table();
        let (setting, counting) = (Arc::clone(&table), Arc::clone(&table));
        let by_hand = thread::spawn(move || setting.set_access_threshold(2).unwrap());
        let first = thread::spawn(move || {
            observe(&counting, &Pool::new(1).unwrap(), &[1, 1], 50);
        });
        by_hand.join().unwrap();
        first.join().unwrap();
        let (pool, mut inverse) = (Pool::new(1).unwrap(), [9]);
        table.admit(&pool, &[1], None, &[0], &mut inverse).unwrap();
        assert_eq!(inverse, [0]);
    });
}

/// Two saved tables: in both key 1 has a row, of ones and of twos. Made once, by the first
/// schedule.
fn saved() -> &'static [PathBuf; 2] {
    static SAVED: OnceLock<[PathBuf; 2]> = OnceLock::new();
    SAVED.get_or_init(|| {
        let pool = Pool::new(1).unwrap();
        [1.0, 2.0].map(|value| {
            let name = format!("mx_rec_model_{}_{value}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let table = table();
            table.assign(&pool, Ids::I64(&[1]), &[value; DIM]).unwrap();
            save(&table, &pool, &dir).unwrap();
            dir
        })
    })
}

#[test]
fn tables_that_are_restored_together_are_never_seen_apart() {
    try_schedules(|| {
        let (pool, tables) = (Pool::new(1).unwrap(), [table(), table()]);
        let restores = [([0, 1], 0), ([1, 0], 1)].map(|(order, at)| {
            let dirs = [saved()[at].as_path()];
            let stage = |table: &Arc<Table>| {
                StagedLoad::new(Arc::clone(table), &pool, &dirs, &|_| true).unwrap()
            };
            let loads: Vec<StagedLoad> = order.map(|at| stage(&tables[at])).into();
            thread::spawn(move || {
                StagedLoad::publish_all(loads).unwrap();
            })
        });
        let step = Arc::clone(&tables[1]);
        let step = thread::spawn(move || {
            let pool = Pool::new(1).unwrap();
            let lease = step.lease(&pool, Ids::I64(&[2]), None, &mut [0]).unwrap();
            let mut row = [0.0; DIM];
            step.lookup(&pool, lease.offsets(), &mut row).ok();
        });
        let read = |table: &Table| {
            let mut row = [9.0; DIM];
            table
                .find(&pool, Ids::I64(&[1]), Absent::Zeros, &mut row)
                .unwrap();
            row
        };
        for order in [[0, 1], [1, 0]] {
            let [one, other] = order.map(|at| &tables[at]);
            let (first, between) = (read(one), read(other));
            // Each content comes once: what was there before and after was there between.
            if read(one) == first {
                assert_eq!(between, first);
            }
        }
        restores.into_iter().for_each(|one| one.join().unwrap());
        step.join().unwrap();
        assert_eq!(read(&tables[0]), read(&tables[1]));
    });
    for dir in saved() {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn rows_in_flight_stay_those_of_their_keys_and_none_is_left_over() {
    try_schedules(|| {
        let table = table();
        let pool = Pool::new(1).unwrap();
        drop(table.lease(&pool, Ids::I64(&[1, 2, 3]), None, &mut [0; 3]));
        let ahead = |table: Arc<Table>, ids: [i64; 3], drops: bool| {
            move || {
                let (pool, mut inverse) = (Pool::new(1).unwrap(), [0; 3]);
                let batch = Ids::I64(&ids);
                let lease = table.prepare(&pool, batch, None, &mut inverse);
                if drops {
                    return;
                }
                let offsets = lease.offsets();
                if table.claim(&pool, batch, offsets, None, &inverse).unwrap() {
                    expect_rows(&table, &pool, &ids, offsets, &inverse);
                    return;
                }
                let again = table.lease(&pool, batch, None, &mut inverse).unwrap();
                expect_rows(&table, &pool, &ids, again.offsets(), &inverse);
            }
        };
        let removing = Arc::clone(&table);
        let threads = [
            thread::spawn(ahead(Arc::clone(&table), [2, 5, 6], false)),
            thread::spawn(ahead(Arc::clone(&table), [6, 3, 7], false)),
            thread::spawn(ahead(Arc::clone(&table), [5, 7, 8], true)),
            thread::spawn(move || {
                removing.remove(Ids::I64(&[2, 3, 6])).unwrap();
                let pool = Pool::new(1).unwrap();
                let mut inverse = [0; 2];
                let lease = removing.lease(&pool, Ids::I64(&[11, 12]), None, &mut inverse);
                let lease = lease.unwrap();
                expect_rows(&removing, &pool, &[11, 12], lease.offsets(), &inverse);
            }),
        ];
        threads.into_iter().for_each(|one| one.join().unwrap());
        expect_nothing_left(&table, &pool);
    });
}

#[test]
fn admitted_rows_are_their_keys_whatever_goes_meanwhile() {
    try_schedules(|| {
        let table = table();
        let step = |table: Arc<Table>, ids: [i64; 4]| {
            move || {
                let (pool, mut inverse) = (Pool::new(1).unwrap(), [0; 4]);
                let (keys, places) = observe(&table, &pool, &ids, 2);
                let lease = table.admit(&pool, &keys, Some(4), &places, &mut inverse);
                let lease = lease.unwrap();
                expect_rows(&table, &pool, &ids, lease.offsets(), &inverse);
            }
        };
        let changing = Arc::clone(&table);
        let threads = [
            thread::spawn(step(Arc::clone(&table), [1, 2, 1, 3])),
            thread::spawn(step(Arc::clone(&table), [3, 2, 2, 4])),
            thread::spawn(move || {
                changing.remove(Ids::I64(&[2])).unwrap();
                changing.evict().unwrap();
                changing.set_access_threshold(1).unwrap();
                changing.remove(Ids::I64(&[1, 3])).unwrap();
            }),
        ];
        threads.into_iter().for_each(|one| one.join().unwrap());
        let stats = table.stats();
        assert_eq!(stats.hits + stats.new + stats.refused, 6);
        expect_nothing_left(&table, &Pool::new(1).unwrap());
    });
}

#[test]
fn an_eviction_that_moves_rows_meets_updates_and_a_clear() {
    try_schedules(|| {
        let table = table();
        let pool = Pool::new(1).unwrap();
        drop(table.lease(&pool, Ids::I64(&[1, 2, 3, 4]), None, &mut [0; 4]));
        let (updating, evicting) = (Arc::clone(&table), Arc::clone(&table));
        let threads = [
            thread::spawn(move || {
                let pool = Pool::new(1).unwrap();
                let sgd = Sgd::new(1.0).unwrap();
                let grads = [0.0; 2 * DIM];
                let lease = updating.lease(&pool, Ids::I64(&[2, 9]), None, &mut [0; 2]);
                let target = lease.unwrap();
                let target = Target::Offsets(target.offsets());
                updating.apply(&pool, target, &grads, &sgd).unwrap();
                updating.clear();
            }),
            thread::spawn(move || {
                evicting.evict().unwrap();
                evicting.remove(Ids::I64(&[1, 3])).unwrap();
            }),
        ];
        let mut rows = [9.0; 2 * DIM];
        let ids = Ids::I64(&[2, 4]);
        table.find(&pool, ids, Absent::Zeros, &mut rows).unwrap();
        for (key, row) in [2, 4].into_iter().zip(rows.chunks_exact(DIM)) {
            assert!(row == first(key) || row == [0.0; DIM], "the row of {key}");
        }
        threads.into_iter().for_each(|one| one.join().unwrap());
        expect_nothing_left(&table, &pool);
    });
}

#[test]
fn rows_go_to_disk_for_the_first_time_beside_lookups_ahead_groups_and_a_clear() {
    try_schedules(|| {
        let tables = [tiered(6), tiered(6)];
        let pool = Pool::new(1).unwrap();
        let known = tables.each_ref().map(|table| {
            let ids = Ids::I64(&[1, 2, 3, 4]);
            table
                .id_offset(&pool, ids, true, None, &mut [0; 4])
                .unwrap()
        });
        let growing = |tables: [Arc<Table>; 2], ids: [i64; 4]| {
            move || {
                let pool = Pool::new(1).unwrap();
                for table in &tables {
                    let mut inverse = [0; 4];
                    let batch = Ids::I64(&ids);
                    let lease = table.lease(&pool, batch, None, &mut inverse).unwrap();
                    expect_rows(table, &pool, &ids, lease.offsets(), &inverse);
                    let target = Target::Offsets(lease.offsets());
                    let sgd = Sgd::new(1.0).unwrap();
                    table.apply(&pool, target, &[0.0; 4 * DIM], &sgd).unwrap();
                }
            }
        };
        let ahead = Arc::clone(&tables[1]);
        let grouped = tables.clone();
        let threads = [
            thread::spawn(growing(tables.clone(), [5, 6, 1, 7])),
            thread::spawn(move || {
                let (pool, ids, mut inverse) = (Pool::new(1).unwrap(), [2, 8, 9], [0; 3]);
                let batch = Ids::I64(&ids);
                let mut lease = ahead.prepare(&pool, batch, None, &mut inverse);
                let offsets = lease.offsets();
                if !ahead.claim(&pool, batch, offsets, None, &inverse).unwrap() {
                    lease = ahead.lease(&pool, batch, None, &mut inverse).unwrap();
                }
                expect_rows(&ahead, &pool, &ids, lease.offsets(), &inverse);
            }),
            // Holds the rows of all tables, and then takes the locks.
            thread::spawn(move || {
                let pool = Pool::new(1).unwrap();
                let group = [0, 1].map(|at| RowsOf {
                    table: &grouped[at],
                    offsets: &known[at],
                    inverse: &[3, 2, 1, 0],
                    bags: None,
                });
                for _ in 0..2 {
                    let mut rows = [9.0; 2 * 4 * DIM];
                    Table::embed_side_by_side(&pool, &group, &mut rows).unwrap();
                    for (key, row) in [4, 3, 2, 1].into_iter().zip(rows.chunks_exact(2 * DIM)) {
                        assert_eq!(row, [first(key); 2].concat());
                    }
                }
            }),
        ];
        threads.into_iter().for_each(|one| one.join().unwrap());
        for table in &tables {
            let tier = table.stats().tier.unwrap();
            assert!(
                tier.rows_on_disk > 0 && tier.rows_in_memory <= 6,
                "{tier:?}"
            );
            assert_eq!(tier.rows_on_disk + tier.rows_in_memory, table.len());
        }
        // From here on contents are replaced: offsets may be stale, and rows new.
        let clearing = Arc::clone(&tables[0]);
        let clearing = thread::spawn(move || clearing.clear());
        let pool = Pool::new(1).unwrap();
        for ids in [[1, 2, 3, 4], [5, 6, 20, 21], [22, 23, 24, 25]] {
            let batch = Ids::I64(&ids);
            let lease = tables[0].lease(&pool, batch, None, &mut [0; 4]).unwrap();
            let mut rows = [9.0; 4 * DIM];
            if tables[0].lookup(&pool, lease.offsets(), &mut rows).is_ok() {
                for (key, row) in ids.into_iter().zip(rows.chunks_exact(DIM)) {
                    assert_eq!(row, first(key));
                }
            }
        }
        clearing.join().unwrap();
        expect_nothing_left(&tables[0], &pool);
    });
}

#[test]
fn the_first_item_that_fails_gives_the_error_and_every_item_before_it_is_done() {
    try_schedules(|| {
        let pool = Pool::new(3).unwrap();
        let done = AtomicUsize::new(0);
        let error = pool.try_each(0..6_usize, |at: usize| {
            thread::yield_now();
            if at == 2 || at == 4 {
                return Err(Error::invalid("no").with("at", at));
            }
            done.fetch_or(1 << at, SeqCst);
            Ok(())
        });
        assert_eq!(error.unwrap_err().context()[0].1, "2");
        assert_eq!(done.load(SeqCst) & 0b11, 0b11);
    });
}
