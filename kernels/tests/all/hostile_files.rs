//! Files that somebody has broken, on purpose or not: a checkpoint is read or refused, in bounded
//! time and memory, and a table that could not be loaded is what it was. Checksums are made right
//! again for most cases, so that what lies behind them is tested too.
//!
//! `scripts/stress fuzz` runs the long form, for MX_REC_FUZZ_SECONDS seconds.

use crate::directory::Directory;
use crate::singles::{Singles as _, Target};
use crate::support::{applied, cases, is_whole, thresholds};
use mx_rec_kernels::checkpoint::{self, inspect};
use mx_rec_kernels::{Ids, Initializer, Kind, LazyAdam, Pool, Result, Table, TableConfig, PADDING};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use serde::Serialize;
use serde_json::{json, Value};
use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows of a table at most.
const CAPACITY: u64 = 400;

/// No question about files of some kilobytes takes so long.
const LONG: Duration = Duration::from_secs(10);

/// The process may ask for so much memory, whether it uses it or not.
const SPACE: u64 = 8 << 30;

/// The process may have so much memory in use.
const MEMORY: u64 = 512 << 20;

/// A change of the files of one table.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, Index, u8),
    Word(Index, Index, i64),
    Text(Index, Index, u8, String),
    Cut(Index, Index),
    Grow(Index, Vec<u8>),
    Repeat(Index, Index),
    Remove(Index),
    Copy(Index, Index),
    Rename(Index, String),
    Directory(Index),
    Pipe(Index),
    Link(Index, &'static str),
    /// Another value for one of the manifest's.
    Value(Index, Scalar),
    /// One of the manifest's members goes.
    Member(Index),
}

/// Something that a manifest may hold.
#[derive(Clone, Debug)]
enum Scalar {
    Number(i64),
    Large(u64),
    Float(f64),
    Text(String),
    Null,
    List,
}

impl Scalar {
    fn json(&self) -> Value {
        match self {
            Scalar::Number(number) => (*number).into(),
            Scalar::Large(number) => (*number).into(),
            Scalar::Float(number) => (*number).into(),
            Scalar::Text(text) => text.as_str().into(),
            Scalar::Null => Value::Null,
            Scalar::List => Value::Array(vec![Value::Null; 3]),
        }
    }
}

fn word() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        Just(PADDING),
        Just(i64::MIN),
        Just(i64::MAX),
        Just(1 << 31),
        Just(1 << 40),
        Just(1 << 61),
        0..500_i64,
        any::<i64>(),
        // As two numbers of 4 bytes.
        any::<(u32, u32)>().prop_map(|(low, high)| (u64::from(high) << 32 | u64::from(low)) as i64),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("key/slice.data".to_owned()),
        Just("../users/key/slice.data".to_owned()),
        Just("/dev/zero".to_owned()),
        Just("/etc/passwd".to_owned()),
        Just("hist_rec".to_owned()),
        Just("hist_sketch".to_owned()),
        Just("removed/slice.data".to_owned()),
        Just("LazyAdam_momentum".to_owned()),
        Just("a\u{0}b".to_owned()),
        "[a-zA-Z_./]{0,20}",
        "\\PC{0,300}",
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let scalar = prop_oneof![
        word().prop_map(Scalar::Number),
        any::<u64>().prop_map(Scalar::Large),
        any::<f64>()
            .prop_filter("JSON has no others", |number| number.is_finite())
            .prop_map(Scalar::Float),
        name().prop_map(Scalar::Text),
        Just(Scalar::Null),
        Just(Scalar::List),
    ];
    prop_oneof![
        4 => (at(), at(), 0..8_u8).prop_map(|(file, at, bit)| Change::Flip(file, at, bit)),
        6 => (at(), at(), word()).prop_map(|(file, at, word)| Change::Word(file, at, word)),
        2 => (at(), at(), 0..20_u8, "[ -~]{0,12}").prop_map(|(file, at, gone, text)| Change::Text(file, at, gone, text)),
        2 => (at(), at()).prop_map(|(file, len)| Change::Cut(file, len)),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..100)).prop_map(|(file, more)| Change::Grow(file, more)),
        2 => (at(), at()).prop_map(|(file, from)| Change::Repeat(file, from)),
        1 => at().prop_map(Change::Remove),
        2 => (at(), at()).prop_map(|(from, to)| Change::Copy(from, to)),
        1 => (at(), name()).prop_map(|(file, name)| Change::Rename(file, name)),
        1 => at().prop_map(Change::Directory),
        1 => at().prop_map(Change::Pipe),
        1 => (at(), prop_oneof![Just("/dev/zero"), Just("/dev/full"), Just("."), Just("slice.data"), Just("/nowhere")])
            .prop_map(|(file, to)| Change::Link(file, to)),
        8 => (at(), scalar).prop_map(|(at, value)| Change::Value(at, value)),
        1 => at().prop_map(Change::Member),
    ]
}

