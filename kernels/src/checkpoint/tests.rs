//! Round trips, and every way in which files can be wrong.

use super::format::{key_attribute, value_attribute};
use super::manifest::sign;
use super::temp::Temp;
use super::{load, load_chain, save};
use crate::singles::{Singles as _, Target};
use crate::{Ids, Initializer, Kind, LazyAdam, Pool, Result, Sgd, SlotSpec, Table, TableConfig};
use std::fs;
use std::path::{Path, PathBuf};

fn pool() -> Pool {
    Pool::new(1).unwrap()
}

fn table(dim: usize, capacity: u64) -> Table {
    Table::new(TableConfig {
        seed: 3,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        ..TableConfig::new("t", dim, capacity)
    })
    .unwrap()
}

fn adam() -> LazyAdam {
    LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap()
}

/// Gives every key a step of Adam.
fn train(table: &Table, keys: &[i64]) {
    let grads: Vec<f32> = (0..keys.len() * table.dim())
        .map(|at| at as f32 * 0.01 - 1.0)
        .collect();
    table
        .apply(&pool(), Target::Ids(Ids::I64(keys)), &grads, &adam())
        .unwrap();
}

/// A trained table of `rows` rows, with the extreme keys among them.
fn trained(dim: usize, rows: i64) -> Table {
    let table = table(dim, 1 << 20);
    let mut keys: Vec<i64> = (0..rows).map(|key| key * 7919 - 4000).collect();
    keys.iter_mut()
        .zip([i64::MIN, i64::MAX, 0, -2])
        .for_each(|(key, extreme)| *key = extreme);
    train(&table, &keys);
    table
}

fn bits(table: &Table) -> (Vec<i64>, Vec<Vec<u32>>, Vec<SlotSpec>) {
    let export = table.export().unwrap();
    let word = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect();
    let mut values = vec![word(&export.embedding)];
    values.extend(export.slots.iter().map(|(_, slot)| word(slot)));
    (
        export.keys,
        values,
        export.slots.into_iter().map(|(spec, _)| spec).collect(),
    )
}

/// Loads into a table that has a row already and checks that a failure leaves that alone.
fn fails(dir: &Path, dim: usize, capacity: u64) -> crate::Error {
    let table = table(dim, capacity);
    table
        .assign(&pool(), Ids::I64(&[5]), &vec![0.5; dim])
        .unwrap();
    let before = bits(&table);
    let error = load(&table, &pool(), dir).unwrap_err();
    assert_eq!(bits(&table), before);
    error
}

/// The smallest checkpoint, as another program might write it: rows of dim 2.
fn write_plain(dir: &Path, keys: &[i64], slots: &[&str]) {
    let rows = keys.len() as u64;
    for name in ["key", "embedding"].iter().chain(slots) {
        let part = dir.join(name);
        fs::create_dir_all(&part).unwrap();
        let (shape, data): (_, Vec<u8>) = if *name == "key" {
            (
                key_attribute(rows),
                keys.iter().flat_map(|key| key.to_le_bytes()).collect(),
            )
        } else {
            let values = (0..rows * 2).flat_map(|at| (at as f32).to_le_bytes());
            (
                value_attribute(rows, 2, crate::RowDtype::Float32),
                values.collect(),
            )
        };
        fs::write(part.join("slice.attribute"), shape).unwrap();
        fs::write(part.join("slice.data"), data).unwrap();
    }
}

#[test]
fn a_saved_table_comes_back_bit_for_bit_in_the_same_order() -> Result<()> {
    // Several blocks, and rows beyond a block.
    for (dim, rows) in [(1, 3), (16, 40_000), (37, 1), (8192, 70)] {
        let temp = Temp::new();
        let dir = temp.0.join("sparse-model-7").join("t");
        let table = trained(dim, rows);
        table.remove(Ids::I64(&[0]))?;
        let saved = save(&table, &pool(), &dir)?.rows;
        assert_eq!(saved, table.len());
        let other = self::table(dim, 1 << 20);
        assert_eq!(load(&other, &pool(), &dir)?, saved);
        assert_eq!(bits(&other), bits(&table));
    }
    Ok(())
}

