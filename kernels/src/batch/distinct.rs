//! De-duplicates a batch: distinct keys in order of first occurrence, and for each id which of them it is.

use super::grouped::{for_len, Buffers, Grouped};
use crate::index::{hash, Index};
use crate::mem::{prefetch, NONE};
use crate::pool::{split_mut, Pool};
use crate::{Ids, PADDING};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// In `found`: this id is the first of its key.
const FIRST: u32 = 1 << 31;

/// In `found`: this id is padding.
const NOTHING: u32 = u32::MAX;

/// Memory that outlives a batch, so that the next one needs no new pages.
#[derive(Default)]
pub(crate) struct Scratch {
    grouped: Buffers,
    found: Vec<u32>,
    rows: Vec<u32>,
    ranks: Vec<AtomicU32>,
}

impl Scratch {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.grouped.bytes()
            + 4 * (self.found.capacity() + self.rows.capacity() + self.ranks.capacity())
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
}

/// De-duplicates `ids`, fewer than 2^31, and looks the distinct keys up in `index`.
///
/// `restore[i]` becomes the position in `offsets` of `ids[i]`, or -1 for padding. Keys without a row get a position only
/// with `keep_missing`; else their `restore` is -1 as well. `room` makes the buffer for the offsets from their number.
pub(crate) fn distinct<O: DerefMut<Target = [i64]>>(
    pool: &Pool,
    index: &Index,
    ids: Ids<'_>,
    keep_missing: bool,
    scratch: &mut Scratch,
    restore: &mut [i32],
    room: impl FnOnce(usize) -> O,
) -> Distinct<O> {
    let n = ids.len();
    let Scratch {
        grouped,
        found,
        rows,
        ranks,
    } = scratch;
    let grouped = Grouped::new(pool, ids, grouped);
    for_len(found, n, 0);
    for_len(rows, n, 0);
    if ranks.len() < n {
        ranks.resize_with(n.next_multiple_of(4096), AtomicU32::default);
    }

    // Each group alone: which ids repeat, and the rows of its distinct keys.
    let mut groups: Vec<Group<'_>> = by_group(&grouped, &mut found[..n], &mut rows[..n]);
    pool.each(groups.iter_mut().collect(), |group: &mut Group<'_>| {
        group.look_up(index, keep_missing);
    });
    let keys = groups.iter().map(|group| group.distinct).sum();
    let mut sizes = vec![0; grouped.ranges.len()];
    for group in &groups {
        sizes
            .iter_mut()
            .zip(&group.firsts)
            .for_each(|(size, first)| *size += first);
    }
    drop(groups);

    // Each range alone: positions in order of first occurrence, then `restore`.
    let (found, rows, ranks) = (&found[..n], &rows[..n], &ranks[..n]);
    let mut offsets = room(sizes.iter().sum());
    let mut start = 0;
    let bounds: Vec<_> = sizes
        .iter()
        .map(|size| {
            start += size;
            start - size..start
        })
        .collect();
    let mut missing = vec![Vec::new(); sizes.len()];
    let alone = sizes.len() == 1;
    let work: Vec<_> = grouped
        .ranges
        .iter()
        .cloned()
        .zip(&bounds)
        .zip(split_mut(&mut offsets, 1, &bounds))
        .zip(&mut missing)
        .zip(split_mut(restore, 1, &grouped.ranges))
        .map(|((((range, bound), offsets), missing), restore)| {
            let range = Ranking {
                range,
                rank: bound.start,
                offsets,
                missing,
                restore,
            };
            (range, &grouped, found, rows, ranks)
        })
        .collect();
    if alone {
        for (mut range, grouped, found, rows, ranks) in work {
            range.rank(grouped, found, rows, ranks, keep_missing);
            range.restore(grouped.place, found, ranks);
        }
    } else {
        let ranked = parking_lot::Mutex::new(Vec::with_capacity(work.len()));
        pool.each(work, |(mut range, grouped, found, rows, ranks)| {
            range.rank(grouped, found, rows, ranks, keep_missing);
            ranked.lock().push(range);
        });
        pool.each(ranked.into_inner(), |mut range| {
            range.restore(grouped.place, found, ranks);
        });
    }
    Distinct {
        keys,
        offsets,
        missing: missing.concat(),
    }
}

