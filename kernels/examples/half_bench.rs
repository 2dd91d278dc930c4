//! Measures tables whose embeddings have 2 bytes a value beside such of float32, by turns on the
//! same ids, one JSON line per measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example half_bench -- [--quick] [--only H1,H4]
//!     [--rows N] [--dim N] [--batch N] [--reps N] [--threads N] [--dir DIR]
//! ```
//! H1 to H3 are rows a GB, with the index and without; H4 and H5 lookups of `--batch` ids by key
//! and by offset, H4 of ids by Zipf's law (exponent 1.05), H5 of uniform ones; H6 to H8 steps with
//! gradients of the distinct rows of uniform ids, by the offsets of their leases; H9 a save.
//! H10 are rows a GB with slots of 2 bytes, too, and H11 steps of these beside such of the same
//! rows with slots of float32.
//!
//! Lookups and steps count milliseconds that the process ran, on all of its threads: what else the
//! machine does takes caches from them, but no time. A save counts all that it takes.

#[expect(dead_code, reason = "each bench uses its own part of it")]
mod support;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
#[path = "../tests/singles/mod.rs"]
mod singles;

use crate::singles::{Singles as _, Target};
use mx_rec_kernels::{
    checkpoint, Absent, Ids, Optimizer, Pool, Result, RowDtype, Table, OPTIMIZERS,
};
use std::path::PathBuf;
use std::sync::Arc;
use support::arguments::Arguments;
use support::{draw, fill, interleave, key, line, report, table_of, time, worked, zipf, Better};

const FLOAT32: RowDtype = RowDtype::Float32;
const BFLOAT16: RowDtype = RowDtype::Bfloat16;
const HALVES: [RowDtype; 2] = [BFLOAT16, RowDtype::Float16];

/// An optimizer, and the types of rows and of slots.
type Kind<'a> = (&'a str, RowDtype, RowDtype);

struct Sizes {
    rows: usize,
    dim: usize,
    batch: usize,
    reps: usize,
    threads: usize,
    dir: PathBuf,
    only: Vec<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let number = |name: &str, full, small| arguments.number(name, full, small);
    let only = arguments.text("--only").unwrap_or_default();
    let dir = arguments
        .text("--dir")
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let sizes = Sizes {
        rows: number("--rows", 4_194_304, 16_384),
        dim: number("--dim", 64, 64),
        batch: number("--batch", 65_536, 1024),
        reps: number("--reps", 41, 2),
        threads: number("--threads", 1, 1),
        dir,
        only: only.split_terminator(',').map(Into::into).collect(),
    };
    // What has no name is not a measurement of this bench.
    let wants = |id: &str| match id {
        "" => false,
        _ => sizes.only.is_empty() || sizes.only.iter().any(|only| only == id),
    };
    if ["H1", "H4", "H5", "H6", "H9"].into_iter().any(wants) {
        for half in HALVES {
            let (ours, peer) = (("sgd", half, FLOAT32), ("sgd", FLOAT32, FLOAT32));
            pair(&sizes, (ours, peer), ("H1", "H6", 1.9), &wants)?;
        }
    }
    let wide = ("adagrad", FLOAT32, FLOAT32);
    if ["H2", "H7"].into_iter().any(wants) {
        let ours = ("adagrad", BFLOAT16, FLOAT32);
        pair(&sizes, (ours, wide), ("H2", "H7", 1.3), &wants)?;
    }
    if ["H3", "H8"].into_iter().any(wants) {
        let ours = ("rowwise_adagrad", RowDtype::Float16, FLOAT32);
        pair(&sizes, (ours, wide), ("H3", "H8", 3.5), &wants)?;
    }
    for (name, target) in [("adagrad", 1.9), ("lazy_adam", 1.9)] {
        let ours = (name, BFLOAT16, BFLOAT16);
        if wants("H10") {
            let peer = (name, FLOAT32, FLOAT32);
            pair(&sizes, (ours, peer), ("H10", "", target), &wants)?;
        }
        if wants("H11") {
            let peer = (name, BFLOAT16, FLOAT32);
            pair(&sizes, (ours, peer), ("", "H11", target), &wants)?;
        }
    }
    Ok(())
}

fn named(name: &str) -> &'static Optimizer {
    let mut all = OPTIMIZERS.into_iter();
    all.find(|one| one.name == name).expect("an optimizer")
}

fn step(table: &Table, pool: &Pool, name: &str, offsets: &[i64], grads: &[f32]) -> Result<()> {
    let numbers = named(name).numbers.iter().map(|number| match number.name {
        "weight_decay" => 0.0,
        "lr" => 1e-3,
        _ => 0.1,
    });
    let step = named(name).step(&numbers.collect::<Vec<f32>>())?;
    table.apply(pool, Target::Offsets(offsets), grads, &*step)?;
    Ok(())
}

