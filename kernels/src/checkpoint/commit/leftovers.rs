//! What saves of dead processes left goes when the next save begins.

use super::lock::Lock;
use super::names::{is_of, is_temporary, is_unnamed, variables, Hidden, Place};
use super::processes::{changed, is_alive, is_in_use, is_token_in_use, started};
use super::recovery::{drop_dir, put_back_all};
use super::steps::{exists, list, Level, Outcome, Refused, Steps};
use crate::checkpoint::format::MANIFEST;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Makes ready for a save of the tables of `directory`: its parent is made, and what dead processes
/// left of saves with its base name is put back or removed, with tables whose variables are gone,
/// unless a delta follows them. No other save begins meanwhile.
///
/// # Errors
/// What the system says; `NoDirectory` if something else is in the way of the tables, and
/// `InvalidArgument` if the name is none of a directory of tables.
pub fn clean(directory: &Path, steps: &mut Steps<'_>) -> Result<(), Refused> {
    let place = Place::new(directory)?;
    let parent = &place.parent;
    steps.make_dir(parent, true)?;
    let _lock = Lock::of(parent);
    // One look: a save of the same step may be moving the tables away.
    let is_in_the_way = fs::symlink_metadata(directory).is_ok_and(|found| {
        let is_directory = found.is_dir() || found.is_symlink() && directory.is_dir();
        !is_directory
    });
    if is_in_the_way {
        return Err(Refused::NoDirectory(directory.to_owned()));
    }
    let names = || list(parent).map_err(Refused::at(parent));
    let of_base =
        |entry: &String| Hidden::parse(entry).filter(|hidden| is_of(&hidden.name, place.base()));
    let all: Vec<Hidden> = names()?.iter().filter_map(of_base).collect();
    let is_live = |one: &Hidden| is_in_use(&place, one);
    let (live, hidden): (Vec<Hidden>, Vec<Hidden>) = all.into_iter().partition(is_live);
    let owners: BTreeSet<&str> = hidden.iter().map(|one| one.name.as_str()).collect();
    for owner in owners {
        put_back_all(&place.beside(owner), None, steps)?;
    }
    for one in &hidden {
        remove(&parent.join(&one.entry), steps);
    }
    let mut orphans = names()?;
    orphans.retain(|name| {
        let is_other = *name != place.name && is_of(name, place.base());
        let is_owned = live.iter().any(|one| one.name == *name);
        is_other && !is_owned && lacks_variables(&place.beside(name))
    });
    let followed = match orphans.is_empty() {
        true => BTreeSet::new(),
        false => followed(&place).map_err(Refused::at(parent))?,
    };
    for name in &orphans {
        let orphan = place.beside(name);
        for file in variables(parent, orphan.checkpoint()).map_err(Refused::at(parent))? {
            remove(&parent.join(file), steps);
        }
        if !followed.contains(name) {
            tell_removal(&orphan.path(), steps);
            drop_dir(&orphan.path(), &orphan, steps);
        }
    }
    if live.is_empty() {
        // None of them is of a save that is under way.
        remove_temporary(&place, steps)?;
    }
    Ok(())
}

/// The directories of tables that deltas with variables follow, of the base name of `place`.
fn followed(place: &Place) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for name in list(&place.parent)? {
        let mut delta = place.beside(&name);
        if !is_of(&name, place.base()) || !exists(&place.parent.join(delta.index())) {
            continue;
        }
        while let Some(content) = delta.manifest() {
            let previous = content.get("previous");
            let said = |member: &str| previous?.get(member)?.as_str();
            let (Some(directory), Some(id)) = (said("directory"), said("id")) else {
                break;
            };
            let next = place.beside(directory);
            let other = next.manifest();
            let is_it = other.is_some_and(|other| other.get("id") == Some(&id.into()));
            if !is_it || !found.insert(directory.to_owned()) {
                break;
            }
            delta = next;
        }
    }
    Ok(found)
}

/// Removes temporary files of TensorFlow that are older than this process.
fn remove_temporary(place: &Place, steps: &mut Steps<'_>) -> Outcome<()> {
    let parent = &place.parent;
    let Some(started) = started(std::process::id().into()) else {
        return Ok(());
    };
    for name in list(parent).map_err(Refused::at(parent))? {
        let path = parent.join(&name);
        if is_temporary(&name, place.base()) && changed(&path) < started {
            remove(&path, steps);
        }
    }
    Ok(())
}

/// Removes what there is of variables whose index was not written: a parameter server that ends as
/// it saves them leaves that.
pub(super) fn remove_unnamed(place: &Place, steps: &mut Steps<'_>) -> Outcome<()> {
    let parent = &place.parent;
    if exists(&parent.join(place.index())) {
        return Ok(());
    }
    let checkpoint = place.checkpoint();
    for name in list(parent).map_err(Refused::at(parent))? {
        if is_unnamed(&name, checkpoint) {
            remove(&parent.join(name), steps);
        }
    }
    Ok(())
}

fn remove(path: &Path, steps: &mut Steps<'_>) {
    if !exists(path) {
        return;
    }
    tell_removal(path, steps);
    if path.is_dir() && !path.is_symlink() {
        steps.remove_tree(path);
    } else {
        steps.remove_file(path);
    }
}

fn tell_removal(path: &Path, steps: &mut Steps<'_>) {
    let text = format!(
        "removing {}, which an interrupted save left.",
        path.display()
    );
    steps.tell(Level::Info, text);
}

/// Whether the variables are gone that a dead process saved with a directory of tables.
fn lacks_variables(place: &Place) -> bool {
    let manifest = place.path().join(MANIFEST);
    // Others are of another version, or were saved without variables.
    place.manifest().is_some_and(|content| {
        let had_variables = content.get("dense").and_then(Value::as_bool) == Some(true);
        let save = content.get("staging").and_then(Value::as_str);
        let is_dead = save.map_or_else(
            || {
                let process = content.get("process").and_then(Value::as_i64);
                process.is_some_and(|process| !is_alive(process, changed(&manifest)))
            },
            |token| !is_token_in_use(place, token, &manifest),
        );
        // Looked for last: a save that was alive before may have ended meanwhile.
        had_variables && is_dead && !place.parent.join(place.index()).is_file()
    })
}
