//! A history is saved and restored with its table: training goes on as if it had not stopped.

use super::temp::{content, load_all, pool, Temp};
use super::{load, load_chain, save, save_delta};
use crate::history::{Seen, Settings};
use crate::singles::{Singles as _, Target};
use crate::whole::is_whole;
use crate::{Ids, Initializer, Kind, Pool, Result, Sgd, Table, TableConfig, Thresholds};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

fn table() -> Arc<Table> {
    let table = Table::new(TableConfig {
        seed: 3,
        initializer: Initializer::RandomUniform { min: 1.0, max: 2.0 },
        ..TableConfig::new("t", 2, 4 << 20)
    });
    Arc::new(table.unwrap())
}

fn limits(access: u32, eviction: u32) -> Thresholds {
    Thresholds {
        access,
        eviction: Some(eviction),
    }
}

/// A training step: observed, admitted, a gradient for every id with a row. Says which ids have
/// one.
fn step(table: &Arc<Table>, ids: &[i64], time: i64, limits: Thresholds) -> Vec<bool> {
    let pool = pool();
    let mut places = vec![0; ids.len()];
    let observed = table.observe(
        None,
        pool,
        Ids::I64(ids),
        1,
        Some(time),
        limits,
        &mut places,
    );
    let keys = observed.unwrap();
    let mut inverse = vec![0; ids.len()];
    let lease = table.admit(pool, &keys, None, &places, &mut inverse);
    let lease = lease.unwrap();
    let admitted: Vec<bool> = inverse.iter().map(|&at| at >= 0).collect();
    let with_rows = ids.iter().zip(&admitted).filter(|(_, &admitted)| admitted);
    let sums: Vec<i64> = with_rows.map(|(&id, _)| id).collect();
    let target = Target::Ids(Ids::I64(&sums));
    let sgd = Sgd::new(0.5).unwrap();
    table
        .apply(pool, target, &vec![1.0; sums.len() * 2], &sgd)
        .unwrap();
    drop(lease);
    admitted
}

/// What is known of each key.
fn known(table: &Table) -> BTreeMap<i64, (u32, u32)> {
    let mut known = BTreeMap::new();
    let put = &mut |some: &[(i64, Seen)]| {
        for &(key, seen) in some {
            let before = known.insert(key, (seen.count, seen.last));
            assert_eq!(before, None, "{key} comes twice");
        }
        Ok(())
    };
    table.snapshot().each_known(pool(), put).unwrap();
    known
}

fn settings(table: &Table) -> Option<Settings> {
    table.snapshot().settings()
}

type State = (
    BTreeMap<i64, Vec<u32>>,
    BTreeMap<i64, (u32, u32)>,
    Option<Settings>,
);

/// Rows, history and thresholds, whatever their order.
fn state(table: &Table) -> State {
    (content(table), known(table), settings(table))
}

fn loaded(dir: &Path) -> Arc<Table> {
    let table = table();
    load(&table, pool(), dir).unwrap();
    table
}

/// Little-endian bytes of the two files.
fn write_files(dir: &Path, thresholds: &[i32], records: &[i64]) {
    let words = thresholds.iter().flat_map(|word| word.to_le_bytes());
    fs::write(dir.join("table_2_thresh"), words.collect::<Vec<u8>>()).unwrap();
    let words = records.iter().flat_map(|word| word.to_le_bytes());
    fs::write(dir.join("hist_rec"), words.collect::<Vec<u8>>()).unwrap();
}

/// Saves keys without a history, and takes the manifest away: as the original would have written
/// them.
fn write_rows(dir: &Path, keys: &[i64]) {
    let table = table();
    let mut inverse = vec![0; keys.len()];
    table
        .id_offset(pool(), Ids::I64(keys), true, None, &mut inverse)
        .unwrap();
    save(&table, pool(), dir).unwrap();
    fs::remove_file(dir.join("manifest.json")).unwrap();
}

