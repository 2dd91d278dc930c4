//! Puts back what a save had replaced that was cut off or undone; removes what is not needed.

use super::lock::Lock;
use super::names::{variables, Hidden, Place, Use};
use super::processes::{free_token, is_in_use};
use super::steps::{exists, list, Level, Outcome, Refused, Steps};
use std::path::Path;

/// The file that a roll-back makes beside what was kept: it goes with that, whatever happens.
const SCRATCH: &str = ".scratch";

/// Puts back what saves over the tables of `directory` had replaced whose processes are dead.
///
/// # Errors
/// What the system says. Where the name is none of a directory of tables, nothing is done.
pub fn recover(directory: &Path, steps: &mut Steps<'_>) -> Result<(), Refused> {
    match Place::new(directory) {
        Ok(place) if place.parent.is_dir() => {
            let _lock = Lock::of(&place.parent);
            put_back_all(&place, None, steps)
        }
        _ => Ok(()),
    }
}

/// Removes a directory of tables, if it is there: it is gone at once, though removing its files
/// takes time.
///
/// # Errors
/// `InvalidArgument` if the name is none of a directory of tables.
pub fn discard(directory: &Path, steps: &mut Steps<'_>) -> Result<(), Refused> {
    let place = Place::new(directory)?;
    if directory.is_dir() {
        drop_dir(directory, &place, steps);
        if directory.is_dir() {
            let text = format!(
                "the old directory of tables {} could not be removed.",
                directory.display()
            );
            steps.tell(Level::Warning, text);
        }
    }
    Ok(())
}

/// Flushes the files of a checkpoint's variables, and their directory, to the disk.
///
/// # Errors
/// What the system says.
pub fn flush_variables(checkpoint: &Path, steps: &mut Steps<'_>) -> Result<(), Refused> {
    let name = checkpoint.file_name().and_then(|name| name.to_str());
    let (Some(parent), Some(name)) = (checkpoint.parent(), name) else {
        return Err(crate::Error::invalid("no checkpoint has such a name")
            .with("path", checkpoint.display())
            .into());
    };
    for file in variables(parent, name).map_err(Refused::at(parent))? {
        steps.flush(&parent.join(file))?;
    }
    steps.flush(parent)
}

/// Puts back what the save `token` had replaced, or without it those of dead processes.
pub(super) fn put_back_all(
    place: &Place,
    token: Option<&str>,
    steps: &mut Steps<'_>,
) -> Outcome<()> {
    let parent = &place.parent;
    for entry in list(parent).map_err(Refused::at(parent))? {
        let Some(hidden) = Hidden::parse(&entry).filter(|hidden| hidden.name == place.name) else {
            continue;
        };
        let path = parent.join(&entry);
        if matches!(hidden.what, Use::Saving | Use::Gone | Use::Owner)
            || (token != Some(&hidden.token) && is_in_use(place, &hidden))
        {
            continue;
        }
        let is_placed = place.token().as_ref() == Some(&hidden.token);
        match hidden.what {
            Use::Undo if is_placed => {
                let index = place.index();
                // Without earlier variables, an index says that the new checkpoint is whole.
                if exists(&path.join(&index)) || !exists(&parent.join(&index)) {
                    roll_back(place, &hidden.token, steps)?;
                    let text = format!(
                        "put {} and its variables back, which an interrupted save was replacing.",
                        place.path().display()
                    );
                    steps.tell(Level::Warning, text);
                }
                drop_dir(&path, place, steps);
            }
            Use::Old => put_back(&path, place, steps)?,
            Use::Other if !is_placed => put_back(&path, &place.other_kind(), steps)?,
            Use::Other if !place.hidden(Use::Undo, &hidden.token).is_dir() => {
                drop_dir(&path, place, steps);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts back what the save `token` replaced, the variables first; may be done again.
pub(super) fn roll_back(place: &Place, token: &str, steps: &mut Steps<'_>) -> Outcome<()> {
    let parent = &place.parent;
    let undo = place.hidden(Use::Undo, token);
    if undo.is_dir() {
        let kept = list(&undo).map_err(Refused::at(&undo))?;
        for name in variables(parent, place.checkpoint()).map_err(Refused::at(parent))? {
            if !kept.contains(&name) {
                steps.remove_file(&parent.join(name));
            }
        }
        let scratch = undo.join(SCRATCH);
        for name in kept.iter().filter(|name| *name != SCRATCH) {
            steps.remove_file(&scratch);
            steps.link(&undo.join(name), &scratch, true)?;
            steps.rename(&scratch, &parent.join(name))?;
            // Two names of one file are renamed to each other by doing nothing.
            steps.remove_file(&scratch);
        }
        steps.flush(parent)?;
    }
    if place.token().as_deref() == Some(token) {
        take_back(place, token, steps)?;
    }
    let other = place.hidden(Use::Other, token);
    if other.is_dir() {
        put_back(&other, &place.other_kind(), steps)?;
    }
    Ok(())
}

/// Puts back the directory of tables that the save `token` replaced, if there was one.
fn take_back(place: &Place, token: &str, steps: &mut Steps<'_>) -> Outcome<()> {
    let directory = place.path();
    for what in [Use::Saving, Use::Old] {
        let mut earlier = place.hidden(what, token);
        if !earlier.is_dir() {
            continue;
        }
        if !steps.exchange(&earlier, &directory) {
            if what == Use::Saving {
                let old = place.hidden(Use::Old, token);
                steps.rename(&earlier, &old)?;
                earlier = old;
            }
            discard(&directory, steps)?;
            steps.rename(&earlier, &directory)?;
        }
        return Ok(());
    }
    discard(&directory, steps)
}

/// Renames a directory that a save had taken away, if there is no other.
fn put_back(path: &Path, place: &Place, steps: &mut Steps<'_>) -> Outcome<()> {
    let directory = place.path();
    if !exists(&directory) {
        steps.rename(path, &directory)?;
        let text = format!(
            "put {} back, which an interrupted save had renamed.",
            directory.display()
        );
        steps.tell(Level::Warning, text);
    }
    Ok(())
}

/// Removes `path`, which belongs to the tables of `place`, if it is a directory.
pub(super) fn drop_dir(path: &Path, place: &Place, steps: &mut Steps<'_>) {
    if !path.is_dir() {
        return;
    }
    let gone = place.hidden(Use::Gone, &free_token(place));
    let path = match steps.rename(path, &gone) {
        Ok(()) => &gone,
        Err(_) => path,
    };
    if path.is_symlink() {
        // What it leads to is not the checkpoint's.
        steps.remove_file(path);
    } else {
        steps.remove_tree(path);
    }
}