/// What happens to the manifest of the checkpoint above the table.
#[derive(Clone, Debug)]
enum Holder {
    /// There is none.
    None,
    /// It has the seal of the table as the changes left it.
    Fits,
    /// It has the seal of the table as it was.
    Another,
    /// It fits, was changed itself, and perhaps got its right checksum again.
    Changed(Vec<Change>, bool),
}

/// One table's directories, the later ones deltas, and what was done to one of them.
fn case() -> impl Strategy<Value = (Index, Index, Vec<Change>, bool, Holder)> {
    let changes = prop::collection::vec(change(), 1..5);
    let holder = prop_oneof![
        2 => Just(Holder::None),
        3 => Just(Holder::Fits),
        1 => Just(Holder::Another),
        2 => (prop::collection::vec(change(), 1..3), any::<bool>())
            .prop_map(|(changes, signed)| Holder::Changed(changes, signed)),
    ];
    (
        any::<Index>(),
        any::<Index>(),
        changes,
        prop::bool::weighted(0.8),
        holder,
    )
}

/// Puts the manifest of a checkpoint above the table in `dir`, whose files were those in `whole`.
fn hold(dir: &Path, whole: &Path, holder: &Holder) {
    let parent = dir.parent().unwrap();
    let sealed = match holder {
        Holder::None => return,
        Holder::Another => whole,
        Holder::Fits | Holder::Changed(..) => dir,
    };
    let path = sealed.join("manifest.json");
    let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
    let bytes = is_file.then(|| fs::read(&path).unwrap_or_default());
    let table = bytes.and_then(|bytes| {
        let json = serde_json::from_slice::<Value>(&bytes).ok()?;
        let seal = json!({"bytes": bytes.len(), "crc32c": json.get("manifest_crc32c")?});
        Some(json!({"name": "users", "rows": 1, "manifest": seal}))
    });
    let table = table.unwrap_or(json!({"name": "users", "rows": 1}));
    let content = json!({"tables": [table], "dense": true, "format_version": 3, "id": "0"});
    let Holder::Changed(changes, signed) = holder else {
        fs::write(parent.join("manifest.json"), sign_whole(content)).unwrap();
        return;
    };
    // Alone, so that every change is one of it.
    let alone = parent.join("alone");
    fs::create_dir(&alone).unwrap();
    let file = alone.join("manifest.json");
    fs::write(&file, sign_whole(content)).unwrap();
    changes.iter().for_each(|change| apply(&alone, change));
    if *signed && fs::symlink_metadata(&file).is_ok_and(|found| found.is_file()) {
        if let Ok(json) = serde_json::from_slice::<Value>(&fs::read(&file).unwrap()) {
            fs::write(&file, sign_whole(json)).unwrap();
        }
    }
    let _ = fs::rename(&file, parent.join("manifest.json"));
}

/// The text of a checkpoint's manifest with its right checksum, if it may have one.
fn sign_whole(mut content: Value) -> String {
    if let Some(members) = content.as_object_mut() {
        members.remove("crc32");
    }
    let mut bytes = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, format);
    content.serialize(&mut serializer).unwrap();
    let text = String::from_utf8(bytes).unwrap() + "\n";
    let sum = !text.bytes().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    });
    text.replacen("{\n", &format!("{{\n \"crc32\": {sum},\n"), 1)
}

/// All plain files below a directory, in an order of their own, as paths below it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(dir.join(&below))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = below.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(path),
                Ok(kind) if kind.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(&file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(from.join(&file), target).unwrap();
    }
}

