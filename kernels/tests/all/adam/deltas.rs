//! A delta of a table with Adam holds the rows of its batches and the steps: base and deltas have
//! the bits of the table that went on, whoever reads them.

use super::{apply, both, content, table, train, Draw, Numbers, DIM, USUAL};
use crate::directory::Directory;
use crate::singles::Singles as _;
use crate::support::{expect_error, found_rows};
use mx_rec_kernels::{checkpoint, Ids, Kind, LazyAdam, Partition, Pool, Sgd, Table, TableConfig};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STEPS: &str = "missed_steps";

/// A table that is saved as a base and as deltas.
struct Chain {
    pool: Pool,
    temp: Directory,
    live: Arc<Table>,
    dirs: Vec<PathBuf>,
    since: u32,
}

impl Chain {
    /// 5,000 keys, of which most have moments, saved whole.
    fn new() -> Chain {
        let live = table();
        train(&live, &Pool::new(2).unwrap(), 1..10);
        Chain::of(live)
    }

    fn of(live: Arc<Table>) -> Chain {
        live.track_changes();
        let (pool, temp) = (Pool::new(2).unwrap(), Directory::new("deltas"));
        let dirs = vec![temp.0.join("0")];
        let since = checkpoint::save(&live, &pool, &dirs[0]).unwrap().epoch;
        Chain {
            pool,
            temp,
            live,
            dirs,
            since,
        }
    }

    fn step(&self, keys: &[i64], numbers: Numbers, step: i32) {
        let grads = Draw(step as u64).grads(keys);
        apply(&self.live, &self.pool, keys, &grads, &numbers.adam(step));
    }

    /// Saves a delta; returns how many rows it has.
    fn delta(&mut self) -> u64 {
        self.delta_of(0)
    }

    fn delta_of(&mut self, least: u32) -> u64 {
        let dir = self.temp.0.join(self.dirs.len().to_string());
        let saved = checkpoint::save_delta(&self.live, &self.pool, &dir, self.since, least);
        let saved = saved.unwrap();
        self.since = saved.epoch;
        self.dirs.push(dir);
        saved.rows
    }

    fn steps_file(&self) -> PathBuf {
        self.dirs[self.dirs.len() - 1].join(STEPS)
    }

    fn load_into(
        &self,
        table: &Table,
        wanted: &dyn Fn(&str) -> bool,
    ) -> mx_rec_kernels::Result<()> {
        let dirs: Vec<&Path> = self.dirs.iter().map(|dir| &**dir).collect();
        checkpoint::load_chain(table, &self.pool, &dirs, wanted).map(drop)
    }

    /// What a restore finds.
    fn restored(&self) -> BTreeMap<i64, Vec<u32>> {
        let table = table();
        self.load_into(&table, &|_| true).unwrap();
        content(&table)
    }
}

#[test]
fn a_delta_holds_the_rows_of_its_batches_and_a_restore_has_the_bits_of_the_table() {
    let mut chain = Chain::new();
    for at in 0..4 {
        // Most rows move, and have no gradient since the save before.
        chain.step(&[1, 2, 4000 + i64::from(at)], USUAL, 10 + 2 * at);
        chain.step(&[], USUAL, 11 + 2 * at);
        assert_eq!(chain.delta(), 3);
        assert!(fs::metadata(chain.steps_file()).unwrap().len() < 100);
        assert!(chain.restored() == content(&chain.live));
    }
    // No step since: no file.
    assert_eq!(chain.delta(), 0);
    assert!(!chain.steps_file().exists());
    assert!(chain.restored() == content(&chain.live));
    let dirs: Vec<&Path> = chain.dirs.iter().map(|dir| &**dir).collect();
    let mut in_parts = BTreeMap::new();
    for part in 0..3 {
        let (table, part) = (table(), Partition::new(part, 3).unwrap());
        checkpoint::load_part(&table, &chain.pool, &dirs, part).unwrap();
        in_parts.extend(content(&table));
    }
    assert!(in_parts == content(&chain.live));
    // A whole save has none either, and goes on as the chain does.
    let whole = chain.temp.0.join("whole");
    checkpoint::save(&chain.live, &chain.pool, &whole).unwrap();
    assert!(!whole.join(STEPS).exists());
    let (loaded, restored) = (table(), table());
    checkpoint::load(&loaded, &chain.pool, &whole).unwrap();
    chain.load_into(&restored, &|_| true).unwrap();
    for table in [&chain.live, &loaded, &restored] {
        train(table, &chain.pool, 18..30);
    }
    assert!(content(&loaded) == content(&chain.live));
    assert!(content(&restored) == content(&chain.live));
}

