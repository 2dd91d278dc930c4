//! What the sums of bags are divided by: the means of their rows, and sums over roots.

use super::bags::Bags;
use crate::pool::split_mut;
use crate::{Error, Ids, Pool, Result, PADDING};
use std::ops::Range;

/// A thread should have at least so many ids.
const LEAST: usize = 1 << 14;

/// How the rows of a bag become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The sum of the weights: the mean.
    Weights,
    /// The root of the sum of the squares of the weights.
    Root,
}

/// Writes the divisor of each bag, `out (b)`. Padding counts as if it were not there; ids without a
/// weight have weight 1. The divisors of `bags` are ignored.
///
/// # Errors
/// `InvalidArgument` for a wrong length, and for bags that are not those of `ids`.
pub fn bag_divisors(
    pool: &Pool,
    ids: Ids<'_>,
    bags: &Bags<'_>,
    divisor: Divisor,
    out: &mut [f32],
) -> Result<()> {
    let bags = &Bags {
        divisors: None,
        ..*bags
    };
    bags.check(ids.len())?;
    if out.len() != bags.len() {
        return Err(Error::invalid("there must be one divisor for each bag")
            .with("divisors", out.len())
            .with("bags", bags.len()));
    }
    let parts = bags.cut(pool.parts(ids.len(), LEAST));
    let work = parts
        .iter()
        .cloned()
        .zip(split_mut(out, 1, &parts))
        .collect();
    pool.each(work, |(range, out): (Range<usize>, &mut [f32])| {
        for (bag, out) in range.zip(out) {
            let mut sum = 0.0_f32;
            for at in bags.ids(&(bag..bag + 1)) {
                let weight = bags.weights.map_or(1.0, |weights| weights[at]);
                if ids.get(at) != PADDING {
                    sum += match divisor {
                        Divisor::Weights => weight,
                        Divisor::Root => weight * weight,
                    };
                }
            }
            *out = match divisor {
                Divisor::Weights => sum,
                Divisor::Root => sum.sqrt(),
            };
        }
    });
    Ok(())
}

/// Writes where each of `(b)` bags ends among entries that name their bags, ascending: the first
/// column of `indices (n, width)`, as in a sparse tensor.
///
/// # Errors
/// `InvalidArgument` for an entry that is no bag or less than the one before, and for a wrong
/// length of `indices`.
pub fn sparse_bag_ends(indices: &[i64], width: usize, ends: &mut [i64]) -> Result<()> {
    if width == 0 || !indices.len().is_multiple_of(width) {
        return Err(Error::invalid("indices must be a multiple of their width")
            .with("indices", indices.len())
            .with("width", width));
    }
    ends.fill(0);
    let mut before = 0;
    for (at, entry) in indices.chunks_exact(width).enumerate() {
        let bag = entry[0];
        if bag < before {
            return Err(Error::invalid(
                "the rows of sparse ids must ascend (tf.sparse.reorder sorts them)",
            )
            .with("entry", at)
            .with("row", bag)
            .with("row before", before));
        }
        let Some(end) = usize::try_from(bag).ok().and_then(|bag| ends.get_mut(bag)) else {
            return Err(
                Error::invalid("a row of sparse ids lies outside of their shape")
                    .with("entry", at)
                    .with("row", bag)
                    .with("rows", ends.len()),
            );
        };
        *end = at as i64 + 1;
        before = bag;
    }
    let mut last = 0;
    for end in ends {
        *end = (*end).max(last);
        last = *end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_does_not_count_and_weights_do() {
        let pool = Pool::new(2).unwrap();
        let bags = Bags {
            ends: &[2, 2, 5],
            ..Bags::default()
        };
        let ids = Ids::I32(&[7, -1, 3, 3, 9]);
        let mut out = [9.0; 3];
        bag_divisors(&pool, ids, &bags, Divisor::Weights, &mut out).unwrap();
        assert_eq!(out, [1.0, 0.0, 3.0]);
        bag_divisors(&pool, ids, &bags, Divisor::Root, &mut out).unwrap();
        assert_eq!(out, [1.0, 0.0, 3.0_f32.sqrt()]);
        let bags = Bags {
            weights: Some(&[0.5, 4.0, 1.0, -2.0, 0.25]),
            ..bags
        };
        bag_divisors(&pool, ids, &bags, Divisor::Weights, &mut out).unwrap();
        assert_eq!(out, [0.5, 0.0, -0.75]);
        bag_divisors(&pool, ids, &bags, Divisor::Root, &mut out).unwrap();
        assert_eq!(out, [0.5, 0.0, 5.0625_f32.sqrt()]);
        assert!(bag_divisors(&pool, ids, &bags, Divisor::Root, &mut [0.0]).is_err());
    }

    #[test]
    fn rows_of_sparse_ids_become_ends_or_an_error_that_names_them() {
        let mut ends = [9; 4];
        sparse_bag_ends(&[0, 5, 0, 6, 2, 0], 2, &mut ends).unwrap();
        assert_eq!(ends, [2, 2, 3, 3]);
        sparse_bag_ends(&[], 2, &mut ends).unwrap();
        assert_eq!(ends, [0; 4]);
        for (indices, message) in [
            (&[1, 0, 0, 0][..], "row before=1"),
            (&[4, 0], "row=4"),
            (&[-1, 0], "row=-1"),
            (&[i64::MIN, 0], "row="),
            (&[0, 1, 2], "multiple"),
        ] {
            let error = sparse_bag_ends(indices, 2, &mut ends).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        assert!(sparse_bag_ends(&[0], 1, &mut []).is_err());
    }
}
