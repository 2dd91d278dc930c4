//! Random histories of all verbs leave a table in the state of a map that does the same one key at
//! a time.

mod reference;

use crate::singles::{Singles as _, Target};
use crate::support::{applied, cases, created, gradients, known_offsets, UNIFORM};
use crate::table::bits;
use mx_rec_kernels::tier::Files;
use mx_rec_kernels::{
    Absent, Columns, DecayedSgd, Ids, Initializer, Kind, LazyAdam, Lease, Momentum, Pool, Result,
    RowOptimizer, SlotSpec, Table, TableConfig,
};
use proptest::prelude::*;
use reference::Model;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const DIM: usize = 5;
const SEED: u64 = 77;
const FROZEN: [i64; 2] = [3, i64::MIN];
const CAPACITY: u64 = 3000;

/// A capacity at which batches ahead and batches in the step fight for room.
const TIGHT: u64 = 40;

/// Rows in memory of a table with a tier: hardly more than a batch has.
const IN_MEMORY: u64 = 43;

/// Fewer than some batches have together with those ahead of them.
const FEW_IN_MEMORY: u64 = 26;

fn initializer() -> Initializer {
    UNIFORM
}

/// A table with so much room, and so many rows of it in memory, if not all.
fn table((capacity, in_memory): (u64, Option<u64>)) -> Arc<Table> {
    let config = TableConfig {
        seed: SEED,
        initializer: initializer(),
        init_param: 0.5,
        frozen_keys: FROZEN.to_vec(),
        ..TableConfig::new("model", DIM, capacity)
    };
    let table = match in_memory {
        None => Table::new(config),
        Some(rows) => {
            let files = Files::open(&[std::env::temp_dir()]).unwrap();
            // Both ways to read them.
            let files = match rows % 2 {
                0 => files,
                _ => files.past_page_cache(),
            };
            Table::tiered_on(config, rows, Arc::new(files))
        }
    };
    Arc::new(table.unwrap())
}

fn optimizers() -> Vec<Box<dyn RowOptimizer>> {
    vec![
        Box::new(DecayedSgd::new(0.1, 0.01).unwrap()),
        Box::new(Momentum::new(0.1, 0.9, true).unwrap()),
        Box::new(LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap()),
    ]
}

/// A batch from its preparation, or from its step, to its end.
struct Batch {
    ids: Vec<i64>,
    limit: Option<usize>,
    inverse: Vec<i32>,
    lease: Lease,
    /// Distinct keys, each in the place of its offset, once the step has them; none if the table
    /// was replaced since.
    keys: Vec<i64>,
}

/// An offset that outlives its lease.
#[derive(Clone)]
struct Copy {
    offset: i64,
    key: i64,
    /// In the model: the row and the content that the offset is for.
    stay: u64,
    replaced: u64,
}

/// Batches ahead and batches whose step is not over, in order.
#[derive(Default)]
struct Flight {
    ahead: Vec<Batch>,
    steps: Vec<Batch>,
    copies: Vec<Copy>,
}

#[derive(Clone, Debug)]
enum Verb {
    Prepare(Vec<i64>, Option<usize>),
    Claim(u8),
    DropAhead(u8),
    EndStep(u8),
    Copy(Vec<i64>),
    ApplyCopies(usize, usize, u8),
    ReadCopies,
    ForgetCopies,
    Create(Vec<i64>),
    Known(Vec<i64>),
    Find(Vec<i64>),
    ApplyIds(usize, Vec<i64>, u8),
    ApplyOffsets(usize, Vec<i64>, u8),
    ApplyLookup(usize, Vec<i64>, u8),
    Assign(Vec<i64>, u8),
    Remove(Vec<i64>),
    Limit(Vec<i64>, usize),
    Clear,
    Reload,
    Grow(i64, usize),
}

fn key() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -2..60_i64,
        2 => any::<i64>(),
        1 => prop::sample::select(vec![-1, 0, i64::MIN, i64::MAX, i64::from(i32::MIN)]),
    ]
}

