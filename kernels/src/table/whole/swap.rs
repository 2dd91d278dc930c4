//! New contents in the places of the old ones, those of several tables at once: no thread sees one
//! table with its new content and then another one with its old.

use crate::index::Index;
use crate::sync::RwLockWriteGuard;
use crate::table::rows::{LockedRows, ReplacedContent};
use crate::table::whole::load::BuiltContent;
use crate::table::Table;
use crate::Result;

/// What a table has now: its rows, and the epoch of changes that ended, 0 if they are not tracked.
type Swapped = (u64, u32);

/// All locks of a table that a swap takes.
struct Locked<'t> {
    table: &'t Table,
    index: RwLockWriteGuard<'t, Index>,
    rows: LockedRows<'t>,
}

impl Locked<'_> {
    /// Swaps a content in. What comes back is to be dropped when no lock is held.
    fn swap(&mut self, built: BuiltContent) -> (Swapped, Index, ReplacedContent) {
        let (len, rows) = (built.rows(), built.content.store.rows());
        let old_rows = self.rows.replace(built.content);
        let keys = self.table.keys();
        let old_index = keys.replace(&mut self.index, built.index, built.history, rows);
        ((len, old_rows.epoch), old_index, old_rows)
    }
}

impl Table {
    /// The second half of [`Table::load`]: swaps in a content that was built for this table. It
    /// cannot fail.
    ///
    /// Returns the number of rows, and the epoch that ends with it: a delta since then tells what
    /// changed after the load. 0 if changes are not tracked.
    pub(crate) fn swap_content(&self, built: BuiltContent) -> (u64, u32) {
        let index = self.index().write();
        let rows = self.rows().lock();
        let table = self;
        let mut locked = Locked { table, index, rows };
        let (swapped, _old_index, _old_rows) = locked.swap(built);
        drop(locked);
        swapped
    }

