//! The keys of a table: which row each has, how often and when they were seen, and counters of what
//! has happened to them.

pub(super) mod decision;
pub(super) mod observed;
pub(super) mod same_ids;

use crate::batch::distinct::{distinct, Distinct, Scratch, Wanted};
use crate::history::{Candidates, History, Seen};
use crate::index::Index;
use crate::keeper::Keeper;
use crate::mem::{Lines, NONE};
use crate::pool::{ranges, split_mut};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::RwLock;
use crate::table::keys::observed::{kept, Counted, Observed};
use crate::table::stats::Counters;
use crate::{Ids, Pool, Result};
use std::ops::DerefMut;

/// Working memory that is kept for later batches, at most so many pieces of at most so many bytes
/// in all.
const KEPT: (usize, usize) = (4, 256 << 20);

/// A thread should look up at least so many keys.
const LEAST: usize = 4096;

/// Buckets that are prefetched ahead of the one that is read.
const BUCKETS: usize = 16;

/// The keys of a table. Who takes both locks takes `index` first, and the locks of
/// [`Rows`](crate::table::rows::Rows) between the two.
pub(in crate::table) struct Keys {
    /// Which key has which row.
    pub(in crate::table) index: RwLock<Index>,
    /// How often and when keys were seen. Boxed, because most tables have none.
    pub(in crate::table) history: RwLock<Option<Box<History>>>,
    /// What has happened to the keys.
    pub(in crate::table) counters: Counters,
    /// What observed lookups have found, until their keys are admitted.
    pub(in crate::table) observed: Keeper<Observed>,
    /// What the latest steps have counted, which is taken back if one of them fails.
    pub(in crate::table) counted: Keeper<Counted>,
    /// How many keys have a row.
    len: AtomicU64,
    /// Bytes of the sketch that counts keys without a row; 0 for exact counters.
    sketch_bytes: u64,
    scratch: Keeper<Scratch>,
}

/// Keys that were taken out of the index.
pub(in crate::table) struct Removed {
    /// The rows they had.
    pub(in crate::table) rows: Vec<u32>,
    /// The keys, if they were asked for.
    pub(in crate::table) keys: Vec<i64>,
}

impl Keys {
    /// No keys, at most `capacity` later.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory.
    pub(in crate::table) fn new(capacity: u64, sketch_bytes: u64) -> Result<Keys> {
        Ok(Keys {
            index: RwLock::new(Index::new(capacity)?),
            history: RwLock::default(),
            counters: Counters::default(),
            observed: kept(),
            counted: kept(),
            len: AtomicU64::new(0),
            sketch_bytes,
            scratch: Keeper::new(KEPT.0, KEPT.1),
        })
    }

    /// How many keys have a row.
    pub(in crate::table) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Publishes the number of keys after a change of the index.
    pub(in crate::table) fn count(&self, index: &Index) {
        self.len.store(index.len(), Ordering::Release);
    }

    /// De-duplicates a batch with kept working memory.
    pub(in crate::table) fn distinct<O: DerefMut<Target = [i64]>>(
        &self,
        pool: &Pool,
        index: &Index,
        ids: Ids<'_>,
        wanted: Wanted,
        inverse: &mut [i32],
        room: impl FnOnce(usize) -> O,
    ) -> Distinct<O> {
        let mut scratch = self.scratch.take(|_| true).unwrap_or_default();
        // The keys of a part are numbered, looked up and joined with those of the others: where ids
        // repeat, two parts are half as much work again as the whole.
        let work = |pool: &Pool| distinct(pool, index, ids, wanted, &mut scratch, inverse, room);
        let found = match pool.parts(ids.len(), LEAST) {
            1 => work(pool),
            _ => pool.undivided(work),
        };
        self.scratch.keep(scratch);
        found
    }

    /// Numbers the distinct keys of some ids on the caller's thread, with kept working memory: `f`
    /// gets what [`Scratch::number`] returns.
    pub(in crate::table) fn numbered<R>(
        &self,
        index: &Index,
        ids: Ids<'_>,
        f: impl FnOnce(&[i32], &mut [u32]) -> R,
    ) -> R {
        let mut scratch = self.scratch.take(|_| true).unwrap_or_default();
        let (inverse, rows) = scratch.number(index, ids);
        let result = f(inverse, rows);
        self.scratch.keep(scratch);
        result
    }