/// Does what a change says; a change for which there is nothing does nothing.
fn apply(dir: &Path, change: &Change) {
    let all = files(dir);
    if all.is_empty() {
        return;
    }
    let path = |file: &Index| dir.join(file.get(&all));
    let edit = |file: &Index, f: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(path(file)).unwrap();
        f(&mut bytes);
        fs::write(path(file), bytes).unwrap();
    };
    let emptied = |file: &Index| {
        fs::remove_file(path(file)).unwrap();
        path(file)
    };
    match change {
        Change::Flip(file, at, bit) => edit(file, &|bytes| {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
        }),
        Change::Word(file, at, word) => edit(file, &|bytes| {
            if let Some(places) = (bytes.len() / 4)
                .checked_sub(1)
                .filter(|&places| places > 0)
            {
                let at = at.index(places) * 4;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }),
        Change::Text(file, at, gone, text) => edit(file, &|bytes| {
            let at = at.index(bytes.len() + 1);
            let end = (at + usize::from(*gone)).min(bytes.len());
            bytes.splice(at..end, text.bytes());
        }),
        Change::Cut(file, len) => edit(file, &|bytes| bytes.truncate(len.index(bytes.len() + 1))),
        Change::Grow(file, more) => edit(file, &|bytes| bytes.extend(more)),
        Change::Repeat(file, from) => edit(file, &|bytes| {
            let again = bytes[from.index(bytes.len() + 1)..].to_vec();
            bytes.extend(again);
        }),
        Change::Remove(file) => drop(emptied(file)),
        Change::Copy(from, to) => {
            if path(from) != path(to) {
                fs::copy(path(from), path(to)).unwrap();
            }
        }
        Change::Rename(file, name) => {
            // Not out of the directory.
            let target = dir.join(name.trim_start_matches('/').replace("..", "_"));
            if !target.exists() && fs::create_dir_all(target.parent().unwrap_or(dir)).is_ok() {
                // A name may be none for a file.
                let _ = fs::rename(path(file), target);
            }
        }
        Change::Directory(file) => fs::create_dir(emptied(file)).unwrap(),
        Change::Pipe(file) => {
            let made = Command::new("mkfifo").arg(emptied(file)).status().unwrap();
            assert!(made.success());
        }
        Change::Link(file, to) => std::os::unix::fs::symlink(to, emptied(file)).unwrap(),
        Change::Value(at, value) => manifest(dir, &|json| {
            let mut leaves = Vec::new();
            leaf_paths(json, String::new(), &mut leaves);
            if !leaves.is_empty() {
                *json.pointer_mut(&leaves[at.index(leaves.len())]).unwrap() = value.json();
            }
        }),
        Change::Member(at) => manifest(dir, &|json| {
            if let Some(members) = json.as_object_mut() {
                let names: Vec<String> = members.keys().cloned().collect();
                if !names.is_empty() {
                    members.remove(at.get(&names));
                }
            }
        }),
    }
}

/// JSON pointers to everything that is neither an object nor a list.
fn leaf_paths(value: &Value, here: String, found: &mut Vec<String>) {
    let below = |name: &str| format!("{here}/{}", name.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| leaf_paths(value, below(name), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, value)| leaf_paths(value, below(&at.to_string()), found)),
        _ => found.push(here),
    }
}

/// Changes the manifest, if it is JSON; its own checksum stays its last member.
fn manifest(dir: &Path, f: &dyn Fn(&mut Value)) {
    const OWN: &str = "manifest_crc32c";
    let path = dir.join("manifest.json");
    let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
    let text = is_file.then(|| fs::read(&path).unwrap_or_default());
    let Some(Ok(mut json)) = text.map(|text| serde_json::from_slice::<Value>(&text)) else {
        return;
    };
    let own = json.as_object_mut().and_then(|members| members.remove(OWN));
    f(&mut json);
    let mut text = serde_json::to_string_pretty(&json).unwrap();
    if let Some(own) = own.filter(|_| json.is_object()) {
        text.truncate(text.len() - 2);
        text += &format!(",\n  \"{OWN}\": {own}\n}}\n");
    }
    fs::write(path, text).unwrap();
}

/// Makes sizes and checksums in the manifest those of the files, and its own right.
fn sign(dir: &Path) {
    manifest(dir, &|json| {
        let files = json.get_mut("files").and_then(Value::as_array_mut);
        for file in files.into_iter().flatten() {
            let plain =
                |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
            let path = file["path"]
                .as_str()
                .map(|path| dir.join(path))
                .filter(plain);
            if let (Some(path), Some(file)) = (path, file.as_object_mut()) {
                let bytes = fs::read(path).unwrap_or_default();
                file.insert("bytes".into(), bytes.len().into());
                file.insert(
                    "crc32c".into(),
                    format!("{:08x}", crc32c::crc32c(&bytes)).into(),
                );
            }
        }
    });
    let path = dir.join("manifest.json");
    let own = b"\"manifest_crc32c\": \"";
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
        let mut text = fs::read(&path).unwrap();
        let at = text.windows(own.len()).rposition(|window| window == own);
        if let Some(place) = at
            .map(|at| at + own.len())
            .filter(|at| at + 8 <= text.len())
        {
            text[place..place + 8].copy_from_slice(b"00000000");
            let digits = format!("{:08x}", crc32c::crc32c(&text));
            text[place..place + 8].copy_from_slice(digits.as_bytes());
            fs::write(path, text).unwrap();
        }
    }
}

