//! Reads the rows of many tables at once, each table's to a place of its own, or all of them side
//! by side.

use crate::index::Index;
use crate::mem::{rows_ahead, MOST_AHEAD, NONE};
use crate::pool::{ranges, split_mut};
use crate::simd::Level;
use crate::stores::{with_rows_now, ReadRows};
use crate::table::disk::hold_all;
use crate::table::group::{by_address, each, places, Failure};
use crate::table::rows::content::{Content, Offsets};
use crate::table::verbs::read::{row_of, Block};
use crate::table::{Absent, Table};
use crate::{Error, Ids, Pool, Result};
use std::ops::Range;

/// A part of a concatenation should have at least so many floats.
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
}

/// Keys of one table, to be looked up.
#[derive(Clone, Copy, Debug)]
pub struct KeysOf<'a> {
    /// The table.
    pub table: &'a Table,
    /// Keys.
    pub ids: Ids<'a>,
    /// What those without a row get.
    pub absent: Absent<'a>,
}

impl Table {
    /// [`Table::embed`] of several lookups at once; `outs[i]` is for `group[i]`.
    ///
    /// # Errors
    /// As there, of the first lookup that fails. `outs` are then unspecified.
    pub fn embed_many(pool: &Pool, group: &[RowsOf<'_>], mut outs: Vec<&mut [f32]>) -> Result<()> {
        expect_outs(group.len(), outs.len())?;
        if let ([one], [out]) = (group, outs.as_mut_slice()) {
            return one.table.embed(pool, one.offsets, one.inverse, out);
        }
        for (one, out) in group.iter().zip(&outs) {
            one.table.floats("out", out.len(), one.inverse.len())?;
        }
        let tables = by_address(group.iter().map(|one| one.table));
        let _held = hold_all(pool, &tables, |at| group[at].offsets)?;
        let locks: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let contents: Vec<&Content> = locks.iter().map(|content| &**content).collect();
        let places = places(&tables, group.len());
        let failure = Failure::default();
        let items: Vec<_> = group.iter().zip(outs).enumerate().collect();
        each(
            pool,
            items,
            |(_, (one, _))| one.inverse.len(),
            |pool, (at, (one, out))| {
                let content = contents[places[at]];
                let done = one
                    .table
                    .embed_from(pool, content, one.offsets, one.inverse, out);
                failure.note(at, done);
            },
        );
        failure.check()
    }

    /// [`Table::embed`] of several lookups of as many ids each, side by side: `out (n, width)`, of
    /// which each lookup fills as many columns as its table has, from left to right.
    ///
    /// # Errors
    /// As there, and `InvalidArgument` if the lookups have different numbers of ids or `out` has
    /// another size. `out` is then unspecified.
    pub fn embed_side_by_side(pool: &Pool, group: &[RowsOf<'_>], out: &mut [f32]) -> Result<()> {
        let n = group.first().map_or(0, |one| one.inverse.len());
        let width: usize = group.iter().map(|one| one.table.dim()).sum();
        for one in group {
            one.table.length("inverse", one.inverse.len(), n)?;
        }
        if out.len() != n.saturating_mul(width) {
            return Err(Error::invalid("an argument has the wrong length")
                .with("argument", "out")
                .with("length", out.len())
                .with("expected", n.saturating_mul(width)));
        }
        let tables = by_address(group.iter().map(|one| one.table));
        let _held = hold_all(pool, &tables, |at| group[at].offsets)?;
        let locks: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let found: Vec<Offsets<'_>> = locks.iter().map(|content| content.offsets()).collect();
        let places = places(&tables, group.len());
        let mut column = 0;
        let strips = group.iter().zip(&places).map(|(one, &at)| {
            let columns = column..column + one.table.dim();
            column = columns.end;
            Strip {
                one,
                content: &locks[at],
                found: &found[at],
                columns,
            }
        });
        let strips: Vec<Strip<'_>> = strips.collect();
        // Whole blocks, so that the same lookup is the first to fail on any number of threads.
        let widest = group.iter().map(|one| one.table.dim()).max().unwrap_or(1);
        let block = rows_ahead(widest);
        let blocks = n.div_ceil(block);
        let parts = match pool.parts(out.len(), LEAST_FLOATS) {
            1 => 1,
            // A thread that is held up should not hold up the rest.
            parts => (parts * 4).min(blocks),
        };
        let parts: Vec<Range<usize>> = ranges(blocks, parts)
            .into_iter()
            .map(|blocks| blocks.start * block..(blocks.end * block).min(n))
            .collect();
        let work: Vec<_> = parts
            .iter()
            .cloned()
            .zip(split_mut(out, width, &parts))
            .collect();
        pool.try_each(work, |(range, out): (Range<usize>, &mut [f32])| {
            fill_side_by_side(&strips, range, block, width, out)
        })
    }

    /// [`Table::find`] of several batches at once; `outs[i]` is for `group[i]`.
    ///
    /// # Errors
    /// As there, of the first batch that fails.
    pub fn find_many(pool: &Pool, group: &[KeysOf<'_>], mut outs: Vec<&mut [f32]>) -> Result<()> {
        expect_outs(group.len(), outs.len())?;
        if let ([one], [out]) = (group, outs.as_mut_slice()) {
            return one.table.find(pool, one.ids, one.absent, out);
        }
        for (one, out) in group.iter().zip(&outs) {
            one.table.expect_find(one.ids, one.absent, out)?;
        }
        if group.iter().any(|one| one.table.has_tier()) {
            // What is on disk is read with no lock held, so each member has its own moment.
            let mut members = group.iter().zip(outs);
            return members
                .try_for_each(|(one, out)| one.table.find(pool, one.ids, one.absent, out));
        }
        let tables = by_address(group.iter().map(|one| one.table));
        let indexes: Vec<_> = tables.iter().map(|one| one.table.index().read()).collect();
        let contents: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let held: Vec<(&Index, &Content, _)> = indexes
            .iter()
            .zip(&contents)
            .map(|(index, content)| (&**index, &**content, None))
            .collect();
        let places = places(&tables, group.len());
        let failure = Failure::default();
        let items: Vec<_> = group.iter().zip(outs).enumerate().collect();
        each(
            pool,
            items,
            |(_, (one, _))| one.ids.len(),
            |pool, (at, (one, out))| {
                let done = one
                    .table
                    .find_in(pool, held[places[at]], one.ids, one.absent, out);
                failure.note(at, done);
            },
        );
        failure.check()
    }
}

/// The columns of a concatenation that one lookup fills.
struct Strip<'a> {
    one: &'a RowsOf<'a>,
    content: &'a Content,
    found: &'a Offsets<'a>,
    columns: Range<usize>,
}

impl Strip<'_> {
    /// Names the rows of some ids.
    fn rows(&self, ids: Range<usize>, rows: &mut [u32; MOST_AHEAD]) -> Result<()> {
        let RowsOf {
            table,
            offsets,
            inverse,
        } = self.one;
        for (row, &place) in rows.iter_mut().zip(&inverse[ids]) {
            *row = row_of(self.found, offsets, place)
                .map_err(|why| table.bad_place(offsets, place, why))?;
        }
        Ok(())
    }
}

/// Fills the rows of a concatenation that belong to the ids of `range`, in blocks of `block` ids
/// (at most [`MOST_AHEAD`]): one table after the other, while the rows of the next one are on their
/// way.
fn fill_side_by_side(
    strips: &[Strip<'_>],
    range: Range<usize>,
    block: usize,
    width: usize,
    out: &mut [f32],
) -> Result<()> {
    let level = Level::detect();
    let blocks = range.clone().step_by(block);
    let blocks = blocks.map(|start| start..(start + block).min(range.end));
    // In the order in which they are filled.
    let mut later = blocks
        .clone()
        .flat_map(|ids| strips.iter().map(move |strip| (strip, ids.clone())));
    let (mut rows, mut coming) = ([NONE; MOST_AHEAD], [NONE; MOST_AHEAD]);
    if let Some((strip, ids)) = later.next() {
        strip.rows(ids.clone(), &mut rows)?;
        let words = strip.content.layout.words();
        let asked = rows.iter().take(ids.len());
        asked.for_each(|&row| strip.content.store.prefetch(row, words));
    }
    for (ids, out) in blocks.zip(out.chunks_mut((block * width).max(1))) {
        for strip in strips {
            let (next, asked) = match later.next() {
                Some((next, ids)) => {
                    next.rows(ids.clone(), &mut coming)?;
                    if let Some(waiting) = &next.content.waiting {
                        let coming = coming.iter().take(ids.len());
                        coming.for_each(|&row| waiting.prefetch(row));
                    }
                    (next, ids.len())
                }
                None => (strip, 0),
            };
            with_rows_now!(strip.content, store => level.run(Block {
                rows: (store, &rows[..ids.len()]),
                coming: (&next.content.store, next.content.layout.words(), &coming[..asked]),
                dim: strip.columns.len(),
                width,
                first: strip.columns.start,
                out: &mut *out,
            }));
            (rows, coming) = (coming, rows);
        }
    }
    Ok(())
}

/// Refuses another number of outputs than there are members.
pub(in crate::table) fn expect_outs(members: usize, outs: usize) -> Result<()> {
    if members == outs {
        return Ok(());
    }
    Err(Error::invalid("a group needs one output for each member")
        .with("members", members)
        .with("outputs", outs))
}
