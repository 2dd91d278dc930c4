//! The table itself: its locks, new rows, removal.

use super::args::Memory;
use super::config::check_ram_rows;
use super::keys::Keys;
use super::rows::content::Content;
use super::rows::flight::Flight;
use super::rows::offset::Unfit;
use super::rows::tier::{empty_content, tier_setup, Tier};
use super::rows::Rows;
use super::{TableConfig, TierConfig};
use crate::history::History;
use crate::index::Index;
use crate::stores::{RowPart, TierSetup};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::tier::Storage;
use crate::{Error, Ids, Kind, Partition, Pool, Result, SlotSpec};
use std::ops::Deref;
use std::sync::Arc;

/// Below this many new rows the caller initialises them alone.
const LEAST: usize = 512;

/// For how many batches like the one that has just got new rows memory is asked for ahead.
const AHEAD: usize = 2;

/// An embedding table. All verbs take `&self`; any thread may call any verb at any time.
///
/// The order of its locks is in the module's documentation.
pub struct Table {
    config: TableConfig,
    /// The most rows that keys may get.
    capacity: u64,
    /// `config.frozen_keys`, ascending.
    frozen_keys: Vec<i64>,
    keys: Keys,
    rows: Rows,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The index, under which rows belong to their keys. Whoever has made rows has it alone, so that
/// it can write what they are to hold before others see them.
pub(in crate::table) enum LockedIndex<'t> {
    Shared(RwLockReadGuard<'t, Index>),
    Alone(RwLockWriteGuard<'t, Index>),
}

impl Deref for LockedIndex<'_> {
    type Target = Index;

    fn deref(&self) -> &Index {
        match self {
            LockedIndex::Shared(index) => index,
            LockedIndex::Alone(index) => index,
        }
    }
}

impl Table {
    /// An empty table.
    ///
    /// # Errors
    /// What [`TableConfig::validate`] refuses; `ResourceExhausted` without memory.
    pub fn new(config: TableConfig) -> Result<Table> {
        let capacity = config.capacity;
        Table::with(config, capacity, None)
    }

    /// An empty part of the table that `config` is for, and `tier`, if it has rows on disk. It has
    /// its share of the budget and of the memory ([`Partition::room`]).
    ///
    /// # Errors
    /// As [`Table::new`] and [`Table::tiered`].
    pub fn part(config: TableConfig, tier: Option<&TierConfig>, part: Partition) -> Result<Table> {
        let setup = tier.map(|tier| {
            let setup = tier_setup(&config, tier)?;
            Ok(TierSetup {
                ram_rows: part.room(setup.ram_rows),
                ..setup
            })
        });
        let capacity = part.room(config.capacity);
        Table::with(config, capacity, setup.transpose()?)
    }

    /// An empty table whose rows beyond `tier.ram_rows` are on disk. `config.capacity` is how many
    /// rows there may be in both places.
    ///
    /// # Errors
    /// As [`Table::new`], what [`TierConfig::validate`] refuses, and what the directories do.
    pub fn tiered(config: TableConfig, tier: &TierConfig) -> Result<Table> {
        let setup = tier_setup(&config, tier)?;
        Table::tiered_on(config, setup.ram_rows, setup.storage)
    }

    /// [`Table::tiered`] on files that `storage` makes ([`Storage::another`]): once for the table,
    /// and again for each content that is loaded and when rows get more slots.
    ///
    /// # Errors
    /// As there.
    pub fn tiered_on(
        config: TableConfig,
        ram_rows: u64,
        storage: Arc<dyn Storage>,
    ) -> Result<Table> {
        check_ram_rows(ram_rows, &config.name)?;
        let capacity = config.capacity;
        Table::with(config, capacity, Some(TierSetup { ram_rows, storage }))
    }

    fn with(config: TableConfig, capacity: u64, tier: Option<TierSetup>) -> Result<Table> {
        config.validate()?;
        let mut frozen_keys = config.frozen_keys.clone();
        frozen_keys.sort_unstable();
        let keys = Keys::new(capacity, config.admission_sketch_bytes)
            .map_err(|error| error.with("table", &config.name))?;
        let tier = tier.map(|setup| Box::new(Tier::new(setup)));
        let content = empty_content(&config, capacity, tier.as_deref(), Vec::new())?;
        Ok(Table {
            config,
            capacity,
            frozen_keys,
            keys,
            rows: Rows::new(content, tier),
        })
    }

