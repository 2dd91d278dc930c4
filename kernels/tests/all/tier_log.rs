//! Claims about rows on disk: what is appended is read, whatever is freed, moved or fails.

use crate::faulty::{Faulty, Operation};
use crate::support::expect_error;
use mx_rec_kernels::tier::{Files, Log, Record, Storage, Want};
use mx_rec_kernels::{Kind, Pool};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Directories of a test, which are removed at its end.
struct Directories(Vec<PathBuf>);

impl Directories {
    fn new(n: usize) -> Directories {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("tier_log-{}-{number}", std::process::id()));
        let directories: Vec<_> = (0..n).map(|at| root.join(at.to_string())).collect();
        for directory in &directories {
            std::fs::create_dir_all(directory).unwrap();
        }
        Directories(directories)
    }

    fn faulty(&self) -> Faulty {
        Faulty::new(Arc::new(Files::open(&self.0).unwrap()))
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0[0].parent().unwrap());
    }
}

/// The floats of a row: a pure function of row and version.
fn floats(row: u32, version: u32, width: usize) -> Vec<f32> {
    (0..width)
        .map(|column| (row * 31 + version * 7 + column as u32) as f32)
        .collect()
}

/// A log beside what it should hold.
struct Model {
    log: Log,
    faulty: Faulty,
    pool: Pool,
    width: usize,
    /// Place and version of each row.
    rows: BTreeMap<u32, (u32, u32)>,
    version: u32,
    _directories: Directories,
}

impl Model {
    fn new(directories: usize, width: usize, most: u64) -> Model {
        let directories = Directories::new(directories);
        let faulty = directories.faulty();
        Model {
            log: Log::new(Arc::new(faulty.clone()), width, most),
            faulty,
            pool: Pool::new(2).unwrap(),
            width,
            rows: BTreeMap::new(),
            version: 0,
            _directories: directories,
        }
    }

    fn append(&mut self, rows: &[u32]) -> mx_rec_kernels::Result<()> {
        self.version += 1;
        let values: Vec<_> = rows
            .iter()
            .map(|&row| floats(row, self.version, self.width))
            .collect();
        let records: Vec<_> = rows
            .iter()
            .zip(&values)
            .map(|(&row, floats)| Record {
                row,
                key: -i64::from(row),
                floats,
            })
            .collect();
        let places = self.log.append(&records)?;
        assert_eq!(places.len(), rows.len());
        let mut old = Vec::new();
        for (&row, place) in rows.iter().zip(places) {
            old.extend(
                self.rows
                    .insert(row, (place, self.version))
                    .map(|old| old.0),
            );
        }
        self.log.free(&old)
    }

    fn free(&mut self, rows: &[u32]) {
        let places: Vec<_> = rows
            .iter()
            .filter_map(|row| self.rows.remove(row))
            .map(|(place, _)| place)
            .collect();
        self.log.free(&places).unwrap();
    }

    fn compact(&mut self) -> mx_rec_kernels::Result<usize> {
        self.compact_within(Duration::MAX)
    }

    fn compact_within(&mut self, limit: Duration) -> mx_rec_kernels::Result<usize> {
        let moves = self.log.compact_within(limit, 0)?;
        for moved in moves.iter() {
            match self.rows.get_mut(&moved.row) {
                Some((place, _)) if *place == moved.from => {
                    *place = moved.to;
                    self.log.free(&[moved.from]).unwrap();
                }
                _ => self.log.free(&[moved.to]).unwrap(),
            }
        }
        let copied = moves.len();
        drop(moves);
        self.log.give_back();
        Ok(copied)
    }

    fn check(&self) {
        let rows: Vec<u32> = self.rows.keys().rev().copied().collect();
        let read = self.read(&rows).unwrap();
        for (&row, found) in rows.iter().zip(read.chunks_exact(self.width)) {
            assert_eq!(
                found,
                floats(row, self.rows[&row].1, self.width),
                "row {row}"
            );
        }
        assert_eq!(self.log.stats().live, self.rows.len() as u64);
    }

    fn read(&self, rows: &[u32]) -> mx_rec_kernels::Result<Vec<f32>> {
        let wants: Vec<_> = rows
            .iter()
            .map(|&row| Want {
                place: self.rows[&row].0,
                row,
            })
            .collect();
        let mut into = vec![0.0; rows.len() * self.width];
        let mut keys = vec![0; rows.len()];
        self.log.read(&self.pool, &wants, &mut into, &mut keys)?;
        assert!(keys
            .iter()
            .zip(rows)
            .all(|(&key, &row)| key == -i64::from(row)));
        Ok(into)
    }
}

