//! Export and import of admission history, key by key.

use crate::history::{History, Seen, Settings, Sketch};
use crate::pool::ranges;
use crate::table::{Loading, Snapshot, Table};
use crate::{Pool, Result, PADDING};

/// Entries of a shard of the index that are listed at once.
const LOOK: usize = 16 << 10;

/// Shards that are listed at once, whatever the number of threads: the order of keys depends on it.
const SHARDS: usize = 16;

/// A thread should take in at least so many keys.
const LEAST: usize = 4096;

/// Keys with what is known of them.
type Known = [(i64, Seen)];

impl Table {
    /// Width and depth of the sketch that the settings ask for; None for exact counters.
    pub(crate) fn sketch_shape(&self) -> Option<(u64, u64)> {
        match self.config().admission_sketch_bytes {
            0 => None,
            bytes => Some(Sketch::shape_of(bytes)),
        }
    }
}

impl Snapshot<'_> {
    /// What the table's history has beside its keys; None if there is no history.
    pub(crate) fn settings(&self) -> Option<Settings> {
        let history = self.table.history().read();
        history.as_deref().map(History::settings)
    }

    /// Calls `f` with every key that something is known of, once each, those with rows first. The
    /// order depends on the table alone.
    ///
    /// No key gets a row or loses one meanwhile. Batches may still be observed: each key comes with
    /// what was known of it at some moment of the call, and of a batch that is observed meanwhile
    /// some keys may have been counted. Keys without rows that are evicted or removed meanwhile may
    /// come. Memory: 4 MiB, and 16 bytes for each of a 1024th of the keys without rows.
    ///
    /// # Errors
    /// The first error of `f`.
    pub(crate) fn each_known(
        &self,
        pool: &Pool,
        f: &mut dyn FnMut(&Known) -> Result<()>,
    ) -> Result<()> {
        let parts: Vec<usize> = (0..self.index.parts()).collect();
        let mut lists: Vec<Vec<(i64, Seen)>> = vec![Vec::new(); SHARDS];
        for group in parts.chunks(SHARDS) {
            let mut from: Vec<Option<usize>> = vec![Some(0); group.len()];
            while from.iter().any(Option::is_some) {
                let work = group.iter().zip(&mut from).zip(&mut lists);
                pool.each(work, |((&shard, from), list)| {
                    list.clear();
                    if let Some(start) = *from {
                        *from = self.list(shard, start, list);
                    }
                });
                let listed = lists.iter().take(group.len());
                listed.into_iter().try_for_each(|list| f(list))?;
            }
        }
        let pieces = self.with_history(0, |history| history.candidates.pieces());
        let mut list = lists.pop().unwrap_or_default();
        drop(lists);
        for piece in 0..pieces {
            list.clear();
            self.with_history((), |history| history.candidates.list(piece, &mut list));
            f(&list)?;
        }
        Ok(())
    }

    /// Width and depth of the sketch that counts keys without a row; None if there is none.
    pub(crate) fn sketch_shape(&self) -> Option<(u64, u64)> {
        let sketch = |history: &History| history.candidates.sketch().map(Sketch::shape);
        self.with_history(None, sketch)
    }

    /// Calls `f` with the cells `from..from + most` of the sketch, as far as there are so many.
    pub(crate) fn each_cell(&self, from: usize, most: usize, f: &mut dyn FnMut(u64)) {
        self.with_history((), |history| {
            if let Some(sketch) = history.candidates.sketch() {
                sketch.cells(from).take(most).for_each(f);
            }
        });
    }

    /// Lists what is known of keys in some buckets of a shard of the index; returns where to go on.
    fn list(&self, shard: usize, from: usize, list: &mut Vec<(i64, Seen)>) -> Option<usize> {
        let mut rows = Vec::with_capacity(LOOK);
        let next = self
            .index
            .look(shard, from, LOOK, |key, row| rows.push((key, row)));
        // The lock is taken anew for each group: a waiting writer blocks all new readers.
        self.with_history((), |history| {
            let known = rows.iter().map(|&(key, row)| (key, history.of_row(row)));
            list.extend(known.filter(|(_, seen)| !seen.is_nothing()));
        });
        next
    }

    /// The snapshot keeps others from replacing the history, once there is one.
    fn with_history<T>(&self, without: T, f: impl FnOnce(&History) -> T) -> T {
        self.table.history().read().as_deref().map_or(without, f)
    }
}

impl Loading<'_> {
    /// Starts the history of the rows that were pushed: the last of them. A sketch exists twice
    /// until the load ends.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory for the sketch of a table that has one.
    pub(crate) fn start_history(&mut self, settings: Settings) -> Result<()> {
        let history = History::from_files(settings, self.content.store.rows());
        let candidates = self.table.named(self.table.keys().candidates())?;
        let history = history.with_candidates(candidates);
        self.history = Some(Box::new(history));
        Ok(())
    }

    /// Sets cells of the sketch, from number `from` on; out-of-range cells are ignored.
    pub(crate) fn fill_cells(&self, from: usize, cells: impl Iterator<Item = u64>) {
        let history = self.history.as_deref();
        if let Some(sketch) = history.and_then(|history| history.candidates.sketch()) {
            sketch.fill(from, cells);
        }
    }

    /// Takes in what is known of keys, with rows or without. Entries without a count and a time are
    /// ignored.
    ///
    /// # Errors
    /// `DataLoss` for the padding key and for a key that came before, except into a sketch, which
    /// cannot tell. After an error the load cannot succeed.
    pub(crate) fn import_history(&self, pool: &Pool, known: &Known) -> Result<()> {
        let Some(history) = self.history.as_deref() else {
            return Ok(());
        };
        let parts = pool.parts(known.len(), LEAST);
        pool.try_each(ranges(known.len(), parts), |range| {
            for &(key, seen) in known.get(range).unwrap_or_default() {
                if key == PADDING {
                    return Err(self.damaged("the history has the padding key", key));
                }
                if !seen.is_nothing() && !history.put(key, self.index.row(key), seen) {
                    return Err(self.damaged("a key occurs twice in the history", key));
                }
            }
            Ok(())
        })
    }

    /// After the last [`Loading::import_history`].
    pub(crate) fn complete_history(&mut self) {
        let rows = self.index.len();
        if let Some(history) = self.history.as_deref_mut() {
            history.complete(rows);
        }
    }
}
