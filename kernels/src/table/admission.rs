//! Rows for keys that come often enough, and none any more for keys that have not come for long.
//!
//! A training step counts the keys of all its lookups of a table first ([`Table::observe`]) and gives rows then
//! ([`Table::admit`]): so every occurrence of the batch counts, whatever the order of the lookups.

use super::observed::Observed;
use super::{Lease, Table};
use crate::batch::distinct::Wanted;
use crate::history::{Candidates, History, Seen};
use crate::index::Index;
use crate::mem::{prefetch, Lines};
use crate::pool::ranges;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::{Ids, Pool, Result, PADDING};
use std::ops::Range;
use std::sync::Arc;

/// A thread should count at least so many keys.
const LEAST: usize = 4096;

/// Histories on their way ahead of the one that is changed.
const AHEAD: usize = 16;

/// When keys get rows and lose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Occurrences from which on a key gets a row, this batch included. 0: every key gets one, and nothing is counted; in a table that
    /// has loaded a history, a key gets one that the loaded threshold admits.
    pub access: u32,
    /// Seconds without being seen after which [`Table::evict`] lets a key go; `None` for never.
    pub eviction: Option<u32>,
}

/// What has happened to a table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows in use.
    pub rows: u64,
    /// The row budget.
    pub capacity: u64,
    /// Bytes of rows, of the index and of the history.
    pub rows_bytes: u64,
    /// See `rows_bytes`.
    pub index_bytes: u64,
    /// See `rows_bytes`.
    pub history_bytes: u64,
    /// Distinct keys of training batches that had a row.
    pub hits: u64,
    /// Keys that got a row.
    pub new: u64,
    /// Distinct keys of batches that were not admitted.
    pub refused: u64,
    /// Keys that were evicted.
    pub evicted: u64,
    /// Gradients that were dropped because their keys had been removed since the lookup, each offset once an update.
    pub stale: u64,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) new: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) stale: AtomicU64,
}

impl Counters {
    /// Counts a batch of distinct keys, so many of which got a row.
    pub(super) fn batch(&self, keys: usize, new: usize) {
        self.hits.fetch_add((keys - new.min(keys)) as u64, Relaxed);
        self.new.fetch_add(new as u64, Relaxed);
    }
}

impl Table {
    /// Counts the keys of one lookup, `weight` for each occurrence, and notes when they were seen.
    ///
    /// Returns the distinct keys in order of first occurrence; `restore[i]` is the position of `ids[i]` among them, -1 for padding.
    /// No key gets a row: [`Table::admit`] comes next.
    ///
    /// `thresholds.access` holds from the first call on, unless [`Table::set_access_threshold`] has been there before;
    /// `thresholds.eviction` is that of the latest call. After a load of files with a history, an access threshold that is still what
    /// the program had configured that saved them leaves the one in force as it was saved.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, a time outside of 1..=4294967294 seconds since 1970, or an eviction threshold without
    /// a time; `ResourceExhausted` without memory for the sketch of a table that has one, in the first call. A failed call changes nothing.
    pub fn observe(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        weight: u32,
        time: Option<i64>,
        thresholds: Thresholds,
        restore: &mut [i32],
    ) -> Result<Arc<Vec<i64>>> {
        self.length("restore", restore.len(), ids.len())?;
        if i32::try_from(ids.len()).is_err() {
            return Err(self
                .refuse("a batch must have fewer than 2^31 ids")
                .with("ids", ids.len()));
        }
        let now = match time {
            None => 0,
            Some(time) => u32::try_from(time)
                .ok()
                .filter(|&time| time != 0 && time != u32::MAX)
                .ok_or_else(|| {
                    self.refuse("the timestamp must be in 1..=4294967294 seconds since 1970")
                        .with("timestamp", time)
                })?,
        };
        self.start_history(thresholds, now)?;
        let index = self.index().read();
        let room = |n| self.rows().buffer(n);
        let found = self.distinct(pool, &index, ids, Wanted::Occurrences, restore, room);
        let (keys, times) = found.list;
        let keys = Arc::new(keys);
        let history = self.history().read();
        if let Some(history) = history.as_deref() {
            history.tell(now);
            let count = |at: usize| times[at].saturating_mul(weight);
            let offsets = &found.offsets;
            pool.each(ranges(keys.len(), pool.parts(keys.len(), LEAST)), |range| {
                see_rows(history, range, offsets, now, &count);
            });
            let counted_at = history.candidates.version() + 2;
            let mut counts = Vec::new();
            if !found.missing.is_empty() {
                let missing: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
                let count = |at: usize| count(found.missing[at].0 as usize);
                let candidates = &history.candidates;
                counts = candidates.add(pool, &missing, history.counts(), count, now);
            }
            self.observed().keep(Observed {
                keys: Arc::clone(&keys),
                offsets: found.offsets,
                missing: found.missing,
                counts,
                version: index.version(),
                removals: index.removals(),
                counted_at,
            });
        }
        Ok(keys)
    }

