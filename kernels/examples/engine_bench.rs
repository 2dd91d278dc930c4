//! Measures the engine alone against what the memory of this machine allows, one JSON line per
//! measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example engine_bench -- [--quick] [--only P6,P8] [--rows N] [--dim N]
//!     [--batch N] [--reps N] [--keys N] [--small N] [--large N]
//! ```
//! Every repetition measures ours and its peer one after the other on the same ids; `ours`, `peer`
//! and `ratio` come from the medians, `best_ratio` from the minima. Times are milliseconds for one
//! batch.

mod support;

use mx_rec_kernels::{Absent, Ids, LazyAdam, Pool, Result, RowOptimizer, Table, Target};
use std::hint::black_box;
use std::time::Instant;
use support::arguments::Arguments;
use support::{draw, fill, interleave, key, line, median, report, resident, table, time, Better};

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
            rows: number("--rows", 4_194_304, 262_144),
            dim: number("--dim", 64, 64),
            batch: number("--batch", 65_536, 16_384),
            reps: number("--reps", 41, 21),
            keys: number("--keys", 50_000_000, 2_000_000),
            small: number("--small", 1_000_000, 200_000),
            large: number("--large", 100_000_000, 2_000_000),
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
    let mut restore = vec![0_i32; n];

    if wanted("P6") {
        let known = Plain::new(rows, dim);
        let mut peer_out = vec![0.0_f32; n * dim];
        let pairs = interleave(sizes.reps, |rep| {
            let ours =
                time(|| table.find(&one, Ids::I64(&keyed[rep % 7]), Absent::Zeros, &mut out));
            let peer = time(|| {
                known.copy(&batches[rep % 7], &mut peer_out);
                Ok(())
            });
            (ours, peer)
        });
        report(
            "P6",
            "find, 1 thread, against a prefetched copy",
            &pairs,
            1.5,
            Better::Less,
        );
    }
    if wanted("P8") {
        for what in ["find", "id_offset + lookup"] {
            let mut run = |pool: &Pool, rep: usize| {
                let ids = Ids::I64(&keyed[rep % 7]);
                time(|| match what {
                    "find" => table.find(pool, ids, Absent::Zeros, &mut out),
                    _ => {
                        let offsets = table.id_offset(pool, ids, true, None, &mut restore)?;
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
            let mut known = Plain::new(rows, dim * 3);
            let distinct: Vec<Vec<i64>> =
                batches.iter().map(|batch| without_repeats(batch)).collect();
            let mut update = |rep: usize| {
                time(|| {
                    known.update(&distinct[rep % 7], &grads, dim, &adam);
                    Ok(())
                })
            };
            let pairs = interleave(sizes.reps, |rep| (apply(&one, rep), update(rep)));
            report(
                "P7",
                "LazyAdam by ids, 1 thread, against read-modify-write",
                &pairs,
                1.5,
                Better::Less,
            );
            let offsets: Vec<Vec<i64>> = keyed
                .iter()
                .map(|ids| table.id_offset(&one, Ids::I64(ids), false, None, &mut restore))
                .collect::<Result<_>>()?;
            let pairs = interleave(sizes.reps, |rep| {
                let target = Target::Offsets(&offsets[rep % 7]);
                let grads = &grads[..offsets[rep % 7].len() * dim];
                (
                    time(|| table.apply(&one, target, grads, &adam).map(drop)),
                    update(rep),
                )
            });
            report(
                "P7",
                "LazyAdam by offsets, 1 thread, against read-modify-write",
                &pairs,
                1.5,
                Better::Less,
            );
        }
        if wanted("P8") {
            let pairs = interleave(sizes.reps, |rep| (apply(&two, rep), apply(&one, rep)));
            report(
                "P8",
                "LazyAdam by ids, second thread",
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
    let before = resident("VmRSS:");
    let mut times = Vec::new();
    let mut peak = 0_u64;
    let mut last = Instant::now();
    fill(&table, &pool, 0, sizes.keys, sizes.batch, |table| {
        times.push(last.elapsed().as_secs_f64());
        let beyond = resident("VmHWM:").saturating_sub(before + table.memory().rows_bytes);
        peak = peak.max(beyond);
        // Starts the high-water mark again at the present size; where that is not allowed the peak
        // is an upper bound.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        last = Instant::now();
    })?;
    let total: f64 = times.iter().sum();
    let rate = sizes.keys as f64 / total / 1e6;
    line(
        "P9",
        "new keys, 2 threads, million a second",
        rate,
        f64::NAN,
        rate,
        6.0,
        rate >= 6.0,
    );
    let worst = times.iter().copied().fold(0.0, f64::max) * 1e3;
    let median = median(&mut times) * 1e3;
    let ratio = worst / median;
    line(
        "P9",
        "slowest batch against the median one",
        worst,
        median,
        ratio,
        10.0,
        ratio <= 10.0,
    );
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
    let mut restore = vec![0; n];
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
                let offsets = table.id_offset(&one, Ids::I64(&ids), true, None, &mut restore)?;
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

fn without_repeats(batch: &[i64]) -> Vec<i64> {
    let mut seen = std::collections::HashSet::new();
    batch
        .iter()
        .copied()
        .filter(|&row| seen.insert(row))
        .collect()
}

/// The peer: rows in one array on huge pages, at places that need no search.
struct Plain {
    floats: Vec<f32>,
    start: usize,
    width: usize,
}

impl Plain {
    fn new(rows: usize, width: usize) -> Plain {
        let mut floats: Vec<f32> = Vec::with_capacity(rows * width + (2 << 18));
        let start = floats.as_ptr().align_offset(2 << 20);
        // SAFETY: the range lies in the vector's own allocation; the advice does not change its
        // contents.
        unsafe {
            let address = floats.as_mut_ptr().add(start).cast();
            libc::madvise(address, rows * width * 4, libc::MADV_HUGEPAGE);
        }
        floats.extend((0..start + rows * width).map(|at| at as f32 * 1e-9));
        Plain {
            floats,
            start,
            width,
        }
    }

    fn place(&self, row: i64) -> usize {
        self.start + row as usize * self.width
    }

    fn copy(&self, rows: &[i64], out: &mut [f32]) {
        for (at, out) in out
            .chunks_exact_mut(self.width)
            .enumerate()
            .take(rows.len())
        {
            self.prefetch(rows, at + 16);
            let place = self.place(rows[at]);
            out.copy_from_slice(&self.floats[place..place + self.width]);
        }
        black_box(out);
    }

    fn update(&mut self, rows: &[i64], grads: &[f32], dim: usize, optimizer: &dyn RowOptimizer) {
        for (at, grad) in grads.chunks_exact(dim).enumerate().take(rows.len()) {
            self.prefetch(rows, at + 8);
            let place = self.place(rows[at]);
            let row = &mut self.floats[place..place + self.width];
            optimizer.update(row, &[dim, 2 * dim], grad);
        }
    }

    fn prefetch(&self, rows: &[i64], at: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(&row) = rows.get(at) {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            let place = self.place(row);
            for float in (place..place + self.width).step_by(16) {
                // SAFETY: a prefetch is a hint and faults at no address.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(self.floats.as_ptr().wrapping_add(float).cast())
                };
            }
        }
    }
}
