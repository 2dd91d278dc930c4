//! Measures saving and restoring a table against `dd` on the same disk (P13), one JSON line per
//! measurement.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example checkpoint_bench --
//!     [--quick] [--dir DIR] [--mib N] [--reps N]
//! ```
//! The table has rows of 64 floats, with one optimizer slot, and `--mib` MiB in all. `dd` copies
//! the same number of bytes from a file in the page cache, with `conv=fsync`; a save ends when
//! everything is flushed. `--dir` (default: out/bench) decides the disk, and needs four times the
//! table's size. Repetitions take turns; ratios come from the medians. Times are seconds.

#[path = "support/arguments.rs"]
mod arguments;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
#[path = "../tests/singles/mod.rs"]
mod singles;

use crate::singles::{Singles as _, Target};
use arguments::Arguments;
use mx_rec_kernels::{checkpoint, Ids, Initializer, Momentum, Pool, Table, TableConfig};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const DIM: usize = 64;
const BATCH: i64 = 65_536;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::of_process();
    let (mib, reps) = (
        arguments.number("--mib", 4096, 64),
        arguments.number("--reps", 7, 3),
    );
    let root = PathBuf::from(arguments.text("--dir").unwrap_or("out/bench"));
    let dir = root.join(format!("checkpoint-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let measured = measure(&dir, mib, reps);
    fs::remove_dir_all(&dir)?;
    measured
}

fn measure(dir: &Path, mib: usize, reps: usize) -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(2)?;
    let rows = (mib << 20) / (2 * 4 * DIM);
    let table = made(rows)?;
    fill(&table, &pool, rows as i64)?;
    let (saved, copy) = (dir.join("table"), dir.join("copy"));
    // What dd copies, twice: half of the table's bytes.
    let source = dir.join("source");
    fs::write(&source, vec![0x5a; mib << 19])?;
    let mut times = Times::default();
    let mut restored = Some(made(rows)?);
    for rep in 0..=reps {
        // Both write new files, as a training does for each of its steps.
        for old in [&saved, &copy] {
            let _ = fs::remove_dir_all(old).or_else(|_| fs::remove_file(old));
        }
        // The order of the two changes, because the disk remembers what came before.
        let (mut save, mut write, mut extra) = (0.0, 0.0, 0);
        for ours in [rep % 2 == 0, rep % 2 == 1] {
            sync()?;
            if ours {
                reset_peak()?;
                let before = resident("VmRSS:")?;
                save = timed(|| Ok(checkpoint::save(&table, &pool, &saved)?.rows))?;
                extra = resident("VmHWM:")?.saturating_sub(before);
            } else {
                write = timed(|| dd(&source, &copy, 2))?;
            }
        }
        let read = timed(|| dd(&source, Path::new("/dev/null"), 2))?;
        drop(restored.take());
        let other = made(rows)?;
        reset_peak()?;
        let before = resident("VmRSS:")?;
        let load = timed(|| Ok(checkpoint::load(&other, &pool, &saved)?))?;
        let memory = other.memory();
        let loaded = memory.rows_bytes + memory.index_bytes;
        let extra_load = resident("VmHWM:")?.saturating_sub(before + loaded);
        restored = Some(other);
        // The first turn warms up.
        if rep > 0 {
            times.save.push(save);
            times.write.push(write);
            times.read.push(read);
            times.load.push(load);
            times.extra.push(extra as f64);
            times.extra_load.push(extra_load as f64);
        }
    }
    let (save, write) = (median(&mut times.save), median(&mut times.write));
    let (load, read) = (median(&mut times.load), median(&mut times.read));
    let (extra, extra_load) = (median(&mut times.extra), median(&mut times.extra_load));
    let size = format!("{mib} MiB table");
    let write_name = "dd of as many bytes, conv=fsync";
    speed(
        "P13 save",
        &format!("save, {size}"),
        write_name,
        save,
        write,
    );
    speed(
        "P13 restore",
        &format!("restore, {size}"),
        write_name,
        load,
        write,
    );
    speed(
        "P13 restore r",
        &format!("restore, {size}, files in the page cache"),
        "dd of as many bytes to /dev/null",
        load,
        read,
    );
    memory("P13 save", "extra memory of a save, bytes", extra);
    memory(
        "P13 restore",
        "extra memory of a restore, bytes",
        extra_load,
    );
    Ok(())
}

