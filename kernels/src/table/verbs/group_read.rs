//! Reads the rows of many tables at once, each table's to a place of its own, or all of them side
//! by side.

use crate::mem::{prefetch_lines, BLOCK, NONE};
use crate::pool::{ranges, shares, Parts};
use crate::simd::Level;
use crate::stores::with_rows_now;
use crate::sync::RwLock;
use crate::table::disk::hold_all;
use crate::table::group::{by_address, each, lists, places, Failure};
use crate::table::rows::content::{Content, Offsets};
use crate::table::verbs::by_key::Locked;
use crate::table::verbs::read::{row_of, turns, CopyRows};
use crate::table::{KeysOf, RowsOf, Table};
use crate::{Error, Pool, Result};
use std::ops::Range;

impl RowsOf<'_> {
    /// Refuses what is not as long as it should be.
    fn check(&self, kept: &[f32], out: &[f32]) -> Result<()> {
        let (table, ids) = (self.table, self.inverse.len());
        table.floats("out", out.len(), self.bags.map_or(ids, |bags| bags.len()))?;
        if !kept.is_empty() {
            table.floats("kept", kept.len(), self.offsets.len())?;
        }
        table.expect_bags(self.bags.as_ref(), ids)
    }

    fn read(
        &self,
        pool: &Pool,
        content: &Content,
        kept: &mut [f32],
        out: &mut [f32],
    ) -> Result<()> {
        match &self.bags {
            Some(bags) => self.pool(pool, content, bags, kept, out),
            None => self
                .table
                .embed_from(pool, content, self.offsets, self.inverse, out),
        }
    }
}

