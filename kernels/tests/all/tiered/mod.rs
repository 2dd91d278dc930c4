//! Tables whose rows are mostly on disk give what tables in memory give, bit for bit.

mod adam;
mod faults;
mod look_ahead;
mod space;
pub(crate) mod support;
mod switch;
mod whole;

use crate::faulty::Operation;
use crate::optimizers::optimizer;
use crate::pooled::{embed_pooled, find_pooled};
use crate::singles::{Singles as _, Target};
use crate::support::{
    admitted, applied, created, field_update, gradients, ids_of, keys_of, leased, rows_of,
    thresholds,
};
use mx_rec_kernels::{
    Absent, Bags, Columns, Field, FieldUpdate, Ids, KeysOf, LookupGradients, Pool, RowsOf,
    SlotSpec, Table, OPTIMIZERS,
};
use std::collections::VecDeque;
use std::sync::Arc;
use support::{batch, bits, content, faulty, floats, in_memory, pool, tiered, DIM};

const KEYS: i64 = 3000;
const CAPACITY: u64 = 4000;
/// A tenth of the keys.
const RAM_ROWS: u64 = 300;
const BATCH: usize = 150;
const STEPS: u64 = 60;

/// Steps of a graph as it was written: each looks its keys up. Returns all that was read.
fn train(table: &Arc<Table>, pool: &Pool, by: usize) -> Vec<u32> {
    let mut read = Vec::new();
    for step in 0..STEPS {
        let ids = batch(step, BATCH, KEYS);
        let (lease, inverse) = leased(table, pool, &ids);
        read.extend(update(table, pool, by, step, (lease.offsets(), &inverse)));
    }
    read
}

fn update(
    table: &Table,
    pool: &Pool,
    by: usize,
    step: u64,
    (offsets, inverse): (&[i64], &[i32]),
) -> Vec<u32> {
    let mut rows = vec![9.0; BATCH * DIM];
    table.embed(pool, offsets, inverse, &mut rows).unwrap();
    let grads = floats(BATCH * DIM, step);
    let lookup = gradients(offsets, inverse, Columns::all(&grads, table.dim()).unwrap());
    let optimizer = optimizer(by, step as usize);
    table.apply_lookups(pool, &[lookup], &*optimizer).unwrap();
    bits(&rows)
}

/// The same with batches prepared ahead of their steps.
fn train_ahead(table: &Arc<Table>, pool: &Pool, by: usize, ahead: usize) -> Vec<u32> {
    let (mut read, mut queue) = (Vec::new(), VecDeque::new());
    for next in 0..STEPS + ahead as u64 {
        if next < STEPS {
            let (ids, mut inverse) = (batch(next, BATCH, KEYS), vec![0; BATCH]);
            let lease = table.prepare(pool, Ids::I64(&ids), None, &mut inverse);
            queue.push_back((next, ids, inverse, lease));
        }
        if queue.len() <= ahead && next < STEPS {
            continue;
        }
        let Some((step, ids, mut inverse, mut lease)) = queue.pop_front() else {
            break;
        };
        let ids = Ids::I64(&ids);
        let mut claimed = table.claim(pool, ids, lease.offsets(), None, &inverse);
        if let Err(error) = &claimed {
            // Too little room for so many batches; whoever goes on has lost nothing.
            assert!(ahead > 1, "{error}");
            claimed = table.claim(pool, ids, lease.offsets(), None, &inverse);
        }
        if !claimed.unwrap() {
            lease = table.lease(pool, ids, None, &mut inverse).unwrap();
        }
        read.extend(update(table, pool, by, step, (lease.offsets(), &inverse)));
    }
    read
}

#[test]
fn every_optimizer_gives_the_same_bits_with_a_tenth_of_the_rows_in_memory() {
    for by in 0..OPTIMIZERS.len() {
        let memory = in_memory("memory", CAPACITY);
        let expected = train(&memory, &pool(), by);
        let rows = content(&memory);
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let table = tiered("disk", CAPACITY, RAM_ROWS);
            assert!(train(&table, &pool, by) == expected, "optimizer {by}");
            let tier = table.stats().tier.unwrap();
            assert!(tier.rows_on_disk > tier.rows_in_memory, "{tier:?}");
            assert!(tier.misses > 1000 && tier.hits > 1000, "{tier:?}");
            assert!(tier.rows_in_memory <= RAM_ROWS, "{tier:?}");
            assert!(content(&table) == rows, "optimizer {by}");
            // To look at all of it brought nothing in.
            let after = table.stats().tier.unwrap();
            assert_eq!(
                (after.misses, after.rows_on_disk),
                (tier.misses, tier.rows_on_disk)
            );
        }
    }
}

