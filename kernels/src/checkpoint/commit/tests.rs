//! Saves that end at any step, or of which any step is refused.

use super::*;
use crate::checkpoint::temp::Temp;
use crate::Kind;
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const VARIABLES: [&str; 2] = ["m-1.index", "m-1.data-00000-of-00001"];

/// More steps than any of these saves takes.
const MANY: usize = 200;

/// Which steps are refused.
#[derive(Clone, Copy)]
struct Refusals {
    /// Whether directories can be exchanged.
    exchanges: bool,
    /// The first step that is refused.
    from: usize,
    /// Whether it is the last, too: else the process has ended there.
    once: bool,
}

const NONE: Refusals = Refusals {
    exchanges: true,
    from: usize::MAX,
    once: false,
};

/// Counts steps and refuses some.
struct Disk {
    refusals: Refusals,
    taken: usize,
}

impl Disk {
    fn new(refusals: Refusals) -> Disk {
        Disk { refusals, taken: 0 }
    }

    fn run<T>(&mut self, work: impl FnOnce(&mut Steps<'_>) -> T) -> T {
        let mut before = |step: Step, _: &Path| {
            let number = self.taken;
            self.taken += 1;
            let Refusals {
                exchanges,
                from,
                once,
            } = self.refusals;
            let is_refused = number == from || (number > from && !once);
            if is_refused || (step == Step::Exchange && !exchanges) {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            Ok(())
        };
        work(&mut Steps::new(&mut before))
    }

    /// Whether a step was refused as if the process had ended.
    fn ended(&self) -> bool {
        self.taken > self.refusals.from
    }
}

/// Everything below a directory: path and content.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
            found.insert(path, None);
        } else {
            let content = fs::read(&path).unwrap();
            found.insert(path, Some(content));
        }
    }
    found
}

fn sorted(temp: &Temp) -> Vec<String> {
    let mut names = temp.entries();
    names.sort();
    names
}

pub(super) fn content() -> Map<String, Value> {
    let content = json!({"dense": true, "tables": [{"name": "users", "rows": 2}]});
    content.as_object().unwrap().clone()
}

/// A sound table.
fn users() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/checkpoints/version_2/users")
}

/// Saves a sound table, and `text` beside it, into the hidden directory of a commit.
pub(super) fn save_tables(commit: &Commit, text: &str) {
    // Read once: the schedules save thousands.
    static USERS: LazyLock<BTreeMap<PathBuf, Option<Vec<u8>>>> = LazyLock::new(|| tree(&users()));
    let table = commit.staging().join("users");
    fs::create_dir(&table).unwrap();
    for (path, content) in &*USERS {
        let path = table.join(path.strip_prefix(users()).unwrap());
        match content {
            Some(content) => fs::write(path, content).unwrap(),
            None => fs::create_dir(path).unwrap(),
        }
    }
    fs::write(commit.staging().join("text"), text).unwrap();
}

fn begin(directory: &Path, text: &str, disk: &mut Disk) -> Result<Commit, Refused> {
    disk.run(|steps| clean(directory, steps))?;
    let commit = disk.run(|steps| Commit::begin(directory, steps))?;
    save_tables(&commit, text);
    Ok(commit)
}

/// Writes variables as TensorFlow does: renamed into place, one after the other.
fn save_variables(temp: &Temp, text: &str, disk: &mut Disk) -> Result<(), Refused> {
    for name in VARIABLES {
        let scratch = temp.at("scratch");
        fs::write(&scratch, text).unwrap();
        disk.run(|steps| steps.rename(&scratch, &temp.at(name)))?;
    }
    Ok(())
}

/// A whole save of step 1 as `name`; ends where a step is refused.
fn save(temp: &Temp, name: &str, text: &str, disk: &mut Disk) -> Result<(), Refused> {
    let mut commit = begin(&temp.at(name), text, disk)?;
    disk.run(|steps| commit.put_in_place(&content(), steps))?;
    save_variables(temp, text, disk)?;
    disk.run(|steps| commit.finish(steps)).unwrap();
    Ok(())
}

/// What the tables and the variables of step 1 say; tables of one kind only are there.
fn said(temp: &Temp) -> Vec<String> {
    let tables = ["sparse-m-1/text", "delta-sparse-m-1/text"];
    let files = tables.iter().chain(VARIABLES.iter());
    let texts = files.filter_map(|name| fs::read_to_string(temp.at(name)).ok());
    texts.collect()
}

fn recover_both(temp: &Temp, disk: &mut Disk) -> Result<(), Refused> {
    disk.run(|steps| recover(&temp.at("sparse-m-1"), steps))?;
    disk.run(|steps| recover(&temp.at("delta-sparse-m-1"), steps))
}