    /// [`Table::swap_content`] of several tables, all at once: whoever reads two of the tables, one
    /// after the other, and finds the first one's new content finds the other's as well. Returns
    /// what each table has now, in the order of `contents`.
    ///
    /// The locks of all tables are held while the contents are swapped. They are taken in the order
    /// of the tables' addresses, so that any number of swaps may run at once.
    ///
    /// # Errors
    /// `InvalidArgument` if a table comes twice; then no table changed.
    pub(crate) fn swap_contents(contents: Vec<(&Table, BuiltContent)>) -> Result<Vec<Swapped>> {
        let mut contents: Vec<_> = contents.into_iter().enumerate().collect();
        contents.sort_by_key(|(_, (table, _))| std::ptr::from_ref::<Table>(table).addr());
        for pair in contents.windows(2) {
            let (table, next) = (pair[0].1 .0, pair[1].1 .0);
            if std::ptr::eq(table, next) {
                return Err(table.refuse("a table cannot be restored twice at once"));
            }
        }
        let indexes: Vec<_> = contents
            .iter()
            .map(|(_, (table, _))| table.index().write())
            .collect();
        let mut locked: Vec<Locked<'_>> = contents
            .iter()
            .zip(indexes)
            .map(|((_, (table, _)), index)| Locked {
                table,
                index,
                rows: table.rows().lock(),
            })
            .collect();
        let mut swapped = vec![(0, 0); contents.len()];
        let mut old = Vec::with_capacity(contents.len());
        for (locked, (at, (_, built))) in locked.iter_mut().zip(contents) {
            let (now, old_index, old_rows) = locked.swap(built);
            swapped[at] = now;
            old.push((old_index, old_rows));
        }
        drop(locked);
        drop(old);
        Ok(swapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::singles::{Singles as _, Target};
    use crate::{Absent, Ids, Kind, Pool, Sgd, TableConfig};
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Its value is the number of the restore that brought it. Nobody trains it.
    const STAMP: i64 = 7;

    /// A key that steps train meanwhile.
    const TRAINED: i64 = 8;

    fn table(name: &str) -> Arc<Table> {
        let config = TableConfig::new(name, 1, 100);
        Arc::new(Table::new(config).unwrap())
    }

    fn built(table: &Table, pool: &Pool, stamp: u32) -> BuiltContent {
        let fill = &mut |loading: &mut crate::Loading<'_>| {
            loading.push(&[TRAINED, STAMP], &[0.0, stamp as f32], &[])
        };
        table.build_content(pool, &[], 100, fill).unwrap()
    }

    fn stamp(table: &Table, pool: &Pool) -> u32 {
        let mut row = [0.0];
        table
            .find(pool, Ids::I64(&[STAMP]), Absent::Zeros, &mut row)
            .unwrap();
        row[0] as u32
    }

    /// Restores some hundred times in both orders of the tables, beside readers and steps, and then
    /// until the readers have seen some of it: on a busy machine they may get no time before. Each
    /// stamp comes once, so that whoever reads the same one twice from a table knows what the other
    /// table had between. Returns how many stamps were seen so, and how often the other table had
    /// another one.
    fn torn(swap: impl Fn(Vec<(&Table, BuiltContent)>) + Sync) -> (usize, usize) {
        const RESTORES: u32 = 600;
        const ENOUGH: usize = 10;
        let tables = [table("a"), table("b")];
        let (next, seen, torn) = (AtomicU32::new(1), AtomicUsize::new(0), AtomicUsize::new(0));
        let over = AtomicBool::new(false);
        let until = Instant::now() + Duration::from_secs(60);
        thread::scope(|scope| {
            let restorers = [[0, 1], [1, 0]].map(|order| {
                let (tables, next, seen, swap) = (&tables, &next, &seen, &swap);
                scope.spawn(move || {
                    let pool = Pool::new(1).unwrap();
                    loop {
                        let stamp = next.fetch_add(1, SeqCst);
                        if stamp > RESTORES {
                            if seen.load(SeqCst) >= ENOUGH {
                                break;
                            }
                            thread::sleep(Duration::from_millis(1));
                        }
                        if Instant::now() > until {
                            break;
                        }
                        let tables = order.map(|at| &*tables[at]);
                        swap(tables.map(|one| (one, built(one, &pool, stamp))).into());
                    }
                })
            });
            for order in [[0, 1], [1, 0]] {
                let (tables, seen, torn, over) = (&tables, &seen, &torn, &over);
                scope.spawn(move || {
                    let pool = Pool::new(1).unwrap();
                    let mut stamps = HashSet::new();
                    while !over.load(SeqCst) {
                        let first = stamp(&tables[order[0]], &pool);
                        let between = stamp(&tables[order[1]], &pool);
                        if stamp(&tables[order[0]], &pool) == first {
                            torn.fetch_add(usize::from(between != first), SeqCst);
                            seen.fetch_add(usize::from(stamps.insert(first)), SeqCst);
                        }
                    }
                });
                scope.spawn(move || {
                    let pool = Pool::new(2).unwrap();
                    let sgd = Sgd::new(1.0).unwrap();
                    while !over.load(SeqCst) {
                        for table in order.map(|at| &tables[at]) {
                            let ids = Ids::I64(&[TRAINED]);
                            let lease = table.lease(&pool, ids, None, &mut [0]).unwrap();
                            let offsets = Target::Offsets(lease.offsets());
                            if let Err(error) = table.apply(&pool, offsets, &[1.0], &sgd) {
                                assert_eq!(error.kind(), Kind::Aborted, "{error}");
                            }
                        }
                    }
                });
            }
            let ended = restorers.map(thread::ScopedJoinHandle::join);
            over.store(true, SeqCst);
            assert!(ended.iter().all(std::result::Result::is_ok));
        });
        assert!(
            next.load(SeqCst) > RESTORES,
            "the restores wait for each other"
        );
        (seen.into_inner(), torn.into_inner())
    }

    #[test]
    fn nobody_sees_one_table_restored_and_another_one_not_yet() {
        let (seen, torn) = torn(|contents| {
            Table::swap_contents(contents).unwrap();
        });
        assert!(seen > 2, "no reader saw two restores");
        assert_eq!(torn, 0);
    }

    #[test]
    fn the_readers_above_can_tell_tables_that_are_restored_one_after_the_other() {
        let (_, torn) = torn(|contents| {
            for (table, built) in contents {
                table.swap_content(built);
                thread::sleep(Duration::from_micros(100));
            }
        });
        assert!(torn > 0);
    }

    #[test]
    fn a_table_that_comes_twice_is_refused_before_anything_changes() {
        let (pool, one, other) = (Pool::new(1).unwrap(), table("one"), table("other"));
        let contents = [&one, &other, &one].map(|table| (&**table, built(table, &pool, 5)));
        let error = Table::swap_contents(contents.into()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.to_string().contains("one"), "{error}");
        assert_eq!((one.len(), other.len()), (0, 0));
        assert_eq!(Table::swap_contents(Vec::new()).unwrap(), []);
    }
}
