//! The moment at which a table's first row goes to disk: until then it is a table in memory, and
//! nobody who is at work notices that it is one no longer.

use super::support::{batch, content, faulty, floats, in_memory, pool, tiered, Directory, DIM};
use crate::faulty::Operation;
use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{applied, gradients, ids_of, rows_of};
use mx_rec_kernels::{checkpoint, Columns, Ids, Kind, LookupGradients, Pool, RowsOf, Sgd, Table};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

const CAPACITY: u64 = 4000;

fn sgd() -> Sgd {
    Sgd::new(1.0).unwrap()
}

/// Adds one to the rows of keys, and makes them where there are none.
fn count(table: &Table, pool: &Pool, keys: &[i64]) {
    let grads = vec![-1.0; keys.len() * DIM];
    let target = Target::Ids(Ids::I64(keys));
    table.apply(pool, target, &grads, &sgd()).unwrap();
}

fn fill(table: &Table, keys: Range<i64>) {
    let keys: Vec<i64> = keys.collect();
    keys.chunks(50).for_each(|keys| count(table, &pool(), keys));
}

fn on_disk(table: &Table) -> u64 {
    table.stats().tier.unwrap().rows_on_disk
}

#[test]
fn a_table_that_fits_keeps_nothing_for_its_tier() {
    let (disk, memory) = (tiered("fits", CAPACITY, 3000), in_memory("fits", CAPACITY));
    for table in [&disk, &memory] {
        fill(table, 0..3000);
    }
    assert_eq!(disk.stats().tier.unwrap().rows_in_memory, 3000);
    let [disk, memory] = [&disk, &memory].map(|table| table.memory());
    assert_eq!(disk.rows_bytes, memory.rows_bytes);
    assert!(
        disk.other_bytes < memory.other_bytes + 1000,
        "{disk:?} {memory:?}"
    );
}

#[test]
fn the_first_rows_go_to_disk_beside_leases_of_every_kind() {
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        let (disk, memory) = (tiered("kinds", CAPACITY, 300), in_memory("kinds", CAPACITY));
        let results = [&disk, &memory].map(|table| {
            fill(table, 0..260);
            // Free rows, and a row that is a lease's alone.
            let kept: Vec<i64> = (40..60).collect();
            let ids = Ids::I64(&kept);
            let lease = table.lease(&pool, ids, None, &mut [0; 20]).unwrap();
            table
                .remove(Ids::I64(&(30..45).collect::<Vec<_>>()))
                .unwrap();
            // Batches ahead, with rows that are new and rows that are not.
            let mut ahead: Vec<_> = [(100..140), (130..150), (1000..1020)]
                .into_iter()
                .map(|keys| {
                    let keys: Vec<i64> = keys.collect();
                    let mut inverse = vec![0; keys.len()];
                    let lease = table.prepare(&pool, Ids::I64(&keys), None, &mut inverse);
                    assert_eq!(lease.offsets().len(), keys.len());
                    (keys, inverse, lease)
                })
                .collect();
            if table.stats().tier.is_some() {
                assert_eq!(on_disk(table), 0);
            }
            // Slots that came late, and more rows than memory has.
            count(table, &pool, &(500..550).collect::<Vec<_>>());
            let grads = floats(50 * DIM, 1);
            let new: Vec<i64> = (600..650).collect();
            let target = Target::Ids(Ids::I64(&new));
            applied(table, &pool, target, &grads, &*optimizer(4, 0));
            if table.stats().tier.is_some() {
                assert!(on_disk(table) > 0);
                assert_eq!(table.stats().tier.unwrap().given_up, 0);
            }
            let mut read = vec![0.0; 20 * DIM];
            table.lookup(&pool, lease.offsets(), &mut read).unwrap();
            drop(lease);
            for (keys, inverse, lease) in ahead.drain(..) {
                let ids = Ids::I64(&keys);
                let offsets = lease.offsets();
                assert!(table.claim(&pool, ids, offsets, None, &inverse).unwrap());
                let grads = floats(keys.len() * DIM, 2);
                let target = Target::Offsets(offsets);
                applied(table, &pool, target, &grads, &*optimizer(4, 1));
            }
            fill(table, 0..900);
            (read, content(table))
        });
        assert!(results[0] == results[1], "{threads} threads");
    }
}

