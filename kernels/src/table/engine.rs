//! The table itself: its locks, the way from ids to rows, new rows, removal.

use super::admission::Counters;
use super::args::Memory;
use super::content::Content;
use super::flight::{divide, Flight};
use super::observed::{observations, Observed};
use super::offset::Unfit;
use super::rows::Rows;
use super::TableConfig;
use crate::batch::distinct::{distinct, Distinct, Scratch, Wanted};
use crate::history::History;
use crate::index::Index;
use crate::keeper::Keeper;
use crate::mem::NONE;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{Error, Ids, Kind, Pool, Result, SlotSpec};
use std::ops::DerefMut;

/// Working memory that is kept for later batches, at most so many pieces of at most so many bytes in all.
const KEPT: (usize, usize) = (4, 256 << 20);

/// Below this many new rows the caller initialises them alone.
const LEAST: usize = 512;

/// An embedding table. All verbs take `&self`; any thread may call any verb at any time.
///
/// The order of its locks is in the module's documentation.
pub struct Table {
    config: TableConfig,
    /// `config.frozen_keys`, ascending.
    frozen_keys: Vec<i64>,
    index: RwLock<Index>,
    rows: Rows,
    /// How many keys have a row.
    len: AtomicU64,
    /// Whether `content.changes` is on; once on, it stays.
    tracking: AtomicBool,
    /// Boxed, because most tables have none.
    history: RwLock<Option<Box<History>>>,
    counters: Counters,
    /// What lookups have found that are to be decided yet.
    observed: Keeper<Observed>,
    scratch: Keeper<Scratch>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// An empty table.
    ///
    /// # Errors
    /// What [`TableConfig::validate`] refuses; `ResourceExhausted` without memory.
    pub fn new(config: TableConfig) -> Result<Table> {
        config.validate()?;
        let mut frozen_keys = config.frozen_keys.clone();
        frozen_keys.sort_unstable();
        let index =
            Index::new(config.capacity).map_err(|error| error.with("table", &config.name))?;
        let content = Content::new(config.dim, config.capacity, Vec::new());
        Ok(Table {
            config,
            frozen_keys,
            index: RwLock::new(index),
            rows: Rows::new(content),
            len: AtomicU64::new(0),
            tracking: AtomicBool::new(false),
            history: RwLock::default(),
            counters: Counters::default(),
            observed: observations(),
            scratch: Keeper::new(KEPT.0, KEPT.1),
        })
    }

    /// The settings.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Rows in use.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Whether no row is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row budget.
    pub fn capacity(&self) -> u64 {
        self.config.capacity
    }

    /// Floats of one embedding.
    pub fn dim(&self) -> usize {
        self.config.dim
    }

    /// De-duplicates `ids` and gives each distinct key its offset.
    ///
    /// Returns the offsets in order of first occurrence; `restore[i]` is the position in them of
    /// `ids[i]`, or -1 for padding and, with `create == false`, for unknown keys. An offset is
    /// greater than 0. A key has the same offset, good in any number of copies, until its row is
    /// removed or moved or the content is replaced.
    ///
    /// # Errors
    /// `InvalidArgument` if `restore` is not as long as `ids`, there are 2^31 ids or more, or more
    /// distinct keys than `limit`; `ResourceExhausted` if new rows would exceed the budget. A
    /// failed call leaves the table as it was.
    pub fn id_offset(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        create: bool,
        limit: Option<usize>,
        restore: &mut [i32],
    ) -> Result<Vec<i64>> {
        self.length("restore", restore.len(), ids.len())?;
        Ok(self.resolve(pool, ids, create, limit, restore, zeros)?.1)
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
        self.forget_history((0..ids.len()).map(|at| ids.get(at)), &[]);
        if removed > 0 {
            self.index.write().shrink();
        }
        Ok(removed)
    }

    /// Removes every row, gives the memory back, and returns how many rows went. The slots stay
    /// known.
    pub fn clear(&self) -> u64 {
        let mut index = self.index.write();
        let removed = index.len();
        self.rows.replace(|old| {
            index.clear();
            self.renew_history(0);
            Content::new(self.dim(), self.capacity(), std::mem::take(&mut old.slots))
        });
        self.len.store(0, Ordering::Release);
        self.observed.clear();
        self.scratch.clear();
        self.rows.drop_buffers();
        removed
    }

    /// The slots of a row, in the order in which they lie behind the embedding.
    pub fn slots(&self) -> Vec<SlotSpec> {
        self.rows.content.read().slots.clone()
    }

