//! Optimizers on rows of 2 bytes a value: what they become wherever rows are, and of those that move
//! rows without a gradient that what waits is rounded by the last step that it has missed.

use crate::half_slots::stream;
use crate::halves::{
    config, grads, ids, in_parts, random, rows, stored, train, with_half_slots, DIM, HALVES,
};
use crate::optimizers::optimizer;
use crate::singles::{Singles as _, Target};
use crate::support::{created, field_update, found_rows, is_whole, known_offsets, tier};
use crate::tiered::support::Directory;
use mx_rec_kernels::checkpoint::{load, load_chain, save, save_delta};
use mx_rec_kernels::{
    Adam, Field, FieldUpdate, Ids, Pool, Result, Rounding, RowDtype, RowOptimizer, RowStorage,
    Table, TableConfig, OPTIMIZERS,
};
use std::collections::BTreeMap;

/// Whether an optimizer moves rows without a gradient.
fn moves_all(at: usize) -> bool {
    optimizer(at, 0).decay().is_some()
}

/// The optimizers that do.
fn all_rows() -> impl Iterator<Item = usize> {
    (0..OPTIMIZERS.len()).filter(|&at| moves_all(at))
}

/// A table whose rows have 2 bytes a value, and its slots either as many or 4.
fn configs(dtype: RowDtype, rounding: Rounding) -> [TableConfig; 2] {
    [config(dtype, rounding), with_half_slots(dtype, rounding)]
}

/// A table of float32 whose rows and slots are rounded by hand.
struct Paper {
    table: Table,
    pool: Pool,
    /// What is rounded: to what, and by the random numbers of which seed.
    fields: Vec<(Field, RowDtype, u64)>,
    rounding: Rounding,
    /// Keys, and the number of the step that they had their last gradient in.
    seen: BTreeMap<i64, u64>,
}

impl Paper {
    fn new(config: &TableConfig) -> Result<Paper> {
        let (storage, seed) = (config.row_storage, config.seed);
        let mut fields = vec![(Field::Embedding, storage.dtype, seed)];
        if storage.slot_dtype != RowDtype::Float32 {
            let moments = Adam::new(0.1, 0.9, 0.9, 1.0, 0.9, 0.9)?.slots().into_iter();
            fields.extend(moments.map(|slot| {
                let seed = seed ^ stream(&slot.name);
                (Field::Slot(slot), storage.slot_dtype, seed)
            }));
        }
        Ok(Paper {
            fields,
            table: Table::new(TableConfig {
                row_storage: RowStorage::default(),
                ..config.clone()
            })?,
            pool: Pool::new(1)?,
            rounding: storage.rounding,
            seen: BTreeMap::new(),
        })
    }

    /// Each field of keys as it is in the table, and as it is after an update; those of new keys
    /// are the nearest.
    fn read(&self, keys: &[i64], offsets: &[i64], update: u64) -> Result<Vec<[Vec<f32>; 2]>> {
        let read = self.table.batch_rows(offsets)?;
        let of_field = |(field, dtype, seed): &(Field, RowDtype, u64)| -> Result<_> {
            let mut old = vec![0.0; keys.len() * DIM];
            read.read(&self.pool, field, &mut old)?;
            let mut new = old.clone();
            for (key, row) in keys.iter().zip(new.chunks_exact_mut(DIM)) {
                let is_drawn = self.seen.contains_key(key) && self.rounding == Rounding::Stochastic;
                for (column, value) in row.iter_mut().enumerate() {
                    let draw = is_drawn.then(|| random(*seed, *key, column, update));
                    *value = stored(*dtype, *value, draw);
                }
            }
            Ok([old, new])
        };
        self.fields.iter().map(of_field).collect()
    }

    fn offsets(&self, keys: &[i64]) -> Result<Vec<i64>> {
        let mut inverse = vec![0; keys.len()];
        self.table
            .id_offset(&self.pool, Ids::I64(keys), true, None, &mut inverse)
    }

    /// Rounds the rows of keys in place: new ones to the nearest, others as after step `step`.
    fn round(&mut self, keys: &[i64], step: u64) -> Result<()> {
        let offsets = self.offsets(keys)?;
        let values = self.read(keys, &offsets, step)?;
        let fields = self.fields.iter().zip(&values);
        let updates: Vec<FieldUpdate<'_>> = fields
            .map(|((field, ..), [old, new])| field_update(field.clone(), old, new))
            .collect();
        self.table
            .write_fields(&self.pool, &offsets, &updates, false)?;
        for &key in keys {
            self.seen.entry(key).or_insert(0);
        }
        Ok(())
    }

    /// Step number `step`, from 1.
    fn step(
        &mut self,
        ids: &[i64],
        grads: &[f32],
        step: u64,
        one: &dyn RowOptimizer,
    ) -> Result<()> {
        let mut keys: Vec<i64> = ids.iter().copied().filter(|&id| id != 7).collect();
        keys.sort_unstable();
        keys.dedup();
        self.round(&keys, step - 1)?;
        self.table
            .apply(&self.pool, Target::Ids(Ids::I64(ids)), grads, one)?;
        self.round(&keys, step)
    }

