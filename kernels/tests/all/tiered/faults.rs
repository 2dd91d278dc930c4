//! What a table makes of disks that fail: an error that says which, nothing changed, and a table
//! that goes on when the disk does.

use super::support::{batch, bits, config, content, faulty, floats, pool, tiered, DIM};
use crate::faulty::{Faulty, Operation};
use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{applied, expect_error, found_rows, push_of, tier};
use mx_rec_kernels::tier::Files;
use mx_rec_kernels::{Absent, Ids, Kind, Lease, Pool, Result, Table};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

const RAM_ROWS: u64 = 100;
const KEYS: i64 = 1000;

/// A table with 1000 keys, of which 100 are in memory, with the slots of an optimizer.
fn filled() -> (Arc<Table>, Faulty) {
    let (pool, (table, faults)) = (pool(), faulty("faulty", 2000, RAM_ROWS));
    for start in (0..KEYS).step_by(100) {
        let ids: Vec<i64> = (start..start + 100).collect();
        let target = Target::Ids(Ids::I64(&ids));
        let grads = floats(100 * DIM, start as u64);
        applied(&table, &pool, target, &grads, &*optimizer(4, 0));
    }
    (table, faults)
}

fn lease(table: &Arc<Table>, pool: &Pool, keys: std::ops::Range<i64>) -> Result<Lease> {
    let ids: Vec<i64> = keys.collect();
    let mut inverse = vec![0; ids.len()];
    table.lease(pool, Ids::I64(&ids), None, &mut inverse)
}

/// Everything that a step may do, each with rows that are on disk.
fn step(table: &Arc<Table>, pool: &Pool, copies: &[i64], which: usize) -> Result<()> {
    let grads = floats(copies.len() * DIM, 1);
    let mut rows = vec![0.0; copies.len() * DIM];
    let ids: Vec<i64> = (0..60).collect();
    match which {
        0 => lease(table, pool, 0..60).map(drop),
        1 => table.lookup(pool, copies, &mut rows),
        2 => {
            let target = Target::Offsets(copies);
            let adam = optimizer(4, 0);
            table.apply(pool, target, &grads, &*adam).map(drop)
        }
        3 => {
            let target = Target::Ids(Ids::I64(&ids));
            let grads = floats(60 * DIM, 1);
            table
                .apply(pool, target, &grads, &*optimizer(4, 0))
                .map(drop)
        }
        4 => table.batch_rows(copies).map(drop),
        // Half of the keys are new.
        5 => lease(table, pool, 970..1030).map(drop),
        _ => table.assign(pool, Ids::I64(&ids), &floats(60 * DIM, 4)),
    }
}

fn copies(table: &Table, pool: &Pool) -> Vec<i64> {
    let ids: Vec<i64> = (0..60).collect();
    let mut inverse = vec![0; 60];
    table
        .id_offset(pool, Ids::I64(&ids), false, None, &mut inverse)
        .unwrap()
}

#[test]
fn a_full_disk_fails_the_batch_changes_nothing_and_training_goes_on_after_it() {
    let pool = Pool::new(2).unwrap();
    let (table, faults) = filled();
    let offsets = copies(&table, &pool);
    let before = content(&table);
    for which in 0..7 {
        for operation in [Operation::Write, Operation::Reserve] {
            faults.fail(operation, None, (0, u64::MAX), ErrorKind::StorageFull);
        }
        let held = table.stats().tier.map(|tier| tier.rows_on_disk);
        match step(&table, &pool, &offsets, which) {
            Err(error) => {
                let directory = std::env::temp_dir().display().to_string();
                expect_error(
                    &error,
                    Kind::ResourceExhausted,
                    &["table=faulty", &directory],
                );
            }
            Ok(()) => panic!("{which} needs no space"),
        }
        // Evaluation needs none; ahead of the step it is left to the step.
        let _row = found_rows(&table, &pool, &[5]);
        let ids: Vec<i64> = (200..260).collect();
        drop(table.prepare(&pool, Ids::I64(&ids), None, &mut [0; 60]));
        assert_eq!(table.stats().tier.map(|tier| tier.rows_on_disk), held);
        assert!(content(&table) == before, "{which}");
        faults.heal();
    }
    for which in 0..7 {
        step(&table, &pool, &offsets, which).unwrap();
        for start in (200..900).step_by(100) {
            lease(&table, &pool, start..start + 100).unwrap();
        }
    }
    assert_eq!(table.len(), 1030);
}

