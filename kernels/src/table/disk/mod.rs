//! How the verbs of a table with a tier on disk get their rows into memory.
//!
//! A verb that works on rows of certain keys or offsets brings them in first, holding no lock, and
//! keeps them pinned until it has its locks ([`exchange`] moves them).
//!
//! Rows of live leases are pinned, too, so that a step finds in memory what its lookup, or the
//! pipeline ahead of it, has brought in. These pins save time and nothing depends on them: each
//! verb checks that its rows are there. So if they leave too little room for a batch they are given
//! up, and no batch waits for one that was prepared ahead of it.
//!
//! Nothing here concerns a table without a tier, or one whose rows are all in memory: it makes one
//! test a verb.

pub(super) mod exchange;

use crate::batch::distinct::Distinct;
use crate::index::Index;
use crate::mem::NONE;
use crate::stores::{again, shortage, Lent, Pinned, Planned, SideRows};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex, RwLock};
use crate::table::disk::exchange::{has_all, Need, Wanted, WantedRows};
use crate::table::group::OneTable;
use crate::table::keys::Keys;
use crate::table::rows::content::Content;
use crate::table::rows::crowding::MOST_IN_VAIN;
use crate::table::rows::flight::divide;
use crate::table::rows::tier::Tier;
use crate::table::{Table, TierStats};
use crate::{Error, Ids, Kind, Pool, Result};
use std::ops::Deref;

/// Rows of several tables that stay in memory while their locks are taken; empty for tables without
/// a tier.
pub(in crate::table) type Held = Vec<Option<Pinned>>;

impl Table {
    /// Whether some of the rows may be on disk at some time.
    pub(in crate::table) fn has_tier(&self) -> bool {
        self.rows().tier.is_some()
    }

    pub(in crate::table) fn tier(&self) -> Option<&Tier> {
        self.rows().tier.as_deref()
    }

    /// The tier, if a verb has to bring its rows in: some are on disk, or it `lacks` room.
    fn tier_in_use(&self, lacks: bool) -> Option<&Tier> {
        self.tier()
            .filter(|tier| lacks || tier.spilled.load(Relaxed))
    }

    /// Locks the content by `lock`, for reading or for writing, with the rows of `offsets` in
    /// memory.
    ///
    /// # Errors
    /// What the disk says.
    pub(in crate::table) fn content_with<'t, G: Deref<Target = Content>>(
        &'t self,
        pool: &Pool,
        offsets: &[i64],
        lock: impl Fn(&'t RwLock<Content>) -> G,
    ) -> Result<G> {
        let mut _held = None;
        let tier = self.tier_in_use(false);
        let mut lent = tier.and_then(|_| self.flight().lock().lent(offsets));
        loop {
            let content = lock(self.content());
            if has_leased(&content, lent.as_deref(), offsets.len()) {
                return Ok(content);
            }
            let tier = self.tier().filter(|_| !has_all(&content, offsets));
            let Some(tier) = tier else {
                return Ok(content);
            };
            // Two verbs that wait for room would wait for each other's rows for ever if they kept
            // what they borrowed from leases that were given up.
            drop((content, _held.take(), lent.take()));
            _held = self.bring_in_offsets(pool, tier, offsets)?;
        }
    }

