//! Threads that take part in a call of another thread if they wake up before it ends.

use super::apart::Apart;
use crate::{Error, Kind, Result};
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};

/// So long a helper stays awake after its work, and a caller before it sleeps until its helpers are
/// done. To wake a thread takes 50 microseconds, and several hundred on a virtual machine whose
/// other processor sleeps: as long as many a call.
const AWAKE: Duration = Duration::from_micros(100);

/// Threads that wait for work.
pub(super) struct Helpers {
    threads: rayon::ThreadPool,
    apart: Apart,
    seen: Arc<Seen>,
}

/// What helpers and callers see of each other.
#[derive(Default)]
struct Seen {
    /// How many calls there have been: a helper that stays awake after one looks for the next.
    calls: AtomicUsize,
    /// How many helpers are at work or stay awake.
    awake: AtomicUsize,
}

impl Helpers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system starts no more threads.
    pub(super) fn start(count: usize) -> Result<Helpers> {
        let apart = Apart::of(count);
        let known = apart.clone();
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .start_handler(move |at| known.is_this_thread(at))
            .thread_name(|at| format!("mx_rec-{at}"))
            .build()
            .map_err(|cause| {
                let message = "cannot start the threads of a pool";
                Error::new(Kind::ResourceExhausted, message)
                    .with("threads", count + 1)
                    .with("cause", cause)
            })?;
        Ok(Helpers {
            threads,
            apart,
            seen: Arc::default(),
        })
    }

    /// Begins `job`, which must not panic, and waits for nothing.
    pub(super) fn begin(&self, job: impl FnOnce() + Send + 'static) {
        self.threads.spawn(job);
    }

    /// Calls `run` on the caller's thread and on at most `wanted` helpers; returns when none of
    /// these calls runs any more.
    ///
    /// A helper that has not begun when the caller's own call returns takes no part: nobody waits
    /// for a thread to wake up. So each call of `run` has to do all that the others have not begun.
    ///
    /// # Panics
    /// As `run` did, on whatever thread.
    pub(super) fn share(&self, wanted: usize, run: &(dyn Fn() + Sync)) {
        let call = Call::of(run);
        {
            let _open = Open(&call);
            let number = self.seen.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let begin = || (0..wanted).for_each(|_| self.begin(self.part(&call, number)));
            match self.seen.awake.load(Ordering::Relaxed) < wanted {
                true => self.apart.wake_elsewhere(begin),
                false => begin(),
            }
            run();
        }
        let panic = call.panic.lock().take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// A helper's part of a call, and its wait for the next one.
    fn part(&self, call: &Arc<Call>, number: usize) -> impl FnOnce() + Send + 'static {
        let (call, seen) = (Arc::clone(call), Arc::clone(&self.seen));
        move || {
            if call.help() {
                seen.awake.fetch_add(1, Ordering::Relaxed);
                drop(call);
                awake_while(|| seen.calls.load(Ordering::Relaxed) == number);
                seen.awake.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The state of a call that helpers can begin no more; less than this, and besides it, the number
/// of those at work.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A call that helpers may take part in while it is open.
struct Call {
    /// Not to be used but by helpers that `state` counts.
    run: &'static (dyn Fn() + Sync),
    state: AtomicUsize,
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Call {
    /// A call that is open. The caller keeps an [`Open`] of it for no longer than `run` lives.
    fn of(run: &(dyn Fn() + Sync)) -> Arc<Call> {
        type Borrowed<'r> = &'r (dyn Fn() + Sync + 'r);
        // SAFETY: `run` is called by `help` alone, between a count in `state` while it is open and
        // its end. `share` makes an `Open` at once, does not give it away, and while it is dropped,
        // also by a panic, waits until all counts are gone and no more can come; `run` outlives it.
        let run = unsafe { std::mem::transmute::<Borrowed<'_>, Borrowed<'static>>(run) };
        Arc::new(Call {
            run,
            state: AtomicUsize::new(0),
            caller: std::thread::current(),
            panic: Mutex::new(None),
        })
    }

    /// Takes part, unless the call is closed; whether it did.
    fn help(&self) -> bool {
        let entered = |state| (state < CLOSED).then_some(state + 1);
        let enter = (self.state).fetch_update(Ordering::AcqRel, Ordering::Relaxed, entered);
        if enter.is_err() {
            return false;
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(self.run)) {
            *self.panic.lock() = Some(panic);
        }
        if self.state.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            self.caller.unpark();
        }
        true
    }

    /// Lets no helper begin any more, and waits for those at work.
    fn close(&self) {
        let is_at_work = || self.state.load(Ordering::Acquire) != CLOSED;
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        awake_while(is_at_work);
        while is_at_work() {
            std::thread::park();
        }
    }
}

/// Closes a call when it is dropped.
struct Open<'c>(&'c Call);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Stays awake, giving way to threads that have work, until something has changed or [`AWAKE`] is
/// over.
fn awake_while(is_unchanged: impl Fn() -> bool) {
    let begin = Instant::now();
    while is_unchanged() && begin.elapsed() < AWAKE {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn nobody_waits_for_a_helper_that_has_not_begun() {
        let helpers = Helpers::start(1).unwrap();
        let (begin, begun) = channel();
        let (end, ended) = channel::<()>();
        helpers.begin(move || {
            begin.send(()).unwrap();
            ended.recv().unwrap_err();
        });
        begun.recv().unwrap();
        // The only helper is at work elsewhere until `end` is dropped.
        let calls = AtomicUsize::new(0);
        helpers.share(1, &|| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        drop(end);
        // It finds the call closed; what it then begins is the next one.
        let (begin, begun) = channel();
        helpers.begin(move || begin.send(()).unwrap());
        begun.recv().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_caller_waits_for_helpers_at_work() {
        let helpers = Helpers::start(2).unwrap();
        let caller = std::thread::current().id();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        helpers.share(2, &|| {
            if std::thread::current().id() == caller {
                while begun.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
                return;
            }
            begun.fetch_add(1, Ordering::Relaxed);
            // Longer than a caller stays awake.
            std::thread::sleep(20 * AWAKE);
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 2);
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller_after_all_have_ended() {
        let helpers = Helpers::start(1).unwrap();
        let caller = std::thread::current().id();
        for of_caller in [true, false] {
            let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let run = || {
                begun.fetch_add(1, Ordering::Relaxed);
                while begun.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
                let is_caller = std::thread::current().id() == caller;
                assert_ne!(is_caller, of_caller, "this one");
                std::thread::sleep(20 * AWAKE);
                done.fetch_add(1, Ordering::Relaxed);
            };
            let ended = catch_unwind(AssertUnwindSafe(|| helpers.share(1, &run)));
            assert!(ended.is_err());
            assert_eq!(done.into_inner(), 1);
        }
    }
}
