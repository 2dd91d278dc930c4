//! De-duplicates a batch range by range: every thread numbers the keys of its own range, and the
//! ranges are joined by their distinct keys alone, which are fewer.
//!
//! ```text
//! ids:     | range 0: 7 5 7 3     | range 1: 5 5 9 7      |
//! inverse: | 0 1 0 2              | 0 0 1 2               |   numbers of the range
//! keys:    | 7 5 3                | 5 9 7                 |   of the range, by number
//! places:  | 0 1 2                | as 1, 3, as 0         |   positions in the batch
//! inverse: | 0 1 0 2              | 1 1 3 0               |
//! ```

use super::grouped::for_len;
use super::numbering::Numbering;
use super::wanted::{Distinct, Wanted};
use crate::index::{hash, Index};
use crate::mem::NONE;
use crate::pool::{ranges, split_mut, Parts};
use crate::simd::{Level, Vectorized};
use crate::{Ids, Pool, PADDING};
use smallvec::smallvec;
use std::ops::{DerefMut, Range};

/// The most ranges: the keys of a range are looked for in all that come before it.
pub(super) const MOST_RANGES: usize = 4;

/// A range should have at least so many ids.
pub(super) const LEAST: usize = 4096;

/// Ids that are worked on together: the places of a block's keys are asked for one block ahead.
const BLOCK: usize = 32;

/// A range has at most so many places for its keys before it is known how many they are.
const PLACES: usize = 1 << 16;

/// Distinct keys that are joined together.
const JOINED: usize = 2048;

/// In `places`: the key occurs first in an earlier range, and this is its number there, counted
/// through all ranges.
const EARLIER: u32 = 1 << 31;

/// In `places`: the key gets no position.
const NOTHING: u32 = EARLIER - 1;

/// In `places`, until positions are given out: the key occurs first in its range.
const FIRST: u32 = u32::MAX;

/// Memory that outlives a batch, so that the next one needs no new pages.
#[derive(Default)]
pub(super) struct Buffers {
    ranges: Vec<RangeKeys>,
    places: Vec<u32>,
    inverse: Vec<i32>,
}

impl Buffers {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let ranges = self.ranges.iter().map(RangeKeys::bytes).sum::<usize>();
        ranges + (self.places.capacity() + self.inverse.capacity()) * size_of::<u32>()
    }

    /// [`Scratch::number`](super::distinct::Scratch::number).
    pub(super) fn number(&mut self, index: &Index, ids: Ids<'_>) -> (&[i32], &mut [u32]) {
        if self.ranges.is_empty() {
            self.ranges.push(RangeKeys::default());
        }
        let (keys, n) = (&mut self.ranges[0], ids.len());
        for_len(&mut self.inverse, n, 0);
        let inverse = &mut self.inverse[..n];
        match ids {
            Ids::I64(ids) => keys.number(index, ids, false, inverse),
            Ids::I32(ids) => keys.number(index, ids, false, inverse),
        }
        let end = keys.numbering.len();
        (inverse, &mut keys.rows[1..end])
    }
}

