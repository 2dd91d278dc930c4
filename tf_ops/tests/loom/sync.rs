//! What `src/sync.rs` has, by loom.

pub(crate) use loom::sync::atomic::{AtomicI64, Ordering};
use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

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

/// As [`Mutex`].
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect("no thread panicked")
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect("no thread panicked")
    }
}