    /// Gives rows to those of distinct `keys` that were counted often enough; `places` says for each id which of them it is.
    ///
    /// The lease has the rows of the admitted keys in their order, `restore[i]` the position of the id's row in it, -1 for padding and
    /// for keys that were not admitted.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, a place that is none, a key that is padding or comes twice, or more admitted keys than
    /// `limit`; `ResourceExhausted` over the budget. A failed call changes nothing.
    pub fn admit(
        self: &Arc<Self>,
        pool: &Pool,
        keys: &[i64],
        limit: Option<usize>,
        places: &[i32],
        restore: &mut [i32],
    ) -> Result<Lease> {
        self.length("restore", restore.len(), places.len())?;
        let within = |place: i32| place == -1 || (place as usize) < keys.len();
        if let Some(&place) = places.iter().find(|&&place| !within(place)) {
            return Err(self
                .refuse("a place is none of the keys")
                .with("place", place)
                .with("keys", keys.len()));
        }
        let observed = self.observed().take(|found| found.keys[..] == *keys);
        // Keys that were observed are distinct, and none is padding.
        let given = observed.is_none();
        if given && keys.contains(&PADDING) {
            return Err(self.refuse("the padding key cannot have a row"));
        }
        let index = self.index().read();
        let version = index.version();
        let mut decided = self.decide(pool, &index, keys, observed);
        self.check_limit(&decided, limit)?;
        let index = if decided.missing.is_empty() {
            index
        } else {
            drop(index);
            let mut index = self.index().write();
            if index.version() != version || decided.access != self.access() {
                decided = self.decide(pool, &index, keys, None);
                self.check_limit(&decided, limit)?;
            }
            let missing: Vec<i64> = decided.missing.iter().map(|&(_, key)| key).collect();
            if given {
                self.differ(&missing)?;
            }
            let made = self.create(pool, &mut index, &missing)?;
            for (&(at, _), &row) in decided.missing.iter().zip(&made) {
                decided.offsets[at as usize] = i64::from(row);
            }
            crate::sync::RwLockWriteGuard::downgrade(index)
        };
        let Decided {
            mut offsets,
            position,
            missing,
            access: _,
        } = decided;
        self.rows().stamp(&mut offsets);
        let refused = keys.len() - offsets.len();
        self.counters().batch(offsets.len(), missing.len());
        self.counters().refused.fetch_add(refused as u64, Relaxed);
        match position {
            None => restore.copy_from_slice(places),
            Some(position) => {
                for (restore, &place) in restore.iter_mut().zip(places) {
                    *restore = position.get(place as usize).copied().unwrap_or(-1);
                }
            }
        }
        let offsets = Arc::new(offsets);
        self.flight().lock().register(&offsets, None, Vec::new());
        drop(index);
        Ok(self.leased(offsets))
    }

    /// Another number of occurrences from which on keys get rows; 0: what is known decides, and nothing is counted any more.
    /// It is saved with the table, and lasts until this is called again or a restored program configures another.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for the sketch of a table that has one and no history yet; then nothing changed.
    pub fn set_access_threshold(&self, access: u32) -> Result<()> {
        // While somebody has the index for writing, the threshold stays: rows are given by the one that was asked about.
        let _index = self.index().read();
        let rows = self.content().read().slab.rows();
        let mut history = self.history().write();
        if history.is_none() {
            let new = History::unconfigured(access, rows);
            *history = Some(Box::new(new.with_candidates(self.candidates()?)));
        }
        if let Some(history) = history.as_deref_mut() {
            history.set_access(access);
        }
        Ok(())
    }