#[test]
fn rows_are_read_as_they_were_written_in_any_order() {
    for (directories, width) in [(1, 1), (3, 16), (2, 300)] {
        let mut model = Model::new(directories, width, 10_000);
        for start in 0..10 {
            model
                .append(&(start * 500..start * 500 + 700).collect::<Vec<_>>())
                .unwrap();
        }
        model.check();
    }
}

#[test]
fn space_stays_below_one_and_a_half_times_that_of_live_rows() {
    let mut model = Model::new(2, 16, 40_000);
    model.append(&(0..40_000).collect::<Vec<_>>()).unwrap();
    let mut seed = 1_u64;
    for step in 0..300 {
        let rows: std::collections::BTreeSet<u32> = (0..1_000)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u32 % 40_000
            })
            .collect();
        model.append(&rows.into_iter().collect::<Vec<_>>()).unwrap();
        model.compact().unwrap();
        let stats = model.log.stats();
        assert!(stats.slots * 2 <= stats.live * 3, "step {step}: {stats:?}");
    }
    model.check();
    let rows: Vec<u32> = (4_000..40_000).collect();
    model.free(&rows);
    for _ in 0..100 {
        model.compact().unwrap();
    }
    let stats = model.log.stats();
    assert!(stats.slots * 2 <= stats.live * 3 + 8_192, "{stats:?}");
    model.check();
}

/// Steps gave segments back to the file system and took them again, which took longer than to copy
/// their records.
#[test]
fn files_in_use_go_on_without_space_being_given_back_and_taken_again() {
    let mut model = Model::new(2, 16, 40_000);
    model.append(&(0..40_000).collect::<Vec<_>>()).unwrap();
    let mut seed = 1_u64;
    for step in 0..200 {
        if step == 100 {
            let kind = ErrorKind::StorageFull;
            model
                .faulty
                .fail(Operation::Reserve, None, (0, u64::MAX), kind);
        }
        let rows: std::collections::BTreeSet<u32> = (0..300)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u32 % 40_000
            })
            .collect();
        model.append(&rows.into_iter().collect::<Vec<_>>()).unwrap();
        model.compact().unwrap();
    }
    model.check();
}

/// A step of compaction read 8 MiB whatever was written: files of wide rows grew beyond the bound.
#[test]
fn space_stays_below_the_bound_however_much_an_append_writes() {
    let rows = 10_000_u32;
    let mut model = Model::new(1, 2_000, u64::from(rows));
    for start in (0..rows).step_by(1_000) {
        model
            .append(&(start..start + 1_000).collect::<Vec<_>>())
            .unwrap();
    }
    let mut worst = 0.0_f64;
    for step in 0..40 {
        let rows: Vec<u32> = (0..1_000)
            .map(|at| (at * 10 + step * 7919) % rows)
            .collect();
        model.append(&rows).unwrap();
        model.compact().unwrap();
        let stats = model.log.stats();
        worst = worst.max(stats.slots as f64 / stats.live as f64);
    }
    assert!(worst <= 1.5, "{worst}");
    model.check();
}

/// A step of compaction was bounded in bytes alone: on a slow disk it took seconds.
#[test]
fn a_step_of_compaction_on_a_slow_disk_ends_in_time_and_the_next_ones_go_on() {
    let rows = 8_000_u32;
    let mut model = Model::new(1, 500, u64::from(rows));
    model.append(&(0..rows).collect::<Vec<_>>()).unwrap();
    // A third of the files is garbage: as much as there may be, and more than there should be.
    let gone: Vec<u32> = (0..rows).filter(|row| row % 3 == 2).collect();
    model.free(&gone);
    model.faulty.slow(Duration::from_millis(4));
    let (mut steps, mut copied) = (0, 1);
    while copied > 0 {
        let before = model.log.stats();
        copied = model.compact_within(Duration::from_millis(20)).unwrap();
        // A piece reads once and writes once: after two of them there is no time for a third.
        let read = model.log.stats().bytes_read - before.bytes_read;
        assert!(read <= 2 * (256 << 10), "{read} bytes");
        steps += 1;
        assert!(steps < 200);
    }
    assert!(steps > 5, "{steps}");
    let stats = model.log.stats();
    assert!(stats.slots * 2 <= stats.live * 3, "{stats:?}");
    // Where the files are more than half too large, space comes first.
    let gone: Vec<u32> = (0..rows)
        .filter(|row| row % 3 != 2 && row % 12 != 0)
        .collect();
    model.free(&gone);
    let before = model.log.stats();
    model.compact_within(Duration::from_millis(20)).unwrap();
    let read = model.log.stats().bytes_read - before.bytes_read;
    assert!(read > 2 * (256 << 10), "{read} bytes");
    model.faulty.slow(Duration::ZERO);
    model.check();
}

