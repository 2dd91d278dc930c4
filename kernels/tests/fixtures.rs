//! Tables in every version of the checkpoint format load, and hold what they held when they were saved.

use mx_rec_kernels::{checkpoint, Initializer, Pool, Table, TableConfig};
use std::path::PathBuf;

fn table() -> Table {
    Table::new(TableConfig {
        name: "users".into(),
        dim: 3,
        capacity: 100,
        seed: 1,
        initializer: Initializer::Ones,
        init_param: 1.0,
        frozen_keys: Vec::new(),
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
    for (at, version) in ["original", "version_1", "version_2"].iter().enumerate() {
        let dir = fixture(version);
        let described = checkpoint::inspect::describe(&dir).unwrap();
        assert_eq!(described.version as usize, at);
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
