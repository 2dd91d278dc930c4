//! Numbers the distinct values of a batch in order of first occurrence.

use crate::index::hash;
use crate::mem::prefetch;

/// In the table: a place that no value has.
const FREE: u32 = u32::MAX;

/// A set by open addressing. At most 9 of 16 places are taken.
///
/// ```text
/// table:  | FREE | 1 | 0 | FREE |     the number of a value
/// values: | value 0 | value 1 | .. |  those from `len` on are unspecified
/// ```
#[derive(Default)]
pub(crate) struct Numbering<T> {
    table: Vec<u32>,
    values: Vec<T>,
    len: usize,
}

/// What can be numbered.
pub(crate) trait Value: Copy + Default + Eq {
    /// Bits of which the lower ones are spread evenly.
    fn spread(self) -> usize;
}

/// Keys of one group share the upper bits of their hashes; the lower ones are as good.
impl Value for i64 {
    #[inline(always)]
    fn spread(self) -> usize {
        hash(self) as usize
    }
}

/// Numbers of rows.
impl Value for u32 {
    #[inline(always)]
    fn spread(self) -> usize {
        (u64::from(self).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
    }
}

impl<T: Value> Numbering<T> {
    /// An empty one in which about `size` values, below 2^31, find room at once.
    pub(crate) fn new(size: usize) -> Numbering<T> {
        let mut numbering = Numbering::default();
        numbering.clear(size);
        numbering
    }

    /// Forgets all values; about `size`, below 2^31, find room at once.
    pub(crate) fn clear(&mut self, size: usize) {
        self.len = 0;
        self.empty_table((size * 2).next_power_of_two().max(2));
    }

    /// Numbers `items`, at most `most`, each a value with its [`Value::spread`] and what `each`
    /// gets with the value's number and whether it is a new one.
    #[inline(always)]
    pub(crate) fn number<P>(
        &mut self,
        most: usize,
        items: impl Iterator<Item = (T, usize, P)>,
        mut each: impl FnMut(P, u32, bool),
    ) {
        self.make_room(most);
        let (table, values, mut len) = (&mut self.table[..], &mut self.values[..], self.len);
        let mask = table.len() - 1;
        for (value, spread, of_item) in items {
            // A free place stands for the next number, whose value is this one if it is new: so
            // one comparison tells the end of the search, and nothing else is to be foreseen.
            values[len] = value;
            let mut at = spread & mask;
            let number = loop {
                let number = (table[at] as usize).min(len);
                if values[number] == value {
                    break number;
                }
                at = (at + 1) & mask;
            };
            table[at] = number as u32;
            let is_new = number == len;
            len += usize::from(is_new);
            each(of_item, number as u32, is_new);
        }
        self.len = len;
    }

    /// Asks for the place where the search for a value begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, spread: usize) {
        if let Some(place) = self.table.get(spread & (self.table.len().wrapping_sub(1))) {
            prefetch(place);
        }
    }

    /// The number of a value, if it has one.
    #[inline(always)]
    pub(crate) fn find(&self, value: T, spread: usize) -> Option<u32> {
        let mask = self.table.len().wrapping_sub(1);
        let mut at = spread & mask;
        loop {
            let number = *self.table.get(at)?;
            if number == FREE {
                return None;
            }
            if self.values[number as usize] == value {
                return Some(number);
            }
            at = (at + 1) & mask;
        }
    }

    /// How many values there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The values by number.
    pub(crate) fn values(&self) -> &[T] {
        &self.values[..self.len]
    }

    /// The values by number, all of them.
    pub(crate) fn into_values(mut self) -> Vec<T> {
        self.values.truncate(self.len);
        self.values
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<u32>() + self.values.capacity() * size_of::<T>()
    }

    /// Makes room for `more` values.
    fn make_room(&mut self, more: usize) {
        let most = self.len + more;
        // One more, for the value that is looked for.
        if self.values.len() <= most {
            let size = (most + 1).max(self.values.len() * 2);
            self.values.resize(size, T::default());
        }
        if most * 16 > self.table.len() * 9 {
            self.empty_table((most * 2).next_power_of_two().max(2));
            let mask = self.table.len() - 1;
            for (number, value) in self.values[..self.len].iter().enumerate() {
                let mut at = value.spread() & mask;
                while self.table[at] != FREE {
                    at = (at + 1) & mask;
                }
                self.table[at] = number as u32;
            }
        }
    }

    fn empty_table(&mut self, places: usize) {
        self.table.clear();
        self.table.resize(places, FREE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expect_numbered<T: Value + std::fmt::Debug>(values: &[T], block: usize, room: usize) {
        let (mut numbering, mut distinct) = (Numbering::new(room), Vec::new());
        for values in values.chunks(block) {
            let items = values.iter().map(|&value| (value, value.spread(), value));
            numbering.number(values.len(), items, |value, number, is_new| {
                let known = distinct.iter().position(|&other| other == value);
                assert_eq!(known.is_none(), is_new);
                assert_eq!(number as usize, known.unwrap_or(distinct.len()));
                if is_new {
                    distinct.push(value);
                }
            });
            assert_eq!(numbering.len(), distinct.len());
        }
        assert_eq!(numbering.values(), distinct);
        for (number, &value) in distinct.iter().enumerate() {
            numbering.prefetch(value.spread());
            let found = numbering.find(value, value.spread());
            assert_eq!(found, Some(number as u32));
        }
        numbering.clear(room);
        let is_known = |&value: &T| numbering.find(value, value.spread()).is_some();
        assert!(!distinct.iter().any(is_known));
    }

    proptest! {
        #[test]
        fn values_are_numbered_in_order_of_first_occurrence(
            values in proptest::collection::vec(-20..20_i64, 0..60),
            (block, room) in (1..70_usize, 0..70_usize),
        ) {
            expect_numbered(&values, block, room);
            let far: Vec<i64> = values.iter().map(|value| value << 40).collect();
            expect_numbered(&far, block, room);
            let rows: Vec<u32> = values.iter().map(|&value| value as u32).collect();
            expect_numbered(&rows, block, room);
        }
    }

    #[test]
    fn any_number_of_values_fits_whatever_it_was_made_for() {
        expect_numbered(&(0..4096).collect::<Vec<i64>>(), 32, 10);
        expect_numbered(&(0..4096).collect::<Vec<i64>>(), 4096, 4096);
        expect_numbered(&(0..1000).rev().collect::<Vec<u32>>(), 1000, 1);
        expect_numbered::<u32>(&[], 1, 0);
    }

    #[test]
    fn nothing_is_found_where_nothing_was_numbered() {
        let none = Numbering::<i64>::default();
        none.prefetch(7);
        assert_eq!((none.find(7, 7), none.len()), (None, 0));
    }
}
