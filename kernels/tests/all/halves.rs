//! Rows of 2 bytes a value: what they become step by step, and in checkpoints of other types.

use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{created, field_update, found_rows, push_of, UNIFORM};
use crate::tiered::support::Directory;
use mx_rec_kernels::checkpoint::{load, load_part, save};
use mx_rec_kernels::{
    Absent, Columns, Error, Field, Ids, Lease, LookupGradients, Partition, Pool, Result, Rounding,
    RowDtype, RowStorage, SlotSpec, Table, TableConfig, Thresholds, OPTIMIZERS,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(crate) const DIM: usize = 19;
pub(crate) const HALVES: [RowDtype; 2] = [RowDtype::Bfloat16, RowDtype::Float16];

pub(crate) fn config(dtype: RowDtype, rounding: Rounding) -> TableConfig {
    TableConfig {
        seed: 0x1234_5678_9abc_def0,
        initializer: UNIFORM,
        frozen_keys: vec![7],
        row_storage: RowStorage {
            dtype,
            rounding,
            ..RowStorage::default()
        },
        ..TableConfig::new("half", DIM, 5000)
    }
}

/// The same with slots of 2 bytes a value.
pub(crate) fn with_half_slots(dtype: RowDtype, rounding: Rounding) -> TableConfig {
    let mut config = config(dtype, rounding);
    config.row_storage.slot_dtype = RowDtype::Bfloat16;
    config
}

pub(crate) fn converting(mut config: TableConfig, conversion: Rounding) -> TableConfig {
    config.row_storage.conversion = Some(conversion);
    config
}

/// Ids of step `t`: some repeat, some are large or negative, and one is frozen.
pub(crate) fn ids(t: usize, n: usize) -> Vec<i64> {
    let id = |at: usize| {
        let few = ((at * at * 31 + t * 17) % (2 * n)) as i64;
        match at % 5 {
            0 => few << 33 | few,
            1 => -2 - few,
            _ => few,
        }
    };
    (0..n).map(id).collect()
}

pub(crate) fn grads(t: usize, n: usize) -> Vec<f32> {
    let grad = |at: usize| ((at * 7919 + t * 104_729) % 2003) as f32 / 2003.0 - 0.5;
    (0..n * DIM).map(grad).collect()
}

pub(crate) fn number_of(name: &str) -> usize {
    let mut all = OPTIMIZERS.iter();
    all.position(|one| one.name == name).unwrap()
}

/// Steps `range` of an optimizer with batches of `n` ids.
pub(crate) fn train(
    table: &Table,
    pool: &Pool,
    at: usize,
    range: std::ops::Range<usize>,
    n: usize,
) -> Result<()> {
    for t in range {
        let ids = ids(t, n);
        let target = Target::Ids(Ids::I64(&ids));
        table.apply(pool, target, &grads(t, n), &*optimizer(at, t))?;
    }
    Ok(())
}

/// All rows by key, as bits.
pub(crate) fn rows(table: &Table) -> BTreeMap<i64, Vec<u32>> {
    let mut found = BTreeMap::new();
    let mut put = |key: i64, row: &[f32]| {
        found.insert(key, row.iter().map(|value| value.to_bits()).collect());
        Ok(())
    };
    table.snapshot().for_each_row(&mut put).unwrap();
    found
}

/// The second half of a step of SplitMix64, modulo 2^64, in wider numbers.
pub(crate) fn mixed(number: u128) -> u128 {
    let most = 1_u128 << 64;
    let step = |number: u128, shift: u32, factor: u128| {
        let number = number % most;
        (number ^ number >> shift) * factor % most
    };
    let number = step(number, 30, 0xBF58_476D_1CE4_E5B9);
    let number = step(number, 27, 0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

/// The 16 random bits by which column `column` of a key is rounded in an update, as the documents
/// have them.
pub(crate) fn random(seed: u64, key: i64, column: usize, update: u64) -> u32 {
    let (golden, most) = (0x9E37_79B9_7F4A_7C15_u128, 1_u128 << 32);
    let folded = (u128::from(key as u64) * golden % (most * most)) >> 32;
    let of_update = mixed(u128::from(seed) ^ mixed(u128::from(update) * golden));
    let row = mixed(of_update + folded * golden);
    let words = DIM.div_ceil(2);
    let bits = (row + (column % words) as u128 * 0x9E37_79B9) % most;
    let bits = (bits ^ bits >> 16) * 0x21F0_AAAD % most;
    let bits = (bits ^ bits >> 15 ^ row >> 32) * 0x735A_2D97 % most;
    let bits = (bits ^ bits >> 15) as u32;
    bits >> (16 * (column / words)) & 0xFFFF
}

/// A value as it is stored: `random` of 16 bits, or to the nearest, in float64.
pub(crate) fn stored(dtype: RowDtype, value: f32, random: Option<u32>) -> f32 {
    let (bits, smallest, draws) = match dtype {
        RowDtype::Bfloat16 => (7, -126, 16),
        _ => (10, -14, 13),
    };
    let size = f64::from(value.abs());
    let exponent = size.log2().floor().max(f64::from(smallest));
    let step = 2_f64.powf(exponent - f64::from(bits));
    let parts = size / step;
    let parts = match random {
        None => {
            let down = parts.floor();
            let rest = parts - down;
            let up = rest > 0.5 || (rest == 0.5 && down % 2.0 == 1.0);
            down + f64::from(u8::from(up))
        }
        Some(random) => {
            let draws = if size < 2_f64.powi(smallest) {
                16
            } else {
                draws
            };
            let most = 1_u32 << draws;
            (parts + f64::from(random % most) / f64::from(most)).floor()
        }
    };
    let rounded = parts * step;
    (rounded.min(f64::from(dtype.largest())) as f32).copysign(value)
}

#[test]
fn rows_are_those_of_the_rule_on_paper_after_every_step() -> Result<()> {
    let pool = Pool::new(2)?;
    for dtype in HALVES {
        for rounding in [Rounding::Stochastic, Rounding::Nearest] {
            let config = config(dtype, rounding);
            let (seed, table) = (config.seed, Table::new(config.clone())?);
            let plain = Table::new(TableConfig {
                row_storage: RowStorage::default(),
                ..config
            })?;
            let mut paper: BTreeMap<i64, Vec<f32>> = BTreeMap::new();
            for t in 0..40 {
                let (ids, grads) = (ids(t, 60), grads(t, 60));
                let mut initial = vec![0.0; ids.len() * DIM];
                let absent = Absent::Initial(plain.config());
                plain.find(&pool, Ids::I64(&ids), absent, &mut initial)?;
                for (&id, initial) in ids.iter().zip(initial.chunks_exact(DIM)) {
                    let row = || {
                        initial
                            .iter()
                            .map(|&one| stored(dtype, one, None))
                            .collect()
                    };
                    paper.entry(id).or_insert_with(row);
                }
                let mut sums: BTreeMap<i64, Vec<f32>> = BTreeMap::new();
                for (&id, grad) in ids.iter().zip(grads.chunks_exact(DIM)) {
                    match sums.get_mut(&id) {
                        None => {
                            sums.insert(id, grad.to_vec());
                        }
                        Some(sum) => sum.iter_mut().zip(grad).for_each(|(sum, g)| *sum += g),
                    }
                }
                for (id, sum) in sums.into_iter().filter(|&(id, _)| id != 7) {
                    for (column, g) in sum.into_iter().enumerate() {
                        let value = &mut paper.get_mut(&id).unwrap()[column];
                        let next = *value - 0.003 * g;
                        let draw = random(seed, id, column, t as u64 + 1);
                        let draw = (rounding == Rounding::Stochastic).then_some(draw);
                        *value = stored(dtype, next, draw);
                    }
                }
                let sgd = mx_rec_kernels::Sgd::new(0.003)?;
                table.apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &sgd)?;
                let expected: BTreeMap<i64, Vec<u32>> = paper
                    .iter()
                    .map(|(&id, row)| (id, row.iter().map(|one| one.to_bits()).collect()))
                    .collect();
                assert_eq!(rows(&table), expected, "{dtype} {rounding:?} step {t}");
                let found = found_rows(&table, &pool, &ids);
                for (id, found) in ids.iter().zip(found.chunks_exact(DIM)) {
                    assert_eq!(found, paper[id]);
                }
            }
        }
    }
    Ok(())
}

/// The rows of three parts that are restored from a checkpoint and take steps of 300 ids.
pub(crate) fn in_parts(
    config: &TableConfig,
    at: usize,
    base: &Path,
    steps: std::ops::Range<usize>,
) -> Result<BTreeMap<i64, Vec<u32>>> {
    let pool = Pool::new(1)?;
    let parts: Vec<Table> = (0..3)
        .map(|part| Table::part(config.clone(), None, Partition::new(part, 3)?))
        .collect::<Result<_>>()?;
    for (part, table) in parts.iter().enumerate() {
        load_part(table, &pool, &[base], Partition::new(part as u32, 3)?)?;
    }
    for t in steps {
        push_to_parts(&parts, at, t)?;
    }
    Ok(parts.iter().flat_map(rows).collect())
}

/// One step on each part, also on one that has none of the keys.
fn push_to_parts(parts: &[Table], at: usize, t: usize) -> Result<()> {
    let (ids, grads, step) = (ids(t, 300), grads(t, 300), optimizer(at, t));
    for (number, table) in parts.iter().enumerate() {
        let part = Partition::new(number as u32, parts.len() as u32)?;
        let (mut keys, mut sums): (Vec<i64>, Vec<f32>) = (Vec::new(), Vec::new());
        for (&id, grad) in ids.iter().zip(grads.chunks_exact(DIM)) {
            if part.holds(id) {
                match keys.iter().position(|&key| key == id) {
                    None => {
                        keys.push(id);
                        sums.extend_from_slice(grad);
                    }
                    Some(at) => {
                        let sum = &mut sums[at * DIM..(at + 1) * DIM];
                        sum.iter_mut().zip(grad).for_each(|(sum, g)| *sum += g);
                    }
                }
            }
        }
        let mut inverse = vec![0; keys.len()];
        table.id_offset(&Pool::new(1)?, Ids::I64(&keys), true, None, &mut inverse)?;
        let push = push_of(table, &keys, &sums, &*step);
        Table::push_many(&Pool::new(1)?, &[push])?;
    }
    Ok(())
}

pub(crate) fn message(result: Result<impl Sized>) -> String {
    result.err().map(|error: Error| error.to_string()).unwrap()
}

fn both(save_as: &TableConfig, load_as: &TableConfig, dir: &Path) -> Result<Table> {
    let pool = Pool::new(1)?;
    let table = Table::new(save_as.clone())?;
    train(&table, &pool, number_of("adagrad"), 0..4, 50)?;
    save(&table, &pool, dir)?;
    let other = Table::new(load_as.clone())?;
    load(&other, &pool, dir)?;
    Ok(other)
}

#[test]
fn a_checkpoint_of_another_type_is_refused_or_converted_as_asked() -> Result<()> {
    let directory = Directory::new("half_types");
    let dir = directory.0.join("saved");
    let all = [RowDtype::Float32, RowDtype::Bfloat16, RowDtype::Float16];
    for from in all {
        for to in all.into_iter().filter(|&to| to != from) {
            let (saved, plain) = (
                config(from, Rounding::Stochastic),
                config(to, Rounding::Stochastic),
            );
            let text = message(both(&saved, &plain, &dir));
            assert!(text.contains("another type"), "{text}");
            assert!(
                text.contains(&format!("checkpoint_row_dtype={from}")),
                "{text}"
            );
            assert!(text.contains(&format!("row_dtype={to}")), "{text}");
            let source = Table::new(saved.clone())?;
            load(&source, &Pool::new(1)?, &dir)?;
            let source = rows(&source);
            for conversion in [Rounding::Nearest, Rounding::Stochastic] {
                let found = both(&saved, &converting(plain.clone(), conversion), &dir)?;
                for (key, row) in rows(&found) {
                    for (column, bits) in row.into_iter().enumerate() {
                        let value = f32::from_bits(source[&key][column]);
                        let is_drawn = conversion == Rounding::Stochastic && column < DIM;
                        let draw = is_drawn.then(|| random(saved.seed, key, column, 0));
                        let expected = match to {
                            _ if column >= DIM => value,
                            RowDtype::Float32 => value,
                            half => stored(half, value, draw),
                        };
                        assert_eq!(f32::from_bits(bits), expected, "{from} {to} {conversion:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_slot_of_one_float_a_row_is_saved_and_loaded_and_no_other_takes_its_place() -> Result<()> {
    let directory = Directory::new("half_slots");
    let (pool, dir) = (Pool::new(1)?, directory.0.join("saved"));
    for dtype in [RowDtype::Float32, RowDtype::Float16] {
        let config = config(dtype, Rounding::Stochastic);
        for name in ["rowwise_adagrad", "rowwise_adam"] {
            let (at, table) = (number_of(name), Table::new(config.clone())?);
            train(&table, &pool, at, 0..6, 50)?;
            save(&table, &pool, &dir)?;
            let export = table.export()?;
            let (spec, values) = export.slots.last().unwrap();
            assert!(spec.per_row);
            assert_eq!(values.len(), export.keys.len());
            let slot = dir.join(spec.name.as_ref());
            let bytes = std::fs::metadata(slot.join("slice.data")).unwrap().len();
            assert_eq!(bytes, 4 * values.len() as u64);
            let bytes = std::fs::metadata(dir.join("embedding/slice.data"))
                .unwrap()
                .len();
            assert_eq!(bytes, (DIM * dtype.bytes() * values.len()) as u64);
            let other = Table::new(config.clone())?;
            load(&other, &pool, &dir)?;
            train(&table, &pool, at, 6..9, 50)?;
            train(&other, &pool, at, 6..9, 50)?;
            assert_eq!(rows(&other), rows(&table));
            let wide = field_update(
                Field::Slot(SlotSpec {
                    name: spec.name.clone(),
                    initial: 0.0,
                    per_row: false,
                }),
                &[0.0; DIM],
                &[1.0; DIM],
            );
            let offsets = created(&table, &pool, &[3]).0;
            let before = rows(&table);
            let text = message(table.write_fields(&pool, &offsets, &[wide], false));
            assert!(text.contains("another form"), "{text}");
            assert!(text.contains("table=half"), "{text}");
            assert_eq!(rows(&table), before);
        }
    }
    Ok(())
}

#[test]
fn rows_that_others_write_are_rounded_and_values_that_do_not_fit_are_counted() -> Result<()> {
    let pool = Pool::new(1)?;
    let table = Table::new(config(RowDtype::Float16, Rounding::Nearest))?;
    let mut given = vec![0.1; DIM];
    given[..4].copy_from_slice(&[70_000.0, f32::NAN, f32::NEG_INFINITY, -1e9]);
    table.assign(&pool, Ids::I64(&[5]), &given)?;
    let found = found_rows(&table, &pool, &[5]);
    assert_eq!(found[0], 65_504.0);
    assert!(found[1].is_nan());
    assert_eq!(found[2..4], [f32::NEG_INFINITY, -65_504.0]);
    assert_eq!(found[4], stored(RowDtype::Float16, 0.1, None));
    let stats = table.stats();
    assert_eq!((stats.saturated, stats.not_finite), (2, 2));

    let offsets = created(&table, &pool, &[6]).0;
    let read = table.batch_rows(&offsets)?;
    let mut old = vec![0.0; DIM];
    read.read(&pool, &Field::Embedding, &mut old)?;
    drop(read);
    let new: Vec<f32> = old.iter().map(|one| one + 0.25).collect();
    let update = field_update(Field::Embedding, &old, &new);
    table.write_fields(&pool, &offsets, &[update], false)?;
    for (found, new) in found_rows(&table, &pool, &[6]).iter().zip(new) {
        assert_eq!(*found, stored(RowDtype::Float16, new, None));
    }
    Ok(())
}

/// The lease of some ids, and the place of each in it: looked up in the step, prepared ahead of it,
/// or admitted, in turn.
fn leased(table: &Arc<Table>, pool: &Pool, t: usize, ids: &[i64]) -> Result<(Lease, Vec<i32>)> {
    let mut inverse = vec![0; ids.len()];
    let all = Ids::I64(ids);
    let lease = match t % 3 {
        0 => table.lease(pool, all, None, &mut inverse)?,
        1 => {
            let lease = table.prepare(pool, all, None, &mut inverse);
            assert!(table.claim(pool, all, lease.offsets(), None, &inverse)?);
            lease
        }
        _ => {
            let (access, eviction) = (2 + t as u32, None);
            let thresholds = Thresholds { access, eviction };
            let mut places = vec![0; ids.len()];
            let keys = table.observe(None, pool, all, 1, None, thresholds, &mut places)?;
            table.admit(pool, &keys, None, &places, &mut inverse)?
        }
    };
    Ok((lease, inverse))
}

/// A lease knows by what its rows are rounded, and a copy of its offsets does not.
#[test]
fn offsets_of_a_lease_and_a_copy_of_them_round_alike() -> Result<()> {
    let pool = Pool::new(2)?;
    for name in ["sgd", "rowwise_adagrad", "lazy_adam", "adam"] {
        let config = with_half_slots(RowDtype::Bfloat16, Rounding::Stochastic);
        let make = || Ok(Arc::new(Table::new(config.clone())?));
        let tables: [Result<Arc<Table>>; 2] = [make(), make()];
        for t in 0..12 {
            let batches = [ids(t, 60), ids(t + 1, 40)];
            for (table, is_copied) in tables.iter().zip([false, true]) {
                let table = table.as_ref().unwrap();
                let mut lookups = Vec::new();
                for ids in &batches[..1 + t % 2] {
                    let (lease, inverse) = leased(table, &pool, t, ids)?;
                    let copy = lease.offsets().to_vec();
                    lookups.push((lease, copy, inverse, grads(t, ids.len())));
                }
                // The rows of keys that went, and came back elsewhere, get nothing.
                if t % 4 == 3 {
                    table.remove(Ids::I64(&batches[0][..9]))?;
                    created(table, &pool, &batches[0][3..5]);
                }
                let of_each = lookups.iter().map(|(lease, copy, inverse, grads)| {
                    let offsets = match is_copied {
                        true => copy,
                        false => lease.offsets(),
                    };
                    let grads = Columns::all(grads, DIM)?;
                    Ok(LookupGradients {
                        offsets,
                        inverse,
                        grads,
                        bags: None,
                    })
                });
                let of_each = of_each.collect::<Result<Vec<_>>>()?;
                let step = optimizer(number_of(name), t);
                assert!(table.apply_lookups(&pool, &of_each, &*step)? > 0);
            }
            let [one, other] = &tables;
            let [one, other] = [one, other].map(|table| rows(table.as_ref().unwrap()));
            assert_eq!(one, other, "{name} {t}");
        }
    }
    Ok(())
}