#[test]
fn the_files_are_those_of_the_layout() -> Result<()> {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    let table = table(2, 10);
    table.assign(&pool(), Ids::I64(&[258, -3]), &[1.0, 2.0, 3.0, 4.0])?;
    save(&table, &pool(), &dir)?;
    let read = |path: &str| fs::read(dir.join(path)).unwrap();
    assert_eq!(read("key/slice.attribute"), key_attribute(2));
    assert_eq!(
        read("embedding/slice.attribute"),
        value_attribute(2, 2, crate::RowDtype::Float32)
    );
    assert_eq!(
        read("key/slice.data"),
        [258_i64.to_le_bytes(), (-3_i64).to_le_bytes()].concat()
    );
    let floats: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(read("embedding/slice.data"), floats);
    let manifest: serde_json::Value = serde_json::from_slice(&read("manifest.json")).unwrap();
    assert_eq!(
        (&manifest["version"], &manifest["rows"]),
        (&2.into(), &2.into())
    );
    assert_eq!(manifest["table"]["initializer"]["kind"], "random_uniform");
    let listed = manifest["files"].as_array().unwrap();
    assert_eq!(listed.len(), 4);
    for file in listed {
        let bytes = read(file["path"].as_str().unwrap());
        assert_eq!(file["bytes"], bytes.len());
        let crc = format!("{:08x}", crc32c::crc32c(&bytes));
        assert_eq!(file["crc32c"], crc.as_str());
    }
    assert_eq!(temp.entries(), ["t"], "nothing else stays behind");

    use std::os::unix::fs::PermissionsExt;
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.join("key/slice.data")) & !0o640, 0);
    assert_eq!(mode(dir.join("embedding")) & !0o750, 0);
    Ok(())
}

#[test]
fn an_empty_table_is_saved_and_loaded() -> Result<()> {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    assert_eq!(save(&table(4, 10), &pool(), &dir)?.rows, 0);
    let full = trained(4, 10);
    assert_eq!(load(&full, &pool(), &dir)?, 0);
    assert_eq!(full.len(), 0);
    Ok(())
}

#[test]
fn an_earlier_checkpoint_is_replaced_as_a_whole() -> Result<()> {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    save(&trained(4, 100), &pool(), &dir)?;
    let plain = table(4, 10);
    plain.assign(&pool(), Ids::I64(&[1]), &[1.0; 4])?;
    save(&plain, &pool(), &dir)?;
    let other = table(4, 10);
    load(&other, &pool(), &dir)?;
    assert_eq!(bits(&other), bits(&plain));
    assert!(!dir.join("LazyAdam_momentum").exists());
    assert_eq!(temp.entries(), ["t"]);
    Ok(())
}

#[test]
fn what_is_no_checkpoint_is_never_replaced() {
    let temp = Temp::new();
    let table = trained(4, 3);
    let dir = temp.0.join("photos");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("cat.jpg"), "meow").unwrap();
    assert_eq!(
        save(&table, &pool(), &dir).unwrap_err().kind(),
        Kind::InvalidArgument
    );
    assert_eq!(
        save(&table, &pool(), &dir.join("cat.jpg"))
            .unwrap_err()
            .kind(),
        Kind::InvalidArgument
    );
    assert_eq!(fs::read(dir.join("cat.jpg")).unwrap(), b"meow");
    let error = save(&table, &pool(), &dir.join("cat.jpg").join("t")).unwrap_err();
    assert!(error.to_string().contains("cat.jpg"), "{error}");
    assert_eq!(
        save(&table, &pool(), Path::new("/")).unwrap_err().kind(),
        Kind::InvalidArgument
    );
    assert_eq!(temp.entries(), ["photos"]);
    let empty = temp.0.join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(save(&table, &pool(), &empty).unwrap().rows, 3);
}

#[test]
fn files_without_a_manifest_load_with_all_their_slots() -> Result<()> {
    let temp = Temp::new();
    write_plain(&temp.0, &[9, -9], &["Adagrad_accumulator"]);
    fs::create_dir(temp.0.join("hist_rec")).unwrap();
    fs::write(temp.0.join("hist_rec").join("slice.attribute"), "x").unwrap();
    let table = table(2, 10);
    load(&table, &pool(), &temp.0)?;
    let export = table.export()?;
    assert_eq!(export.keys, [9, -9]);
    assert_eq!(export.embedding, [0.0, 1.0, 2.0, 3.0]);
    let spec = SlotSpec {
        name: "Adagrad_accumulator".into(),
        initial: 0.9,
        per_row: false,
    };
    assert_eq!(export.slots, [(spec, vec![0.0, 1.0, 2.0, 3.0])]);
    Ok(())
}

