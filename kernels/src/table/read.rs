//! Reads rows by offset and by key, and prefetches later rows while earlier ones are copied.

use super::content::{Content, Offsets};
use super::offset::Unfit;
use super::{Absent, Table};
use crate::batch::out_of_range;
use crate::index::{hash, Index};
use crate::mem::{prefetch, Bucket, NONE};
use crate::pool::{ranges, split_mut};
use crate::rows::{with_rows, ReadRows, SideRows, Store};
use crate::simd::{Level, Vectorized};
use crate::{Ids, Pool, Result, PADDING};
use std::ops::Range;

/// A part of a batch should copy at least so many floats.
const LEAST_FLOATS: usize = 1 << 15;

/// Rows that are prefetched ahead of the one that is copied.
const AHEAD: usize = 8;

/// Buckets that are prefetched ahead of the one that is read.
const BUCKETS: usize = 16;

impl Table {
    /// Copies rows, `(n)` offsets to `(n, dim)` floats; -1 and 0 give zeros.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, an offset that this table has not given out and one
    /// whose key was removed since, unless a lease holds the row; `Aborted` for an offset from
    /// before the content was replaced; with a tier what its files refuse, and `DataLoss` for a
    /// record that is damaged. `out` is then unspecified.
    pub fn lookup(&self, pool: &Pool, offsets: &[i64], out: &mut [f32]) -> Result<()> {
        self.floats("out", out.len(), offsets.len())?;
        let content = self.content_with(pool, offsets)?;
        let rows = content.offsets();
        self.parts(pool, offsets.len(), out, |range, out| {
            let offsets = &offsets[range];
            let row = |at: usize| rows.readable(offsets[at]);
            let outs = out.chunks_exact_mut(self.dim());
            copy_rows(&content, offsets.len(), row, self.dim(), outs)
                .map_err(|(at, why)| self.bad_offset("offsets", offsets[at], why))
        })
    }

    /// Copies the rows of ids, `(u)` offsets and for each of `(n)` ids its place among them, to
    /// `(n, dim)` floats; -1 in either, and offset 0, give zeros.
    ///
    /// # Errors
    /// As [`Table::lookup`], and `InvalidArgument` for a place outside of `offsets`.
    pub fn embed(
        &self,
        pool: &Pool,
        offsets: &[i64],
        inverse: &[i32],
        out: &mut [f32],
    ) -> Result<()> {
        self.floats("out", out.len(), inverse.len())?;
        let content = self.content_with(pool, offsets)?;
        self.embed_from(pool, &content, offsets, inverse, out)
    }

    /// [`Table::embed`] of a content that is locked.
    pub(super) fn embed_from(
        &self,
        pool: &Pool,
        content: &Content,
        offsets: &[i64],
        inverse: &[i32],
        out: &mut [f32],
    ) -> Result<()> {
        let rows = content.offsets();
        self.parts(pool, inverse.len(), out, |range, out| {
            let outs = out.chunks_exact_mut(self.dim());
            self.embed_rows(content, &rows, offsets, &inverse[range], outs)
        })
    }