fn keys() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(key(), 0..24)
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        4 => (keys(), prop::option::weighted(0.1, 0..12_usize))
            .prop_map(|(k, l)| Verb::Prepare(k, l)),
        4 => any::<u8>().prop_map(Verb::Claim),
        1 => any::<u8>().prop_map(Verb::DropAhead),
        3 => any::<u8>().prop_map(Verb::EndStep),
        3 => keys().prop_map(Verb::Copy),
        4 => (0..3_usize, 0..40_usize, any::<u8>())
            .prop_map(|(o, n, g)| Verb::ApplyCopies(o, n, g)),
        3 => Just(Verb::ReadCopies),
        1 => Just(Verb::ForgetCopies),
        4 => keys().prop_map(Verb::Create),
        2 => keys().prop_map(Verb::Known),
        3 => keys().prop_map(Verb::Find),
        4 => (0..3_usize, keys(), any::<u8>()).prop_map(|(o, k, g)| Verb::ApplyIds(o, k, g)),
        4 => (0..3_usize, keys(), any::<u8>()).prop_map(|(o, k, g)| Verb::ApplyOffsets(o, k, g)),
        4 => (0..3_usize, keys(), any::<u8>()).prop_map(|(o, k, g)| Verb::ApplyLookup(o, k, g)),
        2 => (keys(), any::<u8>()).prop_map(|(k, v)| Verb::Assign(k, v)),
        2 => keys().prop_map(Verb::Remove),
        1 => (keys(), 0..12_usize).prop_map(|(k, l)| Verb::Limit(k, l)),
        1 => (any::<i16>(), 1..1500_usize).prop_map(|(s, n)| Verb::Grow(i64::from(s), n)),
        1 => prop_oneof![Just(Verb::Clear), Just(Verb::Reload)],
    ]
}

fn floats(n: usize, seed: u8) -> Vec<f32> {
    (0..n * DIM)
        .map(|at| ((at as f32 + f32::from(seed)) * 0.7).sin())
        .collect()
}

/// Replays a history on a table and on the model and compares every answer; then the whole content.
fn replay(history: &[Verb], pool: &Pool, room: (u64, Option<u64>)) {
    let (table, mut model, mut flight) = (table(room), Model::default(), Flight::default());
    let optimizers = optimizers();
    for verb in history {
        match verb {
            Verb::Prepare(ids, limit) => {
                let (ids, mut inverse) = (ids.clone(), vec![7; ids.len()]);
                let lease = table.prepare(pool, Ids::I64(&ids), *limit, &mut inverse);
                let (limit, keys) = (*limit, Vec::new());
                flight.ahead.push(Batch {
                    ids,
                    limit,
                    inverse,
                    lease,
                    keys,
                });
            }
            Verb::Claim(at) if !flight.ahead.is_empty() => {
                let batch = flight.ahead.remove(usize::from(*at) % flight.ahead.len());
                flight.steps.extend(claim(&table, &mut model, pool, batch));
            }
            Verb::DropAhead(at) if !flight.ahead.is_empty() => {
                flight.ahead.remove(usize::from(*at) % flight.ahead.len());
            }
            Verb::EndStep(at) if !flight.steps.is_empty() => {
                flight.steps.remove(usize::from(*at) % flight.steps.len());
            }
            Verb::Copy(ids) => copy(&table, &mut model, pool, ids, &mut flight.copies),
            Verb::ApplyCopies(optimizer, most, seed) => {
                // All of them must fit in memory at once.
                let most = (*most).min(room.1.map_or(usize::MAX, |rows| rows as usize));
                let copies = &flight.copies[flight.copies.len().saturating_sub(most)..];
                apply_copies(
                    &table,
                    &mut model,
                    pool,
                    copies,
                    &*optimizers[*optimizer],
                    *seed,
                );
            }
            Verb::ReadCopies => read_copies(&table, &model, pool, &flight.copies),
            Verb::ForgetCopies => flight.copies.clear(),
            _ => step(verb, &table, &mut model, pool, &optimizers),
        }
        if matches!(verb, Verb::Clear | Verb::Reload) {
            flight.steps.iter_mut().for_each(|step| step.keys.clear());
            model.replaced += 1;
        }
        assert_eq!(table.len(), model.rows.len() as u64, "{verb:?}");
        keep_apart(&table, &model, pool, &flight.steps);
        if history.len() < 100 {
            same(&table, &model);
        }
    }
    same(&table, &model);
    drop(flight);
    expect_no_row_lost(&table, pool);
}

