//! Measures the engine alone against what the memory of this machine allows, one JSON line per
//! measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example engine_bench -- [--quick] [--only P6,P8]
//!     [--rows N] [--dim N] [--batch N] [--reps N] [--keys N] [--small N] [--large N]
//! ```
//! Every repetition measures ours and its peer one after the other on the same ids; `ours`, `peer`
//! and `ratio` come from the medians, `best_ratio` from the minima. Times are milliseconds for one
//! batch.

#[path = "support/known_places.rs"]
mod known_places;
#[expect(dead_code, reason = "each bench uses its own part of it")]
mod support;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
#[path = "../tests/singles/mod.rs"]
mod singles;

use crate::singles::{Singles as _, Target};
use known_places::{FreshPlaces, KnownPlaces, Traffic};
use mx_rec_kernels::{Absent, Ids, LazyAdam, Pool, Result, Table};
use std::time::Instant;
use support::arguments::Arguments;
use support::{
    draw, fill, interleave, key, line, median, report, resident, table, time, Better, WARM_UP,
};

fn main() -> Result<()> {
    let sizes = Sizes::from_arguments();
    let wanted = |id: &str| sizes.only.is_empty() || sizes.only.iter().any(|only| only == id);
    if ["P6", "P7", "P8"].into_iter().any(wanted) {
        standard_work(&sizes, &wanted)?;
    }
    if wanted("P9") || wanted("P11") {
        filling(&sizes)?;
    }
    if wanted("P10") {
        scaling(&sizes)?;
    }
    Ok(())
}

/// The limit of P9 is measured after each of so many batches.
const EACH: usize = 8;

struct Sizes {
    rows: usize,
    dim: usize,
    batch: usize,
    reps: usize,
    keys: usize,
    small: usize,
    large: usize,
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
            keys: number("--keys", 50_000_000, 200_000),
            small: number("--small", 1_000_000, 50_000),
            large: number("--large", 100_000_000, 500_000),
            only: only.split_terminator(',').map(Into::into).collect(),
        }
    }
}