    /// Copies the rows of some ids on the caller's thread, each to one of `outs`.
    #[inline]
    pub(super) fn embed_rows<'o>(
        &self,
        content: &Content,
        rows: &Offsets<'_>,
        offsets: &[i64],
        inverse: &[i32],
        outs: impl Iterator<Item = &'o mut [f32]>,
    ) -> Result<()> {
        let row = |at: usize| match offsets.get(inverse[at] as usize) {
            Some(&offset) => rows.readable(offset),
            None if inverse[at] == -1 => Ok(NONE),
            None => Err(Unfit::Unknown),
        };
        copy_rows(content, inverse.len(), row, self.dim(), outs).map_err(|(at, why)| {
            let place = inverse[at];
            match offsets.get(place as usize) {
                Some(&offset) => self.bad_offset("offsets", offset, why),
                None => out_of_range(place, offsets.len()).with("table", &self.config().name),
            }
        })
    }

    /// Copies the rows of keys, `(n)` ids to `(n, dim)` floats; never creates a row.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length of `out` or `absent`; with a tier what its files
    /// refuse, and `DataLoss` for a record that is damaged.
    pub fn find(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        absent: Absent<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        self.expect_find(ids, absent, out)?;
        self.reading_through(pool, ids, |index, content, side| {
            self.find_in(pool, (index, content, side), ids, absent, out)
        })
    }

    /// Refuses arguments of [`Table::find`] of the wrong length.
    pub(super) fn expect_find(&self, ids: Ids<'_>, absent: Absent<'_>, out: &[f32]) -> Result<()> {
        self.floats("out", out.len(), ids.len())?;
        match absent {
            Absent::Zeros => Ok(()),
            Absent::Row(row) => self.floats("absent", row.len(), 1),
            Absent::Rows(rows) => self.floats("absent", rows.len(), ids.len()),
        }
    }

    /// [`Table::find`] in an index and a content that are locked, with the rows on disk beside.
    pub(super) fn find_in(
        &self,
        pool: &Pool,
        (index, content, side): (&Index, &Content, Option<&SideRows>),
        ids: Ids<'_>,
        absent: Absent<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let dim = self.dim();
        let level = Level::detect();
        self.parts(pool, ids.len(), out, |range, out| {
            let absent = match absent {
                Absent::Rows(rows) => Absent::Rows(&rows[range.start * dim..range.end * dim]),
                other => other,
            };
            match &content.store {
                Store::InMemory(rows) => {
                    find_part(level, (index, rows), ids.part(range), dim, absent, out)
                }
                Store::Tiered(tiered) => {
                    let rows = &tiered.beside(side);
                    find_part(level, (index, rows), ids.part(range), dim, absent, out);
                }
            }
            Ok(())
        })?;
        self.hide_refused(index, ids, absent, out);
        Ok(())
    }

    /// Gives keys that have a row and are below the threshold of admission what keys without a row
    /// get.
    fn hide_refused(&self, index: &Index, ids: Ids<'_>, absent: Absent<'_>, out: &mut [f32]) {
        let history = self.history().read();
        let Some(history) = history.as_deref().filter(|one| one.may_refuse()) else {
            return;
        };
        let (dim, access) = (self.dim(), history.access());
        for (at, out) in out.chunks_exact_mut(dim).enumerate() {
            let row = index.row(ids.get(at));
            if row != NONE && history.of_row(row).count < access {
                match absent {
                    Absent::Zeros => out.fill(0.0),
                    Absent::Row(row) => out.copy_from_slice(row),
                    Absent::Rows(rows) => out.copy_from_slice(&rows[at * dim..(at + 1) * dim]),
                }
            }
        }
    }

    /// Cuts `out (n, dim)` into parts for the threads of a pool.
    pub(super) fn parts(
        &self,
        pool: &Pool,
        n: usize,
        out: &mut [f32],
        f: impl Fn(Range<usize>, &mut [f32]) -> Result<()> + Sync,
    ) -> Result<()> {
        let parts = match pool.parts(out.len(), LEAST_FLOATS) {
            1 => 1,
            // A thread that is held up should not hold up the rest.
            parts => pool
                .parts(out.len(), LEAST_FLOATS)
                .max(parts * 4)
                .min(n.max(1)),
        };
        let parts = ranges(n, parts);
        let work = parts
            .iter()
            .cloned()
            .zip(split_mut(out, self.dim(), &parts))
            .collect();
        pool.try_each(work, |(range, out): (Range<usize>, &mut [f32])| {
            f(range, out)
        })
    }
}

/// Copies `n` rows, those that `row` names, or returns the position of the first for which it names
/// none, and why.
#[inline(always)]
fn copy_rows<'o>(
    content: &Content,
    n: usize,
    row: impl Fn(usize) -> Result<u32, Unfit>,
    dim: usize,
    outs: impl Iterator<Item = &'o mut [f32]>,
) -> Result<(), (usize, Unfit)> {
    with_rows!(&content.store, rows => copy_rows_from(rows, n, row, dim, outs))
}

