//! Rows that wait for steps of an optimizer that moves all rows: since which step, and how they are
//! read meanwhile.

use super::{HalfRows, ReadRows};
use crate::halves::Place;
use crate::mem::prefetch;
use crate::optim::{is_still, Decay, Missed, Steps};
use crate::{Error, Kind, Result};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// The step of a row that does not wait: it is frozen.
const NEVER: u16 = u16::MAX;

/// A span ends after as many steps as a share of the rows, but not before so many, and no later
/// than after so many.
const STEPS_OF_A_SPAN: [usize; 2] = [2048, 16_384];

/// The part of the rows that each step may cost when all of them catch up at once.
const SHARE: usize = 16;

/// What is kept of rows grows by one part in so many.
const GROWTH: usize = 8;

/// Rows on disk wait through so many spans at most.
const MOST_SPANS: usize = 64;

/// The steps that rows may have missed, and the last one of each row.
///
/// A row that waits longer than a span catches up span by span, and is rounded at the end of each:
/// to the bits of a row that catches up in place there.
///
/// A row whose m and v are zeros misses nothing, whatever its last step is: so new rows, and those
/// that start again, need none.
pub(crate) struct Waiting {
    /// One at least. Steps are added to the last one.
    spans: Vec<Span>,
    /// Whether the next step begins a span.
    has_ended: bool,
    /// Where the embedding, m and v are in a row.
    places: [Place; 3],
    /// By row: steps of all spans up to its last one. Rows beyond have come since the last step.
    last: Vec<AtomicU16>,
}

/// Makes room for the last steps of so many rows. New ones miss nothing.
fn make_room(last: &mut Vec<AtomicU16>, rows: usize) -> Result<()> {
    let more = rows.saturating_sub(last.len());
    if rows > last.capacity() {
        let reserved = last.try_reserve_exact(more.max(last.len() / GROWTH));
        reserved.map_err(|_| {
            Error::new(
                Kind::ResourceExhausted,
                "no memory for the last steps of rows",
            )
            .with("rows", rows)
        })?;
    }
    last.resize_with(last.len() + more, AtomicU16::default);
    Ok(())
}

/// Steps of one optimizer with the same betas and epsilon.
struct Span {
    /// How many steps were before it.
    before: usize,
    missed: Missed,
    /// The number of its last step among the table's updates, if embeddings have 2 bytes a value:
    /// rows that have missed it, and their slots, are rounded by it.
    update: u64,
}

impl Waiting {
    /// No steps yet; none of the rows `frozen` ever waits.
    ///
    /// # Errors
    /// `ResourceExhausted`.
    pub(crate) fn new(
        decay: Decay,
        places: [Place; 3],
        rows: usize,
        frozen: &[u32],
    ) -> Result<Waiting> {
        let mut last = Vec::new();
        make_room(&mut last, rows)?;
        for &row in frozen {
            if let Some(last) = last.get_mut(row as usize) {
                *last.get_mut() = NEVER;
            }
        }
        let missed = Missed::new(decay);
        Ok(Waiting {
            spans: vec![Span {
                before: 0,
                missed,
                update: 0,
            }],
            has_ended: false,
            places,
            last,
        })
    }

    /// Whether the next step, of so many rows, can be one more of the last span.
    pub(crate) fn takes(&self, decay: &Decay, places: [Place; 3], rows: usize) -> bool {
        let span = self.span();
        let is_of = !self.has_ended && self.places == places && span.missed.is_of(decay);
        is_of && span.missed.steps() < most_steps(rows) && self.steps() < Missed::MOST
    }

    /// Whether the next step, of so many rows, can begin one more span.
    pub(crate) fn goes_on(&self, places: [Place; 3], rows: usize) -> bool {
        let has_room = self.steps() + most_steps(rows) <= Missed::MOST;
        self.places == places && self.spans.len() < MOST_SPANS && has_room
    }

    /// Begins a span, whose steps have the betas and the epsilon of `decay`.
    pub(crate) fn begin(&mut self, decay: Decay) {
        let span = Span {
            before: self.steps(),
            missed: Missed::new(decay),
            update: 0,
        };
        self.spans.retain(|span| span.missed.steps() > 0);
        self.spans.push(span);
        self.has_ended = false;
    }

    /// Ends the last span.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// The steps of the last span, for rows that have missed all of them; `None` without any, or if
    /// it has ended.
    pub(crate) fn ending(&self) -> Option<Steps> {
        let span = self.span();
        (!self.has_ended).then(|| span.missed.told(span.update))?
    }

    /// Whether the last span has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Makes room for so many rows.
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing changed.
    pub(crate) fn fit(&mut self, rows: usize) -> Result<()> {
        make_room(&mut self.last, rows)
    }

    /// Starts to bring what a row that waits is read from into the processor's cache.
    #[inline(always)]
    fn prefetch_all<S: ReadRows>(&self, rows: &S, row: u32) {
        self.prefetch(row);
        let [_, _, v] = self.places;
        let words = v.start + v.words();
        // Where a word has two values.
        rows.prefetch(row, if S::DECODES { 2 * words } else { words });
    }

