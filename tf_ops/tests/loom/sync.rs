//! What `src/sync.rs` has, by loom.

pub(crate) use loom::sync::atomic::{AtomicI64, Ordering};
use loom::sync::MutexGuard;
use std::collections::HashMap;

/// A lock that a panic does not poison: the model ends with the panic.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panicked")
    }
}

/// Values by number: one lock in the place of each part's of a `DashMap`.
pub(crate) struct Numbers<V>(loom::sync::RwLock<HashMap<i64, V>>);

impl<V> Numbers<V> {
    pub(crate) fn new() -> Self {
        Self(loom::sync::RwLock::new(HashMap::new()))
    }

    pub(crate) fn insert(&self, number: i64, value: V) {
        let old = self
            .0
            .write()
            .expect("no thread panicked")
            .insert(number, value);
        drop(old);
    }

    pub(crate) fn read<T>(&self, number: i64, f: impl FnOnce(&V) -> T) -> Option<T> {
        self.0
            .read()
            .expect("no thread panicked")
            .get(&number)
            .map(f)
    }

    pub(crate) fn list<T>(&self, f: impl Fn(&V) -> T) -> Vec<T> {
        let values = self.0.read().expect("no thread panicked");
        values.values().map(f).collect()
    }

    pub(crate) fn remove(&self, number: i64) -> Option<V> {
        self.0.write().expect("no thread panicked").remove(&number)
    }
}
