//! Tables in every version of the checkpoint format load, and hold what they held when they were
//! saved.

use crate::admission::look;
use crate::singles::Singles as _;
use crate::support::thresholds;
use mx_rec_kernels::{
    checkpoint, Initializer, Pool, RowDtype, RowStorage, SlotSpec, Table, TableConfig,
};
use std::path::PathBuf;
use std::sync::Arc;

fn table() -> Table {
    Table::new(TableConfig {
        seed: 1,
        initializer: Initializer::Ones,
        ..TableConfig::new("users", 3, 100)
    })
    .unwrap()
}

fn fixture(version: &str) -> PathBuf {
    [
        env!("CARGO_MANIFEST_DIR"),
        "../tests/fixtures/checkpoints",
        version,
        "users",
    ]
    .iter()
    .collect()
}

#[test]
fn every_version_loads_with_its_values() {
    let floats = || (0..15).map(|at| at as f32);
    for (number, version) in [
        (0, "original"),
        (1, "version_1"),
        (2, "version_2"),
        (0, "original_history"),
        (2, "version_2_history"),
    ] {
        let dir = fixture(version);
        let described = checkpoint::inspect::describe(&dir).unwrap();
        assert_eq!(described.version, number);
        assert_eq!(described.faults, [], "{version}");
        let table = table();
        let pool = Pool::new(2).unwrap();
        assert_eq!(checkpoint::load(&table, &pool, &dir).unwrap(), 5);
        let found = table.export().unwrap();
        assert_eq!(found.keys, [7, -3, 1 << 62, i64::MIN, 0], "{version}");
        let embedding: Vec<f32> = floats().map(|value| value * 0.25 - 1.0).collect();
        assert_eq!(found.embedding, embedding, "{version}");
        let slots: Vec<&str> = found.slots.iter().map(|(spec, _)| &*spec.name).collect();
        assert_eq!(
            slots,
            ["LazyAdam_momentum", "LazyAdam_velocity"],
            "{version}"
        );
        let momentum: Vec<f32> = floats().map(|value| value * 0.001).collect();
        assert_eq!(found.slots[0].1, momentum, "{version}");
        let velocity: Vec<f32> = floats().map(|value| value * value * 1e-6).collect();
        assert_eq!(found.slots[1].1, velocity, "{version}");
    }
}

/// The slots that the fixture of a version with values of 2 bytes holds; keys and embeddings are
/// the same in all of them.
fn slots_of(version: u32, row_storage: RowStorage) -> Vec<(SlotSpec, Vec<f32>)> {
    let dir = fixture(&format!("version_{version}"));
    let described = checkpoint::inspect::describe(&dir).unwrap();
    assert_eq!(described.version, version);
    assert_eq!(described.faults, []);
    let table = Table::new(TableConfig {
        row_storage,
        ..table().config().clone()
    });
    let (table, pool) = (table.unwrap(), Pool::new(2).unwrap());
    assert_eq!(checkpoint::load(&table, &pool, &dir).unwrap(), 5);
    let found = table.export().unwrap();
    assert_eq!(found.keys, [7, -3, 1 << 62, i64::MIN, 0]);
    let embedding: Vec<f32> = (0..15).map(|at| at as f32 * 0.25 - 1.0).collect();
    assert_eq!(found.embedding, embedding);
    found.slots
}

#[test]
fn a_table_of_halves_with_a_slot_a_row_loads_with_its_values() {
    let slots = slots_of(
        4,
        RowStorage {
            dtype: RowDtype::Bfloat16,
            ..RowStorage::default()
        },
    );
    let [(slot, values)] = &slots[..] else {
        panic!("{} slots", slots.len());
    };
    assert!(slot.per_row && slot.name == "RowwiseAdagrad_accumulator");
    let expected = [5.0, 50.0, 149.0, 302.0, 509.0].map(|sum| sum / 3.0_f32);
    assert_eq!(values[..], expected);
}