/// Steps whose rows that come and go are so many that several threads copy them.
#[test]
fn many_rows_change_places_on_any_number_of_threads_with_the_same_bits() {
    let (keys, n) = (40_000, 10_000);
    let train = |table: &Arc<Table>, threads| {
        let pool = Pool::new(threads).unwrap();
        for step in 0..6 {
            let ids: Vec<i64> = (0..n).map(|at| (step * 9001 + at * 3) % keys).collect();
            let (target, grads) = (
                Target::Ids(Ids::I64(&ids)),
                floats(ids.len() * DIM, step as u64),
            );
            applied(table, &pool, target, &grads, &*optimizer(4, step as usize));
        }
        content(table)
    };
    let rows = train(&in_memory("memory", keys as u64), 1);
    for threads in [1, 2, 5] {
        let table = tiered("disk", keys as u64, 12_000);
        assert!(train(&table, threads) == rows, "{threads} threads");
        let tier = table.stats().tier.unwrap();
        assert!(
            tier.misses > 6_000 && tier.rows_on_disk > 12_000,
            "{tier:?}"
        );
    }
}

#[test]
fn batches_ahead_give_the_same_bits_whether_they_fit_or_not() {
    for by in [1, 4] {
        let memory = in_memory("memory", CAPACITY);
        let expected = train(&memory, &pool(), by);
        let rows = content(&memory);
        for ahead in [1, 3, 7] {
            let table = tiered("disk", CAPACITY, RAM_ROWS);
            let read = train_ahead(&table, &Pool::new(2).unwrap(), by, ahead);
            assert!(read == expected, "optimizer {by}, {ahead} ahead");
            assert!(content(&table) == rows, "optimizer {by}, {ahead} ahead");
        }
    }
}

#[test]
fn a_step_waits_for_no_row_that_was_brought_in_ahead() {
    let table = tiered("ahead", CAPACITY, RAM_ROWS);
    let pool = pool();
    train(&table, &pool, 0);
    let (ids, mut inverse) = (batch(500, BATCH, KEYS), vec![0; BATCH]);
    let before = table.stats().tier.unwrap();
    let lease = table.prepare(&pool, Ids::I64(&ids), None, &mut inverse);
    let ready = table.stats().tier.unwrap();
    assert!(ready.misses > before.misses);
    let claimed = table.claim(&pool, Ids::I64(&ids), lease.offsets(), None, &inverse);
    assert!(claimed.unwrap());
    update(&table, &pool, 0, 0, (lease.offsets(), &inverse));
    let after = table.stats().tier.unwrap();
    assert_eq!(after.misses, ready.misses);
    assert_eq!(after.wait_nanoseconds, before.wait_nanoseconds);
}

#[test]
fn a_step_is_not_held_up_by_batches_ahead_that_fill_the_memory() {
    let pool = pool();
    let (table, memory) = (tiered("full", CAPACITY, 100), in_memory("memory", CAPACITY));
    for table in [&table, &memory] {
        let ids: Vec<i64> = (0..400).collect();
        for ids in ids.chunks(100) {
            let ids = Ids::I64(ids);
            table.lease(&pool, ids, None, &mut vec![0; 100]).unwrap();
        }
    }
    // Each batch ahead takes what is left; the last finds no room.
    let prepared: Vec<_> = (0..4)
        .map(|at| {
            let ids: Vec<i64> = (at * 45..at * 45 + 45).collect();
            let mut inverse = vec![0; 45];
            let lease = table.prepare(&pool, Ids::I64(&ids), None, &mut inverse);
            (ids, inverse, lease)
        })
        .collect();
    // New keys of a batch ahead have rows, too.
    let fresh: Vec<i64> = (1000..1005).collect();
    let mut fresh_inverse = vec![0; 5];
    let fresh_lease = table.prepare(&pool, Ids::I64(&fresh), None, &mut fresh_inverse);
    let whole: Vec<i64> = (300..400).collect();
    let (lease, _inverse) = leased(&table, &pool, &whole);
    let grads = floats(100 * DIM, 1);
    let sgd = optimizer(0, 0);
    for (table, offsets) in [
        (&table, Target::Offsets(lease.offsets())),
        (&memory, Target::Ids(Ids::I64(&whole))),
    ] {
        table.apply(&pool, offsets, &grads, &*sgd).unwrap();
    }
    assert!(table.stats().tier.unwrap().given_up > 0);
    drop(lease);
    let ahead = prepared.into_iter().map(|(ids, inverse, lease)| {
        let n = ids.len();
        (ids, inverse, lease, n)
    });
    for (ids, mut inverse, mut lease, n) in ahead.chain([(fresh, fresh_inverse, fresh_lease, 5)]) {
        let batch = Ids::I64(&ids);
        if !table
            .claim(&pool, batch, lease.offsets(), None, &inverse)
            .unwrap()
        {
            lease = table.lease(&pool, batch, None, &mut inverse).unwrap();
        }
        let grads = floats(n * DIM, 2);
        let offsets = Target::Offsets(lease.offsets());
        table.apply(&pool, offsets, &grads, &*sgd).unwrap();
        let ids = Target::Ids(batch);
        memory.apply(&pool, ids, &grads, &*sgd).unwrap();
    }
    assert!(content(&table) == content(&memory));
}

