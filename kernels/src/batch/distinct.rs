//! De-duplicates a batch: distinct keys in order of first occurrence, and for each id which of them
//! it is.

use super::grouped::{for_len, Buffers, Grouped};
use super::numbering::{Numbering, Value};
use super::ranged::{self, following, in_ranges, LEAST, MOST_RANGES};
pub(crate) use super::wanted::{Distinct, Wanted};
use crate::index::Index;
use crate::keeper::Keep;
use crate::mem::NONE;
use crate::pool::{split_mut, Pool};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::{Ids, PADDING};
use smallvec::smallvec;
use std::ops::{DerefMut, Range};

/// In `found`: this id is the first of its key.
const FIRST: u32 = 1 << 31;

/// In `found`: this id is padding.
const NOTHING: u32 = u32::MAX;

/// A thread makes at most so many ids distinct range by range: the numbers of their keys fit the
/// caches then.
const MOST_IN_RANGE: usize = 1 << 17;

/// So many ids tell whether those of a batch repeat.
const SAMPLE: usize = 512;

/// Memory that outlives a batch, so that the next one needs no new pages.
#[derive(Default)]
pub(crate) struct Scratch {
    ranged: ranged::Buffers,
    grouped: Buffers,
    found: Vec<u32>,
    rows: Vec<u32>,
    times: Vec<u32>,
    ranks: Vec<AtomicU32>,
}

impl Scratch {
    /// Numbers the distinct keys of `ids`, fewer than 2^31, on the caller's thread. Returns for
    /// each id the number of its key, -1 for padding, and by number the rows of the keys,
    /// [`NONE`] where `index` has none.
    pub(crate) fn number(&mut self, index: &Index, ids: Ids<'_>) -> (&[i32], &mut [u32]) {
        self.ranged.number(index, ids)
    }
}

impl Keep for Scratch {
    fn bytes(&self) -> usize {
        let numbers = [&self.found, &self.rows, &self.times].map(Vec::capacity);
        self.ranged.bytes()
            + self.grouped.bytes()
            + 4 * (numbers.iter().sum::<usize>() + self.ranks.capacity())
    }
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
    let parts = pool.parts(ids.len(), LEAST);
    if parts > MOST_RANGES || ids.len() > parts * MOST_IN_RANGE {
        return in_groups(pool, index, ids, wanted, scratch, inverse, room);
    }
    let buffers = &mut scratch.ranged;
    match ids {
        Ids::I64(ids) => in_ranges(pool, index, ids, wanted, buffers, inverse, room),
        Ids::I32(ids) => in_ranges(pool, index, ids, wanted, buffers, inverse, room),
    }
}

/// Whether so many ids of a batch occurred before that it takes less time to make them distinct
/// than to look each of them up in `index`. Some ids are looked at; a small batch is not worth it,
/// nor is any where a key is the place of its row.
pub(crate) fn repeat_often(index: &Index, ids: Ids<'_>) -> bool {
    if ids.len() < LEAST || index.is_direct() {
        return false;
    }
    let sample = (0..SAMPLE).map(|at| ids.get(ids.len() / SAMPLE * at));
    let mut numbering = Numbering::new(SAMPLE);
    let items = sample.map(|key| (key, key.spread(), ()));
    numbering.number(SAMPLE, items, |(), _, _| ());
    SAMPLE - numbering.len() >= SAMPLE / 8
}

