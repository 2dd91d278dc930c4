//! Which rows changed since which save: what an incremental checkpoint writes.
//!
//! Time is counted in epochs. A change carries the number of the epoch it falls into; a save closes
//! the epoch of its snapshot. A delta since epoch e holds the rows that carry a later number. So a
//! save that fails loses nothing: the next one asks for what changed since the last save that is
//! good.

use crate::optim::Steps;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::{Error, Kind, Result};
use std::collections::HashMap;

/// The state behind the content's lock. Rows are stamped by whoever has the content for writing;
/// epochs are closed by whoever has it for reading, when nobody writes.
#[derive(Default)]
pub(crate) struct Changes {
    /// The epoch that changes fall into now; 0 while changes are not tracked.
    epoch: AtomicU32,
    /// By row: the epoch of its last change.
    stamps: Vec<AtomicU32>,
    /// By row: how many times it changed since it was last written.
    touches: Vec<AtomicU32>,
    /// Keys that lost their rows, with the epoch in which they did.
    removed: HashMap<i64, u32>,
    /// Steps that have moved all rows, with the epoch of each. Rows that they alone have moved have
    /// not changed: whoever merges a delta moves them.
    steps: Vec<(u32, Steps)>,
    /// No delta can start before this epoch: the content was replaced in it.
    replaced: u32,
}

impl Changes {
    /// Starts to track; what there is counts as changed.
    pub(in crate::table) fn start(&mut self) {
        if !self.is_on() {
            *self = Changes {
                epoch: AtomicU32::new(1),
                replaced: 1,
                ..Changes::default()
            };
        }
    }

    /// Whether changes are tracked.
    #[inline]
    pub(in crate::table) fn is_on(&self) -> bool {
        self.epoch.load(Relaxed) != 0
    }

