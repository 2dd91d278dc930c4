//! An offset reaches the row of its own key or none: whatever was removed, moved, restored or
//! cleared since it was given out.

use crate::singles::{Singles as _, Target};
use crate::support::{admitted, expect_error, gradients, leased, pool, thresholds};
use mx_rec_kernels::{
    checkpoint, Columns, Ids, Initializer, Kind, LazyAdam, Momentum, Result, RowOptimizer, Sgd,
    SlotSpec, Table, TableConfig,
};
use std::sync::Arc;

const DIM: usize = 2;

fn table(capacity: u64) -> Arc<Table> {
    let config = TableConfig {
        seed: 1,
        initializer: Initializer::Constant { value: 0.0 },
        ..TableConfig::new("offsets", DIM, capacity)
    };
    Arc::new(Table::new(config).unwrap())
}

/// Offsets of distinct keys in their order, as numbers that hold nothing.
fn offsets(table: &Table, keys: &[i64]) -> Vec<i64> {
    let mut inverse = vec![0; keys.len()];
    let ids = Ids::I64(keys);
    table
        .id_offset(&pool(), ids, true, None, &mut inverse)
        .unwrap()
}

fn row(offset: i64) -> i64 {
    offset & 0x7fff_ffff
}

fn sgd() -> Sgd {
    Sgd::new(1.0).unwrap()
}

/// One step of gradients of 1, by offset.
fn apply(table: &Table, offsets: &[i64], optimizer: &dyn RowOptimizer) -> Result<u64> {
    let grads = vec![1.0; offsets.len() * DIM];
    table.apply(&pool(), Target::Offsets(offsets), &grads, optimizer)
}

/// The same through the fused update.
fn apply_fused(table: &Table, offsets: &[i64], optimizer: &dyn RowOptimizer) -> Result<u64> {
    let (grads, inverse) = (
        vec![1.0; offsets.len() * DIM],
        (0..).take(offsets.len()).collect::<Vec<i32>>(),
    );
    let lookup = gradients(offsets, &inverse, Columns::all(&grads, DIM).unwrap());
    table.apply_lookups(&pool(), &[lookup], optimizer)
}

/// The same, as the only member of a group.
fn apply_many(
    table: &Table,
    offsets: &[i64],
    inverse: &[i32],
    optimizer: &dyn RowOptimizer,
) -> u64 {
    let grads = vec![1.0; inverse.len() * DIM];
    let lookup = gradients(offsets, inverse, Columns::all(&grads, DIM).unwrap());
    Table::apply_lookups_many(&pool(), &[(table, lookup)], optimizer).unwrap()
}

fn read(table: &Table, offsets: &[i64]) -> Result<Vec<f32>> {
    let mut rows = vec![9.0; offsets.len() * DIM];
    table.lookup(&pool(), offsets, &mut rows)?;
    Ok(rows)
}

fn load(table: &Table, keys: &[i64], slots: &[SlotSpec]) {
    let values = vec![0.0; keys.len() * DIM];
    let parts: Vec<&[f32]> = slots.iter().map(|_| &values[..]).collect();
    table
        .load(&pool(), slots, &mut |loading| {
            loading.push(keys, &values, &parts)
        })
        .unwrap();
}