/// [`distinct`] of a large batch, or for many threads: sorted into groups that fit the first cache.
fn in_groups<O: DerefMut<Target = [i64]>>(
    pool: &Pool,
    index: &Index,
    ids: Ids<'_>,
    wanted: Wanted,
    scratch: &mut Scratch,
    inverse: &mut [i32],
    room: impl FnOnce(usize) -> O,
) -> Distinct<O> {
    let n = ids.len();
    let Scratch {
        ranged: _,
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
    pool.each(groups.iter_mut(), |group: &mut Group<'_>| {
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
        0 => smallvec![0..0; bounds.len()],
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
            let items = ids
                .iter()
                .zip(found.iter_mut())
                .filter_map(|(&key, found)| {
                    *found = NOTHING;
                    (key != PADDING).then_some((key, key.spread(), found))
                });
            let (base, times) = (self.base, &mut *self.times);
            numbering.number(ids.len(), items, |found, number, is_new| {
                let first = if is_new { FIRST } else { 0 };
                *found = first | (base + number);
                if let Some(times) = times.get_mut(number as usize) {
                    *times += 1;
                }
            });
            for &key in &numbering.values()[ends.last().copied().unwrap_or(0)..] {
                index.ask(key);
            }
            ends.push(numbering.len());
        }
        let keys = numbering.values();
        let mut beyond = vec![0; keys.len()];
        let count = index.read_homes(keys, self.rows, 0, &mut beyond);
        index.read_beyond(keys, self.rows, &beyond[..count]);
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
    use crate::index::hash;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// How a batch is made distinct.
    enum Given {
        AsItComes,
        Groups,
    }

    /// 50,000 ids of 7,000 keys, some of them padding; every third key has a row.
    fn batch() -> (Index, Vec<i64>) {
        let key = |at: i64| at * 7919 % 7_001 - 1;
        let ids: Vec<i64> = (0..50_000).map(|at| key(at * at % 9_973)).collect();
        (indexed((0..7_000).filter(|key| key % 3 == 0)), ids)
    }

    #[test]
    fn every_question_is_answered_in_order_of_first_occurrence() {
        let (index, ids) = batch();
        // Several ranges, with a range that is shorter than the others, exactly one, and next to
        // nothing.
        for n in [ids.len(), 2 * LEAST + 1, LEAST, 33, 3, 1, 0] {
            expect_answers(&index, &ids[..n]);
        }
    }

    #[test]
    fn a_large_batch_tells_by_some_ids_whether_they_repeat() {
        let of =
            |n: i64, keys: i64| -> Vec<i64> { (0..n).map(|at| hash(at) as i64 % keys).collect() };
        let far = indexed((0..500).map(|key| key << 40));
        let repeated = of(100_000, 1000);
        assert!(repeat_often(&far, Ids::I64(&repeated)));
        assert!(!repeat_often(&far, Ids::I64(&of(100_000, 1 << 40))));
        assert!(!repeat_often(&far, Ids::I64(&of(LEAST as i64 - 1, 1000))));
        assert!(repeat_often(&far, Ids::I32(&[PADDING as i32; LEAST])));
        // Where nothing is searched, it takes less time to look each of them up.
        assert!(!repeat_often(&indexed(0..500), Ids::I64(&repeated)));
    }

    #[test]
    fn a_batch_too_large_for_ranges_is_made_distinct_in_groups() {
        let (index, ids) = batch();
        let large: Vec<i64> = ids
            .iter()
            .copied()
            .cycle()
            .take(MOST_IN_RANGE + 1)
            .collect();
        expect_answers(&index, &large);
    }

    /// The key that has this hash.
    fn key_of(mut bits: u64) -> i64 {
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x, _| {
                x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)))
            })
        };
        bits ^= bits >> 32;
        bits = bits.wrapping_mul(inverse(0xD6E8_FEB8_6659_FD93));
        bits ^= (bits >> 29) ^ (bits >> 58);
        bits = bits.wrapping_mul(inverse(0x9FB2_1C65_1E98_DF25));
        (bits ^ (bits >> 32)) as i64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn ranges_and_groups_agree_with_a_list_whatever_the_keys_are(
            seed in any::<u64>(),
            kinds in proptest::collection::vec((0..6_usize, 1..3000_usize), 1..8),
        ) {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = hash(state.wrapping_add(0x9E37_79B9) as i64);
                state % below
            };
            let mut ids = Vec::new();
            for (kind, n) in kinds {
                ids.extend((0..n).map(|_| match kind {
                    // One key; few; all distinct, nearly; padding between.
                    0 => 7,
                    1 => draw(50) as i64 - 25,
                    2 => draw(1 << 62) as i64,
                    3 => draw(3) as i64 - 1,
                    // The ends of the numbers.
                    4 => [i64::MIN, i64::MAX, 0, -1, -2, i64::MIN + 1][draw(6) as usize],
                    // Hashes that share the bits by which keys are placed and grouped.
                    _ => key_of(0x1234_0000_0000_5678 | draw(300) << 32),
                }));
            }
            let index = indexed(ids.iter().step_by(3).copied());
            expect_answers(&index, &ids);
        }
    }

    /// An index of these keys.
    fn indexed(keys: impl Iterator<Item = i64>) -> Index {
        let known: HashSet<i64> = keys.filter(|&key| key != PADDING).collect();
        let known: Vec<i64> = known.into_iter().collect();
        let rows: Vec<u32> = (0..known.len() as u32).map(|row| row * 5).collect();
        let pool = Pool::new(1).unwrap();
        let mut index = Index::new(1 << 20).unwrap();
        index.reserve(&pool, &known).unwrap();
        index.insert(&pool, &known, &rows);
        index
    }

    #[test]
    fn hashes_are_turned_back() {
        for key in [0, 1, -1, 77, i64::MIN, i64::MAX] {
            assert_eq!(key_of(hash(key)), key);
        }
    }

    fn expect_answers(index: &Index, ids: &[i64]) {
        for (threads, wanted) in [1, 2, 3, 4, 6].into_iter().flat_map(|threads| {
            [Wanted::Rows, Wanted::Keys, Wanted::Occurrences].map(|wanted| (threads, wanted))
        }) {
            let all: HashSet<i64> = ids.iter().copied().filter(|&id| id != PADDING).collect();
            let distinct_keys = all.len();
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
            let list = match wanted {
                Wanted::Occurrences => (keys.clone(), times),
                _ => Default::default(),
            };

            let mut scratch = Scratch::default();
            let pool = Pool::new(threads).unwrap();
            // The second time with what the first one left.
            for how in [Given::AsItComes, Given::Groups, Given::AsItComes] {
                let mut given = vec![7; ids.len()];
                let (of, scratch, inverse_of) = (Ids::I64(ids), &mut scratch, &mut given);
                let room = |n| vec![0; n];
                let found = match how {
                    Given::AsItComes => {
                        distinct(&pool, index, of, wanted, scratch, inverse_of, room)
                    }
                    Given::Groups => in_groups(&pool, index, of, wanted, scratch, inverse_of, room),
                };
                assert_eq!(given, inverse);
                assert_eq!(found.keys, distinct_keys);
                assert_eq!(found.offsets, offsets);
                assert_eq!(found.missing, missing);
                assert_eq!(found.list, list);
            }
        }
    }
}