#[test]
fn the_files_hold_thresholds_times_and_every_key_once() {
    let temp = Temp::new();
    let table = table();
    let limits = limits(2, 60);
    step(&table, &[7, 7, 8, -2], 1000, limits);
    step(&table, &[9, i64::MIN], 1001, limits);
    save(&table, pool(), &temp.at("t")).unwrap();
    let read = |name: &str| fs::read(temp.at("t").join(name)).unwrap();
    let bytes = read("table_2_thresh");
    let numbers: Vec<i32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| i32::from_le_bytes(word))
        .collect();
    assert_eq!(numbers, [2, 60, 1]);
    let bytes = read("hist_rec");
    let words: Vec<i64> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| i64::from_le_bytes(word))
        .collect();
    assert_eq!(words[0], 1001);
    let mut records: Vec<&[i64]> = words[1..].chunks(3).collect();
    assert_eq!(records[0], [7, 2, 1000], "those with rows come first");
    records.sort();
    let expected: [&[i64]; 5] = [
        &[i64::MIN, 1, 1001],
        &[-2, 1, 1000],
        &[7, 2, 1000],
        &[8, 1, 1000],
        &[9, 1, 1001],
    ];
    assert_eq!(records, expected);
    let manifest = fs::read_to_string(temp.at("t/manifest.json")).unwrap();
    assert!(manifest.contains("\"configured_access\": 2"), "{manifest}");
    let json: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    for name in ["table_2_thresh", "hist_rec"] {
        let files = json["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == name).unwrap();
        let crc = format!("{:08x}", crc32c::crc32c(&read(name)));
        assert_eq!(
            (&file["bytes"], &file["crc32c"]),
            (&read(name).len().into(), &crc.into())
        );
    }
    // A table without a history has neither.
    save(&self::table(), pool(), &temp.at("none")).unwrap();
    assert!(!temp.at("none/hist_rec").exists() && !temp.at("none/table_2_thresh").exists());
    assert!(!fs::read_to_string(temp.at("none/manifest.json"))
        .unwrap()
        .contains("history"));
}

#[test]
fn many_keys_come_back_whatever_the_number_of_threads() {
    let temp = Temp::new();
    let table = table();
    let keys: Vec<i64> = (0..200_000).map(|key| key * 7919 - 4000).collect();
    step(&table, &keys, 5, limits(2, 60));
    step(&table, &keys[50_000..], 6, limits(2, 60));
    step(&table, &keys[..25_000], 7, limits(2, 60));
    assert_eq!(table.len(), 175_000);
    let (one, three) = (temp.at("one"), temp.at("three"));
    save(&table, &Pool::new(1).unwrap(), &one).unwrap();
    save(&table, &Pool::new(3).unwrap(), &three).unwrap();
    let read = |dir: &Path| fs::read(dir.join("hist_rec")).unwrap();
    assert!(read(&one) == read(&three));
    assert_eq!(read(&one).len(), 8 + 24 * 200_000);
    let other = self::table();
    load(&other, &Pool::new(3).unwrap(), &one).unwrap();
    assert!(state(&other) == state(&table));
}

