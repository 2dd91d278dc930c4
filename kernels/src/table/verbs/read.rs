//! Reads rows by offset and by key, and prefetches later rows while earlier ones are copied.

use crate::batch::distinct::repeat_often;
use crate::batch::out_of_range;
use crate::mem::{BLOCK, NONE};
use crate::pool::{ranges, shares};
use crate::simd::{Level, Vectorized};
use crate::stores::{as_now, with_rows_now, ReadRows, Store};
use crate::sync::RwLock;
use crate::table::rows::content::{Content, Offsets};
use crate::table::rows::offset::Unfit;
use crate::table::verbs::by_key::{KeyRows, KeysOf, Locked};
use crate::table::{Absent, Table};
use crate::{Bags, Error, Pool, Result, PADDING};
use std::ops::Range;

/// A part of a batch should copy at least so many floats.
const LEAST_FLOATS: usize = 1 << 15;

/// What one lookup has found, to be read.
#[derive(Clone, Copy, Debug)]
pub struct RowsOf<'a> {
    /// The table.
    pub table: &'a Table,
    /// The offsets of its distinct keys `(u)`; -1 and 0 give zeros.
    pub offsets: &'a [i64],
    /// For each id its place among them `(n)`; -1 gives zeros.
    pub inverse: &'a [i32],
    /// Which ids belong together, of a pooled lookup.
    pub bags: Option<Bags<'a>>,
}

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
        let content = self.content_with(pool, offsets, RwLock::read)?;
        self.lookup_from(pool, &content, offsets, out)
    }

    /// [`Table::lookup`] of a content that is locked.
    pub(in crate::table) fn lookup_from(
        &self,
        pool: &Pool,
        content: &Content,
        offsets: &[i64],
        out: &mut [f32],
    ) -> Result<()> {
        let rows = content.offsets();
        self.parts(pool, offsets.len(), out, |range, out| {
            let offsets = &offsets[range];
            let row = |at: usize| rows.readable(offsets[at]);
            copy_rows(content, offsets.len(), row, self.dim(), out)
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
        let content = self.content_with(pool, offsets, RwLock::read)?;
        self.embed_from(pool, &content, offsets, inverse, out)
    }

    /// [`Table::embed`] of a content that is locked.
    pub(in crate::table) fn embed_from(
        &self,
        pool: &Pool,
        content: &Content,
        offsets: &[i64],
        inverse: &[i32],
        out: &mut [f32],
    ) -> Result<()> {
        let rows = content.offsets();
        self.parts(pool, inverse.len(), out, |range, out| {
            let inverse = &inverse[range];
            let row = |at: usize| row_of(&rows, offsets, inverse[at]);
            copy_rows(content, inverse.len(), row, self.dim(), out)
                .map_err(|(at, why)| self.bad_place(offsets, inverse[at], why))
        })
    }

    /// What is wrong with the place of an id among offsets, or with the offset there.
    #[cold]
    pub(in crate::table) fn bad_place(&self, offsets: &[i64], place: i32, why: Unfit) -> Error {
        match offsets.get(place as usize) {
            Some(&offset) => self.bad_offset("offsets", offset, why),
            None => out_of_range(place, offsets.len()).with("table", &self.config().name),
        }
    }

    /// Refuses bags that are not those of `n` ids.
    pub(in crate::table) fn expect_bags(&self, bags: Option<&Bags<'_>>, n: usize) -> Result<()> {
        self.named(bags.map_or(Ok(()), |bags| bags.check(n)))
    }

    /// Cuts `out (n, dim)` into parts for the threads of a pool.
    pub(in crate::table) fn parts(
        &self,
        pool: &Pool,
        n: usize,
        out: &mut [f32],
        f: impl Fn(Range<usize>, &mut [f32]) -> Result<()> + Sync,
    ) -> Result<()> {
        let parts = turns(pool, out.len(), n.max(1));
        let work = shares(out, self.dim(), ranges(n, parts));
        pool.try_each(work, |(range, out)| f(range, out))
    }
}

impl KeysOf<'_> {
    /// Refuses what is not as long as it should be, and initial rows of bags.
    pub(in crate::table) fn check(&self, out: &[f32]) -> Result<()> {
        let (table, ids) = (self.table, self.ids.len());
        table.floats("out", out.len(), self.bags.map_or(ids, |bags| bags.len()))?;
        match self.absent {
            Absent::Row(row) => table.floats("absent", row.len(), 1)?,
            Absent::Rows(rows) => table.floats("absent", rows.len(), ids)?,
            Absent::Initial(_) if self.bags.is_some() => {
                return Err(table.refuse("a pooled lookup gives no initial rows"));
            }
            Absent::Zeros | Absent::Initial(_) => {}
        }
        table.expect_bags(self.bags.as_ref(), ids)
    }

    /// Looks the keys up in a table of which nothing is locked yet; `out` was checked.
    pub(in crate::table) fn find(&self, pool: &Pool, out: &mut [f32]) -> Result<()> {
        let table = self.table;
        table.reading_through(pool, self.ids, |index, content, side| {
            let history = table.history().read();
            let locked = Locked {
                index,
                content,
                history: history.as_deref(),
                side,
            };
            self.find_in(pool, locked, out)
        })
    }

    /// Looks the keys up in a table that is locked; `out` was checked.
    pub(in crate::table) fn find_in(
        &self,
        pool: &Pool,
        locked: Locked<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let content = locked.content;
        match &content.store {
            Store::InMemory(rows) => {
                as_now!(content, rows, now => self.find_rows(pool, locked, now, out))
            }
            Store::Tiered(tiered) => {
                let rows = &tiered.beside(locked.side);
                as_now!(content, rows, now => self.find_rows(pool, locked, now, out))
            }
        }
    }

    fn find_rows<S: ReadRows>(
        &self,
        pool: &Pool,
        locked: Locked<'_>,
        rows: &S,
        out: &mut [f32],
    ) -> Result<()> {
        if let Some(bags) = &self.bags {
            self.pool(pool, locked, rows, bags, out);
            return Ok(());
        }
        let level = Level::detect();
        let repeat = repeat_often(locked.index, self.ids);
        self.table.parts(pool, self.ids.len(), out, |range, out| {
            self.with_rows(locked, range.clone(), repeat, |found| {
                level.run(Find {
                    rows,
                    found,
                    keys: self,
                    range,
                    out,
                });
            });
            Ok(())
        })
    }
}

