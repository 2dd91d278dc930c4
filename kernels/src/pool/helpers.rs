//! Threads that help callers with their work as far as they are free: a caller never waits for a
//! helper that has not begun.

use crate::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// How often a thread looks for work, or for the end of others' work, before it sleeps: some ten
/// microseconds in all. Waking a thread takes several times as long, and the parallel parts of a
/// verb follow each other closely. It does not yield meanwhile: where all processors are busy, a
/// thread that yields may wait for milliseconds, one that is woken does not.
const LOOKS: usize = 32;

/// What a caller wants done on several threads at once.
type Work = dyn Fn() + Sync;

/// Threads, and what they are asked to do.
pub(super) struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What helpers and callers share.
struct Shared {
    state: Mutex<State>,
    /// How many helpers are still wanted in all, to be looked at without the lock.
    wanted: AtomicUsize,
    /// Wakes a helper that sleeps.
    wake: Condvar,
    /// Wakes callers when a helper has finished.
    finished: Condvar,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// The number of the next call.
    next: u64,
    sleeping: usize,
    is_over: bool,
}

/// The work of one caller, who is still there.
struct Call {
    number: u64,
    work: &'static Work,
    /// Helpers that may still begin.
    wanted: usize,
    /// Helpers that have begun and not finished.
    active: usize,
    panic: Option<Box<dyn Any + Send>>,
}

/// A call that helpers know of. When it is dropped, none of them has its work any more.
struct Posted<'s> {
    shared: &'s Shared,
    number: u64,
}

impl Helpers {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system starts no more.
    pub(super) fn new(threads: usize) -> Result<Helpers> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wanted: AtomicUsize::new(0),
            wake: Condvar::new(),
            finished: Condvar::new(),
        });
        let mut helpers = Helpers {
            shared,
            threads: Vec::with_capacity(threads),
        };
        for at in 0..threads {
            let shared = Arc::clone(&helpers.shared);
            let thread = thread::Builder::new()
                .name(format!("mx_rec-{at}"))
                .spawn(move || shared.help());
            let thread = thread.map_err(|cause| {
                Error::new(
                    Kind::ResourceExhausted,
                    "cannot start the threads of a pool",
                )
                .with("threads", threads + 1)
                .with("cause", cause)
            })?;
            helpers.threads.push(thread);
        }
        Ok(helpers)
    }

    /// Calls `work` on the caller's thread and on at most `wanted` helpers; returns when all calls
    /// that have begun are over. A panic of any of them goes on here.
    pub(super) fn run(&self, wanted: usize, work: &(dyn Fn() + Sync)) {
        // SAFETY: a reference is given another lifetime and nothing else. Helpers use it between
        // `State::begin` and `Shared::finish` alone, while the call is among `State::calls` and
        // `active` counts them. `posted` takes the call out when it is dropped, on every way out
        // of this function, and waits before that until no helper is active. So no helper uses
        // `work` after this function has ended.
        //
        // Benefit: without it, a scope of threads would have to wait until each helper has been
        // woken, has found nothing left to do and has said so; a helper that was busy with the work
        // of another caller made this one wait for that. Updates of 26 tables beside each other
        // took twice as long (benches/session/tables.py).
        let endless = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static Work>(work) };
        let posted = self.shared.post(endless, wanted);
        work();
        let panic = posted.take_back();
        drop(posted);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of work are caught.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Lets helpers know of a call.
    fn post(&self, work: &'static Work, wanted: usize) -> Posted<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.calls.push(Call {
            number,
            work,
            wanted,
            active: 0,
            panic: None,
        });
        self.wanted.fetch_add(wanted, Ordering::Relaxed);
        let sleeping = state.sleeping;
        drop(state);
        for _ in 0..wanted.min(sleeping) {
            self.wake.notify_one();
        }
        let shared = self;
        Posted { shared, number }
    }

    /// The life of a helper.
    fn help(&self) {
        while let Some((number, work)) = self.next() {
            let result = catch_unwind(AssertUnwindSafe(work));
            self.finish(number, result.err());
        }
    }

    /// Waits for the next call that wants a helper, and begins it; `None` at the end.
    fn next(&self) -> Option<(u64, &'static Work)> {
        for _ in 0..LOOKS {
            if self.wanted.load(Ordering::Relaxed) > 0 {
                break;
            }
            pause();
        }
        let mut state = self.state.lock();
        loop {
            if let Some(begun) = state.begin() {
                self.wanted.fetch_sub(1, Ordering::Relaxed);
                return Some(begun);
            }
            if state.is_over {
                return None;
            }
            state.sleeping += 1;
            self.wake.wait(&mut state);
            state.sleeping -= 1;
        }
    }

    /// A helper is through with a call.
    fn finish(&self, number: u64, panic: Option<Box<dyn Any + Send>>) {
        let mut state = self.state.lock();
        if let Some(call) = state.call(number) {
            call.active -= 1;
            call.panic = call.panic.take().or(panic);
        }
        drop(state);
        self.finished.notify_all();
    }
}