fn table(dim: usize, sketch: u64) -> Arc<Table> {
    let config = TableConfig {
        seed: 1,
        initializer: Initializer::Ones,
        frozen_keys: vec![3],
        admission_sketch_bytes: sketch,
        ..TableConfig::new("users", dim, CAPACITY)
    };
    Arc::new(Table::new(config).unwrap())
}

fn adam() -> LazyAdam {
    LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap()
}

/// A training step: count, admit, update.
fn step(table: &Arc<Table>, pool: &Pool, ids: &[i64], time: i64) -> Result<()> {
    let limits = thresholds(2, Some(50));
    let mut places = vec![0; ids.len()];
    let keys = table.observe(
        None,
        pool,
        Ids::I64(ids),
        1,
        Some(time),
        limits,
        &mut places,
    )?;
    let mut inverse = vec![0; ids.len()];
    let lease = table.admit(pool, &keys, None, &places, &mut inverse)?;
    let grads = vec![0.25; lease.offsets().len() * table.dim()];
    let rows = Target::Offsets(lease.offsets());
    table.apply(pool, rows, &grads, &adam()).map(drop)
}

/// Checkpoints of every kind, each with the dim and the sketch of its table and its directories: a
/// whole one, then its deltas.
struct Seeds {
    root: Directory,
    all: Vec<(usize, u64, Vec<PathBuf>)>,
}

impl Seeds {
    fn new(pool: &Pool) -> Seeds {
        let root = Directory::new("hostile");
        let mut all = Vec::new();
        for (name, sketch, counts) in [
            ("plain", 0, false),
            ("history", 0, true),
            ("sketch", 1024, true),
        ] {
            let table = table(2, sketch);
            table.track_changes();
            let train = |from: i64, time: i64| {
                let ids: Vec<i64> = (from..from + 40).map(|key| key * 977 - 500).collect();
                if counts {
                    step(&table, pool, &ids, time).unwrap();
                    step(&table, pool, &ids[..25], time + 10).unwrap();
                } else {
                    let grads = vec![0.5; ids.len() * 2];
                    applied(&table, pool, Target::Ids(Ids::I64(&ids)), &grads, &adam());
                }
            };
            train(0, 100);
            let dir = |link: usize| root.0.join(name).join(link.to_string());
            let mut since = checkpoint::save(&table, pool, &dir(0)).unwrap().epoch;
            let mut dirs = vec![dir(0)];
            for link in 1..3 {
                train(30 * link as i64, 100 + 20 * link as i64);
                table
                    .remove(Ids::I64(&[-500, 977 * link as i64 - 500]))
                    .unwrap();
                since = checkpoint::save_delta(&table, pool, &dir(link), since, 0)
                    .unwrap()
                    .epoch;
                dirs.push(dir(link));
            }
            all.push((2, sketch, dirs));
        }
        for version in [
            "original",
            "original_history",
            "version_1",
            "version_2",
            "version_2_history",
        ] {
            let fixtures =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/checkpoints");
            all.push((3, 0, vec![fixtures.join(version).join("users")]));
        }
        Seeds { root, all }
    }
}

