//! Claims about the files of rows on disk: who leaves them, who removes them, what is refused.

use crate::directory::Directory;
use crate::support::expect_error;
use mx_rec_kernels::tier::{Files, Log, ReadBy, Record, Storage, Want};
use mx_rec_kernels::{Kind, Pool};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// What tells a copy of this test that it is the other process, and where it works.
const CHILD: &str = "MX_REC_TIER_FILES_CHILD";

fn names(directory: &Directory) -> Vec<String> {
    let entries = fs::read_dir(&directory.0).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(|entry| name(entry.unwrap())).collect()
}

fn records(log: &Log, rows: std::ops::Range<u32>) -> Vec<u32> {
    let floats: Vec<Vec<f32>> = rows
        .clone()
        .map(|row| vec![row as f32; log.width()])
        .collect();
    let records: Vec<_> = rows
        .zip(&floats)
        .map(|(row, floats)| Record {
            row,
            key: i64::from(row),
            floats,
        })
        .collect();
    log.append(&records).unwrap()
}

fn check(log: &Log, places: &[u32]) {
    let wants: Vec<_> = (0..)
        .zip(places)
        .map(|(row, &place)| Want { place, row })
        .collect();
    let mut floats = vec![0.0; places.len() * log.width()];
    let mut keys = vec![0; places.len()];
    let pool = Pool::new(2).unwrap();
    log.read(&pool, &wants, &mut floats, &mut keys).unwrap();
    for (row, found) in floats.chunks_exact(log.width()).enumerate() {
        assert!(found.iter().all(|&float| float == row as f32), "row {row}");
    }
}

/// Not a test: what the other process does.
#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else {
        return;
    };
    let (how, directory) = directory.split_once(':').unwrap();
    let directories = [PathBuf::from(directory)];
    let files = match how {
        "named" => Files::open_named(&directories),
        _ => Files::open(&directories),
    };
    let log = Log::new(Arc::new(files.unwrap()), 16, 100_000);
    let places = records(&log, 0..10_000);
    println!("ready");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    check(&log, &places);
    println!("right");
}

/// Another process with rows in `directory`, which is there when this returns.
fn other(how: &str, directory: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "tier_files::child", "--nocapture"])
        .env(CHILD, format!("{how}:{}", directory.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    wait_for(&mut output, "ready");
    (child, output)
}

fn wait_for(output: &mut impl BufRead, what: &str) {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "no {what:?}");
    }
}

#[test]
fn a_killed_process_leaves_nothing_where_files_need_no_name() {
    let directory = Directory::new("unnamed");
    let (mut child, _output) = other("unnamed", &directory.0);
    assert_eq!(names(&directory), [""; 0]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&directory), [""; 0]);
}

#[test]
fn the_next_start_removes_what_a_killed_process_left_and_nothing_of_a_live_one() {
    let directory = Directory::new("named");
    // Somebody else's, whatever it is called.
    fs::write(directory.0.join("mx_rec-rows-7.data"), "kept").unwrap();
    fs::create_dir(directory.0.join("mx_rec-rows-8.scratch")).unwrap();
    let (mut killed, _killed_output) = other("named", &directory.0);
    let (mut live, mut live_output) = other("named", &directory.0);
    assert_eq!(names(&directory).len(), 4);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(names(&directory).len(), 4);
    let own = Files::open_named(std::slice::from_ref(&directory.0)).unwrap();
    // The killed one's is gone, this one's is there.
    assert_eq!(names(&directory).len(), 4);
    assert!(Path::new(&own.name(0)).exists());
    drop(own);
    assert_eq!(names(&directory).len(), 3);
    // The live one's rows are there.
    live.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_for(&mut live_output, "right");
    assert!(live.wait().unwrap().success());
    let mut names = names(&directory);
    names.sort_unstable();
    assert_eq!(names, ["mx_rec-rows-7.data", "mx_rec-rows-8.scratch"]);
}

#[test]
fn files_of_a_process_that_is_stopped_are_not_taken_for_those_of_a_killed_one() {
    let directory = Directory::new("stopped");
    let (mut stopped, mut output) = other("named", &directory.0);
    let signal = |name: &str| {
        let id = stopped.id().to_string();
        assert!(Command::new("kill")
            .args([name, &id])
            .status()
            .unwrap()
            .success());
    };
    signal("-STOP");
    for _ in 0..3 {
        let own = Files::open_named(std::slice::from_ref(&directory.0)).unwrap();
        assert_eq!(names(&directory).len(), 2);
        let log = Log::new(Arc::new(own), 16, 1_000);
        check(&log, &records(&log, 0..1_000));
    }
    signal("-CONT");
    stopped.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_for(&mut output, "right");
    assert!(stopped.wait().unwrap().success());
    assert_eq!(names(&directory), [""; 0]);
}

