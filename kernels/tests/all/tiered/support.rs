//! What the tests of tables on disk share: tables, batches, and what a table holds.

pub(crate) use crate::directory::Directory;
use crate::faulty::Faulty;
use crate::singles::Singles as _;
pub(crate) use crate::support::pool;
use crate::support::UNIFORM;
pub(crate) use crate::table::bits;
use mx_rec_kernels::tier::Files;
use mx_rec_kernels::{Table, TableConfig};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const DIM: usize = 6;

pub(crate) fn config(name: &str, capacity: u64) -> TableConfig {
    TableConfig {
        seed: 9,
        initializer: UNIFORM,
        init_param: 0.5,
        frozen_keys: vec![3],
        ..TableConfig::new(name, DIM, capacity)
    }
}

pub(crate) fn in_memory(name: &str, capacity: u64) -> Arc<Table> {
    Arc::new(Table::new(config(name, capacity)).unwrap())
}

/// A table with so many rows in memory, and what makes its disk fail.
pub(crate) fn faulty(name: &str, capacity: u64, ram_rows: u64) -> (Arc<Table>, Faulty) {
    let files = Files::open(&[std::env::temp_dir()]).unwrap();
    let faulty = Faulty::new(Arc::new(files));
    let storage = Arc::new(faulty.clone());
    let table = Table::tiered_on(config(name, capacity), ram_rows, storage).unwrap();
    (Arc::new(table), faulty)
}

pub(crate) fn tiered(name: &str, capacity: u64, ram_rows: u64) -> Arc<Table> {
    faulty(name, capacity, ram_rows).0
}

/// Some keys below `keys`, low ones more often, and some padding.
pub(crate) fn batch(seed: u64, n: usize, keys: i64) -> Vec<i64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 27
    };
    let mut key = || {
        let draw = (next() >> 11) as f64 / (1_u64 << 53) as f64;
        match next() % 40 {
            0 => -1,
            _ => (draw * draw * draw * keys as f64) as i64,
        }
    };
    (0..n).map(|_| key()).collect()
}

pub(crate) fn floats(n: usize, seed: u64) -> Vec<f32> {
    let value = |at: usize| ((at * 7919 + seed as usize * 104_729) as f32 * 0.37).sin();
    (0..n).map(value).collect()
}

/// Bits of the embedding and of all slots, by key.
pub(crate) fn content(table: &Table) -> BTreeMap<i64, Vec<u32>> {
    let export = table.export().unwrap();
    let mut rows = BTreeMap::new();
    for (at, &key) in export.keys.iter().enumerate() {
        let mut row = bits(&export.embedding[at * DIM..(at + 1) * DIM]);
        for (spec, slot) in &export.slots {
            let floats = spec.floats(DIM);
            row.extend(bits(&slot[at * floats..(at + 1) * floats]));
        }
        assert!(rows.insert(key, row).is_none());
    }
    rows
}
