//! Locks and shared numbers: the machine's, or with the feature `model` those of a model checker,
//! which decides who runs next.
//!
//! Whatever is held or read where threads meet comes from here: a lock of the machine would stop
//! the model, which runs all its threads in turns on one.

#[cfg(feature = "model")]
mod model;

#[cfg(feature = "model")]
pub(crate) use model::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "model")]
pub(crate) use shuttle::sync::atomic;

#[cfg(not(feature = "model"))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "model"))]
pub(crate) use std::sync::atomic;

/// Lets other threads go on, for a moment.
#[cfg(not(feature = "model"))]
pub(crate) fn pause(moment: std::time::Duration) {
    std::thread::sleep(moment);
}

/// Lets other threads go on.
#[cfg(feature = "model")]
pub(crate) fn pause(_: std::time::Duration) {
    shuttle::thread::yield_now();
}
