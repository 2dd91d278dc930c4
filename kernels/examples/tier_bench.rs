//! Rows on disk: what appends and reads cost, hot and cold, by io_uring and by threads.
//!
//!     cargo run --release -p mx_rec_kernels --example tier_bench -- DIRECTORY [ROWS [FLOATS]]

use mx_rec_kernels::tier::{Files, Log, ReadBy, Record, Want};
use mx_rec_kernels::Pool;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows of a batch.
const BATCH: usize = 8_192;

/// Batches of a measurement.
const BATCHES: usize = 12;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("name a directory");
    let rows: u32 = arguments
        .next()
        .map_or(5_000_000, |n| n.parse().expect("rows"));
    let width: usize = arguments.next().map_or(48, |n| n.parse().expect("floats"));
    let directories = [PathBuf::from(directory)];
    println!("{rows} rows of {width} floats, batches of {BATCH}");
    println!("| reads by | threads that check | hot rows/s | cold rows/s | cold cpu us a row |");
    println!("|---|---|---|---|---|");
    let kinds = [
        ReadBy::Ring,
        ReadBy::Threads(1),
        ReadBy::Threads(16),
        ReadBy::Threads(64),
    ];
    let mut appended = Vec::new();
    for kind in kinds {
        let files = match Files::open(&directories).expect("files").read_by(kind) {
            Ok(files) => Arc::new(files),
            Err(error) => {
                println!("| {kind:?} | {error} |");
                continue;
            }
        };
        let log = Log::new(files.clone(), width, u64::from(rows));
        let start = Instant::now();
        let places = fill(&log, rows, width);
        appended.push(f64::from(rows) / start.elapsed().as_secs_f64());
        for threads in [1, 2] {
            let pool = Pool::new(threads).expect("a pool");
            let mut seed = 1;
            let hot = (0..BATCHES).map(|_| batch(&log, &pool, &places, width, &mut seed).0);
            let hot = median(hot.collect());
            let cold: Vec<_> = (0..BATCHES / 3)
                .map(|_| {
                    files.drop_cache().expect("the cache goes");
                    batch(&log, &pool, &places, width, &mut seed)
                })
                .collect();
            let cpu = median(cold.iter().map(|cold| cold.1).collect());
            let cold = median(cold.iter().map(|cold| cold.0).collect());
            // All pages again.
            if threads == 1 {
                scan(&log, &pool, &places, width);
            }
            println!(
                "| {kind:?} | {threads} | {:.0} | {:.0} | {:.1} |",
                BATCH as f64 / hot.as_secs_f64(),
                BATCH as f64 / cold.as_secs_f64(),
                cpu.as_secs_f64() * 1e6 / BATCH as f64,
            );
        }
        if kind == ReadBy::Ring {
            let pool = Pool::new(2).expect("a pool");
            files.drop_cache().expect("the cache goes");
            let cold = scan(&log, &pool, &places, width);
            let hot = scan(&log, &pool, &places, width);
            let bytes = f64::from(rows) * (width as f64 * 4.0 + 20.0) / 1e6;
            println!(
                "in order: cold {:.0} MB/s, hot {:.0} MB/s",
                bytes / cold.as_secs_f64(),
                bytes / hot.as_secs_f64()
            );
            compaction(&log, &places, width);
        }
    }
    println!("append, rows/s: {appended:.0?}");
}

fn fill(log: &Log, rows: u32, width: usize) -> Vec<u32> {
    let floats: Vec<f32> = (0..width).map(|at| at as f32).collect();
    let mut places = Vec::with_capacity(rows as usize);
    for start in (0..rows).step_by(BATCH) {
        let records: Vec<_> = (start..rows.min(start + BATCH as u32))
            .map(|row| Record {
                row,
                key: i64::from(row),
                floats: &floats,
            })
            .collect();
        places.extend(log.append(&records).expect("space"));
    }
    places
}

/// Reads one random batch. Time by the clock and time of processors.
fn batch(
    log: &Log,
    pool: &Pool,
    places: &[u32],
    width: usize,
    seed: &mut u64,
) -> (Duration, Duration) {
    let wants: Vec<_> = (0..BATCH)
        .map(|_| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let row = (*seed >> 33) as usize % places.len();
            Want {
                place: places[row],
                row: row as u32,
            }
        })
        .collect();
    let mut into = vec![0.0; BATCH * width];
    let mut keys = vec![0; BATCH];
    let cpu = processors();
    let start = Instant::now();
    log.read(pool, &wants, &mut into, &mut keys).expect("rows");
    (start.elapsed(), processors() - cpu)
}

/// Reads all rows in order.
fn scan(log: &Log, pool: &Pool, places: &[u32], width: usize) -> Duration {
    let start = Instant::now();
    let mut into = vec![0.0; BATCH * width];
    let mut keys = vec![0; BATCH];
    for (chunk, first) in places.chunks(BATCH).zip((0..).step_by(BATCH)) {
        let wants: Vec<_> = chunk
            .iter()
            .zip(first..)
            .map(|(&place, row)| Want { place, row })
            .collect();
        let into = &mut into[..chunk.len() * width];
        log.read(pool, &wants, into, &mut keys[..chunk.len()])
            .expect("rows");
    }
    start.elapsed()
}

/// Writes random rows again, with a step of compaction after each batch.
fn compaction(log: &Log, places: &[u32], width: usize) {
    let mut places = places.to_vec();
    let floats: Vec<f32> = (0..width).map(|at| at as f32).collect();
    let (mut steps, mut appends) = (Vec::new(), Vec::new());
    let (mut seed, mut most) = (7_u64, 0.0_f64);
    let before = log.stats();
    for _ in 0..600 {
        let mut rows: Vec<u32> = (0..BATCH)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u32 % places.len() as u32
            })
            .collect();
        rows.sort_unstable();
        rows.dedup();
        let records: Vec<_> = rows
            .iter()
            .map(|&row| Record {
                row,
                key: i64::from(row),
                floats: &floats,
            })
            .collect();
        let start = Instant::now();
        let new = log.append(&records).expect("space");
        appends.push(start.elapsed());
        let old: Vec<_> = rows
            .iter()
            .zip(new)
            .map(|(&row, new)| std::mem::replace(&mut places[row as usize], new))
            .collect();
        log.free(&old).expect("they were live");
        let start = Instant::now();
        let moves = log.compact().expect("space");
        let freed: Vec<_> = moves
            .iter()
            .map(|moved| std::mem::replace(&mut places[moved.row as usize], moved.to))
            .collect();
        log.free(&freed).expect("they were live");
        steps.push(start.elapsed());
        let stats = log.stats();
        most = most.max(stats.slots as f64 / stats.live as f64);
    }
    let after = log.stats();
    steps.sort_unstable();
    println!(
        "compaction: {:.2} rows copied for each written, {most:.2} times the space of live rows at \
         most, a step {:.1?} in the median, {:.1?} of 100 at 99, {:.1?} at most, an append {:.1?}",
        (after.moved - before.moved) as f64
            / (after.records_written - before.records_written) as f64,
        steps[steps.len() / 2],
        steps[steps.len() * 99 / 100],
        steps[steps.len() - 1],
        median(appends),
    );
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// What processors have done for this process.
fn processors() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    // A hundred a second on every Linux this runs on.
    Duration::from_millis(ticks * 10)
}
