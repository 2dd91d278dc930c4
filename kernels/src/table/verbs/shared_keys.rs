//! What lookups of several tables by the same ids find only once: the distinct keys of a batch.

use crate::batch::distinct::Wanted;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{pause, Mutex};
use crate::table::engine::LookedUp;
use crate::table::keys::Keys;
use crate::table::{Lease, Table};
use crate::{Ids, Pool, Result};
use std::sync::Arc;
use std::time::Duration;

/// Batches of more ids are not shared: what is kept of one is 20 bytes an id.
const MOST_IDS: usize = 1 << 18;

/// The batches that are kept or worked on at a time: those of two sessions, or of two steps.
const MOST_BATCHES: usize = 2;

/// After so many batches in a row that nobody asked for again, few are kept.
const IN_VAIN: u32 = 16;

/// Then every batch with a number that this divides is kept, to see whether somebody asks. It is a
/// prime, so that each of the lookups of a step has its turn.
const TRIES: u64 = 61;

/// A batch of at least so many ids, on which all threads work, is waited for.
const WORTH_WAITING: usize = 16384;

/// How long one wait is, and how many of them there are at most.
const WAITS: (Duration, usize) = (Duration::from_micros(50), 200);

/// A place where one lookup leaves the distinct keys of its batch for the others by the same ids.
///
/// What lies there is used only for a batch that has equal ids. So it does not matter for any
/// result who shares a place: sessions, steps and lookups by other ids may.
#[derive(Default)]
pub struct SharedKeys {
    state: Mutex<State>,
    /// How many batches took what another one had left.
    taken: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The oldest first.
    left: Vec<Left>,
    /// Batches that are being made distinct.
    begun: Vec<Begun>,
    /// Batches begun.
    batches: u64,
    /// Batches in a row that were left and not taken.
    in_vain: u32,
}

/// The distinct keys of a batch.
struct Found {
    ids: OwnIds,
    keys: Vec<i64>,
    inverse: Vec<i32>,
}

#[derive(PartialEq, Eq)]
enum OwnIds {
    I32(Vec<i32>),
    I64(Vec<i64>),
}

struct Left {
    found: Arc<Found>,
    /// How many lookups may still ask for it.
    uses: usize,
    was_taken: bool,
}

struct Begun {
    place: Place,
    uses: usize,
}

/// Where ids lie in memory, while a lookup holds them: a hint that others have the same ones.
type Place = (usize, usize);

/// What to do with a batch.
enum Turn<'s> {
    /// It has been made distinct.
    Take(Arc<Found>),
    /// Make it distinct, and leave what is found.
    Make(Making<'s>),
    /// Make it distinct, and leave nothing.
    Alone,
}

/// A batch that is being made distinct for others, too.
struct Making<'s> {
    shared: &'s SharedKeys,
    place: Place,
}

impl std::fmt::Debug for SharedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedKeys")
            .field("taken", &self.taken())
            .finish_non_exhaustive()
    }
}

impl SharedKeys {
    /// How many batches took what another one had left.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Looks for a batch; `sharers` lookups, this one among them, may ask for it.
    fn begin(&self, ids: Ids<'_>, sharers: usize, waits: bool) -> Turn<'_> {
        let place = place(ids);
        if sharers < 2 || ids.is_empty() || ids.len() > MOST_IDS {
            return Turn::Alone;
        }
        for _ in 0..WAITS.1 {
            if let Some(found) = self.take(ids) {
                return Turn::Take(found);
            }
            let mut state = self.state.lock();
            if let Some(begun) = state.begun.iter_mut().find(|one| one.place == place) {
                if !waits {
                    begun.uses = begun.uses.saturating_sub(1);
                    return Turn::Alone;
                }
                drop(state);
                pause(WAITS.0);
                continue;
            }
            state.batches += 1;
            let is_try = state.batches.is_multiple_of(TRIES);
            if state.begun.len() >= MOST_BATCHES || (state.in_vain >= IN_VAIN && !is_try) {
                return Turn::Alone;
            }
            let uses = sharers - 1;
            state.begun.push(Begun { place, uses });
            let shared = self;
            return Turn::Make(Making { shared, place });
        }
        Turn::Alone
    }

    /// What was left of a batch with equal ids.
    fn take(&self, ids: Ids<'_>) -> Option<Arc<Found>> {
        let state = self.state.lock();
        let left: Vec<Arc<Found>> = state.left.iter().map(|one| one.found.clone()).collect();
        drop(state);
        // Ids are compared without the lock.
        let found = left.into_iter().find(|found| found.ids.equal(ids))?;
        let mut state = self.state.lock();
        let mut used = None;
        if let Some(at) = place_of(&state.left, &found) {
            state.in_vain = 0;
            state.left[at].was_taken = true;
            state.left[at].uses -= 1;
            if state.left[at].uses == 0 {
                used = Some(state.left.remove(at));
            }
        }
        drop(state);
        drop(used);
        self.taken.fetch_add(1, Relaxed);
        Some(found)
    }
}

fn place_of(left: &[Left], found: &Arc<Found>) -> Option<usize> {
    left.iter().position(|one| Arc::ptr_eq(&one.found, found))
}

fn place(ids: Ids<'_>) -> Place {
    match ids {
        Ids::I64(ids) => (ids.as_ptr().addr(), ids.len()),
        Ids::I32(ids) => (ids.as_ptr().addr(), ids.len()),
    }
}

impl OwnIds {
    fn equal(&self, ids: Ids<'_>) -> bool {
        match (self, ids) {
            (OwnIds::I32(own), Ids::I32(ids)) => own == ids,
            (OwnIds::I64(own), Ids::I64(ids)) => own == ids,
            _ => false,
        }
    }
}

impl From<Ids<'_>> for OwnIds {
    fn from(ids: Ids<'_>) -> OwnIds {
        match ids {
            Ids::I64(ids) => OwnIds::I64(ids.to_vec()),
            Ids::I32(ids) => OwnIds::I32(ids.to_vec()),
        }
    }
}

