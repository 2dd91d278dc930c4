//! Whole contents of tables on disk: checkpoints, deltas, restores into other splits, clearing.

use super::support::{
    batch, config, content, faulty, floats, in_memory, pool, tiered, Directory, DIM,
};
use crate::faulty::Operation;
use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{expect_error, leased, tier};
use mx_rec_kernels::{checkpoint, Ids, Kind, Pool, Table};
use std::sync::Arc;

const CAPACITY: u64 = 4000;

fn trained(table: Arc<Table>) -> Arc<Table> {
    let pool = pool();
    for step in 0..40 {
        let ids = batch(step, 120, 2500);
        let target = Target::Ids(Ids::I64(&ids));
        let grads = floats(120 * DIM, step);
        let by = optimizer(4, step as usize);
        table.apply(&pool, target, &grads, &*by).unwrap();
    }
    table
}

#[test]
fn a_checkpoint_restores_into_any_split_of_memory_and_disk() {
    let directory = Directory::new("splits");
    let pool = Pool::new(2).unwrap();
    let made = [
        trained(in_memory("split", CAPACITY)),
        trained(tiered("split", CAPACITY, 200)),
    ];
    let expected = content(&made[0]);
    assert!(content(&made[1]) == expected);
    for (at, table) in made.iter().enumerate() {
        let path = directory.0.join(format!("from_{at}"));
        let before = table.stats().tier;
        let saved = checkpoint::save(table, &pool, &path).unwrap();
        assert_eq!(saved.rows, expected.len() as u64);
        if let (Some(before), Some(after)) = (before, table.stats().tier) {
            // Each record was read once, and no row moved.
            assert_eq!(after.rows_on_disk, before.rows_on_disk);
            assert_eq!(after.misses, before.misses);
        }
        for to in [
            in_memory("split", CAPACITY),
            tiered("split", CAPACITY, 200),
            tiered("split", CAPACITY, 121),
            tiered("split", CAPACITY, 3900),
        ] {
            checkpoint::load(&to, &pool, &path).unwrap();
            assert!(content(&to) == expected);
            // And trains on, as the one that was saved.
            let ids = batch(77, 120, 2500);
            let run = |table: &Table| {
                let target = Target::Ids(Ids::I64(&ids));
                let grads = floats(120 * DIM, 9);
                let by = optimizer(4, 41);
                table.apply(&pool, target, &grads, &*by).unwrap();
                content(table)
            };
            let copy = in_memory("split", CAPACITY);
            checkpoint::load(&copy, &pool, &path).unwrap();
            assert!(run(&to) == run(&copy));
        }
        let warm = tiered("split", CAPACITY, 200);
        checkpoint::load_chain(&warm, &pool, &[&path], &|_| false).unwrap();
        let embeddings = content(&warm);
        assert_eq!(embeddings.len(), expected.len());
        assert!(embeddings
            .iter()
            .all(|(key, row)| row[..] == expected[key][..DIM]));
        // Then its rows get slots, on disk as well.
        trained(warm);
    }
}

#[test]
fn deltas_of_a_table_on_disk_hold_what_changed_wherever_it_is() {
    let directory = Directory::new("deltas");
    let pool = pool();
    let tables = [in_memory("delta", CAPACITY), tiered("delta", CAPACITY, 200)];
    for (at, table) in tables.iter().enumerate() {
        table.track_changes();
        trained(Arc::clone(table));
        let path = |name: &str| directory.0.join(format!("{name}_{at}"));
        let base = checkpoint::save(table, &pool, &path("base")).unwrap();
        let changed: Vec<i64> = (0..1000).collect();
        for ids in changed.chunks(100) {
            let target = Target::Ids(Ids::I64(ids));
            let grads = floats(100 * DIM, 3);
            let by = optimizer(4, 50);
            table.apply(&pool, target, &grads, &*by).unwrap();
        }
        table.remove(Ids::I64(&[5, 7])).unwrap();
        let delta = checkpoint::save_delta(table, &pool, &path("delta"), base.epoch, 0).unwrap();
        assert_eq!((delta.rows, delta.removed), (998, 2), "{at}");
        let to = tiered("delta", CAPACITY, 150);
        let chain = [path("base"), path("delta")];
        let chain: Vec<_> = chain.iter().map(|path| &**path).collect();
        checkpoint::load_chain(&to, &pool, &chain, &|_| true).unwrap();
        assert!(content(&to) == content(table));
    }
    assert!(content(&tables[0]) == content(&tables[1]));
}

