//! What a table with a tier on disk has beside its rows: settings, the turn to move rows, counters.

use crate::stores::{Store, TierSetup};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::Mutex;
use crate::table::rows::content::Content;
use crate::table::rows::crowding::Crowding;
use crate::table::rows::layout::Layout;
use crate::table::{TableConfig, TierConfig};
use crate::tier::Files;
use crate::{Result, SlotSpec};
use std::sync::Arc;

/// What is known of rows in memory and on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// The most rows in memory.
    pub ram_rows: u64,
    /// Rows in memory.
    pub rows_in_memory: u64,
    /// Rows on disk.
    pub rows_on_disk: u64,
    /// Rows that a lookup wanted and found in memory, each distinct one once a lookup. Counted from
    /// the moment when rows first go to disk.
    pub hits: u64,
    /// Rows that were read from disk for a batch.
    pub misses: u64,
    /// Bytes of records that were read.
    pub bytes_read: u64,
    /// Bytes of records that were written, those of compaction included.
    pub bytes_written: u64,
    /// Bytes that the files take.
    pub bytes_on_disk: u64,
    /// Nanoseconds that steps waited for rows; what is brought in ahead of them does not count.
    pub wait_nanoseconds: u64,
    /// Batches ahead that had to leave their rows to their step: memory was full of other batches,
    /// or a batch before them needed the room.
    pub given_up: u64,
}

/// What a table with a tier has beside its rows.
pub(in crate::table) struct Tier {
    pub(in crate::table) setup: Arc<TierSetup>,
    /// Held by the thread that moves rows; taken before all other locks.
    pub(in crate::table) turn: Mutex<()>,
    /// Whether rows may be on disk. Until then verbs need not bring any in. It saves time, and
    /// nothing depends on it.
    pub(in crate::table) spilled: AtomicBool,
    pub(in crate::table) hits: AtomicU64,
    pub(in crate::table) misses: AtomicU64,
    pub(in crate::table) waited: AtomicU64,
    pub(in crate::table) given_up: AtomicU64,
    pub(in crate::table) crowding: Crowding,
}

impl Tier {
    /// A tier that has done nothing yet.
    pub(in crate::table) fn new(setup: TierSetup) -> Tier {
        Tier {
            setup: Arc::new(setup),
            turn: Mutex::default(),
            spilled: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            crowding: Crowding::default(),
        }
    }

    /// Notes whether rows of the content may be on disk. The caller has it locked.
    pub(in crate::table) fn note(&self, content: &Content) {
        let is_tiered = content.store.tiered().is_some();
        if self.spilled.load(Relaxed) != is_tiered {
            self.spilled.store(is_tiered, Relaxed);
        }
    }
}

/// Opens the directories of a tier for the table that `config` is for.
///
/// # Errors
/// What [`TierConfig::validate`] refuses, and what the directories do.
pub(in crate::table) fn tier_setup(config: &TableConfig, tier: &TierConfig) -> Result<TierSetup> {
    tier.validate(&config.name)?;
    let files = Files::open(&tier.directories);
    let files = files.map_err(|error| error.with("table", &config.name))?;
    let files = match tier.direct {
        true => files.past_page_cache(),
        false => files,
    };
    Ok(TierSetup {
        ram_rows: tier.ram_rows,
        storage: Arc::new(files),
    })
}

/// An empty content for `capacity` rows of a table, with a tier if the table has one.
///
/// # Errors
/// What the tier's files refuse.
pub(in crate::table) fn empty_content(
    config: &TableConfig,
    capacity: u64,
    tier: Option<&Tier>,
    slots: Vec<SlotSpec>,
) -> Result<Content> {
    let width = Layout::of(config).width(&slots);
    let Some(tier) = tier else {
        let store = Store::in_memory(width, capacity);
        return Ok(Content::new(store, config, capacity, slots));
    };
    let store = Store::with_tier(&tier.setup, width, capacity);
    let store = store.map_err(|error| error.with("table", &config.name))?;
    Ok(Content::new(store, config, capacity, slots))
}
