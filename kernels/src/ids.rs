//! The ids of one batch, in the integer width in which the caller's tensor holds them.

use std::ops::Range;

/// The key that stands for "nothing": it never has a row, its embedding is zeros and its gradient
/// is dropped.
pub const PADDING: i64 = -1;

/// Borrowed ids, shape `(n)`; 32-bit ids are widened with their sign when they are read.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// 64-bit keys.
    I64(&'a [i64]),
    /// 32-bit keys.
    I32(&'a [i32]),
}

impl<'a> Ids<'a> {
    /// How many ids there are.
    pub fn len(&self) -> usize {
        match self {
            Ids::I64(ids) => ids.len(),
            Ids::I32(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key at `at`, or padding past the end.
    #[inline]
    pub fn get(&self, at: usize) -> i64 {
        match self {
            Ids::I64(ids) => ids.get(at).copied().unwrap_or(PADDING),
            Ids::I32(ids) => ids.get(at).map_or(PADDING, |&id| i64::from(id)),
        }
    }

    /// The ids of `range`, cut at the end.
    pub(crate) fn part(&self, range: Range<usize>) -> Ids<'a> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        match self {
            Ids::I64(ids) => Ids::I64(&ids[start..end]),
            Ids::I32(ids) => Ids::I32(&ids[start..end]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_ids_keep_their_sign() {
        let ids = Ids::I32(&[i32::MIN, -1, 0, i32::MAX]);
        let wide: Vec<i64> = (0..ids.len()).map(|at| ids.get(at)).collect();
        assert_eq!(wide, [i64::from(i32::MIN), -1, 0, i64::from(i32::MAX)]);
    }

    #[test]
    fn reading_past_the_end_gives_padding() {
        assert_eq!(Ids::I64(&[7]).get(1), PADDING);
        assert_eq!(Ids::I64(&[7, 8, 9]).part(1..9).len(), 2);
    }
}
