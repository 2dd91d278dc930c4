//! Tables that the processes of a cluster share: a parameter server holds a part of each by name.
//!
//! | event | the part |
//! |---|---|
//! | [`SharedTables::renew`], the chief's initialization | is empty and open |
//! | [`SharedTables::stage`], the first half of a restore | is as it was; its new content waits |
//! | [`SharedTables::publish`], the second half | has the new content and is open |
//! | [`SharedTables::discard`], after a restore that failed | is as it was; nothing waits |
//!
//! The process owns a shared table: it ends with the process, or when its name is renewed. Kernels
//! are not counted for that, because those of a worker that was killed are never deleted. Whoever
//! uses a table names it and its settings, which are compared at each use.

use crate::sync::Mutex;
use mx_rec_kernels::{Error, Kind, Partition, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// What a shared table is made by.
pub(crate) trait Settings {
    /// The first setting in which `other`, of a user of the table that was made by these, differs:
    /// its name, the value here and the value there.
    fn difference(&self, other: &Self) -> Option<(String, String, String)>;
}

/// A part of a table, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) table: String,
    pub(crate) part: Partition,
}

impl Name {
    /// An error with the name.
    pub(crate) fn of(&self, error: Error) -> Error {
        error
            .with("table", &self.table)
            .with("part", self.part.part())
            .with("parts", self.part.parts())
    }
}

/// Parts of type `T`, made by settings of type `S`. A `G` is held for each.
pub(crate) struct SharedTables<T, S, G> {
    hold: Box<dyn Fn() -> G + Send + Sync>,
    names: Mutex<HashMap<Name, Place<T, S, G>>>,
}

struct Place<T, S, G> {
    open: Option<Made<T, S, G>>,
    staged: Option<Made<T, S, G>>,
}

struct Made<T, S, G> {
    table: Arc<T>,
    settings: S,
    _hold: G,
}

impl<T, S: Settings, G> SharedTables<T, S, G> {
    /// No tables; `hold` makes what is held for each.
    pub(crate) fn new(hold: impl Fn() -> G + Send + Sync + 'static) -> Self {
        Self {
            hold: Box::new(hold),
            names: Mutex::new(HashMap::new()),
        }
    }

    /// Makes `table` the part, open, in the place of whatever was there. Parts of the same table in
    /// another number of parts end: an earlier job left them.
    pub(crate) fn renew(&self, name: Name, settings: S, table: T) {
        let open = Some(self.made(settings, table));
        let place = Place { open, staged: None };
        let mut names = self.names.lock();
        let others = |one: &Name| one.table == name.table && one.part.parts() != name.part.parts();
        let strangers: Vec<Name> = names.keys().filter(|one| others(one)).cloned().collect();
        let mut ended: Vec<_> = strangers.iter().map(|one| names.remove(one)).collect();
        ended.push(names.insert(name, place));
        drop(names);
        // A table's end takes time: not under the lock.
        drop(ended);
    }

    /// Keeps `table` until it is published.
    pub(crate) fn stage(&self, name: Name, settings: S, table: T) {
        let staged = self.made(settings, table);
        let mut names = self.names.lock();
        let place = names.entry(name).or_insert(Place {
            open: None,
            staged: None,
        });
        let old = place.staged.replace(staged);
        drop(names);
        drop(old);
    }

    /// Forgets what is staged.
    pub(crate) fn discard(&self, name: &Name) {
        let mut names = self.names.lock();
        let old = names.get_mut(name).and_then(|place| place.staged.take());
        drop(names);
        drop(old);
    }

    /// Opens what was staged, in the place of whatever was there.
    ///
    /// # Errors
    /// `Aborted` if nothing is staged: the process was started again since.
    pub(crate) fn publish(&self, name: &Name) -> Result<Arc<T>> {
        let mut names = self.names.lock();
        let staged = names
            .get_mut(name)
            .and_then(|place| Some((place.staged.take()?, place)));
        let Some((staged, place)) = staged else {
            return Err(refused(
                name,
                "no restored content waits for the table in this process, which was started \
                 again meanwhile; restore again",
            ));
        };
        let table = Arc::clone(&staged.table);
        let old = place.open.replace(staged);
        drop(names);
        drop(old);
        Ok(table)
    }

    /// The part, if it is open and was made by these settings. It stays alive while the caller
    /// holds it, also if it ends meanwhile.
    ///
    /// # Errors
    /// `Aborted` if it is not open; `InvalidArgument` if it was made by other settings, with the
    /// first that differs.
    pub(crate) fn find(&self, name: &Name, settings: &S) -> Result<Arc<T>> {
        let names = self.names.lock();
        let Some(made) = names.get(name).and_then(|place| place.open.as_ref()) else {
            return Err(refused(
                name,
                "the parameter server has not got the table yet: it was started again, or the \
                 chief initializes or restores it; wait until the session is ready",
            ));
        };
        match made.settings.difference(settings) {
            None => Ok(Arc::clone(&made.table)),
            Some((setting, here, there)) => {
                let message = "the table is shared and was made by another configuration";
                Err(name
                    .of(Error::invalid(message))
                    .with("setting", setting)
                    .with("made_by", here)
                    .with("asked_for", there))
            }
        }
    }

    /// The parts that are open. Each stays alive while the caller holds it.
    pub(crate) fn open(&self) -> Vec<Arc<T>> {
        let names = self.names.lock();
        let open = names.values().filter_map(|place| place.open.as_ref());
        open.map(|made| Arc::clone(&made.table)).collect()
    }

    fn made(&self, settings: S, table: T) -> Made<T, S, G> {
        Made {
            table: Arc::new(table),
            settings,
            _hold: (self.hold)(),
        }
    }
}

fn refused(name: &Name, message: &str) -> Error {
    name.of(Error::new(Kind::Aborted, message))
}
