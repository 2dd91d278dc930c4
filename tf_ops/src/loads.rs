//! Loads of several tables that take effect together: all files are read and checked first, then
//! all contents are swapped in.

use crate::tables;
use crate::threads::pool;
use mx_rec_kernels::checkpoint::{Loaded, StagedLoad};
use mx_rec_kernels::{Error, Kind, Result, Table};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Loads that were staged and are neither published nor discarded, by group.
static STAGED: LazyLock<Mutex<HashMap<u64, Vec<StagedLoad>>>> = LazyLock::new(Mutex::default);

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Reads and checks the directories of every table, a whole save and its deltas each. No table
/// changes.
///
/// Returns the group, and the rows of each table; `None` if a handle is of no table of this
/// process. The contents stay in memory until [`publish`] or [`discard`].
///
/// # Errors
/// As [`StagedLoad::new`], with the table; `InvalidArgument` if a table comes twice. Nothing stays
/// in memory then.
pub fn stage(requests: &[(i64, Vec<&Path>)]) -> Result<Option<(u64, Vec<u64>)>> {
    let found = requests.iter().map(|(handle, _)| tables::get(*handle));
    let Ok(tables) = found.collect::<Result<Vec<Arc<Table>>>>() else {
        return Ok(None);
    };
    for (at, table) in tables.iter().enumerate() {
        if tables.iter().take(at).any(|one| Arc::ptr_eq(one, table)) {
            let error = Error::invalid("a table cannot be restored twice at once");
            return Err(error.with("table", &table.config().name));
        }
    }
    let mut staged = Vec::with_capacity(tables.len());
    for (table, (_, dirs)) in tables.into_iter().zip(requests) {
        let load = || StagedLoad::new(Arc::clone(&table), pool()?, dirs, &|_| true);
        staged.push(tables::on(&table, load)?);
    }
    let rows = staged.iter().map(StagedLoad::rows).collect();
    let group = NEXT.fetch_add(1, Ordering::Relaxed);
    STAGED.lock().insert(group, staged);
    Ok(Some((group, rows)))
}

/// Replaces the contents of all tables of a group at once, so that no step finds one restored and
/// then another one as it was. Returns what each has now, in the order in which they were staged.
///
/// # Errors
/// `NotFound` for a group that is not staged.
pub fn publish(group: u64) -> Result<Vec<Loaded>> {
    let staged = STAGED.lock().remove(&group).ok_or_else(|| {
        Error::new(Kind::NotFound, "no load of that group is staged").with("group", group)
    })?;
    StagedLoad::publish_all(staged)
}

/// Forgets a group, if it is staged. No table changes.
pub fn discard(group: u64) {
    let dropped = STAGED.lock().remove(&group);
    // It may be large: not under the lock.
    drop(dropped);
}