#[test]
fn what_is_wrong_with_a_file_is_named_and_nothing_changes() {
    type Bytes = Box<dyn Fn(Vec<u8>) -> Vec<u8>>;
    let words =
        |words: &[i64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let replace = |with: Vec<u8>| -> Bytes { Box::new(move |_| with.clone()) };
    let numbers = |numbers: [i32; 3]| replace(numbers.map(i32::to_le_bytes).concat());
    let cases: Vec<(&str, Bytes, &str)> = vec![
        (
            "hist_rec",
            Box::new(|bytes| bytes[..bytes.len() - 8].to_vec()),
            "8 + 24 n",
        ),
        (
            "hist_rec",
            Box::new(|bytes| bytes[..bytes.len() - 1].to_vec()),
            "8 + 24 n",
        ),
        ("hist_rec", replace(vec![]), "8 + 24 n"),
        ("hist_rec", replace(words(&[-1])), "time=-1"),
        ("hist_rec", replace(words(&[9, 7, -1, 5])), "count=-1"),
        ("hist_rec", replace(words(&[9, 7, 1, -5])), "time=-5"),
        ("hist_rec", replace(words(&[9, -1, 1, 5])), "padding"),
        ("hist_rec", replace(words(&[9, 7, 1, 5, 7, 1, 5])), "key=7"),
        (
            "hist_rec",
            replace(words(&[9, 77, 1, 5, 77, 2, 6])),
            "key=77",
        ),
        ("table_2_thresh", replace(vec![0; 8]), "expected=12"),
        ("table_2_thresh", replace(vec![0; 15]), "expected=12"),
        ("table_2_thresh", numbers([-2, 5, 1]), "access=-2"),
        ("table_2_thresh", numbers([2, -7, 1]), "eviction=-7"),
        ("table_2_thresh", numbers([2, 5, 2]), "value=2"),
    ];
    let temp = Temp::new();
    let dir = temp.at("t");
    let saved = table();
    step(&saved, &[7, 7, 8], 1000, limits(2, 60));
    save(&saved, pool(), &dir).unwrap();
    let table = self::table();
    step(&table, &[3, 4, 3], 2000, limits(2, 50));
    let before = state(&table);
    let fails = |name: &str, said: &str| {
        let error = load(&table, pool(), &dir).unwrap_err();
        assert_eq!(error.kind(), Kind::DataLoss, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&dir.join(name).display().to_string()),
            "{text}"
        );
        assert!(text.contains(said), "{said}: {text}");
        assert_eq!(state(&table), before);
    };
    // With a manifest every bit matters.
    for name in ["hist_rec", "table_2_thresh"] {
        let whole = fs::read(dir.join(name)).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.join(name), changed).unwrap();
            fails(name, "");
        }
        fs::write(dir.join(name), &whole).unwrap();
    }
    fs::remove_file(dir.join("manifest.json")).unwrap();
    for (name, change, said) in &cases {
        let whole = fs::read(dir.join(name)).unwrap();
        fs::write(dir.join(name), change(whole.clone())).unwrap();
        fails(name, said);
        fs::write(dir.join(name), &whole).unwrap();
    }
    load(&table, pool(), &dir).unwrap();
    assert_eq!(known(&table), known(&saved));
    for name in ["hist_rec", "table_2_thresh"] {
        fs::rename(dir.join(name), dir.join("away")).unwrap();
        let error = load(&table, pool(), &dir).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains(name), "{error}");
        fs::rename(dir.join("away"), dir.join(name)).unwrap();
    }
}

#[test]
fn a_history_of_the_original_loads_with_more_thresholds_and_larger_numbers() {
    let temp = Temp::new();
    let large = i64::MAX;
    let records = [large, 7, large, 1 << 40, 8, 1, 0, 5, 0, 0, 99, 3, 12];
    for (name, in_directories) in [("plain", false), ("directories", true)] {
        let dir = temp.at(name);
        write_rows(&dir, &[7, 8, 5, 4]);
        write_files(&dir, &[3, -1, 1, 70, 80], &records);
        if in_directories {
            for name in ["table_2_thresh", "hist_rec"] {
                fs::rename(dir.join(name), dir.join("moved")).unwrap();
                fs::create_dir(dir.join(name)).unwrap();
                fs::rename(dir.join("moved"), dir.join(name).join("slice.data")).unwrap();
            }
        }
        let table = loaded(&dir);
        let most = u32::MAX - 1;
        let expected = [(7, (u32::MAX, most)), (8, (1, 0)), (99, (3, 12))];
        assert_eq!(known(&table), BTreeMap::from(expected));
        let found = settings(&table).unwrap();
        assert_eq!(
            (found.access, found.eviction, found.latest),
            (3, None, most)
        );
        // Of the rows only that of 7 was counted often enough, and of the keys without a row 99.
        let limits = Thresholds {
            access: 3,
            eviction: None,
        };
        let admitted = step(&table, &[7, 8, 5, 4, 99], 1, limits);
        assert_eq!(admitted, [true, false, false, false, true]);
    }
}

#[test]
fn without_a_history_in_the_files_rows_count_as_admitted() {
    let temp = Temp::new();
    let dir = temp.at("t");
    write_rows(&dir, &[7, 8]);
    let table = loaded(&dir);
    assert_eq!(settings(&table), None);
    assert_eq!(
        step(&table, &[7, 8, 9], 50, limits(5, 60)),
        [true, true, false]
    );
    // The same for a table that had a history: it begins anew, its clock included.
    let other = self::table();
    step(&other, &[8, 8, 3], 40, limits(2, 60));
    load(&other, pool(), &dir).unwrap();
    assert_eq!(known(&other), BTreeMap::from([(7, (2, 0)), (8, (2, 0))]));
    // Also when it is saved before its first batch, which dates all rows and those set since.
    let between = temp.at("between");
    save(&other, pool(), &between).unwrap();
    for table in [other, loaded(&between)] {
        table.assign(pool(), Ids::I64(&[9]), &[1.0; 2]).unwrap();
        step(&table, &[8], 30, limits(2, 60));
        assert_eq!(
            known(&table),
            BTreeMap::from([(7, (2, 30)), (8, (3, 30)), (9, (2, 30))])
        );
    }
    // And for one whose history came from files only.
    let with = temp.at("with");
    save(&table, pool(), &with).unwrap();
    let third = loaded(&with);
    load(&third, pool(), &dir).unwrap();
    assert_eq!(settings(&third), None);
}