    /// Takes keys whose rows `wanted` accepts out of the index; their rows are appended to
    /// `removed`, and the keys themselves if `with_keys`.
    pub(in crate::table) fn take_out(
        index: &mut Index,
        ids: Ids<'_>,
        wanted: &dyn Fn(u32) -> bool,
        with_keys: bool,
        removed: &mut Removed,
    ) {
        for at in 0..ids.len() {
            let key = ids.get(at);
            let row = index.row(key);
            if row != NONE && wanted(row) {
                index.remove(key);
                removed.rows.push(row);
                if with_keys {
                    removed.keys.push(key);
                }
            }
        }
    }

    /// Gives the memory back that the index no longer needs.
    pub(in crate::table) fn shrink(&self) {
        self.index.write().shrink();
    }

    /// Takes all keys out of `index`, and forgets what was known of them. Returns how many had
    /// rows.
    pub(in crate::table) fn clear(&self, index: &mut Index) -> u64 {
        let removed = index.len();
        index.clear();
        self.renew_history(0);
        self.count(index);
        removed
    }

    /// Puts `new` in the place of `index`, with the history that came with it; without one its
    /// `rows` rows count as admitted. Returns the old index.
    pub(in crate::table) fn replace(
        &self,
        index: &mut Index,
        new: Index,
        history: Option<Box<History>>,
        rows: usize,
    ) -> Index {
        let old = std::mem::replace(index, new);
        index.follow(&old);
        match history {
            Some(history) => {
                let mut old = self.history.write();
                if let Some(old) = old.as_deref() {
                    history.follow(old);
                }
                *old = Some(history);
            }
            None => self.renew_history(rows),
        }
        self.count(index);
        old
    }

    /// Gives up the memory that is kept between batches.
    pub(in crate::table) fn drop_buffers(&self) {
        self.observed.clear();
        self.counted.clear();
        self.scratch.clear();
    }

    /// Bytes of the index.
    pub(in crate::table) fn index_bytes(&self) -> u64 {
        self.index.read().bytes()
    }

    /// Bytes of the history.
    pub(in crate::table) fn history_bytes(&self) -> u64 {
        self.history.read().as_deref().map_or(0, History::bytes)
    }

    /// Bytes of the memory that is kept between batches.
    pub(in crate::table) fn kept_bytes(&self) -> u64 {
        (self.scratch.bytes() + self.observed.bytes() + self.counted.bytes()) as u64
    }

    /// Takes back what a step has counted, as far as its batches are still known.
    pub(in crate::table) fn uncount(&self, index: &Index, step: i64) {
        while let Some(counted) = self.counted.take(|one| one.step == step) {
            let history = self.history.read();
            let Some(history) = history.as_deref() else {
                continue;
            };
            for (&key, &count) in counted.keys.iter().zip(&counted.counts) {
                let row = index.row(key);
                if row != NONE {
                    history.unsee_row(row, count);
                }
            }
            for &at in &counted.missing {
                let at = at as usize;
                history
                    .candidates
                    .subtract(counted.keys[at], counted.counts[at]);
            }
        }
    }

    /// New counters of keys without a row.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for a sketch.
    pub(in crate::table) fn candidates(&self) -> Result<Candidates> {
        Candidates::new(self.sketch_bytes)
    }

    /// The count from which on keys get rows; 0 without a history.
    pub(in crate::table) fn access(&self) -> u32 {
        self.history.read().as_deref().map_or(0, History::access)
    }

    /// Sets another access threshold. The caller has the index, so that nobody decides meanwhile,
    /// and `rows` rows may be in use.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for a sketch; then nothing changed.
    pub(in crate::table) fn set_access(&self, access: u32, rows: usize) -> Result<()> {
        let mut history = self.history.write();
        if history.is_none() {
            let new = History::unconfigured(access, rows);
            *history = Some(Box::new(new.with_candidates(self.candidates()?)));
        }
        if let Some(history) = history.as_deref_mut() {
            history.set_access(access);
        }
        Ok(())
    }

    /// Sets the eviction threshold of a history that was configured before, and in which the rows
    /// need no date of `now`. False: there is none.
    pub(in crate::table) fn has_configured(&self, eviction: Option<u32>, now: u32) -> bool {
        let history = self.history.read();
        let ready = |one: &&History| one.is_configured() && !one.awaits_date(now);
        match history.as_deref().filter(ready) {
            Some(history) => history.set_eviction(eviction),
            None => return false,
        }
        true
    }

