//! Which ids of a batch belong together: bags, whose rows are added up.

use super::max_norm::MaxNorm;
use crate::{Error, Result};
use std::ops::Range;

/// The bags of a lookup of `n` ids: each is a run of them, and its pooled vector is the sum of
/// their rows.
///
/// ```text
/// ids:  | 7 | 7 | 9 | 4 | 7 |
/// ends: | 2 | 2 | 5 |            bag 0: 7 7, bag 1: nothing, bag 2: 9 4 7
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Bags<'a> {
    /// Where each bag ends among the ids, `(b)`: ascending, the last is `n`. No bag at all is right
    /// for no ids alone.
    pub ends: &'a [i64],
    /// What the row of each id is multiplied with, `(n)`; `None`: nothing.
    pub weights: Option<&'a [f32]>,
    /// What the sum of each bag is divided by, `(b)`; `None`: nothing. A bag whose divisor is 0
    /// gives zeros, and its gradient is zeros.
    pub divisors: Option<&'a [f32]>,
    /// What the rows are scaled down to before they are added up; `None`: they are not.
    pub max_norm: Option<MaxNorm<'a>>,
}

impl Bags<'_> {
    /// Refuses bags that are not those of `n` ids.
    pub(crate) fn check(&self, n: usize) -> Result<()> {
        let mut before = 0;
        for (bag, &end) in self.ends.iter().enumerate() {
            if end < before || end > n as i64 {
                return Err(
                    Error::invalid("the ends of bags must ascend from 0 to the ids")
                        .with("bag", bag)
                        .with("end", end)
                        .with("end before", before)
                        .with("ids", n),
                );
            }
            before = end;
        }
        if before != n as i64 {
            return Err(Error::invalid("the last bag must end at the last id")
                .with("end", before)
                .with("ids", n));
        }
        expect("weights", self.weights, n)?;
        if let Some(max_norm) = &self.max_norm {
            max_norm.check()?;
        }
        expect("divisors", self.divisors, self.len())
    }

    /// How many bags there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The ids of some bags. They must have been checked.
    #[inline(always)]
    pub(crate) fn ids(&self, bags: &Range<usize>) -> Range<usize> {
        self.end(bags.start)..self.end(bags.end)
    }

    /// Cuts the bags into `parts` ranges of about as much work each.
    pub(crate) fn cut(&self, parts: usize) -> Vec<Range<usize>> {
        // Also an empty bag has a vector to be written.
        let work = |bag: usize| self.end(bag) + bag;
        let all = work(self.len());
        let mut start = 0;
        (1..=parts.max(1))
            .map(|part| {
                let wanted = all * part / parts.max(1);
                let (mut low, mut high) = (start, self.len());
                while low < high {
                    let middle = low + (high - low) / 2;
                    if work(middle) < wanted {
                        low = middle + 1;
                    } else {
                        high = middle;
                    }
                }
                let range = start..low;
                start = low;
                range
            })
            .collect()
    }

    /// Where the bag before `bag` ends.
    #[inline(always)]
    fn end(&self, bag: usize) -> usize {
        match bag {
            0 => 0,
            _ => self.ends[bag - 1] as usize,
        }
    }
}

/// Refuses an argument, if it is there, that has not `n` floats.
fn expect(name: &'static str, given: Option<&[f32]>, n: usize) -> Result<()> {
    match given {
        Some(given) if given.len() != n => Err(Error::invalid("an argument has the wrong length")
            .with("argument", name)
            .with("length", given.len())
            .with("expected", n)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bags(ends: &[i64]) -> Bags<'_> {
        Bags {
            ends,
            ..Bags::default()
        }
    }

    #[test]
    fn ends_must_ascend_to_the_number_of_ids() {
        for (ends, n, good) in [
            (&[][..], 0, true),
            (&[], 1, false),
            (&[0, 0, 3], 3, true),
            (&[2, 1, 3], 3, false),
            (&[-1, 3], 3, false),
            (&[2], 3, false),
            (&[4], 3, false),
            (&[i64::MAX, 3], 3, false),
            (&[i64::MIN], 0, false),
        ] {
            assert_eq!(bags(ends).check(n).is_ok(), good, "{ends:?} of {n}");
        }
        let short = Bags {
            weights: Some(&[1.0]),
            ..bags(&[2])
        };
        assert!(short.check(2).is_err());
        let long = Bags {
            divisors: Some(&[1.0; 2]),
            ..bags(&[2])
        };
        assert!(long.check(2).is_err());
    }

    #[test]
    fn parts_cover_every_bag_once_and_are_of_like_size() {
        let ends: Vec<i64> = (1..=1000).map(|bag| bag * bag / 50).collect();
        for (ends, parts) in [
            (&ends[..], 7),
            (&ends, 1),
            (&[5], 4),
            (&[], 3),
            (&[0, 0], 2),
        ] {
            let ranges = bags(ends).cut(parts);
            assert_eq!(ranges.len(), parts);
            let covered: Vec<usize> = ranges.iter().cloned().flatten().collect();
            assert_eq!(covered, (0..ends.len()).collect::<Vec<_>>());
            let all = ends.last().map_or(0, |&end| end as usize) + ends.len();
            for range in ranges {
                let ids = bags(ends).ids(&range).len() + range.len();
                assert!(
                    parts == 1 || ids <= all / parts + 45,
                    "{ids} of {all} in {parts}"
                );
            }
        }
    }
}