#[derive(Default)]
struct Times {
    save: Vec<f64>,
    write: Vec<f64>,
    load: Vec<f64>,
    read: Vec<f64>,
    extra: Vec<f64>,
    extra_load: Vec<f64>,
}

fn made(rows: usize) -> Result<Table, Box<dyn Error>> {
    Ok(Table::new(TableConfig {
        seed: 1,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        ..TableConfig::new("checkpoint", DIM, rows as u64)
    })?)
}

/// Gives every key a step of momentum, so that rows have a slot.
fn fill(table: &Table, pool: &Pool, rows: i64) -> Result<(), Box<dyn Error>> {
    let momentum = Momentum::new(0.1, 0.9, false)?;
    let grads: Vec<f32> = (0..BATCH as usize * DIM)
        .map(|at| (at % 97) as f32 * 0.01)
        .collect();
    for first in (0..rows).step_by(BATCH as usize) {
        let keys: Vec<i64> = (first..rows.min(first + BATCH))
            .map(|at| at.wrapping_mul(0x5851_f42d_4c95_7f2d))
            .collect();
        let target = Target::Ids(Ids::I64(&keys));
        table.apply(pool, target, &grads[..keys.len() * DIM], &momentum)?;
    }
    Ok(())
}

/// Copies `from` to `to`, `times` over, and flushes it to the disk.
fn dd(from: &Path, to: &Path, times: u64) -> Result<u64, Box<dyn Error>> {
    let is_file = to != Path::new("/dev/null");
    for at in 0..times {
        let mut command = Command::new("dd");
        command.arg(format!("if={}", from.display()));
        command.arg(format!("of={}", to.display())).arg("bs=1M");
        if is_file {
            let start = at * fs::metadata(from)?.len() / (1 << 20);
            command.arg(format!("seek={start}"));
            // Only the last turn waits for the disk, as a save does once.
            command.arg(if at + 1 == times {
                "conv=fsync"
            } else {
                "conv=notrunc"
            });
        }
        let status = command.stderr(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("dd failed: {status}").into());
        }
    }
    Ok(times)
}

/// Waits until nothing is left to be written.
fn sync() -> Result<(), Box<dyn Error>> {
    Command::new("sync").status()?;
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<u64, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A line of /proc/self/status in bytes.
fn resident(name: &str) -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(name));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kibibytes.ok_or("no such line")?.parse::<u64>()? << 10)
}

/// Starts the peak of memory anew.
fn reset_peak() -> Result<(), Box<dyn Error>> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

fn speed(id: &str, what: &str, peer_name: &str, ours: f64, peer: f64) {
    const TARGET: f64 = 0.7;
    let ratio = peer / ours;
    println!(
        "{{\"id\":\"{id}\",\"what\":\"{what}\",\"peer_name\":\"{peer_name}\",\"unit\":\"s\",\"ours\":{ours:.4},\"peer\":{peer:.4},\
         \"ratio\":{ratio:.3},\"target\":{TARGET},\"met\":{},\"at_least\":true}}",
        ratio >= TARGET
    );
}

fn memory(id: &str, what: &str, bytes: f64) {
    const MOST: f64 = 67_108_864.0;
    println!(
        "{{\"id\":\"{id}\",\"what\":\"{what}\",\"peer_name\":\"\",\"unit\":\"bytes\",\"ours\":{bytes},\"peer\":null,\"ratio\":{bytes},\
         \"target\":{MOST},\"met\":{},\"at_least\":false}}",
        bytes <= MOST
    );
}
