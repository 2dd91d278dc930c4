//! Measures admission by a sketch beside exact counters: what a batch of rare keys costs, and how
//! many keys are admitted too early.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example sketch_bench --
//!     [--quick] [--keys N] [--batch N] [--reps N]
//! ```
//! One JSON line per measurement. `S1`: milliseconds of `observe + admit` of a batch of which no
//! key is admitted, medians, the exact counters and the sketch in turns on the same ids; the sketch
//! has 32 bytes for each of `--keys` keys. `S2`: `--keys` keys are seen once each; the share of
//! them that the sketch admits at a threshold all the same, for its bytes by number of keys.

#[path = "support/arguments.rs"]
mod arguments;

use arguments::Arguments;
use mx_rec_kernels::{Ids, Pool, Result, Table, TableConfig, Thresholds};
use std::sync::Arc;
use std::time::Instant;

/// No key is counted so often.
const NEVER: u32 = 1 << 30;

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let keys = arguments.number("--keys", 10_000_000, 100_000);
    let batch = arguments.number("--batch", 65_536, 8_192);
    costs(keys, batch, arguments.number("--reps", 41, 5))?;
    errors(keys, batch)
}

fn table(sketch_bytes: usize) -> Result<Arc<Table>> {
    let table = Table::new(TableConfig {
        seed: 1,
        admission_sketch_bytes: sketch_bytes as u64,
        ..TableConfig::new("bench", 8, 2_000_000_000)
    })?;
    Ok(Arc::new(table))
}

/// A key by its number: scattered over all integers, the same in every run.
fn key(number: usize) -> i64 {
    (number as i64).wrapping_mul(0x5851_F42D_4C95_7F2D) ^ 0x1234_5678
}

/// Keys drawn evenly from `keys`, the same for the same `seed`.
fn draw(seed: usize, n: usize, keys: usize) -> Vec<i64> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n + 8)
        .map(|_| key((next() % keys as u64) as usize))
        .skip(8)
        .collect()
}

/// One lookup without a time; returns how many ids have a row.
fn look(table: &Arc<Table>, pool: &Pool, ids: &[i64], access: u32) -> Result<usize> {
    let limits = Thresholds {
        access,
        eviction: None,
    };
    let (mut places, mut inverse) = (vec![0; ids.len()], vec![0; ids.len()]);
    let keys = table.observe(None, pool, Ids::I64(ids), 1, None, limits, &mut places)?;
    let lease = table.admit(pool, &keys, None, &places, &mut inverse)?;
    Ok(lease.offsets().len())
}

fn all(keys: usize) -> Vec<i64> {
    (0..keys).map(key).collect()
}

fn costs(keys: usize, batch: usize, reps: usize) -> Result<()> {
    let tables = [table(0)?, table(32 * keys)?];
    let pools = [Pool::new(1)?, Pool::new(2)?];
    for ids in all(keys).chunks(batch) {
        for table in &tables {
            look(table, &pools[1], ids, NEVER)?;
        }
    }
    let [exact_bytes, sketch_bytes] = tables.each_ref().map(|table| table.stats().history_bytes);
    for (pool, threads) in pools.iter().zip([1, 2]) {
        let mut times = [Vec::new(), Vec::new()];
        for rep in 0..reps {
            let ids = draw(rep, batch, keys);
            for (table, times) in tables.iter().zip(&mut times) {
                let start = Instant::now();
                look(table, pool, &ids, NEVER)?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let [exact, sketch] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!(
            "{{\"id\": \"S1\", \"threads\": {threads}, \"batch\": {batch}, \"keys\": {keys}, \
             \"exact_ms\": {exact:.3}, \
             \"sketch_ms\": {sketch:.3}, \"ratio\": {:.3}, \"exact_bytes\": {exact_bytes}, \
             \"sketch_bytes\": {sketch_bytes}}}",
            sketch / exact
        );
    }
    Ok(())
}

fn errors(keys: usize, batch: usize) -> Result<()> {
    let pool = Pool::new(2)?;
    for bytes in [32, 16, 8, 4, 2] {
        let table = table((bytes * keys).max(1024))?;
        for ids in all(keys).chunks(batch) {
            look(&table, &pool, ids, NEVER)?;
        }
        // From the greatest on: who has a row by one threshold has it by the next.
        for threshold in [20, 10, 5, 3, 2] {
            table.set_access_threshold(threshold)?;
            let mut early = 0;
            for ids in all(keys).chunks(batch) {
                let places: Vec<i32> = (0..ids.len() as i32).collect();
                let mut inverse = vec![0; ids.len()];
                let lease = table.admit(&pool, ids, None, &places, &mut inverse)?;
                early += lease.offsets().len();
            }
            println!(
                "{{\"id\": \"S2\", \"keys\": {keys}, \"bytes_per_key\": {bytes}, \"threshold\": \
                 {threshold}, \
                 \"too_early\": {:.7}}}",
                early as f64 / keys as f64
            );
        }
    }
    Ok(())
}
