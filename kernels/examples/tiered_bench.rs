//! Steps of a table of which a part is in memory, against the same table all in memory, one JSON
//! line per measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example tiered_bench -- [--quick] [--halves] [--rows N]
//!     [--dim N] [--batch N] [--steps N] [--threads N] [--directory PATH]
//! ```
//! A step looks a batch up, copies its rows and updates them with LazyAdam. `fits` is a table with
//! a tier whose rows all fit in memory; `disk` has a tenth there; `ahead` prepares batches in
//! another thread, two ahead of the step. `ratio` is steps a second against the table in memory.
//!
//! With `--halves` it measures tables of bfloat16 beside one of float32, a tenth of which is in
//! memory, by turns of steps with the same batches (Zipf 1.05): with as many rows in memory, and
//! with as many bytes. Their files are hot, in the page cache, or read past it. `ms` are by the
//! clock and `processor_ms` of all threads, medians; the other figures are means of a step.

#[expect(dead_code, reason = "each bench uses its own part of it")]
mod support;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
#[path = "../tests/singles/mod.rs"]
mod singles;

use crate::singles::Singles as _;
use mx_rec_kernels::{
    Columns, Ids, LazyAdam, Lease, LookupGradients, Pool, Result, RowDtype, RowStorage, Table,
    TableConfig, TierConfig, TierStats,
};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::Instant;
use support::arguments::Arguments;
use support::{median, time, worked};

struct Sizes {
    rows: usize,
    dim: usize,
    batch: usize,
    steps: usize,
    threads: usize,
    directory: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let sizes = Sizes {
        rows: arguments.number("--rows", 2_000_000, 200_000),
        dim: arguments.number("--dim", 16, 16),
        batch: arguments.number("--batch", 65_536, 8_192),
        steps: arguments.number("--steps", 60, 30),
        threads: arguments.number("--threads", 2, 2),
        directory: arguments
            .text("--directory")
            .map_or_else(std::env::temp_dir, PathBuf::from),
    };
    if arguments.has("--halves") {
        return [false, true]
            .into_iter()
            .try_for_each(|direct| halves(&sizes, direct));
    }
    for exponent in [1.05, 1.2] {
        let batches = zipf(&sizes, exponent);
        let memory = run(&sizes, None, &batches, false)?;
        let fits = run(&sizes, Some(sizes.rows as u64), &batches, false)?;
        let disk = run(&sizes, Some(sizes.rows as u64 / 10), &batches, false)?;
        let memory_ahead = run(&sizes, None, &batches, true)?;
        let ahead = run(&sizes, Some(sizes.rows as u64 / 10), &batches, true)?;
        for (what, steps, peer) in [
            ("fits", fits, memory),
            ("disk", disk, memory),
            ("ahead", ahead, memory_ahead),
        ] {
            println!(
                "{{\"id\":\"P14\",\"what\":\"{what}\",\"zipf\":{exponent},\
                 \"steps_per_s\":{steps:.1},\"in_memory\":{peer:.1},\"ratio\":{:.3}}}",
                steps / peer
            );
        }
    }
    Ok(())
}

/// Keys by Zipf's law, scattered over the rows.
fn zipf(sizes: &Sizes, exponent: f64) -> Vec<Vec<i64>> {
    let mut sums = Vec::with_capacity(sizes.rows);
    let mut sum = 0.0;
    for rank in 1..=sizes.rows {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ mixed >> 27) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let rows = sizes.rows as u64;
    (0..sizes.steps * 2)
        .map(|_| {
            let rank = |draw: f64| sums.partition_point(|&one| one < draw * sum) as u64;
            (0..sizes.batch)
                .map(|_| (rank(draw()).wrapping_mul(1_000_003) % rows) as i64)
                .collect()
        })
        .collect()
}

/// A table under measurement.
struct Bench {
    table: Arc<Table>,
    pool: Pool,
    /// The rows of a batch.
    rows: Vec<f32>,
    grads: Vec<f32>,
}

impl Bench {
    /// A table with all of its rows, and their slots. `tier`: how many of them are in memory, and
    /// whether the others are read past the page cache.
    fn new(
        sizes: &Sizes,
        tier: Option<(u64, bool)>,
        (dtype, slot_dtype): (RowDtype, RowDtype),
    ) -> Result<Bench> {
        let config = TableConfig {
            seed: 1,
            row_storage: RowStorage {
                dtype,
                slot_dtype,
                ..RowStorage::default()
            },
            ..TableConfig::new("bench", sizes.dim, sizes.rows as u64)
        };
        let table = match tier {
            None => Table::new(config)?,
            Some((ram_rows, direct)) => {
                let directories = vec![sizes.directory.clone()];
                let tier = TierConfig {
                    ram_rows,
                    directories,
                    direct,
                };
                Table::tiered(config, &tier)?
            }
        };
        let mut bench = Bench {
            table: Arc::new(table),
            pool: Pool::new(sizes.threads)?,
            rows: vec![0.0; sizes.batch * sizes.dim],
            grads: vec![0.01; sizes.batch * sizes.dim],
        };
        let all: Vec<i64> = (0..sizes.rows as i64).collect();
        for ids in all.chunks(sizes.batch.min(sizes.rows / 20)) {
            bench.step(ids, None)?;
        }
        Ok(bench)
    }

