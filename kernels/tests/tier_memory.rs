//! How little memory rows on disk, their save and their restore need; alone in its process, because
//! it looks at the whole of it.

use mx_rec_kernels::{
    checkpoint, Absent, Ids, Initializer, Pool, Table, TableConfig, Target, TierConfig,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const DIM: usize = 16;
const ROWS: i64 = 4_000_000;
const BATCH: i64 = 50_000;
const RAM_ROWS: u64 = 60_000;

/// Bytes of memory that a row on disk may take, with its key in the index.
const MOST_OF_A_ROW: f64 = 24.0;

/// Bytes that a save or a restore may take beside the table.
const MOST_BESIDE: u64 = 64 << 20;

/// The field `name` of /proc/self/status, in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kibibytes = line.split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() << 10
}

/// Bytes by which the peak of `work` exceeds what there was before.
fn extra(work: impl FnOnce()) -> u64 {
    // Starts the peak anew.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    work();
    status("VmHWM:").saturating_sub(before)
}

fn table(directory: &Path) -> Arc<Table> {
    let config = TableConfig {
        name: "memory".into(),
        dim: DIM,
        capacity: ROWS as u64,
        seed: 5,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        init_param: 1.0,
        frozen_keys: Vec::new(),
        admission_sketch_bytes: 0,
    };
    let tier = TierConfig {
        ram_rows: RAM_ROWS,
        directories: vec![directory.to_path_buf()],
    };
    Arc::new(Table::tiered(config, &tier).unwrap())
}

fn on_disk(table: &Table) -> u64 {
    table.stats().tier.unwrap().rows_on_disk
}

/// Every 997th row, as an evaluation finds it.
fn sample(table: &Table, pool: &Pool) -> Vec<u32> {
    let ids: Vec<i64> = (0..ROWS).step_by(997).collect();
    let mut found = vec![0.0; ids.len() * DIM];
    table
        .find(pool, Ids::I64(&ids), Absent::Zeros, &mut found)
        .unwrap();
    found.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_row_on_disk_takes_at_most_24_bytes_and_a_save_or_restore_64_mib() {
    let pool = Pool::new(2).unwrap();
    let directory = std::env::temp_dir().join(format!("mx_rec-tier-memory-{}", std::process::id()));
    let files = directory.join("rows");
    fs::create_dir_all(&files).unwrap();
    let saved = directory.join("saved");

    let filled = table(&files);
    let sgd = mx_rec_kernels::Sgd::new(0.5, 0.0).unwrap();
    let grads = vec![0.25; BATCH as usize * DIM];
    // What does not grow with the rows on disk: buffers, and what belongs to rows in memory.
    let mut base = None;
    let mut told = Vec::new();
    for first in (0..ROWS).step_by(BATCH as usize) {
        let ids: Vec<i64> = (first..first + BATCH).collect();
        let target = Target::Ids(Ids::I64(&ids));
        filled.apply(&pool, target, &grads, &sgd).unwrap();
        let (on_disk, memory) = (on_disk(&filled), filled.memory());
        let resident = status("VmRSS:");
        if on_disk < 300_000 {
            continue;
        }
        let (rows, other, _) = *base.get_or_insert((on_disk, memory.other_bytes, resident));
        if on_disk >= 1_000_000 {
            let of_index = memory.index_bytes as f64 / filled.len() as f64;
            let of_rest = (memory.other_bytes - other) as f64 / (on_disk - rows) as f64;
            told.push(of_index + of_rest);
        }
    }
    let (rows, _, resident) = base.unwrap();
    let on_disk = on_disk(&filled);
    assert_eq!(on_disk, ROWS as u64 - RAM_ROWS);
    let resident = (status("VmRSS:") - resident) as f64 / (on_disk - rows) as f64;
    let most = told.iter().copied().fold(0.0, f64::max);
    println!(
        "a row on disk takes {:.1} bytes at {on_disk} rows, {most:.1} at most from 1,000,000 rows \
         on, {resident:.1} of the process",
        told[told.len() - 1],
    );
    assert!(most <= MOST_OF_A_ROW, "{most}");
    assert!(resident <= MOST_OF_A_ROW, "{resident}");

    let before = sample(&filled, &pool);
    let size = on_disk * 4 * DIM as u64;
    assert!(size > 3 * MOST_BESIDE, "the table is too small to tell");
    let saving = extra(|| {
        checkpoint::save(&filled, &pool, &saved).unwrap();
    });
    drop(filled);
    let restored = table(&files);
    let loading = extra(|| {
        checkpoint::load(&restored, &pool, &saved).unwrap();
    });
    let memory = restored.memory();
    let loaded = memory.rows_bytes + memory.index_bytes + memory.other_bytes;
    let loading = loading.saturating_sub(loaded);
    println!(
        "beside the table: a save of {} MiB takes {} MiB, its restore {} MiB",
        size >> 20,
        saving >> 20,
        loading >> 20
    );
    assert!(saving < MOST_BESIDE, "saving: {} MiB", saving >> 20);
    assert!(loading < MOST_BESIDE, "loading: {} MiB", loading >> 20);
    assert!(sample(&restored, &pool) == before);
    assert!(self::on_disk(&restored) >= ROWS as u64 - RAM_ROWS);
    fs::remove_dir_all(&directory).unwrap();
}