#[test]
fn a_read_that_fails_or_ends_early_fails_the_batch_and_changes_nothing() {
    let pool = pool();
    let (table, faults) = filled();
    let offsets = copies(&table, &pool);
    let before = content(&table);
    for cause in [ErrorKind::Other, ErrorKind::UnexpectedEof] {
        // The rows of the keys that 5 knows are in memory.
        for which in (0..7).filter(|&which| which != 5) {
            faults.fail(Operation::Read, None, (0, u64::MAX), cause);
            let error = step(&table, &pool, &offsets, which).unwrap_err();
            assert!(matches!(error.kind(), Kind::Io | Kind::DataLoss), "{error}");
            expect_error(&error, error.kind(), &["table=faulty"]);
            let mut out = vec![0.0; 60 * DIM];
            let ids: Vec<i64> = (0..60).collect();
            let found = table.find(&pool, Ids::I64(&ids), Absent::Zeros, &mut out);
            assert!(found.is_err());
            assert!(table.export().is_err());
            faults.heal();
            assert!(content(&table) == before, "{which}");
        }
    }
    step(&table, &pool, &offsets, 2).unwrap();
    assert!(content(&table) != before);
}

#[test]
fn a_flipped_bit_is_data_loss_with_the_key_and_the_place_and_never_a_new_row() {
    let pool = pool();
    let (table, faults) = filled();
    let before = content(&table);
    // Some byte of some record: rows that went first lie in front.
    faults.flip(0, 1000, 3).unwrap();
    let mut lost = Vec::new();
    for key in 0..KEYS {
        let mut row = [0.0; DIM];
        let found = table.find(&pool, Ids::I64(&[key]), Absent::Zeros, &mut row);
        match found {
            Ok(()) => assert_eq!(bits(&row), before[&key][..DIM], "{key}"),
            Err(error) => {
                let (text, key) = (format!("key={key}"), key);
                expect_error(
                    &error,
                    Kind::DataLoss,
                    &["table=faulty", &text, "file=", "offset="],
                );
                lost.push(key);
            }
        }
    }
    assert_eq!(lost.len(), 1, "{lost:?}");
    let key = lost[0];
    for _ in 0..2 {
        let error = lease(&table, &pool, key..key + 1).unwrap_err();
        expect_error(&error, Kind::DataLoss, &[&format!("key={key}")]);
    }
    let error = table.export().unwrap_err();
    expect_error(
        &error,
        Kind::DataLoss,
        &["table=faulty", &format!("key={key}")],
    );
    assert_eq!(table.len(), KEYS as u64);
    // Whoever gives it up goes on.
    assert_eq!(table.remove(Ids::I64(&[key])).unwrap(), 1);
    let mut left = before;
    left.remove(&key);
    assert!(content(&table) == left);
}

#[test]
fn directories_that_cannot_be_used_are_refused_when_the_table_is_made() {
    let missing = std::env::temp_dir().join("mx_rec-no-such-directory");
    let file = std::env::temp_dir().join(format!("mx_rec-a-file-{}", std::process::id()));
    std::fs::write(&file, b"").unwrap();
    for directory in [&missing, &file] {
        let tier = tier(10, vec![directory.clone()]);
        let error = Table::tiered(config("nowhere", 100), &tier).unwrap_err();
        let path = directory.display().to_string();
        expect_error(&error, error.kind(), &[&path, "table=nowhere"]);
    }
    std::fs::remove_file(&file).unwrap();
    for (ram_rows, directories) in [(0, vec![std::env::temp_dir()]), (1, Vec::new())] {
        let tier = tier(ram_rows, directories);
        let error = Table::tiered(config("nowhere", 100), &tier).unwrap_err();
        expect_error(&error, Kind::InvalidArgument, &["table=nowhere"]);
    }
}

