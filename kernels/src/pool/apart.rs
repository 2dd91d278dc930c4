//! Helpers that wake up on other processors than the thread that calls them.

use rustix::thread::{gettid, sched_getaffinity, sched_getcpu, sched_setaffinity, CpuSet, Pid};
use std::sync::{Arc, OnceLock};

/// With more helpers the system finds an idle processor for each, and to tell all of them costs
/// more than it gains.
const MOST: usize = 3;

/// The helpers of a pool, which wake up on other processors than their caller's.
///
/// Linux may wake a thread on the processor of the one that wakes it. There a helper waits until
/// its caller sleeps or a later tick of the clock moves it to the processor that is idle: on a
/// machine with two, as long as the whole of many a call.
#[derive(Clone)]
pub(super) struct Apart(Arc<[OnceLock<Pid>]>);

impl Apart {
    /// Of so many helpers, which are to call [`Apart::is_this_thread`].
    pub(super) fn of(helpers: usize) -> Apart {
        let few = if helpers <= MOST { helpers } else { 0 };
        Apart((0..few).map(|_| OnceLock::new()).collect())
    }

    /// Takes the calling thread for the helper of this number.
    pub(super) fn is_this_thread(&self, number: usize) {
        if let Some(helper) = self.0.get(number) {
            let _ = helper.set(gettid());
        }
    }

    /// Calls `wake`, meanwhile with no helper on the processor of the calling thread. After that
    /// helpers may run wherever the calling thread may: the system moves them as it likes.
    ///
    /// Nothing is computed by where threads run, so what the system refuses is left as it is.
    pub(super) fn wake_elsewhere(&self, wake: impl FnOnce()) {
        if self.0.is_empty() {
            return wake();
        }
        let all = sched_getaffinity(None).ok();
        let others = all.and_then(|all| without(all, sched_getcpu()));
        let Some((all, others)) = all.zip(others) else {
            return wake();
        };
        let may_use = |processors: &CpuSet| {
            for &helper in self.0.iter().filter_map(OnceLock::get) {
                let _ = sched_setaffinity(Some(helper), processors);
            }
        };
        may_use(&others);
        wake();
        may_use(&all);
    }
}

/// The processors without one of them, unless there is no other.
fn without(mut processors: CpuSet, one: usize) -> Option<CpuSet> {
    processors.unset(one);
    (processors.count() > 0).then_some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The processors that a helper may use while a caller that may use `processors` wakes it, and
    /// after that.
    fn of_helper(processors: CpuSet) -> (CpuSet, CpuSet) {
        let apart = &Apart::of(1);
        let (begin, begun) = channel();
        let (end, ended) = channel::<()>();
        std::thread::scope(|scope| {
            let of_helper = apart.clone();
            scope.spawn(move || {
                of_helper.is_this_thread(0);
                begin.send(gettid()).unwrap();
                ended.recv().unwrap_err();
            });
            let helper = Some(begun.recv().unwrap());
            let caller = scope.spawn(move || {
                sched_setaffinity(None, &processors).unwrap();
                let mut meanwhile = None;
                apart.wake_elsewhere(|| meanwhile = sched_getaffinity(helper).ok());
                meanwhile
            });
            let meanwhile = caller.join().unwrap();
            let after = sched_getaffinity(helper).unwrap();
            drop(end);
            (meanwhile.unwrap(), after)
        })
    }

    fn numbers(processors: &CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU)
            .filter(|&at| processors.is_set(at))
            .collect()
    }

    #[test]
    fn a_helper_wakes_up_on_another_processor_and_may_use_all_after_that() {
        let all = sched_getaffinity(None).unwrap();
        let (meanwhile, after) = of_helper(all);
        assert_eq!(numbers(&meanwhile).len(), numbers(&all).len().max(2) - 1);
        assert!(numbers(&meanwhile).iter().all(|&at| all.is_set(at)));
        assert_eq!(numbers(&after), numbers(&all));
    }

    #[test]
    fn many_helpers_wake_up_wherever_they_do() {
        let many = Apart::of(MOST + 1);
        many.is_this_thread(MOST);
        let mut meanwhile = None;
        many.wake_elsewhere(|| meanwhile = sched_getaffinity(None).ok());
        let all = sched_getaffinity(None).unwrap();
        assert_eq!(meanwhile.map(|found| numbers(&found)), Some(numbers(&all)));
    }

    #[test]
    fn a_caller_of_one_processor_leaves_its_helpers_where_they_are() {
        let all = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set(numbers(&all)[0]);
        let (meanwhile, after) = of_helper(one);
        assert_eq!(numbers(&meanwhile), numbers(&all));
        assert_eq!(numbers(&after), numbers(&all));
        assert!(without(one, numbers(&one)[0]).is_none());
    }
}
