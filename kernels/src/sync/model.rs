//! The locks of `parking_lot`, as far as they are used here, on top of a model checker's.
//!
//! A lock's value lies in a lock of the standard library, which nobody ever waits for: who may have
//! it is decided in the model.

use shuttle::sync::{Condvar, Mutex as State, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLock as Value, RwLockReadGuard as Shared, RwLockWriteGuard as Own};

/// As `parking_lot::Mutex`.
#[derive(Default)]
pub(crate) struct Mutex<T>(State<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(State::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who has a lock.
#[derive(Default)]
struct Holders {
    readers: usize,
    is_written: bool,
    /// They keep new readers out.
    waiting_writers: usize,
}

/// As `parking_lot::RwLock`.
#[derive(Default)]
pub(crate) struct RwLock<T> {
    holders: State<Holders>,
    changed: Condvar,
    value: Value<T>,
}

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock {
            holders: State::default(),
            changed: Condvar::new(),
            value: Value::new(value),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        let mut holders = self.holders();
        while holders.is_written || holders.waiting_writers > 0 {
            let woken = self.changed.wait(holders);
            holders = woken.unwrap_or_else(PoisonError::into_inner);
        }
        holders.readers += 1;
        drop(holders);
        self.shared()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        let mut holders = self.holders();
        holders.waiting_writers += 1;
        while holders.is_written || holders.readers > 0 {
            let woken = self.changed.wait(holders);
            holders = woken.unwrap_or_else(PoisonError::into_inner);
        }
        holders.waiting_writers -= 1;
        holders.is_written = true;
        drop(holders);
        self.own()
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let mut holders = self.holders();
        if holders.is_written || holders.readers > 0 {
            return None;
        }
        holders.is_written = true;
        drop(holders);
        Some(self.own())
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> RwLockReadGuard<'_, T> {
        let value = self.value.try_read();
        RwLockReadGuard {
            lock: self,
            value: Some(value.ok().expect("a lock of the model has a writer")),
        }
    }

    fn own(&self) -> RwLockWriteGuard<'_, T> {
        let value = self.value.try_write();
        RwLockWriteGuard {
            lock: self,
            value: Some(value.ok().expect("a lock of the model has a holder")),
        }
    }

    fn release(&self, change: impl FnOnce(&mut Holders)) {
        change(&mut self.holders());
        self.changed.notify_all();
    }
}

/// As `parking_lot::RwLockReadGuard`.
pub(crate) struct RwLockReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    value: Option<Shared<'a, T>>,
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until the drop")
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.lock.release(|holders| holders.readers -= 1);
    }
}

/// As `parking_lot::RwLockWriteGuard`.
pub(crate) struct RwLockWriteGuard<'a, T> {
    lock: &'a RwLock<T>,
    value: Option<Own<'a, T>>,
}

impl<'a, T> RwLockWriteGuard<'a, T> {
    pub(crate) fn downgrade(mut guard: Self) -> RwLockReadGuard<'a, T> {
        let lock = guard.lock;
        guard.value = None;
        std::mem::forget(guard);
        let shared = lock.shared();
        lock.release(|holders| {
            holders.is_written = false;
            holders.readers += 1;
        });
        shared
    }

    pub(crate) fn unlock_fair(guard: Self) {
        drop(guard);
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until the drop")
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until the drop")
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.lock.release(|holders| holders.is_written = false);
    }
}