    /// Brings the rows of offsets into memory, for a verb on several tables that takes its locks
    /// in the order of the tables' addresses: this is to be called in that order, with all offsets
    /// for one table at once.
    ///
    /// A row that is pinned stays. It is another row only if its offset is stale by then, which the
    /// verb finds out.
    ///
    /// # Errors
    /// What the disk says.
    pub(in crate::table) fn hold<'o>(
        &self,
        pool: &Pool,
        offsets: impl Iterator<Item = &'o [i64]>,
    ) -> Result<Option<Pinned>> {
        let Some(tier) = self.tier() else {
            return Ok(None);
        };
        let all = self.content().read().store.hold();
        if all.is_some() {
            return Ok(all);
        }
        let offsets: Vec<i64> = offsets.flatten().copied().collect();
        self.bring_in_offsets(pool, tier, &offsets)
    }

    /// Runs a verb that knows only while it runs which of `keys` get rows, with the rows in memory
    /// of those that have one. It is run again if there was no room for new rows.
    ///
    /// # Errors
    /// Those of the verb, and what the disk says.
    pub(in crate::table) fn with_known_rows_of<T>(
        &self,
        pool: &Pool,
        keys: &[i64],
        mut verb: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        until_there(|lacking| {
            let Some(tier) = self.tier_in_use(lacking.is_some()) else {
                return verb();
            };
            let room = self.rows().buffers().take(keys.len());
            let found = Keys::rows_of(pool, &self.index().read(), keys, room);
            let (rows, _) = self.rows_of_found(&[&found]);
            self.rows().buffers().keep(found.offsets);
            let wanted = Wanted {
                rows: WantedRows::Found(&rows),
                new: lacking.unwrap_or(0),
            };
            let _held = self.bring_in(pool, tier, wanted, Need::Lookup)?;
            verb()
        })
    }

    /// Whether a lookup has to bring its rows in: some are on disk, or it `lacks` room.
    pub(in crate::table) fn has_rows_to_bring_in(&self, lacks: bool) -> bool {
        self.tier_in_use(lacks).is_some()
    }

    /// Brings in what batches of a lookup have found, if rows may be on disk, or it `lacks` room.
    ///
    /// # Errors
    /// What the disk says.
    pub(in crate::table) fn bring_in_batches<O: Deref<Target = [i64]>>(
        &self,
        pool: &Pool,
        batches: &[&Distinct<O>],
        lacks: bool,
    ) -> Result<Option<Pinned>> {
        match self.tier_in_use(lacks) {
            Some(tier) => self.bring_in_found(pool, tier, batches, Need::Lookup),
            None => Ok(None),
        }
    }

    /// Whether a batch ahead of its step has to bring rows in, or make room for new ones.
    pub(in crate::table) fn has_to_bring_in(&self, ids: usize) -> bool {
        self.tier().is_some_and(|tier| {
            tier.spilled.load(Relaxed) || !self.content().read().has_frames(ids)
        })
    }

    /// Brings in what a batch ahead of its step has found, if there is room for it. What cannot be
    /// done the step says.
    pub(in crate::table) fn bring_in_ahead<O: Deref<Target = [i64]>>(
        &self,
        pool: &Pool,
        found: &Distinct<O>,
    ) -> Option<Pinned> {
        let tier = self.tier()?;
        self.bring_in_found(pool, tier, &[found], Need::Ahead)
            .unwrap_or_default()
    }

    /// Refuses a batch that was prepared ahead for `lookup`, with these offsets if any, when memory
    /// is too small to look ahead at all.
    ///
    /// # Errors
    /// `ResourceExhausted` that says what to raise. Nothing changed, and the next call goes on.
    pub(in crate::table) fn expect_room_ahead(
        &self,
        lookup: usize,
        ids: Ids<'_>,
        offsets: &[i64],
    ) -> Result<()> {
        let Some(tier) = self.tier() else {
            return Ok(());
        };
        let is_served = || {
            let is_claimable = self.flight().lock().may_be_claimed(offsets);
            is_claimable && has_all(&self.content().read(), offsets)
        };
        match tier.crowding.is_too_much(lookup, is_served) {
            true => Err(self.crowded(tier, ids)),
            false => Ok(()),
        }
    }

    #[cold]
    fn crowded(&self, tier: &Tier, ids: Ids<'_>) -> Error {
        let mut keys: Vec<i64> = (0..ids.len()).map(|at| ids.get(at)).collect();
        keys.retain(|&key| key != -1);
        keys.sort_unstable();
        keys.dedup();
        Error::new(
            Kind::ResourceExhausted,
            "memory is too small for the distinct keys of the batches ahead: none of the last ones \
             had its rows there when its step came. Raise device_vocabulary_size or \
             host_vocabulary_size to the distinct keys of the batch in its step, of those that are \
             prefetched and of one more, or prefetch fewer batches",
        )
        .with("table", &self.config().name)
        .with("rows_in_memory", tier.setup.ram_rows)
        .with("distinct", keys.len())
        .with("batches_in_vain", MOST_IN_VAIN)
    }

    fn bring_in_found<O: Deref<Target = [i64]>>(
        &self,
        pool: &Pool,
        tier: &Tier,
        batches: &[&Distinct<O>],
        need: Need,
    ) -> Result<Option<Pinned>> {
        let (rows, new) = self.rows_of_found(batches);
        let rows = WantedRows::Found(&rows);
        self.bring_in(pool, tier, Wanted { rows, new }, need)
    }

    /// The rows of the keys of batches, staged ones among them, and how many distinct keys have
    /// none.
    fn rows_of_found<O: Deref<Target = [i64]>>(
        &self,
        batches: &[&Distinct<O>],
    ) -> (Vec<u32>, usize) {
        let offsets = || batches.iter().flat_map(|found| found.offsets.iter());
        let mut rows = Vec::with_capacity(batches.iter().map(|one| one.offsets.len()).sum());
        rows.extend(offsets().filter(|&&row| row != -1).map(|&row| row as u32));
        let missing = batches.iter().flat_map(|found| &found.missing);
        let mut missing: Vec<i64> = missing.map(|&(_, key)| key).collect();
        if batches.len() > 1 {
            missing.sort_unstable();
            missing.dedup();
        }
        if missing.is_empty() {
            return (rows, 0);
        }
        let (staged, fresh) = divide(&self.flight().lock(), &missing);
        rows.extend(staged.into_iter().filter(|&row| row != NONE));
        (rows, fresh.len())
    }

    /// Runs `f` on rows in memory and on disk, those of `ids` and any others in memory, with the
    /// index and the content locked for reading. Rows on disk are read and stay where they are.
    ///
    /// # Errors
    /// Those of `f`, and what the disk says.
    pub(in crate::table) fn reading_through<T>(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        f: impl FnOnce(&Index, &Content, Option<&SideRows>) -> Result<T>,
    ) -> Result<T> {
        let mut side: Option<SideRows> = None;
        loop {
            let index = self.index().read();
            let content = self.content().read();
            let Some(tiered) = content.store.tiered() else {
                return f(&index, &content, None);
            };
            let rows = (0..ids.len()).map(|at| index.row(ids.get(at)));
            let planned = tiered.plan(rows, side.as_ref());
            let Some(planned) = planned.map_err(|error| self.lost(error, Some(&index)))? else {
                return f(&index, &content, side.as_ref());
            };
            let width = content.store.width();
            drop((index, content));
            // The places of an earlier turn stay reserved until it is replaced.
            side = Some(self.read_beside(pool, planned, width)?);
        }
    }

    fn read_beside(&self, pool: &Pool, planned: Planned, width: usize) -> Result<SideRows> {
        SideRows::read(pool, planned, width).map_err(|error| self.lost(error, None))
    }

    /// What is known of the tier; `None` without one.
    pub(in crate::table) fn tier_stats(&self) -> Option<TierStats> {
        let tier = self.tier()?;
        let content = self.content().read();
        let (rows_in_memory, rows_on_disk) = match content.store.tiered() {
            Some(tiered) => tiered.count(),
            None => (content.used() as u64, 0),
        };
        let log = content.store.log()?.stats();
        Some(TierStats {
            ram_rows: tier.setup.ram_rows,
            rows_in_memory,
            rows_on_disk,
            hits: tier.hits.load(Relaxed),
            misses: tier.misses.load(Relaxed),
            bytes_read: log.bytes_read,
            bytes_written: log.bytes_written,
            bytes_on_disk: log.disk_bytes,
            wait_nanoseconds: tier.waited.load(Relaxed),
            given_up: tier.given_up.load(Relaxed),
        })
    }

    fn bring_in_offsets(
        &self,
        pool: &Pool,
        tier: &Tier,
        offsets: &[i64],
    ) -> Result<Option<Pinned>> {
        let rows = WantedRows::Of(offsets);
        self.bring_in(pool, tier, Wanted { rows, new: 0 }, Need::Use)
    }

    /// An error of the log with the table's name, and the key if the log could not tell it.
    pub(in crate::table) fn lost(&self, error: Error, index: Option<&Index>) -> Error {
        let error = error.with("table", &self.config().name);
        let mut pairs = error.context().iter();
        let row = pairs.find(|(name, _)| *name == "row");
        let row = row.and_then(|(_, row)| row.parse::<u32>().ok());
        let Some(row) = row.filter(|_| error.kind() == Kind::DataLoss) else {
            return error;
        };
        // What is damaged may be the key in the record.
        let found = match index {
            Some(index) => key_of(index, row),
            None => key_of(&self.index().read(), row),
        };
        let Some(key) = found else { return error };
        let named = Error::new(error.kind(), error.message()).with("key", key);
        let others = error.context().iter().filter(|(name, _)| *name != "key");
        others.fold(named, |named, (name, value)| named.with(name, value))
    }
}

