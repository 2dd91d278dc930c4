//! The locks and counters of the registry and of the kept buffers. tests/loom puts loom's in their
//! place.

pub(crate) use parking_lot::{Mutex, RwLock};
pub(crate) use std::sync::atomic::{AtomicI64, Ordering};
