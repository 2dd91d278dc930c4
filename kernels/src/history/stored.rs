//! A history between files and a table: what a file holds of it, and what becomes of the thresholds
//! that came from one.
//!
//! Counts and times are the file's. Of the access threshold a file tells two numbers, the one in
//! force and the one that the program's configuration gave: so a configuration that is still the
//! same continues the training as it was, a threshold that was changed at run time included, and
//! another configuration wins.

use super::{History, Seen};
use crate::mem::NONE;
use crate::sync::atomic::Ordering::Relaxed;

/// What a file holds of a history beside its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Occurrences from which on a key gets a row.
    pub(crate) access: u32,
    /// Seconds after which a key that was not seen goes, if it does.
    pub(crate) eviction: Option<u32>,
    /// Whether occurrences are counted.
    pub(crate) counting: bool,
    /// The access threshold of the program's configuration, if it gave one.
    pub(crate) configured: Option<u32>,
    /// The greatest batch timestamp seen, in seconds since 1970; 0 for none.
    pub(crate) latest: u32,
}

impl History {
    /// As [`History::new`], by somebody who sets the access threshold before any configuration
    /// does.
    pub(crate) fn unconfigured(access: u32, rows: usize) -> History {
        let history = History::new(access, None, 0, rows);
        history.configured.store(-1, Relaxed);
        history
    }

    /// A history from files, without a key yet: [`History::put`] brings them, and
    /// [`History::complete`] comes last.
    pub(crate) fn from_files(settings: Settings, rows: usize) -> History {
        let mut history = History::new(settings.access, settings.eviction, settings.latest, 0);
        if let Some(last) = (rows as u32).checked_sub(1) {
            for row in (0..last).step_by(super::PIECE).chain([last]) {
                history.fit(row);
            }
        }
        *history.counting.get_mut() = settings.counting;
        *history.configured.get_mut() = settings.configured.map_or(-1, i64::from);
        *history.awaits.get_mut() = true;
        *history.least.get_mut() = u32::MAX;
        history
    }

    /// What is known of a key and of its row, [`NONE`] if it has none. False, and nothing happens,
    /// if something was known already; a sketch cannot tell, and adds.
    pub(crate) fn put(&self, key: i64, row: u32, seen: Seen) -> bool {
        if row == NONE {
            return self.candidates.put(key, seen);
        }
        self.least.fetch_min(seen.count, Relaxed);
        self.place(row).is_some_and(|word| {
            let free = word.compare_exchange(0, seen.pack(), Relaxed, Relaxed);
            free.is_ok()
        })
    }

    /// After the last [`History::put`]: of `rows` rows in use so many may have no count.
    pub(crate) fn complete(&mut self, rows: u64) {
        let known: u64 = (0..self.pieces()).map(|piece| self.known_rows(piece)).sum();
        if known < rows {
            *self.least.get_mut() = 0;
        }
    }

    /// What a file should hold of this.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            access: self.access(),
            eviction: self.eviction(),
            counting: self.counts(),
            configured: self.configured(),
            latest: self.latest(),
        }
    }

    /// Whether [`History::configure`] would change nothing but the eviction threshold.
    pub(crate) fn is_configured(&self) -> bool {
        self.configured().is_some() && !self.awaits()
    }

    /// The program's configuration, given with every batch. The first one after a load of files
    /// decides about their access threshold: it stays if the configuration is that of the program
    /// that saved them, if that had none, or if this one is 0: then what is known decides, and
    /// nothing is counted any more.
    pub(crate) fn configure(&self, access: u32, eviction: Option<u32>) {
        self.set_eviction(eviction);
        match self.configured() {
            Some(before) if before == access || !self.awaits() => {}
            before => {
                if before.is_some() {
                    if access > 0 {
                        self.access.store(access, Relaxed);
                    }
                    self.counting.store(access > 0, Relaxed);
                }
                self.configured.store(access.into(), Relaxed);
            }
        }
        self.awaits.store(false, Relaxed);
    }

    /// In a history from files that takes the place of `old`: what the running program has said of
    /// thresholds.
    pub(crate) fn follow(&self, old: &History) {
        match old.configured() {
            _ if old.awaits() => {}
            Some(access) if !old.by_hand.load(Relaxed) => {
                self.configure(access, old.eviction());
            }
            before => {
                let eviction = self.eviction();
                self.take_thresholds(old);
                if before.is_none() {
                    self.set_eviction(eviction);
                }
            }
        }
    }

    /// The history with these thresholds after the content was replaced by `rows` rows that nothing
    /// is known of: they count as admitted, and as seen with the first batch that has a time, which
    /// may be earlier than those of the content that went. None if the thresholds are of the files
    /// whose rows went, and nobody has asked for a history since.
    pub(crate) fn renewed(self, rows: usize) -> Option<History> {
        if self.awaits() && rows > 0 {
            return None;
        }
        let history = History::new(self.access(), self.eviction(), 0, rows);
        history.take_thresholds(&self);
        history.came.store(rows as u32, Relaxed);
        Some(history.with_candidates(self.candidates.emptied()))
    }

    fn take_thresholds(&self, other: &History) {
        self.access.store(other.access(), Relaxed);
        self.set_eviction(other.eviction());
        self.counting.store(other.counts(), Relaxed);
        let configured = other.configured.load(Relaxed);
        self.configured.store(configured, Relaxed);
        self.by_hand.store(other.by_hand.load(Relaxed), Relaxed);
        self.awaits.store(other.awaits(), Relaxed);
    }

    fn awaits(&self) -> bool {
        self.awaits.load(Relaxed)
    }

    fn configured(&self) -> Option<u32> {
        u32::try_from(self.configured.load(Relaxed)).ok()
    }
}
