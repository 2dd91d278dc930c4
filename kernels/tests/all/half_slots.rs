//! Slots of 2 bytes a value: what they become step by step, and what refuses them.

use crate::halves::{
    config, converting, message, number_of, rows, stored, train, with_half_slots, DIM, HALVES,
};
use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{created, field_update, tier};
use crate::tiered::support::Directory;
use mx_rec_kernels::checkpoint::{inspect, load, save};
use mx_rec_kernels::{
    Absent, Field, Ids, Pool, Result, Rounding, RowDtype, RowGradients, SlotSpec, SlotValues,
    Table, TableConfig,
};
use std::collections::BTreeMap;

const BFLOAT16: RowDtype = RowDtype::Bfloat16;

/// What a slot adds to the seed, in wider numbers: FNV-1a of its name, mixed.
pub(crate) fn stream(name: &str) -> u64 {
    let most = 1_u128 << 64;
    let mut sum = 0xCBF2_9CE4_8422_2325_u128;
    for byte in name.bytes() {
        sum = (sum ^ u128::from(byte)) * 0x0100_0000_01B3 % most;
    }
    crate::halves::mixed(sum) as u64
}

/// The 16 random bits by which a column of a slot is rounded.
fn random(seed: u64, slot: &str, key: i64, column: usize, update: u64) -> u32 {
    crate::halves::random(seed ^ stream(slot), key, column, update)
}

/// The slots of a column and its weight after a step of an optimizer, in float32.
fn on_paper(name: &str, step: i32, weight: f32, slots: &[f32], g: f32) -> (f32, Vec<f32>) {
    match (name, slots) {
        ("adagrad", [a]) => {
            let a = a + g * g;
            (weight - 0.1 * g / a.sqrt(), vec![a])
        }
        ("momentum", [m]) => {
            let m = m * 0.8 + g;
            (weight - 0.1 * m, vec![m])
        }
        ("lazy_adam", [m, v]) => {
            let (one, two) = (0.9_f32.powi(step + 1), 0.99_f32.powi(step + 1));
            let lr = 0.1 * (1.0 - two).sqrt() / (1.0 - one);
            let m = 0.9 * m + (1.0 - 0.9_f32) * g;
            let v = 0.99 * v + (1.0 - 0.99_f32) * (g * g);
            (weight - lr * m / (v.abs().sqrt() + 1e-8), vec![m, v])
        }
        other => panic!("no {other:?} on paper"),
    }
}