/// Into how many parts, of `most`, a copy of so many floats is cut.
pub(in crate::table) fn turns(pool: &Pool, floats: usize, most: usize) -> usize {
    match pool.parts(floats, LEAST_FLOATS) {
        1 => 1,
        // A thread that is held up should not hold up the rest.
        parts => (parts * 4).min(most),
    }
}

/// The row of an id: of the offset at its place, and none for the place -1.
#[inline(always)]
pub(in crate::table) fn row_of(
    rows: &Offsets<'_>,
    offsets: &[i64],
    place: i32,
) -> Result<u32, Unfit> {
    match offsets.get(place as usize) {
        Some(&offset) => rows.readable(offset),
        None if place == -1 => Ok(NONE),
        None => Err(Unfit::Unknown),
    }
}

/// Copies `n` rows, those that `row` names, to `out (n, dim)`, or returns the position of the first
/// for which it names none, and why.
#[inline(always)]
fn copy_rows(
    content: &Content,
    n: usize,
    row: impl Fn(usize) -> Result<u32, Unfit>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), (usize, Unfit)> {
    with_rows_now!(content, store => copy_rows_from(store, n, row, dim, out))
}

/// [`copy_rows`] for one kind of store.
#[inline(always)]
fn copy_rows_from<S: ReadRows>(
    store: &S,
    n: usize,
    row: impl Fn(usize) -> Result<u32, Unfit>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), (usize, Unfit)> {
    let level = Level::detect();
    let name = |from: usize, rows: &mut [u32; BLOCK]| -> Result<usize, (usize, Unfit)> {
        let count = BLOCK.min(n - from.min(n));
        for (at, place) in (from..).zip(&mut rows[..count]) {
            *place = row(at).map_err(|why| (at, why))?;
        }
        store.ask(&rows[..count], dim);
        Ok(count)
    };
    let (mut rows, mut coming) = ([NONE; BLOCK], [NONE; BLOCK]);
    let mut count = name(0, &mut rows)?;
    let mut from = 0;
    for out in out.chunks_mut((BLOCK * dim).max(1)) {
        from += count;
        let next = name(from, &mut coming)?;
        level.run(CopyRows {
            store,
            rows: &rows[..count],
            dim,
            outs: out.chunks_exact_mut(dim.max(1)),
        });
        (rows, coming) = (coming, rows);
        count = next;
    }
    Ok(())
}

/// Copies rows, which were asked for before.
pub(in crate::table) struct CopyRows<'a, S, O> {
    /// Where they are.
    pub(in crate::table) store: &'a S,
    /// Rows to be copied.
    pub(in crate::table) rows: &'a [u32],
    /// Floats of each.
    pub(in crate::table) dim: usize,
    /// `dim` floats for each row.
    pub(in crate::table) outs: O,
}

