//! Counting the keys of a batch, and deciding which of them get rows.

use crate::batch::distinct::Distinct;
use crate::history::History;
use crate::index::Index;
use crate::mem::{each_asked, prefetch, Lines};
use crate::pool::ranges;
use crate::table::keys::observed::{Counted, Observed};
use crate::table::keys::Keys;
use crate::table::rows::offset_buffers::OffsetBuffers;
use crate::Pool;
use std::ops::Range;
use std::sync::Arc;

/// A thread should count at least so many keys.
const LEAST: usize = 4096;

impl Keys {
    /// Counts the distinct keys of a batch, `weight` for each occurrence, and notes that they were
    /// seen at `now`. What was found is kept for [`Keys::decide`], and what was counted in a step
    /// with a number for [`Keys::uncount`]. Returns the keys.
    pub(in crate::table) fn observe(
        &self,
        pool: &Pool,
        index: &Index,
        found: Distinct<Lines>,
        weight: u32,
        now: u32,
        step: Option<i64>,
    ) -> Arc<Vec<i64>> {
        let (keys, times) = found.list;
        let keys = Arc::new(keys);
        let history = self.history.read();
        let Some(history) = history.as_deref() else {
            return keys;
        };
        history.tell(now);
        let count = |at: usize| times[at].saturating_mul(weight);
        let offsets = &found.offsets;
        pool.each(ranges(keys.len(), pool.parts(keys.len(), LEAST)), |range| {
            see_rows(history, range, offsets, now, &count);
        });
        let counted_at = history.candidates.version() + 2;
        let mut counts = Vec::new();
        if !found.missing.is_empty() {
            let missing: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
            let count = |at: usize| count(found.missing[at].0 as usize);
            let candidates = &history.candidates;
            counts = candidates.add(pool, &missing, history.counts(), count, now);
        }
        if let Some(step) = step.filter(|_| history.counts()) {
            self.counted.keep(Counted {
                step,
                keys: Arc::clone(&keys),
                counts: (0..keys.len()).map(count).collect(),
                missing: found.missing.iter().map(|&(at, _)| at).collect(),
            });
        }
        self.observed.keep(Observed {
            keys: Arc::clone(&keys),
            offsets: found.offsets,
            missing: found.missing,
            counts,
            version: index.version(),
            removals: index.removals(),
            counted_at,
        });
        keys
    }

    /// Which of distinct keys are admitted now, with what was found when they were observed.
    pub(in crate::table) fn decide(
        &self,
        pool: &Pool,
        index: &Index,
        keys: &[i64],
        observed: Option<Observed>,
        buffers: &OffsetBuffers,
    ) -> Decided {
        let current = observed.filter(|found| found.removals == index.removals());
        let (mut offsets, mut missing, counted) = match current {
            Some(mut found) if found.version != index.version() => {
                // Rows have come meanwhile.
                let keys: Vec<i64> = found.missing.iter().map(|&(_, key)| key).collect();
                let again = Keys::rows_of(pool, index, &keys, buffers.take(keys.len()));
                for (&(at, _), &offset) in found.missing.iter().zip(again.offsets.iter()) {
                    found.offsets[at as usize] = offset;
                }
                found
                    .missing
                    .retain(|&(at, _)| found.offsets[at as usize] == -1);
                buffers.keep(again.offsets);
                (found.offsets, found.missing, None)
            }
            Some(found) => (
                found.offsets,
                found.missing,
                Some((found.counts, found.counted_at)),
            ),
            None => {
                let found = Keys::rows_of(pool, index, keys, buffers.take(keys.len()));
                (found.offsets, found.missing, None)
            }
        };
        let history = self.history.read();
        let access = history.as_deref().map_or(0, History::access);
        let Some(history) = history.as_deref().filter(|_| access > 0) else {
            return Decided::all(offsets, missing, access);
        };
        // Empty as long as no key is refused; -1 for those that are.
        let mut position = Vec::new();
        let mut refuse = |at: u32| {
            if position.is_empty() {
                position = vec![0; keys.len()];
            }
            position[at as usize] = -1;
        };
        if history.may_refuse() {
            let rows = (0..).zip(offsets.iter());
            each_asked(history, rows, ask_history, |history, (at, &row)| {
                if row != -1 && history.of_row(row as u32).count < access {
                    refuse(at);
                }
            });
        }
        if !missing.is_empty() {
            let counts = match counted {
                Some((counts, counted_at)) if counted_at == history.candidates.version() => counts,
                _ => {
                    let keys: Vec<i64> = missing.iter().map(|&(_, key)| key).collect();
                    history.candidates.counts(pool, &keys)
                }
            };
            let below = missing.iter().zip(&counts);
            let below = below.filter(|(_, &count)| count < access);
            below.for_each(|(&(at, _), _)| refuse(at));
        }
        if position.is_empty() {
            return Decided::all(offsets, missing, access);
        }
        let mut admitted = 0;
        // Without a branch: which keys are refused cannot be foreseen.
        for (at, position) in position.iter_mut().enumerate() {
            let is_in = *position == 0;
            offsets[admitted] = offsets[at];
            *position = if is_in { admitted as i32 } else { -1 };
            admitted += usize::from(is_in);
        }
        offsets.fit(admitted);
        missing.retain_mut(|(at, _)| {
            let new = position[*at as usize];
            *at = new as u32;
            new != -1
        });
        Decided {
            offsets,
            position: Some(position),
            missing,
            access,
        }
    }
}

/// Which of some keys are admitted.
pub(in crate::table) struct Decided {
    /// The rows of those that are, -1 where one is to be made.
    pub(in crate::table) offsets: Lines,
    /// For each key its place in `offsets`, -1 if it is refused; `None` if none is.
    pub(in crate::table) position: Option<Vec<i32>>,
    /// The places in `offsets` of rows that are to be made, in order, each with its key.
    pub(in crate::table) missing: Vec<(u32, i64)>,
    /// The count from which on keys were admitted; 0 if there was none.
    pub(in crate::table) access: u32,
}

impl Decided {
    fn all(offsets: Lines, missing: Vec<(u32, i64)>, access: u32) -> Decided {
        Decided {
            offsets,
            position: None,
            missing,
            access,
        }
    }
}

/// Starts to bring the history of a row, -1 for none.
#[inline(always)]
fn ask_history<T>(history: &&History, (_, &row): (T, &i64)) {
    if let Some(place) = history.place(row as u32) {
        prefetch(place);
    }
}

/// Adds the counts of some distinct keys of a batch to what is known of those that have rows.
fn see_rows(
    history: &History,
    range: Range<usize>,
    offsets: &[i64],
    now: u32,
    count: &(impl Fn(usize) -> u32 + Sync),
) {
    let rows = range.clone().zip(&offsets[range]);
    each_asked(history, rows, ask_history, |history, (at, &row)| {
        if row != -1 {
            history.see_row(row as u32, count(at), now);
        }
    });
}
