//! A whole save and the deltas after it are the table, whatever happened between them.

use super::temp::{content, load_all, pool, Temp};
use super::{load, load_chain, save, save_delta, StagedLoad};
use crate::singles::{Singles as _, Target};
use crate::whole::is_whole;
use crate::{Adam, Ids, Initializer, Kind, LazyAdam, Sgd, Table, TableConfig};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIM: usize = 3;

fn table() -> Arc<Table> {
    let table = Table::new(TableConfig {
        seed: 3,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        ..TableConfig::new("t", DIM, 400)
    })
    .unwrap();
    Arc::new(table)
}

fn tracked() -> Arc<Table> {
    let table = table();
    table.track_changes();
    table
}

fn loaded(dirs: &[PathBuf]) -> Arc<Table> {
    let table = table();
    load_all(&table, dirs);
    table
}

#[derive(Clone, Debug)]
enum Verb {
    Update(Vec<i64>),
    /// Steps of Adam, of which the last has these keys, with one of several betas.
    Adam(Vec<i64>, usize),
    /// Rows catch up, and no save ends.
    Export,
    Create(Vec<i64>),
    Ahead(Vec<i64>, bool),
    Assign(Vec<i64>),
    Remove(Vec<i64>),
    Delta,
    FailedDelta,
    Restart,
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let keys = || proptest::collection::vec(-20..40_i64, 1..12);
    let verb = prop_oneof![
        4 => keys().prop_map(Verb::Update),
        4 => (keys(), 0..6_usize).prop_map(|(keys, kind)| Verb::Adam(keys, kind)),
        1 => Just(Verb::Export),
        2 => keys().prop_map(Verb::Create),
        2 => (keys(), any::<bool>()).prop_map(|(keys, claimed)| Verb::Ahead(keys, claimed)),
        1 => keys().prop_map(Verb::Assign),
        2 => keys().prop_map(Verb::Remove),
        3 => Just(Verb::Delta),
        1 => Just(Verb::FailedDelta),
        1 => Just(Verb::Restart),
    ];
    proptest::collection::vec(verb, 1..40)
}

fn update(table: &Table, keys: &[i64], step: usize) {
    let grads: Vec<f32> = (0..keys.len() * DIM)
        .map(|at| (at + step) as f32 * 0.1)
        .collect();
    let target = Target::Ids(Ids::I64(keys));
    // The first steps have no slots: they appear in the middle of a history.
    if step < 8 {
        let sgd = Sgd::new(0.1).unwrap();
        table.apply(pool(), target, &grads, &sgd).unwrap();
    } else {
        let adam = LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap();
        table.apply(pool(), target, &grads, &adam).unwrap();
    }
}

fn adam(table: &Table, keys: &[i64], step: usize, kind: usize) {
    let (beta1, beta2) = [(0.9, 0.999), (0.9, 0.99), (0.5, 0.9)][kind / 2];
    let grads: Vec<f32> = (0..keys.len() * DIM)
        .map(|at| (at + step) as f32 * 0.1)
        .collect();
    let lr = 0.01 * (1 + step % 3) as f32;
    let adam = Adam::new(lr, beta1, beta2, 1e-8, 0.3, 0.4).unwrap();
    for _ in 0..kind {
        let none = Target::Ids(Ids::I64(&[]));
        table.apply(pool(), none, &[], &adam).unwrap();
    }
    let target = Target::Ids(Ids::I64(keys));
    table.apply(pool(), target, &grads, &adam).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_whole() { 120 } else { 30 }))]

    #[test]
    fn a_base_and_its_deltas_are_the_table(verbs in verbs()) {
        let temp = Temp::new();
        let mut table = tracked();
        let mut chain = vec![temp.at("base")];
        let mut since = save(&table, pool(), &chain[0]).unwrap().epoch;
        for (step, verb) in verbs.iter().enumerate() {
            match verb {
                Verb::Update(keys) => update(&table, keys, step),
                Verb::Adam(keys, kind) => adam(&table, keys, step, *kind),
                Verb::Export => {
                    content(&table);
                }
                Verb::Create(keys) => {
                    let mut inverse = vec![0; keys.len()];
                    table.id_offset(pool(), Ids::I64(keys), true, None, &mut inverse).unwrap();
                }
                Verb::Ahead(keys, claimed) => {
                    // Prepared before a save, claimed behind it.
                    let mut inverse = vec![0; keys.len()];
                    let lease = table.prepare(pool(), Ids::I64(keys), None, &mut inverse);
                    let dir = temp.at(step);
                    since = save_delta(&table, pool(), &dir, since, 0).unwrap().epoch;
                    chain.push(dir);
                    if *claimed {
                        let offsets = lease.offsets();
                        table.claim(pool(), Ids::I64(keys), offsets, None, &inverse).unwrap();
                    }
                }
                Verb::Assign(keys) => {
                    let rows = vec![step as f32; keys.len() * DIM];
                    table.assign(pool(), Ids::I64(keys), &rows).unwrap();
                }
                Verb::Remove(keys) => {
                    table.remove(Ids::I64(keys)).unwrap();
                }
                Verb::Delta => {
                    let dir = temp.at(step);
                    let saved = save_delta(&table, pool(), &dir, since, 0).unwrap();
                    prop_assert!(saved.rows <= table.len() && saved.epoch > since);
                    since = saved.epoch;
                    chain.push(dir);
                }
                Verb::FailedDelta => {
                    // Its destination is a file.
                    fs::write(temp.at("file"), "").unwrap();
                    save_delta(&table, pool(), &temp.at("file/t"), since, 0).unwrap_err();
                }
                Verb::Restart => {
                    let dir = temp.at(step);
                    save_delta(&table, pool(), &dir, since, 0).unwrap();
                    chain.push(dir);
                    let before = content(&table);
                    table = tracked();
                    since = load_all(&table, &chain).epoch;
                    prop_assert_eq!(content(&table), before);
                }
            }
        }
        let dir = temp.at("last");
        save_delta(&table, pool(), &dir, since, 0).unwrap();
        chain.push(dir);
        let whole = temp.at("whole");
        save(&table, pool(), &whole).unwrap();
        let expected = content(&table);
        prop_assert_eq!(&content(&loaded(&chain)), &expected);
        prop_assert_eq!(&content(&loaded(&[whole])), &expected);
    }
}