impl Making<'_> {
    /// Leaves what was found.
    fn leave(self, ids: Ids<'_>, keys: Vec<i64>, inverse: &[i32]) {
        let begun = |state: &State| state.begun.iter().position(|one| one.place == self.place);
        let state = self.shared.state.lock();
        let uses = begun(&state).map_or(0, |at| state.begun[at].uses);
        drop(state);
        if uses == 0 {
            return;
        }
        let found = Arc::new(Found {
            ids: ids.into(),
            keys,
            inverse: inverse.to_vec(),
        });
        let mut state = self.shared.state.lock();
        let uses = begun(&state).map_or(0, |at| state.begun[at].uses);
        let mut old = None;
        if uses > 0 {
            if state.left.len() >= MOST_BATCHES {
                let oldest = state.left.remove(0);
                state.in_vain += u32::from(!oldest.was_taken);
                old = Some(oldest);
            }
            let was_taken = false;
            state.left.push(Left {
                found,
                uses,
                was_taken,
            });
        }
        drop(state);
        drop(old);
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let at = state.begun.iter().position(|one| one.place == self.place);
        if let Some(at) = at {
            state.begun.swap_remove(at);
        }
    }
}

impl Table {
    /// [`Table::lease`] of one of `sharers` lookups in several tables by the same ids: the first
    /// one makes them distinct and leaves what it found in `shared`, where the others find it. The
    /// result is that of `lease`, whoever else uses `shared`, and for what.
    ///
    /// # Errors
    /// As there.
    pub fn lease_shared(
        self: &Arc<Self>,
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
        (shared, sharers): (&SharedKeys, usize),
    ) -> Result<Lease> {
        if self.has_tier() {
            return self.lease(pool, ids, limit, inverse);
        }
        self.length("inverse", inverse.len(), ids.len())?;
        self.expect_ids(ids.len())?;
        let room = |n| self.rows().buffers().take(n);
        let waits = pool.threads() > 1 && ids.len() >= WORTH_WAITING;
        let (index, found) = match shared.begin(ids, sharers, waits) {
            Turn::Alone => return self.lease(pool, ids, limit, inverse),
            Turn::Take(found) => {
                inverse.copy_from_slice(&found.inverse);
                let index = self.index().read();
                let buffer = room(found.keys.len());
                let distinct = Keys::rows_of(pool, &index, &found.keys, buffer);
                let version = index.version();
                (index, LookedUp { version, distinct })
            }
            Turn::Make(making) => {
                let index = self.index().read();
                let batch = (ids, Wanted::Occurrences);
                let mut found = self.look_up(pool, &index, batch, inverse, &room);
                let (keys, _) = std::mem::take(&mut found.distinct.list);
                making.leave(ids, keys, inverse);
                (index, found)
            }
        };
        self.expect_at_most(limit, found.distinct.keys)?;
        let (index, offsets) = self.enter(pool, index, ids, inverse, &room, found)?;
        let (index, offsets) = (index.shared(), Arc::new(offsets));
        self.register(&offsets, true);
        drop(index);
        Ok(self.leased(offsets))
    }
}
