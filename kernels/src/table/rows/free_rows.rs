//! Free-row bitmap with a one-level summary for find-first.

/// Rows of one word.
const BITS: usize = u64::BITS as usize;

/// The numbers of free rows.
///
/// ```text
/// words:   one bit a row, set where it is free
/// summary: one bit a word, set where the word has a bit
/// ```
/// Both may be shorter than the rows there are: what is not there is not set.
#[derive(Default)]
pub(in crate::table) struct FreeRows {
    words: Vec<u64>,
    summary: Vec<u64>,
    len: usize,
}

impl FreeRows {
    /// How many rows are in it.
    #[inline(always)]
    pub(in crate::table) fn len(&self) -> usize {
        self.len
    }

    /// Whether a row is in it.
    #[inline(always)]
    pub(in crate::table) fn contains(&self, row: u32) -> bool {
        let word = self.words.get(row as usize / BITS);
        word.is_some_and(|word| word >> (row as usize % BITS) & 1 == 1)
    }

    /// Adds a row.
    pub(in crate::table) fn insert(&mut self, row: u32) {
        let at = row as usize / BITS;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
            self.summary.resize(at / BITS + 1, 0);
        }
        let bit = 1 << (row as usize % BITS);
        self.len += usize::from(self.words[at] & bit == 0);
        self.words[at] |= bit;
        self.summary[at / BITS] |= 1 << (at % BITS);
    }

    /// Takes a row out, if it is in.
    pub(in crate::table) fn remove(&mut self, row: u32) {
        let at = row as usize / BITS;
        let bit = 1 << (row as usize % BITS);
        if let Some(word) = self.words.get_mut(at).filter(|word| **word & bit != 0) {
            *word &= !bit;
            self.len -= 1;
            if *word == 0 {
                self.summary[at / BITS] &= !(1 << (at % BITS));
            }
        }
    }

    /// The first row from `from` on.
    pub(in crate::table) fn first(&self, from: usize) -> Option<u32> {
        let at = from / BITS;
        let rest = self.words.get(at)? & (u64::MAX << (from % BITS));
        if rest != 0 {
            return Some((at * BITS) as u32 + rest.trailing_zeros());
        }
        let next = at + 1;
        let mut mask = u64::MAX << (next % BITS);
        for above in next / BITS..self.summary.len() {
            let found = self.summary[above] & mask;
            if found != 0 {
                let at = above * BITS + found.trailing_zeros() as usize;
                return Some((at * BITS) as u32 + self.words[at].trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// The least number from which on all rows below `rows` are free.
    pub(in crate::table) fn end(&self, mut rows: usize) -> usize {
        while rows > 0 && self.contains(rows as u32 - 1) {
            let whole = rows.is_multiple_of(BITS) && self.words[rows / BITS - 1] == u64::MAX;
            rows -= if whole { BITS } else { 1 };
        }
        rows
    }

    /// Takes all rows from `rows` on out, and gives the memory of their bits back.
    pub(in crate::table) fn truncate(&mut self, rows: usize) {
        let words = rows.div_ceil(BITS).min(self.words.len());
        let above = self.words.get(words..).unwrap_or_default();
        let gone: u32 = above.iter().map(|word| word.count_ones()).sum();
        self.len -= gone as usize;
        self.words.truncate(words);
        self.summary.truncate(words.div_ceil(BITS));
        if let Some(last) = self.summary.last_mut() {
            let used = words % BITS;
            *last &= if used == 0 { u64::MAX } else { (1 << used) - 1 };
        }
        while let Some(last) = self.first(rows) {
            self.remove(last);
        }
        self.words.shrink_to_fit();
        self.summary.shrink_to_fit();
    }

    /// Bytes held.
    pub(in crate::table) fn bytes(&self) -> usize {
        8 * (self.words.capacity() + self.summary.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(verbs in proptest::collection::vec((0..5_u8, 0..20_000_u32), 1..300)) {
            let (mut free, mut set) = (FreeRows::default(), BTreeSet::new());
            for (verb, row) in verbs {
                // Some rows meet, some words are full.
                let row = if row % 3 == 0 { row % 200 } else { row };
                match verb {
                    0 | 1 => {
                        for row in row..row + 70 {
                            free.insert(row);
                            set.insert(row);
                        }
                    }
                    2 => {
                        free.remove(row);
                        set.remove(&row);
                    }
                    3 => {
                        let end = free.end(20_070);
                        prop_assert!((end as u32..20_070).all(|row| set.contains(&row)));
                        prop_assert!(end == 0 || !set.contains(&(end as u32 - 1)));
                    }
                    _ if row > 10_000 => {
                        free.truncate(row as usize);
                        set.split_off(&row);
                    }
                    _ => {}
                }
                prop_assert_eq!(free.len(), set.len());
                prop_assert_eq!(free.contains(row), set.contains(&row));
                prop_assert_eq!(free.first(row as usize), set.range(row..).next().copied());
                prop_assert_eq!(free.first(0), set.first().copied());
            }
        }
    }
}
