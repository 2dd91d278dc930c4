//! Adam moves all rows in each step: rows on disk wait there, to the bits of rows in memory.

use super::support::{
    batch, bits, content, faulty, floats, in_memory, pool, tiered, Directory, DIM,
};
use crate::faulty::Operation;
use crate::pooled::find_pooled;
use crate::singles::{Singles as _, Target};
use crate::support::{applied, expect_error, field_update, found_rows, known_offsets, push_of};
use mx_rec_kernels::{
    checkpoint, Absent, Adam, Bags, Field, Ids, Kind, LazyAdam, Pool, RowOptimizer, Sgd, SlotSpec,
    Table, TierStats,
};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

const KEYS: i64 = 900;
const CAPACITY: u64 = 1200;
const RAM_ROWS: u64 = 90;
const BATCH: usize = 25;

/// Step `step`, from 0, with a rate that changes and with one of several betas.
fn adam(step: usize, beta1: f32) -> Adam {
    let power = |beta: f32| f64::from(beta).powi(step as i32 + 1) as f32;
    let lr = 0.01 + 0.005 * (step % 7) as f32;
    Adam::new(lr, beta1, 0.999, 1e-8, power(beta1), power(0.999)).unwrap()
}

fn apply(table: &Table, pool: &Pool, keys: &[i64], seed: u64, step: &dyn RowOptimizer) {
    let grads = floats(keys.len() * DIM, seed);
    applied(table, pool, Target::Ids(Ids::I64(keys)), &grads, step);
}

fn stats(table: &Table) -> TierStats {
    table.stats().tier.unwrap()
}

/// Makes rows for all keys, with moments.
fn fill(table: &Table, pool: &Pool) {
    for start in (0..KEYS).step_by(30) {
        let keys: Vec<i64> = (start..start + 30).collect();
        apply(table, pool, &keys, start as u64, &adam(0, 0.9));
    }
}

/// What evaluation finds of all keys, and of bags of two each.
fn found(table: &Table, pool: &Pool) -> [Vec<u32>; 2] {
    let keys: Vec<i64> = (-1..KEYS + 1).collect();
    let rows = found_rows(table, pool, &keys);
    let ends: Vec<i64> = (1..=keys.len() as i64 / 2).map(|bag| bag * 2).collect();
    let bags = Bags {
        ends: &ends,
        ..Bags::default()
    };
    let mut pooled = vec![0.0; ends.len() * DIM];
    find_pooled(
        table,
        pool,
        Ids::I64(&keys),
        &bags,
        Absent::Zeros,
        &mut pooled,
    )
    .unwrap();
    [bits(&rows), bits(&pooled)]
}

/// An update that is computed outside of the table.
fn write_fields(table: &Table, pool: &Pool, keys: &[i64]) -> Vec<u32> {
    let (offsets, _inverse) = known_offsets(table, pool, keys);
    let moment = Field::Slot(SlotSpec {
        name: "LazyAdam_momentum".into(),
        initial: 0.0,
        per_row: false,
    });
    let mut old = [vec![0.0; keys.len() * DIM], vec![0.0; keys.len() * DIM]];
    {
        let rows = table.batch_rows(&offsets).unwrap();
        rows.read(pool, &Field::Embedding, &mut old[0]).unwrap();
        rows.read(pool, &moment, &mut old[1]).unwrap();
    }
    let new = old
        .each_ref()
        .map(|old| old.iter().map(|one| one * 1.5 + 0.1));
    let new = new.map(|values| values.collect::<Vec<f32>>());
    let update = |field, at: usize| field_update(field, &old[at], &new[at]);
    let updates = [update(Field::Embedding, 0), update(moment, 1)];
    table.write_fields(pool, &offsets, &updates, false).unwrap();
    bits(&old.concat())
}