/// The step's part: the claim, or what it falls back to. Both give what the model says.
fn claim(table: &Arc<Table>, model: &mut Model, pool: &Pool, mut batch: Batch) -> Option<Batch> {
    let keys: Vec<i64> = {
        let mut seen = HashSet::new();
        let ids = batch.ids.iter().copied();
        ids.filter(|&id| id != -1 && seen.insert(id)).collect()
    };
    let (ids, limit) = (Ids::I64(&batch.ids), batch.limit);
    let claim = || table.claim(pool, ids, batch.lease.offsets(), limit, &batch.inverse);
    // Where memory is small batches ahead are now and then refused; nothing has changed then.
    if !claim().or_else(|_| claim()).unwrap() {
        let result = table.lease(pool, ids, limit, &mut batch.inverse);
        if limit.is_some_and(|limit| keys.len() > limit) {
            assert_eq!(result.unwrap_err().kind(), Kind::InvalidArgument);
            return None;
        }
        if over_budget(&result, table, model, &batch.ids) {
            return None;
        }
        batch.lease = result.unwrap();
    }
    let offsets = batch.lease.offsets();
    assert_eq!(offsets.len(), keys.len());
    let mut rows = vec![9.0; offsets.len() * DIM];
    table.lookup(pool, offsets, &mut rows).unwrap();
    for (key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
        assert_eq!(row, &model.create(*key)[..DIM], "key {key}");
    }
    for (id, &at) in batch.ids.iter().zip(&batch.inverse) {
        assert_eq!(usize::try_from(at).map_or(-1, |at| keys[at]), *id);
    }
    batch.keys = keys;
    Some(batch)
}

/// No row of a step that is not over is the row of another key.
fn keep_apart(table: &Table, model: &Model, pool: &Pool, steps: &[Batch]) {
    if steps.is_empty() {
        return;
    }
    let keys: Vec<i64> = model.rows.keys().copied().collect();
    let (offsets, _inverse) = known_offsets(table, pool, &keys);
    let row = |offset: &i64| offset & 0x7fff_ffff;
    let owner: HashMap<i64, i64> = offsets.iter().map(row).zip(keys.iter().copied()).collect();
    assert_eq!(owner.len(), model.rows.len());
    for step in steps {
        for (key, offset) in step.keys.iter().zip(step.lease.offsets()) {
            assert_eq!(owner.get(&row(offset)).unwrap_or(key), key);
        }
    }
}

/// Every row is in use or free: so many new keys as rows are free fit without more memory.
fn expect_no_row_lost(table: &Table, pool: &Pool) {
    if let Some(tier) = table.stats().tier {
        assert_eq!(tier.rows_in_memory + tier.rows_on_disk, table.len());
        assert!(tier.rows_in_memory <= tier.ram_rows);
        return;
    }
    let width = DIM * (1 + table.slots().len());
    let lines = width.next_multiple_of(16);
    let stride = if width <= 16 {
        width.next_power_of_two()
    } else if (lines - width) * 8 > lines {
        width.next_multiple_of(2)
    } else {
        lines
    };
    let bytes = table.memory().rows_bytes;
    let rows = bytes / (4 * stride) as u64;
    let free = rows.min(table.capacity()) - table.len();
    let new: Vec<i64> = (0..free as i64).map(|at| (1 << 40) + at).collect();
    created(table, pool, &new);
    assert_eq!(table.memory().rows_bytes, bytes, "rows are lost");
}

fn over_budget<T: std::fmt::Debug>(
    result: &Result<T>,
    table: &Table,
    model: &Model,
    ids: &[i64],
) -> bool {
    let over = model.rows.len() as u64 + model.missing(ids) > table.capacity();
    if over {
        assert_eq!(result.as_ref().unwrap_err().kind(), Kind::ResourceExhausted);
    }
    over
}

