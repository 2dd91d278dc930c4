//! Measures what admission and eviction cost (A1 to A5), one JSON line per measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example admission_bench -- [--quick] [--only A1,A3]
//!     [--rows N] [--dim N] [--batch N] [--reps N] [--keys N] [--train N] [--waiting N]
//! ```
//! A1 is the standard work: `observe + admit + embed` beside `lease + embed` of the same ids, in
//! turns. A2 counts `--waiting` keys of which none is admitted. A3 and A4 have a table of `--keys`
//! rows of 16 floats with LazyAdam's slots: one thread trains batches of `--train` Zipf ids while
//! another evicts half of the rows, or 90%, in random order. Times are milliseconds.

#[expect(dead_code, reason = "each bench uses its own part of it")]
mod support;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
#[path = "../tests/singles/mod.rs"]
mod singles;

use crate::singles::{Singles as _, Target};
use mx_rec_kernels::{Columns, Ids, LazyAdam, Pool, Result, Table, Thresholds};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;
use support::arguments::Arguments;
use support::{draw, fill, interleave, key, line, median, report, resident, table, time, Better};

/// No key is counted so often.
const NEVER: u32 = 1 << 30;

/// Batches that are used in turn.
const BATCHES: u64 = 7;

fn main() -> Result<()> {
    let sizes = Sizes::from_arguments();
    let wanted = |id: &str| sizes.only.is_empty() || sizes.only.iter().any(|only| only == id);
    // First, because it looks at the memory of the whole process.
    if wanted("A2") {
        waiting(&sizes)?;
    }
    if wanted("A3") || wanted("A4") {
        for (share, what) in [(50, "half"), (90, "90%")] {
            evicting(&sizes, share, what)?;
        }
    }
    if wanted("A1") || wanted("A5") {
        counting(&sizes, &wanted)?;
    }
    Ok(())
}

struct Sizes {
    rows: usize,
    dim: usize,
    batch: usize,
    reps: usize,
    keys: usize,
    train: usize,
    waiting: usize,
    only: Vec<String>,
}

impl Sizes {
    fn from_arguments() -> Sizes {
        let arguments = Arguments::of_process();
        let number = |name: &str, full, small| arguments.number(name, full, small);
        let only = arguments.text("--only").unwrap_or_default();
        Sizes {
            rows: number("--rows", 4_194_304, 32_768),
            dim: number("--dim", 64, 64),
            batch: number("--batch", 65_536, 4_096),
            reps: number("--reps", 41, 5),
            keys: number("--keys", 10_000_000, 200_000),
            train: number("--train", 26_000, 2_600),
            waiting: number("--waiting", 10_000_000, 200_000),
            only: only.split_terminator(',').map(Into::into).collect(),
        }
    }
}

/// Row numbers by Zipf 1.05, the same for the same `seed`; popular rows are scattered.
struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    fn new(rows: usize) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=rows).map(|rank| {
            sum += (rank as f64).powf(-1.05);
            sum
        });
        Zipf {
            cumulated: cumulated.collect(),
        }
    }

    fn draw(&self, seed: u64, n: usize) -> Vec<i64> {
        let rows = self.cumulated.len();
        let sum = self.cumulated.last().copied().unwrap_or_default();
        let place = |one: i64| {
            let wanted = one as f64 / (1_u64 << 52) as f64 * sum;
            let rank = self.cumulated.partition_point(|&sum| sum <= wanted);
            // A prime, and no factor of the number of rows.
            (rank.min(rows - 1) as u128 * 2_654_435_761 % rows as u128) as i64
        };
        draw(seed, n, 1 << 52).into_iter().map(place).collect()
    }
}

/// One lookup of a training step with admission.
fn look(
    table: &Arc<Table>,
    pool: &Pool,
    ids: &[i64],
    time: Option<i64>,
    limits: Thresholds,
    buffers: &mut Buffers,
) -> Result<()> {
    let Buffers {
        places,
        inverse,
        out,
    } = buffers;
    let keys = table.observe(None, pool, Ids::I64(ids), 1, time, limits, places)?;
    let lease = table.admit(pool, &keys, None, places, inverse)?;
    table.embed(pool, lease.offsets(), inverse, out)?;
    black_box(out);
    Ok(())
}

/// The same without.
fn lease(table: &Arc<Table>, pool: &Pool, ids: &[i64], buffers: &mut Buffers) -> Result<()> {
    let lease = table.lease(pool, Ids::I64(ids), None, &mut buffers.inverse)?;
    table.embed(pool, lease.offsets(), &buffers.inverse, &mut buffers.out)?;
    black_box(&buffers.out);
    Ok(())
}

/// What a lookup writes, made once.
struct Buffers {
    places: Vec<i32>,
    inverse: Vec<i32>,
    out: Vec<f32>,
}

