//! Reads pooled rows, by offset and by key: the sum of the rows of every bag, straight out of the
//! table.

use crate::batch::distinct::repeat_often;
use crate::batch::pooling::{parts, pool_bags, RowSource};
use crate::batch::restore_pooled;
use crate::history::History;
use crate::index::{hash, Index};
use crate::mem::{prefetch, MOST_AHEAD, NONE};
use crate::simd::Level;
use crate::stores::{with_rows_now, ReadRows};
use crate::table::rows::content::{Content, Offsets};
use crate::table::rows::offset::Unfit;
use crate::table::verbs::read::{row_of, Locked};
use crate::table::{Absent, KeysOf, RowsOf};
use crate::{Bags, Ids, Pool, Result, PADDING};
use std::convert::Infallible;
use std::ops::Range;

impl RowsOf<'_> {
    /// Writes the vectors of `bags`, the lookup's own, to `out (b, dim)`: what
    /// [`restore_pooled`](crate::restore_pooled) gives for the rows of [`Table::lookup`], bit for
    /// bit. These rows are copied to `kept (u, dim)`, unless it is empty.
    pub(in crate::table) fn pool(
        &self,
        pool: &Pool,
        content: &Content,
        bags: &Bags<'_>,
        kept: &mut [f32],
        out: &mut [f32],
    ) -> Result<()> {
        let RowsOf {
            table,
            offsets,
            inverse,
            ..
        } = *self;
        let (level, dim) = (Level::detect(), table.dim());
        if !kept.is_empty() {
            table.lookup_from(pool, content, offsets, kept)?;
            return restore_pooled(pool, kept, dim, inverse, bags, out)
                .map_err(|error| error.with("table", &table.config().name));
        }
        let found = content.offsets();
        pool.try_each(parts(pool, bags, dim, out), |(range, out)| {
            let pooled = with_rows_now!(content, store => {
                let found = &found;
                let rows = OffsetRows {
                    store,
                    found,
                    offsets,
                    inverse,
                    dim,
                };
                pool_bags(level, rows, bags, range, dim, out)
            });
            pooled.map_err(|(place, why)| table.bad_place(offsets, place, why))
        })
    }
}

impl KeysOf<'_> {
    /// Writes the vectors of `bags`, the lookup's own, to `out (b, dim)`.
    pub(in crate::table) fn pool<S: ReadRows>(
        &self,
        pool: &Pool,
        locked: Locked<'_>,
        store: &S,
        bags: &Bags<'_>,
        out: &mut [f32],
    ) {
        let (level, dim) = (Level::detect(), self.table.dim());
        let lookup = &KeyLookup {
            index: locked.index,
            store,
            // Keys that have a row and are below the threshold of admission count as without.
            history: locked.history.filter(|one| one.may_refuse()),
            absent: self.absent,
            dim,
        };
        let repeat = repeat_often(self.ids);
        pool.each(parts(pool, bags, dim, out), |(range, out)| {
            let mut add = |numbered: Option<Numbered<'_>>| {
                let Ok(()) = match self.ids {
                    Ids::I64(ids) => {
                        let rows = KeyRows::new(lookup, ids, numbered);
                        pool_bags(level, rows, bags, range.clone(), dim, out)
                    }
                    Ids::I32(ids) => {
                        let rows = KeyRows::new(lookup, ids, numbered);
                        pool_bags(level, rows, bags, range.clone(), dim, out)
                    }
                };
            };
            if !repeat {
                return add(None);
            }
            let ids = bags.ids(&range);
            let keys = self.table.keys();
            keys.numbered(lookup.index, self.ids.part(ids.clone()), |inverse, rows| {
                rows.iter_mut().for_each(|row| *row = lookup.admitted(*row));
                add(Some(Numbered {
                    start: ids.start,
                    inverse,
                    rows,
                }));
            });
        });
    }
}

/// The rows of offsets; an id is a place among these.
struct OffsetRows<'a, S> {
    store: &'a S,
    found: &'a Offsets<'a>,
    offsets: &'a [i64],
    inverse: &'a [i32],
    dim: usize,
}

impl<S: ReadRows> RowSource for OffsetRows<'_, S> {
    type Place = u32;
    /// The place, and what is wrong with its offset.
    type Error = (i32, Unfit);

    #[inline(always)]
    fn early(&mut self, _: Range<usize>) {}

    #[inline(always)]
    fn ask(&mut self, ids: Range<usize>, places: &mut [u32]) -> Result<(), Self::Error> {
        for (row, &place) in places.iter_mut().zip(&self.inverse[ids]) {
            *row = row_of(self.found, self.offsets, place).map_err(|why| (place, why))?;
            self.store.prefetch(*row, self.dim);
        }
        Ok(())
    }

    #[inline(always)]
    fn row<'s>(&'s self, _: usize, row: u32, scratch: &'s mut [f32]) -> Option<&'s [f32]> {
        let floats = self.store.row(row)?;
        Some(self.store.now(row, floats, scratch))
    }
}

