//! De-duplicates a batch: distinct keys in order of first occurrence, and for each id which of them
//! it is.

use super::grouped::{for_len, Buffers, Grouped};
use super::numbering::Numbering;
use crate::index::{hash, Index};
use crate::keeper::Keep;
use crate::mem::{prefetch, NONE};
use crate::pool::{split_mut, Pool};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::{Ids, PADDING};
use std::ops::{DerefMut, Range};

/// In `found`: this id is the first of its key.
const FIRST: u32 = 1 << 31;

/// In `found`: this id is padding.
const NOTHING: u32 = u32::MAX;

/// A batch of at most so many ids is made distinct in one piece, by one thread: its keys and their
/// numbers fit the second cache, and to sort them by group takes longer than that saves.
const PIECE: usize = 4096;

/// What a batch is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Keys that have rows; the others get no position.
    Rows,
    /// All keys.
    Keys,
    /// All keys, and a list of them with their occurrences.
    Occurrences,
}

/// Memory that outlives a batch, so that the next one needs no new pages.
#[derive(Default)]
pub(crate) struct Scratch {
    grouped: Buffers,
    found: Vec<u32>,
    rows: Vec<u32>,
    times: Vec<u32>,
    ranks: Vec<AtomicU32>,
}

impl Keep for Scratch {
    fn bytes(&self) -> usize {
        let numbers = [&self.found, &self.rows, &self.times].map(Vec::capacity);
        self.grouped.bytes() + 4 * (numbers.iter().sum::<usize>() + self.ranks.capacity())
    }
}

/// The distinct keys of a batch.
pub(crate) struct Distinct<O> {
    /// Distinct keys other than padding, those left out among them.
    pub(crate) keys: usize,
    /// The row of each distinct key, in order of first occurrence; -1 where the index has none.
    pub(crate) offsets: O,
    /// The positions in `offsets` that hold -1, in order, each with its key.
    pub(crate) missing: Vec<(u32, i64)>,
    /// With [`Wanted::Occurrences`]: the distinct keys in order of first occurrence, and how often
    /// each occurs. Else empty.
    pub(crate) list: (Vec<i64>, Vec<u32>),
}

/// De-duplicates `ids`, fewer than 2^31, and looks the distinct keys up in `index`.
///
/// `inverse[i]` becomes the position in `offsets` of `ids[i]`, or -1 for padding and keys that get
/// no position. `room` makes the buffer for the offsets from their number.
pub(crate) fn distinct<O: DerefMut<Target = [i64]>>(
    pool: &Pool,
    index: &Index,
    ids: Ids<'_>,
    wanted: Wanted,
    scratch: &mut Scratch,
    inverse: &mut [i32],
    room: impl FnOnce(usize) -> O,
) -> Distinct<O> {
    let n = ids.len();
    if n <= PIECE {
        return match ids {
            Ids::I64(ids) => in_one_piece(index, ids, wanted, &mut scratch.rows, inverse, room),
            Ids::I32(ids) => in_one_piece(index, ids, wanted, &mut scratch.rows, inverse, room),
        };
    }
    let Scratch {
        grouped,
        found,
        rows,
        times,
        ranks,
    } = scratch;
    let grouped = Grouped::new(pool, ids, grouped);
    for_len(found, n, 0);
    for_len(rows, n, 0);
    let counted = if wanted == Wanted::Occurrences { n } else { 0 };
    for_len(times, counted, 0);
    if ranks.len() < n {
        ranks.resize_with(n.next_multiple_of(4096), AtomicU32::default);
    }

    // Each group alone: which ids repeat, and the rows of its distinct keys.
    let mut groups: Vec<Group<'_>> = by_group(
        &grouped,
        &mut found[..n],
        &mut rows[..n],
        &mut times[..counted],
    );
    pool.each(groups.iter_mut().collect(), |group: &mut Group<'_>| {
        group.look_up(index, wanted);
    });
    let keys = groups.iter().map(|group| group.distinct).sum();
    let mut firsts = vec![First::default(); grouped.ranges.len()];
    for group in &groups {
        for (sum, first) in firsts.iter_mut().zip(&group.firsts) {
            sum.kept += first.kept;
            sum.missing += first.missing;
        }
    }
    drop(groups);

    // Each range alone: positions in order of first occurrence, then `inverse`.
    let groups = Groups {
        grouped: &grouped,
        found: &found[..n],
        rows: &rows[..n],
        times: &times[..counted],
        ranks: &ranks[..n],
    };
    let bounds = following(firsts.iter().map(|first| first.kept));
    let absent = following(firsts.iter().map(|first| first.missing));
    let end = |bounds: &[Range<usize>]| bounds.last().map_or(0, |last| last.end);
    let mut offsets = room(end(&bounds));
    let mut missing = vec![(0, 0); end(&absent)];
    let listed = if counted > 0 { end(&bounds) } else { 0 };
    let mut list = (vec![0; listed], vec![0; listed]);
    let parts = match listed {
        0 => vec![0..0; bounds.len()],
        _ => bounds.clone(),
    };
    let alone = firsts.len() == 1;
    let work: Vec<_> = grouped
        .ranges
        .iter()
        .cloned()
        .zip(&bounds)
        .zip(split_mut(&mut offsets, 1, &bounds))
        .zip(split_mut(&mut missing, 1, &absent))
        .zip(split_mut(&mut list.0, 1, &parts))
        .zip(split_mut(&mut list.1, 1, &parts))
        .zip(split_mut(inverse, 1, &grouped.ranges))
        .map(|work| {
            let ((((((range, bound), offsets), missing), keys), times), inverse) = work;
            Ranking {
                range,
                rank: bound.start,
                offsets,
                missing,
                keys,
                times,
                inverse,
            }
        })
        .collect();
    if alone {
        for mut range in work {
            range.rank(&groups, wanted);
            range.invert(&groups);
        }
    } else {
        let ranked = crate::sync::Mutex::new(Vec::with_capacity(work.len()));
        pool.each(work, |mut range| {
            range.rank(&groups, wanted);
            ranked.lock().push(range);
        });
        pool.each(ranked.into_inner(), |mut range| range.invert(&groups));
    }
    Distinct {
        keys,
        offsets,
        missing,
        list,
    }
}

