//! Moves rows of a table between memory and disk until those that a verb needs are in memory.
//!
//! One thread at a time moves the rows of a table: it has the `turn`. Others that need rows wait
//! for it; verbs that find theirs in memory do not. Who waits for pins of others lets the turn go.
//!
//! Until there are more rows than memory may hold, a table with a tier is a table in memory. The
//! first thread that needs more room lets rows go to disk from then on ([`Content::spill`]), under
//! the locks of the index, of the flight and of the content; leases there are keep their rows.

use crate::mem::NONE;
use crate::stores::{Begun, Exchange, Pinned, Request};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::pause;
use crate::table::rows::content::Content;
use crate::table::rows::offset::{row_of, Unfit};
use crate::table::rows::tier::Tier;
use crate::table::Table;
use crate::{Error, Kind, Pool, Result};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// How long a thread waits for rows that other threads have pinned for a moment.
const PAUSE: Duration = Duration::from_micros(100);

/// After so many pauses in a row a verb fails: no other verb takes so long.
const MOST_PAUSES: u32 = 300_000;

/// Who needs rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::table) enum Need {
    /// A lookup of a step, which waits: batches ahead make room for it.
    Lookup,
    /// A verb that uses what was looked up before; it waits, too.
    Use,
    /// A lookup ahead of its step: rows of leases and of other verbs stay.
    Ahead,
}

/// What a verb needs in memory.
#[derive(Clone, Copy)]
pub(in crate::table) struct Wanted<'w> {
    pub(in crate::table) rows: WantedRows<'w>,
    /// Places for so many new rows.
    pub(in crate::table) new: usize,
}

/// Which rows are wanted. They may repeat.
#[derive(Clone, Copy)]
pub(in crate::table) enum WantedRows<'w> {
    /// Those that the index had.
    Found(&'w [u32]),
    /// Those of offsets, as far as these are good.
    Of(&'w [i64]),
}

impl<'w> WantedRows<'w> {
    fn list(self, content: &Content) -> Cow<'w, [u32]> {
        match self {
            WantedRows::Found(rows) => rows.into(),
            WantedRows::Of(offsets) => rows_of(content, offsets).collect(),
        }
    }
}

impl Table {
    /// Brings rows into memory, and makes places for new ones free. `None`: batches ahead have no
    /// room. The caller holds no lock, and no pins of this table but for batches ahead.
    pub(in crate::table) fn bring_in(
        &self,
        pool: &Pool,
        tier: &Tier,
        wanted: Wanted<'_>,
        need: Need,
    ) -> Result<Option<Pinned>> {
        if let Some(pinned) = self.find_in_memory(tier, wanted, need) {
            return Ok(Some(pinned));
        }
        let start = Instant::now();
        let done = self.exchange(pool, tier, wanted, need);
        if need != Need::Ahead {
            let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            tier.waited.fetch_add(waited, Relaxed);
        }
        done
    }

    /// Pins what is wanted if all is in memory already.
    fn find_in_memory(&self, tier: &Tier, wanted: Wanted<'_>, need: Need) -> Option<Pinned> {
        let content = self.content().read();
        tier.note(&content);
        if !content.has_frames(wanted.new) {
            return None;
        }
        let Some(tiered) = content.store.tiered() else {
            return content.store.hold();
        };
        let rows = wanted.rows.list(&content);
        let is_lookup = need != Need::Use;
        let (pinned, hits) = tiered.pin_all_of(&rows, is_lookup)?;
        if is_lookup {
            tier.hits.fetch_add(hits, Relaxed);
        }
        Some(pinned)
    }