    /// What the fields of these keys are after step `step`.
    fn now(&self, keys: &[i64], step: u64) -> Result<Vec<Vec<f32>>> {
        let values = self.read(keys, &self.offsets(keys)?, step)?;
        Ok(values.into_iter().map(|[_, now]| now).collect())
    }
}

#[test]
fn rows_that_wait_are_read_and_updated_rounded_by_the_last_step() -> Result<()> {
    let pool = Pool::new(2)?;
    for dtype in HALVES {
        let configs = [Rounding::Stochastic, Rounding::Nearest]
            .into_iter()
            .flat_map(|rounding| configs(dtype, rounding));
        for config in configs {
            for at in all_rows().map(Some).chain([None]) {
                let mut paper = Paper::new(&config)?;
                let table = Table::new(config.clone())?;
                let (mut one, mut other) = (1.0, 1.0);
                for t in 0..30 {
                    // Few of many, so that most wait; some steps have none.
                    let count = if t % 7 == 6 { 0 } else { 12 };
                    let (ids, grads) = (ids(t * 5, count), grads(t, count));
                    (one, other) = (one * 0.9, other * 0.999);
                    let step = match at {
                        Some(at) => optimizer(at, t),
                        None => Box::new(Adam::new(0.02, 0.9, 0.999, 1e-8, one, other)?),
                    };
                    let number = t as u64 + 1;
                    paper.step(&ids, &grads, number, &*step)?;
                    table.apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &*step)?;
                    let keys: Vec<i64> = paper.seen.keys().copied().collect();
                    let expected = paper.now(&keys, number)?;
                    let what = format!("{at:?} {:?} step {t}", config.row_storage);
                    let mut found = found_rows(&table, &pool, &keys);
                    assert!(found == expected[0], "{what}");
                    let read = table.batch_rows(&known_offsets(&table, &pool, &keys).0)?;
                    for ((field, ..), expected) in paper.fields.iter().zip(&expected) {
                        read.read(&pool, field, &mut found)?;
                        assert!(found == *expected, "{what} {field:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn reads_change_nothing_and_a_save_stores_what_reads_show() -> Result<()> {
    let pool = Pool::new(2)?;
    let dtypes = HALVES.into_iter();
    for config in dtypes.flat_map(|dtype| configs(dtype, Rounding::Stochastic)) {
        for at in all_rows() {
            let tables = [0, 1].map(|_| Table::new(config.clone()));
            let [quiet, read] = tables.map(|table| table.unwrap());
            for t in 0..20 {
                for table in [&quiet, &read] {
                    train(table, &pool, at, t..t + 1, 30)?;
                }
                let keys: Vec<i64> = ids(t / 2, 30);
                found_rows(&read, &pool, &keys);
            }
            let keys: Vec<i64> = rows_of(&read, &pool)?;
            let shown = found_rows(&read, &pool, &keys);
            let (one, other) = (rows(&quiet), rows(&read));
            assert_eq!(one, other);
            for (key, shown) in keys.iter().zip(shown.chunks_exact(DIM)) {
                let bits: Vec<u32> = shown.iter().map(|value| value.to_bits()).collect();
                assert_eq!(other[key][..DIM], bits);
            }
        }
    }
    Ok(())
}

/// The keys that training gave rows, without a look at all rows, for which these would catch up.
fn rows_of(table: &Table, pool: &Pool) -> Result<Vec<i64>> {
    let mut keys: Vec<i64> = (0..20).flat_map(|t| ids(t, 30)).collect();
    keys.sort_unstable();
    keys.dedup();
    let (offsets, _inverse) = known_offsets(table, pool, &keys);
    assert!(offsets.iter().all(|&offset| offset > 0));
    Ok(keys)
}

#[test]
fn results_depend_on_no_threads_disk_restores_deltas_or_parts_and_on_saves_if_all_rows_move(
) -> Result<()> {
    let dir = Directory::new("half_adam_results");
    let (one, three) = (Pool::new(1)?, Pool::new(3)?);
    for (at, optimizer) in OPTIMIZERS.iter().enumerate() {
        let more = usize::from(moves_all(at));
        let dtypes = HALVES.into_iter();
        let configs = dtypes.flat_map(|dtype| configs(dtype, Rounding::Stochastic));
        let by_turns = |turn: usize| is_whole() || turn == at % (3 + more);
        for (_, config) in configs
            .enumerate()
            .take(3 + more)
            .filter(|&(turn, _)| by_turns(turn))
        {
            let name = optimizer.name;
            // All rows catch up where others are saved.
            let run = |saves: &[usize], table: &Table, pool: &Pool| -> Result<()> {
                for t in 0..12 {
                    if saves.contains(&t) {
                        table.export()?;
                    }
                    train(table, pool, at, t..t + 1, 300)?;
                }
                Ok(())
            };
            let results = |saves: &[usize]| -> Result<BTreeMap<i64, Vec<u32>>> {
                let table = Table::new(config.clone())?;
                run(saves, &table, &one)?;
                Ok(rows(&table))
            };
            let expected = results(&[])?;
            let (once, twice) = match moves_all(at) {
                true => (results(&[5])?, results(&[5, 8])?),
                false => (expected.clone(), expected.clone()),
            };

            let threads = Table::new(config.clone())?;
            // Other row numbers.
            created(&threads, &one, &ids(9, 300));
            run(&[], &threads, &three)?;
            let others = rows(&threads);
            let same = |(key, row): (&i64, &Vec<u32>)| others[key] == *row;
            assert!(expected.iter().all(same), "{name}");

            let tier = tier(320, vec![dir.0.clone()]);
            let both = [(&[][..], &expected), (&[5, 8], &twice)];
            for (saves, wanted) in both.into_iter().take(1 + more) {
                let tiered = Table::tiered(config.clone(), &tier)?;
                run(saves, &tiered, &three)?;
                assert!(tiered.stats().tier.unwrap().rows_on_disk > 0);
                assert_eq!(rows(&tiered), *wanted, "{name} on disk");
            }

            let first = Table::new(config.clone())?;
            first.track_changes();
            train(&first, &one, at, 0..5, 300)?;
            let (base, delta) = (dir.0.join("base"), dir.0.join("delta"));
            let saved = save(&first, &three, &base)?;
            // Few rows, so that others miss steps that the delta tells of.
            train(&first, &one, at, 5..8, 300)?;
            save_delta(&first, &three, &delta, saved.epoch, 1)?;
            let resumed = Table::new(config.clone())?;
            load(&resumed, &three, &base)?;
            train(&resumed, &three, at, 5..12, 300)?;
            assert_eq!(rows(&resumed), once, "{name} resumed");
            let both = [
                Table::tiered(config.clone(), &tier)?,
                Table::new(config.clone())?,
            ];
            for chained in both.into_iter().take(1 + more) {
                load_chain(&chained, &three, &[&base, &delta], &|_| true)?;
                train(&chained, &one, at, 8..12, 300)?;
                assert_eq!(rows(&chained), twice, "{name} from a delta");
            }

            let joined = in_parts(&config, at, &base, 5..12)?;
            assert_eq!(joined, once, "{name} in parts");
        }
    }
    Ok(())
}

/// Deltas of few rows, one after the other with a span each, and betas that change: spans that end
/// in memory, on disk and in files are rounded by the same numbers.
#[test]
fn spans_are_rounded_alike_in_memory_on_disk_and_from_deltas() -> Result<()> {
    let dir = Directory::new("half_adam_spans");
    let pool = Pool::new(2)?;
    let dtypes = HALVES.into_iter();
    let configs = dtypes.flat_map(|dtype| configs(dtype, Rounding::Stochastic));
    for (number, config) in configs.enumerate() {
        let tier = tier(40, vec![dir.0.clone()]);
        let memory = Table::new(config.clone())?;
        let disk = Table::tiered(config.clone(), &tier)?;
        memory.track_changes();
        let step = |table: &Table, t: usize| -> Result<()> {
            // Other betas begin a span.
            let beta = if t % 9 < 5 { 0.9 } else { 0.8 };
            let power = |beta: f32| beta.powi(t as i32 + 1);
            let adam = Adam::new(0.05, beta, 0.999, 1e-8, power(beta), power(0.999))?;
            let ids: Vec<i64> = match t {
                0..6 => (0..20).map(|at| 20 * t as i64 + at).collect(),
                _ => (0..6).map(|at| 3 * t as i64 + at).collect(),
            };
            let grads = grads(t, ids.len());
            table.apply(&pool, Target::Ids(Ids::I64(&ids)), &grads, &adam)?;
            Ok(())
        };
        let mut chain = Vec::new();
        let mut epoch = 0;
        for t in 0..36 {
            step(&memory, t)?;
            step(&disk, t)?;
            if t % 6 == 5 {
                let path = dir.0.join(format!("{number}-{t}"));
                let saved = match chain.is_empty() {
                    true => save(&memory, &pool, &path)?,
                    false => save_delta(&memory, &pool, &path, epoch, 1)?,
                };
                epoch = saved.epoch;
                chain.push(path);
                disk.export()?;
            }
        }
        assert!(disk.stats().tier.unwrap().rows_on_disk > 0);
        let expected = rows(&memory);
        assert!(expected.len() > 100);
        assert_eq!(rows(&disk), expected);
        let restored = Table::new(config.clone())?;
        let links: Vec<_> = chain.iter().map(|path| path.as_path()).collect();
        load_chain(&restored, &pool, &links, &|_| true)?;
        assert_eq!(rows(&restored), expected);
        for t in 36..40 {
            step(&memory, t)?;
            step(&restored, t)?;
        }
        assert_eq!(rows(&restored), rows(&memory));
    }
    Ok(())
}