#[test]
fn logs_in_one_directory_do_not_touch_each_other() {
    let directory = Directory::new("shared");
    let directories = [directory.0.clone(), directory.0.clone()];
    let logs: Vec<Log> = (0..6)
        .map(|at| {
            let files = match at % 2 {
                0 => Files::open(&directories),
                _ => Files::open_named(&directories),
            };
            Log::new(Arc::new(files.unwrap()), at + 1, 20_000)
        })
        .collect();
    let places: Vec<_> = logs.iter().map(|log| records(log, 0..20_000)).collect();
    let again = logs[0].another(9, 1_000).unwrap();
    let more = records(&again, 0..1_000);
    drop(Files::open(&directories).unwrap());
    for (log, places) in logs.iter().zip(&places) {
        check(log, places);
    }
    check(&again, &more);
}

#[test]
fn threads_read_what_io_uring_reads() {
    let directory = Directory::new("readers");
    for kind in [ReadBy::Ring, ReadBy::Threads(1), ReadBy::Threads(7)] {
        let files = Files::open(std::slice::from_ref(&directory.0)).unwrap();
        // A machine may forbid io_uring.
        let files = match files.read_by(kind) {
            Ok(files) => Arc::new(files),
            Err(error) if kind == ReadBy::Ring => {
                assert_eq!(error.kind(), Kind::Io);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let log = Log::new(files.clone(), 1_100, 5_000);
        let places = records(&log, 0..5_000);
        check(&log, &places);
        files.drop_cache().unwrap();
        check(&log, &places);
    }
}

#[test]
fn a_file_that_became_short_is_data_loss() {
    let directory = Directory::new("short");
    for kind in [ReadBy::Ring, ReadBy::Threads(3)] {
        let files = Files::open_named(std::slice::from_ref(&directory.0)).unwrap();
        let Ok(files) = files.read_by(kind) else {
            continue;
        };
        let name = files.name(0);
        let log = Log::new(Arc::new(files), 16, 1_000);
        let places = records(&log, 0..1_000);
        let file = fs::OpenOptions::new().write(true).open(name).unwrap();
        file.set_len(900 * 84 + 10).unwrap();
        let want = |row: u32| Want {
            place: places[row as usize],
            row,
        };
        let (mut floats, mut keys) = (vec![0.0; 32], vec![0; 2]);
        let pool = Pool::new(1).unwrap();
        log.read(&pool, &[want(1), want(899)], &mut floats, &mut keys)
            .unwrap();
        for row in [900, 950] {
            let wants = [want(row), want(3)];
            let error = log.read(&pool, &wants, &mut floats, &mut keys).unwrap_err();
            expect_error(&error, Kind::DataLoss, &[&format!("row={row},")]);
        }
    }
}

#[test]
fn rows_outlive_their_directory_and_new_files_name_it() {
    let directory = Directory::new("vanished");
    let files = Files::open(std::slice::from_ref(&directory.0)).unwrap();
    let log = Log::new(Arc::new(files), 16, 100_000);
    let mut places = records(&log, 0..1_000);
    fs::remove_dir_all(&directory.0).unwrap();
    check(&log, &places);
    places.extend(records(&log, 1_000..50_000));
    check(&log, &places);
    let error = log.another(16, 10).unwrap_err();
    expect_error(&error, Kind::NotFound, &["vanished"]);
}

#[test]
fn what_cannot_hold_rows_is_refused_by_name() {
    let directory = Directory::new("refused");
    let path = |name: &str| directory.0.join(name);
    fs::write(path("file"), "").unwrap();
    fs::create_dir(path("there")).unwrap();
    std::os::unix::fs::symlink(path("there"), path("link")).unwrap();
    for (name, kind) in [
        ("missing", Kind::NotFound),
        ("file", Kind::InvalidArgument),
        ("link", Kind::InvalidArgument),
    ] {
        let error = Files::open(&[path("there"), path(name)]).unwrap_err();
        expect_error(&error, kind, &[&path(name).display().to_string()]);
    }
    // No file can be made there, whoever asks.
    let error = Files::open(&[PathBuf::from("/proc")]).unwrap_err();
    assert!(matches!(error.kind(), Kind::Io | Kind::NotFound), "{error}");
    assert_eq!(Files::open(&[]).unwrap_err().kind(), Kind::InvalidArgument);
    assert!(fs::read_dir(path("there")).unwrap().next().is_none());
}

/// Bytes that devices have read for this process.
fn read_by_devices() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find(|line| line.starts_with("read_bytes: "));
    line.unwrap()["read_bytes: ".len()..].parse().unwrap()
}

/// Whether the file system of a path is ext4, which reads past the page cache.
fn is_ext4(path: &Path) -> bool {
    rustix::fs::statfs(path).unwrap().f_type == 0xEF53
}

#[test]
fn rows_read_past_the_page_cache_are_those_that_were_written_whatever_their_size() {
    let directory = Directory::new("direct");
    let memory = PathBuf::from("/dev/shm");
    for path in [&directory.0, &memory] {
        if !path.is_dir() {
            continue;
        }
        // Records in a page, over two, as long as one and longer; none ends where a page does.
        for (width, n) in [(1, 3000), (192, 2000), (1019, 300), (1024, 300), (5000, 70)] {
            for kind in [ReadBy::Ring, ReadBy::Threads(1), ReadBy::Threads(5)] {
                let files = Files::open(std::slice::from_ref(path)).unwrap();
                let Ok(files) = files.read_by(kind) else {
                    continue;
                };
                let files = Arc::new(files.past_page_cache());
                let log = Log::new(files.clone(), width, 2 * u64::from(n));
                let mut places = records(&log, 0..n);
                check(&log, &places);
                // What was just written is read as it is, and so is what a segment holds again.
                let again: Vec<u32> = places.drain(..places.len() / 2).collect();
                log.free(&again).unwrap();
                places.splice(0..0, records(&log, 0..n / 2));
                check(&log, &places);
                let before = read_by_devices();
                check(&log, &places);
                let read = read_by_devices() - before;
                let bytes = places.len() as u64 * (20 + 4 * width as u64);
                if files.refused().is_empty() && is_ext4(path) {
                    assert!(read >= bytes, "{read} of {bytes} bytes, {width}, {kind:?}");
                }
                // Files that others make of them are read in the same way.
                assert_eq!(Log::new(files.another().unwrap(), 1, 9).stats().live, 0);
            }
        }
    }
}

#[test]
fn a_file_that_ends_in_a_record_is_data_loss_past_the_page_cache_too() {
    let directory = Directory::new("direct-short");
    for kind in [ReadBy::Ring, ReadBy::Threads(2)] {
        let files = Files::open_named(std::slice::from_ref(&directory.0)).unwrap();
        let Ok(files) = files.read_by(kind) else {
            continue;
        };
        let log = Log::new(Arc::new(files.past_page_cache()), 192, 1000);
        let places = records(&log, 0..1000);
        let path = fs::read_dir(&directory.0).unwrap().next().unwrap();
        let file = fs::File::options().write(true).open(path.unwrap().path());
        let file = file.unwrap();
        let record = 20 + 192 * 4;
        let pool = Pool::new(2).unwrap();
        // The last byte of a record is gone; a part of its page is, and nothing else; none is.
        for (last, missing, is_there) in [(900, 1, false), (500, 400, false), (400, 0, true)] {
            file.set_len((last + 1) * record - missing).unwrap();
            let read = |row: u32| {
                let want = Want {
                    place: places[row as usize],
                    row,
                };
                let (mut floats, mut keys) = (vec![0.0; 192], [0]);
                log.read(&pool, &[want], &mut floats, &mut keys)
                    .map(|()| floats)
            };
            let last = last as u32;
            assert_eq!(read(last - 1).unwrap(), vec![(last - 1) as f32; 192]);
            match read(last) {
                Ok(floats) => assert!(is_there && floats == vec![last as f32; 192]),
                Err(error) => {
                    assert!(!is_there, "{error}");
                    assert_eq!(error.kind(), Kind::DataLoss, "{error}");
                }
            }
            assert_eq!(read(last + 1).unwrap_err().kind(), Kind::DataLoss);
        }
    }
}