/// The key of a row: a look at all keys, for errors alone.
fn key_of(index: &Index, row: u32) -> Option<i64> {
    let found = Mutex::new(None);
    index.each_on(&Pool::alone(), |key, its| {
        if its == row {
            *found.lock() = Some(key);
        }
    });
    found.into_inner()
}

/// Whether a lease keeps the rows of all of so many offsets in memory, so that nobody has to look.
fn has_leased(content: &Content, lent: Option<&Lent>, offsets: usize) -> bool {
    let both = content.store.tiered().zip(lent);
    both.is_some_and(|(tiered, lent)| tiered.is_leased(lent, offsets))
}

/// [`Table::hold`] of all tables of a group, whose members have `offsets`.
///
/// # Errors
/// As there.
pub(in crate::table) fn hold_all<'o>(
    pool: &Pool,
    tables: &[OneTable<'_>],
    offsets: impl Fn(usize) -> &'o [i64],
) -> Result<Held> {
    let mut held = Held::new();
    for one in tables.iter().filter(|one| one.table.has_tier()) {
        let offsets = one.members.iter().map(|&member| offsets(member));
        held.push(one.table.hold(pool, offsets)?);
    }
    Ok(held)
}

/// Refuses to go on with rows that others have sent to disk since they were made, so that
/// [`until_there`] begins again.
pub(in crate::table) fn expect_all(content: &Content, offsets: &[i64]) -> Result<()> {
    match has_all(content, offsets) {
        true => Ok(()),
        false => Err(again()),
    }
}

/// Attempts something until it does not lack places in memory any more. What it is told is how many
/// places it lacked in the attempt before.
pub(in crate::table) fn until_there<T>(
    mut attempt: impl FnMut(Option<usize>) -> Result<T>,
) -> Result<T> {
    let mut lacking = None;
    loop {
        let done = attempt(lacking);
        match done.as_ref().err().and_then(shortage) {
            Some(frames) => lacking = Some(frames),
            None => return done,
        }
    }
}