    /// Configures the history, which is made if there is none yet: `rows` rows may be in use.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for a sketch; then nothing changed.
    pub(in crate::table) fn configure(
        &self,
        access: u32,
        eviction: Option<u32>,
        now: u32,
        rows: usize,
    ) -> Result<()> {
        let mut history = self.history.write();
        match history.as_deref_mut() {
            Some(history) => {
                history.configure(access, eviction);
                if history.awaits_date(now) {
                    history.date_rows(now);
                }
            }
            None => {
                let new = History::new(access, eviction, now, rows);
                *history = Some(Box::new(new.with_candidates(self.candidates()?)));
            }
        }
        Ok(())
    }

    /// Moves what is known of keys to the rows that they have got.
    pub(in crate::table) fn move_history(&self, keys: &[i64], rows: &[u32]) {
        let mut history = self.history.write();
        let Some(history) = history.as_deref_mut() else {
            return;
        };
        let access = history.access();
        for (&key, &row) in keys.iter().zip(rows) {
            // A key that gets its row by other means than admission counts as admitted.
            let mut seen = history.candidates.take(key).unwrap_or(Seen {
                count: 0,
                last: if access == 0 { 0 } else { history.latest() },
            });
            seen.count = seen.count.max(access);
            history.fit(row);
            history.set_row(row, seen);
        }
        history.admits();
    }

    /// Forgets what is known of keys without rows, and of the keys of rows.
    pub(in crate::table) fn forget_history(&self, keys: impl Iterator<Item = i64>, rows: &[u32]) {
        if let Some(history) = self.history.read().as_deref() {
            keys.for_each(|key| {
                history.candidates.take(key);
            });
            rows.iter()
                .for_each(|&row| history.set_row(row, Seen::default()));
        }
    }

    /// The content was replaced by one with `rows` rows: forgets all keys, and counts the keys of
    /// these rows as admitted.
    fn renew_history(&self, rows: usize) {
        let mut history = self.history.write();
        let renewed = history.take().and_then(|old| old.renewed(rows));
        *history = renewed.map(Box::new);
    }

    /// How many keys something is known of; with a sketch, how many of those have rows.
    pub(in crate::table) fn known(&self) -> u64 {
        let pieces = self.history.read().as_deref().map_or(0, History::pieces);
        let mut known = 0;
        for piece in 0..pieces {
            let history = self.history.read();
            known += history.as_deref().map_or(0, |one| one.known_rows(piece));
        }
        let history = self.history.read();
        known + history.as_deref().map_or(0, |one| one.candidates.len())
    }

    /// The time from which on staleness is counted, and the pieces of the candidates; `None`
    /// without an eviction threshold.
    pub(in crate::table) fn eviction(&self) -> Option<(u32, usize)> {
        let history = self.history.read();
        let history = history.as_deref().filter(|one| one.eviction().is_some())?;
        Some((history.latest(), history.candidates.pieces()))
    }

    /// Forgets the stale keys without rows of a piece; returns how many.
    pub(in crate::table) fn drop_stale(&self, piece: usize, latest: u32) -> u64 {
        self.history.read().as_deref().map_or(0, |history| {
            let stale = |seen| history.is_stale(seen, latest);
            history.candidates.drop_stale(piece, stale)
        })
    }

    /// Whether the key of a row is stale.
    pub(in crate::table) fn is_stale(&self, row: u32, latest: u32) -> bool {
        let history = self.history.read();
        let stale = |one: &History| one.is_stale(one.of_row(row), latest);
        history.as_deref().is_some_and(stale)
    }

    /// Looks distinct keys up, prefetching the buckets of later ones. `offsets`, as long as `keys`,
    /// become row numbers, -1 for keys without a row.
    pub(in crate::table) fn rows_of(
        pool: &Pool,
        index: &Index,
        keys: &[i64],
        mut offsets: Lines,
    ) -> Distinct<Lines> {
        let bounds = ranges(keys.len(), pool.parts(keys.len(), LEAST));
        let work: Vec<_> = bounds
            .iter()
            .map(|bound| &keys[bound.clone()])
            .zip(split_mut(&mut offsets, 1, &bounds))
            .collect();
        pool.each(work, |(keys, offsets)| {
            for (at, offset) in offsets.iter_mut().enumerate() {
                if let Some(&later) = keys.get(at + BUCKETS) {
                    index.ask(later);
                }
                *offset = match index.row(keys[at]) {
                    NONE => -1,
                    row => i64::from(row),
                };
            }
        });
        let missing = offsets
            .iter()
            .zip(keys)
            .enumerate()
            .filter(|(_, (&offset, _))| offset == -1)
            .map(|(at, (_, &key))| (at as u32, key))
            .collect();
        Distinct {
            keys: keys.len(),
            offsets,
            missing,
            list: Default::default(),
        }
    }
}