impl Buffers {
    fn new(batch: usize, dim: usize) -> Buffers {
        Buffers {
            places: vec![0; batch],
            inverse: vec![0; batch],
            out: vec![0.0; batch * dim],
        }
    }
}

fn limits(access: u32, eviction: Option<u32>) -> Thresholds {
    Thresholds { access, eviction }
}

/// A1: counting and deciding; A5: numbers of a table.
fn counting(sizes: &Sizes, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    let (rows, dim, n) = (sizes.rows, sizes.dim, sizes.batch);
    let (one, two) = (Pool::new(1)?, Pool::new(2)?);
    let made = || table(dim, rows as u64).map(Arc::new);
    let (plain, known, mixed) = (made()?, made()?, made()?);
    fill(&plain, &two, 0, rows, n, |_| {})?;
    fill(&known, &two, 0, rows, n, |_| {})?;
    fill(&mixed, &two, 0, rows / 2, n, |_| {})?;
    let mut buffers = Buffers::new(n, dim);
    let all: Vec<i64> = (0..rows as i64).map(key).collect();
    for ids in all.chunks(n) {
        let mut buffers = Buffers::new(ids.len(), dim);
        look(&known, &two, ids, None, limits(1, None), &mut buffers)?;
        look(&mixed, &two, ids, None, limits(NEVER, None), &mut buffers)?;
    }
    drop(all);
    if wanted("A1") {
        let zipf = Zipf::new(rows);
        for (draws, what) in [("u", "uniform"), ("z", "Zipf 1.05")] {
            let batches: Vec<Vec<i64>> = (0..BATCHES)
                .map(|seed| match draws {
                    "u" => draw(seed, n, rows),
                    _ => zipf.draw(seed, n),
                })
                .map(|rows| rows.into_iter().map(key).collect())
                .collect();
            for (table, access, state) in [
                (&known, 1, "all admitted"),
                (&mixed, NEVER, "half of the keys refused"),
            ] {
                for (pool, threads) in [(&one, "1 thread"), (&two, "2 threads")] {
                    let pairs = interleave(sizes.reps, |rep| {
                        let ids = &batches[rep % batches.len()];
                        let limits = limits(access, None);
                        let first = |buffers: &mut _| {
                            time(|| look(table, pool, ids, None, limits, buffers))
                        };
                        let second = |buffers: &mut _| time(|| lease(&plain, pool, ids, buffers));
                        match rep % 2 {
                            0 => (first(&mut buffers), second(&mut buffers)),
                            _ => {
                                let peer = second(&mut buffers);
                                (first(&mut buffers), peer)
                            }
                        }
                    });
                    let what = format!("observe + admit + embed, {what}, {state}, {threads}");
                    report(&format!("A1 {draws} e"), &what, &pairs, 1.3, Better::Less);
                }
            }
        }
    }
    if wanted("A5") {
        let ids: Vec<i64> = draw(1, n, rows).into_iter().map(key).collect();
        let pairs = interleave(sizes.reps, |_| {
            let stats = time(|| {
                black_box(mixed.stats());
                Ok(())
            });
            (stats, time(|| lease(&plain, &two, &ids, &mut buffers)))
        });
        let what = "numbers of a table beside a training lookup, 2 threads";
        report("A5", what, &pairs, 100.0, Better::Faster);
    }
    Ok(())
}

/// A2: memory of keys that are not admitted.
fn waiting(sizes: &Sizes) -> Result<()> {
    let table = Arc::new(table(16, sizes.rows as u64)?);
    let pool = Pool::new(2)?;
    let (n, limits) = (sizes.batch, limits(NEVER, None));
    let mut buffers = Buffers::new(n, 16);
    let mut batch = |start: usize| {
        let ids: Vec<i64> = (start..start + n).map(|row| key(row as i64)).collect();
        look(&table, &pool, &ids, None, limits, &mut buffers)
    };
    // What a batch needs is there already when the memory is looked at.
    batch(0)?;
    batch(0)?;
    let (held, before) = (table.stats().history_bytes, resident("VmRSS:"));
    // The most that there was at any time, from half of the keys on.
    let (mut counted, mut measured) = (0.0_f64, 0.0_f64);
    for start in (n..n + sizes.waiting).step_by(n) {
        batch(start)?;
        if start >= sizes.waiting / 2 {
            let a_key = |bytes: u64| bytes as f64 / start as f64;
            counted = counted.max(a_key(table.stats().history_bytes - held));
            measured = measured.max(a_key(resident("VmRSS:").saturating_sub(before)));
        }
    }
    for (what, bytes) in [("counted", counted), ("of the process", measured)] {
        let what = format!("bytes a refused key at most, {what}");
        line("A2", &what, bytes, f64::NAN, bytes, 24.0, bytes <= 24.0);
    }
    Ok(())
}

