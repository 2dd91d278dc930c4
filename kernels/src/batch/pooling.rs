//! Pools rows: the sum of the rows of every bag, straight from where the rows are.

use super::bags::Bags;
use super::columns::Columns;
use super::max_norm::{dot, scale_down};
use super::restore::{out_of_range, shapes};
use super::sums::{with_sum, RowSum, WithSum};
use crate::mem::BLOCK;
use crate::pool::{ranges, shares, split_mut};
use crate::simd::{Level, Vectorized};
use crate::{Error, Pool, Result};
use std::ops::Range;

/// A part of a batch should add at least so many floats.
const LEAST_FLOATS: usize = 1 << 15;

/// Where the rows of the ids of a batch are. Ids are worked on in blocks of at most [`BLOCK`].
pub(crate) trait RowSource {
    /// Where a row is.
    type Place: Copy + Default;
    /// Why an id has none.
    type Error;

    /// Called for every block one block before [`RowSource::find`], in order.
    fn early(&mut self, ids: Range<usize>);

    /// Finds the rows of a block, and starts to bring them into the cache; `places` are as many as
    /// `ids`.
    fn find(&mut self, ids: Range<usize>, places: &mut [Self::Place]) -> Result<(), Self::Error>;

    /// The row of an id, at least `dim` floats, which may be put into `scratch (dim)`; `None`
    /// stands for zeros.
    fn row<'s>(
        &'s self,
        at: usize,
        place: Self::Place,
        scratch: &'s mut [f32],
    ) -> Option<&'s [f32]>;
}

/// Cuts bags and their vectors `out (b, dim)` into parts for the threads of a pool. Each part is
/// work of its own: [`pool_bags`] does it.
pub(crate) fn parts<'o>(
    pool: &Pool,
    bags: &Bags<'_>,
    dim: usize,
    out: &'o mut [f32],
) -> impl ExactSizeIterator<Item = (Range<usize>, &'o mut [f32])> + Send + use<'o> {
    let all = bags.ids(&(0..bags.len())).len() + bags.len();
    let parts = match pool.parts(all * dim, LEAST_FLOATS) {
        1 => 1,
        // A thread that is held up should not hold up the rest.
        parts => parts * 4,
    };
    shares(out, dim, bags.cut(parts))
}

/// Writes the vectors of the bags of `range`: the rows of a bag are scaled down to the greatest
/// norm and added in the order of its ids, beginning with 0, and the sum is divided by the bag's
/// divisor.
///
/// # Errors
/// That of the first id for which `rows` gives one; `out` is then unspecified.
pub(crate) fn pool_bags<R: RowSource>(
    level: Level,
    rows: R,
    bags: &Bags<'_>,
    range: Range<usize>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), R::Error> {
    level.run(PoolBags {
        rows,
        bags,
        range,
        dim,
        out,
    })
}

struct PoolBags<'a, R> {
    rows: R,
    bags: &'a Bags<'a>,
    range: Range<usize>,
    dim: usize,
    out: &'a mut [f32],
}

impl<R: RowSource> Vectorized for PoolBags<'_, R> {
    type Output = Result<(), R::Error>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        with_sum(self.dim, self)
    }
}

impl<R: RowSource> WithSum for PoolBags<'_, R> {
    type Output = Result<(), R::Error>;

    #[inline(always)]
    fn with(self, sum: impl RowSum) -> Self::Output {
        match self.bags.weights {
            None => self.pool(sum, |sum, row, _| sum.add(row)),
            Some(weights) => self.pool(sum, |sum, row, at| sum.add_times(row, weights[at])),
        }
    }
}

impl<R: RowSource> PoolBags<'_, R> {
    #[inline(always)]
    fn pool<S: RowSum>(
        self,
        mut sum: S,
        add: impl Fn(&mut S, &[f32], usize),
    ) -> Result<(), R::Error> {
        let PoolBags {
            mut rows,
            bags,
            range,
            dim,
            out,
        } = self;
        let ids = bags.ids(&range);
        let block = |start: usize| start.min(ids.end)..(start + BLOCK).min(ids.end);
        let mut scratch = vec![0.0; dim];
        let norm = bags.max_norm.map(|max_norm| max_norm.norm);
        let mut scaled = vec![0.0; norm.map_or(0, |_| dim)];
        // Of the block that is added and of the next one, in turns.
        let mut places = [[R::Place::default(); BLOCK]; 2];
        let first = block(ids.start);
        rows.early(first.clone());
        rows.early(block(first.end));
        rows.find(first.clone(), &mut places[0][..first.len()])?;
        let (mut turn, mut at) = (1, ids.start);
        // The block that is added.
        let mut added = at..at;
        for (bag, out) in range.zip(out.chunks_exact_mut(dim)) {
            let end = bags.ends[bag] as usize;
            sum.clear();
            while at < end {
                if at == added.end {
                    added = block(at);
                    rows.early(block(at + 2 * BLOCK));
                    let next = block(added.end);
                    rows.find(next.clone(), &mut places[turn][..next.len()])?;
                    turn = 1 - turn;
                }
                let stop = end.min(added.end);
                let of_part = &places[turn][at - added.start..stop - added.start];
                for (at, &place) in (at..stop).zip(of_part) {
                    let Some(row) = rows.row(at, place, &mut scratch) else {
                        continue;
                    };
                    match norm {
                        None => add(&mut sum, row, at),
                        Some(norm) => {
                            scale_down(&row[..dim], norm, &mut scaled);
                            add(&mut sum, &scaled, at);
                        }
                    }
                }
                at = stop;
            }
            sum.put(out);
            if let Some(divisors) = bags.divisors {
                divide(out, divisors[bag]);
            }
        }
        Ok(())
    }
}

