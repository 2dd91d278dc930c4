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

/// Held while a group is published: of two restores at once, all tables end with the content of
/// one.
static PUBLISHING: Mutex<()> = Mutex::new(());

/// Reads and checks the directories of every table, a whole save and its deltas each. No table
/// changes.
///
/// Returns the group, and the rows of each table; `None` if a handle is of no table of this
/// process. The contents stay in memory until [`publish`] or [`discard`].
///
/// # Errors
/// As [`StagedLoad::new`], with the table; nothing stays in memory then.
pub fn stage(requests: &[(i64, Vec<&Path>)]) -> Result<Option<(u64, Vec<u64>)>> {
    let found = requests.iter().map(|(handle, _)| tables::get(*handle));
    let Ok(tables) = found.collect::<Result<Vec<Arc<Table>>>>() else {
        return Ok(None);
    };
    let mut staged = Vec::with_capacity(tables.len());
    for (table, (_, dirs)) in tables.into_iter().zip(requests) {
        let name = table.config().name.clone();
        let load = StagedLoad::new(table, pool()?, dirs, &|_| true);
        staged.push(load.map_err(|error| named(error, name))?);
    }
    let rows = staged.iter().map(StagedLoad::rows).collect();
    let group = NEXT.fetch_add(1, Ordering::Relaxed);
    STAGED.lock().insert(group, staged);
    Ok(Some((group, rows)))
}

/// An error with the name of the table, unless it has one.
fn named(error: Error, table: String) -> Error {
    if error.context().iter().any(|(name, _)| *name == "table") {
        return error;
    }
    error.with("table", table)
}

/// Replaces the contents of all tables of a group; returns what each has now, in the order in which
/// they were staged.
///
/// # Errors
/// `NotFound` for a group that is not staged.
pub fn publish(group: u64) -> Result<Vec<Loaded>> {
    let staged = STAGED.lock().remove(&group).ok_or_else(|| {
        Error::new(Kind::NotFound, "no load of that group is staged").with("group", group)
    })?;
    let _alone = PUBLISHING.lock();
    Ok(staged.into_iter().map(StagedLoad::publish).collect())
}

/// Forgets a group, if it is staged. No table changes.
pub fn discard(group: u64) {
    let dropped = STAGED.lock().remove(&group);
    // It may be large: not under the lock.
    drop(dropped);
}
