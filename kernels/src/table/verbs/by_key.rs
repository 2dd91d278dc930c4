//! Where the rows of keys are: each id is looked up by itself or, where ids repeat, each distinct
//! key once.

use crate::history::History;
use crate::index::Index;
use crate::mem::{BLOCK, NONE};
use crate::stores::SideRows;
use crate::table::rows::content::Content;
use crate::table::{Absent, Table};
use crate::{Bags, Ids, PADDING};
use std::ops::Range;

/// Keys of one table, to be looked up.
#[derive(Clone, Copy, Debug)]
pub struct KeysOf<'a> {
    /// The table.
    pub table: &'a Table,
    /// Keys.
    pub ids: Ids<'a>,
    /// What those without a row get, or add to their bag. Padding gets zeros and adds nothing.
    pub absent: Absent<'a>,
    /// Which ids belong together, of a pooled lookup.
    pub bags: Option<Bags<'a>>,
}

/// What of a table is locked while its keys are looked up, and the rows on disk beside.
#[derive(Clone, Copy)]
pub(in crate::table) struct Locked<'a> {
    pub(in crate::table) index: &'a Index,
    pub(in crate::table) content: &'a Content,
    pub(in crate::table) history: Option<&'a History>,
    pub(in crate::table) side: Option<&'a SideRows>,
}

/// The rows of the ids of a part of a batch. Positions are those in the batch.
pub(in crate::table) struct KeyRows<'a> {
    index: &'a Index,
    history: Option<&'a History>,
    ids: Ids<'a>,
    /// If each distinct key was looked up before.
    numbered: Option<Numbered<'a>>,
}

/// Ids whose distinct keys have numbers.
struct Numbered<'a> {
    /// The position of the first id.
    start: usize,
    /// For each id the number of its key, -1 for padding.
    inverse: &'a [i32],
    /// By number.
    rows: &'a [u32],
}

impl KeysOf<'_> {
    /// Calls `f` with the rows of the ids at the positions of `part`; `repeat` says that it takes
    /// less time to make them distinct first.
    pub(super) fn with_rows<R>(
        &self,
        locked: Locked<'_>,
        part: Range<usize>,
        repeat: bool,
        f: impl FnOnce(KeyRows<'_>) -> R,
    ) -> R {
        let index = locked.index;
        // Keys that have a row and are below the threshold of admission count as without.
        let history = locked.history.filter(|one| one.may_refuse());
        if !repeat {
            return f(KeyRows::new(index, history, self.ids, None));
        }
        let (start, ids) = (part.start, self.ids.part(part));
        self.table.keys().numbered(index, ids, |inverse, rows| {
            leave_admitted(history, rows);
            let numbered = Some(Numbered {
                start,
                inverse,
                rows,
            });
            f(KeyRows::new(index, history, self.ids, numbered))
        })
    }

    /// What the id at a position gets, or adds to its bag, if its key has no row: `None` for zeros,
    /// and for initial rows.
    #[cold]
    pub(super) fn absent_row(&self, at: usize) -> Option<&[f32]> {
        let dim = self.table.dim();
        match self.absent {
            _ if self.ids.get(at) == PADDING => None,
            Absent::Zeros | Absent::Initial(_) => None,
            Absent::Row(row) => Some(row),
            Absent::Rows(rows) => rows.get(at * dim..(at + 1) * dim),
        }
    }
}

impl<'a> KeyRows<'a> {
    fn new(
        index: &'a Index,
        history: Option<&'a History>,
        ids: Ids<'a>,
        numbered: Option<Numbered<'a>>,
    ) -> KeyRows<'a> {
        KeyRows {
            index,
            history,
            ids,
            numbered,
        }
    }

    /// Asks for what [`KeyRows::find`] reads of some ids.
    #[inline(always)]
    pub(super) fn ask(&self, ids: Range<usize>) {
        if self.numbered.is_none() {
            match self.ids.part(ids) {
                Ids::I64(ids) => self.ask_homes(ids),
                Ids::I32(ids) => self.ask_homes(ids),
            }
        }
    }

    /// Finds the rows of a block of at most [`BLOCK`] ids, which were asked for; [`NONE`] for
    /// those without.
    #[inline(always)]
    pub(super) fn find(&self, block: Range<usize>, rows: &mut [u32]) {
        if let Some(known) = &self.numbered {
            let numbers = &known.inverse[block.start - known.start..block.end - known.start];
            for (row, &number) in rows.iter_mut().zip(numbers) {
                *row = known.rows.get(number as usize).copied().unwrap_or(NONE);
            }
            return;
        }
        let rows = &mut rows[..block.len()];
        match self.ids.part(block) {
            Ids::I64(ids) => self.read_homes(ids, rows),
            Ids::I32(ids) => self.read_homes(ids, rows),
        }
        leave_admitted(self.history, rows);
    }

    #[inline(always)]
    fn ask_homes<T: Copy + Into<i64>>(&self, ids: &[T]) {
        for &id in ids {
            self.index.ask(id.into());
        }
    }

    /// Those of keys behind their homes come last: the buckets there are asked for while the others
    /// are read.
    #[inline(always)]
    fn read_homes<T: Copy + Into<i64>>(&self, ids: &[T], rows: &mut [u32]) {
        let mut beyond = [0; BLOCK];
        let count = self.index.read_homes(ids, rows, 0, &mut beyond);
        self.index.read_beyond(ids, rows, &beyond[..count]);
    }
}

/// Takes the rows of refused keys out.
#[inline(always)]
fn leave_admitted(history: Option<&History>, rows: &mut [u32]) {
    let Some(history) = history else {
        return;
    };
    let access = history.access();
    for row in rows.iter_mut().filter(|row| **row != NONE) {
        if history.of_row(*row).count < access {
            *row = NONE;
        }
    }
}
