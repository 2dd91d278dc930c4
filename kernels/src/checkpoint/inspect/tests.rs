//! Looks at tables as they were saved, and as something damaged them.

use super::{describe, diff, row, verify, Fault, Keys, Number, Report};
use crate::checkpoint::manifest::sign;
use crate::checkpoint::save;
use crate::checkpoint::temp::Temp;
use crate::singles::{Singles as _, Target};
use crate::{Ids, Initializer, LazyAdam, Pool, RowOptimizer, Sgd, Table, TableConfig};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rows by key: embedding, then slots.
type Rows = [(i64, Vec<Vec<f32>>)];

/// Writes the files of the original, without a manifest.
fn write(dir: &Path, dim: usize, slots: &[&str], rows: &Rows) {
    let words = |words: &[usize]| -> Vec<u8> {
        let bytes = words.iter().map(|word| (*word as u64).to_le_bytes());
        bytes.flatten().collect()
    };
    let part = |name: &str, attribute: Vec<u8>, data: Vec<u8>| {
        fs::create_dir_all(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("slice.attribute"), attribute).unwrap();
        fs::write(dir.join(name).join("slice.data"), data).unwrap();
    };
    let keys = rows.iter().flat_map(|(key, _)| key.to_le_bytes()).collect();
    part("key", words(&[rows.len(), 8]), keys);
    for (at, name) in std::iter::once(&"embedding").chain(slots).enumerate() {
        let floats = rows.iter().flat_map(|(_, parts)| &parts[at]);
        let data = floats.flat_map(|value| value.to_le_bytes()).collect();
        part(name, words(&[rows.len(), dim, 4]), data);
    }
}

/// Saves a table of `keys`, trained one step, as the engine does.
fn saved(dir: &Path, keys: &[i64]) -> Table {
    let table = Table::new(TableConfig {
        seed: 3,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        ..TableConfig::new("t", 3, 1 << 20)
    })
    .unwrap();
    let adam = LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap();
    train(&table, keys, &adam);
    save(&table, &Pool::new(1).unwrap(), dir).unwrap();
    table
}

fn train(table: &Table, keys: &[i64], optimizer: &dyn RowOptimizer) {
    let grads = vec![0.5; keys.len() * table.dim()];
    let ids = Target::Ids(Ids::I64(keys));
    table
        .apply(&Pool::new(1).unwrap(), ids, &grads, optimizer)
        .unwrap();
}

fn go_on(_: u64, _: u64) -> bool {
    true
}

fn verified(dir: &Path) -> Report {
    verify(dir, &mut go_on).unwrap()
}