/// De-duplicates `ids` as `distinct` does.
pub(super) fn in_ranges<T: Copy + Into<i64> + Sync, O: DerefMut<Target = [i64]>>(
    pool: &Pool,
    index: &Index,
    ids: &[T],
    wanted: Wanted,
    buffers: &mut Buffers,
    inverse: &mut [i32],
    room: impl FnOnce(usize) -> O,
) -> Distinct<O> {
    let bounds = ranges(ids.len(), pool.parts(ids.len(), LEAST).min(MOST_RANGES));
    if buffers.ranges.len() < bounds.len() {
        buffers.ranges.resize_with(bounds.len(), RangeKeys::default);
    }
    let found = &mut buffers.ranges[..bounds.len()];
    let work = bounds
        .iter()
        .map(|bound| &ids[bound.clone()])
        .zip(split_mut(inverse, 1, &bounds))
        .zip(&mut *found);
    let is_counted = wanted == Wanted::Occurrences;
    pool.each(work, |((ids, inverse), keys): ((_, _), &mut RangeKeys)| {
        keys.number(index, ids, is_counted, inverse);
    });
    let found = &*found;

    let starts = following(found.iter().map(|range| range.keys().len()));
    let all = starts.last().map_or(0, |last| last.end);
    for_len(&mut buffers.places, all, 0);
    let places = &mut buffers.places[..all];
    join(pool, found, &starts, places);
    let shares: Parts<Share> = found
        .iter()
        .zip(&starts)
        .map(|(range, start)| Share::of(range, &places[start.clone()], wanted))
        .collect();
    let bounds_of_kept = following(shares.iter().map(|share| share.kept));
    let bounds_of_missing = following(shares.iter().map(|share| share.missing));
    let end = |bounds: &[Range<usize>]| bounds.last().map_or(0, |last| last.end);
    let mut offsets = room(end(&bounds_of_kept));
    let mut missing = vec![(0, 0); end(&bounds_of_missing)];
    let listed = if is_counted { offsets.len() } else { 0 };
    let mut list = (vec![0; listed], vec![0; listed]);
    let bounds_of_list = match is_counted {
        true => bounds_of_kept.clone(),
        false => smallvec![0..0; found.len()],
    };
    let work = found
        .iter()
        .zip(split_mut(places, 1, &starts))
        .zip(&bounds_of_kept)
        .zip(split_mut(&mut offsets, 1, &bounds_of_kept))
        .zip(split_mut(&mut missing, 1, &bounds_of_missing))
        .zip(split_mut(&mut list.0, 1, &bounds_of_list))
        .zip(split_mut(&mut list.1, 1, &bounds_of_list))
        .map(|work| {
            let ((((((range, places), kept), offsets), missing), keys), times) = work;
            Positions {
                range,
                places,
                first: kept.start,
                offsets,
                missing,
                keys,
                times,
            }
        });
    pool.each(work, |positions: Positions<'_>| positions.give(wanted));
    if is_counted {
        add_times(found, &starts, places, &mut list.1);
    }

    // The numbers of the first range are positions, if all of its keys have one.
    let lacks_places = shares.first().is_some_and(|share| share.kept < share.keys);
    let from = usize::from(!lacks_places);
    let renumbered = bounds
        .iter()
        .zip(&starts)
        .skip(from)
        .flat_map(|(bound, start)| {
            let parts = pool.parts(bound.len(), LEAST);
            let part = move |part: Range<usize>| bound.start + part.start..bound.start + part.end;
            ranges(bound.len(), parts)
                .into_iter()
                .map(move |ids| (part(ids), start.clone()))
        });
    let (renumbered, of): (Parts<_>, Parts<_>) = renumbered.unzip();
    let first = renumbered.first().map_or(0, |part| part.start);
    let sizes = renumbered.iter().map(ExactSizeIterator::len);
    let work = split_mut(&mut inverse[first..], 1, &following(sizes));
    let places = &*places;
    let work = work.into_iter().zip(of);
    pool.each(work, |(inverse, start)| renumber(inverse, start, places));
    Distinct {
        keys: shares.iter().map(|share| share.keys).sum(),
        offsets,
        missing,
        list,
    }
}

/// Ranges of these sizes, one behind the other.
pub(super) fn following(sizes: impl Iterator<Item = usize>) -> Parts<Range<usize>> {
    sizes
        .scan(0, |end, size| {
            let start = *end;
            *end += size;
            Some(start..*end)
        })
        .collect()
}

/// The distinct keys of one range, and what is known of them. Padding is the first of its values.
#[derive(Default)]
struct RangeKeys {
    numbering: Numbering<i64>,
    /// The row of each.
    rows: Vec<u32>,
    /// How often each occurs; unspecified if nobody asks.
    times: Vec<u32>,
    /// Working memory: the numbers of those that may lie behind their homes in the index.
    beyond: Vec<u32>,
}

impl RangeKeys {
    /// Numbers the distinct keys of `ids`, finds their rows, and counts them if asked.
    fn number<T: Copy + Into<i64>>(
        &mut self,
        index: &Index,
        ids: &[T],
        is_counted: bool,
        inverse: &mut [i32],
    ) {
        Level::detect().run(NumberIds {
            keys: self,
            index,
            ids,
            is_counted,
            inverse,
        });
    }

    /// The distinct keys, without padding.
    fn keys(&self) -> &[i64] {
        self.numbering.values().get(1..).unwrap_or(&[])
    }

    /// The row of each key.
    fn rows(&self) -> &[u32] {
        &self.rows[1..]
    }

    /// How often each key occurs.
    fn times(&self) -> &[u32] {
        &self.times[1..]
    }

    /// The number of a key, if it has one.
    #[inline(always)]
    fn find(&self, key: i64, hash: u64) -> Option<u32> {
        let number = self.numbering.find(key, hash as usize)?;
        Some(number - 1)
    }

    fn bytes(&self) -> usize {
        let numbers = [&self.rows, &self.times, &self.beyond].map(Vec::capacity);
        self.numbering.bytes() + numbers.iter().sum::<usize>() * size_of::<u32>()
    }
}

/// Numbers the ids of a range and finds the rows of its keys.
struct NumberIds<'a, T> {
    keys: &'a mut RangeKeys,
    index: &'a Index,
    ids: &'a [T],
    is_counted: bool,
    inverse: &'a mut [i32],
}