/// Every end of a save over another, then every end of what recovers it.
fn cut_off_anywhere(exchanges: bool, earlier: &str) {
    let mut seen = Vec::new();
    for from in 0..MANY {
        for again in 0..MANY {
            let temp = Temp::new();
            save(&temp, earlier, "old", &mut Disk::new(NONE)).unwrap();
            let refusals = |from| Refusals {
                exchanges,
                from,
                once: false,
            };
            let mut disk = Disk::new(refusals(from));
            // The process has ended: nobody hears of it.
            let _ = save(&temp, "sparse-m-1", "new", &mut disk);
            let mut second = Disk::new(refusals(again));
            let _ = recover_both(&temp, &mut second);
            recover_both(&temp, &mut Disk::new(refusals(usize::MAX))).unwrap();
            let found = said(&temp);
            assert!(
                found == ["old"; 3] || found == ["new"; 3],
                "{exchanges} {earlier} {from} {again} {found:?}"
            );
            seen.extend(found.into_iter().take(1));
            let _ = fs::remove_file(temp.at("scratch"));
            let next = temp.at("sparse-m-2");
            let commit = begin(&next, "next", &mut Disk::new(refusals(usize::MAX))).unwrap();
            Disk::new(NONE).run(|steps| commit.undo(steps)).unwrap();
            let left = sorted(&temp);
            assert_eq!(
                left.len(),
                3,
                "{exchanges} {earlier} {from} {again} {left:?}"
            );
            if !disk.ended() {
                assert!(seen.contains(&"old".to_owned()) && seen.contains(&"new".to_owned()));
                assert!(from > 8);
                return;
            }
            if !second.ended() {
                break;
            }
        }
    }
    panic!("a save has fewer than {MANY} steps");
}

#[test]
fn a_save_that_ends_anywhere_leaves_one_of_both_whole() {
    cut_off_anywhere(true, "sparse-m-1");
}

#[test]
fn a_save_that_ends_anywhere_without_an_exchange_leaves_one_of_both_whole() {
    cut_off_anywhere(false, "sparse-m-1");
}

#[test]
fn a_save_over_a_delta_that_ends_anywhere_leaves_one_of_both_whole() {
    cut_off_anywhere(true, "delta-sparse-m-1");
}

#[test]
fn a_step_that_is_refused_leaves_all_as_it_was() {
    for (exchanges, earlier) in [
        (true, Some("sparse-m-1")),
        (false, Some("sparse-m-1")),
        (true, Some("delta-sparse-m-1")),
        (true, None),
    ] {
        let mut refused = 0;
        for from in 0..MANY {
            let temp = Temp::new();
            if let Some(earlier) = earlier {
                save(&temp, earlier, "old", &mut Disk::new(NONE)).unwrap();
            }
            let before = tree(&temp.0);
            let mut disk = Disk::new(Refusals {
                exchanges,
                from,
                once: true,
            });
            let target = temp.at("sparse-m-1");
            let Ok(mut commit) = begin(&target, "new", &mut disk) else {
                assert_eq!(tree(&temp.0), before);
                refused += 1;
                continue;
            };
            if let Err(error) = disk.run(|steps| commit.put_in_place(&content(), steps)) {
                let Refused::System { cause, path, .. } = error else {
                    panic!("{error:?}");
                };
                assert_eq!(cause.raw_os_error(), Some(libc::ENOSPC));
                assert!(path.starts_with(&temp.0));
                refused += 1;
            }
            Disk::new(NONE).run(|steps| commit.undo(steps)).unwrap();
            assert_eq!(tree(&temp.0), before, "{exchanges} {earlier:?} {from}");
            if !disk.ended() {
                break;
            }
        }
        assert!(refused >= 5, "{refused}");
    }
}

#[test]
fn an_undo_that_is_refused_can_be_tried_again() {
    for from in 0..MANY {
        let temp = Temp::new();
        save(&temp, "sparse-m-1", "old", &mut Disk::new(NONE)).unwrap();
        let before = tree(&temp.0);
        let mut good = Disk::new(NONE);
        let mut commit = begin(&temp.at("sparse-m-1"), "new", &mut good).unwrap();
        good.run(|steps| commit.put_in_place(&content(), steps))
            .unwrap();
        save_variables(&temp, "new", &mut good).unwrap();
        let mut disk = Disk::new(Refusals {
            from,
            once: true,
            ..NONE
        });
        if disk.run(|steps| commit.undo(steps)).is_err() {
            good.run(|steps| commit.undo(steps)).unwrap();
        }
        // What could not be removed goes at the next save.
        let commit = begin(&temp.at("sparse-m-2"), "next", &mut good).unwrap();
        assert!(good.run(|steps| commit.undo(steps)).is_ok());
        assert_eq!(tree(&temp.0), before, "{from}");
        if !disk.ended() {
            return;
        }
    }
    panic!("an undo has fewer than {MANY} steps");
}