    /// Starts to bring the last step of a row into the processor's cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, number: u32) {
        if let Some(last) = self.last.get(number as usize) {
            prefetch(last);
        }
    }

    /// A row as it is after the last step; `now` has room for it if it differs from what is stored.
    /// `floats` is as of [`Waiting::catch_up`].
    pub(crate) fn caught_up<'r>(
        &self,
        number: u32,
        row: &'r [f32],
        halves: Option<&HalfRows>,
        [now, floats]: &'r mut [Vec<f32>; 2],
    ) -> &'r [f32] {
        if !self.waits(number) {
            return row;
        }
        now.clear();
        now.extend_from_slice(row);
        self.catch_up(number, now, halves, floats);
        now
    }

    /// Whether a row may have missed steps.
    pub(crate) fn waits(&self, number: u32) -> bool {
        self.from(number).is_some()
    }

    /// Brings the row `number` to the state after the last step, in place: its values of 2 bytes
    /// are rounded at the end of each span and after the last step. Returns whether it had missed
    /// one. If it is the table's own row [`Waiting::note`] is to follow. `floats` is for embeddings
    /// of 2 bytes a value, and grows to what a row takes.
    pub(crate) fn catch_up(
        &self,
        number: u32,
        row: &mut [f32],
        halves: Option<&HalfRows>,
        floats: &mut Vec<f32>,
    ) -> bool {
        let Some(from) = self.from(number) else {
            return false;
        };
        let [embedding, m, v] = self.places;
        if is_still(m.dtype, self.moments(row)) {
            return false;
        }
        let first = self.spans.partition_point(|span| span.end() <= from);
        let spans = self.spans[first..].iter();
        let spans = spans.map(|span| (from.saturating_sub(span.before), span));
        let Some(halves) = halves else {
            let (weights, slots) = row.split_at_mut(embedding.count);
            spans.for_each(|(from, span)| {
                span.missed.catch_up(from, weights, slots, self.behind());
            });
            return true;
        };
        let dim = embedding.count;
        floats.resize(3 * dim, 0.0);
        for (from, span) in spans {
            let values = floats.chunks_exact_mut(dim);
            for (place, values) in self.places.iter().zip(values) {
                place.read(halves.level, row, values);
            }
            let (weights, moments) = floats.split_at_mut(dim);
            span.missed.catch_up(from, weights, moments, [0, dim]);
            for (place, values) in [embedding, m, v].into_iter().zip(floats.chunks_exact(dim)) {
                halves.write_as(span.update, place, number, values, row);
            }
        }
        true
    }

    /// Notes that a row that is not frozen has caught up, and that it got so many of the steps that
    /// come next.
    pub(crate) fn note(&self, number: u32, coming: usize) {
        if let Some(last) = self.last.get(number as usize) {
            last.store((self.steps() + coming) as u16, Relaxed);
        }
    }

    /// Ends a step, the update number `update` of a table whose embeddings have 2 bytes a value.
    pub(crate) fn push(&mut self, lr: f32, update: u64) {
        if let Some(span) = self.spans.last_mut() {
            span.missed.push(lr);
            span.update = update;
        }
    }

    /// Notes that a row has got another number.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        let last = self.last.get(from as usize).map(|last| last.load(Relaxed));
        if let (Some(last), Some(place)) = (last, self.last.get_mut(to as usize)) {
            *place.get_mut() = last;
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let spans: usize = self.spans.iter().map(|span| span.missed.bytes()).sum();
        spans + self.last.capacity() * size_of::<AtomicU16>()
    }

    fn span(&self) -> &Span {
        &self.spans[self.spans.len() - 1]
    }

    /// How many steps there were.
    fn steps(&self) -> usize {
        self.span().end()
    }

    /// The last step of a row that has missed some.
    #[inline(always)]
    fn from(&self, number: u32) -> Option<usize> {
        let last = self.last.get(number as usize)?.load(Relaxed);
        (usize::from(last) < self.steps()).then_some(usize::from(last))
    }

    /// Where m and v are behind the embedding.
    #[inline(always)]
    fn behind(&self) -> [usize; 2] {
        let [embedding, m, v] = self.places;
        [m, v].map(|slot| slot.start - embedding.words())
    }

    /// The words of m and v.
    #[inline(always)]
    fn moments<'r>(&self, row: &'r [f32]) -> [&'r [f32]; 2] {
        let [_, m, v] = self.places;
        [m, v].map(|slot| &row[slot.start..slot.start + slot.words()])
    }

    /// Writes the embedding of a row, which has floats, as it is after the last step.
    #[inline(always)]
    fn embedding(&self, number: u32, from: usize, row: &[f32], out: &mut [f32]) {
        let span = self.span();
        match from.checked_sub(span.before) {
            Some(from) => {
                let (weights, slots) = row.split_at(out.len());
                out.copy_from_slice(weights);
                span.missed.embedding(from, out, slots, self.behind());
            }
            None => {
                let row = self.after_spans(number, row, None);
                out.copy_from_slice(&row[..out.len()]);
            }
        }
    }

    /// Writes the embedding of a row of 2 bytes a value as it is after the last step, rounded as if
    /// it were stored.
    fn embedding_of_halves(
        &self,
        (number, from): (u32, usize),
        row: &[f32],
        halves: &HalfRows,
        out: &mut [f32],
    ) {
        let span = self.span();
        match from.checked_sub(span.before) {
            Some(from) => {
                halves.read(row, out);
                match self.places[1].dtype.half() {
                    None => {
                        let slots = &row[self.places[0].words()..];
                        span.missed.embedding(from, out, slots, self.behind());
                    }
                    Some(half) => {
                        let moments = self.moments(row);
                        span.missed.embedding_by_halves(from, out, half, moments);
                    }
                }
                halves.round(number, span.update, out);
            }
            None => halves.read(&self.after_spans(number, row, Some(halves)), out),
        }
    }

    /// A row after the last step that has missed steps of several spans.
    #[cold]
    fn after_spans(&self, number: u32, row: &[f32], halves: Option<&HalfRows>) -> Vec<f32> {
        let mut row = row.to_vec();
        self.catch_up(number, &mut row, halves, &mut Vec::new());
        row
    }
}

