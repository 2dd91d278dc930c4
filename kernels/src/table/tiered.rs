//! How the verbs of a table with a tier on disk get their rows into memory.
//!
//! A verb that works on rows of certain keys or offsets brings them in first, holding no lock, and
//! keeps them pinned until it has its locks. One thread at a time moves the rows of a table: it has
//! the `turn`. Others that need rows wait for it; verbs that find theirs in memory do not.
//!
//! Rows of live leases are pinned, too, so that a step finds in memory what its lookup, or the
//! pipeline ahead of it, has brought in. These pins save time and nothing depends on them: each
//! verb checks that its rows are there. So if they leave too little room for a batch they are given
//! up, and no batch waits for one that was prepared ahead of it.
//!
//! Nothing here concerns a table without a tier: it makes one test a verb.

use super::content::Content;
use super::crowding::MOST_IN_VAIN;
use super::flight::divide;
use super::group::OneTable;
use super::offset::Unfit;
use super::tier::Tier;
use super::{Table, TierStats};
use crate::batch::distinct::Wanted;
use crate::index::Index;
use crate::mem::NONE;
use crate::rows::{again, shortage, Begun, Pinned, Planned, Request, SideRows, Tiered};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use crate::{Error, Ids, Kind, Pool, Result};
use std::time::{Duration, Instant};

/// How long a thread waits for rows that other threads have pinned for a moment.
const PAUSE: Duration = Duration::from_micros(100);

/// After so many pauses in a row a verb fails: no other verb takes so long.
const MOST_PAUSES: u32 = 300_000;

/// Who needs rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// A lookup of a step, which waits: batches ahead make room for it.
    Lookup,
    /// A verb that uses what was looked up before; it waits, too.
    Use,
    /// A lookup ahead of its step: rows of leases and of other verbs stay.
    Ahead,
}

/// Rows of several tables that stay in memory while their locks are taken; empty for tables without
/// a tier.
pub(super) type Held = Vec<Option<Pinned>>;

impl Table {
    /// Whether some of the rows may be on disk.
    pub(super) fn has_tier(&self) -> bool {
        self.rows().tier.is_some()
    }

    fn tier(&self) -> Option<&Tier> {
        self.rows().tier.as_deref()
    }

