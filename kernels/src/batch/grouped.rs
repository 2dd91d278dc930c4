//! The keys of a batch, sorted into groups by the upper bits of their hashes, so that each group
//! fits the first cache.

use crate::index::{hash, top};
use crate::pool::{ranges, split_mut, Parts};
use crate::sort::Sizes;
use crate::{Ids, Pool};
use std::ops::Range;

/// Keys that a group should have.
const GROUP: usize = 2048;

/// The most groups, as a power of two.
const MOST_BITS: u32 = 8;

/// Keys that a range should have at least.
const LEAST: usize = 4096;

/// Buffers of [`Grouped`] that outlive a batch, so that the next one needs no new memory.
#[derive(Default)]
pub(crate) struct Buffers {
    keys: Vec<i64>,
    place: Vec<u32>,
    group: Vec<u8>,
}

impl Buffers {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.capacity() * 8 + self.place.capacity() * 4 + self.group.capacity()
    }
}

/// The batch is cut into ranges, and the keys of each range are sorted by group, stably:
///
/// ```text
/// keys: | range 0: group 0, group 1, .. | range 1: group 0, group 1, .. | ..
/// ```
/// so that ranges and groups can both be worked on in parallel, and range by range a group is in
/// order of occurrence.
pub(crate) struct Grouped<'b> {
    /// The ranges of the batch, in order.
    pub(crate) ranges: Parts<Range<usize>>,
    /// For each range where its groups start in `keys`, and the end of the last.
    pub(crate) starts: Vec<Vec<usize>>,
    /// The sorted keys.
    pub(crate) keys: &'b [i64],
    /// For each id of the batch where its key is in `keys`.
    pub(crate) place: &'b [u32],
}

impl<'b> Grouped<'b> {
    /// Sorts `ids`, of which there must be fewer than 2^31.
    pub(crate) fn new(pool: &Pool, ids: Ids<'_>, buffers: &'b mut Buffers) -> Grouped<'b> {
        let n = ids.len();
        let bits = (n / GROUP).max(1).ilog2().min(MOST_BITS);
        let ranges = ranges(n, pool.parts(n, LEAST));
        let Buffers { keys, place, group } = buffers;
        for_len(keys, n, 0);
        for_len(place, n, 0);
        for_len(group, n, 0);
        let (keys, place, group) = (&mut keys[..n], &mut place[..n], &mut group[..n]);
        let mut starts: Vec<Vec<usize>> = vec![Vec::new(); ranges.len()];
        let work = ranges
            .iter()
            .cloned()
            .zip(split_mut(keys, 1, &ranges))
            .zip(split_mut(place, 1, &ranges))
            .zip(split_mut(group, 1, &ranges))
            .zip(&mut starts);
        pool.each(work, |((((range, keys), place), group), starts)| {
            let base = range.start;
            *starts = match ids.part(range) {
                Ids::I64(ids) => sort(ids.iter().copied(), bits, base, keys, place, group),
                Ids::I32(ids) => sort(
                    ids.iter().map(|&id| i64::from(id)),
                    bits,
                    base,
                    keys,
                    place,
                    group,
                ),
            };
        });
        Grouped {
            ranges,
            starts,
            keys,
            place,
        }
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> usize {
        self.starts.first().map_or(0, |starts| starts.len() - 1)
    }
}

/// Makes a buffer at least `n` long; what it holds is unspecified.
pub(crate) fn for_len<T: Copy>(buffer: &mut Vec<T>, n: usize, value: T) {
    if buffer.len() < n {
        buffer.clear();
        buffer.resize(n.next_multiple_of(4096), value);
    }
}

/// Sorts one range and returns where its groups start.
fn sort(
    ids: impl Iterator<Item = i64> + Clone,
    bits: u32,
    base: usize,
    keys: &mut [i64],
    place: &mut [u32],
    group: &mut [u8],
) -> Vec<usize> {
    let mut sizes = Sizes::new([0_u32; 1 << MOST_BITS]);
    for (key, group) in ids.clone().zip(group.iter_mut()) {
        *group = top(hash(key), bits) as u8;
        sizes.count(usize::from(*group));
    }
    let mut places = sizes.places();
    let starts = places.starts(1 << bits, keys.len());
    for ((key, place), &group) in ids.zip(place).zip(&*group) {
        let at = places.next(usize::from(group));
        keys[at] = key;
        *place = (base + at) as u32;
    }
    starts.iter().map(|&start| base + start as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_every_key_in_order_of_occurrence() {
        let ids: Vec<i32> = (0..50_000).map(|at| at * 7919 % 4001 - 2000).collect();
        for threads in [1, 3] {
            let mut buffers = Buffers::default();
            let pool = Pool::new(threads).unwrap();
            let grouped = Grouped::new(&pool, Ids::I32(&ids), &mut buffers);
            assert_eq!(grouped.groups(), 16);
            for (range, starts) in grouped.ranges.iter().zip(&grouped.starts) {
                assert_eq!((starts[0], starts[16]), (range.start, range.end));
                for group in 0..16 {
                    let keys = &grouped.keys[starts[group]..starts[group + 1]];
                    assert!(keys.iter().all(|&key| top(hash(key), 4) == group));
                    let expected = ids[range.clone()].iter().map(|&id| i64::from(id));
                    assert!(expected
                        .filter(|&key| top(hash(key), 4) == group)
                        .eq(keys.iter().copied()));
                }
            }
            let placed = grouped.place.iter().map(|&at| grouped.keys[at as usize]);
            assert!(placed.eq(ids.iter().map(|&id| i64::from(id))));
        }
    }

    #[test]
    fn an_empty_batch_has_one_empty_range() {
        let mut buffers = Buffers::default();
        let grouped = Grouped::new(&Pool::new(2).unwrap(), Ids::I64(&[]), &mut buffers);
        assert_eq!((grouped.groups(), grouped.starts), (1, vec![vec![0, 0]]));
    }
}