#[test]
fn a_batch_that_memory_cannot_hold_names_what_to_raise_and_changes_nothing() {
    let (pool, table) = (pool(), tiered("small", CAPACITY, 50));
    let some: Vec<i64> = (0..40).collect();
    leased(&table, &pool, &some);
    let places = |table: &Table| {
        let tier = table.stats().tier.unwrap();
        (tier.rows_in_memory, tier.rows_on_disk, tier.misses)
    };
    let before = (content(&table), places(&table));
    let ids: Vec<i64> = (10..61).collect();
    let mut inverse = vec![0; ids.len()];
    let grads = vec![1.0; ids.len() * DIM];
    let batch = Ids::I64(&ids);
    let errors = [
        table
            .lease(&pool, batch, None, &mut inverse)
            .map(drop)
            .unwrap_err(),
        table
            .id_offset(&pool, batch, true, None, &mut inverse)
            .map(drop)
            .unwrap_err(),
        table
            .apply(&pool, Target::Ids(batch), &grads, &*optimizer(4, 0))
            .map(drop)
            .unwrap_err(),
        table.assign(&pool, batch, &grads).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert_eq!(error.kind(), mx_rec_kernels::Kind::ResourceExhausted);
        for named in [
            "device_vocabulary_size",
            "host_vocabulary_size",
            "distinct=51",
            "rows_in_memory=50",
            "table=small",
        ] {
            assert!(text.contains(named), "{text}");
        }
    }
    assert!(before == (content(&table), places(&table)));
    // Ahead of its step it is left to the step; each batch for itself fits.
    let lease = table.prepare(&pool, batch, None, &mut inverse);
    assert_eq!(lease.offsets().len(), 0);
    // Repeated keys count once.
    let twice: Vec<i64> = (0..50).chain(0..50).collect();
    leased(&table, &pool, &twice);
}

