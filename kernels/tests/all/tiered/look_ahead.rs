//! What memory that is too small for the batches ahead does to their steps.

use super::support::{content, floats, in_memory, pool, tiered, DIM};
use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{applied, ids_of};
use mx_rec_kernels::{Error, Ids, IdsOf, Kind, Lease, Pool, Result, Table};
use std::collections::VecDeque;
use std::sync::Arc;

const BATCH: i64 = 100;
const KEYS: i64 = 2000;

/// A batch on its way: ids, their places and the lease.
struct Ahead {
    ids: Vec<i64>,
    inverse: Vec<i32>,
    lease: Lease,
}

fn prepare(table: &Arc<Table>, pool: &Pool, ids: Vec<i64>) -> Ahead {
    let mut inverse = vec![0; ids.len()];
    let lease = table.prepare(pool, Ids::I64(&ids), None, &mut inverse);
    Ahead {
        ids,
        inverse,
        lease,
    }
}

/// The step of a batch.
fn step(table: &Arc<Table>, pool: &Pool, batch: &mut Ahead) -> Result<()> {
    let ids = Ids::I64(&batch.ids);
    if !table.claim(pool, ids, batch.lease.offsets(), None, &batch.inverse)? {
        batch.lease = table.lease(pool, ids, None, &mut batch.inverse)?;
    }
    let grads = floats(batch.lease.offsets().len() * DIM, 1);
    let offsets = Target::Offsets(batch.lease.offsets());
    table
        .apply(pool, offsets, &grads, &*optimizer(0, 0))
        .map(drop)
}

/// Batch number `at` of `size` keys, which repeat after `KEYS`.
fn keys(at: i64, size: i64) -> Vec<i64> {
    (at * BATCH..at * BATCH + size)
        .map(|key| key % KEYS)
        .collect()
}

/// Trains with batches ahead; a step that fails is run again. Returns the errors, by step.
fn train(
    table: &Arc<Table>,
    ahead: usize,
    steps: i64,
    size: impl Fn(i64) -> i64,
) -> Vec<(i64, Error)> {
    let (pool, mut queue, mut errors) = (pool(), VecDeque::new(), Vec::new());
    for next in 0..steps + ahead as i64 {
        if next < steps {
            queue.push_back(prepare(table, &pool, keys(next, size(next))));
        }
        if queue.len() <= ahead && next < steps {
            continue;
        }
        let Some(mut batch) = queue.pop_front() else {
            break;
        };
        if let Err(error) = step(table, &pool, &mut batch) {
            errors.push((next - ahead as i64, error));
            step(table, &pool, &mut batch).unwrap();
        }
    }
    errors
}

#[test]
fn memory_that_holds_no_batch_ahead_is_an_error_that_names_the_sizes_to_raise() {
    for (rows, ahead) in [(150, 1), (150, 4), (199, 2)] {
        let table = tiered("crowded", KEYS as u64, rows);
        let errors = train(&table, ahead, 60, |_| BATCH);
        let (first, error) = errors.first().expect("no step failed");
        let text = error.to_string();
        assert_eq!(error.kind(), Kind::ResourceExhausted, "{text}");
        for named in [
            "device_vocabulary_size",
            "host_vocabulary_size",
            "table=crowded",
            &format!("rows_in_memory={rows}"),
            "distinct=100",
        ] {
            assert!(text.contains(named), "{text}");
        }
        // Soon, but not at once; and again if somebody goes on.
        assert!((10..30).contains(first), "{first}");
        assert!((2..=4).contains(&errors.len()), "{}", errors.len());
        assert!(table.stats().tier.unwrap().given_up > 0);
        // A step that failed had changed nothing: run again, all steps give what memory gives.
        let memory = in_memory("crowded", KEYS as u64);
        for at in 0..60 {
            let ids = keys(at, BATCH);
            let grads = floats(ids.len() * DIM, 1);
            let ids = Target::Ids(Ids::I64(&ids));
            applied(&memory, &pool(), ids, &grads, &*optimizer(0, 0));
        }
        assert!(content(&table) == content(&memory), "{rows} rows");
    }
}

#[test]
fn memory_that_holds_the_batches_ahead_or_now_and_then_does_not_is_no_error() {
    // The batch in its step, those of the queue, and the one that is being prepared.
    for ahead in [1, 2, 4] {
        let rows = (ahead as u64 + 2) * BATCH as u64;
        let table = tiered("roomy", KEYS as u64, rows);
        assert!(train(&table, ahead, 80, |_| BATCH).is_empty());
        assert_eq!(table.stats().tier.unwrap().given_up, 0, "{ahead} ahead");
    }
    // Every tenth batch is a peak.
    let table = tiered("peaks", KEYS as u64, 300);
    let errors = train(&table, 2, 200, |at| if at % 10 == 9 { 280 } else { 60 });
    assert!(errors.is_empty(), "{errors:?}");
    assert!(table.stats().tier.unwrap().given_up > 0);
}

