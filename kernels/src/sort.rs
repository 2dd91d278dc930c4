//! A stable counting sort of items that fall into few groups: by the upper bits of a hash, or by
//! the number of a key.

use std::ops::IndexMut;

/// How many items each group has: every item is counted first. `C` holds a number for each group;
/// of an array the compiler knows the length.
pub(crate) struct Sizes<C>(C);

/// Where the next item of each group goes: every item is placed then, in the same order.
pub(crate) struct Places<C>(C);

impl<C: IndexMut<usize, Output = u32> + AsMut<[u32]>> Sizes<C> {
    /// Begins with `zeros`, a 0 for every group.
    #[inline(always)]
    pub(crate) fn new(zeros: C) -> Sizes<C> {
        Sizes(zeros)
    }

    /// Counts an item, fewer than 2^32 in all.
    #[inline(always)]
    pub(crate) fn count(&mut self, group: usize) {
        self.0[group] += 1;
    }

    /// The places of the items, one group behind the other.
    #[inline]
    pub(crate) fn places(mut self) -> Places<C> {
        let mut start = 0;
        for next in self.0.as_mut() {
            start += std::mem::replace(next, start);
        }
        Places(self.0)
    }
}

impl<C: IndexMut<usize, Output = u32> + AsRef<[u32]>> Places<C> {
    /// Where each of the first `groups` groups starts, and where the last of them ends, as long as
    /// nothing is placed.
    pub(crate) fn starts(&self, groups: usize, items: usize) -> Vec<u32> {
        let starts = self.0.as_ref().iter().copied().take(groups);
        starts.chain([items as u32]).collect()
    }

    /// The place of the next item of a group.
    #[inline(always)]
    pub(crate) fn next(&mut self, group: usize) -> usize {
        let next = &mut self.0[group];
        let place = *next;
        *next += 1;
        place as usize
    }

    /// Where each group ends, after every item has its place.
    pub(crate) fn ends(self) -> C {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn items_lie_by_group_and_in_their_order(
            groups in proptest::collection::vec(0..9_usize, 0..200),
        ) {
            let mut sizes = Sizes::new([0_u32; 16]);
            let mut many = Sizes::new(vec![0_u32; 9]);
            for &group in &groups {
                sizes.count(group);
                many.count(group);
            }
            let (mut places, mut many) = (sizes.places(), many.places());
            let starts = places.starts(9, groups.len());
            prop_assert_eq!(&starts, &many.starts(9, groups.len()));
            let mut sorted = vec![usize::MAX; groups.len()];
            for (at, &group) in groups.iter().enumerate() {
                let place = places.next(group);
                prop_assert_eq!(many.next(group), place);
                prop_assert!((starts[group]..starts[group + 1]).contains(&(place as u32)));
                sorted[place] = at;
            }
            let mut expected: Vec<usize> = (0..groups.len()).collect();
            expected.sort_by_key(|&at| groups[at]);
            prop_assert_eq!(sorted, expected);
            prop_assert_eq!(&many.ends()[..], &starts[1..]);
        }
    }
}