impl Table {
    /// Copies the rows of the ids of several lookups, as [`Table::embed`] does; of a pooled lookup
    /// the vectors of its bags `(b, dim)`. `outs[i]` is for `group[i]`. `kept`, which may end
    /// before, gets the distinct rows `(u, dim)` of pooled lookups, or nothing if it is empty.
    ///
    /// # Errors
    /// As there, and `InvalidArgument` for bags that are not those of the ids, of the first lookup
    /// that fails. `outs` are then unspecified.
    pub fn embed_many(
        pool: &Pool,
        group: &[RowsOf<'_>],
        mut outs: Vec<&mut [f32]>,
        kept: Vec<&mut [f32]>,
    ) -> Result<()> {
        expect_outs(group.len(), outs.len())?;
        let nothing = std::iter::repeat_with(Default::default);
        let mut kept: Vec<&mut [f32]> = kept.into_iter().chain(nothing).take(group.len()).collect();
        for ((one, out), kept) in group.iter().zip(&outs).zip(&kept) {
            one.check(kept, out)?;
        }
        if let ([one], [out], [kept]) = (group, outs.as_mut_slice(), kept.as_mut_slice()) {
            let content = one.table.content_with(pool, one.offsets, RwLock::read)?;
            return one.read(pool, &content, kept, out);
        }
        let tables = by_address(group.iter().map(|one| one.table));
        let _held = hold_all(pool, &tables, |at| group[at].offsets)?;
        let contents: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let contents: Vec<&Content> = contents.iter().map(|content| &**content).collect();
        let places = places(&tables, group.len());
        let failure = Failure::default();
        let items = group.iter().zip(outs.into_iter().zip(kept)).enumerate();
        each(
            pool,
            items.collect(),
            // Also an empty bag has a vector to be written.
            |(_, (one, _))| one.inverse.len() + one.bags.map_or(0, |bags| bags.len()),
            |pool, (at, (one, (out, kept)))| {
                failure.note(at, one.read(pool, contents[places[at]], kept, out));
            },
        );
        failure.check()
    }

    /// [`Table::embed`] of several lookups of as many ids each, side by side: `out (n, width)`, of
    /// which each lookup fills as many columns as its table has, from left to right.
    ///
    /// # Errors
    /// As there, and `InvalidArgument` if the lookups have different numbers of ids, one is pooled,
    /// or `out` has another size. `out` is then unspecified.
    pub fn embed_side_by_side(pool: &Pool, group: &[RowsOf<'_>], out: &mut [f32]) -> Result<()> {
        let n = group.first().map_or(0, |one| one.inverse.len());
        let width: usize = group.iter().map(|one| one.table.dim()).sum();
        for one in group {
            one.table.length("inverse", one.inverse.len(), n)?;
            if one.bags.is_some() {
                return Err(one.table.refuse("a pooled lookup stands beside no other"));
            }
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
        let strips = group.iter().zip(&places).map(|(one, &at)| Strip {
            one,
            content: &locks[at],
            found: &found[at],
        });
        // Whole blocks, so that the same lookup is the first to fail on any number of threads.
        let blocks = n.div_ceil(BLOCK);
        let turns = turns(pool, out.len(), blocks * group.len());
        // A thread fills neighbouring columns.
        let count = pool.threads().min(turns).min(group.len()).max(1);
        let strips = lists(strips.collect(), count, Strip::dim);
        let mut lists = columns_of(out, &strips);
        let parts = ranges(blocks, turns.div_ceil(count).min(blocks));
        let parts = parts.into_iter();
        let parts = parts.map(|blocks| blocks.start * BLOCK..(blocks.end * BLOCK).min(n));
        let parts: Parts<Range<usize>> = parts.collect();
        let work = strips.iter().zip(&mut lists).map(|(strips, rows)| {
            let shares = shares(rows, 1, parts.clone());
            shares
                .map(|(range, outs)| (&strips[..], range, outs))
                .collect()
        });
        let done = pool.try_each_of(work.collect(), |(strips, range, outs)| {
            fill_side_by_side(strips, range, outs)
        });
        drop(lists);
        if done.is_err() && count > 1 {
            // The first lookup that fails is that of the first block.
            let strips = vec![strips.into_iter().flatten().collect::<Vec<_>>()];
            for outs in &mut columns_of(out, &strips) {
                fill_side_by_side(&strips[0], 0..n, outs)?;
            }
        }
        done
    }

    /// Copies the rows of the keys of several batches, a row for each id `(n, dim)`, of a pooled
    /// lookup the vectors of its bags `(b, dim)`; `outs[i]` is for `group[i]`. No key gets a row.
    /// The distinct keys of a large batch whose ids repeat are looked up once each.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length of `outs` or `absent`, and for bags that are not those
    /// of the ids; with a tier what its files refuse, and `DataLoss` for a record that is damaged.
    /// It is the error of the first batch that fails.
    pub fn find_many(pool: &Pool, group: &[KeysOf<'_>], outs: Vec<&mut [f32]>) -> Result<()> {
        expect_outs(group.len(), outs.len())?;
        for (one, out) in group.iter().zip(&outs) {
            one.check(out)?;
        }
        if group.iter().any(|one| one.table.has_tier()) {
            // What is on disk is read with no lock held, so each member has its own moment.
            let mut members = group.iter().zip(outs);
            return members.try_for_each(|(one, out)| one.find(pool, out));
        }
        let tables = by_address(group.iter().map(|one| one.table));
        let indexes: Vec<_> = tables.iter().map(|one| one.table.index().read()).collect();
        let contents: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let histories: Vec<_> = tables
            .iter()
            .map(|one| one.table.history().read())
            .collect();
        let held: Vec<Locked<'_>> = (0..tables.len())
            .map(|at| Locked {
                index: &indexes[at],
                content: &contents[at],
                history: histories[at].as_deref(),
                side: None,
            })
            .collect();
        let places = places(&tables, group.len());
        let failure = Failure::default();
        each(
            pool,
            group.iter().zip(outs).enumerate().collect(),
            // Also an empty bag has a vector to be written.
            |(_, (one, _))| one.ids.len() + one.bags.map_or(0, |bags| bags.len()),
            |pool, (at, (one, out))| {
                failure.note(at, one.find_in(pool, held[places[at]], out));
            },
        );
        failure.check()
    }
}

/// A lookup that fills some columns of a concatenation.
struct Strip<'a> {
    one: &'a RowsOf<'a>,
    content: &'a Content,
    found: &'a Offsets<'a>,
}

impl Strip<'_> {
    fn dim(&self) -> usize {
        self.one.table.dim()
    }

    /// Names the rows of some ids, and asks for them.
    fn ask(&self, ids: Range<usize>, rows: &mut [u32; BLOCK]) -> Result<()> {
        let (table, offsets) = (self.one.table, self.one.offsets);
        let Content {
            store,
            layout,
            waiting,
            ..
        } = self.content;
        let (words, rows) = (layout.words(), &mut rows[..ids.len()]);
        for (row, &place) in rows.iter_mut().zip(&self.one.inverse[ids]) {
            *row = row_of(self.found, offsets, place)
                .map_err(|why| table.bad_place(offsets, place, why))?;
        }
        if let Some(waiting) = waiting {
            rows.iter().for_each(|&row| waiting.prefetch(row));
        }
        store.ask(rows, words);
        Ok(())
    }
}

/// Cuts the rows of a concatenation where the columns of each list begin: for each list its part of
/// every row.
fn columns_of<'o>(out: &'o mut [f32], lists: &[Vec<Strip<'_>>]) -> Vec<Vec<&'o mut [f32]>> {
    let dims = |list: &Vec<Strip<'_>>| list.iter().map(Strip::dim).sum();
    let widths: Vec<usize> = lists.iter().map(dims).collect();
    let width = widths.iter().sum::<usize>().max(1);
    let rows = out.len() / width;
    let room = || Vec::with_capacity(rows);
    let mut columns: Vec<Vec<_>> = std::iter::repeat_with(room).take(lists.len()).collect();
    for mut row in out.chunks_exact_mut(width) {
        for (columns, &width) in columns.iter_mut().zip(&widths) {
            columns.extend(row.split_off_mut(..width));
        }
    }
    columns
}

/// Fills what some lookups have of the rows of a concatenation, those of the ids of `range`, in
/// blocks: one table after the other, while the rows of the next one are on their way.
fn fill_side_by_side(
    strips: &[Strip<'_>],
    range: Range<usize>,
    outs: &mut [&mut [f32]],
) -> Result<()> {
    let level = Level::detect();
    let blocks = range.clone().step_by(BLOCK);
    let blocks = blocks.map(|start| start..(start + BLOCK).min(range.end));
    // In the order in which they are filled: which lookup, of which ids, to which columns.
    let mut later = blocks.flat_map(|ids| {
        let columns = strips.iter().scan(0, |end, strip| {
            *end += strip.dim();
            Some(*end - strip.dim()..*end)
        });
        let strips = strips.iter().zip(columns);
        strips.map(move |(strip, columns)| (strip, ids.clone(), columns))
    });
    let of = |ids: &Range<usize>| ids.start - range.start..ids.end - range.start;
    let (mut rows, mut coming) = ([NONE; BLOCK], [NONE; BLOCK]);
    let mut now: Option<(&Strip<'_>, Range<usize>, Range<usize>)> = None;
    loop {
        let next = later.next();
        if let Some((strip, ids, columns)) = &next {
            strip.ask(ids.clone(), &mut coming)?;
            // A line that is written is read before, unless it is here.
            let outs = outs[of(ids)].iter();
            outs.for_each(|row| prefetch_lines(&row[columns.clone()]));
        }
        if let Some((strip, ids, columns)) = now {
            with_rows_now!(strip.content, store => level.run(CopyRows {
                store,
                rows: &rows[..ids.len()],
                dim: strip.dim(),
                outs: outs[of(&ids)].iter_mut().map(|row| &mut row[columns.clone()]),
            }));
        }
        if next.is_none() {
            return Ok(());
        }
        now = next;
        (rows, coming) = (coming, rows);
    }
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
