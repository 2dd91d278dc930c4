//! A commit: tables come into place all at once, and what they replace is kept until the end.

use super::heartbeat::Heartbeat;
use super::leftovers::remove_unnamed;
use super::lock::Lock;
use super::names::{variables, Hidden, Place, Use};
use super::processes::{began, is_in_use, Token};
use super::recovery::{drop_dir, put_back_all, roll_back};
use super::sealed::manifest;
use super::steps::{exists, list, Outcome, Refused, Steps};
use crate::checkpoint::format::MANIFEST;
use crate::{Error, Kind};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The tables of a checkpoint on their way into their directory.
///
/// `begin`, then the tables are saved into `staging`, then `put_in_place`, then the variables are
/// saved; `finish` when all is well, `undo` when it is not. While it lives, no other save takes its
/// hidden directories for leftovers.
#[derive(Debug)]
pub struct Commit {
    place: Place,
    token: Token,
    heartbeat: Option<Heartbeat>,
    is_placed: bool,
}

impl Commit {
    /// Makes the hidden directory into which the tables of `directory` are to be saved.
    /// [`clean`](super::clean) comes before.
    ///
    /// # Errors
    /// What the system says; `InvalidArgument` if the name is none of a directory of tables;
    /// `Aborted` if another save of the same checkpoint is under way.
    pub fn begin(directory: &Path, steps: &mut Steps<'_>) -> Result<Commit, Refused> {
        let place = Place::new(directory)?;
        let _lock = Lock::of(&place.parent);
        let mut commit = Commit {
            token: Token::new(&place),
            place,
            heartbeat: None,
            is_placed: false,
        };
        let mark = commit.hidden(Use::Owner);
        steps.make_dir(&mark, false)?;
        commit.heartbeat = Some(Heartbeat::start(mark));
        let begun = commit.check_alone();
        let begun = begun.and_then(|()| steps.make_dir(&commit.staging(), false));
        match begun {
            Ok(()) => Ok(commit),
            Err(refused) => {
                commit.drop_hidden(steps);
                Err(refused)
            }
        }
    }

    /// Refuses if a save of the same checkpoint began earlier and is under way: the two would
    /// mix their tables and variables.
    fn check_alone(&self) -> Result<(), Refused> {
        let parent = &self.place.parent;
        let (kinds, own) = (
            [&self.place.name, &self.place.other_kind().name],
            self.token.as_str(),
        );
        let since = began(&self.hidden(Use::Owner));
        for entry in list(parent).map_err(Refused::at(parent))? {
            let found = Hidden::parse(&entry).filter(|one| {
                one.what == Use::Owner && kinds.contains(&&one.name) && one.token != own
            });
            if let Some(other) = found.filter(|one| is_in_use(&self.place, one)) {
                if (began(&parent.join(&entry)), other.token.as_str()) < (since, own) {
                    let message = "another save of this checkpoint is under way; save it under \
                                   another step or base name, or after that one";
                    return Err(Error::new(Kind::Aborted, message)
                        .with("path", self.place.path().display())
                        .with("process", other.process())
                        .into());
                }
            }
        }
        Ok(())
    }

    /// The hidden directory.
    pub fn staging(&self) -> PathBuf {
        self.hidden(Use::Saving)
    }

    /// Writes the manifest, which says `content` and how to tell these tables from others, flushes
    /// it, and makes the hidden directory the checkpoint's. What stood there is kept, and so are
    /// the variables, if the member `dense` says that they are replaced as well.
    ///
    /// # Errors
    /// What the system says, or what is not sound in the tables. What stood there is there still,
    /// or comes back by `undo`.
    pub fn put_in_place(
        &mut self,
        content: &Map<String, Value>,
        steps: &mut Steps<'_>,
    ) -> Result<(), Refused> {
        self.check_alone()?;
        let mut content = content.clone();
        content.insert("process".to_owned(), std::process::id().into());
        content.insert("staging".to_owned(), self.token.as_str().into());
        let (staging, directory) = (self.staging(), self.place.path());
        let text = manifest(&staging, &content)?;
        steps.write(&staging.join(MANIFEST), text.as_bytes())?;
        steps.flush(&staging)?;
        let is_there = directory.is_dir();
        // A delta takes the place of a whole save of its step, and the other way round.
        let other = self.place.other_kind().path();
        let has_variables = content.get("dense").and_then(Value::as_bool) == Some(true);
        let index = self.place.parent.join(self.place.index());
        if has_variables && (is_there || other.is_dir() || exists(&index)) {
            self.keep_variables(steps)?;
        }
        if other.is_dir() {
            steps.rename(&other, &self.hidden(Use::Other))?;
        }
        if !is_there {
            steps.rename(&staging, &directory)?;
        } else if !steps.exchange(&staging, &directory) {
            steps.rename(&directory, &self.hidden(Use::Old))?;
            steps.rename(&staging, &directory)?;
        }
        self.is_placed = true;
        steps.flush(&self.place.parent)
    }

    /// Removes what was replaced.
    ///
    /// # Errors
    /// `Aborted` if the tables are not those of this save any more: somebody has removed or
    /// replaced them since.
    pub fn finish(self, steps: &mut Steps<'_>) -> Result<(), Refused> {
        let is_there = self.place.token().as_deref() == Some(self.token.as_str());
        self.drop_hidden(steps);
        match is_there {
            true => Ok(()),
            false => Err(Error::new(
                Kind::Aborted,
                "the tables of this save are gone: something else has removed or replaced their \
                 directory before the save ended",
            )
            .with("path", self.place.path().display())
            .into()),
        }
    }

    /// Puts back what stood there before; removes what was written. Nothing is to be done with the
    /// commit after that.
    ///
    /// # Errors
    /// What the system says. Nothing is lost: it may be tried again.
    pub fn undo(&self, steps: &mut Steps<'_>) -> Result<(), Refused> {
        let token = self.token.as_str();
        if self.is_placed {
            roll_back(&self.place, token, steps)?;
            remove_unnamed(&self.place, steps)?;
        } else {
            put_back_all(&self.place, Some(token), steps)?;
        }
        self.drop_hidden(steps);
        Ok(())
    }

    /// Keeps the variables that belong to the tables that are replaced.
    fn keep_variables(&self, steps: &mut Steps<'_>) -> Outcome<()> {
        let parent = &self.place.parent;
        let undo = self.hidden(Use::Undo);
        steps.make_dir(&undo, false)?;
        let names = variables(parent, self.place.checkpoint());
        for name in names.map_err(Refused::at(parent))? {
            // TensorFlow may write an index in place; it renames whatever else it writes.
            let may_share = !name.ends_with(".index");
            steps.link(&parent.join(&name), &undo.join(&name), may_share)?;
        }
        steps.flush(&undo)
    }

    fn drop_hidden(&self, steps: &mut Steps<'_>) {
        for what in [Use::Undo, Use::Saving, Use::Old, Use::Other, Use::Owner] {
            drop_dir(&self.hidden(what), &self.place, steps);
        }
    }

    fn hidden(&self, what: Use) -> PathBuf {
        self.place.hidden(what, self.token.as_str())
    }
}
