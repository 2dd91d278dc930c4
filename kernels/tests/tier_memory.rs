//! How little memory rows on disk, their save and their restore need; alone in its process, because
//! it looks at the whole of it.

mod peak;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
mod singles;

use crate::singles::{Singles as _, Target};
use mx_rec_kernels::{
    checkpoint, Absent, Ids, Initializer, Pool, Sgd, Table, TableConfig, TierConfig,
};
use peak::{extra, status};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const DIM: usize = 32;
const ROWS: i64 = 1_700_000;
const BATCH: i64 = 50_000;
const RAM_ROWS: u64 = 60_000;

/// Bytes of memory that a row on disk may take, with its key in the index.
const MOST_OF_A_ROW: f64 = 24.0;

/// Bytes that a save or a restore may take beside the table.
const MOST_BESIDE: u64 = 64 << 20;

/// What tells a copy of this test that it is the other process, where it works, and how many bytes
/// it wastes; and how the line begins in which it says what it has measured.
const CHILD: &str = "MX_REC_TIER_MEMORY_CHILD";
const WASTE: &str = "MX_REC_TIER_MEMORY_WASTE";
const TOLD: &str = "measured: ";

fn table(directory: &Path) -> Arc<Table> {
    let config = TableConfig {
        seed: 5,
        initializer: Initializer::Ones,
        ..TableConfig::new("memory", DIM, ROWS as u64)
    };
    let tier = TierConfig {
        ram_rows: RAM_ROWS,
        directories: vec![directory.to_path_buf()],
        direct: false,
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
    let grads: Vec<f32> = (0..BATCH as usize * DIM).map(|at| at as f32).collect();
    // What does not grow with the rows on disk: buffers, and what belongs to rows in memory.
    let mut base = None;
    let mut told = Vec::new();
    for first in (0..ROWS).step_by(BATCH as usize) {
        let ids: Vec<i64> = (first..first + BATCH).collect();
        let target = Target::Ids(Ids::I64(&ids));
        // No two rows have the same values.
        let sgd = Sgd::new(1.0 + first as f32).unwrap();
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

    let size = on_disk * 4 * DIM as u64;
    assert!(size > 3 * MOST_BESIDE, "the table is too small to tell");
    checkpoint::save(&filled, &pool, &saved).unwrap();
    let before = sample(&filled, &pool);
    drop(filled);

    // A process that has done nothing yet keeps no memory that a restore or a save could use again
    // unseen. What is allocated beside them is seen.
    let (loading, saving, found) = in_another_process(&directory, 0);
    println!(
        "beside the table: a restore of {} MiB takes {} MiB, a save {} MiB",
        size >> 20,
        loading >> 20,
        saving >> 20
    );
    assert!(loading < MOST_BESIDE, "loading: {} MiB", loading >> 20);
    assert!(saving < MOST_BESIDE, "saving: {} MiB", saving >> 20);
    let sum = before.iter().fold(0, sum_of);
    assert_eq!(found, sum, "restored rows");
    let (loading, saving, _) = in_another_process(&directory, MOST_BESIDE);
    assert!(loading >= MOST_BESIDE, "loading: {} MiB", loading >> 20);
    assert!(saving >= MOST_BESIDE, "saving: {} MiB", saving >> 20);
    fs::remove_dir_all(&directory).unwrap();
}

/// Adds a number to a checksum.
fn sum_of(sum: u64, &bits: &u32) -> u64 {
    sum.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(bits)
}

/// What a restore and a save take beside the table in a process of their own, which allocates
/// `waste` bytes beside each of them, and the checksum of what it found.
fn in_another_process(directory: &Path, waste: u64) -> (u64, u64, u64) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(CHILD, directory)
        .env(WASTE, waste.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let told = text.lines().find_map(|line| line.split_once(TOLD));
    let told = told.unwrap_or_else(|| panic!("{text}")).1;
    let numbers: Vec<u64> = told
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    (numbers[0], numbers[1], numbers[2])
}

/// Not a test: what the other process does.
#[test]
#[ignore = "the other process of the test here"]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else {
        return;
    };
    let directory = Path::new(&directory);
    let waste = std::env::var(WASTE).unwrap().parse().unwrap();
    let pool = Pool::new(2).unwrap();
    let restored = table(&directory.join("rows"));
    let beside = |work: &dyn Fn()| {
        extra(|| {
            let held = vec![1_u8; waste];
            work();
            drop(std::hint::black_box(held));
        })
    };
    let loading = beside(&|| {
        checkpoint::load(&restored, &pool, &directory.join("saved")).unwrap();
    });
    let memory = restored.memory();
    let loaded = memory.rows_bytes + memory.index_bytes + memory.other_bytes;
    assert!(
        loading > loaded / 2,
        "{loading} of {loaded} bytes were seen"
    );
    let loading = loading.saturating_sub(loaded);
    let saving = beside(&|| {
        checkpoint::save(&restored, &pool, &directory.join("again")).unwrap();
    });
    assert!(on_disk(&restored) >= ROWS as u64 - RAM_ROWS);
    let sum = sample(&restored, &pool).iter().fold(0, sum_of);
    println!("{TOLD}{loading} {saving} {sum}");
    fs::remove_dir_all(directory.join("again")).unwrap();
}
