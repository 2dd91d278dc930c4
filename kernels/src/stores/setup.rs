//! What a table is told of its tier.

use crate::tier::{Log, Storage};
use crate::Result;
use std::sync::Arc;

/// What a table is told of its tier once.
pub(crate) struct TierSetup {
    /// The most rows in memory.
    pub(crate) ram_rows: u64,
    /// Makes the files of logs; its own stay empty.
    pub(crate) storage: Arc<dyn Storage>,
}

impl TierSetup {
    /// An empty log for records of `width` floats.
    pub(super) fn log(&self, width: usize, most: u64) -> Result<Arc<Log>> {
        let beyond = most.saturating_sub(self.ram_rows).max(1);
        Ok(Arc::new(Log::new(self.storage.another()?, width, beyond)))
    }
}