#[test]
fn slots_missing_on_disk_start_fresh_and_those_of_the_table_keep_their_place() -> Result<()> {
    let temp = Temp::new();
    write_plain(&temp.0, &[9], &["LazyAdam_velocity", "Another_slot"]);
    let table = trained(2, 5);
    load(&table, &pool(), &temp.0)?;
    let names: Vec<_> = table
        .slots()
        .iter()
        .map(|slot| slot.name.to_string())
        .collect();
    assert_eq!(
        names,
        ["LazyAdam_momentum", "LazyAdam_velocity", "Another_slot"]
    );
    let export = table.export()?;
    let values: Vec<_> = export
        .slots
        .iter()
        .map(|(_, values)| values.as_slice())
        .collect();
    assert_eq!(values, [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0]]);
    table.apply(&pool(), Target::Ids(Ids::I64(&[9])), &[1.0; 2], &adam())?;
    table.apply(
        &pool(),
        Target::Ids(Ids::I64(&[9])),
        &[1.0; 2],
        &Sgd::new(1.0)?,
    )?;
    Ok(())
}

#[test]
fn a_slots_initial_value_comes_back_for_rows_that_are_new_after_the_load() -> Result<()> {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    let table = table(2, 10);
    let adagrad = crate::Adagrad::new(0.1, 0.25)?;
    table.apply(&pool(), Target::Ids(Ids::I64(&[1])), &[1.0; 2], &adagrad)?;
    save(&table, &pool(), &dir)?;
    let other = self::table(2, 10);
    load(&other, &pool(), &dir)?;
    other.assign(&pool(), Ids::I64(&[2]), &[0.0; 2])?;
    assert_eq!(other.export()?.slots[0].1, [1.25, 1.25, 0.25, 0.25]);
    Ok(())
}