#[test]
fn the_rows_of_batches_ahead_stay_in_memory_when_others_go() {
    let (pool, table) = (pool(), tiered("ahead", CAPACITY, 200));
    fill(&table, 0..150);
    let (keys, mut inverse) = ((0..40).chain(1000..1010).collect::<Vec<i64>>(), vec![0; 50]);
    let lease = table.prepare(&pool, Ids::I64(&keys), None, &mut inverse);
    fill(&table, 300..400);
    assert!(on_disk(&table) > 0);
    let before = table.stats().tier.unwrap();
    let offsets = lease.offsets();
    assert!(table
        .claim(&pool, Ids::I64(&keys), offsets, None, &inverse)
        .unwrap());
    table
        .embed(&pool, offsets, &inverse, &mut vec![0.0; 50 * DIM])
        .unwrap();
    let after = table.stats().tier.unwrap();
    assert_eq!(
        (after.misses, after.wait_nanoseconds),
        (before.misses, before.wait_nanoseconds)
    );
}

#[test]
fn a_table_that_is_emptied_or_restored_is_one_in_memory_again_and_its_rows_go_again() {
    let directory = Directory::new("again");
    let path = directory.0.join("table");
    let table = tiered("again", CAPACITY, 300);
    fill(&table, 0..250);
    checkpoint::save(&table, &pool(), &path).unwrap();
    let kept = content(&table);
    let replacements: [fn(&Table, &std::path::Path); 3] = [
        |table, _| assert!(table.clear() > 0),
        |table, path| assert!(checkpoint::load(table, &pool(), path).unwrap() > 0),
        |table, _| {
            let keys: Vec<i64> = content(table).into_keys().collect();
            table.remove(Ids::I64(&keys)).unwrap();
        },
    ];
    for replace in replacements {
        fill(&table, 0..900);
        assert!(on_disk(&table) > 0);
        replace(&table, &path);
        assert_eq!(on_disk(&table), 0);
        checkpoint::load(&table, &pool(), &path).unwrap();
        assert!(content(&table) == kept);
        let hits = table.stats().tier.unwrap().hits;
        fill(&table, 200..300);
        assert_eq!(on_disk(&table), 0);
        // Nobody has to know which rows are in use.
        assert_eq!(table.stats().tier.unwrap().hits, hits);
        checkpoint::load(&table, &pool(), &path).unwrap();
    }
    let memory = in_memory("again", CAPACITY);
    checkpoint::load(&memory, &pool(), &path).unwrap();
    for table in [&table, &memory] {
        fill(table, 200..900);
    }
    // Two loads: one content brought more rows than memory holds, the other is larger still.
    checkpoint::save(&memory, &pool(), &directory.0.join("large")).unwrap();
    let small = tiered("again", CAPACITY, 60);
    fill(&small, 0..50);
    checkpoint::load(&small, &pool(), &directory.0.join("large")).unwrap();
    for table in [&table, &memory, &small] {
        fill(table, 100..1200);
    }
    assert!(content(&table) == content(&memory));
    assert!(content(&small) == content(&memory));
}

#[test]
fn a_disk_that_is_full_when_the_first_row_goes_fails_the_batch_alone() {
    let (table, faults) = faulty("full", CAPACITY, 200);
    fill(&table, 0..190);
    for operation in [Operation::Reserve, Operation::Write] {
        let before = content(&table);
        faults.fail(operation, None, (0, 1), ErrorKind::StorageFull);
        let new: Vec<i64> = (500..550).collect();
        let lease = table.lease(&pool(), Ids::I64(&new), None, &mut [0; 50]);
        assert_eq!(lease.map(drop).unwrap_err().kind(), Kind::ResourceExhausted);
        faults.heal();
        assert!(content(&table) == before);
        assert_eq!(on_disk(&table), 0);
        // What is there is trained on.
        count(&table, &pool(), &[1, 2]);
        table
            .apply(
                &pool(),
                Target::Ids(Ids::I64(&[1, 2])),
                &[1.0; 2 * DIM],
                &sgd(),
            )
            .unwrap();
    }
    fill(&table, 500..900);
    let memory = in_memory("full", CAPACITY);
    fill(&memory, 0..190);
    fill(&memory, 500..900);
    assert!(content(&table).len() == content(&memory).len());
}