/// A3, A4: training while `share` percent of all rows are evicted.
fn evicting(sizes: &Sizes, share: u64, what: &str) -> Result<()> {
    const DIM: usize = 16;
    let (rows, n) = (sizes.keys, sizes.train);
    let pool = Pool::new(2)?;
    let table = Arc::new(table(DIM, rows as u64 + rows as u64 / 8)?);
    let adam = LazyAdam::new(0.001, 0.9, 0.999, 1e-8, 0.9, 0.999)?;
    let old_and_new = limits(1, Some(500));
    let see = |pool: &Pool, ids: &[i64], time: i64| -> Result<()> {
        let mut places = vec![0; ids.len()];
        let keys = table.observe(
            None,
            pool,
            Ids::I64(ids),
            1,
            Some(time),
            old_and_new,
            &mut places,
        )?;
        let mut inverse = vec![0; ids.len()];
        let lease = table.admit(pool, &keys, None, &places, &mut inverse)?;
        let grads = vec![0.01; lease.offsets().len() * DIM];
        let rows = Target::Offsets(lease.offsets());
        table.apply(pool, rows, &grads, &adam).map(drop)
    };
    let empty = resident("VmRSS:");
    let seen_again = |row: i64| draw(row as u64, 1, 100)[0] as u64 >= share;
    let chunk = 1 << 16;
    for (time, again) in [(1, false), (1000, true)] {
        for start in (0..rows as i64).step_by(chunk) {
            let ids = start..(start + chunk as i64).min(rows as i64);
            let ids: Vec<i64> = ids
                .filter(|&row| !again || seen_again(row))
                .map(key)
                .collect();
            see(&pool, &ids, time)?;
        }
    }
    let batches: Vec<Vec<i64>> = {
        let zipf = Zipf::new(rows);
        let keys = |seed| zipf.draw(seed, n).into_iter().map(key).collect();
        (0..64).map(keys).collect()
    };
    let grads = vec![0.001; n * DIM];
    let mut buffers = Buffers::new(n, DIM);
    // A step: count, decide, embed, update.
    let mut step = |number: usize, now: i64| {
        time(|| {
            let ids = &batches[number % batches.len()];
            let Buffers {
                places,
                inverse,
                out,
            } = &mut buffers;
            let now = Some(now);
            let keys = table.observe(None, &pool, Ids::I64(ids), 1, now, old_and_new, places)?;
            let lease = table.admit(&pool, &keys, None, places, inverse)?;
            table.embed(&pool, lease.offsets(), inverse, out)?;
            let lookup = mx_rec_kernels::LookupGradients {
                offsets: lease.offsets(),
                inverse,
                grads: Columns::all(&grads, table.dim())?,
                bags: None,
            };
            table.apply_lookups(&pool, &[lookup], &adam).map(drop)
        })
    };
    let mut number = 0;
    let mut alone = Vec::new();
    while number < 64 + 200 {
        // Of an older time, so that these keys go as well.
        let time = step(number, 400);
        if number >= 64 {
            alone.push(time);
        }
        number += 1;
    }
    let worst_alone = alone.iter().copied().fold(0.0, f64::max);
    let usual = median(&mut alone);
    let before = resident("VmRSS:");
    let done = AtomicBool::new(false);
    let (evicted, during) = std::thread::scope(|scope| {
        let evicting = scope.spawn(|| {
            let start = Instant::now();
            let counts = table.evict();
            let time = start.elapsed().as_secs_f64();
            done.store(true, Relaxed);
            counts.map(|(gone, _)| (gone, time))
        });
        let mut during = Vec::new();
        while !done.load(Relaxed) {
            during.push(step(number, 1001));
            number += 1;
        }
        (evicting.join(), during)
    });
    let Ok(evicted) = evicted else {
        std::process::exit(1);
    };
    let (gone, seconds) = evicted?;
    let after = resident("VmRSS:");
    let mut during = during;
    let worst = during.iter().copied().fold(0.0, f64::max);
    let slower = median(&mut during);
    let wait = worst - usual;
    eprintln!(
        "evicting {what}: {gone} keys in {seconds:.2} s beside {} steps; a step took {usual:.2} ms \
         ({worst_alone:.2} at most) before, \
         {slower:.2} ({worst:.2} at most) meanwhile; {} MiB before, {} after, {} without rows",
        during.len(),
        before >> 20,
        after >> 20,
        empty >> 20,
    );
    let title = format!("longest wait of a step while {what} of the rows go");
    line("A3", &title, wait, f64::NAN, wait, 20.0, wait <= 20.0);
    if share == 90 {
        let (held, kept) = ((before - empty) as f64, after.saturating_sub(empty) as f64);
        let ratio = kept / held;
        let title = "memory of the process after 90% of the rows went, bytes";
        line("A4", title, kept, held, ratio, 0.2, ratio <= 0.2);
    }
    Ok(())
}
