//! The locks, counters and map of the registry and of the kept buffers. tests/loom puts loom's in
//! their place.

use dashmap::DashMap;
pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicI64, Ordering};

/// Values by number. Every op of every session reads it; a session writes it when it opens and when
/// it closes.
pub(crate) struct Numbers<V>(DashMap<i64, V>);

impl<V> Numbers<V> {
    /// No values.
    pub(crate) fn new() -> Self {
        Self(DashMap::new())
    }

    /// Puts a value in.
    pub(crate) fn insert(&self, number: i64, value: V) {
        self.0.insert(number, value);
    }

    /// What `f` makes of the value of a number, if it has one. `f` may not use the map.
    pub(crate) fn read<T>(&self, number: i64, f: impl FnOnce(&V) -> T) -> Option<T> {
        self.0.get(&number).map(|entry| f(entry.value()))
    }

    /// What `f` makes of every value. `f` may not use the map.
    pub(crate) fn list<T>(&self, f: impl Fn(&V) -> T) -> Vec<T> {
        self.0.iter().map(|entry| f(entry.value())).collect()
    }

    /// Takes a value out.
    pub(crate) fn remove(&self, number: i64) -> Option<V> {
        self.0.remove(&number).map(|(_, value)| value)
    }
}
