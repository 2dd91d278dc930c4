//! How much space the files of a table take, whatever its steps do.

use super::support::{batch, content, floats, in_memory, pool, tiered, DIM};
use crate::optimizers::optimizer;
use crate::singles::Target;
use crate::support::{applied, found_rows};
use mx_rec_kernels::{Ids, Pool, Table};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

const KEYS: i64 = 20_000;
const RAM_ROWS: u64 = 600;
/// A row with the two slots of its optimizer.
const RECORD: u64 = 20 + 4 * 3 * DIM as u64;
/// Records of a segment: 16 KiB hold no power of two more.
const SLOTS: u64 = 128;
/// Segments beyond the bound: one that is written, two to go on with, and a part of one.
const FEW: u64 = 4;

fn train(table: &Table, pool: &Pool, ids: &[i64], step: u64) {
    let grads = floats(ids.len() * DIM, step);
    let target = Target::Ids(Ids::I64(ids));
    applied(table, pool, target, &grads, &*optimizer(4, step as usize));
}

/// Fails if the files take more than 1.5 times what the rows on disk need, and a few segments.
fn expect_bounded(table: &Table, what: &str) {
    let tier = table.stats().tier.unwrap();
    let most = tier.rows_on_disk * RECORD * 3 / 2 + FEW * SLOTS * RECORD;
    assert!(
        tier.bytes_on_disk <= most,
        "{what}: {} rows take {} bytes, {most} at most",
        tier.rows_on_disk,
        tier.bytes_on_disk,
    );
}

/// Before: files grew to twice the live rows where time was short, and a removal gave nothing back.
#[test]
fn files_take_at_most_one_and_a_half_times_their_rows_at_every_moment() {
    let (pool, table) = (pool(), tiered("space", 2 * KEYS as u64, RAM_ROWS));
    let fill = |from: i64, to: i64| {
        for start in (from..to).step_by(200) {
            let ids: Vec<i64> = (start..start + 200).collect();
            train(&table, &pool, &ids, start as u64);
            expect_bounded(&table, "growth");
        }
    };
    fill(0, KEYS);
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (table, is_over) = (Arc::clone(&table), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let mut looks = 0;
            while !is_over.load(SeqCst) {
                // In the middle of steps, too: they write little, compared with all rows.
                expect_bounded(&table, "a moment of a step");
                looks += 1;
            }
            looks
        })
    };
    for step in 0..400 {
        let ids = match step % 4 {
            // Rows from all over the files; those of a part of them, over and over; rows in the
            // order of their records; every 97th.
            0 => batch(step, 150, KEYS),
            1 => batch(step, 150, KEYS / 10),
            2 => (0..150).map(|at| (step as i64 * 37 + at) % KEYS).collect(),
            _ => (0..150).map(|at| (step as i64 + at * 97) % KEYS).collect(),
        };
        train(&table, &pool, &ids, step);
        expect_bounded(&table, "a step");
    }
    is_over.store(true, SeqCst);
    assert!(watcher.join().unwrap() > 100);
    // Most rows go, all over the files; then there is room for rows that come in.
    let gone: Vec<i64> = (0..KEYS).filter(|key| key % 10 != 3).collect();
    assert_eq!(table.remove(Ids::I64(&gone)).unwrap(), gone.len() as u64);
    expect_bounded(&table, "a removal");
    let rest: Vec<i64> = (0..KEYS).filter(|key| key % 10 == 3).collect();
    for (step, ids) in rest.chunks(150).enumerate() {
        train(&table, &pool, ids, step as u64);
        expect_bounded(&table, "a step after a removal");
    }
    fill(KEYS, KEYS + 6000);
    // All that is left is what was trained.
    let found = found_rows(&table, &pool, &rest);
    assert!(found
        .chunks_exact(DIM)
        .all(|row| row.iter().any(|&one| one != 0.0)));
    table.clear();
    expect_bounded(&table, "a clear");
}

#[test]
fn a_table_with_one_row_in_memory_trains_as_one_all_in_memory() {
    let (pool, one, all) = (pool(), tiered("one", 100, 1), in_memory("one", 100));
    for step in 0..200 {
        let id = [batch(step, 1, 20)[0]; 3];
        for table in [&one, &all] {
            train(table, &pool, &id, step);
        }
        if step % 50 == 49 {
            assert!(content(&one) == content(&all), "step {step}");
        }
    }
    let tier = one.stats().tier.unwrap();
    assert_eq!((tier.rows_in_memory, tier.rows_on_disk + 1), (1, one.len()));
}
