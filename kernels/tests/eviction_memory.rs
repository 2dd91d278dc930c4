//! Memory goes back to the system when keys are evicted, in whatever order they came, also while a
//! training goes on; alone in its process, because it looks at the whole of it.

use mx_rec_kernels::{Ids, Initializer, Lease, Pool, Table, TableConfig, Thresholds};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

const ROWS: i64 = 400_000;

/// Rows of 64 floats.
const ROW_BYTES: usize = 256;

/// Bytes of this process in RAM.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// One lookup with an eviction threshold of 100 seconds.
fn look(table: &Arc<Table>, pool: &Pool, ids: &[i64], time: i64) -> Lease {
    let limits = Thresholds {
        access: 1,
        eviction: Some(100),
    };
    let (mut places, mut inverse) = (vec![0; ids.len()], vec![0; ids.len()]);
    let ids = Ids::I64(ids);
    let keys = table
        .observe(None, pool, ids, 1, Some(time), limits, &mut places)
        .unwrap();
    table
        .admit(pool, &keys, None, &places, &mut inverse)
        .unwrap()
}

/// One in ten keys, no two neighbours for long.
fn stays(key: i64) -> bool {
    (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < (1 << 32) / 10
}

#[test]
fn memory_is_given_back_when_most_rows_are_evicted_in_random_order() {
    for training in [false, true] {
        let before = resident();
        let pool = Pool::new(1).unwrap();
        let table = Arc::new(
            Table::new(TableConfig {
                seed: 5,
                initializer: Initializer::Ones,
                ..TableConfig::new("evicted", 64, 1 << 20)
            })
            .unwrap(),
        );
        let keys: Vec<i64> = (0..ROWS).collect();
        for keys in keys.chunks(50_000) {
            look(&table, &pool, keys, 1000);
        }
        let full = resident() - before;
        assert!(full > ROWS as usize * ROW_BYTES, "{} MiB", full >> 20);
        let staying: Vec<i64> = keys.iter().copied().filter(|&key| stays(key)).collect();
        look(&table, &pool, &staying, 1100);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Steps that hold the same rows nearly all of the time, popular keys that is, and some
            // that are new.
            let train = |start: usize| {
                let mut new = start as i64 * 10_000_000;
                for batch in staying[start..].chunks(500).cycle() {
                    if done.load(Relaxed) {
                        return;
                    }
                    let mut ids = batch.to_vec();
                    ids.extend((0..10).map(|at| new + at + ROWS));
                    new += 10;
                    let lease = look(&table, &pool, &ids, 1100);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    drop(lease);
                }
            };
            if training {
                scope.spawn(move || train(0));
                scope.spawn(move || train(200));
            }
            let (gone, kept) = table.evict().unwrap();
            done.store(true, Relaxed);
            assert_eq!(gone, (keys.len() - staying.len()) as u64);
            assert!(kept >= staying.len() as u64);
        });
        let left = resident().saturating_sub(before);
        assert!(
            left < full / 4,
            "training: {training}, {} MiB of {} are left",
            left >> 20,
            full >> 20
        );
        let rows = look(&table, &pool, &staying, 1100);
        assert_eq!(rows.offsets().len(), staying.len());
    }
}
