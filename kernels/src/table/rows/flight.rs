//! Staged, leased and retired rows: what a batch holds between its preparation and the end of its
//! step.

use crate::mem::{Lines, NONE};
use crate::stores::{LeasePins, Lent, Pinned};
use crate::table::rows::content::Content;
use crate::table::rows::fingerprint::Fingerprint;
use crate::table::rows::key_map::KeyMap;
use crate::table::rows::offset::row_of;
use std::sync::Arc;

/// Bytes of one entry of the maps, about.
const ENTRY: usize = 32;

/// The state behind the flight lock, which is taken after the index's and before the content's.
///
/// A row in use is in one of four places: in the index (under its key), in `staging` (under its
/// key), in `retired`, or in `loose`. Only the first is visible to verbs that take keys.
#[derive(Default)]
pub(in crate::table) struct Flight {
    /// Live leases by the address of their offsets.
    leases: KeyMap<usize, Held>,
    /// Rows made for batches that are still to come.
    staging: KeyMap<i64, Staged>,
    /// Rows whose keys were removed, with the number of leases that hold them.
    retired: KeyMap<u32, u32>,
    /// Rows that nobody holds any more, to be freed by whoever has the content next.
    loose: Vec<u32>,
}

/// What one live lease holds.
struct Held {
    offsets: Arc<Lines>,
    /// Of the ids and the inverse, if the lease was prepared: it may be claimed.
    source: Option<Fingerprint>,
    /// The keys it staged or found staged, until it is claimed.
    staged: Vec<(i64, u32)>,
    /// The rows of its offsets that were removed since.
    retired: Vec<u32>,
    /// Whether the offsets are no longer those that the ids would get.
    stale: bool,
    /// Keeps the rows in memory. `None` without a tier, and once they were given up.
    pinned: Option<LeasePins>,
    known: Known,
}

/// What is known of the keys of a lease beside its offsets.
#[derive(Clone, Default)]
pub(in crate::table) struct Known {
    /// Whether they are distinct.
    pub(in crate::table) are_distinct: bool,
    /// What their rows are rounded by, if it was noted: an update need not look it up by row.
    pub(in crate::table) folded: Option<Arc<[u32]>>,
}

/// A row whose key is not in the index yet.
struct Staged {
    row: u32,
    /// The live leases that name it.
    leases: u32,
    /// [`Content::initials`] when it was made.
    initials: u64,
}

/// What a lease is good for when its batch is claimed.
pub(in crate::table) enum Claim {
    /// Nothing: the ids are to be resolved again.
    Stale,
    /// The offsets are right and all keys are in the index.
    Good,
    /// The offsets are right, and keys are still to be entered.
    Enter,
}

impl Flight {
    /// Takes in a lease of `offsets`; the rows of `staged` are in `staging` already.
    pub(in crate::table) fn register(
        &mut self,
        offsets: &Arc<Lines>,
        source: Option<Fingerprint>,
        staged: Vec<(i64, u32)>,
        known: Known,
    ) {
        for (key, _) in &staged {
            if let Some(staged) = self.staging.get_mut(key) {
                staged.leases += 1;
            }
        }
        let held = Held {
            offsets: Arc::clone(offsets),
            source,
            staged,
            retired: Vec::new(),
            stale: false,
            pinned: None,
            known,
        };
        self.leases.insert(offsets.as_ptr().addr(), held);
    }

    /// What is known of the keys of these offsets: nothing, if they are not the very offsets of a
    /// live lease.
    pub(in crate::table) fn known(&self, offsets: &[i64]) -> Known {
        let held = self.leases.get(&offsets.as_ptr().addr());
        let held = held.filter(|held| held.offsets.len() == offsets.len());
        held.map(|held| held.known.clone()).unwrap_or_default()
    }

    /// Notes by what the rows of a registered lease are rounded.
    pub(in crate::table) fn note_folded(&mut self, offsets: &[i64], folded: Option<Arc<[u32]>>) {
        if let Some(held) = self.leases.get_mut(&offsets.as_ptr().addr()) {
            held.known.folded = folded;
        }
    }

    /// Keeps the rows of a registered lease in memory until its end.
    pub(in crate::table) fn pin(&mut self, offsets: &Lines, pinned: Option<Pinned>) {
        if let Some(held) = self.leases.get_mut(&offsets.as_ptr().addr()) {
            held.pinned = pinned.map(LeasePins::new);
        }
    }

    /// The pins of the live lease whose offsets these are.
    pub(in crate::table) fn lent(&self, offsets: &[i64]) -> Option<Arc<Lent>> {
        let held = self.leases.get(&offsets.as_ptr().addr())?;
        let pinned = held.pinned.as_ref()?;
        (held.offsets.len() == offsets.len()).then(|| pinned.lend())
    }