/// A restored checkpoint had its keys in another order: the gradient of key 20 went to key 10.
#[test]
fn a_step_over_a_replaced_table_is_aborted_and_changes_nothing() {
    let momentum = Momentum::new(1.0, 0.5, false).unwrap();
    for optimizer in [&sgd() as &dyn RowOptimizer, &momentum] {
        for clear in [false, true] {
            let table = table(10);
            let given = offsets(&table, &[20, 10]);
            apply(&table, &given, optimizer).unwrap();
            let lease = leased(&table, &pool(), &[20, 10]).0;
            if clear {
                table.clear();
                offsets(&table, &[10, 20]);
            } else {
                load(&table, &[10, 20], &table.slots());
            }
            let before = table.export().unwrap();
            for old in [&given[..1], lease.offsets()] {
                let inverse: Vec<i32> = (0..).take(old.len()).collect();
                let mut out = vec![0.0; old.len() * DIM];
                let errors = [
                    apply(&table, old, optimizer).unwrap_err(),
                    apply_fused(&table, old, optimizer).unwrap_err(),
                    read(&table, old).unwrap_err(),
                    table.embed(&pool(), old, &inverse, &mut out).unwrap_err(),
                ];
                for error in errors {
                    expect_error(&error, Kind::Aborted, &["offsets", "replaced"]);
                }
            }
            assert_eq!(table.export().unwrap(), before);
            assert_eq!(table.stats().stale, 0);
            let new = offsets(&table, &[20]);
            assert_eq!(apply(&table, &new, optimizer).unwrap(), 1);
        }
    }
}

/// Copies of offsets are no leases: a removed key's row was given away, and its gradient moved the
/// new key.
#[test]
fn the_gradient_of_a_removed_key_reaches_nobody_and_is_counted() {
    let table = table(3);
    let old = offsets(&table, &[1, 2, 3]);
    table.remove(Ids::I64(&[2])).unwrap();
    let new = offsets(&table, &[4]);
    assert_eq!(row(new[0]), row(old[1]), "the row is used again");
    for (apply, stale) in [(apply as fn(&_, &_, &_) -> _, 1), (apply_fused, 2)] {
        let twice = [&old[..], &old[..]].concat();
        assert_eq!(apply(&table, &twice, &sgd()).unwrap(), 2);
        assert_eq!(table.stats().stale, stale);
    }
    let all = [old[0], new[0], old[2]];
    let expected = [-4.0, -4.0, 0.0, 0.0, -4.0, -4.0];
    assert_eq!(read(&table, &all).unwrap(), expected);
    let error = read(&table, &old[1..2]).unwrap_err();
    expect_error(&error, Kind::InvalidArgument, &["removed"]);
    // Removed again while nobody has the row, and while its own key does.
    table.remove(Ids::I64(&[4])).unwrap();
    assert_eq!(apply(&table, &[old[1], new[0]], &sgd()).unwrap(), 0);
    assert_eq!(table.stats().stale, 4);
    let again = offsets(&table, &[2]);
    assert_eq!(row(again[0]), row(old[1]));
    assert_eq!(apply(&table, &[old[1], new[0]], &sgd()).unwrap(), 0);
    assert_eq!(read(&table, &again).unwrap(), [0.0; DIM]);
}