#[test]
fn steps_without_batches_ahead_never_count_as_crowded() {
    // The lookups of one step hold their rows beside each other, more than memory has.
    let (table, pool) = (tiered("several", KEYS as u64, 120), pool());
    for at in 0..100 {
        let leases: Vec<Lease> = (0..3)
            .map(|lookup| {
                let ids = keys(at * 3 + lookup, 50);
                let ids = Ids::I64(&ids);
                table.lease(&pool, ids, None, &mut [0; 50]).unwrap()
            })
            .collect();
        for lease in &leases {
            let grads = floats(50 * DIM, 1);
            let offsets = Target::Offsets(lease.offsets());
            let sgd = optimizer(0, 0);
            table.apply(&pool, offsets, &grads, &*sgd).unwrap();
        }
    }
    assert!(table.stats().tier.unwrap().given_up > 0);
}

#[test]
fn a_batch_ahead_of_several_lookups_of_a_table_does_not_hold_up_a_step() {
    // Memory holds the two lookups of a step, and not one of the next step beside them.
    let (table, pool) = (tiered("twice", KEYS as u64, 210), pool());
    let both = |at: i64, verb: &dyn Fn(Vec<IdsOf<'_>>) -> Result<Vec<Lease>>| {
        let ids = [keys(at * 2, BATCH), keys(at * 2 + 1, BATCH)];
        let mut inverses = [vec![0; BATCH as usize], vec![0; BATCH as usize]];
        let lookups = ids
            .iter()
            .zip(&mut inverses)
            .map(|(ids, inverse)| ids_of(&table, ids, inverse));
        verb(lookups.collect()).map(drop)
    };
    let step = |at| both(at, &|group| Table::lease_many(&pool, group, None)).unwrap();
    let ahead = |at| both(at, &|group| Ok(Table::prepare_many(&pool, group, None))).unwrap();
    (0..KEYS / BATCH / 2).for_each(step);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..500).for_each(step));
        scope.spawn(|| (1..501).for_each(ahead));
    });
    let waited = table.stats().tier.unwrap().wait_nanoseconds;
    assert!(waited < 10_000_000_000, "steps waited {waited} ns");
}

#[test]
fn peaks_far_apart_do_not_add_up_where_no_batch_can_be_claimed() {
    // A graph that copies offsets on their way: each batch is looked up again in its step.
    let (table, pool) = (tiered("copied", KEYS as u64, 300), pool());
    for at in 0..400 {
        let size = if at % 10 == 9 { 200 } else { 60 };
        let mut now = prepare(&table, &pool, keys(at, size));
        let _next = prepare(&table, &pool, keys(at + 3, size));
        let (ids, copy) = (Ids::I64(&now.ids), now.lease.offsets().to_vec());
        let claimed = table.claim(&pool, ids, &copy, None, &now.inverse);
        assert!(!claimed.unwrap(), "step {at}");
        now.lease = table.lease(&pool, ids, None, &mut now.inverse).unwrap();
    }
    assert!(table.stats().tier.unwrap().given_up >= 40);
}

/// A live lease says that its rows are in memory, and nobody looks: it must not say so for longer
/// than it keeps them there.
#[test]
fn rows_of_a_lease_are_read_where_they_are_when_it_has_given_them_up_and_when_it_ended() {
    let (pool, table) = (pool(), tiered("leased", 2000, 250));
    let values = |keys: &[i64]| -> Vec<f32> {
        let rows = keys.iter().map(|&key| [key as f32; DIM]);
        rows.flatten().collect()
    };
    for from in (10..1010).step_by(100) {
        let keys: Vec<i64> = (from..from + 100).collect();
        table
            .assign(&pool, Ids::I64(&keys), &values(&keys))
            .unwrap();
    }
    let keys: Vec<i64> = (10..110).collect();
    let read = |offsets: &[i64]| {
        let mut out = vec![0.0; offsets.len() * DIM];
        table.lookup(&pool, offsets, &mut out).unwrap();
        out
    };
    let misses = || table.stats().tier.unwrap().misses;
    let lease = |keys: Vec<i64>| {
        let mut inverse = vec![0; keys.len()];
        table.lease(&pool, Ids::I64(&keys), None, &mut inverse)
    };
    // Batches that send out what they can.
    let others = || {
        for from in (510..1010).step_by(100) {
            drop(lease((from..from + 100).collect()).unwrap());
        }
    };
    let held = prepare(&table, &pool, keys.clone());
    assert_eq!(held.lease.offsets().len(), keys.len());
    for is_removed in [false, true] {
        if is_removed {
            table.remove(Ids::I64(&keys[..10])).unwrap();
        }
        others();
        let before = misses();
        assert_eq!(read(held.lease.offsets()), values(&keys));
        assert_eq!(misses(), before, "a lease did not keep its rows in memory");
    }
    // More than memory holds beside the lease.
    drop(lease((310..510).collect()).unwrap());
    others();
    let before = misses();
    assert_eq!(read(held.lease.offsets()), values(&keys));
    assert!(misses() > before, "its rows were in memory still");

    let again = prepare(&table, &pool, keys[10..].to_vec());
    assert_eq!(again.lease.offsets().len(), keys.len() - 10);
    let copy = again.lease.offsets().to_vec();
    drop((held, again));
    // As much as memory holds.
    drop(lease((310..560).collect()).unwrap());
    let before = misses();
    assert_eq!(read(&copy), values(&keys[10..]));
    assert!(misses() > before, "its rows were in memory still");
}
