//! The registry of this process: tables of the engine, made by configurations.

use crate::config::Settings;
use crate::registry::{self, Registry};
use crate::tf::HoldBuffers;
use mx_rec_kernels::{Result, Table};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

/// A kernel's claim on a table of this process.
pub(crate) type Reference = registry::Reference<'static, Table, Settings, HoldBuffers>;

/// Memory of outputs is kept while a table is registered.
static TABLES: LazyLock<Registry<Table, Settings, HoldBuffers>> = LazyLock::new(|| {
    // Numbers start at a random place, so that one that was kept from another process is refused.
    let random = RandomState::new().build_hasher().finish();
    Registry::new((random >> 16) as i64 + 1, HoldBuffers::new)
});

/// Makes a table that ends with the reference: a session's own.
///
/// # Errors
/// Those of [`Settings::make`].
pub(crate) fn own(settings: Settings) -> Result<Reference> {
    Ok(TABLES.own(settings.make()?))
}

/// The table with that number. It stays alive while the caller holds it, also if its session closes
/// meanwhile.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn get(number: i64) -> Result<Arc<Table>> {
    TABLES.get(number)
}