#[test]
fn slots_are_those_of_the_rule_on_paper_after_every_step() -> Result<()> {
    let pool = Pool::new(2)?;
    for (name, start) in [("adagrad", 0.1), ("momentum", 0.0), ("lazy_adam", 0.0)] {
        let at = number_of(name);
        for rounding in [Rounding::Stochastic, Rounding::Nearest] {
            for dtype in HALVES {
                let table = Table::new(with_half_slots(dtype, rounding))?;
                let seed = table.config().seed;
                let specs = optimizer(at, 0).slots();
                let mut paper: BTreeMap<i64, Vec<f32>> = BTreeMap::new();
                for t in 0..25 {
                    // Each id once: sums of gradients are another test's.
                    let mut ids = crate::halves::ids(t, 60);
                    ids.sort_unstable();
                    ids.dedup();
                    ids.retain(|&id| id != 7);
                    let grads = crate::halves::grads(t, ids.len());
                    let mut row = vec![0.0; ids.len() * DIM];
                    let absent = Absent::Initial(table.config());
                    table.find(&pool, Ids::I64(&ids), absent, &mut row)?;
                    for (&id, row) in ids.iter().zip(row.chunks_exact(DIM)) {
                        paper.entry(id).or_insert_with(|| {
                            let start = stored(BFLOAT16, start, None);
                            let slots = std::iter::repeat_n(start, DIM * specs.len());
                            row.iter().copied().chain(slots).collect()
                        });
                    }
                    for (&id, grad) in ids.iter().zip(grads.chunks_exact(DIM)) {
                        let row = paper.get_mut(&id).unwrap();
                        for (column, &g) in grad.iter().enumerate() {
                            let slots: Vec<f32> = (1..=specs.len())
                                .map(|slot| row[slot * DIM + column])
                                .collect();
                            let (w, slots) = on_paper(name, t as i32, row[column], &slots, g);
                            let drawn = |bits| (rounding == Rounding::Stochastic).then_some(bits);
                            let number = t as u64 + 1;
                            let of_row = crate::halves::random(seed, id, column, number);
                            row[column] = stored(dtype, w, drawn(of_row));
                            for (slot, (spec, value)) in specs.iter().zip(slots).enumerate() {
                                let bits = random(seed, &spec.name, id, column, number);
                                row[(slot + 1) * DIM + column] =
                                    stored(BFLOAT16, value, drawn(bits));
                            }
                        }
                    }
                    let target = Target::Ids(Ids::I64(&ids));
                    table.apply(&pool, target, &grads, &*optimizer(at, t))?;
                    let expected: BTreeMap<i64, Vec<u32>> = paper
                        .iter()
                        .map(|(&id, row)| (id, row.iter().map(|one| one.to_bits()).collect()))
                        .collect();
                    assert!(
                        rows(&table) == expected,
                        "{name} {dtype} {rounding:?} step {t}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn types_that_slots_cannot_have_are_refused() {
    for (dtype, slot_dtype, text) in [
        (RowDtype::Float32, BFLOAT16, "needs a row_dtype of 2 bytes"),
        (BFLOAT16, RowDtype::Float16, "must be float32 or bfloat16"),
    ] {
        let mut config = config(dtype, Rounding::Stochastic);
        config.row_storage.slot_dtype = slot_dtype;
        let found = message(Table::new(config));
        assert!(
            found.contains(text) && found.contains("table=half"),
            "{found}"
        );
        assert!(
            found.contains(&format!("slot_dtype={slot_dtype}")),
            "{found}"
        );
    }
}

#[test]
fn a_checkpoint_with_slots_of_another_type_is_refused_or_converted_as_asked() -> Result<()> {
    let (directory, pool) = (Directory::new("half_slot_types"), Pool::new(2)?);
    let (wide, narrow) = (
        config(BFLOAT16, Rounding::Stochastic),
        with_half_slots(BFLOAT16, Rounding::Stochastic),
    );
    for (number, (from, to)) in [(&wide, &narrow), (&narrow, &wide)].into_iter().enumerate() {
        let dir = directory.0.join(number.to_string());
        let source = Table::new(from.clone())?;
        train(&source, &pool, number_of("lazy_adam"), 0..5, 80)?;
        save(&source, &pool, &dir)?;
        let bytes = std::fs::metadata(dir.join("LazyAdam_velocity/slice.data"));
        let size = from.row_storage.slot_dtype.bytes() as u64;
        assert_eq!(bytes.unwrap().len(), size * DIM as u64 * source.len());
        let described = inspect::describe(&dir)?;
        assert_eq!(described.version, [4, 5][number]);
        assert_eq!(described.faults, []);
        let other = Table::new(to.clone())?;
        train(&other, &pool, number_of("adagrad"), 0..2, 20)?;
        let before = rows(&other);
        let text = message(load(&other, &pool, &dir));
        for part in [
            "slots of another type",
            "table=half",
            "row_conversion",
            "slot=LazyAdam_momentum",
            &format!("checkpoint_slot_dtype={}", from.row_storage.slot_dtype),
            &format!(", slot_dtype={}", to.row_storage.slot_dtype),
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(rows(&other), before);
        let expected = rows(&source);
        for conversion in [Rounding::Nearest, Rounding::Stochastic] {
            let found = Table::new(converting(to.clone(), conversion))?;
            load(&found, &pool, &dir)?;
            let (found, slots) = (rows(&found), source.slots());
            assert_eq!(found.len(), expected.len());
            for (key, row) in found {
                for (column, (bits, from)) in row.into_iter().zip(&expected[&key]).enumerate() {
                    let value = f32::from_bits(*from);
                    let rounded = match column / DIM {
                        0 => value,
                        _ if number == 1 => value,
                        slot => {
                            let name = &slots[slot - 1].name;
                            let bits = random(to.seed, name, key, column % DIM, 0);
                            let drawn = conversion == Rounding::Stochastic;
                            stored(BFLOAT16, value, drawn.then_some(bits))
                        }
                    };
                    assert_eq!(bits, rounded.to_bits(), "{number} {conversion:?} {column}");
                }
            }
        }
    }
    // Without slots that have a value a column there is nothing to convert.
    for name in ["sgd", "rowwise_adagrad"] {
        let (dir, source) = (directory.0.join(name), Table::new(wide.clone())?);
        train(&source, &pool, number_of(name), 0..3, 50)?;
        save(&source, &pool, &dir)?;
        let other = Table::new(narrow.clone())?;
        load(&other, &pool, &dir)?;
        assert_eq!(rows(&other), rows(&source), "{name}");
    }
    Ok(())
}

/// Where rows are: all in memory, or few of them.
fn of_either_kind(config: TableConfig, directory: &Directory) -> Result<[Table; 2]> {
    let tier = tier(16, vec![directory.0.clone()]);
    Ok([Table::new(config.clone())?, Table::tiered(config, &tier)?])
}

#[test]
fn values_of_variables_fill_rows_and_slots_as_the_conversion_says() -> Result<()> {
    let (directory, pool) = (Directory::new("half_slot_fill"), Pool::new(2)?);
    let keys: Vec<i64> = (0..60).map(|at| at << 33 | at).collect();
    let values = |number: usize| -> Vec<f32> {
        let all = crate::halves::grads(number, keys.len()).into_iter();
        all.map(|value| value + number as f32 * 0.01).collect()
    };
    let (embedding, m, v) = (values(0), values(1), values(2));
    let specs = optimizer(number_of("lazy_adam"), 0).slots();
    let fill = |table: &Table, saved: bool, slots: usize| -> Result<()> {
        // What memory holds at once.
        for (at, keys) in keys.chunks(15).enumerate() {
            let part = at * 15 * DIM..(at * 15 + keys.len()) * DIM;
            let slots = specs.iter().zip([&m, &v]).take(slots);
            let slots: Vec<SlotValues<'_>> = slots
                .map(|(slot, values)| SlotValues {
                    slot: slot.clone(),
                    values: &values[part.clone()],
                })
                .collect();
            table.fill(&pool, Ids::I64(keys), &embedding[part], &slots, saved)?;
        }
        Ok(())
    };
    // Rows may be rounded otherwise by updates: nothing is known of their keys then.
    for updates in [Rounding::Stochastic, Rounding::Nearest] {
        for (saved, conversion) in [
            (true, Rounding::Stochastic),
            (true, Rounding::Nearest),
            (false, Rounding::Stochastic),
        ] {
            let config = converting(with_half_slots(RowDtype::Float16, updates), conversion);
            let seed = config.seed;
            for table in of_either_kind(config, &directory)? {
                train(&table, &pool, number_of("adagrad"), 0..2, 15)?;
                fill(&table, saved, 2)?;
                let drawn = saved && conversion == Rounding::Stochastic;
                let found = rows(&table);
                let start = stored(BFLOAT16, 0.1, None).to_bits();
                for (at, key) in keys.iter().enumerate() {
                    let row = &found[key];
                    for column in 0..DIM {
                        let place = at * DIM + column;
                        let bits = crate::halves::random(seed, *key, column, 0);
                        let one =
                            stored(RowDtype::Float16, embedding[place], drawn.then_some(bits));
                        assert_eq!(row[column], one.to_bits(), "{saved} {conversion:?}");
                        assert_eq!(row[DIM + column], start, "the slot that is not filled");
                        for (slot, (spec, values)) in specs.iter().zip([&m, &v]).enumerate() {
                            let bits = random(seed, &spec.name, *key, column, 0);
                            let one = stored(BFLOAT16, values[place], drawn.then_some(bits));
                            assert_eq!(row[(2 + slot) * DIM + column], one.to_bits(), "{slot}");
                        }
                    }
                }
            }
        }
    }
    // Without a conversion values of a checkpoint are refused, and nothing changes.
    for table in of_either_kind(with_half_slots(BFLOAT16, Rounding::Stochastic), &directory)? {
        let text = message(fill(&table, true, 2));
        assert!(
            text.contains("row_conversion") && text.contains("table=half"),
            "{text}"
        );
        assert!(table.is_empty() && table.slots().is_empty());
        // A slot that is not filled is not added.
        fill(&table, false, 1)?;
        assert_eq!(table.slots().len(), 1);
    }
    Ok(())
}

#[test]
fn a_slot_that_a_checkpoint_lacks_starts_where_one_of_a_new_row_does() -> Result<()> {
    let (directory, pool) = (Directory::new("half_slot_made_up"), Pool::new(2)?);
    let dir = directory.0.join("saved");
    let table = Table::new(with_half_slots(BFLOAT16, Rounding::Stochastic))?;
    train(&table, &pool, number_of("sgd"), 0..3, 50)?;
    save(&table, &pool, &dir)?;
    for conversion in [None, Some(Rounding::Stochastic)] {
        let mut config = table.config().clone();
        config.row_storage.conversion = conversion;
        let other = Table::new(config)?;
        train(&other, &pool, number_of("adagrad"), 0..1, 20)?;
        load(&other, &pool, &dir)?;
        let start = stored(BFLOAT16, 0.1, None).to_bits();
        let all = rows(&other);
        assert!(all
            .values()
            .all(|row| row[DIM..].iter().all(|&one| one == start)));
        assert!(all.values().all(|row| row.len() == 2 * DIM));
    }
    Ok(())
}

#[test]
fn a_row_that_comes_again_starts_anew_and_others_stay_as_they_were() -> Result<()> {
    let pool = Pool::new(1)?;
    let table = Table::new(with_half_slots(BFLOAT16, Rounding::Stochastic))?;
    let at = number_of("adagrad");
    train(&table, &pool, at, 0..4, 50)?;
    let before = rows(&table);
    let gone: Vec<i64> = before.keys().copied().filter(|key| key % 3 == 0).collect();
    table.remove(Ids::I64(&gone))?;
    // Other keys get their rows.
    let new: Vec<i64> = (100_000..100_000 + gone.len() as i64).collect();
    created(&table, &pool, &new);
    created(&table, &pool, &gone);
    let start = stored(BFLOAT16, 0.1, None).to_bits();
    assert_eq!(f32::from_bits(start), 0.100_097_656);
    for (key, row) in rows(&table) {
        match before.get(&key).filter(|_| !gone.contains(&key)) {
            Some(old) => assert_eq!(*old, row),
            None => assert!(row[DIM..].iter().all(|&bits| bits == start), "{key}"),
        }
    }
    // An assignment makes slots start again, too.
    table.assign(&pool, Ids::I64(&[1]), &[0.5; DIM])?;
    assert_eq!(rows(&table)[&1][DIM..], [start; DIM]);
    Ok(())
}

#[test]
fn two_tables_of_one_step_round_as_each_alone_and_an_empty_update_counts() -> Result<()> {
    let pool = Pool::new(2)?;
    let at = number_of("lazy_adam");
    let configs = [
        with_half_slots(BFLOAT16, Rounding::Stochastic),
        config(BFLOAT16, Rounding::Stochastic),
        TableConfig {
            dim: 6,
            ..with_half_slots(RowDtype::Float16, Rounding::Stochastic)
        },
    ];
    let make = || -> Result<Vec<Table>> { configs.iter().cloned().map(Table::new).collect() };
    let (alone, together) = (make()?, make()?);
    for t in 0..6 {
        let ids: Vec<i64> = match t {
            3 => Vec::new(),
            _ => (0..40).map(|at| at * (t + 1) % 17).collect(),
        };
        let step = optimizer(at, t as usize);
        let mut group = Vec::new();
        for (one, other) in together.iter().zip(&alone) {
            let grads: Vec<f32> = crate::halves::grads(t as usize, ids.len())
                [..ids.len() * one.config().dim]
                .to_vec();
            let (offsets, inverse) = created(one, &pool, &ids);
            let offsets: Vec<i64> = inverse.iter().map(|&at| offsets[at as usize]).collect();
            other.apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &*step)?;
            group.push((one, offsets, grads));
        }
        let group: Vec<(&Table, RowGradients<'_>)> = group
            .iter()
            .map(|(table, offsets, grads)| (*table, RowGradients { offsets, grads }))
            .collect();
        Table::apply_many(&pool, &group, &*step)?;
        for (one, other) in together.iter().zip(&alone) {
            assert_eq!(rows(one), rows(other), "{t}");
        }
    }
    // The same numbers of columns and the same values: rounding alone differs.
    assert_ne!(rows(&alone[0]), rows(&alone[1]));
    Ok(())
}

fn slot(initial: f32) -> SlotSpec {
    SlotSpec {
        name: "Own_m".into(),
        initial,
        per_row: false,
    }
}

#[test]
fn slots_that_scripts_read_and_write_are_rounded_by_numbers_of_their_own() -> Result<()> {
    let pool = Pool::new(1)?;
    let table = Table::new(with_half_slots(BFLOAT16, Rounding::Stochastic))?;
    let offsets = created(&table, &pool, &[5]).0;
    let field = Field::Slot(slot(0.1));
    let read = || -> Result<Vec<f32>> {
        let mut out = vec![0.0; DIM];
        table.batch_rows(&offsets)?.read(&pool, &field, &mut out)?;
        Ok(out)
    };
    let start = stored(BFLOAT16, 0.1, None);
    let old = read()?;
    assert_eq!(old, [start; DIM], "as it will be when the rows have it");
    let new: Vec<f32> = (0..DIM).map(|at| start + at as f32 * 0.001).collect();
    for (number, are_given) in [(1, false), (1, true), (2, false)] {
        let old = read()?;
        let update = field_update(field.clone(), &old, &new);
        table.write_fields(&pool, &offsets, &[update], are_given)?;
        let expected: Vec<f32> = new
            .iter()
            .enumerate()
            .map(|(column, &value)| {
                let bits = random(table.config().seed, "Own_m", 5, column, number);
                stored(BFLOAT16, value, (!are_given).then_some(bits))
            })
            .collect();
        assert_eq!(read()?, expected, "{number} {are_given}");
    }
    // Who fills rows knows what slots start at as it was given.
    let filled = created(&table, &pool, &[6]).0;
    let update = field_update(field.clone(), &[0.1; DIM], &[0.3; DIM]);
    table.write_fields(&pool, &filled, &[update], true)?;
    let expected = stored(BFLOAT16, 0.3, None).to_bits();
    assert_eq!(rows(&table)[&6][DIM..], [expected; DIM]);
    Ok(())
}

#[test]
fn values_of_slots_that_do_not_fit_are_counted() -> Result<()> {
    let pool = Pool::new(1)?;
    for rounding in [Rounding::Stochastic, Rounding::Nearest] {
        let table = Table::new(with_half_slots(BFLOAT16, rounding))?;
        let mut grads = vec![0.0; DIM];
        grads[..3].copy_from_slice(&[f32::MAX, f32::INFINITY, f32::NAN]);
        let (step, ids) = (optimizer(number_of("momentum"), 0), [5_i64]);
        table.apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &*step)?;
        let row = &rows(&table)[&5];
        let slot: Vec<f32> = row[DIM..]
            .iter()
            .map(|&bits| f32::from_bits(bits))
            .collect();
        assert_eq!(slot[..2], [BFLOAT16.largest(), f32::INFINITY]);
        assert!(slot[2].is_nan() && slot[3..].iter().all(|&one| one == 0.0));
        // Row and slot of each.
        let stats = table.stats();
        assert_eq!((stats.saturated, stats.not_finite), (1, 4), "{rounding:?}");
    }
    Ok(())
}

#[test]
fn rows_and_slots_take_half_the_memory() -> Result<()> {
    let pool = Pool::new(1)?;
    let bytes = |dtype, slot_dtype, name: &str| -> Result<u64> {
        let mut config = config(dtype, Rounding::Stochastic);
        (config.dim, config.row_storage.slot_dtype) = (64, slot_dtype);
        let table = Table::new(config)?;
        let ids: Vec<i64> = (0..4000).collect();
        let (grads, step) = (vec![0.1; 64 * ids.len()], optimizer(number_of(name), 0));
        table.apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &*step)?;
        Ok(table.memory().rows_bytes)
    };
    let wide = RowDtype::Float32;
    assert_eq!(bytes(wide, wide, "sgd")?, 4000 * 256);
    assert_eq!(bytes(BFLOAT16, wide, "sgd")?, 4000 * 128);
    assert_eq!(
        bytes(RowDtype::Float16, wide, "rowwise_adagrad")?,
        4000 * 136
    );
    assert_eq!(bytes(wide, wide, "adagrad")?, 4000 * 512);
    let (before, now) = (
        bytes(BFLOAT16, wide, "lazy_adam")?,
        bytes(BFLOAT16, BFLOAT16, "lazy_adam")?,
    );
    // 128 + 2 * 256 bytes, and 3 * 128.
    assert!(now * 10 < before * 7, "{now} {before}");
    Ok(())
}
