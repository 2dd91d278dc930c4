//! How often and when keys were seen: admission and eviction are decided by it.
//!
//! A key with a row has its history in an array beside the rows, any other in [`candidates`]. Both
//! take additions from several threads at once, and the result does not depend on their order.

mod candidates;
mod counters;
mod seen;
mod sketch;
mod stored;

use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
pub(crate) use candidates::Candidates;
use counters::KeyCounters;
pub(crate) use seen::Seen;
pub(crate) use sketch::Sketch;
pub(crate) use stored::Settings;

/// Rows whose histories lie together, as a power of two.
const SHIFT: u32 = 13;

/// See [`SHIFT`].
const PIECE: usize = 1 << SHIFT;

/// The history of a table; there is none before somebody asks for admission or eviction.
pub(crate) struct History {
    /// How often a key must have been counted to get a row.
    access: AtomicU32,
    /// Seconds after which a key that was not seen goes; `u32::MAX` for never.
    eviction: AtomicU32,
    /// Whether occurrences are counted.
    counting: AtomicBool,
    /// The greatest batch timestamp seen.
    latest: AtomicU32,
    /// The access threshold of the program's configuration, which `access` was first; -1 before
    /// there is one.
    configured: AtomicI64,
    /// Whether this came from files and no configuration has been given since.
    awaits: AtomicBool,
    /// Whether this process has set `access` otherwise than by a configuration.
    by_hand: AtomicBool,
    /// No row was admitted below this count.
    least: AtomicU32,
    /// The first so many rows replaced others, and nothing was known of them.
    came: AtomicU32,
    /// By row number, [`Seen::pack`], in pieces of [`PIECE`], so that no growth moves them; empty
    /// pieces are zeros.
    rows: Vec<Box<[AtomicU64]>>,
    pub(crate) candidates: Candidates,
}

impl History {
    /// The history of a table whose first `rows` rows may be in use: these count as admitted now.
    pub(crate) fn new(access: u32, eviction: Option<u32>, now: u32, rows: usize) -> History {
        let known = Seen {
            count: access,
            last: now,
        };
        let mut history = History {
            access: AtomicU32::new(access),
            eviction: AtomicU32::new(eviction.unwrap_or(u32::MAX)),
            counting: AtomicBool::new(access > 0),
            latest: AtomicU32::new(now),
            configured: AtomicI64::new(access.into()),
            awaits: AtomicBool::new(false),
            by_hand: AtomicBool::new(false),
            least: AtomicU32::new(access),
            came: AtomicU32::new(0),
            rows: Vec::new(),
            candidates: Candidates::Exact(KeyCounters::default()),
        };
        for row in 0..rows as u32 {
            history.fit(row);
            history.set_row(row, known);
        }
        history
    }

    /// The same, with other counters of keys without a row.
    pub(crate) fn with_candidates(self, candidates: Candidates) -> History {
        History { candidates, ..self }
    }

    /// The count from which on keys get rows.
    pub(crate) fn access(&self) -> u32 {
        self.access.load(Relaxed)
    }

    /// Seconds after which a key goes, if it ever does.
    pub(crate) fn eviction(&self) -> Option<u32> {
        Some(self.eviction.load(Relaxed)).filter(|&seconds| seconds != u32::MAX)
    }

    /// Another time after which a key goes.
    pub(crate) fn set_eviction(&self, eviction: Option<u32>) {
        self.eviction.store(eviction.unwrap_or(u32::MAX), Relaxed);
    }

    /// Another count from which on keys get rows; 0 stops counting and leaves the threshold.
    pub(crate) fn set_access(&mut self, access: u32) {
        if access > 0 {
            *self.access.get_mut() = access;
        }
        *self.counting.get_mut() = access > 0;
        *self.by_hand.get_mut() = true;
        *self.awaits.get_mut() = false;
    }

    /// Whether occurrences are counted.
    pub(crate) fn counts(&self) -> bool {
        self.counting.load(Relaxed)
    }

    /// Notes a time; returns the latest.
    pub(crate) fn tell(&self, now: u32) -> u32 {
        self.latest.fetch_max(now, Relaxed).max(now)
    }

    /// The greatest batch timestamp seen.
    pub(crate) fn latest(&self) -> u32 {
        self.latest.load(Relaxed)
    }

    /// Whether a row may be below the threshold.
    pub(crate) fn may_refuse(&self) -> bool {
        self.access() > self.least.load(Relaxed)
    }