    /// Moves rows until all that is wanted is in memory.
    fn exchange(
        &self,
        pool: &Pool,
        tier: &Tier,
        wanted: Wanted<'_>,
        need: Need,
    ) -> Result<Option<Pinned>> {
        let mut _turn = Some(tier.turn.lock());
        let (mut is_first, mut pauses) = (true, 0);
        loop {
            let mut content = self.content().write();
            let rows = wanted.rows.list(&content);
            let Some(tiered) = content.store.tiered_mut() else {
                if content.has_frames(wanted.new) {
                    return Ok(content.store.hold());
                }
                drop(content);
                self.spill(pool, tier)?;
                continue;
            };
            let is_lookup = std::mem::replace(&mut is_first, false) && need != Need::Use;
            let request = Request {
                rows: &rows,
                new: wanted.new,
                is_lookup,
            };
            let begun = tiered.begin(pool, request);
            let (begun, found) = self.named(begun)?;
            if is_lookup {
                tier.hits.fetch_add(found, Relaxed);
            }
            match begun {
                Begun::Ready(pinned) => return Ok(Some(pinned)),
                Begun::Blocked => {
                    drop(content);
                    if need == Need::Ahead {
                        tier.given_up.fetch_add(1, Relaxed);
                        tier.crowding.note();
                        return Ok(None);
                    }
                    if !self.give_up(tier) {
                        // Other verbs hold them. A batch ahead may wait for its turn meanwhile,
                        // with rows of another lookup of the same table.
                        pauses += 1;
                        if pauses > MOST_PAUSES {
                            return Err(self.no_room(rows.len() + wanted.new));
                        }
                        _turn = None;
                        pause(PAUSE);
                        _turn = Some(tier.turn.lock());
                    }
                }
                Begun::Exchange(mut exchange) => {
                    drop(content);
                    let ran = exchange.run(pool);
                    if ran.is_ok() {
                        tier.misses.fetch_add(exchange.arrivals() as u64, Relaxed);
                    }
                    let (is_current, pinned) = self.end_exchange(pool, exchange);
                    match (ran, is_current) {
                        (Err(error), true) => return Err(self.lost(error, None)),
                        (Ok(()), true) if pinned.is_some() => return Ok(pinned),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Ends an exchange that has run. Whether its rows are still those of the table, and their pins
    /// if all that was wanted is there.
    fn end_exchange(&self, pool: &Pool, exchange: Box<Exchange>) -> (bool, Option<Pinned>) {
        let log = exchange.log();
        let mut content = self.content().write();
        let tiered = content.store.tiered_mut();
        let is_current = tiered.as_ref().is_some_and(|one| one.is_of(&exchange));
        let pinned = match tiered {
            Some(tiered) => tiered.finish(pool, exchange),
            None => {
                exchange.abandon();
                None
            }
        };
        drop(content);
        log.give_back();
        (is_current, pinned)
    }

    /// Lets the files of rows on disk take no more space than their bound, after many rows went;
    /// others get their turn in between. What cannot be written or read stays as it is.
    pub(in crate::table) fn compact_files(&self) {
        let Some(tier) = self.tier() else { return };
        let alone = Pool::alone();
        loop {
            let _turn = tier.turn.lock();
            let begun = self
                .content()
                .read()
                .store
                .tiered()
                .map(|one| one.begin_compaction());
            let Some(mut exchange) = begun else { return };
            let ran = exchange.run(&alone);
            let copies = exchange.copies();
            self.end_exchange(&alone, exchange);
            if ran.is_err() || copies == 0 {
                return;
            }
        }
    }

    /// Lets rows go to disk from now on, if none has gone yet.
    fn spill(&self, pool: &Pool, tier: &Tier) -> Result<()> {
        let index = self.index().read();
        let mut flight = self.flight().lock();
        let mut content = self.content().write();
        if content.store.tiered().is_some() {
            return Ok(());
        }
        self.named(content.spill(pool, &index, flight.staged_rows()))?;
        flight.pin_all(|offsets| self.pin(&content, offsets));
        tier.note(&content);
        Ok(())
    }

    /// Pins the rows of offsets that are in memory. `None` as long as all rows are.
    pub(in crate::table) fn pin(&self, content: &Content, offsets: &[i64]) -> Option<Pinned> {
        let tiered = content.store.tiered()?;
        Some(tiered.pin(offsets.iter().map(|&offset| row_of(offset))))
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
pub(in crate::table) fn has_all(content: &Content, offsets: &[i64]) -> bool {
    let tiered = content.store.tiered();
    tiered.is_none_or(|tiered| tiered.has_all(rows_of(content, offsets)))
}