/// Divides a row by a bag's divisor; zeros for 0.
#[inline(always)]
fn divide(row: &mut [f32], divisor: f32) {
    if divisor == 0.0 {
        row.fill(0.0);
        return;
    }
    row.iter_mut().for_each(|value| *value /= divisor);
}

/// The rows of distinct keys, `(u, dim)`, and for each id its place among them.
struct RestoredRows<'a> {
    rows: &'a [f32],
    inverse: &'a [i32],
    dim: usize,
}

impl RowSource for RestoredRows<'_> {
    type Place = i32;
    type Error = Error;

    #[inline(always)]
    fn early(&mut self, _: Range<usize>) {}

    #[inline(always)]
    fn find(&mut self, ids: Range<usize>, places: &mut [i32]) -> Result<()> {
        let distinct = self.rows.len() / self.dim;
        for (place, &of_id) in places.iter_mut().zip(&self.inverse[ids]) {
            if of_id != -1 && (of_id as usize) >= distinct {
                return Err(out_of_range(of_id, distinct));
            }
            *place = of_id;
        }
        Ok(())
    }

    #[inline(always)]
    fn row<'s>(&'s self, _: usize, place: i32, _: &'s mut [f32]) -> Option<&'s [f32]> {
        let start = usize::try_from(place).ok()? * self.dim;
        self.rows.get(start..start + self.dim)
    }
}

/// Pools the rows of distinct keys: `rows (u, dim)`, `inverse (n)`, `out (b, dim)`; an entry of -1
/// adds nothing.
///
/// The vector of a bag is the sum of the rows of its ids, each scaled down to the greatest norm and
/// times its weight, in the order of the ids, divided by the bag's divisor: the same bits for any
/// pool.
///
/// # Errors
/// `InvalidArgument` for a wrong length, `dim == 0`, bags that are not those of the ids, or an
/// entry of `inverse` that is neither -1 nor a row.
pub fn restore_pooled(
    pool: &Pool,
    rows: &[f32],
    dim: usize,
    inverse: &[i32],
    bags: &Bags<'_>,
    out: &mut [f32],
) -> Result<()> {
    shapes(rows.len(), dim, bags.len(), out.len())?;
    bags.check(inverse.len())?;
    let level = Level::detect();
    pool.try_each(parts(pool, bags, dim, out), |(range, out)| {
        let rows = RestoredRows { rows, inverse, dim };
        pool_bags(level, rows, bags, range, dim, out)
    })
}

/// What [`restore_pooled`] changes with the weight of each id, times the gradients of its results:
/// `rows (u, dim)`, `inverse (n)`, `grads (b, dim)`, `out (n)`. The divisors count as constants.
///
/// # Errors
/// As [`restore_pooled`].
pub fn weight_gradients(
    pool: &Pool,
    rows: &[f32],
    dim: usize,
    inverse: &[i32],
    bags: &Bags<'_>,
    grads: &[f32],
    out: &mut [f32],
) -> Result<()> {
    shapes(rows.len(), dim, bags.len(), grads.len())?;
    bags.check(inverse.len())?;
    if out.len() != inverse.len() {
        return Err(Error::invalid("there must be one weight for each id")
            .with("weights", out.len())
            .with("ids", inverse.len()));
    }
    let distinct = rows.len() / dim;
    let parts = bags.cut(pool.parts(inverse.len() * dim, LEAST_FLOATS));
    let ids: Vec<Range<usize>> = parts.iter().map(|part| bags.ids(part)).collect();
    let level = Level::detect();
    let work = parts.into_iter().zip(split_mut(out, 1, &ids));
    pool.try_each(work, |(range, out): (Range<usize>, &mut [f32])| {
        let (mut scratch, mut scaled) = (vec![0.0; dim], vec![0.0; dim]);
        let start = bags.ids(&range).start;
        for bag in range {
            scratch.copy_from_slice(&grads[bag * dim..(bag + 1) * dim]);
            if let Some(divisors) = bags.divisors {
                divide(&mut scratch, divisors[bag]);
            }
            for at in bags.ids(&(bag..bag + 1)) {
                let place = inverse[at];
                out[at - start] = match usize::try_from(place) {
                    Ok(place) if place < distinct => level.run(Dot {
                        row: &rows[place * dim..(place + 1) * dim],
                        norm: bags.max_norm.map(|max_norm| max_norm.norm),
                        scaled: &mut scaled,
                        other: &scratch,
                    }),
                    _ if place == -1 => 0.0,
                    _ => return Err(out_of_range(place, distinct)),
                };
            }
        }
        Ok(())
    })
}

/// The scalar product of a row, scaled down to the greatest norm, and another one.
struct Dot<'a> {
    row: &'a [f32],
    norm: Option<f32>,
    scaled: &'a mut [f32],
    other: &'a [f32],
}

impl Vectorized for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        match self.norm {
            None => dot(self.row, self.other),
            Some(norm) => {
                scale_down(self.row, norm, self.scaled);
                dot(self.scaled, self.other)
            }
        }
    }
}

/// Divides every row of `grads (b, dim)` by its divisor, on all threads of a pool.
pub(super) fn divided(pool: &Pool, grads: Columns<'_>, divisors: &[f32]) -> Vec<f32> {
    let dim = grads.dim();
    let mut out = vec![0.0; grads.len() * dim];
    let parts = ranges(divisors.len(), pool.parts(out.len(), LEAST_FLOATS));
    pool.each(shares(&mut out, dim, parts), |(range, out)| {
        for (bag, out) in range.zip(out.chunks_exact_mut(dim)) {
            out.copy_from_slice(grads.row(bag));
            divide(out, divisors[bag]);
        }
    });
    out
}