#[test]
fn rows_on_disk_have_the_bits_of_rows_in_memory_through_saves_other_betas_and_other_optimizers() {
    let one = pool();
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        let memory = in_memory("memory", CAPACITY);
        let disk = tiered("disk", CAPACITY, RAM_ROWS);
        fill(&memory, &one);
        fill(&disk, &pool);
        for step in 1..300_usize {
            let keys = match step % 11 {
                5 => Vec::new(),
                _ => batch(step as u64, BATCH, KEYS),
            };
            // Two runs of many steps with one beta each, and one with another in each step.
            let beta1 = match step {
                0..120 => 0.9,
                120..180 => 0.5 + 0.004 * (step % 100) as f32,
                _ => 0.8,
            };
            let (lazy, sgd) = (
                LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.5, 0.9).unwrap(),
                Sgd::new(0.1).unwrap(),
            );
            let moves = adam(step, beta1);
            let optimizer: &dyn RowOptimizer = match step % 13 {
                4 => &lazy,
                8 => &sgd,
                _ => &moves,
            };
            for (table, pool) in [(&memory, &one), (&disk, &pool)] {
                apply(table, pool, &keys, step as u64, optimizer);
            }
            if step % 40 == 20 {
                assert_eq!(found(&disk, &pool), found(&memory, &one), "{step}");
            }
            if step % 9 == 0 {
                // A whole look ends a span, and all rows in memory catch up.
                assert!(content(&disk) == content(&memory), "{step}");
                // One that finds rows that came from disk since.
                let ids: Vec<i64> = (step as i64..step as i64 + 20).collect();
                for table in [&disk, &memory] {
                    let lease = table.lease(&pool, Ids::I64(&ids), None, &mut [0; 20]);
                    drop(lease.unwrap());
                }
                assert!(content(&disk) == content(&memory), "{step}");
            }
            if step % 150 == 100 {
                let keys = [7, 700, 301];
                let read = write_fields(&memory, &one, &keys);
                assert_eq!(write_fields(&disk, &pool, &keys), read);
            }
            if step % 200 == 150 {
                // They come back as new ones.
                let gone: Vec<i64> = (step as i64..step as i64 + 60).collect();
                for table in [&memory, &disk] {
                    table.remove(Ids::I64(&gone)).unwrap();
                    apply(table, &one, &gone[..30], 5, &adam(step, beta1));
                }
            }
        }
        assert!(content(&disk) == content(&memory));
        let tier = stats(&disk);
        assert!(tier.rows_on_disk > 7 * tier.rows_in_memory, "{tier:?}");
    }
}

#[test]
fn rows_wait_on_disk_through_thousands_of_steps() {
    let pool = pool();
    let (memory, disk) = (
        in_memory("memory", CAPACITY),
        tiered("disk", CAPACITY, RAM_ROWS),
    );
    for table in [&memory, &disk] {
        fill(table, &pool);
    }
    // Without saves a span has 2,048 steps.
    for step in 1..5000 {
        let keys = batch(step as u64 % 40, 3, 50);
        for table in [&memory, &disk] {
            apply(table, &pool, &keys, step as u64, &adam(step, 0.9));
        }
        if step % 1500 == 0 {
            assert_eq!(found(&disk, &pool), found(&memory, &pool), "{step}");
        }
    }
    assert!(content(&disk) == content(&memory));
}

#[test]
fn no_row_is_read_or_written_only_to_catch_up() {
    let pool = pool();
    let traffic = |is_lazy: bool| {
        let table = tiered("disk", CAPACITY, RAM_ROWS);
        fill(&table, &pool);
        let before = stats(&table);
        for step in 1..60 {
            let keys = batch(step as u64, BATCH, KEYS);
            let lazy = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.5, 0.9).unwrap();
            match is_lazy {
                true => apply(&table, &pool, &keys, step as u64, &lazy),
                false => apply(&table, &pool, &keys, step as u64, &adam(step, 0.9)),
            }
        }
        let after = stats(&table);
        drop(table.export().unwrap());
        let saved = stats(&table);
        (
            after.misses - before.misses,
            saved.bytes_read - before.bytes_read,
            saved.bytes_written - before.bytes_written,
        )
    };
    let lazy = traffic(true);
    assert!(lazy.0 > 500, "{lazy:?}");
    assert_eq!(traffic(false), lazy);
}