#[test]
fn a_directory_that_is_missing_is_named() {
    let error = fails(Path::new("/nowhere/at/all"), 2, 10);
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn files_of_a_wrong_size_are_damaged() {
    for part in ["key", "embedding", "LazyAdam_momentum"] {
        for file in ["slice.attribute", "slice.data"] {
            for change in [-1_i64, 1, -8, 8, i64::MIN] {
                let temp = Temp::new();
                let dir = temp.0.join("t");
                write_plain(&dir, &[1, 2, 3], &["LazyAdam_momentum"]);
                let path = dir.join(part).join(file);
                let mut bytes = fs::read(&path).unwrap();
                bytes.resize(
                    (bytes.len() as i64).saturating_add(change).max(0) as usize,
                    7,
                );
                fs::write(&path, bytes).unwrap();
                let error = fails(&dir, 2, 10);
                assert_eq!(error.kind(), Kind::DataLoss, "{error}");
                assert!(
                    error.to_string().contains(&format!("{part}/{file}")),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn attributes_that_do_not_fit_are_refused() {
    let words = |words: &[i64]| {
        words
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    for (part, attribute, kind, text) in [
        ("key", words(&[3, 4]), Kind::DataLoss, "bytes=4, expected=8"),
        ("key", words(&[-3, 8]), Kind::DataLoss, "negative"),
        (
            "key",
            words(&[2, 8]),
            Kind::DataLoss,
            "size is not what its attribute says",
        ),
        (
            "key",
            words(&[i64::MAX, 8]),
            Kind::ResourceExhausted,
            "rows=9223372036854775807, capacity=10",
        ),
        (
            "embedding",
            words(&[3, 2, 8]),
            Kind::DataLoss,
            "bytes=8, expected=4",
        ),
        (
            "embedding",
            words(&[2, 2, 4]),
            Kind::DataLoss,
            "rows=2, keys=3",
        ),
        (
            "embedding",
            words(&[3, 3, 4]),
            Kind::InvalidArgument,
            "checkpoint_dim=3, table_dim=2",
        ),
        (
            "embedding",
            words(&[3, i64::MAX, 4]),
            Kind::InvalidArgument,
            "table_dim=2",
        ),
        (
            "LazyAdam_velocity",
            words(&[3, 1, 4]),
            Kind::InvalidArgument,
            "checkpoint_dim=1",
        ),
    ] {
        let temp = Temp::new();
        let dir = temp.0.join("t");
        write_plain(&dir, &[1, 2, 3], &["LazyAdam_velocity"]);
        fs::write(dir.join(part).join("slice.attribute"), attribute).unwrap();
        let error = fails(&dir, 2, 10);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn more_rows_than_the_capacity_are_refused_with_both_numbers() {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    save(&trained(2, 11), &pool(), &dir).unwrap();
    let error = fails(&dir, 2, 10);
    assert_eq!(error.kind(), Kind::ResourceExhausted);
    assert!(
        error.to_string().contains("rows=11, capacity=10"),
        "{error}"
    );
}

#[test]
fn padding_and_repeated_keys_are_damage() {
    for keys in [
        vec![1, -1, 2],
        vec![4, 5, 4],
        [&(0..300_000).collect::<Vec<_>>()[..], &[7]].concat(),
    ] {
        let temp = Temp::new();
        write_plain(&temp.0, &keys, &[]);
        let error = fails(&temp.0, 2, 1 << 20);
        assert_eq!(error.kind(), Kind::DataLoss, "{error}");
        assert!(error.to_string().contains("key="), "{error}");
    }
}

#[test]
fn a_manifest_that_contradicts_the_files_is_refused() {
    for (from, to, kind) in [
        ("\"rows\": 3", "\"rows\": 2", Kind::DataLoss),
        ("\"dim\": 2", "\"dim\": 3", Kind::InvalidArgument),
        ("LazyAdam_momentum", "LazyAdam_elsewhere", Kind::NotFound),
        ("key/slice.data", "key/other", Kind::DataLoss),
        ("key/slice.data", "../key", Kind::DataLoss),
        ("}\n", "", Kind::DataLoss),
    ] {
        let temp = Temp::new();
        let dir = temp.0.join("t");
        save(&trained(2, 3), &pool(), &dir).unwrap();
        let text = fs::read_to_string(dir.join("manifest.json")).unwrap();
        fs::write(dir.join("manifest.json"), text.replace(from, to)).unwrap();
        let error = fails(&dir, 2, 10);
        assert_eq!(error.kind(), Kind::DataLoss, "{error}");
        let mut signed = text.replace(from, to).into_bytes();
        sign(&mut signed);
        fs::write(dir.join("manifest.json"), signed).unwrap();
        let error = fails(&dir, 2, 10);
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn a_manifest_of_version_1_that_contradicts_the_files_is_refused() {
    let text = "mx_rec table 1\nrows 3\ndim 2\nslot LazyAdam_momentum 00000000\nend\n";
    for (from, to, kind) in [
        ("rows 3", "rows 2", Kind::DataLoss),
        ("dim 2", "dim 3", Kind::InvalidArgument),
        ("LazyAdam_momentum", "LazyAdam_elsewhere", Kind::NotFound),
        ("end\n", "", Kind::DataLoss),
        ("mx_rec", "\u{fffd}", Kind::DataLoss),
    ] {
        let temp = Temp::new();
        write_plain(&temp.0, &[1, 2, 3], &["LazyAdam_momentum"]);
        fs::write(temp.0.join("manifest"), text).unwrap();
        assert_eq!(load(&table(2, 10), &pool(), &temp.0).unwrap(), 3);
        fs::write(temp.0.join("manifest"), text.replace(from, to)).unwrap();
        let error = fails(&temp.0, 2, 10);
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn what_is_no_plain_file_is_refused_without_waiting() {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    save(&trained(2, 3), &pool(), &dir).unwrap();
    let manifest = dir.join("manifest.json");
    assert_eq!(fails(&manifest, 2, 10).kind(), Kind::DataLoss);
    fs::remove_file(dir.join("key/slice.data")).unwrap();
    fs::create_dir(dir.join("key/slice.data")).unwrap();
    assert_eq!(fails(&dir, 2, 10).kind(), Kind::DataLoss);
}

/// All files of a table with one slot.
const FILES: [&str; 9] = [
    "embedding/slice.attribute",
    "embedding/slice.data",
    "key/slice.attribute",
    "key/slice.data",
    "LazyAdam_momentum/slice.attribute",
    "LazyAdam_momentum/slice.data",
    "LazyAdam_velocity/slice.attribute",
    "LazyAdam_velocity/slice.data",
    "manifest.json",
];

#[test]
fn every_file_matters_and_is_named_when_it_is_damaged() {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    save(&trained(3, 5), &pool(), &dir).unwrap();
    for name in FILES {
        let path = dir.join(name);
        let whole = fs::read(&path).unwrap();
        let fails_by_name = |kind: Option<Kind>, what: &str| {
            let error = fails(&dir, 3, 10);
            let told = error.to_string();
            assert!(told.contains(&path.display().to_string()), "{what}: {told}");
            assert!(
                kind.is_none_or(|kind| kind == error.kind()),
                "{what}: {told}"
            );
        };
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            if name == "manifest.json" && changed.eq_ignore_ascii_case(&whole) {
                continue;
            }
            fs::write(&path, changed).unwrap();
            fails_by_name(None, "a bit");
        }
        for (what, content) in [
            ("cut", whole[..whole.len() - 1].to_vec()),
            ("empty", vec![]),
            ("longer", [&whole[..], b"x"].concat()),
        ] {
            fs::write(&path, content).unwrap();
            fails_by_name(Some(Kind::DataLoss), what);
        }
        fs::remove_file(&path).unwrap();
        if name == "manifest.json" {
            // What is left is a table as the original writes it.
            assert_eq!(load(&table(3, 10), &pool(), &dir).unwrap(), 5);
        } else {
            fails_by_name(Some(Kind::NotFound), "missing");
        }
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(load(&table(3, 10), &pool(), &dir).unwrap(), 5);
}

#[test]
fn files_are_the_same_whatever_the_number_of_threads() {
    let temp = Temp::new();
    let table = trained(17, 70_000);
    table.remove(Ids::I64(&[0, -4000 + 7919 * 50])).unwrap();
    let (one, three) = (temp.0.join("one"), temp.0.join("three"));
    save(&table, &pool(), &one).unwrap();
    save(&table, &Pool::new(3).unwrap(), &three).unwrap();
    for name in FILES {
        let read = |dir: &Path| fs::read(dir.join(name)).unwrap();
        assert!(read(&one) == read(&three), "{name}");
    }
    let other = self::table(17, 1 << 20);
    load(&other, &Pool::new(3).unwrap(), &one).unwrap();
    assert_eq!(bits(&other), bits(&table));
}

#[test]
fn slots_that_nobody_wants_start_again() {
    let temp = Temp::new();
    let dir = temp.0.join("t");
    let table = trained(4, 9);
    save(&table, &pool(), &dir).unwrap();
    // Not even their files matter.
    fs::remove_dir_all(dir.join("LazyAdam_velocity")).unwrap();
    let other = self::table(4, 100);
    let velocity = |name: &str| name == "LazyAdam_velocity";
    load_chain(&other, &pool(), &[&dir], &|name| !velocity(name)).unwrap();
    let (mut one, mut two) = (table.export().unwrap(), other.export().unwrap());
    assert_eq!(one.embedding, two.embedding);
    assert_eq!(two.slots.len(), 1);
    assert_eq!(one.slots.remove(0), two.slots.remove(0));
    // A table that has the slot already starts it anew in every row.
    train(&other, &[3]);
    load_chain(&other, &pool(), &[&dir], &|_| false).unwrap();
    let found = other.export().unwrap();
    assert_eq!(found.embedding, table.export().unwrap().embedding);
    let zero = |(_, values): &(SlotSpec, Vec<f32>)| values.iter().all(|value| *value == 0.0);
    assert!(found.slots.len() == 2 && found.slots.iter().all(zero));
}

#[test]
fn a_file_outside_of_the_table_is_refused_by_the_name_of_its_manifest() {
    let temp = Temp::new();
    let (dir, path) = (temp.0.join("t"), temp.0.join("t/manifest.json"));
    save(&trained(2, 3), &pool(), &dir).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    for name in ["/dev/zero", "../u/key/slice.data"] {
        let file = format!(r#""files": [{{"path": "{name}", "bytes": 0, "crc32c": "00000000"}},"#);
        let mut bytes = text.replacen(r#""files": ["#, &file, 1).into_bytes();
        sign(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let message = load(&table(2, 10), &pool(), &dir).unwrap_err().to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(message.contains("outside") && message.contains(name));
    }
}