    /// Notes that rows are made under the present threshold.
    pub(crate) fn admits(&self) {
        self.least.fetch_min(self.access(), Relaxed);
    }

    /// Whether a batch of the time `now`, 0 for none, is the first that has one.
    pub(crate) fn awaits_date(&self, now: u32) -> bool {
        now != 0 && self.latest() == 0
    }

    /// Counts rows without a time as seen at `now`, that of the first batch that has one.
    pub(crate) fn date_rows(&mut self, now: u32) {
        let came = std::mem::take(self.came.get_mut());
        for row in 0..(self.rows.len() * PIECE) as u32 {
            let seen = self.of_row(row);
            if seen.last == 0 && (row < came || seen.count > 0) {
                self.set_row(row, Seen { last: now, ..seen });
            }
        }
    }

    /// Takes occurrences of a row's key back that [`History::see_row`] added.
    pub(crate) fn unsee_row(&self, row: u32, count: u32) {
        let Some(word) = self.place(row) else {
            return;
        };
        let less = |old| {
            let seen = Seen::unpack(old);
            let count = seen.count.saturating_sub(count);
            Some(Seen { count, ..seen }.pack())
        };
        word.fetch_update(Relaxed, Relaxed, less).ok();
    }

    /// Makes place for a row.
    pub(crate) fn fit(&mut self, row: u32) {
        let piece = row as usize >> SHIFT;
        if piece >= self.rows.len() {
            self.rows.resize_with(piece + 1, Box::default);
        }
        if self.rows[piece].is_empty() {
            self.rows[piece] = (0..PIECE).map(|_| AtomicU64::new(0)).collect();
        }
    }

    /// Forgets rows from `rows` on, as far as whole pieces go. What is returned holds their memory.
    pub(crate) fn truncate(&mut self, rows: usize) -> impl Sized + use<> {
        let kept = rows.div_ceil(PIECE).min(self.rows.len());
        let gone = self.rows.split_off(kept);
        self.rows.shrink_to_fit();
        gone
    }

    /// What is known of the key of a row.
    #[inline]
    pub(crate) fn of_row(&self, row: u32) -> Seen {
        let word = self.place(row);
        Seen::unpack(word.map_or(0, |word| word.load(Relaxed)))
    }

    /// Sets what is known of the key of a row, for which there is place.
    pub(crate) fn set_row(&self, row: u32, seen: Seen) {
        if let Some(word) = self.place(row) {
            word.store(seen.pack(), Relaxed);
        }
    }

    /// Adds to what is known of the key of a row. Any number of threads may add to the same row.
    #[inline]
    pub(crate) fn see_row(&self, row: u32, count: u32, last: u32) {
        let Some(word) = self.place(row) else {
            return;
        };
        let counting = self.counts();
        let added = |old| {
            let seen = Seen::unpack(old);
            let new = match counting {
                true => seen.add(count, last).pack(),
                false if seen.is_nothing() => old,
                false => seen.add(0, last).pack(),
            };
            // What stays as it is costs no exclusive access.
            (new != old).then_some(new)
        };
        word.fetch_update(Relaxed, Relaxed, added).ok();
    }

    /// The word of a row, to be prefetched.
    #[inline]
    pub(crate) fn place(&self, row: u32) -> Option<&AtomicU64> {
        let piece = self.rows.get(row as usize >> SHIFT)?;
        piece.get(row as usize & (PIECE - 1))
    }

    /// Whether something seen so long ago goes at the time `latest`.
    pub(crate) fn is_stale(&self, seen: Seen, latest: u32) -> bool {
        let eviction = self.eviction();
        seen.last != 0
            && eviction.is_some_and(|seconds| latest.saturating_sub(seen.last) >= seconds)
    }

    /// Pieces of rows, for [`History::known_rows`].
    pub(crate) fn pieces(&self) -> usize {
        self.rows.len()
    }

    /// Of how many rows of a piece something is known.
    pub(crate) fn known_rows(&self, piece: usize) -> u64 {
        let words = self.rows.get(piece).map_or(&[][..], |piece| piece);
        words.iter().filter(|word| word.load(Relaxed) != 0).count() as u64
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let heads = self.rows.capacity() * size_of::<Box<[AtomicU64]>>();
        let words: usize = self.rows.iter().map(|piece| piece.len() * 8).sum();
        (heads + words) as u64 + self.candidates.bytes()
    }
}
