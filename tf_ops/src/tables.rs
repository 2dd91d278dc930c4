//! The registry of this process: tables of the engine, made by configurations.

use crate::config::Settings;
use crate::registry::{self, Registry};
use crate::shared::SharedTables;
use crate::tf::HoldBuffers;
use mx_rec_kernels::{Result, Table};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};

/// A kernel's claim on a table of this process.
pub(crate) type Reference = registry::Reference<'static, Table, HoldBuffers>;

/// Memory of outputs is kept while a table is registered.
static TABLES: LazyLock<Registry<Table, HoldBuffers>> = LazyLock::new(|| {
    // Numbers start at a random place, so that one that was kept from another process is refused.
    let random = RandomState::new().build_hasher().finish();
    Registry::new((random >> 16) as i64 + 1, HoldBuffers::new)
});

/// The parts of tables that this process holds for a cluster.
pub(crate) static SHARED: LazyLock<SharedTables<Part, Settings, HoldBuffers>> =
    LazyLock::new(|| SharedTables::new(HoldBuffers::new));

/// A part of a shared table.
pub(crate) struct Part {
    pub(crate) table: Arc<Table>,
    /// The number of its content: another one in each part that a process of the cluster makes or
    /// restores.
    pub(crate) content: i32,
}

impl Part {
    /// A part with a content of its own.
    pub(crate) fn new(table: Table) -> Part {
        // Numbers start at a random place: those of a process that was started again differ.
        static NEXT: LazyLock<AtomicI32> =
            LazyLock::new(|| AtomicI32::new(RandomState::new().build_hasher().finish() as i32));
        Part {
            table: Arc::new(table),
            content: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Steps that failed lately: TensorFlow may still run some of their ops.
static FAILED: Mutex<VecDeque<i64>> = Mutex::new(VecDeque::new());

/// So many failed steps are known.
const FAILED_STEPS: usize = 256;

/// Takes back what a step that failed has counted, in the tables and parts of this process.
pub(crate) fn uncount(step: i64) {
    let mut failed = FAILED.lock();
    if !failed.contains(&step) {
        failed.push_back(step);
        if failed.len() > FAILED_STEPS {
            failed.pop_front();
        }
    }
    drop(failed);
    let shared = SHARED.open();
    let own = TABLES.all();
    for table in shared.iter().map(|part| &part.table).chain(&own) {
        table.uncount(step);
    }
}

/// Takes back what a step has just counted in a table if the step has failed meanwhile.
pub(crate) fn counted(table: &Table, step: i64) {
    if FAILED.lock().contains(&step) {
        table.uncount(step);
    }
}

/// Makes a table that ends with the reference: a session's own.
///
/// # Errors
/// Those of [`Settings::make`].
pub(crate) fn own(settings: Settings) -> Result<Reference> {
    Ok(TABLES.own(settings.make(None)?))
}

/// The table with that number. It stays alive while the caller holds it, also if its session closes
/// meanwhile.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn get(number: i64) -> Result<Arc<Table>> {
    TABLES.get(number)
}
