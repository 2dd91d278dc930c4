//! Numbers the distinct values of a batch in order of first occurrence.

use crate::index::hash;

/// A set by open addressing that is filled once and never grows.
///
/// ```text
/// table:  | 0 | 2 | 1 | 0 |     0 = free, else 1 + the number of a value
/// values: | value 0 | value 1 |
/// ```
pub(crate) struct Numbering<T> {
    table: Vec<u32>,
    values: Vec<T>,
}

/// What can be numbered.
pub(crate) trait Value: Copy + Eq {
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
    /// For at most `size` values, below 2^31.
    pub(crate) fn new(size: usize) -> Numbering<T> {
        Numbering {
            table: vec![0; (size * 2).next_power_of_two().max(2)],
            values: Vec::with_capacity(size),
        }
    }

    /// The number of a value; `is_new` is called before a new one is entered.
    #[inline(always)]
    pub(crate) fn number(&mut self, value: T, is_new: impl FnOnce()) -> (u32, bool) {
        let mask = self.table.len() - 1;
        let mut at = value.spread() & mask;
        loop {
            match self.table[at] {
                0 => {
                    is_new();
                    self.values.push(value);
                    self.table[at] = self.values.len() as u32;
                    return (self.values.len() as u32 - 1, true);
                }
                entry if self.values[entry as usize - 1] == value => return (entry - 1, false),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// How many values there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The values by number, and the table as working memory, longer than they are.
    pub(crate) fn into_parts(self) -> (Vec<T>, Vec<u32>) {
        (self.values, self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expect_numbered<T: Value + std::fmt::Debug>(values: &[T]) {
        let (mut numbering, mut distinct) = (Numbering::new(values.len()), Vec::new());
        for &value in values {
            let known = distinct.iter().position(|&other| other == value);
            let mut called = false;
            let (number, is_new) = numbering.number(value, || called = true);
            assert_eq!((known.is_none(), called), (is_new, is_new));
            assert_eq!(number as usize, known.unwrap_or(distinct.len()));
            if is_new {
                distinct.push(value);
            }
            assert_eq!(numbering.len(), distinct.len());
        }
        let (found, table) = numbering.into_parts();
        assert_eq!(found, distinct);
        assert!(table.len() > found.len());
    }

    proptest! {
        #[test]
        fn values_are_numbered_in_order_of_first_occurrence(values in proptest::collection::vec(-20..20_i64, 0..60)) {
            expect_numbered(&values);
            expect_numbered(&values.iter().map(|value| value << 40).collect::<Vec<_>>());
            expect_numbered(&values.iter().map(|&value| value as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn as_many_values_as_it_was_made_for_fit() {
        expect_numbered(&(0..4096).collect::<Vec<i64>>());
        expect_numbered(&(0..1000).rev().collect::<Vec<u32>>());
        expect_numbered::<u32>(&[]);
    }
}