/// Runs verbs that come with no lease, or with copies of offsets, on both tables.
#[test]
fn every_verb_gives_the_same_bits_on_rows_that_went_to_disk() {
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        let tables = [
            in_memory("verbs", CAPACITY),
            tiered("verbs", CAPACITY, RAM_ROWS),
        ];
        let results = tables.each_ref().map(|table| {
            let mut read = train(table, &pool, 1);
            // Copies of offsets from before all others.
            let old: Vec<i64> = (0..200).collect();
            let (copies, _inverse) = created(table, &pool, &old);
            for at in 0..8 {
                let others: Vec<i64> = (at * 250..at * 250 + 250).collect();
                let ids = Ids::I64(&others);
                table
                    .id_offset(&pool, ids, true, None, &mut vec![0; 250])
                    .unwrap();
            }
            let mut rows = vec![0.0; 200 * DIM];
            table.lookup(&pool, &copies, &mut rows).unwrap();
            read.extend(bits(&rows));
            let grads = floats(200 * DIM, 5);
            for by in [4, 3] {
                // Slots that rows lack, on disk and in memory.
                let target = Target::Offsets(&copies);
                applied(table, &pool, target, &grads, &*optimizer(by, 7));
            }
            let weights = floats(300, 8);
            let wanted = batch(900, 300, 2 * KEYS);
            let ends: Vec<i64> = (1..=60).map(|end| end * 5).collect();
            let bags = Bags {
                ends: &ends,
                weights: Some(&weights),
                ..Bags::default()
            };
            let absent = floats(300 * DIM, 3);
            let mut out = vec![0.0; 300 * DIM];
            let ids = Ids::I64(&wanted);
            let on_disk = table.stats().tier.map(|tier| tier.rows_on_disk);
            table
                .find(&pool, ids, Absent::Rows(&absent), &mut out)
                .unwrap();
            read.extend(bits(&out));
            let mut pooled = vec![0.0; 60 * DIM];
            find_pooled(table, &pool, ids, &bags, Absent::Rows(&absent), &mut pooled).unwrap();
            read.extend(bits(&pooled));
            let both = [
                KeysOf {
                    table,
                    ids,
                    absent: Absent::Zeros,
                    bags: None,
                },
                keys_of(table, &old, Absent::Row(&absent[..DIM])),
            ];
            let outs = vec![&mut out[..], &mut rows[..]];
            Table::find_many(&pool, &both, outs).unwrap();
            read.extend(bits(&out));
            read.extend(bits(&rows));
            let both = [wanted.len(), old.len()].map(|n| (1..=n as i64).collect::<Vec<_>>());
            let mut vectors = both.each_ref().map(|ends| vec![0.0; ends.len() * DIM]);
            let members = [(ids, &both[0], 0), (Ids::I64(&old), &both[1], 1)];
            let group = members.map(|(ids, ends, member)| KeysOf {
                table,
                ids,
                absent: [Absent::Rows(&absent), Absent::Row(&absent[..DIM])][member],
                bags: Some(Bags {
                    ends,
                    ..Bags::default()
                }),
            });
            let outs = vectors.iter_mut().map(|one| &mut one[..]).collect();
            Table::find_many(&pool, &group, outs).unwrap();
            vectors.iter().for_each(|one| read.extend(bits(one)));
            // Evaluation leaves rows where they are.
            let now = table.stats().tier.map(|tier| tier.rows_on_disk);
            assert_eq!(now, on_disk);
            let places: Vec<i32> = (0..300).map(|at| (at * 7 % 201) - 1).collect();
            embed_pooled(table, &pool, &copies, &places, &bags, &mut [], &mut pooled).unwrap();
            read.extend(bits(&pooled));
            let fields = [Field::Embedding, slot("momentum"), slot("unknown")];
            let batch_rows = table.batch_rows(&copies).unwrap();
            let mut old_values = Vec::new();
            for field in &fields {
                let mut values = vec![0.0; batch_rows.offsets().len() * DIM];
                batch_rows.read(&pool, field, &mut values).unwrap();
                read.extend(bits(&values));
                old_values.push(values);
            }
            let offsets = batch_rows.offsets().to_vec();
            drop(batch_rows);
            let new = floats(offsets.len() * DIM, 12);
            let updates: Vec<FieldUpdate<'_>> = fields
                .iter()
                .zip(&old_values)
                .map(|(field, old)| field_update(field.clone(), old, &new))
                .collect();
            table
                .write_fields(&pool, &offsets, &updates, false)
                .unwrap();
            table
                .assign(&pool, Ids::I64(&old[50..90]), &grads[..40 * DIM])
                .unwrap();
            assert_eq!(table.remove(Ids::I64(&old[100..150])).unwrap(), 50);
            read
        });
        let [memory, disk] = results;
        assert!(memory == disk, "{threads} threads");
        let [memory, disk] = tables.each_ref().map(|table| content(table));
        assert!(memory == disk, "{threads} threads");
    }
}

fn slot(name: &'static str) -> Field {
    Field::Slot(SlotSpec {
        name: name.into(),
        initial: 0.25,
        per_row: false,
    })
}