/// [`distinct`] on the caller's thread: keys are numbered in the order in which they are asked for.
fn in_one_piece<T: Copy + Into<i64>, O: DerefMut<Target = [i64]>>(
    index: &Index,
    ids: &[T],
    wanted: Wanted,
    rows: &mut Vec<u32>,
    inverse: &mut [i32],
    room: impl FnOnce(usize) -> O,
) -> Distinct<O> {
    let counted = wanted == Wanted::Occurrences;
    let mut times = vec![0; if counted { ids.len() } else { 0 }];
    let mut numbering = Numbering::new(ids.len());
    for (&id, inverse) in ids.iter().zip(&mut *inverse) {
        let key = id.into();
        if key == PADDING {
            *inverse = -1;
            continue;
        }
        let (number, _) = numbering.number(key, || prefetch(index.home(hash(key))));
        *inverse = number as i32;
        if let Some(times) = times.get_mut(number as usize) {
            *times += 1;
        }
    }
    let (keys, beyond) = numbering.into_parts();
    for_len(rows, keys.len(), 0);
    let rows = &mut rows[..keys.len()];
    find_rows(index, &keys, beyond, rows);
    let absent = rows.iter().filter(|&&row| row == NONE).count();
    let (kept, listed) = match wanted {
        Wanted::Rows => (keys.len() - absent, 0),
        Wanted::Keys | Wanted::Occurrences => (keys.len(), absent),
    };
    let mut missing = Vec::with_capacity(listed);
    let mut offsets = room(kept);
    if wanted == Wanted::Rows && absent > 0 {
        let mut rank = 0;
        for row in &mut *rows {
            if *row != NONE {
                offsets[rank as usize] = i64::from(std::mem::replace(row, rank));
                rank += 1;
            }
        }
        for inverse in inverse.iter_mut().filter(|inverse| **inverse != -1) {
            // A key left out has the rank NONE, which is -1 here.
            *inverse = rows[*inverse as usize] as i32;
        }
    } else {
        for (at, (offset, &row)) in offsets.iter_mut().zip(&*rows).enumerate() {
            *offset = if row == NONE { -1 } else { i64::from(row) };
            if row == NONE {
                missing.push((at as u32, keys[at]));
            }
        }
    }
    times.truncate(keys.len());
    Distinct {
        keys: keys.len(),
        offsets,
        missing,
        list: match counted {
            true => (keys, times),
            false => Default::default(),
        },
    }
}

/// The rows of distinct keys, whose homes were asked for; [`NONE`] for those that have none.
/// `beyond` is working memory, longer than the keys.
fn find_rows(index: &Index, keys: &[i64], mut beyond: Vec<u32>, rows: &mut [u32]) {
    // A list of those that may lie behind their homes.
    let mut count = 0;
    for (at, (&key, row)) in keys.iter().zip(&mut *rows).enumerate() {
        let (found, further) = index.row_at_home(key);
        *row = found;
        beyond[count] = at as u32;
        count += usize::from(further);
    }
    for &at in &beyond[..count] {
        rows[at as usize] = index.row_beyond(keys[at as usize]);
    }
}

