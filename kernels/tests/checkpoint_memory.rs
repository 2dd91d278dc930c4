//! Saving and loading need little memory beside the table; alone in its process, because it looks
//! at the whole of it.

mod peak;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
mod singles;

use crate::singles::{Singles as _, Target};
use mx_rec_kernels::{
    checkpoint, Ids, Initializer, LazyAdam, Pool, Table, TableConfig, Thresholds,
};
use peak::extra;
use std::fs;

const MOST: u64 = 16 << 20;

#[test]
fn saving_and_loading_need_at_most_16_mib() {
    let pool = Pool::new(2).unwrap();
    let dir = std::env::temp_dir().join(format!("mx_rec-memory-{}", std::process::id()));
    let made = || {
        Table::new(TableConfig {
            seed: 5,
            initializer: Initializer::Ones,
            ..TableConfig::new("memory", 32, 1 << 19)
        })
        .unwrap()
    };
    let table = made();
    let adam = LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap();
    let grads = vec![0.5; 50_000 * 32];
    for first in (0..250_000).step_by(50_000) {
        let ids: Vec<i64> = (first..first + 50_000).collect();
        table
            .apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &adam)
            .unwrap();
    }
    // Every row has a history, and so have three times as many keys without a row.
    let thresholds = Thresholds {
        access: 2,
        eviction: None,
    };
    for first in (0..1_000_000).step_by(50_000) {
        let ids: Vec<i64> = (first..first + 50_000).collect();
        let mut places = vec![0; ids.len()];
        table
            .observe(
                None,
                &pool,
                Ids::I64(&ids),
                1,
                None,
                thresholds,
                &mut places,
            )
            .unwrap();
    }
    let memory = table.memory();
    let size = memory.rows_bytes + memory.index_bytes;
    assert!(size > 5 * MOST, "the table is too small to tell");
    let saving = extra(|| {
        checkpoint::save(&table, &pool, &dir).unwrap();
    });
    assert!(saving < MOST, "saving: {} MiB", saving >> 20);
    drop(table);
    let table = made();
    let loading = extra(|| {
        checkpoint::load(&table, &pool, &dir).unwrap();
    });
    let memory = table.memory();
    let loaded = memory.rows_bytes + memory.index_bytes + table.stats().history_bytes;
    assert!(table.stats().history_bytes > MOST, "all keys came back");
    assert!(
        loading < loaded + MOST,
        "loading: {} MiB",
        loading.saturating_sub(loaded) >> 20
    );
    fs::remove_dir_all(&dir).unwrap();
}
