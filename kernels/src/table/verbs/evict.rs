//! Eviction: stale keys go in small pieces, between which training goes on, and the memory of their
//! rows is given back.

use crate::mem::reserved;
use crate::sync::RwLockWriteGuard;
use crate::table::keys::{Keys, Removed};
use crate::table::Table;
use crate::{Ids, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Keys that are removed, or rows that are moved, under one lock: other verbs wait about as long as
/// for a batch.
const PIECE: usize = 1024;

/// Rows of at most so many floats in all are moved under one lock.
const PIECE_FLOATS: usize = 512 << 10;

/// Entries of the index that are looked through under one lock.
const LOOK: usize = 32 << 10;

/// Rows whose histories are looked through, or whose memory is given back, under one lock.
const ROWS: usize = 1 << 16;

/// How often, and after which pauses, rows are tried again that a lease kept from moving.
const AGAIN: (usize, Duration) = (32, Duration::from_millis(1));

/// Other rows are moved, and leases waited for, only if the free rows have so many bytes.
const WORTH: usize = 1 << 20;

/// How often rows behind the end are searched: rows that were staged get their keys later.
const ROUNDS: usize = 3;

/// What is called with some entries of the index: keys and rows.
type Visit<'f> = dyn FnMut(&[(i64, u32)]) -> Result<()> + 'f;

impl Table {
    /// Removes the keys that were not seen for as long as the eviction threshold, counted from the
    /// greatest batch timestamp: their rows, slots and history. Returns how many keys went and how
    /// many are still known. A key without a time never goes, and none at all as long as there is
    /// no eviction threshold. Of a table with a sketch both are keys with rows: stale cells are
    /// emptied, but how many keys were in them is not known.
    ///
    /// It works in pieces: other verbs get their turn between any two. Keys that are seen meanwhile
    /// stay. Rows that a live lease holds wait for its end, as in [`Table::remove`]. When half of
    /// the rows are free afterwards, the others move together, and the system gets the memory back:
    /// offsets of the rows that moved are stale then; those of a lease do not move.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for a list of rows. Keys that went before the error stay
    /// gone.
    pub fn evict(&self) -> Result<(u64, u64)> {
        let Some((latest, pieces)) = self.keys().eviction() else {
            return Ok((0, self.keys().known()));
        };
        let pieces = 0..pieces;
        let mut gone = pieces
            .map(|piece| self.keys().drop_stale(piece, latest))
            .sum();
        self.keys().counters.evicted.fetch_add(gone, Relaxed);
        let stale = self.stale_rows(latest)?;
        if stale.iter().any(|&bits| bits != 0) {
            gone += self.evict_rows(&stale, latest)?;
        }
        drop(stale);
        self.compact()?;
        Ok((gone, self.keys().known()))
    }

    /// [`Table::remove`] of those of `ids` whose rows `wanted` accepts. `tidy` says whether the
    /// rows' memory is given back now, if many are free; else this is a piece of something longer,
    /// which does it in the end.
    pub(in crate::table) fn remove_where(
        &self,
        ids: Ids<'_>,
        wanted: &dyn Fn(u32) -> bool,
        tidy: bool,
    ) -> Result<u64> {
        let rows = reserved(ids.len(), "no memory to remove rows", "ids");
        let mut removed = Removed {
            rows: self.named(rows)?,
            keys: Vec::new(),
        };
        let mut index = self.index().write();
        Keys::take_out(&mut index, ids, wanted, self.tracks(), &mut removed);
        let Removed { rows, keys } = removed;
        if rows.is_empty() {
            return Ok(0);
        }
        self.rows().retire(&rows, keys, tidy);
        self.keys().forget_history(std::iter::empty(), &rows);
        self.keys().count(&index);
        if !tidy {
            // Between pieces whoever waits comes next, even if this thread is back before the other
            // is awake.
            RwLockWriteGuard::unlock_fair(index);
        }
        Ok(rows.len() as u64)
    }

    /// One bit a row, set where its key has not been seen for long.
    fn stale_rows(&self, latest: u32) -> Result<Vec<u64>> {
        let rows = self.content().read().store.rows();
        let words = rows.div_ceil(64);
        let mut stale = self.reserved(words, "words")?;
        stale.resize(words, 0_u64);
        for start in (0..rows).step_by(ROWS) {
            if let Some(history) = self.history().read().as_deref() {
                for row in start..rows.min(start + ROWS) {
                    if history.is_stale(history.of_row(row as u32), latest) {
                        stale[row / 64] |= 1 << (row % 64);
                    }
                }
            }
            give_way();
        }
        Ok(stale)
    }

    /// Removes the keys of stale rows, part by part of the index.
    fn evict_rows(&self, stale: &[u64], latest: u32) -> Result<u64> {
        let is_stale = |row: u32| {
            let word = stale.get(row as usize / 64);
            word.is_some_and(|word| word >> (row % 64) & 1 == 1)
        };
        let still_stale = |row: u32| self.keys().is_stale(row, latest);
        let mut gone = 0;
        self.each_entry(&is_stale, PIECE, &mut |entries| {
            let keys: Vec<i64> = entries.iter().map(|&(key, _)| key).collect();
            let removed = self.remove_where(Ids::I64(&keys), &still_stale, false)?;
            self.keys().counters.evicted.fetch_add(removed, Relaxed);
            gone += removed;
            give_way();
            Ok(())
        })?;
        let parts = self.index().read().parts();
        for part in 0..parts {
            let mut index = self.index().write();
            index.shrink_part(part);
            RwLockWriteGuard::unlock_fair(index);
            give_way();
        }
        Ok(gone)
    }

    /// Calls `f` with the entries of the index whose rows are `wanted`, at most `most` at a time.
    /// The table is not held still: an entry may be another by then.
    fn each_entry(
        &self,
        wanted: &dyn Fn(u32) -> bool,
        most: usize,
        f: &mut Visit<'_>,
    ) -> Result<()> {
        let parts = self.index().read().parts();
        let mut entries = Vec::new();
        for part in 0..parts {
            let mut from = Some(0);
            while let Some(start) = from {
                entries.clear();
                let enter = |key, row| {
                    if wanted(row) {
                        entries.push((key, row));
                    }
                };
                from = self.index().read().look(part, start, LOOK, enter);
                give_way();
                entries.chunks(most).try_for_each(&mut *f)?;
            }
        }
        Ok(())
    }

    /// If half of the rows are free: moves those at the end into free places before them, and gives
    /// the memory at the end back.
    ///
    /// With a tier rows keep their numbers: records on disk have theirs, and free frames of memory
    /// are used again.
    fn compact(&self) -> Result<()> {
        if self.has_tier() {
            self.content().write().tidy();
            self.compact_files();
            return Ok(());
        }
        for _ in 0..ROUNDS {
            let (end, width) = {
                let content = self.content().read();
                let (rows, width) = (content.store.rows(), content.store.width());
                let free = (rows - content.used()) * width * size_of::<f32>();
                let is_worth_it = free >= WORTH || content.used() == 0;
                if !content.is_sparse() || !is_worth_it {
                    return Ok(());
                }
                (content.used(), width)
            };
            let most = (PIECE_FLOATS / width).clamp(1, PIECE);
            let mut held = Vec::new();
            self.each_entry(&|row| row as usize >= end, most, &mut |entries| {
                self.move_down(entries, &mut held);
                Ok(())
            })?;
            for _ in 0..AGAIN.0 {
                if held.is_empty() {
                    break;
                }
                std::thread::sleep(AGAIN.1);
                let entries = std::mem::take(&mut held);
                let pieces = entries.chunks(most);
                pieces.for_each(|entries| self.move_down(entries, &mut held));
            }
            let _flight = self.flight().lock();
            let mut content = self.content().write();
            let mut history = self.history().write();
            let rows = content.trim();
            let words = history
                .as_deref_mut()
                .map(|one| one.truncate(content.store.rows()));
            drop((history, content, _flight));
            drop((rows, words));
        }
        // What is still in use there stays; the memory between is given back.
        let rows = self.content().read().store.rows();
        for start in (0..rows).step_by(ROWS) {
            let mut content = self.content().write();
            if !content.is_sparse() {
                break;
            }
            content.release(start..start + ROWS);
            RwLockWriteGuard::unlock_fair(content);
            give_way();
        }
        Ok(())
    }

    /// Moves the rows of entries that are in the index as they are given here into free places
    /// before them; those that a lease holds become `staying`.
    fn move_down(&self, entries: &[(i64, u32)], staying: &mut Vec<(i64, u32)>) {
        let mut scratch = Vec::new();
        let mut index = self.index().write();
        let flight = self.flight().lock();
        let mut content = self.content().write();
        let mut history = self.history().write();
        let held = flight.held(entries);
        for &(key, row) in entries {
            if index.row(key) != row {
                continue;
            }
            if held(row) {
                staying.push((key, row));
                continue;
            }
            let Some(to) = content.move_down(row, &mut scratch) else {
                continue;
            };
            index.renumber(key, to);
            if let Some(history) = history.as_deref_mut() {
                history.fit(to);
                history.set_row(to, history.of_row(row));
                history.set_row(row, Default::default());
            }
        }
        drop((history, flight));
        RwLockWriteGuard::unlock_fair(content);
        RwLockWriteGuard::unlock_fair(index);
        give_way();
    }
}

/// Between two pieces: lets threads run that wait for a processor. A step needs several of them,
/// and would wait for the last.
fn give_way() {
    std::thread::yield_now();
}
