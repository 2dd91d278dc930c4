//! Rows for keys that come often enough, and none any more for keys that have not come for long.
//!
//! A training step first counts the keys of all its lookups of a table ([`Table::observe`]), then
//! gives them rows ([`Table::admit`]): so every occurrence of the batch counts, whatever the order
//! of the lookups.

use crate::batch::distinct::Wanted;
use crate::sync::atomic::Ordering::Relaxed;
use crate::table::keys::observed::Observed;
use crate::table::keys::Keys;
use crate::table::rows::flight::Known;
use crate::table::{Lease, Stats, Table};
use crate::{Ids, Pool, Result, PADDING};
use std::sync::Arc;

/// When keys get rows and lose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Occurrences from which on a key gets a row, this batch included. With 0 every key gets one,
    /// and nothing is counted; in a table that has loaded a history, a key gets one if the loaded
    /// threshold admits it.
    pub access: u32,
    /// Seconds without being seen after which [`Table::evict`] lets a key go; `None` for never.
    pub eviction: Option<u32>,
}

impl Table {
    /// Counts the keys of one lookup, `weight` for each occurrence, and notes when they were seen.
    ///
    /// Returns the distinct keys in order of first occurrence; `inverse[i]` is the position of
    /// `ids[i]` among them, -1 for padding. No key gets a row: [`Table::admit`] does that.
    ///
    /// `thresholds.access` of the first call holds from then on, unless
    /// [`Table::set_access_threshold`] was called before; `thresholds.eviction` is that of the
    /// latest call. After a load of files with a history, the saved access threshold stays in force
    /// if `thresholds.access` equals the configuration of the program that saved the files.
    ///
    /// With the number of a `step`, [`Table::uncount`] takes back what was counted in it.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, a time outside of 1..=4294967294 seconds since 1970,
    /// or an eviction threshold without a time; `ResourceExhausted` without memory for the sketch
    /// of a table that has one, in the first call. A failed call changes nothing.
    #[expect(
        clippy::too_many_arguments,
        reason = "what a lookup counts, and in which step"
    )]
    pub fn observe(
        &self,
        step: Option<i64>,
        pool: &Pool,
        ids: Ids<'_>,
        weight: u32,
        time: Option<i64>,
        thresholds: Thresholds,
        inverse: &mut [i32],
    ) -> Result<Arc<Vec<i64>>> {
        self.length("inverse", inverse.len(), ids.len())?;
        self.expect_ids(ids.len())?;
        let now = self.seconds(time)?;
        self.start_history(thresholds, now)?;
        let index = self.index().read();
        let room = |n| self.rows().buffers().take(n);
        let keys = self.keys();
        let found = keys.distinct(pool, &index, ids, Wanted::Occurrences, inverse, room);
        Ok(keys.observe(pool, &index, found, weight, now, step))
    }

    /// Takes back what was counted in the step of that number, which failed: a step that is tried
    /// again counts once. When keys were seen stays noted. Of the batches of many steps under way
    /// at once only the latest are known.
    pub fn uncount(&self, step: i64) {
        if self.keys().counted.is_empty() {
            return;
        }
        let index = self.index().read();
        self.keys().uncount(&index, step);
    }

    /// [`Table::observe`] of distinct `keys` with their occurrences, which another process
    /// counted.
    ///
    /// # Errors
    /// As there, and `InvalidArgument` for a number of `times` that is not that of the keys, for
    /// the padding key, and for a key without a row that comes twice.
    pub fn observe_counts(
        &self,
        pool: &Pool,
        step: Option<i64>,
        (keys, times): (&[i64], &[u32]),
        weight: u32,
        time: Option<i64>,
        thresholds: Thresholds,
    ) -> Result<()> {
        self.length("times", times.len(), keys.len())?;
        if keys.contains(&PADDING) {
            return Err(self.refuse("the padding key cannot be counted"));
        }
        let now = self.seconds(time)?;
        self.start_history(thresholds, now)?;
        let index = self.index().read();
        let offsets = self.rows().buffers().take(keys.len());
        let mut found = Keys::rows_of(pool, &index, keys, offsets);
        let missing: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
        self.differ(&missing)?;
        found.list = (keys.to_vec(), times.to_vec());
        self.keys().observe(pool, &index, found, weight, now, step);
        Ok(())
    }

    /// Gives rows to those of distinct `keys` that were counted often enough; `places` has for each
    /// id its position in `keys`.
    ///
    /// The lease has the rows of the admitted keys in their order, `inverse[i]` the position of the
    /// id's row in it, -1 for padding and for keys that were not admitted.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, a place outside of `keys`, a key that is padding or
    /// comes twice, or more admitted keys than `limit`; `ResourceExhausted` over the budget. A
    /// failed call changes nothing.
    pub fn admit(
        self: &Arc<Self>,
        pool: &Pool,
        keys: &[i64],
        limit: Option<usize>,
        places: &[i32],
        inverse: &mut [i32],
    ) -> Result<Lease> {
        self.length("inverse", inverse.len(), places.len())?;
        let within = |place: i32| place == -1 || (place as usize) < keys.len();
        if let Some(&place) = places.iter().find(|&&place| !within(place)) {
            return Err(self
                .refuse("a place is none of the keys")
                .with("place", place)
                .with("keys", keys.len()));
        }
        let observed = self.keys().observed.take(|found| found.keys[..] == *keys);
        // Keys that were observed are distinct, and none is padding.
        let given = observed.is_none();
        if given && keys.contains(&PADDING) {
            return Err(self.refuse("the padding key cannot have a row"));
        }
        let mut observed = observed;
        self.with_known_rows_of(pool, keys, || {
            self.admit_here(pool, keys, limit, places, (observed.take(), given), inverse)
        })
    }

    /// [`Table::admit`] of keys whose rows are in memory, if they have any.
    fn admit_here(
        self: &Arc<Self>,
        pool: &Pool,
        keys: &[i64],
        limit: Option<usize>,
        places: &[i32],
        (observed, given): (Option<Observed>, bool),
        inverse: &mut [i32],
    ) -> Result<Lease> {
        let index = self.index().read();
        let version = index.version();
        let buffers = self.rows().buffers();
        let mut decided = self.keys().decide(pool, &index, keys, observed, buffers);
        self.expect_at_most(limit, decided.offsets.len())?;
        let index = if decided.missing.is_empty() {
            index
        } else {
            drop(index);
            let mut index = self.index().write();
            if index.version() != version || decided.access != self.keys().access() {
                decided = self.keys().decide(pool, &index, keys, None, buffers);
                self.expect_at_most(limit, decided.offsets.len())?;
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
        let mut offsets = decided.offsets;
        self.rows().stamp(&mut offsets);
        let (refused, counters) = (keys.len() - offsets.len(), &self.keys().counters);
        counters.batch(offsets.len(), decided.missing.len());
        counters.refused.fetch_add(refused as u64, Relaxed);
        let position = decided.position;
        let position = position.unwrap_or_else(|| (0..).take(keys.len()).collect());
        for (inverse, &place) in inverse.iter_mut().zip(places) {
            *inverse = position.get(place as usize).copied().unwrap_or(-1);
        }
        // The keys are those that the caller says were observed.
        let known = Known {
            are_distinct: false,
            folded: self.folded_keys(Ids::I64(keys), &position, offsets.len()),
        };
        let offsets = Arc::new(offsets);
        self.register(&offsets, known);
        drop(index);
        Ok(self.leased(offsets))
    }

    /// Sets the number of occurrences from which on keys get rows. With 0 nothing is counted any
    /// more, and the threshold before decides. It is saved with the table, and lasts until the next
    /// call or until a restored program configures another one.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for the sketch of a table that has one and no history
    /// yet; then nothing changed.
    pub fn set_access_threshold(&self, access: u32) -> Result<()> {
        // An admission that has the index for writing gives rows by the threshold it decided with.
        let _index = self.index().read();
        let rows = self.content().read().store.rows();
        self.named(self.keys().set_access(access, rows))
    }

    /// Rows, memory and what has happened; cheap enough for every step.
    pub fn stats(&self) -> Stats {
        let memory = self.memory();
        let counters = &self.keys().counters;
        let unusual = self.content().read().unusual();
        Stats {
            rows: self.len(),
            capacity: self.capacity(),
            rows_bytes: memory.rows_bytes,
            index_bytes: memory.index_bytes,
            history_bytes: self.keys().history_bytes(),
            hits: counters.hits.load(Relaxed),
            new: counters.new.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            evicted: counters.evicted.load(Relaxed),
            stale: counters.stale.load(Relaxed),
            saturated: unusual.saturated,
            not_finite: unusual.not_finite,
            tier: self.tier_stats(),
        }
    }

    /// The time of a batch, 0 for none.
    fn seconds(&self, time: Option<i64>) -> Result<u32> {
        let Some(time) = time else {
            return Ok(0);
        };
        u32::try_from(time)
            .ok()
            .filter(|&time| time != 0 && time != u32::MAX)
            .ok_or_else(|| {
                self.refuse("the timestamp must be in 1..=4294967294 seconds since 1970")
                    .with("timestamp", time)
            })
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
        if self.keys().has_configured(eviction, now) {
            return Ok(());
        }
        let _index = self.index().read();
        let rows = self.content().read().store.rows();
        self.named(self.keys().configure(access, eviction, now, rows))
    }
}