impl<T: Copy + Into<i64>> Vectorized for NumberIds<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let NumberIds {
            keys,
            index,
            ids,
            is_counted,
            inverse,
        } = self;
        let RangeKeys {
            numbering,
            rows,
            times,
            beyond,
        } = keys;
        numbering.clear(ids.len().min(PLACES / 2));
        for_len(rows, ids.len() + 1, 0);
        for_len(beyond, ids.len() + 2, 0);
        if is_counted {
            for_len(times, ids.len() + 1, 0);
            times[..ids.len() + 1].fill(0);
        }
        // Padding has the number 0.
        let padding = [(PADDING, hash(PADDING) as usize, ())];
        numbering.number(1, padding.into_iter(), |(), _, _| ());
        let mut looked_up = LookedUp {
            index,
            rows,
            beyond,
            asked: 1,
            read: 1,
            further: 0,
            found: 0,
        };
        // The block that is numbered and the next one, in turns.
        let [mut one, mut other] = [Block::default(), Block::default()];
        let (mut block, mut next) = (&mut one, &mut other);
        next.ask(numbering, ids);
        for (at, inverse) in inverse.chunks_mut(BLOCK).enumerate() {
            (block, next) = (next, block);
            next.ask(numbering, ids.get((at + 1) * BLOCK..).unwrap_or(&[]));
            let items = block.keys.iter().zip(&block.hashes).zip(&mut *inverse);
            let items = items.map(|((&key, &hash), inverse)| (key, hash as usize, inverse));
            numbering.number(BLOCK, items, |inverse, number, _| {
                *inverse = number as i32 - 1;
            });
            if is_counted {
                for &mut number in inverse {
                    times[(number + 1) as usize] += 1;
                }
            }
            looked_up.go_on(numbering.values());
        }
        looked_up.finish(numbering.values());
    }
}

/// Some ids that are numbered together.
#[derive(Default)]
struct Block {
    keys: [i64; BLOCK],
    hashes: [u64; BLOCK],
}

impl Block {
    /// Takes the first of some ids, and asks for the places where their keys would be.
    #[inline(always)]
    fn ask<T: Copy + Into<i64>>(&mut self, numbering: &Numbering<i64>, ids: &[T]) {
        let ids = &ids[..ids.len().min(BLOCK)];
        for (key, &id) in self.keys.iter_mut().zip(ids) {
            *key = id.into();
        }
        for (known, &key) in self.hashes.iter_mut().zip(&self.keys) {
            *known = hash(key);
        }
        for &hash in &self.hashes[..ids.len()] {
            numbering.prefetch(hash as usize);
        }
    }
}

/// Finds the rows of keys while these are still being numbered: what was asked for when the last
/// block ended is read when the next one does.
struct LookedUp<'a> {
    index: &'a Index,
    rows: &'a mut [u32],
    beyond: &'a mut [u32],
    /// Keys whose homes were asked for.
    asked: usize,
    /// Keys whose homes were read.
    read: usize,
    /// How many of these may lie further on.
    further: usize,
    /// How many of those were looked for there.
    found: usize,
}

impl LookedUp<'_> {
    #[inline(always)]
    fn go_on(&mut self, keys: &[i64]) {
        for &key in &keys[self.asked..] {
            self.index.ask(key);
        }
        let further = self.further;
        self.read_asked(keys);
        self.find_further(keys, further);
        self.asked = keys.len();
    }

    /// Reads the homes that were asked for.
    #[inline(always)]
    fn read_asked(&mut self, keys: &[i64]) {
        let (new, beyond) = (self.read..self.asked, &mut self.beyond[self.further..]);
        self.further +=
            self.index
                .read_homes(&keys[new.clone()], &mut self.rows[new], self.read, beyond);
        self.read = self.asked;
    }

    /// Finds those that may lie behind their homes, up to the one of this number.
    #[inline(always)]
    fn find_further(&mut self, keys: &[i64], end: usize) {
        let beyond = &self.beyond[self.found..end];
        self.index.read_beyond(keys, self.rows, beyond);
        self.found = end;
    }

    #[inline(always)]
    fn finish(mut self, keys: &[i64]) {
        self.read_asked(keys);
        self.find_further(keys, self.further);
    }
}