    /// The settings.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Rows in use.
    pub fn len(&self) -> u64 {
        self.keys.len()
    }

    /// Whether no row is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row budget: how many rows keys may get. A load may bring more.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Floats of one embedding.
    pub fn dim(&self) -> usize {
        self.config.dim
    }

    /// Removes the rows of `ids`, and what was counted of them; unknown keys are no error. Returns
    /// how many rows went. A sketch cannot forget one key: there it has afterwards what it was
    /// counted before it had its row.
    ///
    /// What is updated with the offsets of removed keys is dropped and counted, and reading with
    /// them is refused; a row that a live [`Lease`](super::Lease) holds can be read until the lease
    /// ends.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for the list of removed rows; then nothing changed.
    pub fn remove(&self, ids: Ids<'_>) -> Result<u64> {
        let removed = self.remove_where(ids, &|_| true, true)?;
        self.keys
            .forget_history((0..ids.len()).map(|at| ids.get(at)), &[]);
        if removed > 0 {
            self.keys.shrink();
            self.compact_files();
        }
        Ok(removed)
    }

    /// Removes every row, gives the memory back, and returns how many rows went. The slots stay
    /// known.
    pub fn clear(&self) -> u64 {
        let mut index = self.keys.index.write();
        let mut rows = self.rows.lock();
        let new = rows.content.emptied();
        let old = rows.replace(new);
        let removed = self.keys.clear(&mut index);
        drop((rows, index));
        drop(old);
        self.keys.drop_buffers();
        self.rows.buffers().clear();
        removed
    }

    /// The slots of a row, in the order in which they lie behind the embedding.
    pub fn slots(&self) -> Vec<SlotSpec> {
        self.rows.content.read().slots.clone()
    }

    /// How much memory the table holds.
    pub fn memory(&self) -> Memory {
        let (rows_bytes, beside) = self.rows.bytes();
        let history_bytes = self.keys.history_bytes();
        Memory {
            rows_bytes,
            index_bytes: self.keys.index_bytes(),
            other_bytes: beside + self.keys.kept_bytes() + history_bytes,
        }
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn rows(&self) -> &Rows {
        &self.rows
    }

    pub(super) fn index(&self) -> &RwLock<Index> {
        &self.keys.index
    }

    pub(super) fn flight(&self) -> &Mutex<Flight> {
        &self.rows.flight
    }

    pub(super) fn content(&self) -> &RwLock<Content> {
        &self.rows.content
    }

    pub(super) fn history(&self) -> &RwLock<Option<Box<History>>> {
        &self.keys.history
    }

    /// From now on notes which rows change, for incremental checkpoints: 8 bytes a row, and 16 or
    /// so for each removed key until the next save.
    pub fn track_changes(&self) {
        self.rows.track_changes();
    }

    /// A good save has told of what happened up to epoch `since`.
    pub(crate) fn forget_told(&self, since: u32) {
        self.rows.forget_told(since);
    }

    /// Whether changes are tracked.
    pub(super) fn tracks(&self) -> bool {
        self.rows.tracks()
    }

    /// Refuses an argument of the wrong length.
    pub(super) fn length(&self, argument: &'static str, len: usize, expected: usize) -> Result<()> {
        if len == expected {
            return Ok(());
        }
        Err(self
            .refuse("an argument has the wrong length")
            .with("argument", argument)
            .with("length", len)
            .with("expected", expected))
    }

    /// Refuses an argument that should hold `n` rows of floats.
    pub(super) fn floats(&self, argument: &'static str, len: usize, n: usize) -> Result<()> {
        self.length(argument, len, n.saturating_mul(self.dim()))
    }

    /// Refuses an offset with which nothing can be read or changed.
    pub(super) fn bad_offset(&self, argument: &'static str, offset: i64, why: Unfit) -> Error {
        let (kind, message) = match why {
            Unfit::Unknown => (
                Kind::InvalidArgument,
                "an offset was never given out by this table",
            ),
            Unfit::Stale | Unfit::Retired(_) => (
                Kind::InvalidArgument,
                "the key of an offset was removed, or its row moved, since the offset was given \
                 out",
            ),
            Unfit::Replaced => (
                Kind::Aborted,
                "the table was replaced (restored or cleared) after this step looked its keys up; \
                 nothing was changed, and the step can be run again",
            ),
        };
        Error::new(kind, message)
            .with("table", &self.config.name)
            .with("argument", argument)
            .with("offset", offset)
    }

    /// A result whose error has the table's name.
    pub(super) fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.with("table", &self.config.name))
    }