/// One group of a batch.
struct Group<'a> {
    /// The keys of the group in every range, and where to put what is found about them.
    pieces: Vec<(&'a [i64], &'a mut [u32])>,
    /// Rows of the distinct keys; as long as the group, because it may have no duplicates.
    rows: &'a mut [u32],
    /// Where `rows` starts among the rows of all groups.
    base: u32,
    /// Distinct keys.
    distinct: usize,
    /// For every range how many keys occur in it first and get a position.
    firsts: Vec<usize>,
}

/// Cuts the buffers of a batch along its groups.
fn by_group<'a>(
    grouped: &Grouped<'a>,
    mut found: &'a mut [u32],
    mut rows: &'a mut [u32],
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
        let pieces = Vec::with_capacity(grouped.starts.len());
        groups.push(Group {
            pieces,
            rows: own,
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
    /// Finds duplicates and rows. Buckets are prefetched as distinct keys appear and read when all have appeared.
    fn look_up(&mut self, index: &Index, keep_missing: bool) {
        let size = self.rows.len();
        let slots = (size * 2).next_power_of_two();
        // 0 = free, else 1 + the number of a distinct key.
        let mut table = vec![0_u32; slots];
        let mut keys: Vec<i64> = Vec::with_capacity(size);
        let mut ends = Vec::with_capacity(self.pieces.len());
        for (ids, found) in &mut self.pieces {
            for (&key, found) in ids.iter().zip(found.iter_mut()) {
                if key == PADDING {
                    *found = NOTHING;
                    continue;
                }
                let hash = hash(key);
                // The upper bits are the same for the whole group; the lower ones are as good.
                let mut at = hash as usize & (slots - 1);
                *found = loop {
                    match table[at] {
                        0 => {
                            prefetch(index.home(hash));
                            keys.push(key);
                            table[at] = keys.len() as u32;
                            break FIRST | (self.base + keys.len() as u32 - 1);
                        }
                        entry if keys[entry as usize - 1] == key => break self.base + entry - 1,
                        _ => at = (at + 1) & (slots - 1),
                    }
                };
            }
            ends.push(keys.len());
        }
        let mut beyond = Vec::new();
        for (at, (&key, row)) in keys.iter().zip(self.rows.iter_mut()).enumerate() {
            match index.row_at_home(key) {
                Some(found) => *row = found,
                None => beyond.push(at),
            }
        }
        for at in beyond {
            self.rows[at] = index.row(keys[at]);
        }
        let mut start = 0;
        for end in ends {
            let kept = if keep_missing {
                end - start
            } else {
                self.rows[start..end]
                    .iter()
                    .filter(|&&row| row != NONE)
                    .count()
            };
            self.firsts.push(kept);
            start = end;
        }
        self.distinct = keys.len();
    }
}

/// One range of a batch while positions are given out.
struct Ranking<'a> {
    range: std::ops::Range<usize>,
    /// The position of the first key that occurs first in this range.
    rank: usize,
    offsets: &'a mut [i64],
    missing: &'a mut Vec<(u32, i64)>,
    restore: &'a mut [i32],
}

impl Ranking<'_> {
    /// Gives the keys that occur first in this range their positions.
    fn rank(
        &mut self,
        grouped: &Grouped<'_>,
        found: &[u32],
        rows: &[u32],
        ranks: &[AtomicU32],
        keep_missing: bool,
    ) {
        let mut rank = 0;
        for &place in &grouped.place[self.range.clone()] {
            let id = found[place as usize];
            if id & FIRST == 0 || id == NOTHING {
                continue;
            }
            let number = (id ^ FIRST) as usize;
            let row = rows[number];
            let position = (self.rank + rank) as u32;
            if row == NONE {
                if !keep_missing {
                    ranks[number].store(NONE, Relaxed);
                    continue;
                }
                self.missing.push((position, grouped.keys[place as usize]));
            }
            ranks[number].store(position, Relaxed);
            self.offsets[rank] = if row == NONE { -1 } else { i64::from(row) };
            rank += 1;
        }
    }

    /// Writes the position of every id of the range.
    fn restore(&mut self, place: &[u32], found: &[u32], ranks: &[AtomicU32]) {
        for (restore, &place) in self.restore.iter_mut().zip(&place[self.range.clone()]) {
            let id = found[place as usize];
            *restore = match id {
                NOTHING => -1,
                // A key left out has the rank NONE, which is -1 here.
                _ => ranks[(id & !FIRST) as usize].load(Relaxed) as i32,
            };
        }
    }
}