/// Finds out which keys occur in an earlier range: `places` are those of all ranges, one behind the
/// other, as `starts` tells.
fn join(pool: &Pool, found: &[RangeKeys], starts: &[Range<usize>], places: &mut [u32]) {
    let own = starts.first().map_or(0, |first| first.end);
    let (first, mut rest) = places.split_at_mut(own);
    first.fill(FIRST);
    let mut work = Vec::new();
    for (at, range) in found.iter().enumerate().skip(1) {
        for keys in range.keys().chunks(JOINED) {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(keys.len());
            rest = others;
            work.push((&found[..at], keys, own));
        }
    }
    pool.each(work, |(earlier, keys, places)| {
        for (keys, places) in keys.chunks(BLOCK).zip(places.chunks_mut(BLOCK)) {
            let mut hashes = [0; BLOCK];
            for (&key, known) in keys.iter().zip(&mut hashes) {
                *known = hash(key);
                for range in earlier {
                    range.numbering.prefetch(*known as usize);
                }
            }
            for ((&key, hash), place) in keys.iter().zip(hashes).zip(places) {
                let of = earlier.iter().zip(starts).find_map(|(range, start)| {
                    let number = range.find(key, hash)?;
                    Some(EARLIER | (start.start as u32 + number))
                });
                *place = of.unwrap_or(FIRST);
            }
        }
    });
}

/// What one range adds to the distinct keys of a batch.
struct Share {
    /// Keys that occur first in it.
    keys: usize,
    /// Those that get a position.
    kept: usize,
    /// Those that get a position and have no row.
    missing: usize,
}

impl Share {
    fn of(range: &RangeKeys, places: &[u32], wanted: Wanted) -> Share {
        let rows = &range.rows()[..places.len()];
        let firsts = places.iter().zip(rows).filter(|(&place, _)| place == FIRST);
        let (mut keys, mut absent) = (0, 0);
        for (_, &row) in firsts {
            keys += 1;
            absent += usize::from(row == NONE);
        }
        match wanted {
            Wanted::Rows => Share {
                keys,
                kept: keys - absent,
                missing: 0,
            },
            Wanted::Keys | Wanted::Occurrences => Share {
                keys,
                kept: keys,
                missing: absent,
            },
        }
    }
}

/// One range while positions are given out.
struct Positions<'a> {
    range: &'a RangeKeys,
    places: &'a mut [u32],
    /// The position of the first key that occurs first in this range.
    first: usize,
    offsets: &'a mut [i64],
    missing: &'a mut [(u32, i64)],
    /// Empty if nobody asks.
    keys: &'a mut [i64],
    /// Empty if nobody asks.
    times: &'a mut [u32],
}

impl Positions<'_> {
    /// Gives the keys that occur first in this range their positions, in order of occurrence.
    fn give(self, wanted: Wanted) {
        let keys = self.range.keys();
        let (mut rank, mut absent) = (0, 0);
        let known = self.places.iter_mut().zip(self.range.rows()).zip(keys);
        for (number, ((place, &row), &key)) in known.enumerate() {
            if *place != FIRST {
                continue;
            }
            if row == NONE && wanted == Wanted::Rows {
                *place = NOTHING;
                continue;
            }
            let position = (self.first + rank) as u32;
            *place = position;
            // Written for every key, kept for those without a row: no branch that cannot be
            // foreseen.
            if let Some(missing) = self.missing.get_mut(absent) {
                *missing = (position, key);
            }
            absent += usize::from(row == NONE);
            self.offsets[rank] = if row == NONE { -1 } else { i64::from(row) };
            if let (Some(of), Some(times)) = (self.keys.get_mut(rank), self.times.get_mut(rank)) {
                *of = key;
                *times = self.range.times()[number];
            }
            rank += 1;
        }
    }
}

/// Adds to `times` how often keys occur in later ranges than the one where they occur first.
fn add_times(found: &[RangeKeys], starts: &[Range<usize>], places: &[u32], times: &mut [u32]) {
    for (range, start) in found.iter().zip(starts).skip(1) {
        for (&place, more) in places[start.clone()].iter().zip(range.times()) {
            if place & EARLIER != 0 {
                times[places[(place ^ EARLIER) as usize] as usize] += more;
            }
        }
    }
}

/// Makes positions of the numbers of a range, whose places are `start`.
fn renumber(inverse: &mut [i32], start: Range<usize>, places: &[u32]) {
    for inverse in inverse.iter_mut().filter(|inverse| **inverse >= 0) {
        let own = places[start.start + *inverse as usize];
        let place = match own & EARLIER {
            0 => own,
            _ => places[(own ^ EARLIER) as usize],
        };
        *inverse = match place {
            NOTHING => -1,
            position => position as i32,
        };
    }
}
