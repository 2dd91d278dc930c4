//! The gradient of every distinct key of a pooled lookup, from the gradients of its bags.

use super::bags::Bags;
use super::columns::Columns;
use super::max_norm::MaxNorm;
use super::pooling::divided;
use super::restore::{out_of_range, shapes};
use super::sums::{with_sum, RowSum, WithSum};
use crate::pool::shares;
use crate::simd::{Level, Vectorized};
use crate::sort::Sizes;
use crate::{Error, Pool, Result};

/// A part of a reduction should add at least so many floats.
const LEAST_FLOATS: usize = 1 << 16;

/// The ids of a pooled lookup by the number that their keys have in `inverse`.
///
/// ```text
/// inverse: | 0 | 1 | 0 | -1 | 2 |     bags: 0 0 | 1 1 1
/// ends:    | 2 | 3 | 4 |              number -> where its occurrences end
/// bags:    | 0 | 1 | 0 | 1 |          the bag of each, by number, in order of occurrence
/// ```
/// No gradient is copied: a key's is added up from those of its bags when it is asked for.
pub(crate) struct ByKey<'a> {
    grads: Grads<'a>,
    dim: usize,
    ends: Vec<u32>,
    bags: Vec<u32>,
    /// The weight of each occurrence; empty without.
    weights: Vec<f32>,
    max_norm: Option<MaxNorm<'a>>,
    level: Level,
}

/// The gradients of the bags of a lookup.
enum Grads<'a> {
    Given(Columns<'a>),
    /// Divided by the divisors of the bags: `(b, dim)`.
    Divided(Vec<f32>),
}

impl Grads<'_> {
    /// That of a bag, `dim` floats.
    #[inline(always)]
    fn of(&self, bag: u32, dim: usize) -> &[f32] {
        match self {
            Grads::Given(columns) => columns.row(bag as usize),
            Grads::Divided(floats) => &floats[bag as usize * dim..][..dim],
        }
    }
}

impl<'a> ByKey<'a> {
    /// Sorts the ids of a lookup by key: `inverse (n)` and `grads (b, dim)`, the
    /// gradients of the vectors of `bags`. There are `distinct` keys.
    ///
    /// # Errors
    /// `InvalidArgument` for bags that are not those of the ids, an entry of `inverse` that is
    /// neither -1 nor the number of a key, for rows that are scaled down and are not one for each
    /// key, and for 2^31 ids or bags and more.
    pub(crate) fn new(
        pool: &Pool,
        grads: Columns<'a>,
        inverse: &[i32],
        bags: &Bags<'a>,
        distinct: usize,
    ) -> Result<ByKey<'a>> {
        bags.check(inverse.len())?;
        if let Some(max_norm) = &bags.max_norm {
            max_norm.expect_rows(distinct, grads.dim())?;
        }
        let most = inverse.len().max(bags.len());
        if i32::try_from(most).is_err() {
            return Err(
                Error::invalid("a batch must have fewer than 2^31 ids and bags").with("n", most),
            );
        }
        let mut sizes = Sizes::new(vec![0_u32; distinct]);
        let mut known = 0;
        for &number in inverse {
            if (number as usize) < distinct {
                sizes.count(number as usize);
                known += 1;
            } else if number != -1 {
                return Err(out_of_range(number, distinct));
            }
        }
        let mut places = sizes.places();
        let mut of = vec![0_u32; known];
        let mut weights = vec![0.0; bags.weights.map_or(0, |_| known)];
        for bag in 0..bags.len() {
            for at in bags.ids(&(bag..bag + 1)) {
                let number = inverse[at];
                if number < 0 {
                    continue;
                }
                let place = places.next(number as usize);
                of[place] = bag as u32;
                if let Some(given) = bags.weights {
                    weights[place] = given[at];
                }
            }
        }
        let grads_of = match bags.divisors {
            // A number that is divided by 1 keeps its bits.
            Some(divisors) if divisors.iter().any(|&divisor| divisor != 1.0) => {
                Grads::Divided(divided(pool, grads, divisors))
            }
            _ => Grads::Given(grads),
        };
        Ok(ByKey {
            grads: grads_of,
            dim: grads.dim(),
            ends: places.ends(),
            bags: of,
            weights,
            max_norm: bags.max_norm,
            level: Level::detect(),
        })
    }

    /// The gradient of a key, `dim` floats, which may be put into `scratch (dim)`: the sum of those
    /// of its bags, each times its weight, in order of occurrence, and through the scaling down of
    /// its row; zeros if it has none.
    #[inline]
    pub(crate) fn gradient<'s>(&'s self, number: usize, scratch: &'s mut [f32]) -> &'s [f32] {
        let bags = match number {
            0 => 0..self.ends[0] as usize,
            _ => self.ends[number - 1] as usize..self.ends[number] as usize,
        };
        let grad = |bag: u32| self.grads.of(bag, self.dim);
        match self.bags[bags.clone()] {
            [] => {
                scratch.fill(0.0);
                return scratch;
            }
            [only] if self.weights.is_empty() && self.max_norm.is_none() => return grad(only),
            ref of => self.level.run(Occurring {
                grads: &self.grads,
                dim: self.dim,
                bags: of,
                weights: self.weights.get(bags).unwrap_or(&[]),
                out: scratch,
            }),
        }
        if let Some(max_norm) = &self.max_norm {
            max_norm.gradient(self.level, number, scratch);
        }
        scratch
    }
}