/// Asks everything that there is to ask of the files, of which one directory was changed; returns
/// whether the table was loaded.
fn question(
    pool: &Pool,
    whole: &[PathBuf],
    dirs: &[PathBuf],
    at: usize,
    dim: usize,
    sketch: u64,
) -> bool {
    let (dir, tell) = (&dirs[at], &mut |_: u64, _: u64| true);
    if let Ok(described) = inspect::describe(dir) {
        serde_json::to_string(&described).unwrap();
    }
    let verified = inspect::verify(dir, tell);
    // Of a chain the newest history counts; earlier ones are not looked at. A sketch cannot tell
    // whether a key comes twice.
    let is_last = at + 1 == dirs.len();
    let counts = |fault: &inspect::Fault| {
        let is_history = ["hist_rec", "hist_sketch", "table_2_thresh"].contains(&&*fault.file);
        !is_history || is_last && !fault.message.starts_with("keys occur more than once")
    };
    let faults = verified.map(|report| {
        let mut faults = report.faults;
        faults.retain(counts);
        faults
    });
    for key in [0, -500, 477, i64::MIN, PADDING] {
        let _ = inspect::row(dir, key, tell);
    }
    for (here, there) in [(dir, &whole[at]), (&whole[at], dir)] {
        if let Ok(difference) = inspect::diff(here, there, tell) {
            serde_json::to_string(&difference).unwrap();
        }
    }
    let links: Vec<&Path> = dirs.iter().map(PathBuf::as_path).collect();
    let (empty, full) = (table(dim, sketch), table(dim, sketch));
    step(&full, pool, &[1, 2, 2, 3, 4, 4], 70).unwrap();
    let before = full.export().unwrap();
    let wanted = |name: &str| name != "LazyAdam_velocity";
    let _ = checkpoint::load_chain(&empty, pool, &[links[0]], &wanted);
    let result = checkpoint::load_chain(&full, pool, &links, &|_| true);
    let after = full.export().unwrap();
    let loaded = match result {
        Ok(loaded) => {
            assert_eq!(faults.unwrap(), [], "what loads has no fault");
            assert_eq!(loaded.rows, after.keys.len() as u64);
            assert!(loaded.rows <= CAPACITY && !after.keys.contains(&PADDING));
            let distinct: HashSet<i64> = after.keys.iter().copied().collect();
            assert_eq!(distinct.len(), after.keys.len(), "a key has two rows");
            true
        }
        Err(error) => {
            assert_ne!(error.kind(), Kind::Internal, "{error}");
            let message = error.to_string();
            assert!(
                message.contains("users") || message.contains("hostile"),
                "{message}"
            );
            assert_eq!(
                after, before,
                "a failed load leaves the table as it was: {error}"
            );
            false
        }
    };
    // Whatever happened, the table can be used, though it may be full.
    if let Err(error) = step(&full, pool, &[1, 5, 5, 6], 80) {
        assert_eq!(error.kind(), Kind::ResourceExhausted, "{error}");
        assert!(full.len() > CAPACITY - 4, "{error}");
    }
    full.evict().unwrap();
    assert_eq!(full.len(), full.export().unwrap().keys.len() as u64);
    loaded
}

/// So many random cases; returns how many of them loaded all the same.
fn run(cases: u32) -> u64 {
    let pool = Pool::new(2).unwrap();
    let seeds = Seeds::new(&pool);
    let work = seeds.root.0.join("work");
    let loaded = Cell::new(0);
    let result = TestRunner::new(Config {
        cases,
        ..self::cases(cases)
    })
    .run(&case(), |(seed, at, changes, signed, holder)| {
        let (dim, sketch, whole) = seed.get(&seeds.all);
        let at = at.index(whole.len());
        let _ = fs::remove_dir_all(&work);
        let dirs: Vec<PathBuf> = (0..whole.len())
            .map(|link| work.join(format!("sparse-m-{link}/users")))
            .collect();
        whole
            .iter()
            .zip(&dirs)
            .for_each(|(from, to)| copy(from, to));
        changes.iter().for_each(|change| apply(&dirs[at], change));
        if signed {
            sign(&dirs[at]);
        }
        hold(&dirs[at], &whole[at], &holder);
        let start = Instant::now();
        loaded.set(loaded.get() + u64::from(question(&pool, whole, &dirs, at, *dim, *sketch)));
        prop_assert!(start.elapsed() < LONG, "it took {:?}", start.elapsed());
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    for (what, most) in [("VmHWM:", MEMORY), ("VmPeak:", SPACE)] {
        let peak = memory(what);
        assert!(peak < most, "{what} {} MiB", peak >> 20);
    }
    loaded.get()
}

#[test]
fn broken_files_are_read_or_refused_and_lose_nothing() {
    let cases = if is_whole() { 600 } else { 150 };
    let loaded = run(cases);
    assert!(
        loaded > u64::from(cases / 30),
        "only {loaded} loaded: nothing lies behind the checksums"
    );
}

#[test]
#[ignore = "minutes: scripts/stress fuzz"]
fn hostile_files_for_a_while() {
    let seconds = std::env::var("MX_REC_FUZZ_SECONDS").map_or(Ok(60), |text| text.parse());
    let end = Instant::now() + Duration::from_secs(seconds.expect("a number of seconds"));
    let (mut cases, mut loaded) = (0_u64, 0);
    while Instant::now() < end {
        loaded += run(2_000);
        cases += 2_000;
    }
    println!(
        "{cases} cases, {loaded} loaded, at most {} KiB of memory",
        memory("VmHWM:") >> 10
    );
}

/// A line of what the system tells of this process's memory, in bytes.
fn memory(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let kibibytes = line.and_then(|line| line.split_whitespace().next());
    kibibytes.unwrap().parse::<u64>().unwrap() << 10
}
