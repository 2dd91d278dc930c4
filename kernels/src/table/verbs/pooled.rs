//! Reads pooled rows, by offset and by key: the sum of the rows of every bag, straight out of the
//! table.

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
        pool.each(parts(pool, bags, dim, out), |(range, out)| {
            let Ok(()) = match self.ids {
                Ids::I64(ids) => pool_bags(level, KeyRows { lookup, ids }, bags, range, dim, out),
                Ids::I32(ids) => pool_bags(level, KeyRows { lookup, ids }, bags, range, dim, out),
            };
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

/// The rows of keys: a bucket is asked for early, read when the row is asked for.
struct KeyRows<'a, T, S> {
    lookup: &'a KeyLookup<'a, S>,
    ids: &'a [T],
}

impl<T: Copy + Into<i64>, S: ReadRows> RowSource for KeyRows<'_, T, S> {
    type Place = u32;
    type Error = Infallible;

    #[inline(always)]
    fn early(&mut self, ids: Range<usize>) {
        let index = self.lookup.index;
        let keys = self.ids[ids].iter();
        keys.for_each(|&id| prefetch(index.home(hash(id.into()))));
    }

    #[inline(always)]
    fn ask(&mut self, ids: Range<usize>, places: &mut [u32]) -> Result<(), Infallible> {
        let KeyLookup {
            index,
            store,
            history,
            dim,
            ..
        } = *self.lookup;
        let ids = &self.ids[ids];
        // Those that may lie behind their homes, listed without a branch.
        let (mut beyond, mut count) = ([0_u8; MOST_AHEAD], 0);
        for (at, (row, &id)) in places.iter_mut().zip(ids).enumerate() {
            let (found, further) = index.row_at_home(id.into());
            *row = found;
            beyond[count % MOST_AHEAD] = at as u8;
            count += usize::from(further);
        }
        for &at in beyond.iter().take(count) {
            places[usize::from(at)] = index.row(ids[usize::from(at)].into());
        }
        for row in places {
            if let Some(history) = history {
                if *row != NONE && history.of_row(*row).count < history.access() {
                    *row = NONE;
                }
            }
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

impl<T: Copy + Into<i64>, S> KeyRows<'_, T, S> {
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