impl<'o, S: ReadRows, O: Iterator<Item = &'o mut [f32]>> Vectorized for CopyRows<'_, S, O> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.dim {
            // They are not copied.
            _ if S::DECODES => self.copy(copy_row),
            1 => self.copy(fixed::<1>),
            8 => self.copy(fixed::<8>),
            16 => self.copy(fixed::<16>),
            32 => self.copy(fixed::<32>),
            64 => self.copy(fixed::<64>),
            _ => self.copy(copy_row),
        }
    }
}

impl<'o, S: ReadRows, O: Iterator<Item = &'o mut [f32]>> CopyRows<'_, S, O> {
    #[inline(always)]
    fn copy(self, copy: impl Fn(&[f32], &mut [f32])) {
        let (store, dim) = (self.store, self.dim);
        let mut scratch = vec![0.0; if S::SCRATCH && !S::DECODES { dim } else { 0 }];
        for (&number, out) in self.rows.iter().zip(self.outs) {
            match store.row(number) {
                Some(row) if S::DECODES => {
                    store.now(number, row, out);
                }
                Some(row) => copy(&store.now(number, row, &mut scratch)[..dim], out),
                None => out.fill(0.0),
            }
        }
    }
}

/// Copies a row of `N` floats.
#[inline(always)]
fn fixed<const N: usize>(row: &[f32], out: &mut [f32]) {
    if let (Some(row), Some(out)) = (row.first_chunk::<N>(), out.first_chunk_mut::<N>()) {
        *out = *row;
    }
}

/// Copies a row to `out`, which is as long. Rows are short: a call of `memcpy` takes longer than
/// their copy.
#[inline(always)]
fn copy_row(row: &[f32], out: &mut [f32]) {
    let (rows, row) = row.as_chunks::<16>();
    let (outs, out) = out.as_chunks_mut::<16>();
    for (out, row) in outs.iter_mut().zip(rows) {
        *out = *row;
    }
    let (rows, row) = row.as_chunks::<4>();
    let (outs, out) = out.as_chunks_mut::<4>();
    for (out, row) in outs.iter_mut().zip(rows) {
        *out = *row;
    }
    if let ([row], [out]) = (row, &mut *out) {
        *out = *row;
    } else if !row.is_empty() {
        out.copy_from_slice(row);
    }
}

/// Copies the rows of some ids on the caller's thread.
struct Find<'a, S> {
    rows: &'a S,
    found: KeyRows<'a>,
    keys: &'a KeysOf<'a>,
    range: Range<usize>,
    out: &'a mut [f32],
}

impl<S: ReadRows> Vectorized for Find<'_, S> {
    type Output = ();

    /// In three stages, each a block of ids behind the one before: ask for the places in the index;
    /// read them and ask for the rows; copy the rows.
    #[inline(always)]
    fn run(self) {
        let Find {
            rows: store,
            found,
            keys,
            range,
            out,
        } = self;
        let dim = keys.table.dim();
        let block = |start: usize| start.min(range.end)..(start + BLOCK).min(range.end);
        let find = |ids: Range<usize>, rows: &mut [u32; BLOCK]| {
            let rows = &mut rows[..ids.len()];
            found.find(ids, rows);
            store.ask(rows, dim);
        };
        let (mut rows, mut coming) = ([NONE; BLOCK], [NONE; BLOCK]);
        let first = block(range.start);
        found.ask(first.start..block(first.end).end);
        find(first, &mut rows);
        let starts = (range.start..).step_by(BLOCK);
        for (start, out) in starts.zip(out.chunks_mut(BLOCK * dim)) {
            let ids = block(start);
            found.ask(block(start + 2 * BLOCK));
            find(block(ids.end), &mut coming);
            let copied = CopyRows {
                store,
                rows: &rows[..ids.len()],
                dim,
                outs: out.chunks_exact_mut(dim),
            };
            copied.run();
            if !matches!(keys.absent, Absent::Zeros) {
                for ((at, out), &row) in ids.zip(out.chunks_exact_mut(dim)).zip(&rows) {
                    if store.row(row).is_none() {
                        keys.fill_absent(at, out);
                    }
                }
            }
            (rows, coming) = (coming, rows);
        }
    }
}

impl KeysOf<'_> {
    /// Writes what the id at a position gets whose key has no row over zeros.
    #[cold]
    fn fill_absent(&self, at: usize, out: &mut [f32]) {
        match (self.absent, self.ids.get(at)) {
            (Absent::Initial(config), key) if key != PADDING => config.fill_initial(key, out),
            _ => {
                if let Some(row) = self.absent_row(at) {
                    out.copy_from_slice(row);
                }
            }
        }
    }
}