    /// How much memory the table holds.
    pub fn memory(&self) -> Memory {
        let index_bytes = self.index.read().bytes();
        let (scratch, observed) = (self.scratch.bytes(), self.observed.bytes());
        let (rows_bytes, beside) = self.rows.bytes();
        let other_bytes = beside + (scratch + observed) as u64;
        Memory {
            rows_bytes,
            index_bytes,
            other_bytes: other_bytes + self.history_bytes(),
        }
    }

    /// [`Table::id_offset`] into a buffer that `room` makes, and the lock under which the rows
    /// belong to their keys.
    pub(super) fn resolve<O: DerefMut<Target = [i64]>>(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        create: bool,
        limit: Option<usize>,
        restore: &mut [i32],
        room: impl Fn(usize) -> O,
    ) -> Result<(RwLockReadGuard<'_, Index>, O)> {
        if i32::try_from(ids.len()).is_err() {
            return Err(self
                .refuse("a batch must have fewer than 2^31 ids")
                .with("ids", ids.len()));
        }
        let wanted = if create { Wanted::Keys } else { Wanted::Rows };
        let index = self.index.read();
        let version = index.version();
        let mut found = self.distinct(pool, &index, ids, wanted, restore, &room);
        if let Some(limit) = limit.filter(|&limit| found.keys > limit) {
            return Err(self
                .refuse("the batch has more distinct keys than its limit")
                .with("distinct", found.keys)
                .with("limit", limit));
        }
        if found.missing.is_empty() {
            if create {
                self.counters.batch(found.keys, 0);
            }
            self.rows.stamp(&mut found.offsets);
            return Ok((index, found.offsets));
        }
        drop(index);
        let mut index = self.index.write();
        let mut found = if index.version() == version {
            found
        } else {
            self.distinct(pool, &index, ids, wanted, restore, &room)
        };
        let keys: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
        let rows = self.create(pool, &mut index, &keys)?;
        self.counters.batch(found.keys, keys.len());
        for (&(position, _), row) in found.missing.iter().zip(rows) {
            found.offsets[position as usize] = i64::from(row);
        }
        self.rows.stamp(&mut found.offsets);
        Ok((RwLockWriteGuard::downgrade(index), found.offsets))
    }

    pub(super) fn rows(&self) -> &Rows {
        &self.rows
    }

    pub(super) fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    pub(super) fn flight(&self) -> &Mutex<Flight> {
        &self.rows.flight
    }

    pub(super) fn content(&self) -> &RwLock<Content> {
        &self.rows.content
    }