/// What is known when all groups have been looked at.
struct Groups<'a> {
    grouped: &'a Grouped<'a>,
    /// By the place of an id in `grouped`: the number of its key, [`FIRST`] or [`NOTHING`].
    found: &'a [u32],
    /// By the number of a key: its row.
    rows: &'a [u32],
    /// By the number of a key: how often it occurs. Empty if nobody asks.
    times: &'a [u32],
    /// By the number of a key: its position.
    ranks: &'a [AtomicU32],
}

/// Ranges of these sizes, one behind the other.
fn following(sizes: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    sizes
        .scan(0, |end, size| {
            let start = *end;
            *end += size;
            Some(start..*end)
        })
        .collect()
}

/// One group of a batch.
struct Group<'a> {
    /// The keys of the group in every range, and where to put what is found about them.
    pieces: Vec<(&'a [i64], &'a mut [u32])>,
    /// Rows of the distinct keys; as long as the group, because it may have no duplicates.
    rows: &'a mut [u32],
    /// How often the distinct keys occur. Empty if nobody asks.
    times: &'a mut [u32],
    /// Where `rows` starts among the rows of all groups.
    base: u32,
    /// Distinct keys.
    distinct: usize,
    /// For every range the keys that occur in it first.
    firsts: Vec<First>,
}

/// How many keys that occur first in a range get a position, and how many of these have no row.
#[derive(Clone, Copy, Default)]
struct First {
    kept: usize,
    missing: usize,
}

/// Cuts the buffers of a batch along its groups.
fn by_group<'a>(
    grouped: &Grouped<'a>,
    mut found: &'a mut [u32],
    mut rows: &'a mut [u32],
    mut times: &'a mut [u32],
) -> Vec<Group<'a>> {
    let count = grouped.groups();
    let mut groups: Vec<Group<'a>> = Vec::with_capacity(count);
    let mut base = 0;
    for at in 0..count {
        let size = grouped
            .starts
            .iter()
            .map(|starts| starts[at + 1] - starts[at])
            .sum::<usize>();
        let (own, rest) = std::mem::take(&mut rows).split_at_mut(size);
        rows = rest;
        let counted = if times.is_empty() { 0 } else { size };
        let (counts, rest) = std::mem::take(&mut times).split_at_mut(counted);
        times = rest;
        let pieces = Vec::with_capacity(grouped.starts.len());
        groups.push(Group {
            pieces,
            rows: own,
            times: counts,
            base,
            distinct: 0,
            firsts: Vec::new(),
        });
        base += size as u32;
    }
    for starts in &grouped.starts {
        for (group, bounds) in groups.iter_mut().zip(starts.windows(2)) {
            let (own, rest) = std::mem::take(&mut found).split_at_mut(bounds[1] - bounds[0]);
            found = rest;
            group
                .pieces
                .push((&grouped.keys[bounds[0]..bounds[1]], own));
        }
    }
    groups
}

impl Group<'_> {
    /// Finds duplicates and rows. Buckets are prefetched as distinct keys appear and read when all
    /// have appeared.
    fn look_up(&mut self, index: &Index, wanted: Wanted) {
        self.times.fill(0);
        let mut numbering = Numbering::new(self.rows.len());
        let mut ends = Vec::with_capacity(self.pieces.len());
        for (ids, found) in &mut self.pieces {
            for (&key, found) in ids.iter().zip(found.iter_mut()) {
                if key == PADDING {
                    *found = NOTHING;
                    continue;
                }
                let ask = || prefetch(index.home(hash(key)));
                let (number, is_new) = numbering.number(key, ask);
                let first = if is_new { FIRST } else { 0 };
                *found = first | (self.base + number);
                if let Some(times) = self.times.get_mut(number as usize) {
                    *times += 1;
                }
            }
            ends.push(numbering.len());
        }
        let (keys, beyond) = numbering.into_parts();
        find_rows(index, &keys, beyond, self.rows);
        let mut start = 0;
        for end in ends {
            let rows = &self.rows[start..end];
            let missing = rows.iter().filter(|&&row| row == NONE).count();
            self.firsts.push(match wanted {
                Wanted::Rows => First {
                    kept: end - start - missing,
                    missing: 0,
                },
                Wanted::Keys | Wanted::Occurrences => First {
                    kept: end - start,
                    missing,
                },
            });
            start = end;
        }
        self.distinct = keys.len();
    }
}

/// One range of a batch while positions are given out.
struct Ranking<'a> {
    range: Range<usize>,
    /// The position of the first key that occurs first in this range.
    rank: usize,
    offsets: &'a mut [i64],
    missing: &'a mut [(u32, i64)],
    /// Empty if nobody asks.
    keys: &'a mut [i64],
    /// Empty if nobody asks.
    times: &'a mut [u32],
    inverse: &'a mut [i32],
}

