//! Memory goes back to the system; alone in its process, because it looks at the whole of it.

use mx_rec_kernels::{Ids, Initializer, Pool, Table, TableConfig};

fn create(table: &Table, pool: &Pool, ids: &[i64]) {
    let mut inverse = vec![0; ids.len()];
    table
        .id_offset(pool, Ids::I64(ids), true, None, &mut inverse)
        .unwrap();
}

/// Bytes of this process in RAM.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn memory_is_given_back_when_rows_go_and_when_the_table_does() {
    let pool = Pool::new(1).unwrap();
    let before = resident();
    let slack = 40 << 20;
    let table = Table::new(TableConfig {
        seed: 5,
        initializer: Initializer::Ones,
        ..TableConfig::new("memory", 64, 1 << 20)
    })
    .unwrap();
    let ids: Vec<i64> = (0..600_000).collect();
    for part in ids.chunks(60_000) {
        create(&table, &pool, part);
    }
    let memory = table.memory();
    assert_eq!(memory.rows_bytes, 600_000 * 256);
    assert!(resident() > before + (150 << 20));
    assert_eq!(table.remove(Ids::I64(&ids[600..])).unwrap(), 599_400);
    assert!(
        resident() < before + slack,
        "removed: {} MiB",
        (resident() - before) >> 20
    );
    create(&table, &pool, &ids);
    assert_eq!(table.clear(), 600_000);
    assert!(
        resident() < before + slack,
        "cleared: {} MiB",
        (resident() - before) >> 20
    );
    create(&table, &pool, &ids);
    drop(table);
    assert!(
        resident() < before + slack,
        "dropped: {} MiB",
        (resident() - before) >> 20
    );
}