/// The sum of the gradients of a key's bags.
struct Occurring<'a> {
    grads: &'a Grads<'a>,
    dim: usize,
    /// One or more.
    bags: &'a [u32],
    /// One for each bag, or none.
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Vectorized for Occurring<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        with_sum(self.dim, self);
    }
}

impl WithSum for Occurring<'_> {
    type Output = ();

    #[inline(always)]
    fn with(self, mut sum: impl RowSum) {
        let grad = |bag: u32| self.grads.of(bag, self.dim);
        let Some((&first, later)) = self.bags.split_first() else {
            return;
        };
        match self.weights.split_first() {
            None => {
                sum.set(grad(first));
                later.iter().for_each(|&bag| sum.add(grad(bag)));
            }
            Some((&weight, weights)) => {
                sum.set_times(grad(first), weight);
                for (&bag, &weight) in later.iter().zip(weights) {
                    sum.add_times(grad(bag), weight);
                }
            }
        }
        sum.put(self.out);
    }
}

/// Sums the gradients of bags over the keys that occur in them: `grads (b, dim)`, `inverse (n)`,
/// `out (u, dim)`.
///
/// A key's row is the sum over its ids, in the order in which they occur, of the gradient of the
/// id's bag, divided by the bag's divisor and times the id's weight: the same bits for any pool.
/// With a greatest norm it then goes through the scaling down of the row. A row without ids is
/// zeros, and entries of -1 are dropped.
///
/// # Errors
/// `InvalidArgument` for a wrong length, bags that are not those of the ids, rows with a greatest
/// norm that are not one for each key, or an entry of `inverse` that is neither -1 nor a row.
pub fn reduce_pooled(
    pool: &Pool,
    grads: Columns<'_>,
    inverse: &[i32],
    bags: &Bags<'_>,
    out: &mut [f32],
) -> Result<()> {
    let dim = grads.dim();
    let distinct = shapes(out.len(), dim, bags.len(), grads.len() * dim)?;
    let by_key = ByKey::new(pool, grads, inverse, bags, distinct)?;
    let parts = crate::pool::ranges(distinct, pool.parts(inverse.len() * dim, LEAST_FLOATS) * 4);
    pool.each(shares(out, dim, parts), |(range, out)| {
        let mut scratch = vec![0.0; dim];
        for (number, out) in range.zip(out.chunks_exact_mut(dim)) {
            out.copy_from_slice(by_key.gradient(number, &mut scratch));
        }
    });
    Ok(())
}