    pub(super) fn history(&self) -> &RwLock<Option<Box<History>>> {
        &self.history
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn observed(&self) -> &Keeper<Observed> {
        &self.observed
    }

    /// The content has been replaced by one with `rows` rows: what was known of keys is gone, and
    /// these count as admitted.
    fn renew_history(&self, rows: usize) {
        let mut history = self.history.write();
        let renewed = history.take().and_then(|old| old.renewed(rows));
        *history = renewed.map(Box::new);
    }

    /// Publishes the number of rows after a change of the index.
    pub(super) fn count(&self, index: &Index) {
        self.len.store(index.len(), Ordering::Release);
    }

    /// Puts a new content in the place of the old one, with the history that came with it; returns
    /// the epoch that ends with it, 0 if changes are not tracked.
    pub(super) fn replace(
        &self,
        index: Index,
        content: Content,
        history: Option<Box<History>>,
    ) -> u32 {
        let rows = index.len();
        let mut old_index = self.index.write();
        let closed = self.rows.replace(|_| {
            let old = std::mem::replace(&mut *old_index, index);
            old_index.follow(&old);
            match history {
                Some(history) => {
                    let mut old = self.history.write();
                    if let Some(old) = old.as_deref() {
                        history.follow(old);
                    }
                    *old = Some(history);
                }
                None => self.renew_history(content.slab.rows()),
            }
            content
        });
        self.len.store(rows, Ordering::Release);
        closed
    }

    /// From now on notes which rows change, for incremental checkpoints: 8 bytes a row, and 16 or
    /// so for each removed key until the next save.
    pub fn track_changes(&self) {
        self.rows.content.write().changes.start();
        self.tracking.store(true, Ordering::Release);
    }

    /// A good save has told of the keys that lost their rows up to epoch `since`.
    pub(crate) fn forget_removed(&self, since: u32) {
        if self.tracks() {
            self.rows.content.write().changes.forget_removed(since);
        }
    }

    /// Whether changes are tracked.
    pub(super) fn tracks(&self) -> bool {
        self.tracking.load(Ordering::Acquire)
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
                "the key of an offset was removed, or its row moved, since the offset was given out",
            ),
            Unfit::Replaced => (
                Kind::Aborted,
                "the table was replaced (restored or cleared) after this step looked its keys up; nothing was changed, and the step can \
                 be run again",
            ),
        };
        Error::new(kind, message)
            .with("table", &self.config.name)
            .with("argument", argument)
            .with("offset", offset)
    }

    /// An `InvalidArgument` with the table's name.
    pub(super) fn refuse(&self, message: &str) -> Error {
        Error::invalid(message).with("table", &self.config.name)
    }

    /// Refuses more rows than the budget.
    pub(super) fn budget(&self, rows: u64, more: u64) -> Result<()> {
        if rows.saturating_add(more) <= self.capacity() {
            return Ok(());
        }
        Err(Error::new(
            Kind::ResourceExhausted,
            "the new rows exceed the table's capacity",
        )
        .with("table", &self.config.name)
        .with("rows", rows)
        .with("new", more)
        .with("capacity", self.capacity()))
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

    /// De-duplicates a batch with kept working memory.
    pub(super) fn distinct<O: DerefMut<Target = [i64]>>(
        &self,
        pool: &Pool,
        index: &Index,
        ids: Ids<'_>,
        wanted: Wanted,
        restore: &mut [i32],
        room: impl FnOnce(usize) -> O,
    ) -> Distinct<O> {
        let mut scratch = self.scratch.take(|_| true).unwrap_or_default();
        let found = distinct(pool, index, ids, wanted, &mut scratch, restore, room);
        self.scratch.keep(scratch);
        found
    }

    /// Makes initialised rows for distinct new keys, or takes those that are staged, and enters
    /// them; all or nothing.
    pub(super) fn create(&self, pool: &Pool, index: &mut Index, keys: &[i64]) -> Result<Vec<u32>> {
        let named = |error: Error| error.with("table", &self.config.name);
        self.budget(index.len(), keys.len() as u64)?;
        index.reserve(pool, keys).map_err(named)?;
        let mut flight = self.rows.flight.lock();
        let (mut rows, mut fresh) = divide(&flight, keys);
        let used = index.len() + flight.staging() + flight.retired() + fresh.len() as u64;
        if used > self.capacity() && flight.staging() > 0 {
            // Batches ahead must not take the room of this one.
            flight.unstage();
            (rows, fresh) = divide(&flight, keys);
        }
        let mut content = self.rows.content.write();
        flight.settle(&mut content);
        let taken = content.take(fresh.len()).map_err(named)?;
        if fresh.len() < keys.len() {
            let staged = keys.iter().zip(&rows).filter(|(_, &row)| row != NONE);
            let keys: Vec<i64> = staged.map(|(&key, _)| key).collect();
            let old = flight.enter(&keys, content.initials());
            content.reset(&old);
        }
        drop(flight);
        fill_in(&mut rows, &taken);
        self.initialise(pool, &mut content, &fresh, &taken);
        content.changes.renew(&rows);
        drop(content);
        self.move_history(keys, &rows);
        index.insert(pool, keys, &rows);
        self.count(index);
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
        let reset_slots = content.reset_slots();
        let (dim, factor) = (self.dim(), self.config.init_param);
        pool.each(
            content.slab.split(pool.parts(rows.len(), LEAST)),
            |mut part| {
                for (&key, &row) in keys.iter().zip(rows) {
                    let Some(row) = part.row_mut(row) else {
                        continue;
                    };
                    let embedding = &mut row[..dim];
                    self.config
                        .initializer
                        .fill(self.config.seed, key, embedding);
                    if factor != 1.0 {
                        embedding.iter_mut().for_each(|value| *value *= factor);
                    }
                    reset_slots(row);
                }
            },
        );
        self.freeze(content, keys, rows);
    }
}

/// Puts `taken` in the places of `rows` that are empty.
pub(super) fn fill_in(rows: &mut [u32], taken: &[u32]) {
    let empty = rows.iter_mut().filter(|row| **row == NONE);
    empty.zip(taken).for_each(|(row, &taken)| *row = taken);
}

/// A fresh buffer for offsets.
pub(super) fn zeros(n: usize) -> Vec<i64> {
    vec![0; n]
}