    /// Rows, memory and what has happened; cheap enough for every step.
    pub fn stats(&self) -> Stats {
        let memory = self.memory();
        let counters = self.counters();
        Stats {
            rows: self.len(),
            capacity: self.capacity(),
            rows_bytes: memory.rows_bytes,
            index_bytes: memory.index_bytes,
            history_bytes: self.history_bytes(),
            hits: counters.hits.load(Relaxed),
            new: counters.new.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            evicted: counters.evicted.load(Relaxed),
            stale: counters.stale.load(Relaxed),
        }
    }

    /// Bytes of the history.
    pub(super) fn history_bytes(&self) -> u64 {
        self.history().read().as_deref().map_or(0, History::bytes)
    }

    /// Which of distinct keys are admitted now, with what was found when they were observed.
    fn decide(
        &self,
        pool: &Pool,
        index: &Index,
        keys: &[i64],
        observed: Option<Observed>,
    ) -> Decided {
        let current = observed.filter(|found| found.removals == index.removals());
        let (mut offsets, mut missing, counted) = match current {
            Some(mut found) if found.version != index.version() => {
                // Rows have come meanwhile.
                let keys: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
                let again = self.rows_of(pool, index, &keys);
                for (&(at, _), &offset) in found.missing.iter().zip(again.offsets.iter()) {
                    found.offsets[at as usize] = offset;
                }
                found
                    .missing
                    .retain(|&(at, _)| found.offsets[at as usize] == -1);
                self.rows().keep(again.offsets);
                (found.offsets, found.missing, None)
            }
            Some(found) => (
                found.offsets,
                found.missing,
                Some((found.counts, found.counted_at)),
            ),
            None => {
                let found = self.rows_of(pool, index, keys);
                (found.offsets, found.missing, None)
            }
        };
        let history = self.history().read();
        let access = history.as_deref().map_or(0, History::access);
        let Some(history) = history.as_deref().filter(|_| access > 0) else {
            return Decided::all(offsets, missing, access);
        };
        // Empty as long as no key is refused; -1 for those that are.
        let mut position = Vec::new();
        let mut refuse = |at: u32| {
            if position.is_empty() {
                position = vec![0; keys.len()];
            }
            position[at as usize] = -1;
        };
        if history.may_refuse() {
            for at in 0..offsets.len() {
                prefetch_history(history, &offsets, at + AHEAD);
                let row = offsets[at];
                if row != -1 && history.of_row(row as u32).count < access {
                    refuse(at as u32);
                }
            }
        }
        if !missing.is_empty() {
            let counts = match counted {
                Some((counts, counted_at)) if counted_at == history.candidates.version() => counts,
                _ => {
                    let keys: Vec<i64> = missing.iter().map(|&(_, key)| key).collect();
                    history.candidates.counts(pool, &keys)
                }
            };
            let below = missing.iter().zip(&counts);
            let below = below.filter(|(_, &count)| count < access);
            below.for_each(|(&(at, _), _)| refuse(at));
        }
        if position.is_empty() {
            return Decided::all(offsets, missing, access);
        }
        let mut admitted = 0;
        // Without a branch: which keys are refused cannot be foreseen.
        for (at, position) in position.iter_mut().enumerate() {
            let is_in = *position == 0;
            offsets[admitted] = offsets[at];
            *position = if is_in { admitted as i32 } else { -1 };
            admitted += usize::from(is_in);
        }
        offsets.fit(admitted);
        missing.retain_mut(|(at, _)| {
            let new = position[*at as usize];
            *at = new as u32;
            new != -1
        });
        Decided {
            offsets,
            position: Some(position),
            missing,
            access,
        }
    }

    /// The count from which on keys get rows; 0 without a history.
    fn access(&self) -> u32 {
        self.history().read().as_deref().map_or(0, History::access)
    }