    /// Locks the content for reading, with the rows of `offsets` in memory.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn content_with(
        &self,
        pool: &Pool,
        offsets: &[i64],
    ) -> Result<RwLockReadGuard<'_, Content>> {
        let content = self.content().read();
        let Some(tier) = self.tier() else {
            return Ok(content);
        };
        if has_all(&content, offsets) {
            return Ok(content);
        }
        drop(content);
        loop {
            let held = self.bring_in_offsets(pool, tier, offsets)?;
            let content = self.content().read();
            if has_all(&content, offsets) {
                return Ok(content);
            }
            drop((content, held));
        }
    }

    /// Locks the content for writing, with the rows of `offsets` in memory.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn content_with_mut(
        &self,
        pool: &Pool,
        offsets: &[i64],
    ) -> Result<RwLockWriteGuard<'_, Content>> {
        let content = self.content().write();
        let Some(tier) = self.tier() else {
            return Ok(content);
        };
        if has_all(&content, offsets) {
            return Ok(content);
        }
        drop(content);
        loop {
            let held = self.bring_in_offsets(pool, tier, offsets)?;
            let content = self.content().write();
            if has_all(&content, offsets) {
                return Ok(content);
            }
            drop((content, held));
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
    pub(super) fn hold<'o>(
        &self,
        pool: &Pool,
        offsets: impl Iterator<Item = &'o [i64]>,
    ) -> Result<Option<Pinned>> {
        let Some(tier) = self.tier() else {
            return Ok(None);
        };
        let offsets = offsets.flatten().copied().collect::<Vec<i64>>();
        self.bring_in_offsets(pool, tier, &offsets).map(Some)
    }

    /// Runs a verb that looks keys up, and may make rows for them, with the rows of those that are
    /// known in memory and room for the others. It is run again if others were faster.
    ///
    /// # Errors
    /// Those of the verb, and what the disk says.
    pub(super) fn with_rows_of<T>(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        mut verb: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match self.tier() {
            None => verb(),
            Some(_) => with_rows_of(pool, &[(self, &[ids])], true, verb),
        }
    }

    /// [`Table::with_rows_of`] for a verb that knows only while it runs which keys get rows.
    ///
    /// # Errors
    /// As there.
    pub(super) fn with_known_rows_of<T>(
        &self,
        pool: &Pool,
        keys: &[i64],
        mut verb: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match self.tier() {
            None => verb(),
            Some(_) => with_rows_of(pool, &[(self, &[Ids::I64(keys)])], false, verb),
        }
    }

    /// Brings in what a batch ahead of its step needs, if there is room for it. What cannot be done
    /// the step says.
    pub(super) fn bring_in_ahead(&self, pool: &Pool, ids: Ids<'_>) -> Option<Pinned> {
        let tier = self.tier()?;
        if !tier.spilled.load(Relaxed) && self.has_frames(ids.len()) {
            return None;
        }
        let (rows, new) = self.known_rows(pool, &[ids]);
        self.bring_in(pool, tier, &|_| rows.clone(), new, Need::Ahead)
            .unwrap_or_default()
    }

    /// Refuses a batch that was prepared ahead, with these offsets if any, when memory is too small
    /// to look ahead at all.
    ///
    /// # Errors
    /// `ResourceExhausted` that says what to raise. Nothing changed, and the next call goes on.
    pub(super) fn expect_room_ahead(&self, ids: Ids<'_>, offsets: &[i64]) -> Result<()> {
        let Some(tier) = self.tier() else {
            return Ok(());
        };
        let is_served = || {
            let is_claimable = self.flight().lock().may_be_claimed(offsets);
            is_claimable && has_all(&self.content().read(), offsets)
        };
        match tier.crowding.is_too_much(is_served) {
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

    /// Pins the rows of offsets that are in memory. `None` without a tier.
    pub(super) fn pin(&self, content: &Content, offsets: &[i64]) -> Option<Pinned> {
        let tiered = content.store.tiered()?;
        Some(tiered.pin(offsets.iter().map(|&offset| super::offset::row_of(offset))))
    }

    /// Runs `f` on rows in memory and on disk, those of `ids` and any others in memory, with the
    /// index and the content locked for reading. Rows on disk are read and stay where they are.
    ///
    /// # Errors
    /// Those of `f`, and what the disk says.
    pub(super) fn reading_through<T>(
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
    pub(super) fn tier_stats(&self) -> Option<TierStats> {
        let tier = self.tier()?;
        let content = self.content().read();
        let tiered = content.store.tiered()?;
        let (rows_in_memory, rows_on_disk) = tiered.count();
        let log = tiered.log().stats();
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

    fn bring_in_offsets(&self, pool: &Pool, tier: &Tier, offsets: &[i64]) -> Result<Pinned> {
        let rows = |content: &Content| rows_of(content, offsets).collect();
        let held = self.bring_in(pool, tier, &rows, 0, Need::Use)?;
        held.ok_or_else(no_tier)
    }

    /// Whether so many new rows find room without others going to disk.
    fn has_frames(&self, n: usize) -> bool {
        let content = self.content().read();
        let tiered = content.store.tiered();
        tiered.is_none_or(|tiered| tiered.has_frames(n))
    }

    /// The rows of known keys, each once a batch, and how many distinct keys have none.
    fn known_rows(&self, pool: &Pool, batches: &[Ids<'_>]) -> (Vec<u32>, usize) {
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        let index = self.index().read();
        for ids in batches
            .iter()
            .filter(|ids| i32::try_from(ids.len()).is_ok())
        {
            let mut inverse = vec![0; ids.len()];
            let room = |n| self.rows().buffers().take(n);
            let keys = self.keys();
            let found = keys.distinct(pool, &index, *ids, Wanted::Keys, &mut inverse, room);
            let known = found.offsets.iter().filter(|&&row| row != -1);
            rows.extend(known.map(|&row| row as u32));
            missing.extend(found.missing.iter().map(|&(_, key)| key));
            self.rows().buffers().keep(found.offsets);
        }
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

    /// Brings rows into memory, and makes `new` frames free. `None`: batches ahead have no room.
    /// The caller holds no lock, and no pins of this table.
    fn bring_in(
        &self,
        pool: &Pool,
        tier: &Tier,
        rows: &dyn Fn(&Content) -> Vec<u32>,
        new: usize,
        need: Need,
    ) -> Result<Option<Pinned>> {
        {
            let content = self.content().read();
            let wanted = rows(&content);
            let tiered = tiered(&content)?;
            if tiered.has_all(wanted.iter().copied()) && tiered.has_frames(new) {
                if need != Need::Use {
                    let hits = tiered.touch(wanted.iter().copied());
                    tier.hits.fetch_add(hits, Relaxed);
                }
                return Ok(Some(tiered.pin(wanted.into_iter())));
            }
        }
        let start = Instant::now();
        let done = self.exchange(pool, tier, rows, new, need);
        if need != Need::Ahead {
            let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            tier.waited.fetch_add(waited, Relaxed);
        }
        done
    }

    /// Moves rows until a request is met.
    fn exchange(
        &self,
        pool: &Pool,
        tier: &Tier,
        rows: &dyn Fn(&Content) -> Vec<u32>,
        new: usize,
        need: Need,
    ) -> Result<Option<Pinned>> {
        let _turn = tier.turn.lock();
        tier.spilled.store(true, Relaxed);
        let mut content = self.content().write();
        let (mut is_first, mut pauses) = (true, 0);
        loop {
            let wanted = rows(&content);
            if std::mem::replace(&mut is_first, false) && need != Need::Use {
                let hits = tiered(&content)?.touch(wanted.iter().copied());
                tier.hits.fetch_add(hits, Relaxed);
            }
            let request = Request { rows: &wanted, new };
            let begun = tiered_mut(&mut content)?.begin(request);
            match begun.map_err(|error| error.with("table", &self.config().name))? {
                Begun::Ready(pinned) => return Ok(Some(pinned)),
                Begun::Blocked => {
                    drop(content);
                    if need == Need::Ahead {
                        tier.given_up.fetch_add(1, Relaxed);
                        tier.crowding.note();
                        return Ok(None);
                    }
                    if !self.give_up(tier) {
                        // Other verbs hold them, and wait for nothing that this thread has.
                        pauses += 1;
                        if pauses > MOST_PAUSES {
                            return Err(self.no_room(wanted.len() + new));
                        }
                        std::thread::sleep(PAUSE);
                    }
                    content = self.content().write();
                }
                Begun::Exchange(mut exchange) => {
                    drop(content);
                    let ran = exchange.run(pool);
                    if ran.is_ok() {
                        tier.misses.fetch_add(exchange.arrivals() as u64, Relaxed);
                    }
                    content = self.content().write();
                    let is_current = tiered(&content)?.is_of(&exchange);
                    tiered_mut(&mut content)?.finish(exchange);
                    if let (Err(error), true) = (ran, is_current) {
                        drop(content);
                        return Err(self.lost(error, None));
                    }
                }
            }
        }
    }

    #[cold]
    fn no_room(&self, wanted: usize) -> Error {
        Error::new(
            Kind::ResourceExhausted,
            "verbs that run at once hold all rows that may be in memory: raise \
             device_vocabulary_size or host_vocabulary_size",
        )
        .with("table", &self.config().name)
        .with("wanted", wanted)
        .with(
            "rows_in_memory",
            self.tier().map_or(0, |one| one.setup.ram_rows),
        )
    }

    /// Lets the rows of all leases go, and takes back what was staged. False: there were none.
    fn give_up(&self, tier: &Tier) -> bool {
        let mut flight = self.flight().lock();
        let (given_up, were_ahead) = flight.give_up();
        tier.given_up.fetch_add(given_up, Relaxed);
        if were_ahead {
            tier.crowding.note();
        }
        if flight.has_loose() {
            let mut content = self.content().write();
            flight.settle(&mut content);
        }
        given_up > 0
    }

    /// An error of the log with the table's name, and the key if the log could not tell it.
    pub(super) fn lost(&self, error: Error, index: Option<&Index>) -> Error {
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

/// [`Table::hold`] of all tables of a group, whose members have `offsets`.
///
/// # Errors
/// As there.
pub(super) fn hold_all<'o>(
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

/// [`Table::with_rows_of`] of several tables, which come in the order of their addresses, each
/// once, with its batches. `all` says whether every key that has no row gets one.
///
/// # Errors
/// As there.
pub(super) fn with_rows_of<T>(
    pool: &Pool,
    tables: &[(&Table, &[Ids<'_>])],
    all: bool,
    mut verb: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut lacking: Vec<Option<usize>> = vec![None; tables.len()];
    loop {
        let mut held: Held = Vec::with_capacity(tables.len());
        for ((table, ids), &lacking) in tables.iter().zip(&lacking) {
            let Some(tier) = table.tier() else { continue };
            if !tier.spilled.load(Relaxed) && lacking.is_none() {
                // All rows are in memory, and most likely there is room for more.
                continue;
            }
            let (rows, missing) = table.known_rows(pool, ids);
            let new = if all { missing } else { lacking.unwrap_or(0) };
            held.push(table.bring_in(pool, tier, &|_| rows.clone(), new, Need::Lookup)?);
        }
        let error = match verb() {
            Err(error) => error,
            done => return done,
        };
        let Some(frames) = shortage(&error) else {
            return Err(error);
        };
        let names = |table: &Table| {
            let name = &table.config().name;
            let mut pairs = error.context().iter();
            pairs.any(|(what, value)| *what == "table" && value == name)
        };
        for ((table, _), lacking) in tables.iter().zip(&mut lacking) {
            if names(table) {
                *lacking = Some(frames);
            }
        }
    }
}

/// Refuses to go on with rows that others have sent to disk since they were made, so that
/// [`Table::with_rows_of`] begins again.
pub(super) fn expect_all(content: &Content, offsets: &[i64]) -> Result<()> {
    match has_all(content, offsets) {
        true => Ok(()),
        false => Err(again()),
    }
}

/// The rows of those offsets that are good.
fn rows_of<'c>(content: &'c Content, offsets: &'c [i64]) -> impl Iterator<Item = u32> + 'c {
    let known = content.offsets();
    let row = move |&offset: &i64| match known.row(offset) {
        Ok(row) | Err(Unfit::Retired(row)) if row != NONE => Some(row),
        _ => None,
    };
    offsets.iter().filter_map(row)
}

/// Whether all rows of the offsets that are good are in memory.
fn has_all(content: &Content, offsets: &[i64]) -> bool {
    let tiered = content.store.tiered();
    tiered.is_none_or(|tiered| tiered.has_all(rows_of(content, offsets)))
}

/// The store of a table that has a tier.
fn tiered(content: &Content) -> Result<&Tiered> {
    content.store.tiered().ok_or_else(no_tier)
}

fn tiered_mut(content: &mut Content) -> Result<&mut Tiered> {
    content.store.tiered_mut().ok_or_else(no_tier)
}

#[cold]
fn no_tier() -> Error {
    Error::new(Kind::Internal, "a table has lost its tier")
}