/// What all parts of a lookup by key read.
struct KeyLookup<'a, S> {
    index: &'a Index,
    store: &'a S,
    history: Option<&'a History>,
    absent: Absent<'a>,
    dim: usize,
}

impl<S> KeyLookup<'_, S> {
    /// The row of a key, unless the key is refused.
    #[inline(always)]
    fn admitted(&self, row: u32) -> u32 {
        match self.history {
            Some(history) if row != NONE && history.of_row(row).count < history.access() => NONE,
            _ => row,
        }
    }
}

/// Ids of which each distinct key was looked up once.
struct Numbered<'a> {
    /// The first of the ids.
    start: usize,
    /// For each id the number of its key, -1 for padding.
    inverse: &'a [i32],
    /// By number.
    rows: &'a [u32],
}

/// The rows of keys. Unless these were looked up before, a bucket is asked for early, and read when
/// the row is asked for.
struct KeyRows<'a, T, S> {
    lookup: &'a KeyLookup<'a, S>,
    ids: &'a [T],
    numbered: Option<Numbered<'a>>,
}

impl<T: Copy + Into<i64>, S: ReadRows> RowSource for KeyRows<'_, T, S> {
    type Place = u32;
    type Error = Infallible;

    #[inline(always)]
    fn early(&mut self, ids: Range<usize>) {
        if self.numbered.is_none() {
            let index = self.lookup.index;
            let keys = self.ids[ids].iter();
            keys.for_each(|&id| prefetch(index.home(hash(id.into()))));
        }
    }

    #[inline(always)]
    fn ask(&mut self, ids: Range<usize>, places: &mut [u32]) -> Result<(), Infallible> {
        let KeyLookup { store, dim, .. } = *self.lookup;
        if let Some(Numbered {
            start,
            inverse,
            rows,
        }) = self.numbered
        {
            let numbers = &inverse[ids.start - start..ids.end - start];
            for (row, &number) in places.iter_mut().zip(numbers) {
                *row = rows.get(number as usize).copied().unwrap_or(NONE);
                store.prefetch(*row, dim);
            }
            return Ok(());
        }
        self.look_up(&self.ids[ids], places);
        for row in places {
            *row = self.lookup.admitted(*row);
            store.prefetch(*row, dim);
        }
        Ok(())
    }

    #[inline(always)]
    fn row<'s>(&'s self, at: usize, row: u32, scratch: &'s mut [f32]) -> Option<&'s [f32]> {
        match self.lookup.store.row(row) {
            None => self.absent(at),
            Some(floats) => Some(self.lookup.store.now(row, floats, scratch)),
        }
    }
}

impl<'a, T: Copy + Into<i64>, S> KeyRows<'a, T, S> {
    fn new(lookup: &'a KeyLookup<'a, S>, ids: &'a [T], numbered: Option<Numbered<'a>>) -> Self {
        KeyRows {
            lookup,
            ids,
            numbered,
        }
    }

    /// Finds the rows of some ids, whose homes were asked for.
    #[inline(always)]
    fn look_up(&self, ids: &[T], rows: &mut [u32]) {
        let index = self.lookup.index;
        // Those that may lie behind their homes, listed without a branch.
        let (mut beyond, mut count) = ([0_u8; MOST_AHEAD], 0);
        for (at, (row, &id)) in rows.iter_mut().zip(ids).enumerate() {
            let (found, further) = index.row_at_home(id.into());
            *row = found;
            beyond[count % MOST_AHEAD] = at as u8;
            count += usize::from(further);
        }
        for &at in beyond.iter().take(count) {
            rows[usize::from(at)] = index.row_beyond(ids[usize::from(at)].into());
        }
    }

    #[cold]
    fn absent(&self, at: usize) -> Option<&[f32]> {
        let dim = self.lookup.dim;
        match self.lookup.absent {
            _ if self.ids[at].into() == PADDING => None,
            // A pooled lookup is refused with initial rows.
            Absent::Zeros | Absent::Initial(_) => None,
            Absent::Row(row) => Some(row),
            Absent::Rows(rows) => rows.get(at * dim..(at + 1) * dim),
        }
    }
}