#[test]
fn a_delta_holds_what_changed_and_no_more() {
    let temp = Temp::new();
    let table = tracked();
    update(&table, &[1, 2, 3, 4], 10);
    let base = save(&table, pool(), &temp.at("base")).unwrap();
    update(&table, &[2], 11);
    table.remove(Ids::I64(&[4, 77])).unwrap();
    let delta = save_delta(&table, pool(), &temp.at("delta"), base.epoch, 0).unwrap();
    assert_eq!((delta.rows, delta.removed), (1, 1));
    let empty = save_delta(&table, pool(), &temp.at("empty"), delta.epoch, 0).unwrap();
    assert_eq!((empty.rows, empty.removed), (0, 0));
    let found = loaded(&[temp.at("base"), temp.at("delta"), temp.at("empty")]);
    assert_eq!(content(&found), content(&table));
}

#[test]
fn rows_that_changed_rarely_wait_for_a_later_delta() {
    let temp = Temp::new();
    let table = tracked();
    update(&table, &[1, 2], 10);
    let base = save(&table, pool(), &temp.at("base")).unwrap();
    update(&table, &[1], 11);
    update(&table, &[2], 12);
    update(&table, &[2], 13);
    let one = save_delta(&table, pool(), &temp.at("one"), base.epoch, 2).unwrap();
    assert_eq!(one.rows, 1);
    update(&table, &[1], 14);
    let two = save_delta(&table, pool(), &temp.at("two"), one.epoch, 2).unwrap();
    assert_eq!(two.rows, 1);
    let found = loaded(&[temp.at("base"), temp.at("one"), temp.at("two")]);
    assert_eq!(content(&found), content(&table));
}

#[test]
fn what_is_no_chain_is_refused_by_name_and_changes_nothing() {
    let temp = Temp::new();
    let table = tracked();
    update(&table, &[1, 2], 10);
    let base = save(&table, pool(), &temp.at("base")).unwrap();
    save_delta(&table, pool(), &temp.at("delta"), base.epoch, 0).unwrap();
    let (base_dir, delta_dir) = (temp.at("base"), temp.at("delta"));
    for (dirs, named) in [
        (vec![&delta_dir], "delta"),
        (vec![&base_dir, &base_dir], "base"),
    ] {
        let dirs: Vec<&Path> = dirs.into_iter().map(PathBuf::as_path).collect();
        let other = self::table();
        update(&other, &[9], 10);
        let before = content(&other);
        let error = load_chain(&other, pool(), &dirs, &|_| true).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!(content(&other), before);
    }
    assert_eq!(
        load(&self::table(), pool(), &delta_dir).unwrap_err().kind(),
        Kind::InvalidArgument
    );
    fs::remove_file(delta_dir.join("removed/slice.data")).unwrap();
    let dirs = [base_dir.as_path(), delta_dir.as_path()];
    let error = load_chain(&self::table(), pool(), &dirs, &|_| true).unwrap_err();
    assert!(error.to_string().contains("removed/slice.data"), "{error}");
}

#[test]
fn no_delta_is_made_without_tracking_or_across_a_replacement() {
    let temp = Temp::new();
    let plain = table();
    assert_eq!(save(&plain, pool(), &temp.at("plain")).unwrap().epoch, 0);
    let refused = |table: &Table, since| {
        let error = save_delta(table, pool(), &temp.at("delta"), since, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(!temp.at("delta").exists());
    };
    refused(&plain, 0);
    let table = tracked();
    update(&table, &[1], 10);
    let base = save(&table, pool(), &temp.at("base")).unwrap();
    refused(&table, base.epoch + 1);
    table.clear();
    refused(&table, base.epoch);
    load(&table, pool(), &temp.at("base")).unwrap();
    refused(&table, base.epoch);
}

#[test]
fn a_staged_load_changes_nothing_until_it_is_published() {
    let temp = Temp::new();
    let (source, other, target) = (table(), table(), tracked());
    update(&source, &[1, 2, 3], 1);
    save(&source, pool(), &temp.0.join("source")).unwrap();
    update(&other, &[4, 5], 2);
    let dirs = [temp.0.join("source")];
    let dirs: Vec<&Path> = dirs.iter().map(PathBuf::as_path).collect();
    update(&target, &[7, 8], 3);
    let stage = || StagedLoad::new(Arc::clone(&target), pool(), &dirs, &|_| true).unwrap();
    let before = content(&target);
    drop(stage());
    let staged = stage();
    assert_eq!((staged.rows(), staged.table().len()), (3, 2));
    assert_eq!(content(&target), before);
    // The table may be used in between; the files may change and go.
    update(&target, &[9], 4);
    fs::remove_dir_all(&temp.0).unwrap();
    let loaded = StagedLoad::publish_all(vec![staged]).unwrap()[0];
    assert_eq!(loaded.rows, 3);
    assert!(loaded.epoch > 0, "a delta can follow");
    assert_eq!(content(&target), content(&source));
    update(&target, &[1, 9], 5);
    assert_eq!(target.len(), 4);
}