#[test]
fn groups_of_tables_give_the_same_bits_whether_their_rows_are_on_disk_or_not() {
    let pool = Pool::new(2).unwrap();
    let make = |kinds: [bool; 3]| {
        kinds.map(|is_tiered| match is_tiered {
            true => tiered("group", CAPACITY, RAM_ROWS),
            false => in_memory("group", CAPACITY),
        })
    };
    let run = |tables: &[Arc<Table>; 3]| {
        let mut read = Vec::new();
        for step in 0..25 {
            // Two members of one table, in turns of both.
            let members: Vec<(usize, Vec<i64>)> = [0, 1, 2, 1]
                .iter()
                .enumerate()
                .map(|(member, &at)| (at, batch(step * 10 + member as u64, 120, KEYS)))
                .collect();
            let mut inverses = vec![vec![0; 120]; 4];
            let group = members.iter().zip(&mut inverses);
            let group = group.map(|((at, ids), inverse)| ids_of(&tables[*at], ids, inverse));
            let leases = Table::lease_many(&pool, group.collect(), None).unwrap();
            let lookups: Vec<RowsOf<'_>> = members
                .iter()
                .zip(&leases)
                .zip(&inverses)
                .map(|(((at, _), lease), inverse)| rows_of(&tables[*at], lease.offsets(), inverse))
                .collect();
            let mut outs = vec![vec![0.0; 120 * DIM]; 4];
            let each = outs.iter_mut().map(|out| &mut out[..]).collect();
            Table::embed_many(&pool, &lookups, each, Vec::new()).unwrap();
            let mut side_by_side = vec![0.0; 4 * 120 * DIM];
            Table::embed_side_by_side(&pool, &lookups, &mut side_by_side).unwrap();
            outs.iter().for_each(|out| read.extend(bits(out)));
            read.extend(bits(&side_by_side));
            let grads = floats(4 * 120 * DIM, step);
            let updates: Vec<(&Table, LookupGradients<'_>)> = lookups
                .iter()
                .enumerate()
                .map(|(at, lookup)| {
                    let columns = gradients(
                        lookup.offsets,
                        lookup.inverse,
                        Columns::of(&grads, 4 * DIM, at * DIM, DIM).unwrap(),
                    );
                    (lookup.table, columns)
                })
                .collect();
            let by = optimizer(if step < 5 { 0 } else { 4 }, step as usize);
            Table::apply_lookups_many(&pool, &updates, &*by).unwrap();
        }
        read
    };
    let memory = make([false; 3]);
    let expected = run(&memory);
    for kinds in [[true; 3], [false, true, true]] {
        let tables = make(kinds);
        assert!(run(&tables) == expected);
        for (table, memory) in tables.iter().zip(&memory) {
            assert!(content(table) == content(memory));
        }
    }
}

#[test]
fn keys_are_admitted_and_evicted_as_in_memory_and_what_goes_is_not_read() {
    let pool = pool();
    let (on_disk, faults) = faulty("admit", CAPACITY, RAM_ROWS);
    let tables = [in_memory("admit", CAPACITY), on_disk];
    let results = tables.each_ref().map(|table| {
        let mut read = Vec::new();
        for step in 0..80 {
            let ids = batch(step, BATCH, KEYS);
            let observed = (1, Some(step as i64 + 1));
            let (lease, inverse) = admitted(table, &pool, &ids, observed, thresholds(2, Some(40)));
            read.extend(update(table, &pool, 3, step, (lease.offsets(), &inverse)));
            drop(lease);
            if step % 20 == 19 {
                let before = table.len();
                if step == 59 {
                    // What goes need not be readable.
                    let forever = (0, u64::MAX);
                    faults.fail(Operation::Read, None, forever, std::io::ErrorKind::Other);
                }
                table.evict().unwrap();
                faults.heal();
                assert!(step < 40 || table.len() < before);
            }
        }
        read
    });
    assert!(results[0] == results[1]);
    assert!(content(&tables[0]) == content(&tables[1]));
    let tier = tables[1].stats().tier.unwrap();
    assert!(tier.misses > 50, "{tier:?}");
    assert_eq!(tier.rows_in_memory + tier.rows_on_disk, tables[1].len());
}

#[test]
fn a_row_on_disk_takes_at_most_24_bytes_of_memory() {
    const ROWS: i64 = 400_000;
    let pool = Pool::new(2).unwrap();
    let table = tiered("bytes", ROWS as u64, 4096);
    for start in (0..ROWS).step_by(4000) {
        let ids: Vec<i64> = (start..start + 4000).map(|key| key * 77_777).collect();
        leased(&table, &pool, &ids);
    }
    let (tier, memory) = (table.stats().tier.unwrap(), table.memory());
    assert_eq!(tier.rows_on_disk, ROWS as u64 - 4096);
    assert!(memory.rows_bytes <= 4096 * 32);
    // Beside the rows in memory: their bookkeeping, and that of the leases that are over.
    let beside = memory.index_bytes + memory.other_bytes;
    let kept = 1 << 20;
    let bytes = beside.saturating_sub(kept) as f64 / tier.rows_on_disk as f64;
    println!("{bytes} bytes in memory for a row on disk: {memory:?}");
    assert!(bytes <= 24.0, "{bytes}: {memory:?}");
}