#[test]
fn a_save_that_meets_a_damaged_record_fails_and_leaves_the_one_before() {
    let directory = Directory::new("damaged");
    let (pool, (table, faults)) = (pool(), faulty("damaged", CAPACITY, 200));
    trained(Arc::clone(&table));
    let path = directory.0.join("table");
    checkpoint::save(&table, &pool, &path).unwrap();
    let rows = content(&table);
    // Some record of them is live.
    let failed = (0..200).find_map(|at| {
        let byte = at * 4099;
        faults.flip(0, byte, 1).unwrap();
        let saved = checkpoint::save(&table, &pool, &path);
        faults.flip(0, byte, 1).unwrap();
        saved.err()
    });
    let error = failed.unwrap();
    expect_error(
        &error,
        Kind::DataLoss,
        &["table=damaged", "key=", "file=", "offset="],
    );
    let copy = in_memory("damaged", CAPACITY);
    checkpoint::load(&copy, &pool, &path).unwrap();
    assert!(content(&copy) == rows);
}

#[test]
fn a_restore_that_finds_no_space_leaves_the_table_as_it_was() {
    let directory = Directory::new("no-space");
    let pool = pool();
    let path = directory.0.join("table");
    checkpoint::save(&trained(in_memory("full", CAPACITY)), &pool, &path).unwrap();
    let (table, faults) = faulty("full", CAPACITY, 200);
    let ids: Vec<i64> = (5000..5200).collect();
    leased(&table, &pool, &ids);
    let before = content(&table);
    for operation in [Operation::Reserve, Operation::Write] {
        let cause = std::io::ErrorKind::StorageFull;
        faults.fail(operation, None, (1, u64::MAX), cause);
        let error = checkpoint::load(&table, &pool, &path).unwrap_err();
        expect_error(&error, Kind::ResourceExhausted, &["table=full"]);
        faults.heal();
        assert!(content(&table) == before);
    }
    checkpoint::load(&table, &pool, &path).unwrap();
    assert_eq!(table.len(), content(&table).len() as u64);
}

#[test]
fn a_cleared_table_begins_again_on_the_same_disk() {
    let (pool, table) = (pool(), tiered("clear", CAPACITY, 200));
    let fresh = content(&trained(in_memory("clear", CAPACITY)));
    for _ in 0..3 {
        trained(Arc::clone(&table));
        assert!(content(&table) == fresh);
        let (ids, mut inverse) = (batch(3, 100, 2500), vec![0; 100]);
        let ids = Ids::I64(&ids);
        let lease = table.lease(&pool, ids, None, &mut inverse).unwrap();
        assert_eq!(table.clear(), fresh.len() as u64);
        let mut row = vec![0.0; lease.offsets().len() * DIM];
        let error = table.lookup(&pool, lease.offsets(), &mut row).unwrap_err();
        assert_eq!(error.kind(), Kind::Aborted);
        let tier = table.stats().tier.unwrap();
        assert_eq!((tier.rows_in_memory, tier.rows_on_disk), (0, 0));
    }
}

#[test]
fn contents_are_replaced_beside_steps_whose_rows_come_from_disk() {
    let directory = Directory::new("beside");
    let path = directory.0.join("table");
    let table = trained(tiered("beside", CAPACITY, 300));
    checkpoint::save(&table, &pool(), &path).unwrap();
    let known: Vec<i64> = content(&table).into_keys().collect();
    std::thread::scope(|scope| {
        let (table, path, known) = (&table, &path, &known);
        let steps = [1, 2].map(|thread| {
            scope.spawn(move || {
                let pool = Pool::new(thread).unwrap();
                let mut done = 0;
                for seed in 0..150 {
                    let ids: Vec<i64> = batch(seed * 2 + thread as u64, 90, known.len() as i64)
                        .into_iter()
                        .map(|at| usize::try_from(at).map_or(-1, |at| known[at]))
                        .collect();
                    let (lease, inverse) = leased(table, &pool, &ids);
                    let mut rows = vec![0.0; 90 * DIM];
                    let read = table.embed(&pool, lease.offsets(), &inverse, &mut rows);
                    match read {
                        Ok(()) => done += 1,
                        Err(error) => assert_eq!(error.kind(), Kind::Aborted, "{error}"),
                    }
                }
                done
            })
        });
        scope.spawn(move || {
            let pool = pool();
            for at in 0..30 {
                match at % 3 {
                    0 => drop(table.clear()),
                    _ => drop(checkpoint::load(table, &pool, path).unwrap()),
                }
            }
        });
        let done = steps.map(|thread| thread.join().unwrap());
        assert!(done.iter().all(|&done| done > 20), "{done:?}");
    });
    checkpoint::load(&table, &pool(), &path).unwrap();
    assert!(content(&table).len() == known.len());
}

#[test]
fn several_directories_share_the_rows() {
    let (one, other) = (Directory::new("one"), Directory::new("other"));
    let tier = tier(200, vec![one.0.clone(), other.0.clone()]);
    let table = Table::tiered(config("both", CAPACITY), &tier).unwrap();
    let memory = trained(in_memory("both", CAPACITY));
    assert!(content(&trained(Arc::new(table))) == content(&memory));
}