/// P6, P7, P8: lookups and updates of the standard work.
fn standard_work(sizes: &Sizes, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    let (rows, dim, n) = (sizes.rows, sizes.dim, sizes.batch);
    let (one, two) = (Pool::new(1)?, Pool::new(2)?);
    let table = table(dim, rows as u64)?;
    fill(&table, &two, 0, rows, n, |_| {})?;
    let batches: Vec<Vec<i64>> = (0..7).map(|at| draw(at, n, rows)).collect();
    let keyed: Vec<Vec<i64>> = batches
        .iter()
        .map(|rows| rows.iter().map(|&row| key(row)).collect())
        .collect();
    let mut out = vec![0.0_f32; n * dim];
    let mut inverse = vec![0_i32; n];

    if wanted("P6") {
        let known = KnownPlaces::new(rows, dim, dim);
        let places: Vec<_> = batches
            .iter()
            .map(|batch| known.batch(as_rows(batch)))
            .collect();
        let mut peer_out = vec![0.0_f32; n * dim];
        let mut limits = Vec::new();
        let pairs = interleave(sizes.reps, |rep| {
            let ours =
                time(|| table.find(&one, Ids::I64(&keyed[rep % 7]), Absent::Zeros, &mut out));
            let mut copy = |at: usize, index: bool| {
                time(|| {
                    known.read(&one, &places[at % 7], index, 1, &mut peer_out);
                    Ok(())
                })
            };
            let peer = copy(rep, false);
            limits.push(copy(rep + 3, true));
            (ours, peer)
        });
        let what = "find, 1 thread, against a prefetched copy";
        report("P6", what, &pairs, 1.5, Better::Less);
        limit(
            "P6",
            what,
            &mut limits,
            &pairs,
            known.traffic_of_reads(&places[0], true, 1),
        );
    }
    if wanted("P8") {
        for what in ["find", "id_offset + lookup"] {
            let mut run = |pool: &Pool, rep: usize| {
                let ids = Ids::I64(&keyed[rep % 7]);
                time(|| match what {
                    "find" => table.find(pool, ids, Absent::Zeros, &mut out),
                    _ => {
                        let offsets = table.id_offset(pool, ids, true, None, &mut inverse)?;
                        let floats = offsets.len() * dim;
                        table.lookup(pool, &offsets, &mut out[..floats])
                    }
                })
            };
            let pairs = interleave(sizes.reps, |rep| (run(&two, rep), run(&one, rep)));
            report(
                "P8",
                &format!("{what}, second thread"),
                &pairs,
                1.7,
                Better::Faster,
            );
        }
    }
    if wanted("P7") || wanted("P8") {
        let adam = LazyAdam::new(0.001, 0.9, 0.999, 1e-8, 0.9, 0.999)?;
        let grads: Vec<f32> = (0..n * dim)
            .map(|at| (at % 1000) as f32 * 1e-3 - 0.5)
            .collect();
        let apply = |pool: &Pool, rep: usize| {
            time(|| {
                table
                    .apply(pool, Target::Ids(Ids::I64(&keyed[rep % 7])), &grads, &adam)
                    .map(drop)
            })
        };
        if wanted("P7") {
            let mut known = KnownPlaces::new(rows, dim, dim * 3);
            let places: Vec<_> = batches
                .iter()
                .map(|batch| known.batch(as_rows(batch)))
                .collect();
            let [keyed_traffic, traffic] =
                [true, false].map(|index| known.traffic_of_updates(&places[0], index, 1));
            let mut update = |at: usize, index: bool| {
                time(|| {
                    known.update(&one, &places[at % 7], index, 1, &grads, &adam);
                    Ok(())
                })
            };
            let mut limits = Vec::new();
            let pairs = interleave(sizes.reps, |rep| {
                limits.push(update(rep + 3, true));
                (apply(&one, rep), update(rep, false))
            });
            let by_ids = "id_offset + LazyAdam, 1 thread, against read-modify-write";
            report("P7", by_ids, &pairs, 1.5, Better::Less);
            limit("P7", by_ids, &mut limits, &pairs, keyed_traffic);
            let offsets: Vec<Vec<i64>> = keyed
                .iter()
                .map(|ids| table.id_offset(&one, Ids::I64(ids), false, None, &mut inverse))
                .collect::<Result<_>>()?;
            let mut no_index = Vec::new();
            let pairs = interleave(sizes.reps, |rep| {
                let target = Target::Offsets(&offsets[rep % 7]);
                let grads = &grads[..offsets[rep % 7].len() * dim];
                let peer = update(rep, false);
                no_index.push(peer);
                (
                    time(|| table.apply(&one, target, grads, &adam).map(drop)),
                    peer,
                )
            });
            let by_offsets = "LazyAdam by offsets, 1 thread, against read-modify-write";
            report("P7", by_offsets, &pairs, 1.5, Better::Less);
            limit("P7", by_offsets, &mut no_index, &pairs, traffic);
        }
        if wanted("P8") {
            let pairs = interleave(sizes.reps, |rep| (apply(&two, rep), apply(&one, rep)));
            report(
                "P8",
                "id_offset + LazyAdam, second thread",
                &pairs,
                1.7,
                Better::Faster,
            );
        }
    }
    Ok(())
}

/// P9, P11: filling a table of short rows from nothing.
fn filling(sizes: &Sizes) -> Result<()> {
    let (pool, dim) = (Pool::new(2)?, 16);
    let table = table(dim, sizes.keys as u64)?;
    let mut known = KnownPlaces::index_of(sizes.keys);
    let places = known.batch(as_rows(&draw(3, sizes.batch, sizes.keys)));
    let batches = sizes.keys.div_ceil(sizes.batch);
    let mut fresh = FreshPlaces::new((batches / EACH + 1) * sizes.batch, dim);
    let before = resident("VmRSS:");
    let (mut times, mut limits) = (Vec::new(), Vec::new());
    let mut peak = 0_u64;
    let mut last = Instant::now();
    fill(&table, &pool, 0, sizes.keys, sizes.batch, |table| {
        times.push(last.elapsed().as_secs_f64());
        let limit_bytes = (limits.len() * sizes.batch * dim * 4) as u64;
        let used = before + table.memory().rows_bytes + limit_bytes;
        peak = peak.max(resident("VmHWM:").saturating_sub(used));
        if times.len() % EACH == 0 {
            // What memory would allow is measured meanwhile: the system gives fresh memory fast at
            // one moment and slowly at the next.
            let begin = Instant::now();
            fresh.make(&pool, sizes.batch, Some((&mut known, &places)), None);
            limits.push(begin.elapsed().as_secs_f64());
        }
        // Starts the high-water mark again at the present size; where that is not allowed the peak
        // is an upper bound.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        last = Instant::now();
    })?;
    let total: f64 = times.iter().sum();
    let rate = sizes.keys as f64 / total / 1e6;
    let what = "new keys, 2 threads, million a second";
    line("P9", what, rate, f64::NAN, rate, 6.0, rate >= 6.0);
    let traffic = fresh.traffic(sizes.batch, Some(&places));
    let allowed = (limits.len() * sizes.batch) as f64 / limits.iter().sum::<f64>() / 1e6;
    limit_line("P9", what, allowed, traffic, allowed);
    let worst = times.iter().copied().fold(0.0, f64::max) * 1e3;
    let median_batch = median(&mut times) * 1e3;
    let ratio = worst / median_batch;
    let what = "slowest batch against the median one";
    line("P9", what, worst, median_batch, ratio, 10.0, ratio <= 10.0);
    // What fresh memory alone does: its slowest batch against its median one.
    let worst = limits.iter().copied().fold(0.0, f64::max) * 1e3;
    let spread = worst / (median(&mut limits) * 1e3);
    limit_line("P9", what, worst, traffic, spread);
    let memory = table.memory();
    let beyond = memory.index_bytes + memory.other_bytes;
    let bytes = beyond as f64 / sizes.keys as f64;
    line(
        "P11",
        "bytes a row beyond the rows",
        bytes,
        f64::NAN,
        bytes,
        20.0,
        bytes <= 20.0,
    );
    let ratio = peak as f64 / beyond as f64;
    line(
        "P11",
        "peak during growth against the end, bytes",
        peak as f64,
        beyond as f64,
        ratio,
        1.6,
        ratio <= 1.6,
    );
    Ok(())
}