/// Ours and the peer. `of_rows` and `of_step` are what their rows a GB, of which there should be
/// `target` times as many, and their steps are called.
fn pair(
    sizes: &Sizes,
    (ours, peer): (Kind<'_>, Kind<'_>),
    (of_rows, of_step, target): (&str, &str, f64),
    wants: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let (rows, dim, n) = (sizes.rows, sizes.dim, sizes.batch);
    let pool = Pool::new(sizes.threads)?;
    let both = [ours, peer];
    let tables = both.map(|(_, dtype, slots)| table_of(dim, rows as u64, (dtype, slots)));
    let [first, second] = tables;
    let tables = [Arc::new(first?), Arc::new(second?)];
    let grads = vec![0.01_f32; n * dim];
    let mut inverse = vec![0; n];
    let keys = |rows: Vec<i64>| rows.into_iter().map(key).collect::<Vec<i64>>();
    let batches: Vec<Vec<i64>> = (0..7).map(|at| keys(draw(at, n, rows))).collect();
    let zipf: Vec<Vec<i64>> = zipf(1.05, 7, n, rows).into_iter().map(keys).collect();
    let mut leases = [Vec::new(), Vec::new()];
    for (at, table) in tables.iter().enumerate() {
        fill(table, &pool, 0, rows, n, |_| {})?;
        for ids in &batches {
            let lease = table.lease(&pool, Ids::I64(ids), None, &mut inverse)?;
            let found = lease.offsets();
            let grads = &grads[..found.len() * dim];
            step(table, &pool, both[at].0, found, grads)?;
            leases[at].push(lease);
        }
    }
    let told = |(optimizer, rows, slots): Kind<'_>| match slots {
        RowDtype::Float32 => format!("{rows} {optimizer}"),
        _ => format!("{rows} {optimizer} with slots of {slots}"),
    };
    let what = |verb: &str| format!("{verb}, {} against {}", told(ours), told(peer));
    if wants(of_rows) {
        let bytes = |table: &Table| {
            let memory = table.memory();
            // What is kept of batches beside rows is the same for both, and not of rows.
            let beside = memory.other_bytes.min(4 * rows as u64 + (1 << 16));
            (memory.rows_bytes + beside) as f64 / rows as f64
        };
        let whole = |table: &Table| bytes(table) + table.memory().index_bytes as f64 / rows as f64;
        let [here, there] = [&tables[0], &tables[1]];
        for (kind, here, there) in [
            (
                "rows a GB without index",
                1e9 / bytes(here),
                1e9 / bytes(there),
            ),
            ("rows a GB", 1e9 / whole(here), 1e9 / whole(there)),
        ] {
            let ratio = here / there;
            line(
                of_rows,
                &what(kind),
                here,
                there,
                ratio,
                target,
                ratio >= target,
            );
        }
    }
    for (id, law, batches) in [("H4", "Zipf", &zipf), ("H5", "uniform", &batches)] {
        if ours.0 == "sgd" && wants(id) {
            lookups(sizes, (id, law), &tables, batches, &what)?;
        }
    }
    if wants(of_step) {
        let pairs = interleave(sizes.reps, |rep| {
            let run = |at: usize| {
                let found = leases[at][rep % 7].offsets();
                let grads = &grads[..found.len() * dim];
                worked(|| step(&tables[at], &pool, both[at].0, found, grads))
            };
            (run(0), run(1))
        });
        report(of_step, &what("step"), &pairs, 1.0, Better::Faster);
    }
    if ours.0 == "sgd" && wants("H9") {
        let place = sizes.dir.join(format!("half_bench-{}", std::process::id()));
        // Each replaces its own earlier one, which is a part of saving.
        let save = |at: usize| {
            let place = place.join(at.to_string());
            time(|| checkpoint::save(&tables[at], &pool, &place).map(drop))
        };
        for at in [0, 1] {
            save(at);
        }
        let pairs: Vec<(f64, f64)> = (0..7).map(|_| (save(0), save(1))).collect();
        let _ = std::fs::remove_dir_all(&place);
        report("H9", &what("save"), &pairs, 2.0, Better::Faster);
    }
    Ok(())
}

/// Lookups of the same ids in both tables, by key and by offset.
fn lookups(
    sizes: &Sizes,
    (id, law): (&str, &str),
    tables: &[Arc<Table>; 2],
    batches: &[Vec<i64>],
    what: &dyn Fn(&str) -> String,
) -> Result<()> {
    let (pool, n) = (Pool::new(sizes.threads)?, sizes.batch);
    let mut out = vec![0.0_f32; n * sizes.dim];
    let mut offsets = [Vec::new(), Vec::new()];
    for (table, offsets) in tables.iter().zip(&mut offsets) {
        for ids in batches {
            let mut inverse = vec![0; n];
            let found = table.id_offset(&pool, Ids::I64(ids), false, None, &mut inverse)?;
            let all = inverse.iter().map(|&place| found[place as usize]);
            offsets.push(all.collect::<Vec<i64>>());
        }
    }
    let tell = |by: &str, pairs: Vec<(f64, f64)>| {
        let what = what(&format!("lookup of {law} {by}"));
        report(id, &what, &pairs, 1.3, Better::Faster);
    };
    let pairs = interleave(sizes.reps, |rep| {
        let ids = Ids::I64(&batches[rep % batches.len()]);
        let mut run = |at: usize| worked(|| tables[at].find(&pool, ids, Absent::Zeros, &mut out));
        (run(0), run(1))
    });
    tell("keys", pairs);
    let pairs = interleave(sizes.reps, |rep| {
        let mut run = |at: usize| {
            let offsets = &offsets[at][rep % batches.len()];
            worked(|| tables[at].lookup(&pool, offsets, &mut out))
        };
        (run(0), run(1))
    });
    tell("offsets", pairs);
    Ok(())
}