    /// Makes room for the changes of so many rows, which then take no memory, if changes are
    /// tracked.
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing changed.
    pub(in crate::table) fn fit(&mut self, rows: usize) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        for words in [&mut self.stamps, &mut self.touches] {
            if rows > words.capacity() {
                let most = rows.checked_next_power_of_two().unwrap_or(rows);
                words.try_reserve_exact(most - words.len()).map_err(|_| {
                    Error::new(Kind::ResourceExhausted, "no memory for the changes of rows")
                        .with("rows", rows)
                })?;
            }
        }
        Ok(())
    }

    /// Notes a change of rows by gradients; a row may come several times and counts each time.
    pub(in crate::table) fn touch(&mut self, rows: impl Iterator<Item = u32>) {
        self.change(rows, 1);
    }

    /// Notes a change of rows by something else than gradients, which does not count.
    pub(in crate::table) fn stamp(&mut self, rows: impl Iterator<Item = u32>) {
        self.change(rows, 0);
    }

    fn change(&mut self, rows: impl Iterator<Item = u32>, touched: u32) {
        let epoch = *self.epoch.get_mut();
        if epoch == 0 {
            return;
        }
        for row in rows {
            let row = row as usize;
            if row >= self.stamps.len() {
                let len = (row + 1).next_power_of_two();
                self.stamps.resize_with(len, AtomicU32::default);
                self.touches.resize_with(len, AtomicU32::default);
            }
            if let (Some(stamp), Some(touches)) =
                (self.stamps.get_mut(row), self.touches.get_mut(row))
            {
                *stamp.get_mut() = epoch;
                *touches.get_mut() = touches.get_mut().saturating_add(touched);
            }
        }
    }

    /// Notes that a row belongs to a new key: what it counted before was another's.
    pub(in crate::table) fn renew(&mut self, rows: &[u32]) {
        if self.is_on() {
            for &row in rows {
                if let Some(touches) = self.touches.get_mut(row as usize) {
                    *touches.get_mut() = 0;
                }
            }
            self.stamp(rows.iter().copied());
        }
    }

    /// Notes that a row has got another number.
    pub(in crate::table) fn moved(&mut self, from: u32, to: u32) {
        for words in [&mut self.stamps, &mut self.touches] {
            let word = words.get_mut(from as usize);
            let word = word.map_or(0, |word| *word.get_mut());
            if word != 0 && to as usize >= words.len() {
                words.resize_with(from as usize + 1, AtomicU32::default);
            }
            if let Some(place) = words.get_mut(to as usize) {
                *place.get_mut() = word;
            }
        }
    }

    /// Notes that keys lost their rows.
    pub(in crate::table) fn remove(&mut self, keys: impl Iterator<Item = i64>) {
        let epoch = *self.epoch.get_mut();
        if epoch != 0 {
            self.removed.extend(keys.map(|key| (key, epoch)));
        }
    }

    /// The changes of the content that takes the place of this one; closes the epoch and returns
    /// its number.
    pub(in crate::table) fn replaced(&mut self) -> (Changes, u32) {
        let closed = *self.epoch.get_mut();
        if closed == 0 {
            return (Changes::default(), 0);
        }
        let fresh = Changes {
            epoch: AtomicU32::new(closed.saturating_add(1)),
            replaced: closed,
            ..Changes::default()
        };
        (fresh, closed)
    }

    /// Ends the epoch and returns its number; 0 if changes are not tracked.
    pub(in crate::table) fn close(&self) -> u32 {
        let closed = self.epoch.load(Relaxed);
        if closed != 0 {
            self.epoch.store(closed.saturating_add(1), Relaxed);
        }
        closed
    }

    /// Whether a delta since the end of epoch `since` can tell all that changed.
    pub(in crate::table) fn reaches(&self, since: u32) -> bool {
        self.is_on() && since >= self.replaced && since < self.epoch.load(Relaxed)
    }

    /// Whether a row belongs into a delta since epoch `since`: it changed later, at least `least`
    /// times since it was last written.
    pub(in crate::table) fn holds(&self, row: u32, since: u32, least: u32) -> bool {
        self.changed(row, since) && self.touched(row) >= least
    }

    /// After a save since epoch `since` that closed an epoch: rows that were written count anew,
    /// and those that were left out are candidates of the next delta.
    pub(in crate::table) fn written(&self, rows: u32, since: u32, least: u32) {
        let epoch = self.epoch.load(Relaxed);
        for row in (0..rows).filter(|&row| self.changed(row, since)) {
            if self.touched(row) >= least {
                if let Some(touches) = self.touches.get(row as usize) {
                    touches.store(0, Relaxed);
                }
            } else if let Some(stamp) = self.stamps.get(row as usize) {
                stamp.store(epoch, Relaxed);
            }
        }
    }

    /// Keys that lost their rows after epoch `since`, ascending.
    pub(in crate::table) fn removed_since(&self, since: u32) -> Vec<i64> {
        let later = self.removed.iter().filter(|(_, &epoch)| epoch > since);
        let mut keys: Vec<i64> = later.map(|(&key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    /// Notes steps that have moved all rows.
    pub(in crate::table) fn stepped(&mut self, steps: Steps) {
        let epoch = *self.epoch.get_mut();
        if epoch != 0 {
            self.steps.push((epoch, steps));
        }
    }

    /// The steps that have moved all rows after epoch `since`, in their order.
    pub(in crate::table) fn steps_since(&self, since: u32) -> impl Iterator<Item = &Steps> {
        let later = self.steps.iter().filter(move |(epoch, _)| *epoch > since);
        later.map(|(_, steps)| steps)
    }

    /// Forgets keys that lost their rows, and steps, up to epoch `since`: a good save has told of
    /// them.
    pub(in crate::table) fn forget_told(&mut self, since: u32) {
        self.removed.retain(|_, epoch| *epoch > since);
        self.steps.retain(|(epoch, _)| *epoch > since);
    }

    /// Bytes held.
    pub(in crate::table) fn bytes(&self) -> usize {
        let steps = self.steps.iter();
        let rates: usize = steps.map(|(_, steps)| steps.rates.capacity()).sum();
        let steps = self.steps.capacity() * size_of::<(u32, Steps)>() + 4 * rates;
        let rows = 4 * (self.stamps.capacity() + self.touches.capacity());
        rows + 16 * self.removed.capacity() + steps
    }

    fn changed(&self, row: u32, since: u32) -> bool {
        let stamp = self.stamps.get(row as usize);
        stamp.is_some_and(|stamp| stamp.load(Relaxed) > since)
    }

    fn touched(&self, row: u32) -> u32 {
        let touches = self.touches.get(row as usize);
        touches.map_or(0, |touches| touches.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_while_nobody_asked_for_it() {
        let mut changes = Changes::default();
        changes.touch([1, 2].into_iter());
        changes.remove([5].into_iter());
        assert_eq!((changes.bytes(), changes.close()), (0, 0));
        assert!(!changes.reaches(0));
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_changes_go_on() {
        let mut changes = Changes::default();
        // Nobody asked for it.
        changes.fit(usize::MAX).unwrap();
        changes.start();
        changes.fit(5).unwrap();
        let before = changes.bytes();
        for rows in [usize::MAX, 1 << 60] {
            let text = changes.fit(rows).unwrap_err().to_string();
            assert!(text.contains("no memory for the changes of rows"), "{text}");
            assert!(text.contains(&format!("rows={rows}")), "{text}");
        }
        changes.touch([4].into_iter());
        assert!(changes.holds(4, 0, 1));
        assert_eq!(changes.bytes(), before);
    }

    #[test]
    fn a_failed_save_loses_nothing() {
        let mut changes = Changes::default();
        changes.start();
        let base = changes.close();
        changes.touch([3].into_iter());
        changes.remove([9].into_iter());
        // A save that fails closes its epoch, too.
        changes.close();
        changes.touch([4].into_iter());
        let held = |changes: &Changes, since| -> Vec<u32> {
            (0..8).filter(|&row| changes.holds(row, since, 0)).collect()
        };
        assert_eq!(held(&changes, base), [3, 4]);
        assert_eq!(changes.removed_since(base), [9]);
        let good = changes.close();
        assert!(changes.reaches(base) && changes.reaches(good));
        assert!(held(&changes, good).is_empty());
        changes.forget_told(good);
        assert!(changes.removed_since(0).is_empty());
    }

    #[test]
    fn rows_that_were_left_out_stay_candidates_and_count_on() {
        let mut changes = Changes::default();
        changes.start();
        let base = changes.close();
        changes.touch([1, 2, 2].into_iter());
        let first = changes.close();
        assert!(!changes.holds(1, base, 2) && changes.holds(2, base, 2));
        changes.written(8, base, 2);
        changes.touch([1].into_iter());
        changes.close();
        assert!(changes.holds(1, first, 2) && !changes.holds(2, first, 0));
    }

    #[test]
    fn a_delta_cannot_start_before_the_content_was_replaced() {
        let mut changes = Changes::default();
        changes.start();
        let base = changes.close();
        let (mut fresh, loaded) = changes.replaced();
        assert!(!fresh.reaches(base) && fresh.reaches(loaded));
        fresh.touch([0].into_iter());
        assert!(fresh.holds(0, loaded, 0));
    }
}
