//! What the verbs on groups of tables share: which tables a group has, who works on which of them,
//! and whose error a group that fails gives.
//!
//! A group is a list of members, each a table with its input; a table may come several times. A
//! verb takes the locks of each table once, in the order of the tables' addresses, checks all
//! members, and changes tables when no member can fail any more. So a group that fails changes
//! nothing, and the error is that of the first member, in the order of the list, that fails.

use super::Table;
use crate::sync::Mutex;
use crate::{Error, Pool, Result};
use smallvec::{smallvec, SmallVec};

/// A thread should have at least so much work, in ids or gradients, before another one is woken.
pub(super) const LEAST: usize = 2048;

/// One table of a group.
pub(super) struct OneTable<'t> {
    pub(super) table: &'t Table,
    /// The places of its members in the group, in order.
    pub(super) members: SmallVec<[usize; 1]>,
}

/// The tables of a group, each once, in the order of their addresses: that in which their locks are
/// taken.
pub(super) fn by_address<'t>(tables: impl Iterator<Item = &'t Table>) -> Vec<OneTable<'t>> {
    let mut members: Vec<(&Table, usize)> = tables.enumerate().map(|(at, one)| (one, at)).collect();
    members.sort_by_key(|&(table, at)| (std::ptr::from_ref(table).addr(), at));
    let mut found: Vec<OneTable<'t>> = Vec::with_capacity(members.len());
    for (table, at) in members {
        match found.last_mut() {
            Some(last) if std::ptr::eq(last.table, table) => last.members.push(at),
            _ => found.push(OneTable {
                table,
                members: smallvec![at],
            }),
        }
    }
    found
}

/// For each member of a group the place of its table in `tables`.
pub(super) fn places(tables: &[OneTable<'_>], members: usize) -> Vec<usize> {
    let mut places = vec![0; members];
    for (at, one) in tables.iter().enumerate() {
        one.members.iter().for_each(|&member| places[member] = at);
    }
    places
}

/// Calls `work` once with each item, of which `cost` tells how much work it is: ids or gradients.
///
/// An item that is more than half of one thread's share, or the only one, is worked on alone, with
/// the whole pool.
/// The others are dealt to the threads in their order, which should be that of the members: then
/// the tables of a step stay with the same threads. Each is worked on by one thread, with a pool of
/// that thread alone. A group with little work stays on the caller's thread.
pub(super) fn each<T: Send>(
    pool: &Pool,
    items: Vec<T>,
    cost: impl Fn(&T) -> usize,
    work: impl Fn(&Pool, T) + Sync,
) {
    deal(pool, items, cost, 2, work);
}

/// [`each`] of work that takes more time of all threads together in parts than as a whole: only
/// items that are more than one thread's share have the whole pool.
pub(super) fn each_undivided<T: Send>(
    pool: &Pool,
    items: Vec<T>,
    cost: impl Fn(&T) -> usize,
    work: impl Fn(&Pool, T) + Sync,
) {
    deal(pool, items, cost, 1, work);
}

/// What is more than the `shares`th part of a thread's share is worked on with the whole pool.
fn deal<T: Send>(
    pool: &Pool,
    items: Vec<T>,
    cost: impl Fn(&T) -> usize,
    shares: usize,
    work: impl Fn(&Pool, T) + Sync,
) {
    if items.len() == 1 {
        return items.into_iter().for_each(|item| work(pool, item));
    }
    let total: usize = items.iter().map(&cost).sum();
    let threads = pool.parts(total, LEAST);
    let alone = Pool::alone();
    if threads == 1 {
        return items.into_iter().for_each(|item| work(&alone, item));
    }
    let share = total / (shares * threads);
    let (large, small): (Vec<T>, Vec<T>) = items.into_iter().partition(|item| cost(item) > share);
    large.into_iter().for_each(|item| work(pool, item));
    let mut lists = lists(small, threads, &cost);
    for list in &mut lists {
        // What is left for other threads is small.
        list.sort_by_key(|item| std::cmp::Reverse(cost(item)));
    }
    let done = pool.try_each_of(lists, |item| {
        work(&alone, item);
        Ok(())
    });
    debug_assert!(done.is_ok());
}

/// Deals items to so many lists, in their order and so that all lists cost about the same. So the
/// verbs of a step deal the same tables to the same lists.
pub(super) fn lists<T>(items: Vec<T>, count: usize, cost: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let total = items.iter().map(&cost).sum::<usize>().max(1);
    let mut lists: Vec<Vec<T>> = std::iter::repeat_with(Vec::new).take(count).collect();
    let mut before = 0;
    for item in items {
        let middle = before + cost(&item) / 2;
        before += cost(&item);
        if let Some(list) = lists.get_mut((middle * count / total).min(count - 1)) {
            list.push(item);
        }
    }
    lists
}

/// The error of the first member of a group that failed, if one did.
#[derive(Default)]
pub(super) struct Failure(Mutex<Option<(usize, Error)>>);

impl Failure {
    /// Notes the error of the table whose first member is `member`; what came out otherwise.
    pub(super) fn note<T>(&self, member: usize, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let mut first = self.0.lock();
                if first.as_ref().is_none_or(|&(other, _)| member < other) {
                    *first = Some((member, error));
                }
                None
            }
        }
    }

    /// # Errors
    /// The error of the first member that failed.
    pub(super) fn check(self) -> Result<()> {
        self.0.into_inner().map_or(Ok(()), |(_, error)| Err(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_dealt_in_their_order_by_what_they_cost() {
        let dealt = |costs: &[usize], count| lists(costs.to_vec(), count, |&cost| cost);
        assert_eq!(dealt(&[5; 4], 2), [[5, 5], [5, 5]]);
        assert_eq!(dealt(&[1, 1, 2, 4], 2), [&[1, 1, 2][..], &[4]]);
        assert_eq!(dealt(&[9, 1, 1], 2), [&[9][..], &[1, 1]]);
        assert_eq!(dealt(&[3, 4, 5], 1), [[3, 4, 5]]);
        assert_eq!(dealt(&[3], 3), [&[][..], &[3], &[]]);
        assert_eq!(dealt(&[0, 0], 2), [&[0, 0][..], &[]]);
        assert_eq!(dealt(&[2, 0], 2), [&[][..], &[2, 0]]);
        assert_eq!(dealt(&[], 2), [[0; 0]; 2]);
    }
}