/// Steps, lookups, saves and groups on tables that become larger than their memory meanwhile.
#[test]
fn a_table_grows_out_of_memory_beside_steps_saves_and_groups_of_other_threads() {
    let directory = Directory::new("grows");
    for round in 0..12 {
        let tables = ["one", "other"].map(|name| tiered(name, CAPACITY, 700));
        for table in &tables {
            start(table);
        }
        let over = AtomicBool::new(false);
        let groups = std::thread::scope(|scope| {
            let (tables, over, directory) = (&tables, &over, &directory);
            // Rows beyond what memory holds.
            let growing = scope.spawn(move || {
                for start in (600..1500).step_by(25) {
                    for table in tables {
                        fill(table, start..start + 25);
                    }
                }
            });
            scope.spawn(move || {
                let path = directory.0.join(format!("save_{round}"));
                while !over.load(SeqCst) {
                    checkpoint::save(&tables[0], &pool(), &path).unwrap();
                    let copy = in_memory("one", CAPACITY);
                    checkpoint::load(&copy, &pool(), &path).unwrap();
                    let rows = content(&copy).len();
                    assert!((600..=1500).contains(&rows), "{rows}");
                    std::fs::remove_dir_all(&path).unwrap();
                }
            });
            let steps = [0, 1].map(|thread| {
                scope.spawn(move || {
                    let (pool, mut done) = (Pool::new(1).unwrap(), 0);
                    while !over.load(SeqCst) {
                        group_step(&pool, tables, done * 2 + thread);
                        done += 1;
                    }
                    done
                })
            });
            growing.join().unwrap();
            over.store(true, SeqCst);
            steps.map(|thread| thread.join().unwrap())
        });
        let memory = ["one", "other"].map(|name| in_memory(name, CAPACITY));
        for table in &memory {
            start(table);
        }
        for table in &memory {
            fill(table, 600..1500);
        }
        for (thread, &done) in groups.iter().enumerate() {
            (0..done).for_each(|at| group_step(&pool(), &memory, at * 2 + thread as u64));
        }
        for (table, memory) in tables.iter().zip(&memory) {
            assert!(on_disk(table) > 0);
            assert!(content(table) == content(memory));
        }
    }
}

/// Rows of whole numbers, whose sums are the same in any order.
fn start(table: &Table) {
    let keys: Vec<i64> = (0..600).collect();
    let rows = vec![0.0; 600 * DIM];
    table.assign(&pool(), Ids::I64(&keys), &rows).unwrap();
}

/// Looks batches up in two tables at once and adds one to their rows, in any order with others.
fn group_step(pool: &Pool, tables: &[Arc<Table>; 2], seed: u64) {
    const N: usize = 60;
    let batches = [0, 1].map(|at| batch(seed * 2 + at, N, 600));
    let mut inverses = vec![vec![0; N]; 2];
    let group = tables.iter().zip(&batches).zip(&mut inverses);
    let group = group.map(|((table, ids), inverse)| ids_of(table, ids, inverse));
    let leases = Table::lease_many(pool, group.collect(), None).unwrap();
    // Leases end before their rows are read: nothing but the verbs keeps them in memory.
    let offsets: Vec<Vec<i64>> = leases
        .iter()
        .map(|lease| lease.offsets().to_vec())
        .collect();
    drop(leases);
    let lookups: Vec<RowsOf<'_>> = (0..2)
        .map(|at| rows_of(&tables[at], &offsets[at], &inverses[at]))
        .collect();
    let mut side_by_side = vec![0.0; 2 * N * DIM];
    Table::embed_side_by_side(pool, &lookups, &mut side_by_side).unwrap();
    let grads = vec![-1.0; N * DIM];
    let updates: Vec<(&Table, LookupGradients<'_>)> = lookups
        .iter()
        .map(|lookup| {
            let columns = gradients(
                lookup.offsets,
                lookup.inverse,
                Columns::of(&grads, DIM, 0, DIM).unwrap(),
            );
            (lookup.table, columns)
        })
        .collect();
    Table::apply_lookups_many(pool, &updates, &sgd()).unwrap();
}