/// Copies of a step that failed later were live, and nobody's.
#[test]
fn copies_that_were_made_before_a_compaction_failed_are_not_lost() {
    let mut model = Model::new(1, 500, 8_000);
    model.append(&(0..8_000).collect::<Vec<_>>()).unwrap();
    model.free(&(0..8_000).filter(|row| row % 5 > 1).collect::<Vec<_>>());
    for after in [0, 1, 3] {
        let kind = ErrorKind::Other;
        model.faulty.fail(Operation::Write, None, (after, 1), kind);
        let copied = model.compact();
        model.faulty.heal();
        assert_eq!(copied.is_err(), after == 0);
        model.check();
    }
}

#[test]
fn compaction_copies_the_records_around_a_damaged_one_and_leaves_that_where_it_is() {
    let mut model = Model::new(1, 100, 8_000);
    model.append(&(0..8_000).collect::<Vec<_>>()).unwrap();
    model.free(&(0..8_000).filter(|row| row % 5 > 1).collect::<Vec<_>>());
    // Record 1505 of 420 bytes: others of its segment lie before and behind it.
    let damaged = 1_505;
    model
        .faulty
        .flip(0, u64::from(damaged) * 420 + 50, 3)
        .unwrap();
    while model.compact().unwrap() > 0 {}
    let stats = model.log.stats();
    assert!(stats.moved > 1_000 && stats.unreadable == 1, "{stats:?}");
    let others: Vec<u32> = model
        .rows
        .keys()
        .copied()
        .filter(|&row| row != damaged)
        .collect();
    let read = model.read(&others).unwrap();
    for (&row, found) in others.iter().zip(read.chunks_exact(100)) {
        assert_eq!(found, floats(row, 1, 100), "row {row}");
    }
    assert_eq!(model.read(&[damaged]).unwrap_err().kind(), Kind::DataLoss);
    model
        .faulty
        .flip(0, u64::from(damaged) * 420 + 50, 3)
        .unwrap();
    model.check();
}

#[test]
fn a_flipped_bit_is_data_loss_that_names_row_key_file_and_offset() {
    let mut model = Model::new(1, 4, 1_000);
    model.append(&(0..100).collect::<Vec<_>>()).unwrap();
    // 36 bytes a record: row 7.
    for byte in [0, 5, 9, 13, 20, 35] {
        model.faulty.flip(0, 7 * 36 + byte, 3).unwrap();
        let error = model.read(&(0..100).collect::<Vec<_>>()).unwrap_err();
        let said = ["row=7,", "offset=252", "file=", "key_as_read="];
        expect_error(&error, Kind::DataLoss, &said);
        model.read(&[6, 8]).unwrap();
        model.faulty.flip(0, 7 * 36 + byte, 3).unwrap();
    }
    model.check();
}

/// The checksum did not say where a record was: an older record of the same row, in the same use of
/// a segment, was taken for the newer one.
#[test]
fn an_older_record_of_the_same_row_in_the_place_of_the_newer_one_is_data_loss() {
    let directories = Directories::new(1);
    let files = Files::open_named(&directories.0).unwrap();
    let name = files.name(0);
    let log = Log::new(Arc::new(files), 4, 1_000);
    let write = |version: u32| {
        let floats = floats(7, version, 4);
        let record = Record {
            row: 7,
            key: 9,
            floats: &floats,
        };
        log.append(&[record]).unwrap()[0]
    };
    let (_, newer) = (write(1), write(2));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(name)
        .unwrap();
    let mut bytes = [0; 36];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let want = [Want {
        place: newer,
        row: 7,
    }];
    let read = || {
        let (mut into, mut keys) = ([0.0; 4], [0]);
        log.read(&Pool::new(1).unwrap(), &want, &mut into, &mut keys)
            .map(|()| into.to_vec())
    };
    assert_eq!(read().unwrap(), floats(7, 2, 4));
    file.write_all_at(&bytes, 36).unwrap();
    assert_eq!(read().unwrap_err().kind(), Kind::DataLoss);
}