fn step(verb: &Verb, table: &Table, model: &mut Model, pool: &Pool, by: &[Box<dyn RowOptimizer>]) {
    match verb {
        Verb::Create(ids) => {
            offsets(table, model, pool, ids);
        }
        Verb::Grow(start, n) => {
            let ids: Vec<i64> = (0..*n as i64).map(|at| (start << 16) + at * 3).collect();
            let most = table.stats().tier.map_or(*n, |tier| tier.ram_rows as usize);
            for ids in ids.chunks(most) {
                offsets(table, model, pool, ids);
            }
        }
        Verb::Known(ids) => known(table, model, pool, ids),
        Verb::Find(ids) => find(table, model, pool, ids),
        Verb::ApplyIds(optimizer, ids, seed) => {
            let (optimizer, grads) = (&*by[*optimizer], floats(ids.len(), *seed));
            let result = table.apply(pool, Target::Ids(Ids::I64(ids)), &grads, optimizer);
            if !over_budget(&result, table, model, ids) {
                assert_eq!(result.unwrap(), model.apply(ids, &grads, optimizer));
            }
        }
        Verb::ApplyOffsets(optimizer, ids, seed) => {
            let Some((offsets, inverse)) = offsets(table, model, pool, ids) else {
                return;
            };
            let (optimizer, grads) = (&*by[*optimizer], floats(ids.len(), *seed));
            let repeated: Vec<i64> = inverse
                .iter()
                .map(|&at| usize::try_from(at).map_or(-1, |at| offsets[at]))
                .collect();
            let updated = applied(table, pool, Target::Offsets(&repeated), &grads, optimizer);
            assert_eq!(updated, model.apply(ids, &grads, optimizer));
        }
        Verb::ApplyLookup(optimizer, ids, seed) => {
            let Some((offsets, inverse)) = offsets(table, model, pool, ids) else {
                return;
            };
            let (optimizer, grads) = (&*by[*optimizer], floats(ids.len(), *seed));
            let lookup = gradients(
                &offsets,
                &inverse,
                Columns::all(&grads, table.dim()).unwrap(),
            );
            let updated = table.apply_lookups(pool, &[lookup], optimizer).unwrap();
            assert_eq!(updated, model.apply(ids, &grads, optimizer));
        }
        Verb::Assign(ids, seed) => {
            let rows = floats(ids.len(), *seed);
            let result = table.assign(pool, Ids::I64(ids), &rows);
            if over_budget(&result, table, model, ids) {
                return;
            }
            result.unwrap();
            for (&id, row) in ids
                .iter()
                .zip(rows.chunks_exact(DIM))
                .filter(|(&id, _)| id != -1)
            {
                let mut new = row.to_vec();
                model
                    .slots
                    .iter()
                    .for_each(|slot| new.extend([slot.initial; DIM]));
                *model.create(id) = new;
            }
        }
        Verb::Remove(ids) => {
            let gone = ids
                .iter()
                .filter(|id| model.rows.remove(id).is_some())
                .count() as u64;
            assert_eq!(table.remove(Ids::I64(ids)).unwrap(), gone);
        }
        Verb::Limit(ids, limit) => {
            let distinct: HashSet<_> = ids.iter().filter(|&&id| id != -1).collect();
            let mut inverse = vec![0; ids.len()];
            let result = table.id_offset(pool, Ids::I64(ids), true, Some(*limit), &mut inverse);
            if distinct.len() > *limit {
                assert_eq!(result.unwrap_err().kind(), Kind::InvalidArgument);
            } else if !over_budget(&result, table, model, ids) {
                ids.iter().filter(|&&id| id != -1).for_each(|&id| {
                    model.create(id);
                });
            }
        }
        Verb::Clear => {
            assert_eq!(table.clear(), model.rows.len() as u64);
            model.rows.clear();
        }
        Verb::Reload => reload(table, pool),
        // Nothing is ahead, or no step is open.
        _ => {}
    }
}

/// Keeps copies of the offsets of keys.
fn copy(table: &Table, model: &mut Model, pool: &Pool, ids: &[i64], copies: &mut Vec<Copy>) {
    let Some((offsets, inverse)) = offsets(table, model, pool, ids) else {
        return;
    };
    for (&key, &at) in ids.iter().zip(&inverse).filter(|(&id, _)| id != -1) {
        copies.push(Copy {
            offset: offsets[at as usize],
            key,
            stay: model.stays[&key],
            replaced: model.replaced,
        });
    }
}

