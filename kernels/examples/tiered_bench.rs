//! Steps of a table of which a part is in memory, against the same table all in memory, one JSON
//! line per measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example tiered_bench -- [--quick] [--rows N] [--dim N]
//!     [--batch N] [--steps N] [--directory PATH]
//! ```
//! A step looks a batch up, copies its rows and updates them with LazyAdam. `fits` is a table with
//! a tier whose rows all fit in memory; `disk` has a tenth there; `ahead` prepares batches in
//! another thread, two ahead of the step. `ratio` is steps a second against the table in memory.

#[path = "support/arguments.rs"]
mod arguments;

use arguments::Arguments;
use mx_rec_kernels::{
    Columns, Ids, LazyAdam, Lease, LookupGradients, Pool, Result, Table, TableConfig, TierConfig,
};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::Instant;

struct Sizes {
    rows: usize,
    dim: usize,
    batch: usize,
    steps: usize,
    directory: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let sizes = Sizes {
        rows: arguments.number("--rows", 2_000_000, 200_000),
        dim: arguments.number("--dim", 16, 16),
        batch: arguments.number("--batch", 65_536, 8_192),
        steps: arguments.number("--steps", 60, 30),
        directory: arguments
            .text("--directory")
            .map_or_else(std::env::temp_dir, PathBuf::from),
    };
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

/// Steps a second.
fn run(sizes: &Sizes, ram_rows: Option<u64>, batches: &[Vec<i64>], ahead: bool) -> Result<f64> {
    let config = TableConfig {
        seed: 1,
        ..TableConfig::new("bench", sizes.dim, sizes.rows as u64)
    };
    let table = Arc::new(match ram_rows {
        None => Table::new(config)?,
        Some(ram_rows) => {
            let directories = vec![sizes.directory.clone()];
            let tier = TierConfig {
                ram_rows,
                directories,
                direct: false,
            };
            Table::tiered(config, &tier)?
        }
    });
    let pool = Pool::new(2)?;
    let all: Vec<i64> = (0..sizes.rows as i64).collect();
    let grads = vec![0.01; sizes.batch * sizes.dim];
    for ids in all.chunks(sizes.batch.min(sizes.rows / 20)) {
        let mut inverse = vec![0; ids.len()];
        let lease = table.lease(&pool, Ids::I64(ids), None, &mut inverse)?;
        update(
            &table,
            &pool,
            (&lease, &inverse),
            &grads[..ids.len() * sizes.dim],
        )?;
    }
    let (warm, timed) = batches.split_at(batches.len() / 2);
    let mut rows = vec![0.0; sizes.batch * sizes.dim];
    let mut step = |ids: &[i64], prepared: Option<(Vec<i32>, Lease)>| -> Result<()> {
        let (mut inverse, lease) = match prepared {
            Some((inverse, lease)) => (inverse, Some(lease)),
            None => (vec![0; ids.len()], None),
        };
        let ids = Ids::I64(ids);
        let claimed = match &lease {
            Some(lease) => table.claim(&pool, ids, lease.offsets(), None, &inverse)?,
            None => false,
        };
        let lease = match lease.filter(|_| claimed) {
            Some(lease) => lease,
            None => table.lease(&pool, ids, None, &mut inverse)?,
        };
        table.embed(&pool, lease.offsets(), &inverse, &mut rows)?;
        update(&table, &pool, (&lease, &inverse), &grads)
    };
    for ids in warm {
        step(ids, None)?;
    }
    let start = Instant::now();
    if ahead {
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
                .try_for_each(|ids| step(ids, receiver.recv().ok()))
        })?;
    } else {
        timed.iter().try_for_each(|ids| step(ids, None))?;
    }
    let rate = timed.len() as f64 / start.elapsed().as_secs_f64();
    if let Some(tier) = table.stats().tier {
        eprintln!("{tier:?}");
    }
    Ok(rate)
}

fn update(
    table: &Table,
    pool: &Pool,
    (lease, inverse): (&Lease, &[i32]),
    grads: &[f32],
) -> Result<()> {
    let adam = LazyAdam::new(0.001, 0.9, 0.999, 1e-8, 0.9, 0.999)?;
    let lookup = LookupGradients {
        offsets: lease.offsets(),
        inverse,
        grads: Columns::all(grads, table.dim())?,
        bags: None,
    };
    table.apply_lookups(pool, &[lookup], &adam).map(drop)
}