#[test]
fn a_full_disk_changes_nothing_and_appends_go_on_when_it_has_space() {
    for operation in [Operation::Write, Operation::Reserve] {
        let mut model = Model::new(2, 16, 10_000);
        model.append(&(0..1_000).collect::<Vec<_>>()).unwrap();
        model
            .faulty
            .fail(operation, None, (0, u64::MAX), ErrorKind::StorageFull);
        let error = model.append(&(0..9_000).collect::<Vec<_>>()).unwrap_err();
        expect_error(&error, Kind::ResourceExhausted, &["file="]);
        model.check();
        model.faulty.heal();
        // One directory is enough.
        model
            .faulty
            .fail(operation, Some(1), (0, u64::MAX), ErrorKind::StorageFull);
        model.append(&(0..9_000).collect::<Vec<_>>()).unwrap();
        model.check();
        model.faulty.heal();
        model.append(&(0..9_000).collect::<Vec<_>>()).unwrap();
        model.check();
    }
}

#[derive(Clone, Debug)]
enum Verb {
    Append(u32, u32),
    Free(u32, u32),
    Compact,
    Check,
    Fail(u8, u64),
    Clear,
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        6 => (0..3_000_u32, 1..600_u32).prop_map(|(from, n)| Verb::Append(from, n)),
        3 => (0..3_000_u32, 1..900_u32).prop_map(|(from, n)| Verb::Free(from, n)),
        4 => Just(Verb::Compact),
        2 => Just(Verb::Check),
        2 => (0..6_u8, 0..3_u64).prop_map(|(what, after)| Verb::Fail(what, after)),
        1 => Just(Verb::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_is_lost_whatever_fails(
        directories in 1..4_usize,
        width in 1..40_usize,
        verbs in proptest::collection::vec(verb(), 1..60),
    ) {
        let mut model = Model::new(directories, width, 3_600);
        for verb in verbs {
            match verb {
                Verb::Append(from, n) => {
                    let _ = model.append(&(from..from + n).collect::<Vec<_>>());
                }
                Verb::Free(from, n) => model.free(&(from..from + n).collect::<Vec<_>>()),
                Verb::Compact => {
                    let _ = model.compact();
                }
                Verb::Check => {
                    model.faulty.heal();
                    model.check();
                }
                Verb::Fail(what, after) => {
                    let operation = [Operation::Write, Operation::Reserve, Operation::Read];
                    let kind = [ErrorKind::StorageFull, ErrorKind::Other];
                    let kind = kind[usize::from(what) / 3];
                    model.faulty.fail(operation[usize::from(what) % 3], None, (after, 2), kind);
                }
                Verb::Clear => {
                    model.log.clear();
                    model.rows.clear();
                }
            }
        }
        model.faulty.heal();
        model.check();
    }
}

#[test]
fn a_reading_gives_what_was_planned_whatever_is_freed_and_written_meanwhile() {
    let mut model = Model::new(1, 16, 2_000);
    model.append(&(0..2_000).collect::<Vec<_>>()).unwrap();
    let wants: Vec<_> = (0..2_000)
        .map(|row| Want {
            place: model.rows[&row].0,
            row,
        })
        .collect();
    let reading = model.log.plan(&wants).unwrap();
    for _ in 0..20 {
        model.append(&(0..2_000).collect::<Vec<_>>()).unwrap();
        model.compact().unwrap();
    }
    let mut into = vec![0.0; 2_000 * 16];
    let mut keys = vec![0; 2_000];
    reading.run(&model.pool, &mut into, &mut keys).unwrap();
    assert!(keys.iter().zip(0..).all(|(&key, row)| key == -row));
    for (row, found) in (0..).zip(into.chunks_exact(16)) {
        assert_eq!(found, floats(row, 1, 16));
    }
    drop(reading);
    model.check();
}

#[test]
fn a_storage_names_its_directories_and_has_space() {
    let directories = Directories::new(2);
    let faulty = directories.faulty();
    assert_eq!(faulty.directories(), 2);
    assert!(faulty
        .name(1)
        .starts_with(&directories.0[1].display().to_string()));
    assert!(faulty.free_space(0).unwrap() > 0);
}
