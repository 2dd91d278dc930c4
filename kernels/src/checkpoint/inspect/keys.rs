//! Keys that are counted, the smallest of them named; lists of keys, sorted.

use super::super::format::damaged;
use crate::mem::reserved;
use crate::Result;
use serde::Serialize;
use std::path::Path;

/// Keys that are named one by one.
const NAMED: usize = 10;

/// Some keys: how many, and the smallest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Keys {
    /// How many there are.
    pub count: u64,
    /// The ten smallest, in order.
    pub first: Vec<i64>,
}

impl Keys {
    pub(super) fn add(&mut self, key: i64) {
        self.count += 1;
        let at = self.first.partition_point(|earlier| *earlier < key);
        if at < NAMED {
            self.first.insert(at, key);
            self.first.truncate(NAMED);
        }
    }
}

/// Room for what is said of `count` keys of the file at `path`.
///
/// # Errors
/// `ResourceExhausted` without memory.
pub(super) fn room<T>(count: u64, path: &Path) -> Result<Vec<T>> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let list = reserved(count, "there is no memory for the keys", "keys");
    list.map_err(|error| error.with("path", path.display()))
}

/// Sorts the keys of the file at `path`, with what is said of them.
///
/// # Errors
/// `DataLoss` if one comes twice.
pub(super) fn sort<T>(list: &mut [(i64, T)], path: &Path) -> Result<()> {
    list.sort_unstable_by_key(|entry| entry.0);
    let mut pairs = list.iter().zip(list.iter().skip(1));
    match pairs.find(|(one, other)| one.0 == other.0) {
        None => Ok(()),
        Some(((key, _), _)) => Err(damaged("a key occurs twice", path).with("key", key)),
    }
}
