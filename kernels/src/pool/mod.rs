//! The threads that share the work of one batch; small work stays on the caller.

#[cfg(not(feature = "model"))]
mod apart;
#[cfg(not(feature = "model"))]
#[expect(
    unsafe_code,
    reason = "a thread takes part in a call whose caller does not wait for it to wake up"
)]
mod helpers;
mod lists;

use crate::sync::Mutex;
use crate::{Error, Result};
#[cfg(not(feature = "model"))]
use helpers::Helpers;
use lists::Lists;
use smallvec::SmallVec;
use std::ops::Range;
#[cfg(not(feature = "model"))]
use std::sync::{
    atomic::{AtomicI32, AtomicUsize, Ordering},
    OnceLock,
};

/// So many callers of [`Pool::undivided`] remember whether they met others.
#[cfg(not(feature = "model"))]
const REMEMBERED: i32 = 4;

/// A fixed number of threads, the caller's among them.
///
/// `Pool::new(1)` starts no thread at all; larger ones start one more for jobs that nobody waits
/// for, with the first of these. Nothing computed through a pool depends on its size:
/// work is split so that every value is made by one thread in an order that the batch alone
/// decides.
pub struct Pool {
    threads: usize,
    /// The model has threads of its own.
    #[cfg(not(feature = "model"))]
    helpers: Option<Helpers>,
    /// The callers of [`Pool::undivided`].
    #[cfg(not(feature = "model"))]
    callers: Callers,
    /// One thread for what nobody waits for, from the first such job on.
    #[cfg(not(feature = "model"))]
    beside: OnceLock<Option<Helpers>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads` threads (1..=1024): the caller of each operation and `threads - 1`
    /// helpers.
    ///
    /// # Errors
    /// `InvalidArgument` outside the range, `ResourceExhausted` if the system starts no more
    /// threads.
    pub fn new(threads: usize) -> Result<Pool> {
        if !(1..=1024).contains(&threads) {
            return Err(Error::invalid("a pool has 1 to 1024 threads").with("threads", threads));
        }
        Ok(Pool {
            threads,
            #[cfg(not(feature = "model"))]
            helpers: match threads {
                1 => None,
                _ => Some(Helpers::start(threads - 1)?),
            },
            ..Pool::alone()
        })
    }

    /// A pool of the caller's thread alone.
    pub(crate) fn alone() -> Pool {
        Pool {
            threads: 1,
            #[cfg(not(feature = "model"))]
            helpers: None,
            #[cfg(not(feature = "model"))]
            callers: Callers::default(),
            #[cfg(not(feature = "model"))]
            beside: OnceLock::new(),
        }
    }

    /// How many threads work at most, the caller's among them.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Into how many parts `n` items are worth being cut when a part should hold at least `least`
    /// of them.
    pub(crate) fn parts(&self, n: usize, least: usize) -> usize {
        (n / least.max(1)).clamp(1, self.threads)
    }

    /// Calls `f` once with every item, on any thread and in any order; returns when all are done.
    pub(crate) fn each<T: Send, I: ExactSizeIterator<Item = T> + Send>(
        &self,
        items: impl IntoIterator<Item = T, IntoIter = I>,
        f: impl Fn(T) + Sync,
    ) {
        let done = self.try_each(items, |item| {
            f(item);
            Ok(())
        });
        debug_assert!(done.is_ok());
    }

    /// Calls `f` with the items, on any thread, until one fails; returns when no call runs any
    /// more.
    ///
    /// Neighbouring items are begun by the threads of one processor, the same one in each call
    /// that has as many: it may have what they need in its caches. After a failure no later items
    /// are begun. So every item before one that fails is worked on, and which error is returned
    /// does not depend on the threads.
    ///
    /// # Errors
    /// That of the first item, in the order of `work`, for which `f` fails.
    pub fn try_each<T: Send, I: ExactSizeIterator<Item = T> + Send>(
        &self,
        work: impl IntoIterator<Item = T, IntoIter = I>,
        f: impl Fn(T) -> Result<()> + Sync,
    ) -> Result<()> {
        let mut work = work.into_iter();
        if self.threads == 1 || work.len() <= 1 {
            return work.try_for_each(f);
        }
        let lists = ranges(work.len(), self.threads.min(work.len()));
        let list = |numbers: Range<usize>| work.by_ref().take(numbers.len()).collect();
        let lists = lists.into_iter().map(list).collect();
        self.try_each_of(lists, f)
    }

    /// [`Pool::try_each`] of items that have been dealt to lists, at most one for each thread: the
    /// same processor begins with the same list in each call. The items' order is that of the
    /// lists.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn try_each_of<T: Send>(
        &self,
        lists: Vec<Vec<T>>,
        f: impl Fn(T) -> Result<()> + Sync,
    ) -> Result<()> {
        if self.threads == 1 {
            return lists.into_iter().flatten().try_for_each(f);
        }
        let lists = Lists::new(lists);
        let wanted = self.threads.min(lists.len()).saturating_sub(1);
        let lists = Mutex::new(lists);
        let run = || {
            let processor = processor();
            let next = || lists.lock().next(processor);
            while let Some((at, item)) = next() {
                if let Err(error) = f(item) {
                    // Not under the lock.
                    let later = lists.lock().fail(at, error);
                    drop(later);
                }
            }
        };
        self.everywhere(wanted, &run);
        lists.into_inner().failure().map_or(Ok(()), Err)
    }
}

/// The number of the processor that the calling thread runs on, at this moment.
#[cfg(not(feature = "model"))]
fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// The model has no processors.
#[cfg(feature = "model")]
fn processor() -> usize {
    0
}

#[cfg(not(feature = "model"))]
impl Pool {
    /// Calls `run` on the caller's thread and on as many helpers as have begun before that call
    /// returns, at most so many; returns when all calls have.
    fn everywhere(&self, wanted: usize, run: &(impl Fn() + Sync)) {
        match &self.helpers {
            Some(helpers) => helpers.share(wanted, run),
            None => run(),
        }
    }

    /// Does work that takes more time of all threads together in parts than as a whole. `work` gets
    /// this pool if its threads would have nothing else to do, and one of the caller's thread alone
    /// if there are, or lately were, as many callers at the same time as there are threads.
    pub(crate) fn undivided<R>(&self, work: impl FnOnce(&Pool) -> R) -> R {
        if self.threads == 1 {
            return work(self);
        }
        let Callers {
            at_work,
            begun,
            balance,
        } = &self.callers;
        let before = begun.fetch_add(1, Ordering::Relaxed) + 1;
        let others = at_work.fetch_add(1, Ordering::Relaxed);
        let _done = Done { at_work };
        let result = match others + 1 >= self.threads || balance.load(Ordering::Relaxed) > 0 {
            true => work(&Pool::alone()),
            false => work(self),
        };
        let later = begun.load(Ordering::Relaxed).wrapping_sub(before);
        let change = match others + 1 + later >= self.threads {
            true => 1,
            false => -1,
        };
        // A change of somebody else's that is lost matters to nobody.
        let new = balance.load(Ordering::Relaxed) + change;
        balance.store(new.clamp(-REMEMBERED, REMEMBERED), Ordering::Relaxed);
        result
    }

    /// Begins `job`, which must not panic, on a thread of its own, and waits for nothing. Jobs run
    /// one after the other, beside the threads of other work; where the system starts no thread
    /// for them they never run.
    pub(crate) fn beside(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(thread) = self.beside.get_or_init(|| Helpers::start(1).ok()) {
            thread.begin(job);
        }
    }
}

#[cfg(feature = "model")]
impl Pool {
    /// The model always divides it.
    pub(crate) fn undivided<R>(&self, work: impl FnOnce(&Pool) -> R) -> R {
        work(self)
    }

    /// The model has no thread for it.
    pub(crate) fn beside(&self, job: impl FnOnce()) {
        job();
    }

    fn everywhere(&self, wanted: usize, run: &(impl Fn() + Sync)) {
        shuttle::thread::scope(|scope| {
            for _ in 0..wanted {
                scope.spawn(run);
            }
            run();
        });
    }
}

/// The callers of [`Pool::undivided`].
#[cfg(not(feature = "model"))]
#[derive(Default)]
struct Callers {
    at_work: AtomicUsize,
    begun: AtomicUsize,
    /// Of the last ones, those that met enough others less those that did not.
    balance: AtomicI32,
}

/// A caller's work, which is done when this is dropped.
#[cfg(not(feature = "model"))]
struct Done<'c> {
    at_work: &'c AtomicUsize,
}

#[cfg(not(feature = "model"))]
impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What each part of some work has; of one or two parts without memory of its own.
pub(crate) type Parts<T> = SmallVec<[T; 2]>;

/// Cuts `0..n` into `parts` ranges whose lengths differ by at most one.
pub(crate) fn ranges(n: usize, parts: usize) -> Parts<Range<usize>> {
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

/// Cuts a slice of `width`-wide records along `ranges` of records, which must follow one another
/// from 0.
pub(crate) fn split_mut<'a, T>(
    mut slice: &'a mut [T],
    width: usize,
    ranges: &[Range<usize>],
) -> Parts<&'a mut [T]> {
    ranges
        .iter()
        .map(|range| {
            let (part, rest) = std::mem::take(&mut slice).split_at_mut(range.len() * width);
            slice = rest;
            part
        })
        .collect()
}

/// [`split_mut`] along ranges that come with the parts.
pub(crate) fn shares<T: Send>(
    slice: &mut [T],
    width: usize,
    ranges: Parts<Range<usize>>,
) -> impl ExactSizeIterator<Item = (Range<usize>, &mut [T])> + Send {
    let parts = split_mut(slice, width, &ranges);
    ranges.into_iter().zip(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once_by_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let sum = AtomicUsize::new(0);
            pool.each(1..101, |item: usize| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 5050);
        }
    }

    #[test]
    fn lists_of_any_lengths_are_worked_off_by_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for lengths in [&[][..], &[0], &[7], &[0, 9], &[40, 1, 0, 3], &[2, 30]] {
                let begun: Vec<AtomicUsize> = (0..lengths.iter().sum::<usize>())
                    .map(|_| AtomicUsize::new(0))
                    .collect();
                let mut items = begun.iter();
                let list = |&len| items.by_ref().take(len).collect();
                let lists = lengths.iter().take(threads).map(list).collect();
                let count = |item: &AtomicUsize| {
                    item.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                pool.try_each_of(lists, count).unwrap();
                let expected = lengths.iter().take(threads).sum();
                let done = begun.iter().map(|one| one.load(Ordering::Relaxed));
                let mut all = vec![0; begun.len()];
                all[..expected].fill(1);
                assert_eq!(done.collect::<Vec<_>>(), all, "{threads} {lengths:?}");
            }
        }
    }

    #[test]
    fn calls_of_several_threads_at_the_same_time_do_all_their_work() {
        let pool = Pool::new(3).unwrap();
        std::thread::scope(|scope| {
            for caller in 1..=4_usize {
                let pool = &pool;
                scope.spawn(move || {
                    for call in 0..500 {
                        let sum = AtomicUsize::new(0);
                        pool.each(0..call % 9, |at: usize| {
                            sum.fetch_add(at + caller, Ordering::Relaxed);
                        });
                        let expected: usize = (0..call % 9).map(|at| at + caller).sum();
                        assert_eq!(sum.into_inner(), expected);
                    }
                });
            }
        });
    }

    #[test]
    fn undivided_work_has_all_threads_until_enough_callers_come_at_the_same_time() {
        let pool = Pool::new(2).unwrap();
        let threads_of_one = || pool.undivided(Pool::threads);
        assert_eq!((threads_of_one(), threads_of_one()), (2, 2));
        // A caller within another one's work stands for one on another thread.
        let nested = || pool.undivided(|_| pool.undivided(Pool::threads));
        assert_eq!(nested(), 1);
        for _ in 0..REMEMBERED {
            nested();
        }
        // They are expected to come again, until they did not for some time.
        let threads: Vec<usize> = (0..=REMEMBERED).map(|_| threads_of_one()).collect();
        assert_eq!(threads, [1, 1, 1, 1, 2]);
        // More threads than callers: there is something left to divide it for.
        let pool = Pool::new(3).unwrap();
        let nested = || pool.undivided(|_| pool.undivided(Pool::threads));
        assert_eq!((0..9).map(|_| nested()).max(), Some(3));
        assert_eq!(Pool::new(1).unwrap().undivided(Pool::threads), 1);
    }

    #[test]
    fn the_first_item_that_fails_gives_the_error_on_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for round in 0..200_usize {
                let begun = AtomicUsize::new(0);
                let (first, second) = (round % 7, round % 7 + 1 + round % 3);
                let error = pool.try_each(0..40, |at: usize| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    if at != first && at != second {
                        return Ok(());
                    }
                    if at == first {
                        // The later one is often faster.
                        std::thread::yield_now();
                    }
                    Err(Error::invalid("no").with("at", at))
                });
                assert!(error
                    .unwrap_err()
                    .to_string()
                    .contains(&format!("at={first}")));
                assert!(begun.into_inner() > first);
            }
        }
    }

    #[test]
    fn nothing_is_begun_after_a_failure_and_all_is_where_nothing_fails() {
        let pool = Pool::new(1).unwrap();
        let begun = AtomicUsize::new(0);
        let count = |fails: usize| {
            begun.store(0, Ordering::Relaxed);
            let done = pool.try_each(0..10, |at: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                match at == fails {
                    true => Err(Error::invalid("no")),
                    false => Ok(()),
                }
            });
            (done.is_ok(), begun.load(Ordering::Relaxed))
        };
        assert_eq!(count(3), (false, 4));
        assert_eq!(count(10), (true, 10));
        assert!(Pool::new(3)
            .unwrap()
            .try_each(Vec::<u8>::new(), |_| Ok(()))
            .is_ok());
    }

    #[test]
    fn a_panic_of_an_item_reaches_the_caller() {
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let call = || pool.each(vec![1, 2, 3], |at| assert_ne!(at, 2, "item two"));
            let call = std::panic::AssertUnwindSafe(call);
            assert!(std::panic::catch_unwind(call).is_err());
            let sum = AtomicUsize::new(0);
            pool.each(vec![1, 2, 3], |at| {
                sum.fetch_add(at, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 6);
        }
    }

    #[test]
    fn ranges_cover_everything_without_overlap() {
        assert_eq!(ranges(7, 3)[..], [0..3, 3..5, 5..7]);
        assert_eq!(ranges(0, 2)[..], [0..0, 0..0]);
        let mut values = [1, 2, 3, 4, 5, 6];
        let parts = split_mut(&mut values, 2, &ranges(3, 2));
        assert_eq!(parts[..], [&mut [1, 2, 3, 4][..], &mut [5, 6][..]]);
    }

    #[test]
    fn a_pool_of_no_threads_is_refused() {
        assert_eq!(Pool::new(0).unwrap_err().kind(), Kind::InvalidArgument);
    }
}
