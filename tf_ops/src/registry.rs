//! Which tables there are, who owns them, and the numbers under which ops know them.
//!
//! Two policies of ownership:
//!
//! | policy | made by | owner | ends |
//! |---|---|---|---|
//! | a session's own | [`Registry::own`] | the one [`Reference`] | with that reference |
//! | shared by name in this process | [`Registry::open`] | the process | with [`Registry::end`] |
//!
//! References to a shared table are counted, but the count ends nothing: the kernels of a worker
//! that was killed are never deleted, so a count of kernels neither reaches 0 when it should nor
//! says that a table is in use.

use crate::sync::{AtomicI64, Mutex, Numbers, Ordering};
use mx_rec_kernels::{Error, Kind, Result};
use std::collections::{hash_map, HashMap};
use std::sync::Arc;

/// What a shared table is made by.
pub(crate) trait Settings {
    /// The first setting in which `other` differs: its name, the value here and the value there.
    fn difference(&self, other: &Self) -> Option<(String, String, String)>;
}

/// Tables of type `T` by number, and by name those that are shared, which are made by settings of
/// type `S`. A `G` is held for each table while it is registered.
///
/// Lock order: the names, then one part of the numbers (a `DashMap` has parts with a lock each).
pub(crate) struct Registry<T, S, G> {
    next: AtomicI64,
    hold: Box<dyn Fn() -> G + Send + Sync>,
    numbers: Numbers<Entry<T, G>>,
    names: Mutex<HashMap<String, Shared<S>>>,
}

struct Entry<T, G> {
    table: Arc<T>,
    _hold: G,
}

struct Shared<S> {
    number: i64,
    settings: S,
    references: usize,
}

/// A kernel's claim on a table, given back when it is dropped.
pub(crate) struct Reference<'a, T, S, G> {
    registry: &'a Registry<T, S, G>,
    number: i64,
    /// `None`: this reference owns the table.
    shared: Option<String>,
}

impl<T, S: Settings, G> Registry<T, S, G> {
    /// No tables. Numbers begin at `first`, and `hold` makes what is held for each table.
    pub(crate) fn new(first: i64, hold: impl Fn() -> G + Send + Sync + 'static) -> Self {
        Self {
            next: AtomicI64::new(first),
            hold: Box::new(hold),
            numbers: Numbers::new(),
            names: Mutex::new(HashMap::new()),
        }
    }

    /// Takes in a table that ends with the reference.
    pub(crate) fn own(&self, table: T) -> Reference<'_, T, S, G> {
        Reference {
            registry: self,
            number: self.insert(table),
            shared: None,
        }
    }

    /// The shared table `name`: the one that is there, or a new one by `make`. It stays when the
    /// reference is gone.
    ///
    /// # Errors
    /// `InvalidArgument` if the table was made by other settings, with the first that differs; the
    /// errors of `make`.
    pub(crate) fn open(
        &self,
        name: &str,
        settings: S,
        make: impl FnOnce(&S) -> Result<T>,
    ) -> Result<Reference<'_, T, S, G>> {
        // Held while the table is made: whoever opens the name at the same time finds it.
        let mut names = self.names.lock();
        let number = match names.entry(name.to_owned()) {
            hash_map::Entry::Occupied(mut found) => {
                let found = found.get_mut();
                if let Some((setting, here, there)) = found.settings.difference(&settings) {
                    return Err(Error::invalid(
                        "the table is shared in this process and was made by another configuration",
                    )
                    .with("table", name)
                    .with("setting", setting)
                    .with("made_by", here)
                    .with("asked_for", there));
                }
                found.references += 1;
                found.number
            }
            hash_map::Entry::Vacant(place) => {
                let number = self.insert(make(&settings)?);
                place.insert(Shared {
                    number,
                    settings,
                    references: 1,
                });
                number
            }
        };
        drop(names);
        Ok(Reference {
            registry: self,
            number,
            shared: Some(name.to_owned()),
        })
    }

    /// Ends the shared table `name`, whoever refers to it: its number is then of no table, and the
    /// name can be opened afresh.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub(crate) fn end(&self, name: &str) -> Result<()> {
        let mut names = self.names.lock();
        let Some(shared) = names.remove(name) else {
            return Err(Error::new(
                Kind::NotFound,
                "no table of this name is shared in this process",
            )
            .with("table", name));
        };
        let entry = self.remove(shared.number);
        drop(names);
        drop(entry);
        Ok(())
    }

    /// How many references to the shared table `name` there are; `None` without such a table.
    pub(crate) fn references(&self, name: &str) -> Option<usize> {
        self.names.lock().get(name).map(|shared| shared.references)
    }
}

impl<T, S, G> Registry<T, S, G> {
    /// The table with that number. It stays alive while the caller holds it, also if it ends
    /// meanwhile.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub(crate) fn get(&self, number: i64) -> Result<Arc<T>> {
        let found = self.numbers.read(number, |entry| Arc::clone(&entry.table));
        found.ok_or_else(|| {
            Error::new(
                Kind::NotFound,
                "the handle is of no table: its session was closed, or it was not made by \
                 MxRecTable in this process",
            )
            .with("handle", number)
        })
    }

    /// Gives a table a number that no other table of the process has or had.
    fn insert(&self, table: T) -> i64 {
        let entry = Entry {
            table: Arc::new(table),
            _hold: (self.hold)(),
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.numbers.insert(number, entry);
        number
    }

    /// Takes a table out. The caller drops it, with no lock held: a table's end takes time.
    fn remove(&self, number: i64) -> Option<Entry<T, G>> {
        self.numbers.remove(number)
    }
}

impl<T, S, G> Reference<'_, T, S, G> {
    /// The number under which ops know the table.
    pub(crate) fn number(&self) -> i64 {
        self.number
    }
}

impl<T, S, G> Drop for Reference<'_, T, S, G> {
    fn drop(&mut self) {
        match &self.shared {
            None => drop(self.registry.remove(self.number)),
            Some(name) => {
                let mut names = self.registry.names.lock();
                // A table of this name that was opened after the end of ours is another one's.
                if let Some(shared) = names.get_mut(name).filter(|one| one.number == self.number) {
                    shared.references -= 1;
                }
            }
        }
    }
}
