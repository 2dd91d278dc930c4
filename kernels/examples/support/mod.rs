//! What the benches of the engine share: a table to fill, ids to draw, times to take, figures to
//! print.

pub(crate) mod arguments;

use mx_rec_kernels::{Ids, Initializer, Pool, Result, RowDtype, RowStorage, Table, TableConfig};
use rustix::time::{clock_gettime, ClockId};
use std::time::Instant;

/// A table of `rows` rows at most.
pub(crate) fn table(dim: usize, rows: u64) -> Result<Table> {
    table_of(dim, rows, (RowDtype::Float32, RowDtype::Float32))
}

/// A table of `rows` rows at most, whose embeddings and slots have values of types.
pub(crate) fn table_of(
    dim: usize,
    rows: u64,
    (dtype, slot_dtype): (RowDtype, RowDtype),
) -> Result<Table> {
    Table::new(TableConfig {
        seed: 1,
        initializer: Initializer::RandomUniform {
            min: -0.05,
            max: 0.05,
        },
        row_storage: RowStorage {
            dtype,
            slot_dtype,
            ..RowStorage::default()
        },
        ..TableConfig::new("bench", dim, rows)
    })
}

/// The key of a row: scattered over all integers, the same in every run.
pub(crate) fn key(row: i64) -> i64 {
    row.wrapping_mul(0x5851_F42D_4C95_7F2D) ^ 0x1234_5678
}

/// Enters the keys of rows `from..to` in order, batch by batch, so that row numbers are known.
pub(crate) fn fill(
    table: &Table,
    pool: &Pool,
    from: usize,
    to: usize,
    batch: usize,
    mut after: impl FnMut(&Table),
) -> Result<()> {
    let mut ids = Vec::with_capacity(batch);
    let mut inverse = vec![0; batch];
    for start in (from..to).step_by(batch) {
        ids.clear();
        ids.extend((start..to.min(start + batch)).map(|row| key(row as i64)));
        table.id_offset(pool, Ids::I64(&ids), true, None, &mut inverse[..ids.len()])?;
        after(table);
    }
    Ok(())
}

/// Uniform row numbers, the same for the same `seed`.
pub(crate) fn draw(seed: u64, n: usize, rows: usize) -> Vec<i64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..8).for_each(|_| {
        next();
    });
    (0..n)
        .map(|_| ((u128::from(next()) * rows as u128) >> 64) as i64)
        .collect()
}

/// Rows by Zipf's law, scattered over all of them: `count` batches of `n`.
pub(crate) fn zipf(exponent: f64, count: usize, n: usize, rows: usize) -> Vec<Vec<i64>> {
    let mut sums = Vec::with_capacity(rows);
    let mut sum = 0.0;
    for rank in 1..=rows {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let place = |number: i64| {
        let part = number as f64 / (1_u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|&one| one < part) as u64;
        (rank.wrapping_mul(1_000_003) % rows as u64) as i64
    };
    let batch = |at: usize| draw(100 + at as u64, n, 1 << 53).into_iter().map(place);
    (0..count).map(|at| batch(at).collect()).collect()
}

/// Milliseconds that `f` takes; ends the process if it fails.
pub(crate) fn time(f: impl FnOnce() -> Result<()>) -> f64 {
    let start = Instant::now();
    let result = f();
    let time = start.elapsed().as_secs_f64() * 1e3;
    or_end(result);
    time
}

/// Milliseconds that the threads of the process work while `f` runs; ends the process if it fails.
pub(crate) fn worked(f: impl FnOnce() -> Result<()>) -> f64 {
    let start = processor_time();
    let result = f();
    let time = processor_time() - start;
    or_end(result);
    time * 1e3
}

fn or_end(result: Result<()>) {
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Seconds of processors that the process has had.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Repetitions before those that count.
pub(crate) const WARM_UP: usize = 7;

/// Warms up, then collects pairs of times.
pub(crate) fn interleave(reps: usize, mut f: impl FnMut(usize) -> (f64, f64)) -> Vec<(f64, f64)> {
    (0..WARM_UP).for_each(|rep| {
        f(rep);
    });
    (0..reps.max(1)).map(f).collect()
}

/// What a ratio should be.
pub(crate) enum Better {
    /// `ours / peer` should be at most the target.
    Less,
    /// `peer / ours` should be at least the target.
    Faster,
}

/// Prints the figure of pairs of times: (ours, peer).
pub(crate) fn report(id: &str, what: &str, pairs: &[(f64, f64)], target: f64, better: Better) {
    let (mut ours, mut peer): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let (low_ours, low_peer) = (best(&ours), best(&peer));
    let (ours, peer) = (median(&mut ours), median(&mut peer));
    let (ratio, low) = match better {
        Better::Less => (ours / peer, low_ours / low_peer),
        Better::Faster => (peer / ours, low_peer / low_ours),
    };
    let met = match better {
        Better::Less => ratio <= target,
        Better::Faster => ratio >= target,
    };
    println!(
        "{{\"id\":\"{id}\",\"what\":\"{what}\",\"ours\":{ours:.4},\"peer\":{peer:.4},\
         \"ratio\":{ratio:.3},\"best_ratio\":{low:.3},\"target\":{target},\"met\":{met}}}"
    );
}

/// Prints a figure; NaN for no peer.
pub(crate) fn line(id: &str, what: &str, ours: f64, peer: f64, ratio: f64, target: f64, met: bool) {
    let peer = if peer.is_nan() {
        "null".into()
    } else {
        format!("{peer:.4}")
    };
    println!(
        "{{\"id\":\"{id}\",\"what\":\"{what}\",\"ours\":{ours:.4},\"peer\":{peer},\
         \"ratio\":{ratio:.3},\"target\":{target},\"met\":{met}}}"
    );
}

/// The median; sorts.
pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A line of /proc/self/status in bytes, 0 where there is none.
pub(crate) fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