#[test]
fn whoever_wants_rows_only_gets_no_history() {
    let temp = Temp::new();
    let dir = temp.at("t");
    let table = table();
    step(&table, &[7, 7, 8], 40, limits(2, 60));
    save(&table, pool(), &dir).unwrap();
    let rows = self::table();
    load_chain(&rows, pool(), &[&dir], &|name| name == "hist_rec").unwrap();
    assert_eq!(state(&rows), state(&table));
    // Not even the files are looked at.
    fs::remove_file(dir.join("hist_rec")).unwrap();
    fs::write(dir.join("table_2_thresh"), "x").unwrap();
    load_chain(&rows, pool(), &[&dir], &|_| false).unwrap();
    assert_eq!((settings(&rows), rows.len()), (None, 1));
    assert_eq!(step(&rows, &[7, 8], 41, limits(5, 60)), [true, false]);
}

/// The access threshold that holds after a restore and a step, and whether keys are counted.
fn threshold_after(
    saved: impl Fn(&Arc<Table>),
    running: impl Fn(&Arc<Table>),
    access: u32,
) -> (u32, bool) {
    let temp = Temp::new();
    let table = table();
    saved(&table);
    save(&table, pool(), &temp.at("t")).unwrap();
    let other = self::table();
    running(&other);
    load(&other, pool(), &temp.at("t")).unwrap();
    // A save before the first step loses nothing of what it will decide.
    save(&other, pool(), &temp.at("again")).unwrap();
    let again = loaded(&temp.at("again"));
    for table in [&other, &again] {
        step(table, &[1], 50, limits(access, 60));
    }
    let found = settings(&other).unwrap();
    assert_eq!(settings(&again).unwrap().access, found.access);
    assert_eq!(found.eviction, Some(60));
    (found.access, found.counting)
}

#[test]
fn a_threshold_changed_while_training_survives_until_the_configuration_changes() {
    let configured = |access: u32| {
        move |table: &Arc<Table>| {
            step(table, &[1, 2, 2], 40, limits(access, 90));
        }
    };
    let changed = |access: u32, to: u32| {
        move |table: &Arc<Table>| {
            step(table, &[1, 2, 2], 40, limits(access, 90));
            table.set_access_threshold(to).unwrap();
        }
    };
    let nothing = |_: &Arc<Table>| ();
    let by_hand = |table: &Arc<Table>| table.set_access_threshold(9).unwrap();
    assert_eq!(threshold_after(configured(3), nothing, 3), (3, true));
    assert_eq!(threshold_after(configured(3), nothing, 4), (4, true));
    assert_eq!(threshold_after(changed(3, 6), nothing, 3), (6, true));
    assert_eq!(threshold_after(changed(3, 6), nothing, 4), (4, true));
    // 0 uses the counts there are, and counts nothing more.
    assert_eq!(threshold_after(changed(3, 6), nothing, 0), (6, false));
    assert_eq!(threshold_after(configured(3), nothing, 0), (3, false));
    assert_eq!(threshold_after(configured(3), configured(0), 0), (3, false));
    assert_eq!(threshold_after(configured(0), nothing, 0), (0, false));
    assert_eq!(threshold_after(configured(0), nothing, 2), (2, true));
    assert_eq!(threshold_after(changed(3, 0), nothing, 3), (3, false));
    assert_eq!(threshold_after(changed(3, 0), nothing, 4), (4, true));
    // What a process says of thresholds by itself comes before what the files say.
    assert_eq!(threshold_after(configured(3), by_hand, 3), (9, true));
    assert_eq!(threshold_after(changed(3, 6), changed(3, 7), 3), (7, true));
    assert_eq!(threshold_after(changed(3, 6), configured(4), 4), (4, true));
    // The same configuration was given before the restore, or after it.
    assert_eq!(threshold_after(changed(3, 6), configured(3), 3), (6, true));
    // A threshold that was set before the first configuration stays.
    assert_eq!(threshold_after(by_hand, nothing, 3), (9, true));
}