/// P10: cost of an id in a small and in a large table.
fn scaling(sizes: &Sizes) -> Result<()> {
    let (one, two, dim, n) = (Pool::new(1)?, Pool::new(2)?, 16, sizes.batch);
    let (small, large) = (
        table(dim, sizes.small as u64)?,
        table(dim, sizes.large as u64)?,
    );
    fill(&small, &two, 0, sizes.small, n, |_| {})?;
    fill(&large, &two, 0, sizes.large, n, |_| {})?;
    let mut out = vec![0.0_f32; n * dim];
    let mut inverse = vec![0; n];
    let ids = |rep: usize, rows: usize| -> Vec<i64> {
        draw(rep as u64 + 100, n, rows)
            .iter()
            .map(|&row| key(row))
            .collect()
    };
    let pairs = interleave(sizes.reps, |rep| {
        let mut run = |table: &Table, rows: usize| {
            let ids = ids(rep, rows);
            time(|| table.find(&one, Ids::I64(&ids), Absent::Zeros, &mut out))
        };
        (run(&large, sizes.large), run(&small, sizes.small))
    });
    report(
        "P10",
        "find, dim 16, large table against small",
        &pairs,
        2.5,
        Better::Less,
    );
    let pairs = interleave(sizes.reps, |rep| {
        let mut run = |table: &Table, rows: usize| {
            let ids = ids(rep, rows);
            time(|| {
                let offsets = table.id_offset(&one, Ids::I64(&ids), true, None, &mut inverse)?;
                let floats = offsets.len() * dim;
                table.lookup(&one, &offsets, &mut out[..floats])
            })
        };
        (run(&large, sizes.large), run(&small, sizes.small))
    });
    report(
        "P10",
        "id_offset + lookup, dim 16, large table against small",
        &pairs,
        2.5,
        Better::Less,
    );
    Ok(())
}

/// Row numbers of ids.
fn as_rows(batch: &[i64]) -> impl Iterator<Item = usize> + '_ {
    batch.iter().map(|&row| row as usize)
}

/// Prints the limit of a figure: its milliseconds in each repetition, those of the warm-up first.
fn limit(id: &str, what: &str, times: &mut Vec<f64>, pairs: &[(f64, f64)], traffic: Traffic) {
    times.drain(..WARM_UP.min(times.len()));
    let mut peer: Vec<f64> = pairs.iter().map(|&(_, peer)| peer).collect();
    let limit = median(times);
    limit_line(id, what, limit, traffic, limit / median(&mut peer));
}

/// Prints the limit of a figure, and the ratio of an engine that reaches it.
fn limit_line(id: &str, what: &str, limit: f64, traffic: Traffic, at_best: f64) {
    let Traffic { lines, bytes } = traffic;
    println!(
        "{{\"limit_of\":\"{id}\",\"what\":\"{what}\",\"limit\":{limit:.4},\
         \"at_best\":{at_best:.3},\"limit_lines\":{lines},\"limit_bytes\":{bytes}}}"
    );
}