/// [`copy_rows`] for one kind of store.
#[inline(always)]
fn copy_rows_from<'o>(
    store: &impl ReadRows,
    n: usize,
    row: impl Fn(usize) -> Result<u32, Unfit>,
    dim: usize,
    outs: impl Iterator<Item = &'o mut [f32]>,
) -> Result<(), (usize, Unfit)> {
    let ask = |at: usize| -> Result<u32, (usize, Unfit)> {
        let row = row(at).map_err(|why| (at, why))?;
        store.prefetch(row, dim);
        Ok(row)
    };
    let mut rows = [NONE; AHEAD];
    for (at, row) in rows.iter_mut().enumerate().take(n) {
        *row = ask(at)?;
    }
    for (at, out) in outs.enumerate() {
        let row = rows[at % AHEAD];
        if at + AHEAD < n {
            rows[at % AHEAD] = ask(at + AHEAD)?;
        }
        match store.row(row) {
            Some(row) => out.copy_from_slice(&row[..dim]),
            None => out.fill(0.0),
        }
    }
    Ok(())
}

/// Copies rows by key in three stages: ask for the bucket; `BUCKETS` ids later read it and ask for
/// the row; `AHEAD` ids later copy the row.
struct Find<'a, T, S> {
    index: &'a Index,
    rows: &'a S,
    ids: &'a [T],
    dim: usize,
    absent: Absent<'a>,
    out: &'a mut [f32],
}

/// Copies the rows of some ids on the caller's thread.
fn find_part<S: ReadRows>(
    level: Level,
    (index, rows): (&Index, &S),
    ids: Ids<'_>,
    dim: usize,
    absent: Absent<'_>,
    out: &mut [f32],
) {
    match ids {
        Ids::I64(ids) => level.run(Find {
            index,
            rows,
            ids,
            dim,
            absent,
            out,
        }),
        Ids::I32(ids) => level.run(Find {
            index,
            rows,
            ids,
            dim,
            absent,
            out,
        }),
    }
}

impl<T: Copy + Into<i64>, S: ReadRows> Vectorized for Find<'_, T, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Find {
            index,
            rows,
            ids,
            dim,
            absent,
            out,
        } = self;
        find_rows(index, rows, ids, dim, absent, out);
    }
}

#[inline(always)]
fn find_rows<T: Copy + Into<i64>>(
    index: &Index,
    store: &impl ReadRows,
    ids: &[T],
    dim: usize,
    absent: Absent<'_>,
    out: &mut [f32],
) {
    let Some(&first) = ids.first() else { return };
    // Rings of what was prefetched: bucket references and row numbers.
    let mut homes: [&Bucket; BUCKETS] = [index.home(hash(first.into())); BUCKETS];
    let mut rows = [NONE; AHEAD];
    let mut outs = out.chunks_exact_mut(dim);
    for at in 0..ids.len() + BUCKETS + AHEAD {
        if let Some(at) = at.checked_sub(BUCKETS + AHEAD) {
            let Some(out) = outs.next() else { return };
            match store.row(rows[at % AHEAD]) {
                Some(row) => out.copy_from_slice(&row[..dim]),
                None => fill_absent(absent, ids[at].into(), at, out),
            }
        }
        if let Some((at, &id)) = at
            .checked_sub(BUCKETS)
            .and_then(|at| Some((at, ids.get(at)?)))
        {
            let key = id.into();
            let row = index.row_from(homes[at % BUCKETS], key, hash(key));
            store.prefetch(row, dim);
            rows[at % AHEAD] = row;
        }
        if let Some(&id) = ids.get(at) {
            let home = index.home(hash(id.into()));
            prefetch(home);
            homes[at % BUCKETS] = home;
        }
    }
}

#[cold]
fn fill_absent(absent: Absent<'_>, key: i64, at: usize, out: &mut [f32]) {
    match absent {
        Absent::Row(row) if key != PADDING => out.copy_from_slice(row),
        Absent::Rows(rows) if key != PADDING => {
            out.copy_from_slice(&rows[at * out.len()..(at + 1) * out.len()]);
        }
        _ => out.fill(0.0),
    }
}