#[test]
fn a_table_that_is_restored_twice_follows_the_files_each_time() {
    let temp = Temp::new();
    let table = table();
    step(&table, &[1, 2, 2], 40, limits(2, 90));
    save(&table, pool(), &temp.at("early")).unwrap();
    let early = state(&table);
    table.set_access_threshold(5).unwrap();
    step(&table, &[1, 3, 2], 41, limits(2, 90));
    save(&table, pool(), &temp.at("late")).unwrap();
    let late = state(&table);
    let other = self::table();
    for (name, expected) in [("late", &late), ("early", &early), ("late", &late)] {
        load(&other, pool(), &temp.at(name)).unwrap();
        assert_eq!(&state(&other), expected, "{name}");
        step(&other, &[], 1, limits(2, 90));
        assert_eq!(&state(&other), expected, "{name}");
    }
}

#[test]
fn eviction_after_a_restore_needs_no_batch_before() {
    let temp = Temp::new();
    let table = table();
    step(&table, &[1, 1, 2], 40, limits(2, 60));
    step(&table, &[3, 3], 100, limits(2, 60));
    save(&table, pool(), &temp.at("t")).unwrap();
    let other = loaded(&temp.at("t"));
    assert_eq!(other.evict().unwrap(), (2, 1));
    // Neither does one of a program that has only said how often a key must come.
    let third = self::table();
    third.set_access_threshold(9).unwrap();
    load(&third, pool(), &temp.at("t")).unwrap();
    assert_eq!(third.evict().unwrap(), (2, 1));
    assert_eq!(table.evict().unwrap(), (2, 1));
    assert_eq!(state(&other), state(&table));
}

#[test]
fn a_save_amid_batches_and_evictions_has_every_key_once() {
    let temp = Temp::new();
    let table = table();
    let limits = limits(3, 40);
    let keys: Vec<i64> = (0..30_000).collect();
    step(&table, &keys, 1, limits);
    let stop = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for time in 2.. {
                if stop.load(Ordering::Relaxed) != 0 {
                    break;
                }
                let first = time as usize * 997 % 20_000;
                step(&table, &keys[first..first + 10_000], time, limits);
                if time % 7 == 0 {
                    table.evict().unwrap();
                }
            }
        });
        for at in 0..12 {
            save(&table, pool(), &temp.at(at)).unwrap();
        }
        stop.store(1, Ordering::Relaxed);
    });
    for at in 0..12 {
        let found = loaded(&temp.at(at));
        let known = known(&found);
        let export = found.export().unwrap();
        assert!(export.keys.iter().all(|key| known[key].0 >= 3));
    }
}

/// A verb of a random training.
#[derive(Clone, Debug)]
enum Verb {
    Train(Vec<i64>),
    Wait(u8),
    Evict,
    Remove(Vec<i64>),
    SetThreshold(u32),
    Assign(i64),
    Clear,
    /// A delta, or the end of what is compared.
    Save,
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let ids = || proptest::collection::vec(-3_i64..24, 0..12);
    let verb = prop_oneof![
        12 => ids().prop_map(Verb::Train),
        4 => (0..9_u8).prop_map(Verb::Wait),
        3 => Just(Verb::Evict),
        1 => ids().prop_map(Verb::Remove),
        1 => (0..5_u32).prop_map(Verb::SetThreshold),
        1 => (0..24_i64).prop_map(Verb::Assign),
        1 => Just(Verb::Clear),
        3 => Just(Verb::Save),
    ];
    proptest::collection::vec(verb, 1..40)
}