#[test]
fn many_steps_with_several_betas_are_made_up_for_span_by_span() {
    let with = |beta1, beta2| Numbers {
        beta1,
        beta2,
        ..USUAL
    };
    let mut chain = Chain::new();
    // More steps than one span has; betas that are replayed; betas that change with each step.
    for step in 10..5010 {
        chain.step(&[step.into()][..usize::from(step % 1000 == 0)], USUAL, step);
    }
    for step in 0..300 {
        chain.step(&[], with(0.9, 0.99), 5010 + step);
    }
    for step in 0..40 {
        chain.step(&[], with(0.5 + 0.01 * step as f32, 0.999), 5310 + step);
    }
    assert!(chain.delta() <= 5);
    // A row has moved no more after some hundred steps: the others need not be told.
    assert!(fs::metadata(chain.steps_file()).unwrap().len() < 6000);
    chain.step(&[3], with(0.999, 0.9999), 5400);
    chain.delta();
    assert!(chain.restored() == content(&chain.live));
}

#[test]
fn a_table_that_was_restored_goes_on_with_deltas() {
    let mut chain = Chain::new();
    chain.step(&[1, 2], USUAL, 10);
    chain.delta();
    let live = table();
    live.track_changes();
    // Steps of its own, which the restore takes away.
    train(&live, &chain.pool, 1..5);
    let dirs: Vec<&Path> = chain.dirs.iter().map(|dir| &**dir).collect();
    let loaded = checkpoint::load_chain(&live, &chain.pool, &dirs, &|_| true);
    chain.since = loaded.unwrap().epoch;
    chain.live = live;
    for step in 11..14 {
        chain.step(&[5], USUAL, step);
    }
    assert_eq!(chain.delta(), 1);
    assert!(chain.restored() == content(&chain.live));
}

#[test]
fn saves_that_fail_exports_and_other_optimizers_between_lose_no_step() {
    let mut chain = Chain::new();
    chain.step(&[1], USUAL, 10);
    content(&chain.live);
    chain.step(&[2], USUAL, 11);
    fs::write(chain.temp.0.join("file"), "").unwrap();
    let failed = chain.temp.0.join("file/t");
    checkpoint::save_delta(&chain.live, &chain.pool, &failed, chain.since, 0).unwrap_err();
    chain.step(&[3], USUAL, 12);
    // One whose variables were not written, so that nobody takes its epoch.
    let undone = chain.temp.0.join("undone");
    checkpoint::save_delta(&chain.live, &chain.pool, &undone, chain.since, 0).unwrap();
    let lazy = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.5, 0.9).unwrap();
    let sgd = Sgd::new(0.1).unwrap();
    apply(&chain.live, &chain.pool, &[4], &[0.5; DIM], &lazy);
    apply(&chain.live, &chain.pool, &[5], &[0.5; DIM], &sgd);
    let ids = Ids::I64(&[6]);
    chain.live.assign(&chain.pool, ids, &[0.5; DIM]).unwrap();
    chain.step(&[], USUAL, 13);
    chain.live.remove(Ids::I64(&[7, 8])).unwrap();
    assert_eq!(chain.delta(), 6);
    assert!(chain.restored() == content(&chain.live));
}

