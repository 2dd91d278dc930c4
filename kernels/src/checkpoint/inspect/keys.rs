//! Keys that are counted, the smallest of them named.

use serde::Serialize;

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