    /// Refuses more admitted keys than `limit`.
    fn check_limit(&self, decided: &Decided, limit: Option<usize>) -> Result<()> {
        match limit.filter(|&limit| decided.offsets.len() > limit) {
            None => Ok(()),
            Some(limit) => Err(self
                .refuse("the batch has more distinct keys than its limit")
                .with("distinct", decided.offsets.len())
                .with("limit", limit)),
        }
    }

    /// Refuses keys of which one comes twice.
    fn differ(&self, keys: &[i64]) -> Result<()> {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(self.refuse("a key comes twice").with("key", pair[0])),
            None => Ok(()),
        }
    }

    /// Makes the history if there is none yet.
    fn start_history(&self, thresholds: Thresholds, now: u32) -> Result<()> {
        if thresholds.eviction.is_some() && now == 0 {
            return Err(self.refuse("an eviction threshold needs a timestamp in every batch"));
        }
        let Thresholds { access, eviction } = thresholds;
        let history = self.history().read();
        if let Some(history) = history.as_deref().filter(|one| one.is_configured()) {
            history.set_eviction(eviction);
            return Ok(());
        }
        drop(history);
        let _index = self.index().read();
        let rows = self.content().read().slab.rows();
        let mut history = self.history().write();
        match history.as_deref_mut() {
            Some(history) => history.configure(access, eviction),
            None => {
                let new = History::new(access, eviction, now, rows);
                *history = Some(Box::new(new.with_candidates(self.candidates()?)));
            }
        }
        Ok(())
    }

    /// New counters of keys without a row, as the table's settings want them.
    pub(super) fn candidates(&self) -> Result<Candidates> {
        let bytes = self.config().admission_sketch_bytes;
        Candidates::new(bytes).map_err(|error| error.with("table", &self.config().name))
    }

    /// In a batch of new rows: takes over what was known of their keys.
    pub(super) fn move_history(&self, keys: &[i64], rows: &[u32]) {
        let mut history = self.history().write();
        let Some(history) = history.as_deref_mut() else {
            return;
        };
        let access = history.access();
        for (&key, &row) in keys.iter().zip(rows) {
            // Whoever gives a key its row by hand has admitted it.
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

    /// Forgets what is known of keys and of the rows they had.
    pub(super) fn forget_history(&self, keys: impl Iterator<Item = i64>, rows: &[u32]) {
        if let Some(history) = self.history().read().as_deref() {
            keys.for_each(|key| {
                history.candidates.take(key);
            });
            rows.iter()
                .for_each(|&row| history.set_row(row, Seen::default()));
        }
    }
}

/// Which of some keys are admitted.
struct Decided {
    /// The rows of those that are, -1 where one is to be made.
    offsets: Lines,
    /// For each key its place in `offsets`, -1 if it is refused; `None` if none is.
    position: Option<Vec<i32>>,
    /// The places in `offsets` of rows that are to be made, in order, each with its key.
    missing: Vec<(u32, i64)>,
    /// The count from which on keys were admitted; 0 if there was none.
    access: u32,
}

impl Decided {
    fn all(offsets: Lines, missing: Vec<(u32, i64)>, access: u32) -> Decided {
        Decided {
            offsets,
            position: None,
            missing,
            access,
        }
    }
}

/// Starts to bring the history of the row at a place.
#[inline(always)]
fn prefetch_history(history: &History, offsets: &[i64], at: usize) {
    if let Some(place) = offsets.get(at).and_then(|&row| history.place(row as u32)) {
        prefetch(place);
    }
}

/// Adds the counts of some distinct keys of a batch to what is known of those that have rows.
fn see_rows(
    history: &History,
    range: Range<usize>,
    offsets: &[i64],
    now: u32,
    count: &(impl Fn(usize) -> u32 + Sync),
) {
    let offsets = &offsets[..range.end];
    for at in range {
        prefetch_history(history, offsets, at + AHEAD);
        if offsets[at] != -1 {
            history.see_row(offsets[at] as u32, count(at), now);
        }
    }
}
