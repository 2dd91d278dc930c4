//! The gradient of every distinct key of a lookup: of most keys the only one they have, of the
//! others a sum.

use super::columns::Columns;
use super::restore::out_of_range;
use super::turns::Turns;
use crate::{Error, Pool, Result};

/// A part of a lookup should sum at least so many floats.
const LEAST_FLOATS: usize = 1 << 15;

/// Marks the number of a sum.
const SUM: u32 = 1 << 31;

/// No gradient.
const NOTHING: u32 = u32::MAX;

/// The gradients of one lookup by the number that its keys have in `inverse`.
///
/// ```text
/// inverse: | 0 | 1 | 0 | -1 | 2 |
/// source:  | SUM + 0 | 1 | 4 |        number -> the position of its only gradient, or its sum
/// firsts:  | 0 |                      sum -> the position of its first gradient
/// sums:    | gradient 0 + gradient 2 |
/// ```
pub(crate) struct Summed<'a> {
    grads: Columns<'a>,
    source: Vec<u32>,
    firsts: Vec<u32>,
    sums: Vec<f32>,
    zeros: Vec<f32>,
}

/// A lookup to sum: `inverse (n)`, gradients `(n, dim)` and how many distinct keys there are. `n` is
/// below 2^31.
pub(crate) type Spread<'a> = (&'a [i32], Columns<'a>, usize);

impl<'a> Summed<'a> {
    /// Sums the gradients of the keys of every lookup, in order of occurrence.
    ///
    /// # Errors
    /// `InvalidArgument` for an entry of `inverse` that is neither -1 nor the number of a key.
    pub(crate) fn all(pool: &Pool, lookups: &[Spread<'a>]) -> Result<Vec<Summed<'a>>> {
        let mut made: Vec<_> = lookups.iter().map(|_| Err(Error::invalid(""))).collect();
        let work: Vec<_> = lookups.iter().zip(&mut made).collect();
        pool.each(work, |(&lookup, made)| *made = Self::unsummed(lookup));
        let mut made = made.into_iter().collect::<Result<Vec<_>>>()?;
        let mut work = Vec::new();
        for (&(inverse, grads, _), made) in lookups.iter().zip(&mut made) {
            let parts = pool.parts(made.sums.len(), LEAST_FLOATS);
            let (source, firsts) = (&made.source[..], &made.firsts[..]);
            let sums = Turns::deal(&mut made.sums, grads.dim(), parts);
            work.extend(sums.into_iter().map(|sums| Share {
                inverse,
                grads,
                source,
                firsts,
                sums,
            }));
        }
        pool.each(work, Share::sum);
        Ok(made)
    }

    /// The gradient of a key, `dim` floats; zeros if it has none.
    #[inline(always)]
    pub(crate) fn gradient(&self, number: usize) -> &[f32] {
        let (source, dim) = (self.source[number], self.zeros.len());
        if source < SUM {
            return self.grads.row(source as usize);
        }
        let at = (source ^ SUM) as usize * dim;
        self.sums.get(at..at + dim).unwrap_or(&self.zeros)
    }

    /// Finds which keys have several gradients; their sums are still to be made.
    fn unsummed((inverse, grads, distinct): Spread<'a>) -> Result<Summed<'a>> {
        let mut source = vec![NOTHING; distinct];
        let mut firsts = Vec::new();
        for (position, &number) in inverse.iter().enumerate() {
            match source.get_mut(number as usize) {
                Some(source) if *source == NOTHING => *source = position as u32,
                Some(source) if *source < SUM => {
                    let sum = firsts.len() as u32;
                    firsts.push(std::mem::replace(source, SUM | sum));
                }
                Some(_) => {}
                None if number == -1 => {}
                None => return Err(out_of_range(number, distinct)),
            }
        }
        let dim = grads.dim();
        Ok(Summed {
            grads,
            sums: vec![0.0; firsts.len() * dim],
            zeros: vec![0.0; dim],
            source,
            firsts,
        })
    }
}

/// The sums of a lookup that one thread makes.
struct Share<'a, 's> {
    inverse: &'a [i32],
    grads: Columns<'a>,
    source: &'s [u32],
    firsts: &'s [u32],
    sums: Turns<'s>,
}

impl Share<'_, '_> {
    fn sum(mut self) {
        if self.sums.len() == 0 {
            return;
        }
        for (position, &number) in self.inverse.iter().enumerate() {
            let sum = match self.source.get(number as usize) {
                Some(&source) if source >= SUM => (source ^ SUM) as usize,
                _ => continue,
            };
            if let Some(own) = self.sums.own(sum) {
                let grad = self.grads.row(position);
                let is_first = self.firsts[sum] == position as u32;
                self.sums.add(own, grad, is_first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_those_of_reduce_bit_for_bit_on_any_number_of_threads() {
        let (dim, n, distinct) = (24, 20_000, 2_000);
        let grads: Vec<f32> = (0..n * dim).map(|at| (at as f32 * 0.37).sin()).collect();
        let many: Vec<i32> = (0..n)
            .map(|at| (at * at % (distinct - 5)) as i32 - 1)
            .collect();
        let few: Vec<i32> = (0..1500).rev().chain([7, 3, 7, -1]).collect();
        let columns = |grads| Columns::all(grads, dim).unwrap();
        let lookups: [Spread<'_>; 3] = [
            (&many, columns(&grads), distinct),
            (&few, columns(&grads[..few.len() * dim]), distinct),
            (&[], columns(&[]), 0),
        ];
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let summed = Summed::all(&pool, &lookups).unwrap();
            for ((inverse, grads, distinct), summed) in lookups.into_iter().zip(summed) {
                let mut expected = vec![7.0; distinct * dim];
                super::super::reduce_columns(&pool, grads, inverse, &mut expected).unwrap();
                for (number, expected) in expected.chunks_exact(dim).enumerate() {
                    let same = summed.gradient(number).iter().zip(expected);
                    assert!(same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
        }
    }

    #[test]
    fn entries_that_are_no_number_are_refused() {
        let pool = Pool::new(1).unwrap();
        let made = |inverse: &[i32], distinct| {
            let grads = vec![1.0; inverse.len()];
            let grads = Columns::all(&grads, 1).unwrap();
            Summed::all(&pool, &[(inverse, grads, distinct)]).is_ok()
        };
        for bad in [2, -2, i32::MIN, i32::MAX] {
            assert!(!made(&[0, bad, -1], 2), "{bad}");
        }
        assert!(made(&[], 0) && made(&[-1], 0));
    }
}