/// A table whose next step of Adam lets the rows on disk catch up, which cannot wait longer.
fn at_the_end_of_waiting(table: &Table, pool: &Pool) {
    fill(table, pool);
    for step in 1..64 {
        // Other betas in each step.
        let keys = batch(step as u64, BATCH, KEYS);
        let beta1 = 0.5 + 0.005 * step as f32;
        apply(table, pool, &keys, step as u64, &adam(step, beta1));
    }
}

#[test]
fn a_disk_that_fails_while_rows_catch_up_fails_the_step_that_changes_nothing_and_can_be_run_again()
{
    let pool = pool();
    let memory = in_memory("memory", CAPACITY);
    at_the_end_of_waiting(&memory, &pool);
    for operation in [Operation::Reserve, Operation::Write, Operation::Read] {
        let (table, faults) = faulty("faulty", CAPACITY, RAM_ROWS);
        at_the_end_of_waiting(&table, &pool);
        let before = found(&table, &pool);
        let written = stats(&table).bytes_written;
        // The second one of several, so that some rows may have caught up.
        let step = adam(64, 0.3);
        let apply_none = || table.apply(&pool, Target::Offsets(&[]), &[], &step);
        faults.fail(operation, None, (0, u64::MAX), ErrorKind::StorageFull);
        for _ in 0..2 {
            let error = apply_none().unwrap_err();
            let kind = match operation {
                Operation::Read => Kind::Io,
                _ => Kind::ResourceExhausted,
            };
            expect_error(&error, kind, &["table=faulty", "file="]);
        }
        faults.heal();
        assert_eq!(found(&table, &pool), before);
        apply_none().unwrap();
        let tier = stats(&table);
        let record = (3 * DIM * 4 + 20) as u64;
        let all = tier.rows_on_disk * record;
        assert!(tier.bytes_written - written >= all * 9 / 10, "{tier:?}");
        apply(&table, &pool, &[1, 800], 9, &adam(65, 0.3));
        // Records that were written anew are in the place of the others.
        assert!(tier.bytes_on_disk < all * 2 + (1 << 18), "{tier:?}");
        if operation == Operation::Reserve {
            apply(&memory, &pool, &[], 9, &step);
            apply(&memory, &pool, &[1, 800], 9, &adam(65, 0.3));
        }
        assert!(content(&table) == content(&memory));
    }
}

#[test]
fn a_push_to_two_tables_of_which_the_disk_of_one_fails_is_a_step_of_neither() {
    let pool = pool();
    let (one, (other, faults)) = (
        tiered("one", CAPACITY, RAM_ROWS),
        faulty("other", CAPACITY, RAM_ROWS),
    );
    for table in [&one, &other] {
        at_the_end_of_waiting(table, &pool);
    }
    let before = [found(&one, &pool), found(&other, &pool)];
    let step = adam(64, 0.3);
    let push = |table| push_of(table, &[], &[], &step);
    let none = mx_rec_kernels::RowGradients {
        offsets: &[],
        grads: &[],
    };
    faults.fail(
        Operation::Write,
        None,
        (0, u64::MAX),
        ErrorKind::StorageFull,
    );
    Table::push_many(&pool, &[push(&one), push(&other)]).unwrap_err();
    Table::apply_many(&pool, &[(&one, none), (&other, none)], &step).unwrap_err();
    assert_eq!([found(&one, &pool), found(&other, &pool)], before);
    faults.heal();
    Table::push_many(&pool, &[push(&one), push(&other)]).unwrap();
    let after = [found(&one, &pool), found(&other, &pool)];
    assert_ne!(after[0], before[0]);
    assert_eq!(after[0], after[1]);
}

