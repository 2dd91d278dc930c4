//! The registry of this process: tables of the engine, made by configurations.

use crate::config::Settings;
use crate::registry::{self, Registry};
use crate::shared::SharedTables;
use crate::tf::HoldBuffers;
use mx_rec_kernels::{Result, Table};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
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
    steps: Mutex<HashMap<i32, (f32, f32)>>,
}

impl Part {
    /// A part that no optimizer has updated yet.
    pub(crate) fn new(table: Table) -> Part {
        Part {
            table: Arc::new(table),
            steps: Mutex::default(),
        }
    }

    /// Counts a step of optimizer number `counter` and returns its beta powers: those of the step
    /// before times `betas`, at first `powers`.
    pub(crate) fn step(&self, counter: i32, powers: (f32, f32), betas: (f32, f32)) -> (f32, f32) {
        let mut steps = self.steps.lock();
        let next = steps.entry(counter).or_insert(powers);
        let now = *next;
        *next = (now.0 * betas.0, now.1 * betas.1);
        now
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