#[test]
fn a_table_that_gets_its_moments_between_and_one_without_rows_are_restored() {
    let mut chain = Chain::of(both(&Pool::new(2).unwrap(), 200).0);
    assert_eq!(chain.delta(), 0);
    chain.step(&[1, 2], USUAL, 1);
    chain.step(&[3], USUAL, 2);
    assert_eq!(chain.delta(), 200);
    chain.step(&[4], USUAL, 3);
    assert_eq!(chain.delta(), 1);
    assert!(chain.restored() == content(&chain.live));
    let all: Vec<i64> = (0..200).collect();
    chain.live.remove(Ids::I64(&all)).unwrap();
    chain.step(&[], USUAL, 4);
    assert_eq!(chain.delta(), 0);
    assert!(chain.restored().is_empty());
    chain.step(&[9], USUAL, 5);
    assert_eq!(chain.delta(), 1);
    assert!(chain.restored() == content(&chain.live));
    let mut empty = Chain::of(table());
    empty.step(&[], USUAL, 1);
    assert_eq!(empty.delta(), 0);
    assert!(empty.restored().is_empty());
}

#[test]
fn rows_that_few_gradients_reached_move_by_the_steps_until_they_are_written() {
    let mut chain = Chain::new();
    let without = |mut rows: BTreeMap<i64, Vec<u32>>, keys: &[i64]| {
        keys.iter().for_each(|key| drop(rows.remove(key)));
        rows
    };
    chain.step(&[1, 2], USUAL, 10);
    chain.step(&[2], USUAL, 11);
    assert_eq!(chain.delta_of(2), 1);
    let (found, live) = (chain.restored(), content(&chain.live));
    assert!(without(found.clone(), &[1]) == without(live.clone(), &[1]));
    assert_ne!(found[&1], live[&1]);
    chain.step(&[1], USUAL, 12);
    assert_eq!(chain.delta_of(2), 1);
    assert!(chain.restored() == content(&chain.live));
}

#[test]
fn whoever_wants_no_moments_gets_the_embeddings_that_have_caught_up() {
    let mut chain = Chain::new();
    chain.step(&[1, 2], USUAL, 10);
    chain.delta();
    let expected = content(&chain.live);
    for wanted in ["", "LazyAdam_momentum", "LazyAdam_velocity"] {
        let table = table();
        chain.load_into(&table, &|name| name == wanted).unwrap();
        let slots = table.slots();
        assert_eq!(slots.len(), usize::from(!wanted.is_empty()));
        for (key, row) in content(&table) {
            assert_eq!(row[..DIM], expected[&key][..DIM], "{key}");
            let at = if wanted == "LazyAdam_velocity" { 2 } else { 1 };
            if let Some(slot) = row.get(DIM..2 * DIM) {
                assert_eq!(slot, &expected[&key][at * DIM..(at + 1) * DIM], "{key}");
            }
        }
    }
    // Into a table of another optimizer, and of the other Adam.
    let other = table();
    apply(&other, &chain.pool, &[1], &[0.5; DIM], &USUAL.lazy(1));
    chain.load_into(&other, &|_| true).unwrap();
    assert!(content(&other) == expected);
}

#[test]
fn a_key_that_was_frozen_when_the_steps_ran_has_not_moved() {
    let mut chain = Chain::new();
    let config = TableConfig {
        frozen_keys: vec![4],
        ..chain.live.config().clone()
    };
    let frozen = Arc::new(Table::new(config).unwrap());
    frozen.track_changes();
    let loaded = checkpoint::load_chain(&frozen, &chain.pool, &[&chain.dirs[0]], &|_| true);
    (chain.since, chain.live) = (loaded.unwrap().epoch, frozen);
    for step in 10..14 {
        chain.step(&[6], USUAL, step);
    }
    let before = content(&chain.live);
    chain.delta();
    assert!(chain.restored() == before);
}

