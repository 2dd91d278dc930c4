//! Batches ahead of their step: what is staged stays unseen, what is leased stays good, and no row
//! is lost.

use crate::singles::{Singles as _, Target};
use crate::support::{applied, created, found_rows, pool, rounds, UNIFORM};
use crate::table::rows;
use mx_rec_kernels::{
    Adagrad, Ids, Initializer, Kind, Lease, Pool, Result, Sgd, SlotSpec, Table, TableConfig,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

const DIM: usize = 4;
const SEED: u64 = 9;

fn initializer() -> Initializer {
    UNIFORM
}

fn table(capacity: u64, frozen_keys: &[i64]) -> Arc<Table> {
    let config = TableConfig {
        seed: SEED,
        initializer: initializer(),
        frozen_keys: frozen_keys.to_vec(),
        ..TableConfig::new("ahead", DIM, capacity)
    };
    Arc::new(Table::new(config).unwrap())
}

/// The first values of a key's row.
fn first(key: i64) -> Vec<f32> {
    let mut row = vec![0.0; DIM];
    initializer().fill(SEED, key, &mut row);
    row
}

/// A batch from its preparation on; ids and restore keep their places in memory.
struct Batch {
    ids: Vec<i64>,
    inverse: Vec<i32>,
    lease: Lease,
}

fn prepare(table: &Arc<Table>, ids: &[i64]) -> Batch {
    let (ids, mut inverse) = (ids.to_vec(), vec![7; ids.len()]);
    let lease = table.prepare(&pool(), Ids::I64(&ids), None, &mut inverse);
    Batch {
        ids,
        inverse,
        lease,
    }
}

impl Batch {
    /// Whether the claim is good.
    fn claim(&self, table: &Table) -> bool {
        let (ids, offsets) = (Ids::I64(&self.ids), self.lease.offsets());
        table
            .claim(&pool(), ids, offsets, None, &self.inverse)
            .unwrap()
    }
}

fn lease(table: &Arc<Table>, ids: &[i64]) -> Result<Lease> {
    table.lease(&pool(), Ids::I64(ids), None, &mut vec![0; ids.len()])
}

fn keys(table: &Table) -> Vec<i64> {
    let mut keys = table.export().unwrap().keys;
    assert_eq!(keys.len() as u64, table.len());
    keys.sort_unstable();
    keys
}

fn lookup(table: &Table, offsets: &[i64]) -> Result<Vec<f32>> {
    let mut rows = vec![0.0; offsets.len() * DIM];
    table.lookup(&pool(), offsets, &mut rows)?;
    Ok(rows)
}

/// Rows in use or free; `slots` is how many slots each has.
fn slab_rows(table: &Table, slots: usize) -> u64 {
    table.memory().rows_bytes / (DIM * (1 + slots) * 4) as u64
}

/// Fails if a row is neither in use nor free: so many new keys as rows are free must fit without
/// more memory.
fn expect_no_row_lost(table: &Table, slots: usize) {
    let rows = slab_rows(table, slots);
    let free = rows.min(table.capacity()) - table.len();
    let new: Vec<i64> = (0..free as i64).map(|at| i64::MIN + at).collect();
    created(table, &pool(), &new);
    assert_eq!(slab_rows(table, slots), rows, "rows are lost");
    table.remove(Ids::I64(&new)).unwrap();
}

#[test]
fn a_prepared_batch_is_seen_by_nobody_until_it_is_claimed() {
    let table = table(100, &[]);
    lease(&table, &[1, 2]).unwrap();
    let batch = prepare(&table, &[5, 2, 5, -1, 6]);
    assert_eq!(
        (rows(batch.lease.offsets()), &batch.inverse[..]),
        (vec![2, 1, 3], &[0, 1, 0, -1, 2][..])
    );
    assert_eq!(keys(&table), [1, 2]);
    let out = found_rows(&table, &pool(), &[5]);
    assert_eq!(out, [0.0; DIM]);
    let known = table.id_offset(&pool(), Ids::I64(&[5]), false, None, &mut [0]);
    assert!(known.unwrap().is_empty());
    assert_eq!(table.remove(Ids::I64(&[5, 6])).unwrap(), 0);

    assert!(batch.claim(&table));
    assert_eq!(keys(&table), [1, 2, 5, 6]);
    let values = lookup(&table, batch.lease.offsets()).unwrap();
    assert_eq!(values, [first(5), first(2), first(6)].concat());
    assert!(batch.claim(&table), "a second claim is as good");
    drop(batch);
    assert_eq!(keys(&table), [1, 2, 5, 6]);
    expect_no_row_lost(&table, 0);
}

#[test]
fn a_dropped_batch_leaves_no_trace() {
    let table = table(100, &[]);
    lease(&table, &[1]).unwrap();
    let batch = prepare(&table, &[5, 6]);
    assert_eq!(slab_rows(&table, 0), 3);
    drop(batch);
    assert_eq!(keys(&table), [1]);
    expect_no_row_lost(&table, 0);
    assert_eq!(lease(&table, &[8, 9]).unwrap().offsets().len(), 2);
    assert_eq!(slab_rows(&table, 0), 3);
}

#[test]
fn batches_that_share_new_keys_share_their_rows() {
    let table = table(100, &[]);
    let (one, two) = (prepare(&table, &[1, 2]), prepare(&table, &[2, 3]));
    assert_eq!(
        (rows(one.lease.offsets()), rows(two.lease.offsets())),
        (vec![0, 1], vec![1, 2])
    );
    let three = prepare(&table, &[3, 1]);
    drop(one);
    assert!(two.claim(&table));
    assert_eq!(keys(&table), [2, 3]);
    assert!(three.claim(&table));
    assert_eq!(keys(&table), [1, 2, 3]);
    assert_eq!(
        lookup(&table, three.lease.offsets()).unwrap(),
        [first(3), first(1)].concat()
    );
    drop((two, three));
    expect_no_row_lost(&table, 0);
}

#[test]
fn only_the_very_offsets_with_the_ids_of_the_batch_are_claimed() {
    let (table, other) = (table(100, &[]), table(100, &[]));
    let batch = prepare(&table, &[1, 2]);
    let offsets = batch.lease.offsets();
    let copy = offsets.to_vec();
    let claim = |table: &Table, ids: &[i64], offsets: &[i64], inverse: &[i32]| {
        table
            .claim(&pool(), Ids::I64(ids), offsets, None, inverse)
            .unwrap()
    };
    assert!(!claim(&table, &batch.ids[..1], offsets, &batch.inverse));
    assert!(!claim(&table, &batch.ids, &copy, &batch.inverse));
    assert!(!claim(&table, &batch.ids, &offsets[..1], &batch.inverse));
    assert!(!claim(&table, &[2, 1], offsets, &batch.inverse));
    assert!(!claim(&table, &batch.ids, offsets, &[1, 0]));
    assert!(!claim(&table, &batch.ids, &[], &batch.inverse));
    assert!(!claim(&other, &batch.ids, offsets, &batch.inverse));
    let limited = |limit| {
        let ids = Ids::I64(&batch.ids);
        table
            .claim(&pool(), ids, offsets, Some(limit), &batch.inverse)
            .unwrap()
    };
    assert!(!limited(1));
    assert!(table.is_empty() && other.is_empty());
    assert!(limited(2));
    assert_eq!(table.len(), 2);
    assert!(
        claim(&table, &[1, 2], offsets, &[0, 1]),
        "wherever they lie"
    );
    let plain = lease(&table, &[1, 2]).unwrap();
    assert!(!claim(&table, &[1, 2], plain.offsets(), &[0, 1]));
}

/// The ids' memory was freed, and other ids came to lie there; or they were changed where they lie.
#[test]
fn other_ids_at_the_same_address_are_not_those_of_the_batch() {
    let table = table(100, &[]);
    let mut batch = prepare(&table, &[1, 2, 3]);
    batch.ids.copy_from_slice(&[4, 5, 6]);
    assert!(!batch.claim(&table));
    batch.ids.copy_from_slice(&[1, 2, 4]);
    assert!(!batch.claim(&table));
    batch.ids.copy_from_slice(&[1, 2, 3]);
    batch.inverse.copy_from_slice(&[0, 1, 1]);
    assert!(!batch.claim(&table));
    assert!(table.is_empty());
    batch.inverse.copy_from_slice(&[0, 1, 2]);
    assert!(batch.claim(&table));
    assert_eq!(keys(&table), [1, 2, 3]);
    assert_eq!((table.stats().new, table.stats().hits), (3, 0));
}

/// Only what happens counts: nothing if the rows cannot be made, and a key once if several batches
/// bring it.
#[test]
fn what_fails_or_was_done_by_another_is_not_counted_as_new() {
    let table = table(3, &[]);
    let (one, two) = (prepare(&table, &[1, 2]), prepare(&table, &[2, 1]));
    assert!(one.claim(&table) && two.claim(&table));
    assert_eq!((table.stats().new, table.stats().hits), (2, 2));
    assert!(lease(&table, &[1, 5, 6]).is_err());
    assert_eq!((table.stats().new, table.stats().hits), (2, 2));
    lease(&table, &[1, 5]).unwrap();
    assert_eq!((table.stats().new, table.stats().hits), (3, 3));
}

#[test]
fn what_cannot_be_prepared_gives_an_empty_lease_and_an_error_only_in_the_step() {
    let table = table(3, &[]);
    lease(&table, &[1, 2]).unwrap();
    let mut inverse = [7; 3];
    let limited = table.prepare(&pool(), Ids::I64(&[1, 2, 3]), Some(2), &mut inverse);
    assert_eq!((limited.offsets(), inverse), (&[][..], [-1; 3]));
    let batch = prepare(&table, &[1, 8, 9]);
    assert_eq!(
        (batch.lease.offsets(), &batch.inverse[..]),
        (&[][..], &[-1; 3][..])
    );
    assert!(!batch.claim(&table));
    let error = lease(&table, &batch.ids).unwrap_err();
    assert_eq!(error.kind(), Kind::ResourceExhausted);
    assert_eq!(keys(&table), [1, 2]);
    let wrong = table.prepare(&pool(), Ids::I64(&[1]), None, &mut [0, 0]);
    assert!(wrong.offsets().is_empty());
}

#[test]
fn batches_ahead_take_no_room_from_the_step() {
    let table = table(5, &[]);
    lease(&table, &[1]).unwrap();
    let (one, two) = (prepare(&table, &[1, 2, 3]), prepare(&table, &[4, 2, 5]));
    assert_eq!(slab_rows(&table, 0), 5);
    assert!(prepare(&table, &[6]).lease.offsets().is_empty());
    // Four are staged and one is in the table: 7 and 8 do not fit beside them, though they do
    // without.
    lease(&table, &[7, 8, 2]).unwrap();
    assert_eq!(keys(&table), [1, 2, 7, 8]);
    assert_eq!(slab_rows(&table, 0), 5);
    assert!(!one.claim(&table) && !two.claim(&table));
    lease(&table, &one.ids).unwrap();
    assert_eq!(keys(&table), [1, 2, 3, 7, 8]);
    let error = lease(&table, &two.ids).unwrap_err();
    assert_eq!(error.kind(), Kind::ResourceExhausted);
    drop((one, two));
    expect_no_row_lost(&table, 0);
}

#[test]
fn a_stale_batch_does_not_end_what_a_later_one_staged() {
    let table = table(3, &[]);
    let one = prepare(&table, &[1, 2]);
    lease(&table, &[8, 9]).unwrap();
    assert!(!one.claim(&table));
    table.remove(Ids::I64(&[8, 9])).unwrap();
    let two = prepare(&table, &[2, 1]);
    let offsets = two.lease.offsets().to_vec();
    drop(one);
    let three = lease(&table, &[5]).unwrap();
    assert!(!rows(&offsets).contains(&rows(three.offsets())[0]));
    assert!(two.claim(&table));
    assert_eq!(
        lookup(&table, &offsets).unwrap(),
        [first(2), first(1)].concat()
    );
}

#[test]
fn a_batch_that_is_dropped_late_ends_only_what_it_staged_itself() {
    let table = table(100, &[]);
    let one = prepare(&table, &[1]);
    drop(lease(&table, &[1]).unwrap());
    table.remove(Ids::I64(&[1])).unwrap();
    let two = prepare(&table, &[1]);
    assert_ne!(rows(one.lease.offsets()), rows(two.lease.offsets()));
    drop(one);
    drop(prepare(&table, &[1]));
    assert_eq!(rows(lease(&table, &[2]).unwrap().offsets()), [0]);
    assert!(two.claim(&table));
    assert_eq!(lookup(&table, two.lease.offsets()).unwrap(), first(1));
    assert_eq!(keys(&table), [1, 2]);
}

#[test]
fn whoever_makes_a_row_in_the_step_takes_the_staged_one() {
    let table = table(100, &[]);
    let batch = prepare(&table, &[1, 2, 3, 4]);
    let sgd = Sgd::new(1.0).unwrap();
    table
        .apply(&pool(), Target::Ids(Ids::I64(&[1])), &[1.0; DIM], &sgd)
        .unwrap();
    table.assign(&pool(), Ids::I64(&[2]), &[5.0; DIM]).unwrap();
    assert_eq!(rows(lease(&table, &[9, 3]).unwrap().offsets()), [4, 2]);
    assert_eq!(keys(&table), [1, 2, 3, 9]);
    assert!(batch.claim(&table));
    assert_eq!(keys(&table), [1, 2, 3, 4, 9]);
    let mut updated = first(1);
    updated.iter_mut().for_each(|value| *value -= 1.0);
    let values = lookup(&table, batch.lease.offsets()).unwrap();
    assert_eq!(
        values,
        [updated, vec![5.0; DIM], first(3), first(4)].concat()
    );
    drop(batch);
    assert_eq!(slab_rows(&table, 0), 5);
    expect_no_row_lost(&table, 0);
}

#[test]
fn the_row_of_a_batch_in_flight_never_becomes_that_of_another_key() {
    let table = table(100, &[]);
    let sgd = Sgd::new(1.0).unwrap();
    let (claimed, ahead) = (prepare(&table, &[1, 2]), prepare(&table, &[2, 3]));
    assert!(claimed.claim(&table));
    let plain = lease(&table, &[2, 4]).unwrap();
    assert_eq!(table.remove(Ids::I64(&[2, 4])).unwrap(), 2);
    assert_eq!(keys(&table), [1]);
    assert!(!ahead.claim(&table) && !claimed.claim(&table));

    // The step goes on with its offsets; what it does to removed rows is seen by nobody.
    let values = lookup(&table, claimed.lease.offsets()).unwrap();
    assert_eq!(values, [first(1), first(2)].concat());
    let target = Target::Offsets(plain.offsets());
    let changed = table.apply(&pool(), target, &[1.0; 2 * DIM], &sgd);
    assert_eq!((changed.unwrap(), table.stats().stale), (0, 2));
    let again = lease(&table, &[2, 4, 5]).unwrap();
    let held = rows(&[claimed.lease.offsets(), plain.offsets()].concat());
    assert!(rows(again.offsets()).iter().all(|row| !held.contains(row)));
    let values = lookup(&table, again.offsets()).unwrap();
    assert_eq!(values, [first(2), first(4), first(5)].concat());

    // The last lease frees the row.
    let (shared, own) = (claimed.lease.offsets()[1], plain.offsets()[1]);
    let bad = |row| lookup(&table, &[row]).is_err();
    drop(claimed);
    assert!(!bad(shared) && !bad(own));
    drop(plain);
    assert!(!bad(shared) && bad(own));
    drop(ahead);
    assert!(bad(shared));
    drop(again);
    expect_no_row_lost(&table, 0);
}

#[test]
fn removed_rows_that_are_still_leased_take_no_room_from_new_keys() {
    let table = table(3, &[]);
    let held = lease(&table, &[1, 2, 3]).unwrap();
    table.remove(Ids::I64(&[1, 2, 3])).unwrap();
    assert!(prepare(&table, &[4]).lease.offsets().is_empty());
    let new = lease(&table, &[4, 5, 6]).unwrap();
    let taken = rows(held.offsets());
    assert!(rows(new.offsets()).iter().all(|row| !taken.contains(row)));
    assert_eq!(table.len(), 3);
    drop((held, new));
    table.remove(Ids::I64(&[4, 5, 6])).unwrap();
    expect_no_row_lost(&table, 0);
}

#[test]
fn a_cleared_or_loaded_table_forgets_what_was_ahead() {
    for load in [false, true] {
        let table = table(100, &[]);
        lease(&table, &[1, 2]).unwrap();
        let (one, two) = (prepare(&table, &[1, 5]), prepare(&table, &[6]));
        assert!(two.claim(&table));
        table.remove(Ids::I64(&[6])).unwrap();
        if load {
            let values = [3.0; 2 * DIM];
            table
                .load(&pool(), &[], &mut |loading| {
                    loading.push(&[5, 7], &values, &[])
                })
                .unwrap();
        } else {
            table.clear();
            lease(&table, &[5, 7]).unwrap();
        }
        assert!(!one.claim(&table) && !two.claim(&table));
        drop((one, two));
        assert_eq!(keys(&table), [5, 7]);
        assert_eq!(slab_rows(&table, 0), 2);
        let offsets = lease(&table, &[5, 7, 1]).unwrap();
        assert_eq!(rows(offsets.offsets()), [0, 1, 2]);
        assert_eq!(lookup(&table, &offsets.offsets()[2..]).unwrap(), first(1));
        expect_no_row_lost(&table, 0);
    }
}

#[test]
fn staged_rows_get_the_slots_they_would_get_in_the_step() {
    let (table, adagrad) = (table(100, &[]), Adagrad::new(0.5, 0.25).unwrap());
    let update = |keys: &[i64]| {
        let grads = vec![1.0; keys.len() * DIM];
        applied(
            &table,
            &pool(),
            Target::Ids(Ids::I64(keys)),
            &grads,
            &adagrad,
        );
    };
    // The first update adds the slot to staged rows too.
    let batch = prepare(&table, &[1]);
    update(&[2]);
    assert!(batch.claim(&table));
    let slot = |table: &Table, key| {
        let copy = table.export().unwrap();
        let at = copy.keys.iter().position(|found| *found == key).unwrap();
        copy.slots[0].1[at * DIM]
    };
    assert_eq!((slot(&table, 1), slot(&table, 2)), (0.25, 1.25));

    // A file brought the slot with another initial value; the optimizer's counts from its first
    // update on.
    let name = table.slots()[0].name.clone();
    for way in ["claim", "take"] {
        let spec = SlotSpec {
            name: name.clone(),
            initial: 0.0,
            per_row: false,
        };
        table.load(&pool(), &[spec], &mut |_| Ok(())).unwrap();
        let batch = prepare(&table, &[1, 3]);
        update(&[2]);
        let later = prepare(&table, &[4]);
        match way {
            "claim" => assert!(batch.claim(&table)),
            _ => assert_eq!(rows(lease(&table, &[3, 1]).unwrap().offsets()), [1, 0]),
        }
        assert!(later.claim(&table));
        for key in [1, 3, 4] {
            assert_eq!(slot(&table, key), 0.25, "{way} {key}");
        }
    }
}

#[test]
fn frozen_keys_stay_frozen_whoever_made_their_rows() {
    let (table, sgd) = (table(100, &[3]), Sgd::new(1.0).unwrap());
    let batch = prepare(&table, &[3, 4]);
    assert!(batch.claim(&table));
    let target = Target::Offsets(batch.lease.offsets());
    let changed = table.apply(&pool(), target, &[1.0; 2 * DIM], &sgd);
    assert_eq!(changed.unwrap(), 1);
    drop(batch);
    drop(prepare(&table, &[5]));
    table.remove(Ids::I64(&[3])).unwrap();
    let others = lease(&table, &[6, 7]).unwrap();
    let target = Target::Offsets(others.offsets());
    let changed = table.apply(&pool(), target, &[1.0; 2 * DIM], &sgd);
    assert_eq!(changed.unwrap(), 2);
}

#[test]
fn a_lease_may_outlive_its_table_and_counts_as_memory_before() {
    let table = table(1 << 20, &[]);
    let before = table.memory();
    let ids: Vec<i64> = (0..100_000).collect();
    let (one, two) = (prepare(&table, &ids), lease(&table, &ids).unwrap());
    let held = table.memory().other_bytes - before.other_bytes;
    assert!(held > 2 * 8 * 100_000, "{held} bytes");
    let weak = Arc::downgrade(&table);
    drop(table);
    assert!(weak.upgrade().is_none(), "offsets keep the table alive");
    assert_eq!(one.lease.offsets().len(), 100_000);
    drop((one, two));
}

#[test]
fn threads_lose_no_row_and_share_none() {
    let (table, pool) = (table(700, &[]), Pool::new(2).unwrap());
    let sgd = Sgd::new(1.0).unwrap();
    let rounds = rounds(3000);
    let (good, stale) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let draw = |seed: usize| -> Vec<i64> {
        (0..60)
            .map(|at| ((seed * 7919 + at * 104_729) % 911) as i64)
            .collect()
    };
    // Nothing changes a row's values: so a row that shows another key's values is that key's.
    let check = |ids: &[i64], offsets: &[i64], inverse: &[i32]| {
        let mut rows = vec![0.0; offsets.len() * DIM];
        table.lookup(&pool, offsets, &mut rows).unwrap();
        for (&id, &at) in ids.iter().zip(inverse) {
            let at = at as usize * DIM;
            assert_eq!(rows[at..at + DIM], first(id), "key {id}");
        }
        let zeros = vec![0.0; rows.len()];
        applied(&table, &pool, Target::Offsets(offsets), &zeros, &sgd);
    };
    let (done, began) = (AtomicBool::new(false), std::time::Instant::now());
    std::thread::scope(|scope| {
        let remover = |done: &AtomicBool| {
            for round in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                table
                    .remove(Ids::I64(&draw(round * 5 + 1)[..round % 60]))
                    .unwrap();
                let mut inverse = vec![0; 60];
                let new = draw(round * 11 + 2);
                if let Ok(lease) = table.lease(&pool, Ids::I64(&new), None, &mut inverse) {
                    check(&new, lease.offsets(), &inverse);
                }
                if round % 100 == 0 {
                    // Others enter keys between this and a look at the table's length.
                    let mut keys = table.export().unwrap().keys;
                    let n = keys.len();
                    keys.sort_unstable();
                    keys.dedup();
                    assert_eq!(keys.len(), n);
                }
            }
        };
        let done = &done;
        scope.spawn(move || remover(done));
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (table, pool, check) = (&table, &pool, &check);
                let (good, stale) = (&good, &stale);
                scope.spawn(move || {
                    let mut ahead = std::collections::VecDeque::new();
                    // On a busy machine the remover may get its first turn late.
                    let seen = || {
                        good.load(Ordering::Relaxed)
                            .min(stale.load(Ordering::Relaxed))
                    };
                    for round in (0..).take_while(|&round| {
                        round < rounds || (seen() <= 50 && began.elapsed().as_secs() < 60)
                    }) {
                        let (ids, mut inverse) = (draw(round * 3 + worker), vec![0; 60]);
                        let lease = table.prepare(pool, Ids::I64(&ids), None, &mut inverse);
                        ahead.push_back((ids, inverse, lease));
                        if ahead.len() < 4 {
                            continue;
                        }
                        let (ids, mut inverse, lease) = ahead.pop_front().unwrap();
                        if round % 5 == 0 {
                            continue;
                        }
                        let (keys, offsets) = (Ids::I64(&ids), lease.offsets());
                        if table.claim(pool, keys, offsets, None, &inverse).unwrap() {
                            good.fetch_add(1, Ordering::Relaxed);
                            check(&ids, offsets, &inverse);
                        } else if let Ok(lease) = table.lease(pool, keys, None, &mut inverse) {
                            stale.fetch_add(1, Ordering::Relaxed);
                            check(&ids, lease.offsets(), &inverse);
                        }
                    }
                })
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    let (good, stale) = (good.into_inner(), stale.into_inner());
    assert!(good > 50 && stale > 50, "{good} good, {stale} stale");
    let copy = table.export().unwrap();
    assert!(copy.keys.len() as u64 == table.len() && table.len() <= 700);
    for (key, row) in copy.keys.iter().zip(copy.embedding.chunks_exact(DIM)) {
        assert_eq!(row, first(*key));
    }
    expect_no_row_lost(&table, 0);
}

#[test]
fn several_tables_share_one_pass_over_the_ids() {
    let tables = [table(1000, &[]), table(1000, &[]), table(40, &[])];
    // One has all keys, one some of them, one has no room for the batch.
    let known: Vec<Vec<i64>> = vec![
        (0..300).collect(),
        (0..300).step_by(3).collect(),
        (0..20).collect(),
    ];
    for (table, known) in tables.iter().zip(&known) {
        lease(table, known).unwrap();
    }
    let ids: Vec<i64> = (0..20_000).map(|at| (at * at * 31) % 301 - 1).collect();
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        let mut inverse = vec![7; ids.len()];
        let leases = Table::prepare_all(&tables, &pool, Ids::I64(&ids), None, &mut inverse);
        for (at, table) in tables.iter().enumerate() {
            let alone = prepare(table, &ids);
            assert_eq!(
                rows(leases[at].offsets()),
                rows(alone.lease.offsets()),
                "table {at}"
            );
            let fits = at < 2;
            assert_eq!(leases[at].offsets().is_empty(), !fits);
            assert_eq!(alone.inverse == inverse, fits, "table {at}");
            let offsets = leases[at].offsets();
            let claimed = table
                .claim(&pool, Ids::I64(&ids), offsets, None, &inverse)
                .unwrap();
            assert_eq!(claimed, fits);
        }
        // What the claims entered goes again, for the next turn.
        drop(leases);
        for (table, known) in tables.iter().zip(&known) {
            let gone: Vec<i64> = (-1..301).filter(|key| !known.contains(key)).collect();
            table.remove(Ids::I64(&gone)).unwrap();
            assert_eq!(keys(table), *known);
        }
    }
}

#[test]
fn two_lookups_of_one_table_by_the_same_ids_share_staged_rows() {
    let table = table(4, &[]);
    let (ids, mut inverse) = (vec![8, 9, 8], vec![0; 3]);
    let both = [Arc::clone(&table), Arc::clone(&table)];
    let leases = Table::prepare_all(&both, &pool(), Ids::I64(&ids), Some(2), &mut inverse);
    assert_eq!(leases[0].offsets(), leases[1].offsets());
    for lease in &leases {
        let offsets = lease.offsets();
        let claimed = table.claim(&pool(), Ids::I64(&ids), offsets, Some(2), &inverse);
        assert!(claimed.unwrap());
    }
    assert_eq!(keys(&table), [8, 9]);
    drop(leases);
    expect_no_row_lost(&table, 0);
    let mut inverse = vec![0; 3];
    let none = Table::prepare_all(&both, &pool(), Ids::I64(&ids), Some(1), &mut inverse);
    assert!(none.iter().all(|lease| lease.offsets().is_empty()));
    assert_eq!(inverse, [-1; 3]);
    assert!(Table::prepare_all(&[], &pool(), Ids::I64(&ids), None, &mut inverse).is_empty());
}
