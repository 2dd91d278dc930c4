//! Looks at histories as they were saved, and as something damaged them.

use super::{describe, diff, row, verify, HistoryFacts, KeyHistory, Keys, Report};
use crate::checkpoint::temp::Temp;
use std::fs;
use std::path::{Path, PathBuf};

/// A copy of the tables that were saved with a history, removed at the end.
struct Saved(Temp);

impl Saved {
    fn new() -> Saved {
        let saved = Saved(Temp::new());
        for name in ["original_history", "version_2_history"] {
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
            let from = fixtures.join("checkpoints").join(name).join("users");
            copy(&from, &saved.at(name));
        }
        saved
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.at(name)
    }

    /// What `verify` says of the original's table with these records.
    fn with_records(&self, words: &[i64]) -> Report {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        fs::write(self.at("original_history/hist_rec"), bytes).unwrap();
        verify(&self.at("original_history"), &mut go_on).unwrap()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn go_on(_: u64, _: u64) -> bool {
    true
}

const FIXTURE: HistoryFacts = HistoryFacts {
    keys: 7,
    access: 3,
    configured_access: Some(2),
    eviction: Some(3600),
    counting: true,
    latest: 1_700_000_050,
};

#[test]
fn a_history_is_described_and_verified() {
    let temp = Saved::new();
    let found = describe(&temp.at("version_2_history")).unwrap();
    assert_eq!((found.faults, found.history), (vec![], Some(FIXTURE)));
    let found = describe(&temp.at("original_history")).unwrap();
    assert_eq!(found.faults, []);
    // Nobody tells: the threshold in force stands for the configured one.
    let original = HistoryFacts {
        configured_access: Some(3),
        ..FIXTURE
    };
    assert_eq!(found.history, Some(original));
    assert_eq!(found.slots.len(), 2);
    for (name, files, checksums) in [("version_2_history", 10, 10), ("original_history", 5, 0)] {
        let report = verify(&temp.at(name), &mut go_on).unwrap();
        assert_eq!(report.faults, []);
        assert_eq!((report.files, report.checksums), (files, checksums));
    }
}

#[test]
fn a_key_is_shown_with_its_count_whether_it_has_a_row_or_waits() {
    let temp = Saved::new();
    for name in ["version_2_history", "original_history"] {
        let find = |key| row(&temp.at(name), key, &mut go_on).unwrap();
        let seen = |count, last| Some(KeyHistory { count, last });
        let found = find(-3).unwrap();
        assert_eq!((found.position, found.parts.len()), (Some(1), 3));
        assert_eq!(found.seen, seen(3, 1_700_000_000));
        let found = find(42).unwrap();
        assert_eq!((found.position, found.parts.len()), (None, 0));
        assert_eq!(found.seen, seen(2, 1_700_000_050));
        assert_eq!(find(43), None);
    }
    let found = row(&temp.at("version_2_history"), 41, &mut go_on).unwrap();
    let json = serde_json::to_string(&found).unwrap();
    let expected = r#"{"position":null,"parts":[],"seen":{"count":1,"last":1700000050}}"#;
    assert_eq!(json, expected);
}

#[test]
fn histories_differ_by_keys_counts_and_thresholds() {
    let temp = Saved::new();
    let (here, there) = (temp.at("version_2_history"), temp.at("original_history"));
    let compare = || diff(&here, &there, &mut go_on).unwrap();
    let found = compare();
    let history = found.history.unwrap();
    assert!(!found.equal, "the configured threshold differs");
    assert_eq!((history.differing, history.only_here), Default::default());
    let same = diff(&here, &here, &mut go_on).unwrap();
    assert!(same.equal && same.history.unwrap().here == Some(FIXTURE));
    temp.with_records(&[5, 41, 2, 6, 100, 1, 1, -9, 1, 1, 42, 2, 1_700_000_050]);
    let found = compare().history.unwrap();
    let keys = |first: &[i64]| Keys {
        count: first.len() as u64,
        first: first.to_vec(),
    };
    assert_eq!(found.differing, keys(&[41]));
    assert_eq!(found.only_here, keys(&[i64::MIN, -3, 0, 7, 1 << 62]));
    assert_eq!(found.only_there, keys(&[-9, 100]));
    assert_eq!(found.there.unwrap().keys, 4);
    // A table without one.
    fs::remove_file(there.join("hist_rec")).unwrap();
    fs::remove_file(there.join("table_2_thresh")).unwrap();
    let found = compare();
    let history = found.history.unwrap();
    assert!(!found.equal && history.there.is_none());
    assert_eq!((history.only_here.count, history.only_there.count), (7, 0));
    assert_eq!(diff(&there, &there, &mut go_on).unwrap().history, None);
}

#[test]
fn faults_of_a_history_are_told_with_their_files() {
    let temp = Saved::new();
    let told = |report: &Report, message: &str| {
        let found = (report.faults.iter())
            .filter(|fault| fault.file == "hist_rec" && fault.message.contains(message));
        assert_eq!(found.count(), 1, "{message}: {:?}", report.faults);
    };
    told(&temp.with_records(&[5, 1, 1, 1, 1, 2, 2]), "more than once");
    told(&temp.with_records(&[5, -1, 1, 1]), "padding");
    told(
        &temp.with_records(&[5, 1, -1, 1, 2, 1, -1]),
        "negative (times=2)",
    );
    told(&temp.with_records(&[5, 1, 1]), "8 + 24 n");
    told(&temp.with_records(&[]), "8 + 24 n");
    // More than one block.
    let many = (0..100_000).flat_map(|key| [key, 1, 1]);
    let mut words: Vec<i64> = [5].into_iter().chain(many).collect();
    assert_eq!(temp.with_records(&words).faults, []);
    words[3 * 70_000 + 1] = 8;
    told(&temp.with_records(&words), "first=8");
    let dir = temp.at("version_2_history");
    for name in ["hist_rec", "table_2_thresh"] {
        let path = dir.join(name);
        let whole = fs::read(&path).unwrap();
        for (bytes, message) in [
            (&whole[1..], "size"),
            (&[&whole[..8], &[9; 168]].concat(), ""),
        ] {
            fs::write(&path, bytes).unwrap();
            let faults = verify(&dir, &mut go_on).unwrap().faults;
            let told = |fault: &super::Fault| fault.file == name && fault.message.contains(message);
            assert!(faults.iter().any(told), "{faults:?}");
        }
        fs::remove_file(&path).unwrap();
        let faults = verify(&dir, &mut go_on).unwrap().faults;
        assert_eq!(faults.len(), 1, "a missing file is told once: {faults:?}");
        assert_eq!(faults[0].file, name);
        assert!(row(&dir, 7, &mut go_on).is_err());
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(verify(&dir, &mut go_on).unwrap().faults, []);
}