impl Span {
    /// How many steps were up to its end.
    fn end(&self) -> usize {
        self.before + self.missed.steps()
    }
}

/// The most steps of a span, of so many rows.
fn most_steps(rows: usize) -> usize {
    let [least, most] = STEPS_OF_A_SPAN;
    (rows / SHARE).clamp(least, most)
}

/// Rows of which some wait, to be read as they are after the last step. `rows` decodes embeddings
/// of 2 bytes a value, if `halves` has them.
pub(crate) struct CaughtUp<'w, S> {
    pub(crate) rows: &'w S,
    pub(crate) waiting: &'w Waiting,
    pub(crate) halves: Option<&'w HalfRows>,
}

impl<S: ReadRows> ReadRows for CaughtUp<'_, S> {
    const SCRATCH: bool = true;
    const DECODES: bool = S::DECODES;

    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        self.rows.row(row)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, _: usize) {
        if let Some(halves) = self.halves {
            halves.prefetch(row);
        }
        self.waiting.prefetch_all(self.rows, row);
    }

    #[inline(always)]
    fn now<'s>(&'s self, number: u32, row: &'s [f32], scratch: &'s mut [f32]) -> &'s [f32] {
        let Some(from) = self.waiting.from(number) else {
            return self.rows.now(number, row, scratch);
        };
        match self.halves {
            None => self.waiting.embedding(number, from, row, scratch),
            Some(halves) => {
                let row_of = (number, from);
                self.waiting
                    .embedding_of_halves(row_of, row, halves, scratch);
            }
        }
        scratch
    }
}

/// Runs one expression with the rows of a content as floats and as they are after the last step.
macro_rules! as_now {
    ($content:expr, $rows:expr, $now:ident => $run:expr) => {
        match (&$content.waiting, &$content.halves) {
            (None, None) => {
                let $now = $rows;
                $run
            }
            (Some(waiting), None) => {
                let $now = &$crate::stores::CaughtUp {
                    rows: $rows,
                    waiting,
                    halves: None,
                };
                $run
            }
            (waiting, Some(halves)) => {
                let decoded = &$crate::stores::Decoded {
                    rows: $rows,
                    half: halves.half,
                    level: halves.level,
                };
                match waiting {
                    None => {
                        let $now = decoded;
                        $run
                    }
                    Some(waiting) => {
                        let $now = &$crate::stores::CaughtUp {
                            rows: decoded,
                            waiting,
                            halves: Some(halves),
                        };
                        $run
                    }
                }
            }
        }
    };
}
pub(crate) use as_now;

/// As [`with_rows`](super::with_rows), with the rows of a content as [`as_now`] gives them.
macro_rules! with_rows_now {
    ($content:expr, $rows:ident => $run:expr) => {
        $crate::stores::with_rows!(&$content.store, rows => {
            $crate::stores::as_now!($content, rows, $rows => $run)
        })
    };
}
pub(crate) use with_rows_now;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RowDtype;

    #[test]
    fn memory_that_is_not_there_is_an_error_and_rows_wait_on() {
        let decay = Decay {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            lr: 0.1,
            moves: true,
        };
        let text = |result: Result<()>| result.err().map(|error| error.to_string()).unwrap();
        let places = [0, 1, 2].map(|start| Place {
            start,
            count: 1,
            dtype: RowDtype::Float32,
            stream: 0,
        });
        let mut waiting = Waiting::new(decay, places, 3, &[1]).unwrap();
        waiting.push(0.1, 0);
        for rows in [usize::MAX, 1 << 62] {
            let refused = [
                text(waiting.fit(rows)),
                text(Waiting::new(decay, places, rows, &[]).map(drop)),
            ];
            for text in refused {
                assert!(text.contains("no memory for the last steps"), "{text}");
                assert!(text.contains(&format!("rows={rows}")), "{text}");
            }
        }
        waiting.fit(5).unwrap();
        let waits: Vec<bool> = (0..6).map(|row| waiting.waits(row)).collect();
        assert_eq!(waits, [true, false, true, true, true, false]);
    }
}