#[test]
fn a_table_that_is_not_sound_is_refused_before_anything_is_replaced() {
    type Damage = fn(&Path) -> io::Result<()>;
    let damages: [(Kind, Damage); 4] = [
        (Kind::NotFound, |table| {
            fs::remove_file(table.join("manifest.json"))
        }),
        (Kind::NotFound, |table| {
            fs::remove_file(table.join("key/slice.data"))
        }),
        (Kind::DataLoss, |table| {
            fs::write(table.join("key/slice.data"), "x")
        }),
        (Kind::DataLoss, |table| {
            fs::write(table.join("manifest.json"), "{}")
        }),
    ];
    for (kind, damage) in damages {
        let temp = Temp::new();
        save(&temp, "sparse-m-1", "old", &mut Disk::new(NONE)).unwrap();
        let before = tree(&temp.0);
        let mut disk = Disk::new(NONE);
        let mut commit = begin(&temp.at("sparse-m-1"), "new", &mut disk).unwrap();
        damage(&commit.staging().join("users")).unwrap();
        let refused = disk.run(|steps| commit.put_in_place(&content(), steps));
        let Err(Refused::Unsound(error)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("users"), "{error}");
        assert!(disk.run(|steps| commit.undo(steps)).is_ok());
        assert_eq!(tree(&temp.0), before);
    }
}

#[test]
fn what_dead_processes_left_goes_and_the_rest_stays() {
    let temp = Temp::new();
    // No process has this number.
    let dead = i32::MAX;
    let living = std::process::id();
    for name in [
        format!(".sparse-m-1.saving-{dead}-0"),
        format!(".sparse-other-1.saving-{dead}-0"),
        "sparse-m-2".to_owned(),
        "sparse-m-3".to_owned(),
        "sparse-m-4".to_owned(),
        "sparse-m-5".to_owned(),
        "sparse-other-3".to_owned(),
        "delta-sparse-m-8".to_owned(),
    ] {
        fs::create_dir(temp.at(name)).unwrap();
    }
    for (name, dense, process) in [
        ("sparse-m-2", true, dead),
        ("sparse-m-3", true, dead),
        ("sparse-m-4", false, dead),
        ("sparse-m-5", true, living.try_into().unwrap()),
        ("sparse-other-3", true, dead),
    ] {
        let manifest = json!({"dense": dense, "process": process, "id": name}).to_string();
        fs::write(temp.at(name).join("manifest.json"), manifest).unwrap();
    }
    // A delta of a whole checkpoint follows tables without variables.
    let previous = json!({"directory": "sparse-m-2", "id": "sparse-m-2"});
    let manifest = json!({"dense": true, "process": dead, "previous": previous}).to_string();
    fs::write(temp.at("delta-sparse-m-8/manifest.json"), manifest).unwrap();
    fs::write(temp.at("m-8.index"), "").unwrap();
    fs::write(temp.at("m-3.meta"), "").unwrap();
    let mut disk = Disk::new(NONE);
    let in_use = begin(&temp.at("sparse-m-7"), "x", &mut disk).unwrap();
    let target = temp.at("sparse-m-6");
    disk.run(|steps| clean(&target, steps)).unwrap();
    let staging = in_use.staging();
    let staging = staging.file_name().unwrap().to_str().unwrap().to_owned();
    let mut expected = vec![
        staging.replace(".saving-", ".owner-"),
        staging,
        format!(".sparse-other-1.saving-{dead}-0"),
        "delta-sparse-m-8".to_owned(),
        "m-8.index".to_owned(),
        "sparse-m-2".to_owned(),
        "sparse-m-4".to_owned(),
        "sparse-m-5".to_owned(),
        "sparse-other-3".to_owned(),
    ];
    expected.sort();
    assert_eq!(sorted(&temp), expected);
    disk.run(|steps| discard(&temp.at("sparse-m-4"), steps))
        .unwrap();
    assert!(!temp.at("sparse-m-4").exists());
}

#[test]
fn tables_behind_a_link_are_replaced_and_what_it_leads_to_stays() {
    let temp = Temp::new();
    let elsewhere = temp.at("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("text"), "linked").unwrap();
    std::os::unix::fs::symlink(&elsewhere, temp.at("sparse-m-1")).unwrap();
    save(&temp, "sparse-m-1", "new", &mut Disk::new(NONE)).unwrap();
    assert_eq!(said(&temp), ["new"; 3]);
    assert_eq!(
        fs::read_to_string(elsewhere.join("text")).unwrap(),
        "linked"
    );
    assert_eq!(temp.entries().len(), 4);
}

#[test]
fn what_is_in_the_way_of_the_tables_is_named() {
    let temp = Temp::new();
    fs::write(temp.at("sparse-m-1"), "").unwrap();
    fs::write(temp.at("file"), "").unwrap();
    let mut disk = Disk::new(NONE);
    let refused = begin(&temp.at("sparse-m-1"), "x", &mut disk);
    assert!(matches!(refused, Err(Refused::NoDirectory(path)) if path == temp.at("sparse-m-1")));
    let refused = begin(&temp.at("file/sparse-m-1"), "x", &mut disk);
    assert!(matches!(refused, Err(Refused::System { path, .. }) if path == temp.at("file")));
}
