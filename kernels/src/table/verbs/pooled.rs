//! Reads pooled rows, by offset and by key: the sum of the rows of every bag, straight out of the
//! table.

use crate::batch::distinct::repeat_often;
use crate::batch::pooling::{parts, pool_bags, RowSource};
use crate::batch::restore_pooled;
use crate::simd::Level;
use crate::stores::{with_rows_now, ReadRows};
use crate::table::rows::content::{Content, Offsets};
use crate::table::rows::offset::Unfit;
use crate::table::verbs::by_key::{KeyRows, Locked};
use crate::table::verbs::read::row_of;
use crate::table::{KeysOf, RowsOf};
use crate::{Bags, Pool, Result};
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
            return table.named(restore_pooled(pool, kept, dim, inverse, bags, out));
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
        let repeat = repeat_often(locked.index, self.ids);
        pool.each(parts(pool, bags, dim, out), |(range, out)| {
            self.with_rows(locked, bags.ids(&range), repeat, |found| {
                let rows = RowsOfKeys {
                    store,
                    found,
                    keys: self,
                    dim,
                };
                let Ok(()) = pool_bags(level, rows, bags, range, dim, out);
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
    fn find(&mut self, ids: Range<usize>, places: &mut [u32]) -> Result<(), Self::Error> {
        for (row, &place) in places.iter_mut().zip(&self.inverse[ids]) {
            *row = row_of(self.found, self.offsets, place).map_err(|why| (place, why))?;
        }
        self.store.ask(places, self.dim);
        Ok(())
    }

    #[inline(always)]
    fn row<'s>(&'s self, _: usize, row: u32, scratch: &'s mut [f32]) -> Option<&'s [f32]> {
        let floats = self.store.row(row)?;
        Some(self.store.now(row, floats, scratch))
    }
}

/// The rows of keys.
struct RowsOfKeys<'a, S> {
    store: &'a S,
    found: KeyRows<'a>,
    keys: &'a KeysOf<'a>,
    dim: usize,
}

impl<S: ReadRows> RowSource for RowsOfKeys<'_, S> {
    type Place = u32;
    type Error = Infallible;

    #[inline(always)]
    fn early(&mut self, ids: Range<usize>) {
        self.found.ask(ids);
    }

    #[inline(always)]
    fn find(&mut self, ids: Range<usize>, places: &mut [u32]) -> Result<(), Infallible> {
        self.found.find(ids, places);
        self.store.ask(places, self.dim);
        Ok(())
    }

    #[inline(always)]
    fn row<'s>(&'s self, at: usize, row: u32, scratch: &'s mut [f32]) -> Option<&'s [f32]> {
        match self.store.row(row) {
            None => self.keys.absent_row(at),
            Some(floats) => Some(self.store.now(row, floats, scratch)),
        }
    }
}