#[test]
fn a_table_with_slots_of_two_bytes_loads_with_its_values() {
    let slots = slots_of(
        5,
        RowStorage {
            dtype: RowDtype::Float16,
            slot_dtype: RowDtype::Bfloat16,
            ..RowStorage::default()
        },
    );
    let [(m, of_m), (v, of_v)] = &slots[..] else {
        panic!("{} slots", slots.len());
    };
    assert_eq!((&*m.name, m.per_row), ("RowwiseAdam_momentum", false));
    assert_eq!((&*v.name, v.per_row), ("RowwiseAdam_velocity", true));
    let squares = (0..15).map(|at| (at * at) as f32 * 0.125);
    assert!(squares.eq(of_m.iter().copied()));
    assert_eq!(of_v[..], [0.1, 0.2, 0.3, 0.4, 0.5]);
}

#[test]
fn a_history_decides_about_keys_as_it_did_when_it_was_saved() {
    let pool = Pool::new(1).unwrap();
    for (version, has_history) in [
        ("original", false),
        ("version_2", false),
        ("original_history", true),
        ("version_2_history", true),
    ] {
        let table = Arc::new(table());
        checkpoint::load(&table, &pool, &fixture(version)).unwrap();
        let admit = |time, ids: &[i64]| {
            // What was configured when it was saved; the original does not tell, and its threshold
            // stands for it.
            let access = if version == "original_history" { 3 } else { 2 };
            let thresholds = thresholds(access, Some(3600));
            look(&table, &pool, ids, 1, Some(time), thresholds).1
        };
        let admitted = admit(1_700_003_600, &[41, 42, -3, 7]);
        assert_eq!(admitted, [false, has_history, true, true], "{version}");
        // 0, 41 and 42 were seen 50 s after the others.
        let (gone, known) = table.evict().unwrap();
        let expected = if has_history { (2, 5) } else { (0, 7) };
        assert_eq!((gone, known), expected, "{version}");
    }
}

#[test]
fn a_checkpoint_with_seals_and_one_of_before_load() {
    let holder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/whole");
    let pool = Pool::new(1).unwrap();
    for name in ["sparse-without_seals-5", "sparse-with_seals-5"] {
        let dir = holder.join(name).join("users");
        assert_eq!(
            checkpoint::inspect::describe(&dir).unwrap().faults,
            [],
            "{name}"
        );
        assert_eq!(
            checkpoint::load(&table(), &pool, &dir).unwrap(),
            5,
            "{name}"
        );
    }
}

#[test]
fn todays_version_is_among_them() {
    let table = table();
    let pool = Pool::new(1).unwrap();
    checkpoint::load(&table, &pool, &fixture("original")).unwrap();
    let dir = std::env::temp_dir().join(format!("mx_rec-fixture-{}", std::process::id()));
    checkpoint::save(&table, &pool, &dir).unwrap();
    let here = checkpoint::inspect::describe(&dir).unwrap().version;
    std::fs::remove_dir_all(&dir).unwrap();
    let newest = checkpoint::inspect::describe(&fixture("version_2")).unwrap();
    assert_eq!(here, newest.version, "a new version needs a fixture");
}

#[test]
fn a_chain_whose_delta_has_all_rows_and_one_with_steps_load() {
    let holder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/chains");
    let pool = Pool::new(1).unwrap();
    for (version, rows) in [(2, 6), (3, 3)] {
        let at = |name: &str| holder.join(format!("version_{version}_adam/{name}/users"));
        let delta = checkpoint::inspect::describe(&at("delta")).unwrap();
        assert_eq!((delta.version, delta.rows), (version, Some(rows)));
        let (chain, whole) = (table(), table());
        let dirs = [at("base"), at("delta")];
        let dirs: Vec<&std::path::Path> = dirs.iter().map(|dir| &**dir).collect();
        checkpoint::load_chain(&chain, &pool, &dirs, &|_| true).unwrap();
        checkpoint::load(&whole, &pool, &at("whole")).unwrap();
        let rows = |table: &Table| {
            let found = table.export().unwrap();
            let row = |(at, &key): (usize, &i64)| {
                let range = at * 3..(at + 1) * 3;
                let slots = found.slots.iter().map(|(_, slot)| &slot[range.clone()]);
                let bits = slots.flatten().chain(&found.embedding[range.clone()]);
                (key, bits.map(|value| value.to_bits()).collect::<Vec<u32>>())
            };
            let rows = found.keys.iter().enumerate().map(row);
            rows.collect::<std::collections::BTreeMap<i64, Vec<u32>>>()
        };
        assert_eq!(rows(&chain), rows(&whole), "{version}");
        assert_eq!(rows(&chain).len(), 6);
    }
}