/// An update changes the rows that are still their keys', drops and counts the others, and does
/// nothing over a replaced content.
fn apply_copies(
    table: &Table,
    model: &mut Model,
    pool: &Pool,
    copies: &[Copy],
    optimizer: &dyn RowOptimizer,
    seed: u8,
) {
    let mut offsets: Vec<i64> = copies.iter().map(|copy| copy.offset).collect();
    // As TensorFlow's accumulators of gradients begin.
    offsets.push(0);
    let (grads, before) = (floats(offsets.len(), seed), table.stats().stale);
    let result = table.apply(pool, Target::Offsets(&offsets), &grads, optimizer);
    if copies.iter().any(|copy| copy.replaced != model.replaced) {
        assert_eq!(result.unwrap_err().kind(), Kind::Aborted);
        return;
    }
    let id = |copy: &Copy| if model.has(copy) { copy.key } else { -1 };
    let mut ids: Vec<i64> = copies.iter().map(id).collect();
    ids.push(-1);
    let stale = copies.iter().filter(|copy| !model.has(copy));
    let stale: HashSet<i64> = stale.map(|copy| copy.offset).collect();
    assert_eq!(result.unwrap(), model.apply(&ids, &grads, optimizer));
    assert_eq!(table.stats().stale - before, stale.len() as u64);
}

/// What is read is the key's own row.
fn read_copies(table: &Table, model: &Model, pool: &Pool, copies: &[Copy]) {
    for copy in copies {
        let mut row = [9.0; DIM];
        let result = table.lookup(pool, &[copy.offset], &mut row);
        match result {
            _ if copy.replaced != model.replaced => {
                assert_eq!(result.unwrap_err().kind(), Kind::Aborted);
            }
            Ok(()) if model.has(copy) => assert_eq!(row, model.rows[&copy.key][..DIM]),
            // A lease may hold the row.
            Ok(()) => {}
            Err(error) => {
                assert!(!model.has(copy), "{error}");
                assert_eq!(error.kind(), Kind::InvalidArgument);
            }
        }
    }
}

fn known(table: &Table, model: &Model, pool: &Pool, ids: &[i64]) {
    let (offsets, inverse) = known_offsets(table, pool, ids);
    let mut rows = vec![9.0; offsets.len() * DIM];
    table.lookup(pool, &offsets, &mut rows).unwrap();
    let mut embedded = vec![9.0; ids.len() * DIM];
    table
        .embed(pool, &offsets, &inverse, &mut embedded)
        .unwrap();
    for ((id, at), embedded) in ids.iter().zip(inverse).zip(embedded.chunks_exact(DIM)) {
        assert_eq!(at == -1, !model.rows.contains_key(id));
        if let Ok(at) = usize::try_from(at) {
            assert_eq!(rows[at * DIM..(at + 1) * DIM], model.rows[id][..DIM]);
            assert_eq!(embedded, &model.rows[id][..DIM]);
        } else {
            assert_eq!(embedded, [0.0; DIM]);
        }
    }
}

fn find(table: &Table, model: &Model, pool: &Pool, ids: &[i64]) {
    let (absent, mut out) = (floats(ids.len(), 3), floats(ids.len(), 0));
    table
        .find(pool, Ids::I64(ids), Absent::Rows(&absent), &mut out)
        .unwrap();
    let rows = out.chunks_exact(DIM).zip(absent.chunks_exact(DIM));
    for (id, (row, absent)) in ids.iter().zip(rows) {
        match model.rows.get(id) {
            Some(expected) => assert_eq!(row, &expected[..DIM]),
            None if *id == -1 => assert_eq!(row, [0.0; DIM]),
            None => assert_eq!(row, absent),
        }
    }
}

fn reload(table: &Table, pool: &Pool) {
    let copy = table.export().unwrap();
    let specs: Vec<SlotSpec> = copy.slots.iter().map(|(spec, _)| spec.clone()).collect();
    table.clear();
    let loaded = table.load(pool, &specs, &mut |loading| {
        for start in (0..copy.keys.len()).step_by(100) {
            let end = copy.keys.len().min(start + 100);
            let part = start * DIM..end * DIM;
            let slots: Vec<&[f32]> = copy
                .slots
                .iter()
                .map(|(_, values)| &values[part.clone()])
                .collect();
            loading.push(
                &copy.keys[start..end],
                &copy.embedding[part.clone()],
                &slots,
            )?;
        }
        Ok(())
    });
    assert_eq!(loaded.unwrap(), copy.keys.len() as u64);
    assert_eq!(table.export().unwrap(), copy);
}