    /// An `InvalidArgument` with the table's name.
    pub(super) fn refuse(&self, message: &str) -> Error {
        Error::invalid(message).with("table", &self.config.name)
    }

    /// Refuses more ids than positions can number.
    pub(super) fn expect_ids(&self, ids: usize) -> Result<()> {
        if i32::try_from(ids).is_ok() {
            return Ok(());
        }
        Err(self
            .refuse("a batch must have fewer than 2^31 ids")
            .with("ids", ids))
    }

    /// Refuses more distinct keys than a limit.
    pub(super) fn expect_at_most(&self, limit: Option<usize>, distinct: usize) -> Result<()> {
        match limit.filter(|&limit| distinct > limit) {
            None => Ok(()),
            Some(limit) => Err(self
                .refuse("the batch has more distinct keys than its limit")
                .with("distinct", distinct)
                .with("limit", limit)),
        }
    }

    /// Refuses more rows than the budget; a table that a load has filled beyond it stays.
    pub(super) fn budget(&self, rows: u64, more: u64) -> Result<()> {
        self.within(self.capacity, rows, more)
    }

    /// Refuses more rows than `most`.
    pub(super) fn within(&self, most: u64, rows: u64, more: u64) -> Result<()> {
        if more == 0 || rows.saturating_add(more) <= most {
            return Ok(());
        }
        Err(Error::new(
            Kind::ResourceExhausted,
            "the new rows exceed the table's capacity",
        )
        .with("table", &self.config.name)
        .with("rows", rows)
        .with("new", more)
        .with("capacity", most))
    }

    /// The rows of `rows` whose `keys` are frozen.
    pub(super) fn freeze(&self, content: &mut Content, keys: &[i64], rows: &[u32]) {
        if self.frozen_keys.is_empty() {
            return;
        }
        for (key, &row) in keys.iter().zip(rows) {
            if self.frozen_keys.binary_search(key).is_ok() {
                content.freeze(row);
            }
        }
    }

    /// Makes initialised rows for distinct new keys, or takes those that are staged, and enters
    /// them; all or nothing.
    pub(super) fn create(&self, pool: &Pool, index: &mut Index, keys: &[i64]) -> Result<Vec<u32>> {
        self.budget(index.len(), keys.len() as u64)?;
        self.named(index.reserve(pool, keys))?;
        let room = self.capacity().saturating_sub(index.len());
        let initialise = |content: &mut Content, keys: &[i64], rows: &[u32]| {
            self.initialise(pool, content, keys, rows);
        };
        let rows = self.named(self.rows.make(keys, room, initialise))?;
        self.keys.move_history(keys, &rows);
        index.insert(pool, keys, &rows);
        self.keys.count(index);
        Ok(rows)
    }

    /// Writes the first values of new rows.
    pub(super) fn initialise(
        &self,
        pool: &Pool,
        content: &mut Content,
        keys: &[i64],
        rows: &[u32],
    ) {
        pool.each(content.store.fresh_pages(pool.threads()), |pages| {
            pages.ask();
        });
        content.name(keys, rows, rows.len());
        let (embedding, reset_slots) = (content.layout.embedding(), content.reset_slots());
        let (dim, halves) = (self.dim(), content.halves.as_deref());
        pool.each(
            content.store.split(pool.parts(rows.len(), LEAST)),
            |mut part| {
                let mut floats = vec![0.0; if halves.is_some() { dim } else { 0 }];
                for (&key, &row) in keys.iter().zip(rows) {
                    let Some(row) = part.row_mut(row) else {
                        continue;
                    };
                    match halves {
                        None => self.config.fill_floats(key, &mut row[..dim]),
                        Some(halves) => {
                            self.config.fill_floats(key, &mut floats);
                            halves.set_nearest(embedding, &floats, row);
                        }
                    }
                    reset_slots(row);
                }
            },
        );
        self.freeze(content, keys, rows);
        if pool.threads() > 1 {
            // The next batches may have as many new keys.
            let later = content.store.later_pages(AHEAD * rows.len());
            if !later.is_empty() {
                pool.beside(move || later.iter().for_each(|pages| pages.ask()));
            }
        }
    }
}