    /// The keys of staged rows.
    pub(in crate::table) fn staged_rows(&self) -> impl Iterator<Item = (i64, u32)> + '_ {
        self.staging.iter().map(|(&key, staged)| (key, staged.row))
    }

    /// Keeps the rows of all leases in memory until their ends, by `pin`.
    pub(in crate::table) fn pin_all(&mut self, pin: impl Fn(&Lines) -> Option<Pinned>) {
        for held in self.leases.values_mut() {
            held.pinned = pin(&held.offsets).map(LeasePins::new);
        }
    }

    /// Lets the rows of all leases go to disk, and gives up all staged rows. Returns of how many
    /// leases, and whether some of them were prepared ahead of their step.
    pub(in crate::table) fn give_up(&mut self) -> (u64, bool) {
        let pinned = || self.leases.values().filter(|held| held.pinned.is_some());
        let count = pinned().count() as u64;
        let were_ahead = pinned().any(|held| held.source.is_some());
        self.unstage();
        self.leases.values_mut().for_each(|held| held.pinned = None);
        (count, were_ahead)
    }

    /// Ends the lease whose offsets are at `address`, if it is known.
    pub(in crate::table) fn end(&mut self, address: usize) {
        let Some(held) = self.leases.remove(&address) else {
            return;
        };
        for (key, row) in held.staged {
            if let Some(staged) = self.staging.get_mut(&key).filter(|found| found.row == row) {
                staged.leases -= 1;
                if staged.leases == 0 {
                    self.staging.remove(&key);
                    self.loose.push(row);
                }
            }
        }
        for row in held.retired {
            if let Some(leases) = self.retired.get_mut(&row) {
                *leases -= 1;
                if *leases == 0 {
                    self.retired.remove(&row);
                    self.loose.push(row);
                }
            }
        }
    }

    /// Whether these are the offsets of a lease that may be good for something.
    pub(in crate::table) fn may_be_claimed(&self, offsets: &[i64]) -> bool {
        self.claimable(offsets).is_some()
    }

    /// The lease of these offsets, if it was prepared and none of its keys was removed since.
    fn claimable(&self, offsets: &[i64]) -> Option<&Held> {
        let held = self.leases.get(&offsets.as_ptr().addr())?;
        let good = !held.stale && held.source.is_some() && held.offsets.len() == offsets.len();
        good.then_some(held)
    }

    /// What the lease of these offsets is good for.
    pub(in crate::table) fn claim(&self, offsets: &[i64], source: Fingerprint) -> Claim {
        let Some(held) = self
            .claimable(offsets)
            .filter(|held| held.source == Some(source))
        else {
            return Claim::Stale;
        };
        let named = |(key, row): &(i64, u32)| self.staged(*key) == Some(*row);
        if held.staged.iter().any(named) {
            Claim::Enter
        } else {
            Claim::Good
        }
    }

    /// The keys, with their rows, that a lease names and that are still staged.
    pub(in crate::table) fn named(&self, offsets: &[i64]) -> (Vec<i64>, Vec<u32>) {
        let Some(held) = self.leases.get(&offsets.as_ptr().addr()) else {
            return Default::default();
        };
        let mut named = (
            Vec::with_capacity(held.staged.len()),
            Vec::with_capacity(held.staged.len()),
        );
        for &(key, row) in &held.staged {
            if self.staged(key) == Some(row) {
                named.0.push(key);
                named.1.push(row);
            }
        }
        named
    }

    /// The row that is staged for a key.
    pub(in crate::table) fn staged(&self, key: i64) -> Option<u32> {
        self.staging.get(&key).map(|staged| staged.row)
    }

    /// Stages a row for a key that has none. A lease that names it must be registered next.
    pub(in crate::table) fn stage(&mut self, key: i64, row: u32, initials: u64) {
        let staged = Staged {
            row,
            leases: 0,
            initials,
        };
        self.staging.insert(key, staged);
    }

    /// Takes keys out of staging because they enter the index. Returns the rows whose slots hold
    /// older initial values than those of `initials`: they must be reset, because such a row is to
    /// be as if it were made now.
    pub(in crate::table) fn enter(&mut self, keys: &[i64], initials: u64) -> Vec<u32> {
        keys.iter()
            .filter_map(|key| self.staging.remove(key))
            .filter(|staged| staged.initials != initials)
            .map(|staged| staged.row)
            .collect()
    }

    /// The lease of these offsets names no staged row any more.
    pub(in crate::table) fn entered(&mut self, offsets: &[i64]) {
        if let Some(held) = self.leases.get_mut(&offsets.as_ptr().addr()) {
            held.staged = Vec::new();
        }
    }

    /// How many rows are staged.
    pub(in crate::table) fn staging(&self) -> u64 {
        self.staging.len() as u64
    }

    /// How many rows are retired.
    pub(in crate::table) fn retired(&self) -> u64 {
        self.retired.len() as u64
    }

    /// Which rows of some entries live leases hold.
    pub(in crate::table) fn held(&self, entries: &[(i64, u32)]) -> impl Fn(u32) -> bool + use<> {
        let mut held: KeyMap<u32, bool> = KeyMap::default();
        if !self.leases.is_empty() {
            held.extend(entries.iter().map(|&(_, row)| (row, false)));
        }
        for lease in self.leases.values() {
            for &offset in lease.offsets.iter() {
                if let Some(held) = held.get_mut(&row_of(offset)) {
                    *held = true;
                }
            }
        }
        move |row| held.get(&row) == Some(&true)
    }

    /// Takes in rows whose keys have left the index: those that a live lease holds wait for its
    /// end, the others are freed.
    pub(in crate::table) fn retire(&mut self, rows: &[u32], content: &mut Content) {
        if self.leases.is_empty() {
            self.loose.extend_from_slice(rows);
            return self.settle(content);
        }
        let mut found: KeyMap<u32, u32> = rows.iter().map(|&row| (row, 0)).collect();
        for held in self.leases.values_mut() {
            for &offset in held.offsets.iter() {
                let row = row_of(offset);
                if let Some(leases) = found.get_mut(&row) {
                    *leases += 1;
                    held.retired.push(row);
                    held.stale = true;
                }
            }
        }
        // In the order of removal, so that row numbers are used again in the same order in every
        // run.
        for &row in rows {
            match found.get(&row) {
                Some(&leases) if leases > 0 => {
                    content.retire(row);
                    self.retired.insert(row, leases);
                }
                _ => self.loose.push(row),
            }
        }
        self.settle(content);
    }

    /// Gives up all staged rows. The leases that name them end now: their batches will be resolved
    /// again.
    pub(in crate::table) fn unstage(&mut self) {
        let start = self.loose.len();
        let named = |(key, row): &(i64, u32)| self.staged(*key) == Some(*row);
        let ahead: Vec<usize> = self
            .leases
            .iter()
            .filter(|(_, held)| held.staged.iter().any(named))
            .map(|(&address, _)| address)
            .collect();
        ahead.into_iter().for_each(|address| self.end(address));
        debug_assert!(self.staging.is_empty());
        // In one order, so that row numbers are used again in the same order in every run.
        self.loose[start..].sort_unstable_by(|one, other| other.cmp(one));
    }

    /// Forgets everything: the rows are gone or another content's.
    pub(in crate::table) fn forget(&mut self) {
        *self = Flight::default();
    }

    /// Whether rows wait to be freed.
    pub(in crate::table) fn has_loose(&self) -> bool {
        !self.loose.is_empty()
    }

    /// Frees the rows that nobody holds any more.
    pub(in crate::table) fn settle(&mut self, content: &mut Content) {
        if !self.loose.is_empty() {
            content.free(&self.loose);
            self.loose = Vec::new();
        }
    }

    /// Bytes held, about.
    pub(in crate::table) fn bytes(&self) -> usize {
        let of_leases: usize = self
            .leases
            .values()
            .map(|held| {
                let pinned = held.pinned.as_ref().map_or(0, LeasePins::bytes);
                let folded = held.known.folded.as_ref().map_or(0, |folded| folded.len());
                held.offsets.bytes()
                    + 16 * held.staged.capacity()
                    + 4 * (held.retired.capacity() + folded)
                    + pinned
            })
            .sum();
        let entries =
            self.staging.capacity() + self.retired.capacity() + 4 * self.leases.capacity();
        of_leases + ENTRY * entries + 4 * self.loose.capacity()
    }
}

/// Positions in `keys` that are staged, with their rows, and the keys that are not.
pub(in crate::table) fn divide(flight: &Flight, keys: &[i64]) -> (Vec<u32>, Vec<i64>) {
    if flight.staging.is_empty() {
        return (vec![NONE; keys.len()], keys.to_vec());
    }
    let mut fresh = Vec::new();
    let rows = keys
        .iter()
        .map(|&key| {
            flight.staged(key).unwrap_or_else(|| {
                fresh.push(key);
                NONE
            })
        })
        .collect();
    (rows, fresh)
}