#[test]
fn a_checkpoint_and_a_chain_of_deltas_have_the_rows_as_they_are_now_and_go_on_with_their_bits() {
    let (pool, temp) = (Pool::new(2).unwrap(), Directory::new("adam"));
    let path = |name: &str| temp.0.join(name);
    let live = tiered("t", CAPACITY, RAM_ROWS);
    live.track_changes();
    fill(&live, &pool);
    let train = |table: &Table, steps: std::ops::Range<usize>| {
        for step in steps {
            let keys = batch(step as u64, BATCH, KEYS);
            apply(table, &pool, &keys, step as u64, &adam(step, 0.9));
        }
    };
    train(&live, 1..30);
    let mut chain = vec![path("base")];
    let mut since = checkpoint::save(&live, &pool, &chain[0]).unwrap().epoch;
    for at in 0..3 {
        train(&live, 30 + at..31 + at);
        let dir = path(&format!("delta{at}"));
        let delta = checkpoint::save_delta(&live, &pool, &dir, since, 0).unwrap();
        assert!((1..=BATCH as u64).contains(&delta.rows), "{}", delta.rows);
        since = delta.epoch;
        chain.push(dir);
    }
    // Nothing has moved since.
    let none = checkpoint::save_delta(&live, &pool, &path("none"), since, 0).unwrap();
    assert_eq!(none.rows, 0);
    let dirs: Vec<&std::path::Path> = chain.iter().map(|dir| &**dir).collect();
    let (loaded, whole, memory, chained) = (
        tiered("t", CAPACITY, RAM_ROWS),
        tiered("t", CAPACITY, RAM_ROWS / 2),
        in_memory("t", CAPACITY),
        in_memory("t", CAPACITY),
    );
    for table in [&loaded, &chained] {
        checkpoint::load_chain(table, &pool, &dirs, &|_| true).unwrap();
    }
    checkpoint::save(&live, &pool, &path("whole")).unwrap();
    // One that has steps of its own behind it.
    fill(&whole, &pool);
    for table in [&whole, &memory] {
        checkpoint::load(table, &pool, &path("whole")).unwrap();
    }
    train(&live, 33..60);
    for table in [&loaded, &whole, &memory, &chained] {
        train(table, 33..60);
        assert!(content(table) == content(&live));
    }
}

#[test]
fn readers_and_batches_ahead_beside_the_steps_change_no_bit() {
    let memory = in_memory("memory", CAPACITY);
    let disk = tiered("disk", CAPACITY, RAM_ROWS);
    let train = |table: &Arc<Table>| {
        let pool = Pool::new(2).unwrap();
        fill(table, &pool);
        for step in 1..300_usize {
            let beta1 = 0.5 + 0.0015 * (step / 2) as f32;
            let keys = batch(step as u64, BATCH, KEYS);
            apply(table, &pool, &keys, step as u64, &adam(step, beta1));
        }
    };
    train(&memory);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (disk, ends) = (&disk, &ends);
        for reader in 0..2 {
            scope.spawn(move || {
                let pool = self::pool();
                let mut seed = reader;
                while !ends.load(Ordering::Relaxed) {
                    seed += 2;
                    let keys = batch(seed, 20, KEYS);
                    let _rows = found_rows(disk, &pool, &keys);
                    drop(disk.prepare(&pool, Ids::I64(&keys), None, &mut [0; 20]));
                    if seed % 30 < 2 {
                        drop(disk.export().unwrap());
                    }
                }
            });
        }
        train(disk);
        ends.store(true, Ordering::Relaxed);
    });
    // An export ends a span: rows are rounded once more there than without it.
    let (found, expected) = (disk.export().unwrap(), memory.export().unwrap());
    let row = |table: &Table, key| {
        let row = found_rows(table, &self::pool(), std::slice::from_ref(key));
        row
    };
    assert_eq!(found.keys.len(), expected.keys.len());
    for key in &found.keys {
        for (one, other) in row(&disk, key).iter().zip(row(&memory, key)) {
            assert!(
                (one - other).abs() < 1e-5 * other.abs().max(1.0),
                "{key}: {one} {other}"
            );
        }
    }
}
