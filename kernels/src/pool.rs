//! The threads that share the work of one batch; small work stays on the caller.

use crate::{Error, Kind, Result};
use parking_lot::Mutex;
use std::ops::Range;

/// A fixed number of threads, the caller's among them.
///
/// `Pool::new(1)` starts no thread at all. Nothing computed through a pool depends on its size: work is split so that
/// every value is made by one thread in an order that the batch alone decides.
pub struct Pool {
    threads: usize,
    helpers: Option<rayon::ThreadPool>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads` threads (1..=1024): the caller of each operation and `threads - 1` helpers.
    ///
    /// # Errors
    /// `InvalidArgument` outside the range, `ResourceExhausted` if the system starts no more threads.
    pub fn new(threads: usize) -> Result<Pool> {
        if !(1..=1024).contains(&threads) {
            return Err(Error::invalid("a pool has 1 to 1024 threads").with("threads", threads));
        }
        if threads == 1 {
            return Ok(Pool {
                threads,
                helpers: None,
            });
        }
        let helpers = rayon::ThreadPoolBuilder::new()
            .num_threads(threads - 1)
            .thread_name(|at| format!("mx_rec-{at}"))
            .build()
            .map_err(|cause| {
                Error::new(
                    Kind::ResourceExhausted,
                    "cannot start the threads of a pool",
                )
                .with("threads", threads)
                .with("cause", cause)
            })?;
        Ok(Pool {
            threads,
            helpers: Some(helpers),
        })
    }

    /// How many threads work at most, the caller's among them.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Into how many parts `n` items are worth being cut when a part should hold at least `least` of them.
    pub(crate) fn parts(&self, n: usize, least: usize) -> usize {
        (n / least.max(1)).clamp(1, self.threads)
    }

    /// Calls `f` once with every item, on any thread and in any order; returns when all are done.
    pub(crate) fn each<T: Send>(&self, items: Vec<T>, f: impl Fn(T) + Sync) {
        let helpers = match &self.helpers {
            Some(helpers) if items.len() > 1 => helpers,
            _ => return items.into_iter().for_each(f),
        };
        let wanted = self.threads.min(items.len()) - 1;
        let queue = Mutex::new(items.into_iter());
        let (queue, f) = (&queue, &f);
        let work = move || {
            let next = || queue.lock().next();
            while let Some(item) = next() {
                f(item);
            }
        };
        helpers.in_place_scope(|scope| {
            for _ in 0..wanted {
                scope.spawn(move |_| work());
            }
            work();
        });
    }
}

/// Cuts `0..n` into `parts` ranges whose lengths differ by at most one.
pub(crate) fn ranges(n: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.max(1);
    let (size, longer) = (n / parts, n % parts);
    let mut start = 0;
    (0..parts)
        .map(|part| {
            let range = start..start + size + usize::from(part < longer);
            start = range.end;
            range
        })
        .collect()
}

/// Cuts a slice of `width`-wide records along `ranges` of records, which must follow one another from 0.
pub(crate) fn split_mut<'a, T>(
    mut slice: &'a mut [T],
    width: usize,
    ranges: &[Range<usize>],
) -> Vec<&'a mut [T]> {
    ranges
        .iter()
        .map(|range| {
            let (part, rest) = std::mem::take(&mut slice).split_at_mut(range.len() * width);
            slice = rest;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once_by_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let sum = AtomicUsize::new(0);
            pool.each((1..=100).collect(), |item: usize| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 5050);
        }
    }

    #[test]
    fn ranges_cover_everything_without_overlap() {
        assert_eq!(ranges(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(ranges(0, 2), [0..0, 0..0]);
        let mut values = [1, 2, 3, 4, 5, 6];
        let parts = split_mut(&mut values, 2, &ranges(3, 2));
        assert_eq!(parts, [&mut [1, 2, 3, 4][..], &mut [5, 6][..]]);
    }

    #[test]
    fn a_pool_of_no_threads_is_refused() {
        assert_eq!(Pool::new(0).unwrap_err().kind(), Kind::InvalidArgument);
    }
}
