//! Hostile bytes in the files of rows on disk: a read gives the row that was written, or
//! `DataLoss`, and never another row or a crash.

use crate::directory::Directory;
use crate::singles::{Singles as _, Target};
use crate::support::UNIFORM;
use mx_rec_kernels::tier::Files;
use mx_rec_kernels::{Absent, Ids, Kind, LazyAdam, Pool, Result, Table, TableConfig};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DIM: usize = 5;
const KEYS: i64 = 700;
const RAM_ROWS: u64 = 80;
/// A record: 20 bytes, then embedding and two slots.
const RECORD: usize = 20 + 3 * DIM * 4;

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

struct Case {
    directory: Directory,
    table: Arc<Table>,
    pool: Pool,
}

impl Case {
    /// A table whose files have names, mostly on disk, after rows have moved for a while.
    fn new(name: &str, draw: &mut Draw) -> Case {
        let directory = Directory::new(name);
        let files = Files::open_named(std::slice::from_ref(&directory.0)).unwrap();
        let files = match draw.below(2) {
            0 => files,
            _ => files.past_page_cache(),
        };
        let config = TableConfig {
            seed: 4,
            initializer: UNIFORM,
            ..TableConfig::new("hostile", DIM, 2 * KEYS as u64)
        };
        let table = Table::tiered_on(config, RAM_ROWS, Arc::new(files)).unwrap();
        let case = Case {
            directory,
            table: Arc::new(table),
            pool: Pool::new(1 + draw.below(2)).unwrap(),
        };
        for _ in 0..60 {
            let ids: Vec<i64> = (0..50).map(|_| draw.below(KEYS as usize) as i64).collect();
            case.update(&ids, draw).unwrap();
        }
        let all: Vec<i64> = (0..KEYS).collect();
        all.chunks(50)
            .for_each(|ids| case.update(ids, draw).unwrap());
        case
    }

    fn update(&self, ids: &[i64], draw: &mut Draw) -> Result<()> {
        let adam = LazyAdam::new(0.01, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap();
        let value = |_| (draw.next() % 1000) as f32 / 500.0 - 1.0;
        let grads: Vec<f32> = (0..ids.len() * DIM).map(value).collect();
        let target = Target::Ids(Ids::I64(ids));
        self.table
            .apply(&self.pool, target, &grads, &adam)
            .map(drop)
    }

    fn find(&self, key: i64) -> Result<Vec<u32>> {
        let mut row = [9.0; DIM];
        let ids = [key];
        self.table
            .find(&self.pool, Ids::I64(&ids), Absent::Zeros, &mut row)?;
        Ok(row.iter().map(|float| float.to_bits()).collect())
    }

    /// The file that holds something; those of narrower rows before are empty.
    fn file(&self) -> File {
        let paths = fs::read_dir(&self.directory.0).unwrap();
        let files = paths.map(|entry| {
            let path = entry.unwrap().path();
            File::options().read(true).write(true).open(path).unwrap()
        });
        files
            .max_by_key(|file| file.metadata().unwrap().len())
            .unwrap()
    }
}

/// Breaks a copy of a file's bytes in one way or another.
fn broken(whole: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let records = whole.len() / RECORD;
    let (one, other) = (draw.below(records), draw.below(records));
    match draw.below(8) {
        0 => bytes.truncate(draw.below(whole.len())),
        1 => bytes[one * RECORD..].fill(0),
        2 => bytes.iter_mut().for_each(|byte| *byte = draw.next() as u8),
        // Another record, whole, as a write to a wrong place leaves it.
        3 => bytes.copy_within(one * RECORD..(one + 1) * RECORD, other * RECORD),
        // All records moved by one.
        4 => bytes.copy_within(..whole.len() - RECORD, RECORD),
        5 => {
            // A record's floats under another's header.
            let header = one * RECORD..one * RECORD + 20;
            bytes.copy_within(header, other * RECORD);
        }
        // Some bytes of headers, or anywhere.
        which => {
            for _ in 0..1 + draw.below(200) {
                let at = match which {
                    6 => draw.below(records) * RECORD + draw.below(20),
                    _ => draw.below(bytes.len()),
                };
                bytes[at] ^= 1 << draw.below(8);
            }
        }
    }
    bytes
}

/// Puts bytes into a file as if it had always held them.
fn put(file: &File, bytes: &[u8]) {
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

/// Breaks the file of a table, asks for everything, and mends it. How many reads were refused.
fn attack(case: &Case, draw: &mut Draw) -> u64 {
    let expected: Vec<Vec<u32>> = (0..KEYS).map(|key| case.find(key).unwrap()).collect();
    let file = case.file();
    let mut whole = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut whole, 0).unwrap();
    put(&file, &broken(&whole, draw));
    let mut refused = 0;
    for (key, expected) in expected.iter().enumerate() {
        match case.find(key as i64) {
            Ok(row) => assert_eq!(row, *expected, "key {key}"),
            Err(error) => {
                let text = error.to_string();
                assert_eq!(error.kind(), Kind::DataLoss, "{text}");
                for named in ["table=hostile", &format!("key={key}"), "file=", "offset="] {
                    assert!(text.contains(named), "{text}");
                }
                refused += 1;
            }
        }
    }
    // An export is whole or refused.
    if let Ok(export) = case.table.export() {
        for (key, row) in export.keys.iter().zip(export.embedding.chunks_exact(DIM)) {
            let row: Vec<u32> = row.iter().map(|float| float.to_bits()).collect();
            assert_eq!(row, expected[*key as usize], "key {key}");
        }
    }
    put(&file, &whole);
    for (key, expected) in expected.iter().enumerate() {
        assert_eq!(case.find(key as i64).unwrap(), *expected, "key {key}");
    }
    // Steps on a broken file: each is done or changes nothing. What it had compacted by then it
    // had read as it was written.
    put(&file, &broken(&whole, draw));
    for start in [0, 200, 400] {
        let ids: Vec<i64> = (start..start + 40).collect();
        if let Err(error) = case.update(&ids, draw) {
            assert_eq!(error.kind(), Kind::DataLoss, "{error}");
            refused += 1;
        }
    }
    assert_eq!(case.table.len(), KEYS as u64);
    refused
}

#[test]
fn hostile_bytes_in_files_of_rows_give_the_right_row_or_data_loss() {
    let mut refused = 0;
    for seed in 0..24 {
        let mut draw = Draw(seed);
        let case = Case::new("short", &mut draw);
        refused += attack(&case, &mut draw);
    }
    assert!(refused > 500, "{refused}");
}

#[test]
#[ignore = "runs for MX_REC_FUZZ_SECONDS, else 60, seconds"]
fn hostile_bytes_in_files_of_rows_for_a_while() {
    let seconds = std::env::var("MX_REC_FUZZ_SECONDS").map_or(60, |text| text.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut refused) = (1000, 0);
    while Instant::now() < end {
        let mut draw = Draw(seed);
        let case = Case::new("long", &mut draw);
        refused += attack(&case, &mut draw);
        seed += 1;
    }
    println!(
        "{} files were broken, {refused} reads refused",
        (seed - 1000) * 2
    );
}
