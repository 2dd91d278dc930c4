//! The registry of this process: tables of the engine, made by configurations.

use crate::config::Settings;
use crate::registry::{self, Registry};
use crate::shared::{Name, SharedTables};
use crate::tf::HoldBuffers;
use crate::trace;
use mx_rec_kernels::{Partition, Result, Table};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};

/// A kernel's claim on a table of this process.
pub(crate) type Reference = registry::Reference<'static, Table, HoldBuffers>;

/// A kernel's claim on the number of a part.
pub(crate) type MemberReference = registry::Reference<'static, Member, ()>;

/// Memory of outputs is kept while a table is registered.
pub(crate) static TABLES: LazyLock<Registry<Table, HoldBuffers>> =
    LazyLock::new(|| Registry::new(random() + 1, HoldBuffers::new));

/// What handles of parts stand for: their numbers are negative, those of tables positive.
pub(crate) static MEMBERS: LazyLock<Registry<Member, ()>> =
    LazyLock::new(|| Registry::new(i64::MIN + random(), || ()));

/// A number from 0 to 2^48. The numbers of tables start there, so that one that was kept from
/// another process is refused.
fn random() -> i64 {
    (RandomState::new().build_hasher().finish() >> 16) as i64
}

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

/// A part of a table, as those name it who use it.
pub(crate) struct Member {
    pub(crate) name: Name,
    pub(crate) settings: Settings,
}

impl Member {
    /// A part of the table of these settings.
    pub(crate) fn new(settings: Settings, part: Partition) -> Member {
        let table = settings.table.name.clone();
        let name = Name { table, part };
        Member { name, settings }
    }

    /// The part that this process holds.
    ///
    /// # Errors
    /// Those of [`SharedTables::find`].
    pub(crate) fn find(&self) -> Result<Arc<Part>> {
        let part = SHARED.find(&self.name, &self.settings)?;
        trace::note(&part.table);
        Ok(part)
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

/// What the tables of sessions with one name hold, or held when they ended: the most of each.
#[derive(Clone, Copy, Default, Serialize)]
struct Held {
    rows: u64,
    bytes: u64,
}

impl Held {
    /// What a table holds now.
    fn of(table: &Table) -> Held {
        let stats = table.stats();
        Held {
            rows: stats.rows,
            bytes: stats.rows_bytes + stats.index_bytes + stats.history_bytes,
        }
    }

    /// The most of both.
    fn or(self, other: Held) -> Held {
        Held {
            rows: self.rows.max(other.rows),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// What tables that have ended held, by their names.
static ENDED: Mutex<BTreeMap<String, Held>> = Mutex::new(BTreeMap::new());

/// Notes what a table of a session holds, which is about to end.
pub(crate) fn note_end(table: &Reference) {
    if let Ok(table) = get(table.number()) {
        let held = Held::of(&table);
        let name = table.config().name.clone();
        let mut ended = ENDED.lock();
        let before = ended.entry(name).or_default();
        *before = before.or(held);
    }
}

/// What the tables of the sessions of this process hold, or held when they ended. include/mx_rec.h
/// has the JSON.
///
/// # Errors
/// Those of writing JSON.
pub fn held() -> serde_json::Result<Vec<u8>> {
    let mut held = ENDED.lock().clone();
    for table in TABLES.all() {
        let known = held.entry(table.config().name.clone()).or_default();
        *known = known.or(Held::of(&table));
    }
    serde_json::to_vec(&held)
}

/// The part that a number stands for.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn member(number: i64) -> Result<Arc<Member>> {
    MEMBERS.get(number)
}

/// The table with that number, or the part that this process holds now.
///
/// # Errors
/// As of [`get`]; those of [`Member::find`].
pub(crate) fn get_any(number: i64) -> Result<Arc<Table>> {
    if number < 0 {
        Ok(Arc::clone(&member(number)?.find()?.table))
    } else {
        get(number)
    }
}

/// The table with that number. It stays alive while the caller holds it, also if its session closes
/// meanwhile.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn get(number: i64) -> Result<Arc<Table>> {
    TABLES.get(number)
}

/// Runs `work`; its error names the table.
pub(crate) fn on<T>(table: &Table, work: impl FnOnce() -> Result<T>) -> Result<T> {
    work().map_err(|error| {
        if error.context().iter().any(|(name, _)| *name == "table") {
            error
        } else {
            error.with("table", &table.config().name)
        }
    })
}
