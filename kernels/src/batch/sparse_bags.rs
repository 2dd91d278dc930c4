//! Sparse ids as TensorFlow's sparse lookups take them, in any order, made bags.

use crate::{Error, Ids, Result};

/// How sparse ids become bags.
#[derive(Clone, Copy, Debug)]
pub struct SparseRules {
    /// Ids have to be below it.
    pub rows: i64,
    /// What sums are divided by.
    pub combiner: Combiner,
    /// Whether negative ids are left out; otherwise they are refused.
    pub leaves_out: bool,
    /// Whether a bag without ids gets the id 0, with a divisor of 0.
    pub fills: bool,
}

/// What the sum of a bag is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combiner {
    /// Nothing.
    Sum,
    /// The number of its ids.
    Mean,
    /// The root of that number.
    Root,
}

/// Ids in the order of their bags.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseBags {
    /// The ids that were not left out `(k)`, those of a bag in the order of the input.
    pub ids: Vec<i64>,
    /// Where each bag ends among them `(b)`.
    pub ends: Vec<i64>,
    /// The divisor of each bag `(b)`, 0 of one without ids; empty if nothing is divided.
    pub divisors: Vec<f32>,
}

/// Makes bags of sparse ids.
///
/// # Arguments
/// * `indices`: `(n, 2)`, for each id its bag and what it stands at there, which is not looked at.
/// * `ids`: `(n)`.
/// * `bags`: how many there are.
///
/// # Errors
/// `InvalidArgument` for another number of indices than ids, a bag outside of `[0, bags)`, an id
/// of `rules.rows` or more, and a negative id that is not to be left out.
pub fn sparse_bags(
    indices: &[i64],
    ids: Ids<'_>,
    bags: usize,
    rules: &SparseRules,
) -> Result<SparseBags> {
    let n = ids.len();
    if indices.len() != 2 * n {
        return Err(Error::invalid("there must be two indices for each id")
            .with("indices", indices.len())
            .with("ids", n));
    }
    let mut counts = vec![0_i64; bags];
    let (mut ascends, mut before) = (true, 0);
    for at in 0..n {
        let (bag, id) = (indices[2 * at], ids.get(at));
        let Some(count) = usize::try_from(bag)
            .ok()
            .and_then(|bag| counts.get_mut(bag))
        else {
            return Err(
                Error::invalid("a row of sparse ids lies outside of their shape")
                    .with("entry", at)
                    .with("row", bag)
                    .with("rows", bags),
            );
        };
        if id >= rules.rows || (id < 0 && !rules.leaves_out) {
            let rows = rules.rows;
            return Err(Error::invalid(format!(
                "indices[{at}] = {id} is not in [0, {rows})"
            )));
        }
        *count += i64::from(id >= 0);
        ascends &= bag >= before;
        before = bag;
    }
    let divisors = divisors(&counts, rules);
    let mut end = 0;
    let ends: Vec<i64> = counts
        .iter()
        .map(|&count| {
            end += match count {
                0 => i64::from(rules.fills),
                _ => count,
            };
            end
        })
        .collect();
    let mut ordered = vec![0; usize::try_from(end).unwrap_or(0)];
    if ascends && ordered.len() == n && !counts.contains(&0) {
        (0..n).for_each(|at| ordered[at] = ids.get(at));
    } else {
        let mut next: Vec<usize> = std::iter::once(0)
            .chain(ends.iter().map(|&end| usize::try_from(end).unwrap_or(0)))
            .collect();
        for at in (0..n).filter(|&at| ids.get(at) >= 0) {
            // Checked above.
            let bag = usize::try_from(indices[2 * at]).unwrap_or(0);
            ordered[next[bag]] = ids.get(at);
            next[bag] += 1;
        }
    }
    Ok(SparseBags {
        ids: ordered,
        ends,
        divisors,
    })
}

/// The divisors of bags of so many ids.
fn divisors(counts: &[i64], rules: &SparseRules) -> Vec<f32> {
    let of_count = |count: i64| match rules.combiner {
        Combiner::Sum => f32::from(count > 0),
        Combiner::Mean => count as f32,
        Combiner::Root => (count as f32).sqrt(),
    };
    if rules.combiner == Combiner::Sum && !rules.fills {
        return Vec::new();
    }
    counts.iter().map(|&count| of_count(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: SparseRules = SparseRules {
        rows: 10,
        combiner: Combiner::Mean,
        leaves_out: false,
        fills: false,
    };

    fn made(rows: &[i64], ids: &[i64], bags: usize, rules: SparseRules) -> Result<SparseBags> {
        let indices: Vec<i64> = rows.iter().flat_map(|&row| [row, 0]).collect();
        sparse_bags(&indices, Ids::I64(ids), bags, &rules)
    }

    #[test]
    fn ids_come_in_the_order_of_their_bags() {
        let bags = made(&[0, 0, 2], &[7, 8, 9], 4, RULES).unwrap();
        assert_eq!(bags.ids, [7, 8, 9]);
        assert_eq!(bags.ends, [2, 2, 3, 3]);
        assert_eq!(bags.divisors, [2.0, 0.0, 1.0, 0.0]);
        let shuffled = made(&[2, 0, 0], &[9, 7, 8], 4, RULES).unwrap();
        assert_eq!(shuffled, bags);
        let none = made(&[], &[], 0, RULES).unwrap();
        assert_eq!(none, SparseBags::default());
    }

    #[test]
    fn empty_bags_are_filled_and_negative_ids_left_out() {
        let rules = SparseRules {
            leaves_out: true,
            fills: true,
            ..RULES
        };
        let bags = made(&[1, 1, 2], &[-1, 5, i64::MIN], 3, rules).unwrap();
        assert_eq!(bags.ids, [0, 5, 0]);
        assert_eq!(bags.ends, [1, 2, 3]);
        assert_eq!(bags.divisors, [0.0, 1.0, 0.0]);
        let sum = SparseRules {
            combiner: Combiner::Sum,
            ..rules
        };
        let bags = made(&[1, 1], &[4, 5], 2, sum).unwrap();
        assert_eq!(bags.divisors, [0.0, 1.0]);
        let root = SparseRules {
            combiner: Combiner::Root,
            ..RULES
        };
        let bags = made(&[0; 4], &[4; 4], 1, root).unwrap();
        assert_eq!(bags.divisors, [2.0]);
        let plain = SparseRules {
            combiner: Combiner::Sum,
            ..RULES
        };
        assert!(made(&[0], &[4], 1, plain).unwrap().divisors.is_empty());
    }

    #[test]
    fn what_lies_outside_is_refused() {
        for (rows, ids, message) in [
            (
                &[0, 1][..],
                &[3, 10][..],
                "indices[1] = 10 is not in [0, 10)",
            ),
            (&[0], &[-1], "indices[0] = -1"),
            (&[2], &[1], "row=2"),
            (&[-1], &[1], "row=-1"),
            (&[0], &[1, 2], "two indices"),
        ] {
            let error = made(rows, ids, 2, RULES).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        let ids = Ids::I32(&[3, 4]);
        assert_eq!(
            sparse_bags(&[0, 0, 0, 1], ids, 1, &RULES).unwrap().ids,
            [3, 4]
        );
    }
}
