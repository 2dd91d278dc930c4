//! The tables of the process by the numbers under which ops know them.

use crate::tf::release_buffers;
use dashmap::DashMap;
use mx_rec_kernels::{Error, Kind, Result, Table};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};

static TABLES: LazyLock<DashMap<i64, Arc<Table>>> = LazyLock::new(DashMap::new);

/// Numbers start at a random place, so that one that was kept from another process is refused.
static NEXT: LazyLock<AtomicI64> = LazyLock::new(|| {
    let random = RandomState::new().build_hasher().finish();
    AtomicI64::new((random >> 16) as i64 + 1)
});

/// Takes in a table and gives it a number that no other table of the process has or had.
pub(crate) fn insert(table: Arc<Table>) -> i64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    TABLES.insert(number, table);
    number
}

/// The table with that number. It stays alive while the caller holds it, also if its session closes meanwhile.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn get(number: i64) -> Result<Arc<Table>> {
    let found = TABLES.get(&number).map(|entry| Arc::clone(entry.value()));
    found.ok_or_else(|| {
        Error::new(
            Kind::NotFound,
            "the handle is of no table: its session was closed, or it was not made by MxRecTable in \
             this process",
        )
        .with("handle", number)
    })
}

/// Forgets the table with that number. With the last table goes the memory that is kept for outputs.
pub(crate) fn remove(number: i64) {
    TABLES.remove(&number);
    if is_empty() {
        release_buffers();
    }
}

/// Whether there is no table.
pub(crate) fn is_empty() -> bool {
    TABLES.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mx_rec_kernels::{Initializer, TableConfig};

    fn table(name: &str) -> Result<Arc<Table>> {
        Ok(Arc::new(Table::new(TableConfig {
            name: name.to_owned(),
            dim: 1,
            capacity: 1,
            seed: 0,
            initializer: Initializer::Zeros,
            init_param: 1.0,
            frozen_keys: Vec::new(),
            admission_sketch_bytes: 0,
        })?))
    }

    #[test]
    fn a_number_that_was_given_back_is_refused_and_never_given_again() -> Result<()> {
        let first = insert(table("first")?);
        assert_eq!(get(first)?.config().name, "first");
        remove(first);
        let second = insert(table("second")?);
        assert_ne!(first, second);
        assert_eq!(
            get(first).err().map(|error| error.kind()),
            Some(Kind::NotFound)
        );
        remove(second);
        Ok(())
    }
}
