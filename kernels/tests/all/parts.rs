//! A table that is cut into parts trains, saves and loads as one that is whole.

use crate::directory::Directory;
use crate::singles::Singles as _;
use crate::support::{created, expect_error, gradients, ids_of, push_of, UNIFORM};
use mx_rec_kernels::{
    checkpoint, Adagrad, Columns, Ids, Kind, LazyAdam, Partition, Pool, Pushed, Splitter, Table,
    TableConfig,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const DIM: usize = 3;

fn table(name: &str) -> Arc<Table> {
    let config = TableConfig {
        seed: 11,
        initializer: UNIFORM,
        frozen_keys: vec![4],
        ..TableConfig::new(name, DIM, 100_000)
    };
    Arc::new(Table::new(config).unwrap())
}

fn adam(step: i32) -> LazyAdam {
    LazyAdam::new(
        0.01,
        0.9,
        0.99,
        1e-8,
        0.9_f32.powi(step),
        0.99_f32.powi(step),
    )
    .unwrap()
}

/// The bits of every row with its slots, by key.
fn content(tables: &[Arc<Table>]) -> BTreeMap<i64, Vec<u32>> {
    let mut found = BTreeMap::new();
    for table in tables {
        let export = table.export().unwrap();
        for (at, &key) in export.keys.iter().enumerate() {
            let range = at * DIM..(at + 1) * DIM;
            let slots = export
                .slots
                .iter()
                .map(|(_, values)| &values[range.clone()]);
            let all = [&export.embedding[range.clone()]].into_iter().chain(slots);
            let bits = all.flatten().map(|value| value.to_bits()).collect();
            assert_eq!(found.insert(key, bits), None, "key {key} is in two parts");
        }
    }
    found
}

fn batch(step: i64) -> (Vec<i64>, Vec<f32>) {
    let ids: Vec<i64> = (0..3000)
        .map(|at| (at * at + step * 77) % 1501 - 1)
        .collect();
    let grads = (0..ids.len() * DIM).map(|at| ((at as i64 + step) as f32 * 0.3).sin());
    let grads = grads.collect();
    (ids, grads)
}

/// One step in the parts: what workers and parameter servers do.
fn step_in_parts(pool: &Pool, parts: &[Arc<Table>], step: i64) {
    let (ids, grads) = batch(step);
    let mut places = vec![0; ids.len()];
    let splitter = Splitter::new().unwrap();
    let found = splitter
        .split(pool, Ids::I64(&ids), parts.len() as u32, &mut places)
        .unwrap();
    let mut sums = vec![0.0; found.keys.len() * DIM];
    mx_rec_kernels::reduce(pool, &grads, DIM, &places, &mut sums).unwrap();
    let counts: Vec<i64> = found.counts.iter().map(|&count| count as i64).collect();
    let mut start = 0;
    for (at, table) in parts.iter().enumerate() {
        let keys = &found.keys[start..start + found.counts[at]];
        start += found.counts[at];
        let mut inverse = vec![0; keys.len()];
        let one = ids_of(table, keys, &mut inverse);
        drop(Table::lease_many(pool, vec![one], None).unwrap());
        let grads = mx_rec_kernels::rows_of_part(&sums, DIM, &counts, at).unwrap();
        let optimizer = adam(step as i32 + 1);
        let push = push_of(table, keys, grads, &optimizer);
        assert_eq!(Table::push_many(pool, &[push]).unwrap().dropped, 0);
    }
}

fn step_whole(pool: &Pool, table: &Table, step: i64) {
    let (ids, grads) = batch(step);
    let (offsets, inverse) = created(table, pool, &ids);
    let lookup = gradients(
        &offsets,
        &inverse,
        Columns::all(&grads, table.dim()).unwrap(),
    );
    table
        .apply_lookups(pool, &[lookup], &adam(step as i32 + 1))
        .unwrap();
}

fn save(temp: &Directory, pool: &Pool, parts: &[Arc<Table>]) {
    for (at, table) in parts.iter().enumerate() {
        let part = Partition::new(at as u32, parts.len() as u32).unwrap();
        let dir = temp.0.join(format!("users{part}"));
        checkpoint::save(table, pool, &dir).unwrap();
    }
}

fn load(pool: &Pool, dir: &Path, parts: u32) -> Vec<Arc<Table>> {
    let load = |part| {
        let table = table("users");
        let part = Partition::new(part, parts).unwrap();
        checkpoint::load_part(&table, pool, &[dir], part).unwrap();
        for &key in &table.export().unwrap().keys {
            assert!(part.holds(key));
        }
        table
    };
    (0..parts).map(load).collect()
}

#[test]
fn parts_train_to_the_same_bits_as_one_table_for_any_number_of_threads() {
    let whole = table("users");
    let alone = Pool::new(1).unwrap();
    (0..5).for_each(|step| step_whole(&alone, &whole, step));
    for (parts, threads) in [(1, 1), (1, 3), (2, 2), (3, 1), (8, 3)] {
        let pool = Pool::new(threads).unwrap();
        let tables: Vec<_> = (0..parts).map(|_| table("users")).collect();
        (0..5).for_each(|step| step_in_parts(&pool, &tables, step));
        assert_eq!(content(&tables), content(&[Arc::clone(&whole)]), "{parts}");
    }
}

#[test]
fn any_number_of_parts_loads_into_any_other_and_into_a_whole_table_and_back() {
    let pool = Pool::new(2).unwrap();
    for parts in 1..=8 {
        let tables: Vec<_> = (0..parts).map(|_| table("users")).collect();
        (0..2).for_each(|step| step_in_parts(&pool, &tables, step));
        let expected = content(&tables);
        let temp = Directory::new(&format!("parts-{parts}"));
        save(&temp, &pool, &tables);
        let dir = temp.0.join("users");
        for others in 1..=8 {
            let found = load(&pool, &dir, others);
            assert_eq!(content(&found), expected, "{parts} to {others}");
        }
        let whole = table("users");
        checkpoint::load(&whole, &pool, &dir).unwrap();
        assert_eq!(content(&[Arc::clone(&whole)]), expected);
        let back = temp.0.join("whole").join("users");
        checkpoint::save(&whole, &pool, &back).unwrap();
        assert_eq!(content(&load(&pool, &back, parts)), expected);
    }
}

#[test]
fn parts_that_are_missing_misnamed_or_of_two_saves_are_refused_and_change_nothing() {
    let pool = Pool::new(1).unwrap();
    let tables: Vec<_> = (0..3).map(|_| table("users")).collect();
    step_in_parts(&pool, &tables, 0);
    let temp = Directory::new("damaged-parts");
    save(&temp, &pool, &tables);
    let name = |part, parts| {
        let part = Partition::new(part, parts).unwrap();
        temp.0.join(format!("users{part}"))
    };
    let (kept, before) = (table("users"), content(&[table("users")]));
    let refused = |what: &str| {
        let error = checkpoint::load(&kept, &pool, &temp.0.join("users")).unwrap_err();
        expect_error(&error, Kind::DataLoss, &[what]);
        let part = Partition::new(0, 2).unwrap();
        let dirs = [temp.0.join("users")];
        let of_part = checkpoint::load_part(&kept, &pool, &[&dirs[0]], part).unwrap_err();
        assert!(of_part.to_string().contains(what), "{of_part}");
        assert_eq!(content(&[Arc::clone(&kept)]), before);
    };
    std::fs::rename(name(1, 3), temp.0.join("aside")).unwrap();
    refused("not complete");
    std::fs::rename(temp.0.join("aside"), name(1, 3)).unwrap();
    std::fs::create_dir(name(0, 2)).unwrap();
    refused("not complete");
    std::fs::remove_dir(name(0, 2)).unwrap();
    std::fs::rename(name(0, 3), temp.0.join("aside")).unwrap();
    std::fs::rename(name(1, 3), name(0, 3)).unwrap();
    std::fs::rename(temp.0.join("aside"), name(1, 3)).unwrap();
    refused("a key of another part");
}

#[test]
fn a_part_takes_its_keys_of_a_whole_table_that_has_more_rows_than_it_may_have() {
    let pool = Pool::new(1).unwrap();
    let whole = table("users");
    step_whole(&pool, &whole, 0);
    let temp = Directory::new("small-part");
    let dir = temp.0.join("users");
    checkpoint::save(&whole, &pool, &dir).unwrap();
    let part = Partition::new(0, 4).unwrap();
    let make = |capacity| {
        let config = TableConfig {
            capacity,
            ..whole.config().clone()
        };
        Table::new(config).unwrap()
    };
    let small = make(whole.len() / 2);
    checkpoint::load_part(&small, &pool, &[&dir], part).unwrap();
    assert!(!small.is_empty() && small.len() < whole.len() / 2);
    let error = checkpoint::load_part(&make(10), &pool, &[&dir], part).unwrap_err();
    assert_eq!(error.kind(), Kind::ResourceExhausted);
}

/// Gives keys without a row one.
fn look_up(pool: &Pool, table: &Table, keys: &[i64]) -> mx_rec_kernels::Result<()> {
    let mut inverse = vec![0; keys.len()];
    let found = table.id_offset(pool, Ids::I64(keys), true, None, &mut inverse);
    found.map(drop)
}

/// Parts that were full had more rows than their table may have: its checkpoint was refused by
/// fewer parts and by one table.
#[test]
fn what_full_parts_have_saved_is_loaded_whole_and_gets_no_new_rows() {
    let pool = Pool::new(2).unwrap();
    let config = |capacity| TableConfig {
        capacity,
        ..table("users").config().clone()
    };
    let temp = Directory::new("full-parts");
    let tables: Vec<_> = (0..6)
        .map(|at| {
            let part = Partition::new(at, 6).unwrap();
            let table = Table::part(config(1000), None, part).unwrap();
            let mut keys = (0..).filter(|&key| part.holds(key));
            let full = keys.find_map(|key| look_up(&pool, &table, &[key]).err());
            assert_eq!(full.unwrap().kind(), Kind::ResourceExhausted);
            Arc::new(table)
        })
        .collect();
    save(&temp, &pool, &tables);
    let (dir, expected) = (temp.0.join("users"), content(&tables));
    assert!(expected.len() > 1400 && expected.len() < 1700);
    // The second time it is one table that has saved them.
    let back = temp.0.join("back").join("users");
    for dir in [dir.as_path(), back.as_path()] {
        let whole = Arc::new(Table::new(config(1000)).unwrap());
        checkpoint::load(&whole, &pool, dir).unwrap();
        let parts = (0..2).map(|at| {
            let part = Partition::new(at, 2).unwrap();
            let table = Table::part(config(1000), None, part).unwrap();
            checkpoint::load_part(&table, &pool, &[dir], part).unwrap();
            Arc::new(table)
        });
        for tables in [vec![Arc::clone(&whole)], parts.collect()] {
            assert_eq!(content(&tables), expected);
            for table in tables {
                let known = table.export().unwrap().keys;
                look_up(&pool, &table, &known).unwrap();
                let refused = look_up(&pool, &table, &[1 << 50]).unwrap_err();
                assert_eq!(refused.kind(), Kind::ResourceExhausted);
            }
        }
        if !back.exists() {
            checkpoint::save(&whole, &pool, &back).unwrap();
        }
        // A table that was made smaller.
        let smaller = Table::new(config(999)).unwrap();
        let refused = checkpoint::load(&smaller, &pool, dir).unwrap_err();
        assert_eq!(refused.kind(), Kind::ResourceExhausted);
        for at in 0..2 {
            let part = Partition::new(at, 2).unwrap();
            let smaller = Table::part(config(999), None, part).unwrap();
            let refused = checkpoint::load_part(&smaller, &pool, &[dir], part).unwrap_err();
            assert_eq!(refused.kind(), Kind::ResourceExhausted);
        }
    }
}

#[test]
fn a_push_makes_no_row_and_counts_what_it_drops() {
    let pool = Pool::new(2).unwrap();
    let users = table("users");
    let make = |ids: &[i64]| {
        created(&users, &pool, ids);
    };
    make(&[1, 2, 4]);
    let before = content(&[Arc::clone(&users)]);
    let optimizer = Adagrad::new(0.1, 0.1).unwrap();
    let push = |keys: &[i64], grads: &[f32]| {
        Table::push_many(&pool, &[push_of(&users, keys, grads, &optimizer)])
    };
    // 4 is a padding key of the model, -1 is padding: neither is updated nor dropped.
    let done = push(&[2, 3, 4, -1], &[1.0; 4 * DIM]).unwrap();
    assert_eq!(
        done,
        Pushed {
            updated: 1,
            dropped: 1
        }
    );
    let after = content(&[Arc::clone(&users)]);
    assert_eq!(after.len(), 3);
    assert_eq!(before[&1], after[&1][..DIM]);
    assert_eq!(before[&4], after[&4][..DIM]);
    assert_ne!(before[&2], after[&2][..DIM]);
    assert_eq!(users.stats().stale, 1);
    assert!(push(&[1, 2], &[1.0; DIM]).is_err());
    assert_eq!(content(&[Arc::clone(&users)]), after);
    let nothing = push(&[], &[]).unwrap();
    assert_eq!(nothing, Pushed::default());
}

#[test]
fn pushes_of_many_threads_lose_no_gradient() {
    let users = table("users");
    let keys: Vec<i64> = (10..500).collect();
    let pool = Pool::new(1).unwrap();
    created(&users, &pool, &keys);
    let sum = |table: &Table| -> f64 {
        let export = table.export().unwrap();
        export.embedding.iter().map(|&value| f64::from(value)).sum()
    };
    let before = sum(&users);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let pool = Pool::new(2).unwrap();
                // A power of two, so that sums are exact in any order.
                let sgd = mx_rec_kernels::Sgd::new(1.0).unwrap();
                let grads = vec![-0.25; keys.len() * DIM];
                for _ in 0..50 {
                    let push = push_of(&users, &keys, &grads, &sgd);
                    let done = Table::push_many(&pool, &[push]).unwrap();
                    assert_eq!(done.updated, keys.len() as u64);
                }
            });
        }
    });
    let grown = sum(&users) - before;
    let expected = 4.0 * 50.0 * 0.25 * (keys.len() * DIM) as f64;
    assert!((grown - expected).abs() < 1e-2, "{grown} of {expected}");
}