/// Does a verb; what it answers tells whether two tables decide alike.
fn act(table: &Arc<Table>, verb: &Verb, now: &mut i64, limits: Thresholds) -> Result<Vec<u64>> {
    Ok(match verb {
        Verb::Train(ids) => {
            let admitted = step(table, ids, *now, limits);
            admitted.into_iter().map(u64::from).collect()
        }
        Verb::Wait(seconds) => {
            *now += i64::from(*seconds);
            Vec::new()
        }
        Verb::Evict => match table.evict() {
            Ok((gone, known)) => vec![gone, known],
            Err(error) if error.kind() == Kind::InvalidArgument => Vec::new(),
            Err(error) => return Err(error),
        },
        Verb::Remove(ids) => vec![table.remove(Ids::I64(ids))?],
        Verb::SetThreshold(access) => {
            table.set_access_threshold(*access).unwrap();
            Vec::new()
        }
        Verb::Assign(key) => {
            table.assign(pool(), Ids::I64(&[*key]), &[0.5; 2])?;
            Vec::new()
        }
        Verb::Clear => vec![table.clear()],
        Verb::Save => Vec::new(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if is_whole() { 300 } else { 75 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn training_goes_on_after_a_restore_as_if_it_had_not_stopped(
        verbs in verbs(), more in verbs(), access in 0..4_u32, eviction in 1..20_u32,
    ) {
        let temp = Temp::new();
        let limits = limits(access, eviction);
        let (table, mut now) = (table(), 1);
        for verb in &verbs {
            act(&table, verb, &mut now, limits).unwrap();
        }
        let dir = temp.at("t");
        save(&table, pool(), &dir).unwrap();
        let other = loaded(&dir);
        prop_assert_eq!(state(&other), state(&table));
        let mut then = now;
        for verb in &more {
            let expected = act(&table, verb, &mut now, limits).unwrap();
            prop_assert_eq!(act(&other, verb, &mut then, limits).unwrap(), expected, "{:?}", verb);
            prop_assert_eq!(state(&other), state(&table), "{:?}", verb);
        }
    }

    #[test]
    fn a_base_and_its_deltas_have_the_history_of_the_table(
        verbs in verbs(), access in 0..4_u32, eviction in 1..20_u32, restarts: bool,
    ) {
        let temp = Temp::new();
        let limits = limits(access, eviction);
        let (mut table, mut now) = (table(), 1);
        table.track_changes();
        let mut chain = vec![temp.at("base-0")];
        let mut since = save(&table, pool(), &chain[0]).unwrap().epoch;
        for (at, verb) in verbs.iter().chain([&Verb::Save]).enumerate() {
            act(&table, verb, &mut now, limits).unwrap();
            match verb {
                // No delta reaches over it.
                Verb::Clear => {
                    chain = vec![temp.at(format!("base-{at}"))];
                    since = save(&table, pool(), &chain[0]).unwrap().epoch;
                }
                Verb::Save => {
                    chain.push(temp.at(at));
                    since = save_delta(&table, pool(), &chain[chain.len() - 1], since, 0).unwrap().epoch;
                    let restored = self::table();
                    restored.track_changes();
                    let epoch = load_all(&restored, &chain).epoch;
                    prop_assert_eq!(state(&restored), state(&table));
                    if restarts {
                        (table, since) = (restored, epoch);
                    }
                }
                _ => {}
            }
        }
        let whole = temp.at("whole");
        save(&table, pool(), &whole).unwrap();
        prop_assert_eq!(state(&loaded(&whole)), state(&table));
    }

    #[test]
    fn any_bytes_load_or_fail_cleanly(
        thresholds in proptest::collection::vec(-2..3_i32, 0..5),
        records in proptest::collection::vec(prop_oneof![-2..6_i64, any::<i64>()], 0..12),
        cut in 0..3_usize,
    ) {
        let temp = Temp::new();
        let dir = temp.at("t");
        write_rows(&dir, &[1, 2]);
        write_files(&dir, &thresholds, &records);
        let bytes = fs::read(dir.join("hist_rec")).unwrap();
        fs::write(dir.join("hist_rec"), &bytes[..bytes.len().saturating_sub(cut)]).unwrap();
        let table = table();
        step(&table, &[5, 5, 6], 3, limits(2, 9));
        let before = state(&table);
        match load(&table, pool(), &dir) {
            Ok(_) => {
                let found = known(&table);
                for record in records[1..].chunks(3).filter(|record| record[1..] != [0, 0]) {
                    let number = |word: i64, most: u32| u32::try_from(word).unwrap_or(most).min(most);
                    let seen = (number(record[1], u32::MAX), number(record[2], u32::MAX - 1));
                    prop_assert_eq!(found.get(&record[0]), Some(&seen));
                }
            }
            Err(_) => prop_assert_eq!(state(&table), before),
        }
    }
}