/// `file: message` of each fault.
fn lines(faults: &[Fault]) -> Vec<String> {
    let line = |fault: &Fault| format!("{}: {}", fault.file, fault.message);
    faults.iter().map(line).collect()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn floats(values: &[f32]) -> Vec<f32> {
    values.to_vec()
}

fn two_rows() -> Vec<(i64, Vec<Vec<f32>>)> {
    vec![
        (7, vec![floats(&[0.1, f32::NAN]), floats(&[1.0, 2.0])]),
        (
            i64::MIN,
            vec![floats(&[f32::NEG_INFINITY, -0.0]), floats(&[3.0, 4.0])],
        ),
    ]
}

#[test]
fn files_of_the_original_are_described_and_have_no_checksums() {
    let temp = Temp::new();
    write(&temp.0, 2, &["LazyAdam_m"], &two_rows());
    let found = describe(&temp.0).unwrap();
    assert_eq!(
        (found.version, found.rows, found.dim),
        (0, Some(2), Some(2))
    );
    assert_eq!(found.slots[0].name, "LazyAdam_m");
    assert_eq!(found.slots[0].initial, None);
    let parts: Vec<u64> = found.parts.iter().map(|part| part.bytes).collect();
    assert_eq!(parts, [16, 16, 16]);
    assert_eq!(found.bytes, 3 * 16 + 16 + 2 * 24);
    assert_eq!(found.faults, []);
    let report = verified(&temp.0);
    assert_eq!((report.files, report.bytes, report.checksums), (3, 48, 0));
    assert_eq!(report.faults, []);
}

#[test]
fn a_saved_table_is_described_with_the_values_of_new_rows_and_is_whole() {
    let temp = Temp::new();
    saved(&temp.at("t"), &[5, -7, i64::MAX]);
    let found = describe(&temp.at("t")).unwrap();
    assert!(found.version >= 1);
    assert_eq!((found.rows, found.dim), (Some(3), Some(3)));
    assert!(found.slots.iter().all(|slot| slot.initial == Some(0.0)));
    assert_eq!(found.slots.len(), 2);
    assert_eq!(found.faults, []);
    assert_eq!(verified(&temp.at("t")).faults, []);
}

#[test]
fn every_fault_is_told_with_its_file_not_the_first_only() {
    let temp = Temp::new();
    let mut rows = two_rows();
    rows.extend(two_rows());
    rows.push((-1, vec![floats(&[0.0; 2]), floats(&[0.0; 2])]));
    write(&temp.0, 2, &["a", "b", "c", "d"], &[]);
    write(&temp.0, 2, &["LazyAdam_m"], &rows);
    fs::write(temp.at("embedding/slice.data"), [0; 39]).unwrap();
    fs::write(temp.at("b/slice.attribute"), [255; 24]).unwrap();
    fs::write(temp.at("c/slice.attribute"), [0; 23]).unwrap();
    fs::remove_file(temp.at("d/slice.data")).unwrap();
    assert_eq!(
        lines(&verified(&temp.0).faults),
        [
            "embedding/slice.data: a file's size is not what its attribute says \
             (bytes=39, rows=5, bytes_per_row=8)",
            "a/slice.attribute: a part has another number of rows than there are keys \
             (rows=0, keys=5)",
            "b/slice.attribute: an attribute file has a negative number",
            "c/slice.attribute: an attribute file has a wrong size (bytes=23, expected=24)",
            "d/slice.attribute: a part has another number of rows than there are keys \
             (rows=0, keys=5)",
            "d/slice.data: cannot find a file of the checkpoint (cause=No such file or directory \
             (os error 2))",
            "key/slice.data: a key is the padding key -1 (times=1)",
            "key/slice.data: keys occur more than once (first=-9223372036854775808, surplus_rows=2)",
        ]
    );
}

#[test]
fn a_missing_part_is_told_and_the_rest_is_still_read() {
    let temp = Temp::new();
    write(&temp.0, 2, &["x"], &two_rows());
    fs::remove_dir_all(temp.at("key")).unwrap();
    fs::write(temp.at("x/slice.attribute"), [0; 3]).unwrap();
    let faults = verified(&temp.0).faults;
    let files: Vec<&str> = faults.iter().map(|fault| fault.file.as_str()).collect();
    assert_eq!(
        files,
        ["key/slice.attribute", "key/slice.data", "x/slice.attribute"]
    );
    assert_eq!(verified(&temp.0).files, 2);
}

#[test]
fn what_is_no_directory_is_an_error() {
    let temp = Temp::new();
    fs::write(temp.at("file"), "").unwrap();
    for name in ["file", "none"] {
        assert!(describe(&temp.at(name)).is_err());
        assert!(verify(&temp.at(name), &mut go_on).is_err());
        assert!(row(&temp.at(name), 1, &mut go_on).is_err());
        assert!(diff(&temp.at(name), &temp.at(name), &mut go_on).is_err());
    }
}

#[test]
fn a_row_is_found_with_all_its_values() {
    let temp = Temp::new();
    write(&temp.0, 2, &["LazyAdam_m"], &two_rows());
    let found = row(&temp.0, i64::MIN, &mut go_on).unwrap().unwrap();
    assert_eq!((found.position, found.seen), (Some(1), None));
    let values: Vec<Vec<u32>> = found
        .parts
        .iter()
        .map(|part| part.values.iter().map(|value| value.0.to_bits()).collect())
        .collect();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    assert_eq!(
        values,
        [bits(&[f32::NEG_INFINITY, -0.0]), bits(&[3.0f32, 4.0])] as [Vec<u32>; 2]
    );
    let json = serde_json::to_string(&row(&temp.0, 7, &mut go_on).unwrap()).unwrap();
    assert!(json.contains("\"values\":[0.1,\"NaN\"]"), "{json}");
    assert_eq!(row(&temp.0, 8, &mut go_on).unwrap(), None);
    assert_eq!(
        serde_json::to_string(&Number(f32::INFINITY)).unwrap(),
        "\"Infinity\""
    );
}

#[test]
fn the_order_of_rows_makes_no_difference() {
    let temp = Temp::new();
    let mut rows: Vec<_> = (0..5000)
        .map(|key: i64| (key * 7919 % 5003, vec![floats(&[key as f32, 1.0])]))
        .collect();
    write(&temp.at("a"), 2, &[], &rows);
    rows.sort_by_key(|row| row.0 * 31 % 5003);
    write(&temp.at("b"), 2, &[], &rows);
    let found = diff(&temp.at("a"), &temp.at("b"), &mut go_on).unwrap();
    assert!(found.equal, "{found:?}");
    assert_eq!(found.parts[0].rows, 0);
    // One bit that is no difference in value.
    rows[17].1[0][1] = 1.0000001;
    rows[18].1[0][0] = f32::NAN;
    write(&temp.at("b"), 2, &[], &rows);
    let found = diff(&temp.at("a"), &temp.at("b"), &mut go_on).unwrap();
    assert!(!found.equal);
    assert_eq!(found.differing.count, 2);
    assert_eq!(found.parts[0].rows, 2);
    assert_eq!(found.parts[0].largest, None);
    assert_eq!(found.parts[0].key, Some(rows[18].0));
}

#[test]
fn tables_of_several_windows_are_compared_whole_and_with_gaps() {
    let temp = Temp::new();
    let row = |key: i64| (key, vec![vec![key as f32; 64]]);
    let mut all: Vec<_> = (0..40_000).map(|at| row(at * 7919 % 40_009)).collect();
    write(&temp.at("a"), 64, &[], &all);
    // Rows far apart, whose neighbours are not read along.
    let few: Vec<_> = all.iter().step_by(700).cloned().collect();
    write(&temp.at("few"), 64, &[], &few);
    let mut found = diff(&temp.at("few"), &temp.at("a"), &mut go_on).unwrap();
    assert_eq!((found.differing.count, found.only_here.count), (0, 0));
    assert_eq!(found.only_there.count, 40_000 - few.len() as u64);
    found = diff(&temp.at("a"), &temp.at("few"), &mut go_on).unwrap();
    assert_eq!(found.only_here.count, 40_000 - few.len() as u64);
    let mut changed = Vec::new();
    for at in (0..all.len()).step_by(997) {
        all[at].1[0][63] += 1.0;
        changed.push(all[at].0);
    }
    all.reverse();
    write(&temp.at("b"), 64, &[], &all);
    found = diff(&temp.at("a"), &temp.at("b"), &mut go_on).unwrap();
    changed.sort_unstable();
    assert_eq!(found.differing.count, changed.len() as u64);
    assert_eq!(found.differing.first, changed[..10]);
    assert_eq!(found.parts[0].largest, Some(1.0));
}

#[test]
fn a_row_far_behind_is_found_where_it_is() {
    let temp = Temp::new();
    let rows: Vec<_> = (0..300_000)
        .map(|key: i64| (-2 - key, vec![vec![key as f32]]))
        .collect();
    write(&temp.0, 1, &[], &rows);
    for at in [0, 131_071, 131_072, 299_999] {
        let found = row(&temp.0, -2 - at, &mut go_on).unwrap().unwrap();
        assert_eq!(found.position, Some(at as u64));
        assert_eq!(found.parts[0].values, [Number(at as f32)]);
    }
    assert_eq!(row(&temp.0, 0, &mut go_on).unwrap(), None);
}

#[test]
fn slots_and_dims_of_one_side_are_told() {
    let temp = Temp::new();
    let rows = two_rows();
    write(&temp.at("a"), 2, &["x"], &rows);
    write(&temp.at("b"), 2, &["y"], &rows);
    write(&temp.at("c"), 1, &[], &[(7, vec![floats(&[0.1])])]);
    let found = diff(&temp.at("a"), &temp.at("b"), &mut go_on).unwrap();
    assert!(!found.equal);
    assert_eq!(found.parts_only_here, ["x"]);
    assert_eq!(found.parts_only_there, ["y"]);
    assert_eq!(found.differing.count, 0);
    let found = diff(&temp.at("a"), &temp.at("c"), &mut go_on).unwrap();
    assert_eq!(found.dims, (2, 1));
    assert!(found.parts.is_empty() && !found.equal);
    assert_eq!(found.only_here.first, [i64::MIN]);
}

#[test]
fn a_trained_row_differs_in_its_embedding_alone() {
    let temp = Temp::new();
    let table = saved(&temp.at("a"), &[5, -7, 9]);
    train(&table, &[-7, 11], &Sgd::new(0.5).unwrap());
    save(&table, &Pool::new(1).unwrap(), &temp.at("b")).unwrap();
    let found = diff(&temp.at("a"), &temp.at("b"), &mut go_on).unwrap();
    assert_eq!(found.differing.first, [-7]);
    assert_eq!(found.only_there.first, [11]);
    assert_eq!(found.only_here, Keys::default());
    let rows: Vec<u64> = found.parts.iter().map(|part| part.rows).collect();
    assert_eq!(rows, [1, 0, 0]);
    let largest = found.parts[0].largest.unwrap();
    assert!((largest - 0.25).abs() < 1e-6, "{largest}");
}

#[test]
fn the_caller_is_told_how_far_it_is_and_may_stop_it() {
    let temp = Temp::new();
    let rows: Vec<_> = (0..300_000).map(|key| (key, vec![vec![1.0]])).collect();
    write(&temp.0, 1, &[], &rows);
    let mut told = Vec::new();
    let mut tell = |done, total| {
        told.push((done, total));
        true
    };
    verify(&temp.0, &mut tell).unwrap();
    diff(&temp.0, &temp.0, &mut tell).unwrap();
    assert!(told.len() > 6);
    assert!(told.iter().all(|(done, total)| done <= total));
    assert_eq!(told[4], (3_600_000, 3_600_000), "{told:?}");
    assert_eq!(told.last(), Some(&(6_000_000, 6_000_000)));
    let mut calls = 0;
    let mut stop = |_, _| {
        calls += 1;
        false
    };
    assert!(verify(&temp.0, &mut stop).is_err());
    assert!(row(&temp.0, 299_999, &mut stop).is_err());
    assert!(diff(&temp.0, &temp.0, &mut stop).is_err());
    assert_eq!(calls, 3);
}

/// Adds a manifest with checksums to the files of a table of dim 2.
fn write_manifest(dir: &Path, rows: usize, slots: &[&str]) {
    let file = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        let below = path.strip_prefix(dir).unwrap().display();
        format!(
            r#"{{"path":"{below}","bytes":{},"crc32c":"{:08x}"}}"#,
            bytes.len(),
            crc32c::crc32c(&bytes)
        )
    };
    let slots: Vec<String> = slots
        .iter()
        .map(|name| format!(r#"{{"name":"{name}","initial":0.1}}"#))
        .collect();
    let files: Vec<String> = files_below(dir).iter().map(file).collect();
    let json = format!(
        r#"{{"version":2,"table":{{"name":"t","dim":2,"seed":3}},"rows":{rows},"slots":[{}],"files":[{}],"#,
        slots.join(","),
        files.join(",")
    );
    write_signed(
        &dir.join("manifest.json"),
        json + "\"manifest_crc32c\": \"00000000\"\n}\n",
    );
}

/// Writes the text of a manifest with its own checksum.
fn write_signed(path: &Path, text: String) {
    let mut bytes = text.into_bytes();
    sign(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn any_bit_of_a_listed_file_that_was_flipped_is_found() {
    let temp = Temp::new();
    write(&temp.0, 2, &["x"], &two_rows());
    write_manifest(&temp.0, 2, &["x"]);
    let whole = verified(&temp.0);
    assert_eq!((whole.version, whole.files, whole.checksums), (2, 6, 6));
    assert_eq!(whole.faults, []);
    let found = describe(&temp.0).unwrap();
    assert_eq!(found.slots[0].initial, Some(0.1));
    assert_eq!(found.config.unwrap()["seed"], 3);
    for file in files_below(&temp.0) {
        if file.ends_with("manifest.json") {
            continue;
        }
        let name = file.strip_prefix(&temp.0).unwrap().display().to_string();
        let bytes = fs::read(&file).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, changed).unwrap();
            let faults = verified(&temp.0).faults;
            let told = |fault: &Fault| fault.file == name && fault.message.contains("checksum");
            assert!(faults.iter().any(told), "{name} bit {bit}: {faults:?}");
        }
        fs::write(&file, &bytes[1..]).unwrap();
        let faults = verified(&temp.0).faults;
        let told = |fault: &Fault| fault.file == name && fault.message.contains("another size");
        assert!(faults.iter().any(told), "{name}: {faults:?}");
        fs::remove_file(&file).unwrap();
        let faults = verified(&temp.0).faults;
        assert_eq!(faults.len(), 1, "a missing file is told once: {faults:?}");
        assert_eq!(faults[0].file, name);
        fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(verified(&temp.0).faults, []);
}

#[test]
fn a_manifest_that_does_not_fit_is_told_and_the_files_are_read_without_it() {
    let temp = Temp::new();
    write(&temp.0, 2, &["x"], &two_rows());
    write_manifest(&temp.0, 2, &["x"]);
    let path = temp.at("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, word) in [
        ("\"version\":2", "\"version\":6", "of another version"),
        ("\"rows\":2", "\"rows\":3", "another number of rows"),
        ("\"rows\":2", "\"rows\":-2", "cannot be understood"),
        ("\"dim\":2", "\"dim\":3", "another dim"),
        ("\"name\":\"x\"", "\"name\":\"y\"", "cannot find"),
        ("\"name\":\"x\"", "\"name\":\"../x\"", "no name"),
        ("key/slice.data", "key/none", "does not list this file"),
        ("key/slice.data", "../other", "outside of the table"),
        ("}", "", "cannot be understood"),
    ] {
        write_signed(&path, text.replacen(from, to, 1));
        let report = verified(&temp.0);
        let told = |fault: &Fault| fault.message.contains(word);
        assert!(report.faults.iter().any(told), "{to}: {:?}", report.faults);
        assert!(report.files >= 3, "{to}");
    }
}

#[test]
fn each_bit_of_a_saved_table_matters_if_there_are_checksums() {
    let temp = Temp::new();
    let dir = temp.at("t");
    saved(&dir, &[5, -7, 9]);
    for file in files_below(&dir) {
        let bytes = fs::read(&file).unwrap();
        let mut changed = bytes.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 0x80;
        fs::write(&file, changed).unwrap();
        assert!(!verified(&dir).faults.is_empty(), "{}", file.display());
        fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(verified(&dir).faults, []);
}

/// What `diff` should say, from maps.
fn naive(a: &BTreeMap<i64, f32>, b: &BTreeMap<i64, f32>) -> (Keys, Keys, Keys, f64) {
    let keys = |keys: Vec<i64>| Keys {
        count: keys.len() as u64,
        first: keys.into_iter().take(10).collect(),
    };
    let lacks = |a: &BTreeMap<i64, f32>, b: &BTreeMap<i64, f32>| {
        keys(
            a.keys()
                .copied()
                .filter(|key| !b.contains_key(key))
                .collect(),
        )
    };
    let both = a.iter().filter_map(|(key, x)| Some((key, x, b.get(key)?)));
    let differing = both.clone().filter(|(_, x, y)| x.to_bits() != y.to_bits());
    let largest = both.map(|(_, x, y)| (f64::from(*x) - f64::from(*y)).abs());
    (
        lacks(a, b),
        lacks(b, a),
        keys(differing.map(|(key, ..)| *key).collect()),
        largest.fold(0.0, f64::max),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_comparison_is_that_of_two_maps(
        a in proptest::collection::hash_map(-30i64..30, -2i8..2, 0..40),
        b in proptest::collection::hash_map(-30i64..30, -2i8..2, 0..40),
    ) {
        let temp = Temp::new();
        let rows = |map: &std::collections::HashMap<i64, i8>| -> Vec<(i64, Vec<Vec<f32>>)> {
            map.iter().map(|(key, value)| (*key, vec![vec![f32::from(*value)]])).collect()
        };
        write(&temp.at("a"), 1, &[], &rows(&a));
        write(&temp.at("b"), 1, &[], &rows(&b));
        let found = diff(&temp.at("a"), &temp.at("b"), &mut go_on).unwrap();
        let ordered = |map: &std::collections::HashMap<i64, i8>| -> BTreeMap<i64, f32> {
            map.iter().map(|(key, value)| (*key, f32::from(*value))).collect()
        };
        let (only_here, only_there, differing, largest) = naive(&ordered(&a), &ordered(&b));
        let same = only_here.count + only_there.count + differing.count == 0;
        prop_assert_eq!(found.equal, same);
        prop_assert_eq!(found.parts[0].largest, Some(largest));
        prop_assert_eq!((found.only_here, found.only_there, found.differing), (only_here, only_there, differing));
    }
}
