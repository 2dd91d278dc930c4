//! A sketch is saved with its table, and a training goes on with it; tables with other counters
//! take what they can.

use crate::directory::Directory;
use crate::support::expect_error;
use mx_rec_kernels::checkpoint::inspect::{describe, verify};
use mx_rec_kernels::checkpoint::{load, load_chain, save};
use mx_rec_kernels::{Initializer, Kind, Pool, Table, TableConfig, Thresholds};
use std::fs;
use std::sync::Arc;

const LIMITS: Thresholds = Thresholds {
    access: 3,
    eviction: Some(100),
};

/// So wide that the keys of these tests do not meet in all their cells.
const WIDE: u64 = 3 << 20;

fn pool() -> Pool {
    Pool::new(2).unwrap()
}

fn table(admission_sketch_bytes: u64) -> Arc<Table> {
    let table = Table::new(TableConfig {
        seed: 3,
        initializer: Initializer::Ones,
        admission_sketch_bytes,
        ..TableConfig::new("t", 2, 1 << 20)
    });
    Arc::new(table.unwrap())
}

/// One lookup; says which ids have a row.
fn look(table: &Arc<Table>, ids: &[i64], time: i64) -> Vec<bool> {
    crate::admission::look(table, &pool(), ids, 1, Some(time), LIMITS).1
}

/// Of keys 0..3000 a third was seen once, twice and thrice: the last have rows.
fn trained(sketch_bytes: u64) -> Arc<Table> {
    let table = table(sketch_bytes);
    let ids: Vec<i64> = (0..3000)
        .flat_map(|key| std::iter::repeat_n(key, key as usize % 3 + 1))
        .collect();
    look(&table, &ids, 1000);
    assert_eq!(table.len(), 1000);
    table
}

fn every() -> Vec<i64> {
    (0..3000).collect()
}

/// What one more occurrence admits if nothing was forgotten, and if keys without rows are counted
/// anew.
fn goes_on(key: i64) -> bool {
    key % 3 >= 1
}

fn anew(key: i64) -> bool {
    key % 3 == 2
}

#[test]
fn training_goes_on_with_the_counts_that_were_saved() {
    let temp = Directory::new("sketch");
    let before = trained(WIDE);
    save(&before, &pool(), &temp.0.join("t")).unwrap();
    let after = table(WIDE);
    assert_eq!(load(&after, &pool(), &temp.0.join("t")).unwrap(), 1000);
    assert_eq!(after.stats().history_bytes, before.stats().history_bytes);
    for table in [&before, &after] {
        let expected: Vec<bool> = every().into_iter().map(goes_on).collect();
        assert_eq!(look(table, &every(), 1099), expected);
        look(table, &[5000], 1100);
        assert_eq!(table.evict().unwrap(), (0, 2000));
    }
    // Times are there as well: 100 s later what was not seen again is stale.
    let late = table(WIDE);
    load(&late, &pool(), &temp.0.join("t")).unwrap();
    look(&late, &[5000], 1100);
    assert_eq!(late.evict().unwrap(), (1000, 0));
    assert!(!look(&late, &every(), 1101).contains(&true));
    let found = describe(&temp.0.join("t")).unwrap();
    assert_eq!(found.faults, []);
    assert_eq!(found.history.unwrap().keys, 1000);
    let report = verify(&temp.0.join("t"), &mut |_, _| true).unwrap();
    assert_eq!((report.faults, report.files), (vec![], report.checksums));
}

#[test]
fn other_counters_keep_the_rows_and_count_other_keys_anew() {
    let temp = Directory::new("sketch");
    save(&trained(WIDE), &pool(), &temp.0.join("t")).unwrap();
    for bytes in [0, 2 * WIDE, 1 << 20] {
        let other = table(bytes);
        assert_eq!(load(&other, &pool(), &temp.0.join("t")).unwrap(), 1000);
        let expected: Vec<bool> = every().into_iter().map(anew).collect();
        assert_eq!(look(&other, &every(), 1001), expected, "{bytes} bytes");
    }
}

#[test]
fn exact_counters_are_added_to_a_sketch_key_by_key() {
    let temp = Directory::new("sketch");
    save(&trained(0), &pool(), &temp.0.join("t")).unwrap();
    let sketch = table(WIDE);
    load(&sketch, &pool(), &temp.0.join("t")).unwrap();
    let expected: Vec<bool> = every().into_iter().map(goes_on).collect();
    assert_eq!(look(&sketch, &every(), 1001), expected);
}

#[test]
fn who_does_not_want_the_history_does_not_get_the_sketch() {
    let temp = Directory::new("sketch");
    save(&trained(WIDE), &pool(), &temp.0.join("t")).unwrap();
    fs::write(temp.0.join("t").join("hist_sketch"), "not looked at").unwrap();
    let other = table(WIDE);
    load_chain(&other, &pool(), &[&temp.0.join("t")], &|name| {
        name != "hist_rec"
    })
    .unwrap();
    assert_eq!(other.stats().history_bytes, 0);
}

#[test]
fn a_damaged_sketch_is_refused_by_name_and_changes_nothing() {
    let temp = Directory::new("sketch");
    save(&trained(WIDE), &pool(), &temp.0.join("t")).unwrap();
    let file = temp.0.join("t").join("hist_sketch");
    let good = fs::read(&file).unwrap();
    assert_eq!(good.len() as u64, 16 + WIDE);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for bytes in [
        vec![],
        good[..15].to_vec(),
        good[..good.len() - 8].to_vec(),
        with(0, 77),
        with(7, 255),
        with(8, 3),
        with(good.len() - 1, 99),
    ] {
        fs::write(&file, bytes).unwrap();
        for sketch_bytes in [WIDE, 0] {
            let other = table(sketch_bytes);
            look(&other, &[1, 1, 1], 5);
            let error = load(&other, &pool(), &temp.0.join("t")).unwrap_err();
            expect_error(&error, Kind::DataLoss, &["hist_sketch"]);
            assert_eq!(look(&other, &[1], 6), [true]);
        }
    }
    fs::remove_file(&file).unwrap();
    let error = load(&table(WIDE), &pool(), &temp.0.join("t")).unwrap_err();
    expect_error(&error, Kind::NotFound, &["hist_sketch"]);
}
