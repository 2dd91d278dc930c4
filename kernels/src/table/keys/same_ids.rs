//! Which batches of a group have the same ids, so that these are made distinct once.

use crate::index::hash;
use crate::Ids;
use std::collections::HashMap;

/// How many ids of a batch choose the one that it is compared with.
const SAMPLES: usize = 16;

/// Sets of batches with the same ids: those in the same memory, as two tables have them that are
/// looked up by one tensor, and those that are equal, as two ops give them that compute the same.
///
/// A batch is compared with one other at most, and with none if their samples differ. So what this
/// takes, where no ids are equal, is little beside making them distinct.
#[derive(Default)]
pub(in crate::table) struct SetsOfIds<'a> {
    ids: Vec<Ids<'a>>,
    by_place: HashMap<(usize, usize, bool), usize>,
    by_sample: HashMap<(u64, usize, bool), usize>,
}

impl<'a> SetsOfIds<'a> {
    /// The number of the set that has `ids`; one more than the last if there was none.
    pub(in crate::table) fn number_of(&mut self, ids: Ids<'a>) -> usize {
        let (place, is_wide) = match ids {
            Ids::I64(ids) => (ids.as_ptr().addr(), true),
            Ids::I32(ids) => (ids.as_ptr().addr(), false),
        };
        let (place, sample) = (
            (place, ids.len(), is_wide),
            (sample(ids), ids.len(), is_wide),
        );
        if let Some(&number) = self.by_place.get(&place) {
            return number;
        }
        let alike = self.by_sample.get(&sample).copied();
        let number = match alike.filter(|&number| is_equal(self.ids[number], ids)) {
            Some(number) => number,
            None => {
                self.ids.push(ids);
                self.by_sample.insert(sample, self.ids.len() - 1);
                self.ids.len() - 1
            }
        };
        self.by_place.insert(place, number);
        number
    }
}

fn is_equal(one: Ids<'_>, other: Ids<'_>) -> bool {
    match (one, other) {
        (Ids::I64(one), Ids::I64(other)) => one == other,
        (Ids::I32(one), Ids::I32(other)) => one == other,
        _ => false,
    }
}

/// A number of some ids of a batch, which lie evenly in it.
fn sample(ids: Ids<'_>) -> u64 {
    let step = ids.len().div_ceil(SAMPLES).max(1);
    let some = (0..ids.len()).step_by(step);
    some.fold(0, |sum, at| hash(ids.get(at) ^ sum as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_memory_and_equal_contents_are_one_set() {
        let ids: Vec<i64> = (0..1000).map(|at| at * at % 77).collect();
        let copy = ids.clone();
        let mut late = ids.clone();
        late[998] += 1;
        let narrow: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let narrow_copy = narrow.clone();
        let mut sets = SetsOfIds::default();
        for (ids, number) in [
            (Ids::I64(&ids), 0),
            (Ids::I64(&copy), 0),
            // One id differs, which is in no sample.
            (Ids::I64(&late), 1),
            (Ids::I64(&ids[..999]), 2),
            (Ids::I32(&narrow), 3),
            (Ids::I64(&ids), 0),
            (Ids::I64(&[]), 4),
            (Ids::I64(&[]), 4),
            (Ids::I32(&[]), 5),
            (Ids::I64(&late), 1),
            (Ids::I32(&narrow_copy), 3),
        ] {
            assert_eq!(sets.number_of(ids), number, "{} ids", ids.len());
        }
    }

    #[test]
    fn batches_that_differ_where_no_sample_is_keep_sets_of_their_own() {
        let batches: Vec<Vec<i32>> = (0..20)
            .map(|at| {
                let mut ids = vec![7; 100];
                ids[99] = at;
                ids
            })
            .collect();
        let mut sets = SetsOfIds::default();
        for (number, ids) in batches.iter().enumerate() {
            assert_eq!(sets.number_of(Ids::I32(ids)), number);
        }
        for (number, ids) in batches.iter().enumerate() {
            assert_eq!(sets.number_of(Ids::I32(ids)), number);
        }
    }
}