#[test]
fn each_part_of_a_table_has_its_own_steps_and_any_parts_read_them() {
    let pool = Pool::new(2).unwrap();
    let temp = Directory::new("deltas");
    let parts = |n: u32| (0..n).map(move |part| Partition::new(part, n).unwrap());
    let live: Vec<Arc<Table>> = parts(3).map(|_| table()).collect();
    let all: Vec<i64> = (0..600).collect();
    let step = |of: usize, keys: &[i64], rate: f32, step: i32| {
        let part = Partition::new(of as u32, 3).unwrap();
        let keys: Vec<i64> = keys
            .iter()
            .copied()
            .filter(|&key| part.holds(key))
            .collect();
        let numbers = Numbers { lr: rate, ..USUAL };
        let grads = Draw(7).grads(&keys);
        apply(&live[of], &pool, &keys, &grads, &numbers.adam(step));
    };
    let mut since = Vec::new();
    for (at, part) in parts(3).enumerate() {
        live[at].track_changes();
        step(at, &all, 0.001, 1);
        let dir = temp.0.join(format!("base/users{part}"));
        since.push(checkpoint::save(&live[at], &pool, &dir).unwrap().epoch);
    }
    for (at, part) in parts(3).enumerate() {
        // Pushes of several workers reach parts in different orders.
        let rates = [0.01, 0.03, 0.02];
        for turn in 0..3 {
            step(at, &[5, 6], rates[(turn + at) % 3], 2 + turn as i32);
        }
        let dir = temp.0.join(format!("delta/users{part}"));
        let saved = checkpoint::save_delta(&live[at], &pool, &dir, since[at], 0).unwrap();
        assert!(saved.rows <= 2);
    }
    let mut expected = BTreeMap::new();
    live.iter()
        .for_each(|table| expected.extend(content(table)));
    assert_eq!(expected.len(), 600);
    let dirs = [temp.0.join("base/users"), temp.0.join("delta/users")];
    let dirs = [dirs[0].as_path(), dirs[1].as_path()];
    let whole = table();
    checkpoint::load_chain(&whole, &pool, &dirs, &|_| true).unwrap();
    assert!(content(&whole) == expected);
    for n in [1, 2, 3, 5] {
        let mut found = BTreeMap::new();
        for part in parts(n) {
            let table = table();
            checkpoint::load_part(&table, &pool, &dirs, part).unwrap();
            found.extend(content(&table));
        }
        assert!(found == expected, "{n}");
    }
    // A delta in other parts than what it follows.
    let since: Vec<u32> = parts(2)
        .enumerate()
        .map(|(at, part)| {
            live[at].track_changes();
            let loaded = checkpoint::load_part(&live[at], &pool, &dirs, part);
            loaded.unwrap().epoch
        })
        .collect();
    let mut expected = BTreeMap::new();
    for (at, part) in parts(2).enumerate() {
        let numbers = Numbers {
            lr: 0.01 * (1 + at) as f32,
            ..USUAL
        };
        apply(&live[at], &pool, &[], &[], &numbers.adam(5));
        let dir = temp.0.join(format!("other/users{part}"));
        checkpoint::save_delta(&live[at], &pool, &dir, since[at], 0).unwrap();
        expected.extend(content(&live[at]));
    }
    let other = temp.0.join("other/users");
    let dirs = [dirs[0], dirs[1], other.as_path()];
    let whole = table();
    checkpoint::load_chain(&whole, &pool, &dirs, &|_| true).unwrap();
    assert!(content(&whole) == expected);
}

#[test]
fn steps_that_are_missing_or_damaged_are_refused_by_name_and_change_nothing() {
    let mut chain = Chain::new();
    chain.step(&[1, 2], USUAL, 10);
    chain.delta();
    let path = chain.steps_file();
    let sound = fs::read(&path).unwrap();
    let target = table();
    apply(&target, &chain.pool, &[9], &[0.5; DIM], &USUAL.adam(1));
    let before = content(&target);
    let refused = |kind| {
        let error = chain.load_into(&target, &|_| true).unwrap_err();
        expect_error(&error, kind, &[STEPS]);
        assert!(content(&target) == before);
    };
    fs::remove_file(&path).unwrap();
    refused(Kind::NotFound);
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        refused(Kind::DataLoss);
    }
    fs::write(&path, &sound[..sound.len() - 4]).unwrap();
    refused(Kind::DataLoss);
    fs::write(&path, &sound).unwrap();
    chain.load_into(&target, &|_| true).unwrap();
    assert!(content(&target) == content(&chain.live));
    let _row = found_rows(&target, &chain.pool, &[9]);
}