#[test]
fn a_directory_that_vanishes_takes_no_row_with_it() {
    let path = std::env::temp_dir().join(format!("mx_rec-vanishes-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let files = Files::open(std::slice::from_ref(&path)).unwrap();
    let table = Table::tiered_on(config("gone", 2000), 50, Arc::new(files)).unwrap();
    let (table, pool) = (Arc::new(table), pool());
    for start in (0..500).step_by(50) {
        lease(&table, &pool, start..start + 50).unwrap();
    }
    let before = content(&table);
    std::fs::remove_dir_all(&path).unwrap();
    // The files are open; only new ones cannot be made.
    assert!(content(&table) == before);
    lease(&table, &pool, 0..50).unwrap();
    lease(&table, &pool, 480..530).unwrap();
    let error = table
        .load(&pool, &[], &mut |loading| {
            loading.push(&[1], &[0.0; DIM], &[])
        })
        .unwrap_err();
    expect_error(
        &error,
        error.kind(),
        &["table=gone", &path.display().to_string()],
    );
    assert_eq!(table.len(), 530);
}

#[test]
fn faults_at_any_moment_beside_other_steps_lose_no_update() {
    let (table, faults) = faulty("beside", 4000, 400);
    let over = AtomicBool::new(false);
    let steps = 150;
    let failed: u64 = std::thread::scope(|scope| {
        let (table, over) = (&table, &over);
        scope.spawn(move || {
            let mut at = 0;
            while !over.load(SeqCst) {
                at += 1;
                let operation = [Operation::Write, Operation::Read, Operation::Reserve][at % 3];
                faults.fail(operation, None, (0, 1), ErrorKind::Other);
                std::thread::sleep(std::time::Duration::from_micros(300));
                faults.heal();
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let trained = [0, 1].map(|thread| {
            scope.spawn(move || {
                let (pool, mut failed) = (Pool::new(1 + thread).unwrap(), 0);
                let sgd = mx_rec_kernels::Sgd::new(1.0).unwrap();
                for seed in 0..steps {
                    // Keys of this thread: each row tells how often it was updated.
                    let mut ids = batch(seed, 100, 1000);
                    ids.sort_unstable();
                    ids.dedup();
                    ids.retain(|&id| id != -1 && id != 3);
                    ids.iter_mut().for_each(|id| *id = *id * 2 + thread as i64);
                    ids.retain(|&id| id != 3);
                    let target = Target::Ids(Ids::I64(&ids));
                    let grads = vec![1.0; ids.len() * DIM];
                    while table.apply(&pool, target, &grads, &sgd).is_err() {
                        failed += 1;
                    }
                }
                failed
            })
        });
        let failed = trained.map(|thread| thread.join().unwrap());
        over.store(true, SeqCst);
        failed.iter().sum()
    });
    println!("{failed} steps failed and were run again");
    let memory = super::support::in_memory("beside", 4000);
    let (pool, sgd) = (pool(), mx_rec_kernels::Sgd::new(1.0).unwrap());
    for thread in 0..2 {
        for seed in 0..steps {
            let mut ids = batch(seed, 100, 1000);
            ids.sort_unstable();
            ids.dedup();
            ids.retain(|&id| id != -1 && id != 3);
            ids.iter_mut().for_each(|id| *id = *id * 2 + thread);
            ids.retain(|&id| id != 3);
            let target = Target::Ids(Ids::I64(&ids));
            let grads = vec![1.0; ids.len() * DIM];
            memory.apply(&pool, target, &grads, &sgd).unwrap();
        }
    }
    assert!(content(&table) == content(&memory));
}

#[test]
fn new_slots_that_find_no_space_fail_the_update_and_leave_the_rows_as_they_were() {
    let pool = pool();
    let (table, faults) = faulty("wider", 2000, RAM_ROWS);
    for start in (0..KEYS).step_by(100) {
        lease(&table, &pool, start..start + 100).unwrap();
    }
    let before = content(&table);
    let ids: Vec<i64> = (900..950).collect();
    let grads = floats(50 * DIM, 2);
    let adam = optimizer(4, 0);
    for operation in [Operation::Write, Operation::Reserve, Operation::Read] {
        faults.fail(operation, None, (0, u64::MAX), ErrorKind::StorageFull);
        let target = Target::Ids(Ids::I64(&ids));
        let error = table.apply(&pool, target, &grads, &*adam).unwrap_err();
        expect_error(&error, error.kind(), &["table=wider"]);
        faults.heal();
        assert!(content(&table) == before && table.slots().is_empty());
    }
    let target = Target::Ids(Ids::I64(&ids));
    table.apply(&pool, target, &grads, &*adam).unwrap();
    assert_eq!(table.slots().len(), 2);
    let after = content(&table);
    for (key, row) in before {
        assert_eq!(after[&key].len(), 3 * DIM);
        if !(900..950).contains(&key) {
            assert_eq!(after[&key][..DIM], row, "{key}");
            assert!(after[&key][DIM..].iter().all(|&slot| slot == 0), "{key}");
        }
    }
}

#[test]
fn a_push_whose_rows_cannot_be_read_changes_no_table() {
    let pool = Pool::new(2).unwrap();
    let (first, _) = filled();
    let (second, faults) = filled();
    let tables = [first, second];
    let before = tables.each_ref().map(|table| content(table));
    let keys: Vec<i64> = (0..60).collect();
    let grads = floats(60 * DIM, 3);
    let adam = optimizer(4, 0);
    let pushes = tables
        .each_ref()
        .map(|table| push_of(table, &keys, &grads, &*adam));
    faults.fail(Operation::Read, None, (0, u64::MAX), ErrorKind::Other);
    let error = Table::push_many(&pool, &pushes).unwrap_err();
    expect_error(&error, Kind::Io, &["table=faulty"]);
    faults.heal();
    assert!(tables.each_ref().map(|table| content(table)) == before);
    let pushed = Table::push_many(&pool, &pushes).unwrap();
    // Key 3 is frozen.
    assert_eq!((pushed.updated, pushed.dropped), (118, 0));
    assert!(content(&tables[0]) == content(&tables[1]));
}

#[test]
fn a_table_on_disk_leaves_no_file() {
    let path = std::env::temp_dir().join(format!("mx_rec-clean-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let tier = tier(20, vec![path.clone()]);
    let table = Arc::new(Table::tiered(config("clean", 200), &tier).unwrap());
    for start in (0..200).step_by(20) {
        lease(&table, &pool(), start..start + 20).unwrap();
    }
    assert_eq!(table.stats().tier.unwrap().rows_on_disk, 180);
    drop(table);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    std::fs::remove_dir(&path).unwrap();
    drop(tiered("another", 10, 5));
}