impl State {
    fn call(&mut self, number: u64) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.number == number)
    }

    /// Gives a helper the oldest call that wants one.
    fn begin(&mut self) -> Option<(u64, &'static Work)> {
        let call = self.calls.iter_mut().find(|call| call.wanted > 0)?;
        call.wanted -= 1;
        call.active += 1;
        Some((call.number, call.work))
    }
}

/// Lets a third of a microsecond pass, about.
fn pause() {
    for _ in 0..8 {
        std::hint::spin_loop();
    }
}

impl Posted<'_> {
    /// Wants no more helpers, waits for those that have begun, and takes the call out. Returns what
    /// a helper panicked with.
    fn take_back(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.shared.state.lock();
        if let Some(call) = state.call(self.number) {
            let unused = std::mem::take(&mut call.wanted);
            self.shared.wanted.fetch_sub(unused, Ordering::Relaxed);
        }
        let mut looks = 0;
        while state.call(self.number).is_some_and(|call| call.active > 0) {
            if looks < LOOKS {
                looks += 1;
                MutexGuard::unlocked(&mut state, pause);
            } else {
                self.shared.finished.wait(&mut state);
            }
        }
        let at = state
            .calls
            .iter()
            .position(|call| call.number == self.number)?;
        state.calls.remove(at).panic
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // Nothing is there any more but after a panic of the caller's own work, which goes on.
        self.take_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_caller_does_not_wait_for_helpers_that_are_busy() {
        let helpers = Helpers::new(1).unwrap();
        let (begun, is_begun) = channel();
        let (end, ended) = channel::<()>();
        let ended = Mutex::new(ended);
        let main = thread::current().id();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let own = thread::current().id();
                helpers.run(1, &|| {
                    if thread::current().id() != own {
                        begun.send(()).unwrap();
                        ended.lock().recv().unwrap();
                    } else {
                        // The helper has to have begun before the caller is through.
                        thread::sleep(Duration::from_millis(50));
                    }
                });
            });
            // Without a helper that begins there is nothing to show.
            if is_begun.recv_timeout(Duration::from_secs(20)).is_ok() {
                for _ in 0..100 {
                    let calls = AtomicUsize::new(0);
                    helpers.run(1, &|| {
                        assert_eq!(thread::current().id(), main);
                        calls.fetch_add(1, Ordering::Relaxed);
                    });
                    assert_eq!(calls.into_inner(), 1);
                }
                end.send(()).unwrap();
            }
            first.join().unwrap();
        });
    }

    #[test]
    fn many_callers_share_helpers_and_each_gets_all_of_its_work_done() {
        let helpers = Helpers::new(2).unwrap();
        thread::scope(|scope| {
            for caller in 0..4_usize {
                let helpers = &helpers;
                scope.spawn(move || {
                    for round in 0..500 {
                        let left = AtomicUsize::new(20);
                        let done = AtomicUsize::new(0);
                        helpers.run(1 + (caller + round) % 3, &|| {
                            let take = |left: usize| left.checked_sub(1);
                            while left
                                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                                .is_ok()
                            {
                                done.fetch_add(1, Ordering::SeqCst);
                            }
                        });
                        assert_eq!(done.into_inner(), 20);
                    }
                });
            }
        });
        assert_eq!(helpers.shared.wanted.load(Ordering::SeqCst), 0);
        assert!(helpers.shared.state.lock().calls.is_empty());
    }

    #[test]
    fn a_panic_of_the_caller_waits_for_helpers_and_one_of_a_helper_goes_on_in_the_caller() {
        let helpers = Helpers::new(1).unwrap();
        let main = thread::current().id();
        for caller_panics in [true, false] {
            for _ in 0..100 {
                let helped = AtomicUsize::new(0);
                let call = AssertUnwindSafe(|| {
                    helpers.run(1, &|| {
                        let is_caller = thread::current().id() == main;
                        if !is_caller {
                            helped.fetch_add(1, Ordering::SeqCst);
                        } else if !caller_panics {
                            thread::sleep(Duration::from_micros(200));
                        }
                        assert_ne!(is_caller, caller_panics, "this one");
                    });
                });
                let panicked = catch_unwind(call).is_err();
                assert_eq!(panicked, caller_panics || helped.into_inner() > 0);
            }
        }
        assert!(helpers.shared.state.lock().calls.is_empty());
    }
}
