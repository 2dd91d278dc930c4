//! Which tables of sessions there are, and the numbers under which ops know them.
//!
//! A table of a session is owned by the one [`Reference`] to it, and ends with that reference.
//! Tables that processes share by name are in `shared.rs`.

use crate::sync::{AtomicI64, Numbers, Ordering};
use mx_rec_kernels::{Error, Kind, Result};
use std::sync::Arc;

/// Tables of type `T` by number. A `G` is held for each table while it is registered.
pub(crate) struct Registry<T, G> {
    next: AtomicI64,
    hold: Box<dyn Fn() -> G + Send + Sync>,
    numbers: Numbers<Entry<T, G>>,
}

struct Entry<T, G> {
    table: Arc<T>,
    _hold: G,
}

/// A kernel's claim on a table, which ends with it.
pub(crate) struct Reference<'a, T, G> {
    registry: &'a Registry<T, G>,
    number: i64,
}

impl<T, G> Registry<T, G> {
    /// No tables. Numbers begin at `first`, and `hold` makes what is held for each table.
    pub(crate) fn new(first: i64, hold: impl Fn() -> G + Send + Sync + 'static) -> Self {
        Self {
            next: AtomicI64::new(first),
            hold: Box::new(hold),
            numbers: Numbers::new(),
        }
    }

    /// Takes in a table that ends with the reference.
    pub(crate) fn own(&self, table: T) -> Reference<'_, T, G> {
        let entry = Entry {
            table: Arc::new(table),
            _hold: (self.hold)(),
        };
        // One that no other table of the process has or had.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.numbers.insert(number, entry);
        Reference {
            registry: self,
            number,
        }
    }

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
                 MxRecTable or MxRecPart in this process",
            )
            .with("handle", number)
        })
    }

    /// All tables. Each stays alive while the caller holds it.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.numbers.list(|entry| Arc::clone(&entry.table))
    }
}

impl<T, G> Reference<'_, T, G> {
    /// The number under which ops know the table.
    pub(crate) fn number(&self) -> i64 {
        self.number
    }
}

impl<T, G> Drop for Reference<'_, T, G> {
    fn drop(&mut self) {
        // Dropped with no lock held: a table's end takes time.
        drop(self.registry.numbers.remove(self.number));
    }
}