/// Whoever sums gradients by offset, as TensorFlow's accumulators do, needs one offset a key.
#[test]
fn a_key_has_one_offset_as_long_as_it_has_its_row() {
    let table = table(9);
    let first = offsets(&table, &[1, 2]);
    table.remove(Ids::I64(&[2])).unwrap();
    let second = offsets(&table, &[1, 3]);
    assert_eq!(first[0], second[0]);
    table.remove(Ids::I64(&[3])).unwrap();
    let ahead = table.prepare(&pool(), Ids::I64(&[4, 1]), None, &mut [0; 2]);
    let claimed = offsets(&table, &[4, 1, 2]);
    assert_eq!(ahead.offsets(), &claimed[..2]);
    assert_eq!(
        (ahead.offsets()[1], row(claimed[0])),
        (first[0], row(first[1]))
    );
    let adam = LazyAdam::new(0.1, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    assert_eq!(apply(&table, &[claimed[1], first[0]], &adam).unwrap(), 1);
}

/// LazyAdam moved the row of whoever came first; a batch of padding alone failed on an empty table.
#[test]
fn offset_0_is_nobodys_like_padding() {
    let table = table(9);
    let adam = LazyAdam::new(0.1, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    for nobody in [0, -1] {
        assert_eq!(apply(&table, &[nobody], &adam).unwrap(), 0);
        assert_eq!(apply_fused(&table, &[nobody], &adam).unwrap(), 0);
        assert_eq!(read(&table, &[nobody]).unwrap(), [0.0; DIM]);
    }
    let own = offsets(&table, &[1, 2]);
    assert!(own.iter().all(|&offset| offset > 0));
    apply(&table, &own, &adam).unwrap();
    let before = table.export().unwrap();
    assert_eq!(apply(&table, &[0, -1, 0], &adam).unwrap(), 0);
    assert_eq!(table.export().unwrap(), before);
    assert_eq!(table.stats().stale, 0);
    table.clear();
    assert_eq!(apply(&table, &[0], &adam).unwrap(), 0);
}

#[test]
fn a_leased_row_of_a_removed_key_can_be_read_and_not_changed() {
    let table = table(9);
    let lease = leased(&table, &pool(), &[1, 2]).0;
    apply(&table, lease.offsets(), &sgd()).unwrap();
    table.remove(Ids::I64(&[2])).unwrap();
    assert_eq!(apply(&table, lease.offsets(), &sgd()).unwrap(), 1);
    let expected = [-2.0, -2.0, -1.0, -1.0];
    assert_eq!(read(&table, lease.offsets()).unwrap(), expected);
    assert_eq!(table.stats().stale, 1);
    let copy = lease.offsets().to_vec();
    drop(lease);
    assert!(read(&table, &copy[1..]).is_err());
    assert_eq!(read(&table, &copy[..1]).unwrap(), [-2.0; DIM]);
}

/// Rows behind the end were given back to the system, and came again for other keys.
#[test]
fn rows_that_were_cut_off_and_grow_again_are_new_ones() {
    let table = table(1 << 20);
    let keys: Vec<i64> = (0..20_000).collect();
    let old = offsets(&table, &keys);
    // The first ones stay, and all others go: the slab becomes short.
    table.remove(Ids::I64(&keys[10..])).unwrap();
    assert!(table.memory().rows_bytes < 1000 * 4 * DIM as u64);
    let others: Vec<i64> = (100_000..120_000).collect();
    let new = offsets(&table, &others);
    assert_eq!(apply(&table, &old, &sgd()).unwrap(), 10);
    assert_eq!(table.stats().stale, 20_000 - 10);
    assert!(read(&table, &new)
        .unwrap()
        .iter()
        .all(|&value| value == 0.0));
    // All go: the content is made anew.
    table
        .remove(Ids::I64(&[&keys[..10], &others].concat()))
        .unwrap();
    assert_eq!(table.memory().rows_bytes, 0);
    offsets(&table, &[7, 8]);
    assert_eq!(
        apply(&table, &[&old[..], &new].concat(), &sgd()).unwrap(),
        0
    );
    let bytes = table.memory().other_bytes;
    assert!(bytes < 1 << 20, "{bytes} bytes of bookkeeping");
}

/// An eviction moved rows together: old numbers were those of other keys.
#[test]
fn offsets_of_rows_that_an_eviction_moved_are_stale_on_both_ends() {
    let table = table(1 << 20);
    let (stale, kept): (Vec<i64>, Vec<i64>) = (0..300_000).partition(|key| key % 4 != 3);
    let look = |keys: &[i64], now: i64| {
        let thresholds = thresholds(1, Some(10));
        let (lease, _) = admitted(&table, &pool(), keys, (1, Some(now)), thresholds);
        lease.offsets().to_vec()
    };
    let all: Vec<i64> = (0..300_000).collect();
    look(&all, 1);
    look(&kept, 100);
    let before = offsets(&table, &all);
    let (gone, _) = table.evict().unwrap();
    assert_eq!(gone as usize, stale.len());
    let after = offsets(&table, &kept);
    let moved = kept.iter().zip(&after);
    let moved = moved.filter(|(&key, &now)| row(before[key as usize]) != row(now));
    let moved = moved.count();
    assert!(moved > kept.len() / 2, "{moved} moved");
    assert_eq!(
        apply(&table, &before, &sgd()).unwrap() as usize,
        kept.len() - moved
    );
    assert_eq!(table.stats().stale as usize, stale.len() + moved);
    for (&key, &now) in kept.iter().zip(&after) {
        let stayed = row(before[key as usize]) == row(now);
        let expected = if stayed { -1.0 } else { 0.0 };
        assert_eq!(read(&table, &[now]).unwrap(), [expected; DIM], "key {key}");
    }
}

/// What an incremental checkpoint writes: only rows that an update has changed.
#[test]
fn a_dropped_gradient_is_no_change() {
    let table = table(9);
    table.track_changes();
    let old = offsets(&table, &[1, 2]);
    table.remove(Ids::I64(&[1, 2])).unwrap();
    offsets(&table, &[3, 4]);
    let dir = std::env::temp_dir().join(format!("mx_rec-offsets-{}", std::process::id()));
    let since = checkpoint::save(&table, &pool(), &dir.join("base"))
        .unwrap()
        .epoch;
    let rows_since = |name: &str| {
        let saved = checkpoint::save_delta(&table, &pool(), &dir.join(name), since, 0);
        saved.unwrap().rows
    };
    assert_eq!(apply(&table, &old, &sgd()).unwrap(), 0);
    assert_eq!((table.stats().stale, rows_since("none")), (2, 0));
    let new = offsets(&table, &[3]);
    apply(&table, &[old[0], new[0]], &sgd()).unwrap();
    assert_eq!(rows_since("one"), 1);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_lease_and_a_copy_of_its_offsets_are_updated_alike() {
    let adam = LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap();
    let ids: Vec<i64> = (0..500).map(|at| at * at % 97).collect();
    let run = |copies: bool| {
        let (table, mut inverse) = (table(1000), vec![0; ids.len()]);
        let lease = table.lease(&pool(), Ids::I64(&ids), None, &mut inverse);
        let lease = lease.unwrap();
        let copy = lease.offsets().to_vec();
        let offsets = if copies { &copy[..] } else { lease.offsets() };
        let mut updated = vec![apply(&table, offsets, &adam).unwrap()];
        // The key of a row that the lease holds goes: its gradient is dropped.
        table.remove(Ids::I64(&[4])).unwrap();
        updated.push(apply_fused(&table, offsets, &adam).unwrap());
        updated.push(apply_many(&table, offsets, &inverse, &adam));
        let found = read(&table, offsets).unwrap();
        let bits: Vec<u32> = found.iter().map(|value| value.to_bits()).collect();
        (updated, bits, table.stats().stale)
    };
    let (of_lease, of_copy) = (run(false), run(true));
    assert_eq!(of_lease, of_copy);
    assert_eq!(of_lease.0[0], of_lease.0[1] + 1);
}

#[test]
fn a_key_that_is_admitted_twice_gets_one_step_of_the_sum_of_its_gradients() {
    let momentum = Momentum::new(0.1, 0.9, false).unwrap();
    let table = table(10);
    let thresholds = thresholds(1, None);
    let ids = Ids::I64(&[5, 7]);
    let mut places = vec![0; 2];
    let keys = table.observe(None, &pool(), ids, 1, None, thresholds, &mut places);
    let keys = keys.unwrap();
    let mut inverse = vec![0; 2];
    let admit = |keys: &[i64], inverse: &mut [i32]| {
        let places: Vec<i32> = (0..).take(keys.len()).collect();
        let lease = table.admit(&pool(), keys, None, &places, inverse);
        lease.unwrap()
    };
    let once = admit(&keys, &mut inverse);
    let twice = admit(&[5, 7, 5], &mut [0; 3]);
    assert_eq!(twice.offsets()[0], twice.offsets()[2]);
    assert_eq!(apply(&table, twice.offsets(), &momentum).unwrap(), 2);
    let found = read(&table, once.offsets()).unwrap();
    assert_eq!(found, [-0.2, -0.2, -0.1, -0.1]);
    let inverse = [0, 1, 2];
    assert_eq!(apply_many(&table, twice.offsets(), &inverse, &momentum), 2);
}