impl Ranking<'_> {
    /// Gives the keys that occur first in this range their positions.
    fn rank(&mut self, groups: &Groups<'_>, wanted: Wanted) {
        let Groups {
            grouped,
            found,
            rows,
            times,
            ranks,
        } = groups;
        let (mut rank, mut absent) = (0, 0);
        for &place in &grouped.place[self.range.clone()] {
            let id = found[place as usize];
            if id & FIRST == 0 || id == NOTHING {
                continue;
            }
            let number = (id ^ FIRST) as usize;
            let row = rows[number];
            let position = (self.rank + rank) as u32;
            if row == NONE && wanted == Wanted::Rows {
                ranks[number].store(NONE, Relaxed);
                continue;
            }
            // Written for every key, kept for those without a row: no branch that cannot be
            // foreseen.
            if let Some(missing) = self.missing.get_mut(absent) {
                *missing = (position, grouped.keys[place as usize]);
            }
            absent += usize::from(row == NONE);
            ranks[number].store(position, Relaxed);
            self.offsets[rank] = if row == NONE { -1 } else { i64::from(row) };
            if let (Some(key), Some(times)) = (self.keys.get_mut(rank), times.get(number)) {
                *key = grouped.keys[place as usize];
                self.times[rank] = *times;
            }
            rank += 1;
        }
    }

    /// Writes the position of every id of the range.
    fn invert(&mut self, groups: &Groups<'_>) {
        let places = &groups.grouped.place[self.range.clone()];
        for (inverse, &place) in self.inverse.iter_mut().zip(places) {
            let id = groups.found[place as usize];
            *inverse = match id {
                NOTHING => -1,
                // A key left out has the rank NONE, which is -1 here.
                _ => groups.ranks[(id & !FIRST) as usize].load(Relaxed) as i32,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// 50,000 ids of 7,000 keys, some of them padding; every third key has a row.
    fn batch() -> (Index, Vec<i64>) {
        let key = |at: i64| at * 7919 % 7_001 - 1;
        let ids: Vec<i64> = (0..50_000).map(|at| key(at * at % 9_973)).collect();
        let known: Vec<i64> = (0..7_000).filter(|key| key % 3 == 0).collect();
        let rows: Vec<u32> = (0..known.len() as u32).map(|row| row * 5).collect();
        let pool = Pool::new(1).unwrap();
        let mut index = Index::new(1 << 20).unwrap();
        index.reserve(&pool, &known).unwrap();
        index.insert(&pool, &known, &rows);
        (index, ids)
    }

    #[test]
    fn every_question_is_answered_in_order_of_first_occurrence() {
        let (index, ids) = batch();
        // In groups, and in one piece with one id more, exactly, and next to nothing.
        for n in [ids.len(), PIECE + 1, PIECE, 3, 0] {
            expect_answers(&index, &ids[..n]);
        }
    }

    fn expect_answers(index: &Index, ids: &[i64]) {
        for (threads, wanted) in [1, 2, 5].into_iter().flat_map(|threads| {
            [Wanted::Rows, Wanted::Keys, Wanted::Occurrences].map(|wanted| (threads, wanted))
        }) {
            let mut position: HashMap<i64, usize> = HashMap::new();
            let (mut keys, mut times, mut inverse) = (Vec::new(), Vec::new(), Vec::new());
            for &id in ids {
                if id == PADDING || (wanted == Wanted::Rows && index.row(id) == NONE) {
                    inverse.push(-1);
                    continue;
                }
                let at = *position.entry(id).or_insert_with(|| {
                    keys.push(id);
                    times.push(0);
                    keys.len() - 1
                });
                times[at] += 1;
                inverse.push(at as i32);
            }
            let row = |&key: &i64| match index.row(key) {
                NONE => -1,
                row => i64::from(row),
            };
            let offsets: Vec<i64> = keys.iter().map(row).collect();
            let missing: Vec<(u32, i64)> = (0..)
                .zip(&keys)
                .filter(|(_, key)| row(key) == -1)
                .map(|(at, &key)| (at, key))
                .collect();
            assert!(ids.len() < 4 || !keys.is_empty());
            assert!(ids.len() < 4 || missing.is_empty() == (wanted == Wanted::Rows));

            let mut scratch = Scratch::default();
            let mut given = vec![7; ids.len()];
            let pool = Pool::new(threads).unwrap();
            let found = distinct(
                &pool,
                index,
                Ids::I64(ids),
                wanted,
                &mut scratch,
                &mut given,
                |n| vec![0; n],
            );
            assert_eq!(given, inverse);
            assert_eq!(found.offsets, offsets);
            assert_eq!(found.missing, missing);
            let list = match wanted {
                Wanted::Occurrences => (keys, times),
                _ => Default::default(),
            };
            assert_eq!(found.list, list);
        }
    }
}