/// Creates rows in both; the offsets with their `inverse`, unless the budget forbids.
fn offsets(
    table: &Table,
    model: &mut Model,
    pool: &Pool,
    ids: &[i64],
) -> Option<(Vec<i64>, Vec<i32>)> {
    let mut inverse = vec![7; ids.len()];
    let result = table.id_offset(pool, Ids::I64(ids), true, None, &mut inverse);
    if over_budget(&result, table, model, ids) {
        return None;
    }
    let offsets = result.unwrap();
    let mut order: HashMap<i64, usize> = HashMap::new();
    for (&id, &at) in ids.iter().zip(&inverse) {
        if id == -1 {
            assert_eq!(at, -1);
            continue;
        }
        let next = order.len();
        assert_eq!(at as usize, *order.entry(id).or_insert(next));
        model.create(id);
    }
    assert_eq!(offsets.len(), order.len());
    Some((offsets, inverse))
}

fn same(table: &Table, model: &Model) {
    let copy = table.export().unwrap();
    assert_eq!(copy.keys.len(), model.rows.len());
    let specs: Vec<&SlotSpec> = copy.slots.iter().map(|(spec, _)| spec).collect();
    assert_eq!(specs, model.slots.iter().collect::<Vec<_>>());
    for (at, key) in copy.keys.iter().enumerate() {
        let mut row = copy.embedding[at * DIM..(at + 1) * DIM].to_vec();
        copy.slots
            .iter()
            .for_each(|(_, values)| row.extend(&values[at * DIM..(at + 1) * DIM]));
        assert_eq!(bits(&row), bits(&model.rows[key]), "key {key}");
    }
}

proptest! {
    #![proptest_config(cases(48))]
    #[test]
    fn a_table_is_a_map_from_keys_to_rows(history in prop::collection::vec(verb(), 1..60)) {
        replay(&history, &Pool::new(1).unwrap(), (CAPACITY, None));
    }

    #[test]
    fn a_table_without_room_is_a_map_too(history in prop::collection::vec(verb(), 1..80)) {
        replay(&history, &Pool::new(1).unwrap(), (TIGHT, None));
    }

    #[test]
    fn a_table_on_three_threads_is_a_map_too(history in prop::collection::vec(verb(), 1..30)) {
        replay(&history, &Pool::new(3).unwrap(), (CAPACITY, None));
    }

    #[test]
    fn a_table_that_is_mostly_on_disk_is_a_map_too(
        history in prop::collection::vec(verb(), 1..80),
    ) {
        replay(&history, &Pool::new(1).unwrap(), (CAPACITY, Some(IN_MEMORY)));
    }

    #[test]
    fn a_table_on_disk_whose_batches_fight_for_memory_is_a_map_too(
        history in prop::collection::vec(verb(), 1..80),
        threads in 1..4_usize,
        capacity in prop::sample::select(vec![TIGHT, CAPACITY]),
    ) {
        replay(&history, &Pool::new(threads).unwrap(), (capacity, Some(FEW_IN_MEMORY)));
    }
}

/// A million operations in long histories: `cargo test --release --test all -- --ignored model::`.
#[test]
#[ignore = "takes minutes"]
fn a_million_operations_differ_nowhere() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (one, three) = (Pool::new(1).unwrap(), Pool::new(3).unwrap());
    let history = prop::collection::vec(verb(), 2000);
    let mut done = 0;
    while done < 1_000_000 {
        let history = history.new_tree(&mut runner).unwrap().current();
        let pool = if done % 4000 == 0 { &one } else { &three };
        let capacity = if done % 6000 == 0 { TIGHT } else { CAPACITY };
        let in_memory = [None, Some(IN_MEMORY), Some(FEW_IN_MEMORY)][done / 2000 % 3];
        replay(&history, pool, (capacity, in_memory));
        done += history.len();
    }
}