    /// One step with ids, or with what was prepared of them.
    fn step(&mut self, ids: &[i64], prepared: Option<(Vec<i32>, Lease)>) -> Result<()> {
        let (table, pool, dim) = (&self.table, &self.pool, self.table.dim());
        let floats = ids.len() * dim;
        let (mut inverse, lease) = match prepared {
            Some((inverse, lease)) => (inverse, Some(lease)),
            None => (vec![0; ids.len()], None),
        };
        let ids = Ids::I64(ids);
        let claimed = match &lease {
            Some(lease) => table.claim(pool, ids, lease.offsets(), None, &inverse)?,
            None => false,
        };
        let lease = match lease.filter(|_| claimed) {
            Some(lease) => lease,
            None => table.lease(pool, ids, None, &mut inverse)?,
        };
        table.embed(pool, lease.offsets(), &inverse, &mut self.rows[..floats])?;
        let adam = LazyAdam::new(0.001, 0.9, 0.999, 1e-8, 0.9, 0.999)?;
        let lookup = LookupGradients {
            offsets: lease.offsets(),
            inverse: &inverse,
            grads: Columns::all(&self.grads[..floats], dim)?,
            bags: None,
        };
        table.apply_lookups(pool, &[lookup], &adam).map(drop)
    }

    fn tier(&self) -> TierStats {
        self.table.stats().tier.unwrap_or_default()
    }
}

/// Steps a second.
fn run(sizes: &Sizes, ram_rows: Option<u64>, batches: &[Vec<i64>], ahead: bool) -> Result<f64> {
    let float32 = (RowDtype::Float32, RowDtype::Float32);
    let mut bench = Bench::new(sizes, ram_rows.map(|rows| (rows, false)), float32)?;
    let (warm, timed) = batches.split_at(batches.len() / 2);
    for ids in warm {
        bench.step(ids, None)?;
    }
    let start = Instant::now();
    if ahead {
        let table = Arc::clone(&bench.table);
        std::thread::scope(|scope| -> Result<()> {
            let (sender, receiver) = sync_channel(1);
            let table = &table;
            scope.spawn(move || {
                let Ok(pool) = Pool::new(1) else { return };
                for ids in timed {
                    let mut inverse = vec![0; ids.len()];
                    let lease = table.prepare(&pool, Ids::I64(ids), None, &mut inverse);
                    if sender.send((inverse, lease)).is_err() {
                        return;
                    }
                }
            });
            timed
                .iter()
                .try_for_each(|ids| bench.step(ids, receiver.recv().ok()))
        })?;
    } else {
        timed.iter().try_for_each(|ids| bench.step(ids, None))?;
    }
    let rate = timed.len() as f64 / start.elapsed().as_secs_f64();
    if ram_rows.is_some() {
        eprintln!("{:?}", bench.tier());
    }
    Ok(rate)
}

/// Tables of float32 and of bfloat16, by turns.
fn halves(sizes: &Sizes, direct: bool) -> Result<()> {
    const WIDE: RowDtype = RowDtype::Float32;
    const HALF: RowDtype = RowDtype::Bfloat16;
    let share = sizes.rows as u64 / 10;
    // Words of an embedding and two slots.
    let width = |(rows, slots): (RowDtype, RowDtype)| {
        (rows.words(sizes.dim) + 2 * slots.words(sizes.dim)) as u64
    };
    let as_many = |types| share * width((WIDE, WIDE)) / width(types);
    let kinds = [
        ("float32", (WIDE, WIDE), share),
        ("bfloat16 rows, as many in memory", (HALF, WIDE), share),
        (
            "bfloat16 rows and slots, as many in memory",
            (HALF, HALF),
            share,
        ),
        (
            "bfloat16 rows, as many bytes of memory",
            (HALF, WIDE),
            as_many((HALF, WIDE)),
        ),
        (
            "bfloat16 rows and slots, as many bytes of memory",
            (HALF, HALF),
            as_many((HALF, HALF)),
        ),
    ];
    let batches = zipf(sizes, 1.05);
    let (warm, timed) = batches.split_at(batches.len() / 2);
    let benches =
        kinds.map(|(_, types, ram_rows)| Bench::new(sizes, Some((ram_rows, direct)), types));
    let mut benches = benches.into_iter().collect::<Result<Vec<Bench>>>()?;
    for ids in warm {
        benches.iter_mut().try_for_each(|one| one.step(ids, None))?;
    }
    let before: Vec<TierStats> = benches.iter().map(Bench::tier).collect();
    let mut times = vec![(Vec::new(), Vec::new()); benches.len()];
    for ids in timed {
        for (bench, (clock, processor)) in benches.iter_mut().zip(&mut times) {
            let mut work = 0.0;
            clock.push(time(|| {
                work = worked(|| bench.step(ids, None));
                Ok(())
            }));
            processor.push(work);
        }
    }
    let files = if direct {
        "past the page cache"
    } else {
        "page cache"
    };
    for (((kind, bench), before), (clock, processor)) in
        kinds.iter().zip(&benches).zip(before).zip(&mut times)
    {
        let after = bench.tier();
        let steps = timed.len() as f64;
        let mean = |after: u64, before: u64| (after - before) as f64 / steps;
        println!(
            "{{\"what\":\"{}\",\"files\":\"{files}\",\"ms\":{:.2},\"processor_ms\":{:.2},\
             \"rows_read\":{:.0},\"kb_read\":{:.0},\"kb_written\":{:.0},\"waited_ms\":{:.2},\
             \"mb_on_disk\":{:.0}}}",
            kind.0,
            median(clock),
            median(processor),
            mean(after.misses, before.misses),
            mean(after.bytes_read, before.bytes_read) / 1e3,
            mean(after.bytes_written, before.bytes_written) / 1e3,
            mean(after.wait_nanoseconds, before.wait_nanoseconds) / 1e6,
            after.bytes_on_disk as f64 / 1e6,
        );
    }
    Ok(())
}
