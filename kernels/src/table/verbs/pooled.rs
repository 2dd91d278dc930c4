//! Reads pooled rows, by offset and by key: the sum of the rows of every bag, straight out of the
//! table.

use crate::batch::pooling::{parts, pool_bags, RowSource};
use crate::batch::{out_of_range, restore_pooled};
use crate::history::History;
use crate::index::{hash, Index};
use crate::mem::{prefetch, MOST_AHEAD, NONE};
use crate::simd::Level;
use crate::stores::{as_now, with_rows_now, ReadRows, SideRows, Store};
use crate::table::rows::content::{Content, Offsets};
use crate::table::rows::offset::Unfit;
use crate::table::verbs::read::row_of;
use crate::table::{Absent, Table};
use crate::{Bags, Error, Ids, Pool, Result, PADDING};
use std::convert::Infallible;
use std::ops::Range;

impl Table {
    /// Pools the rows of ids: `(u)` offsets, for each of `(n)` ids its place among them, and
    /// `(b, dim)` floats, the vectors of `bags`. What [`restore_pooled`](crate::restore_pooled)
    /// gives for the rows of [`Table::lookup`], bit for bit. These rows are copied to `kept`,
    /// `(u, dim)` floats, unless it is empty.
    ///
    /// # Errors
    /// As [`Table::embed`], and `InvalidArgument` for bags that are not those of the ids.
    pub fn embed_pooled(
        &self,
        pool: &Pool,
        offsets: &[i64],
        inverse: &[i32],
        bags: &Bags<'_>,
        kept: &mut [f32],
        out: &mut [f32],
    ) -> Result<()> {
        self.expect_pooled((offsets, inverse), bags, kept, out)?;
        let content = self.content_with(pool, offsets)?;
        self.pool_from(pool, &content, (offsets, inverse), bags, kept, out)
    }

    /// Checks the arguments of [`Table::embed_pooled`].
    pub(in crate::table) fn expect_pooled(
        &self,
        (offsets, inverse): (&[i64], &[i32]),
        bags: &Bags<'_>,
        kept: &[f32],
        out: &[f32],
    ) -> Result<()> {
        self.floats("out", out.len(), bags.len())?;
        if !kept.is_empty() {
            self.floats("kept", kept.len(), offsets.len())?;
        }
        self.expect_bags(bags, inverse.len())
    }

    /// [`Table::embed_pooled`] of a content that is locked, and of arguments that were
    /// checked.
    pub(in crate::table) fn pool_from(
        &self,
        pool: &Pool,
        content: &Content,
        (offsets, inverse): (&[i64], &[i32]),
        bags: &Bags<'_>,
        kept: &mut [f32],
        out: &mut [f32],
    ) -> Result<()> {
        let (level, dim) = (Level::detect(), self.dim());
        if !kept.is_empty() {
            self.lookup_from(pool, content, offsets, kept)?;
            return restore_pooled(pool, kept, dim, inverse, bags, out)
                .map_err(|error| error.with("table", &self.config().name));
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
            pooled.map_err(|(place, why)| match offsets.get(place as usize) {
                Some(&offset) => self.bad_offset("offsets", offset, why),
                None => out_of_range(place, offsets.len()).with("table", &self.config().name),
            })
        })
    }

    /// Pools the rows of keys: `(n)` ids and `(b, dim)` floats, the vectors of `bags`; never
    /// creates a row, and makes nothing distinct. Keys without a row add what `absent` has for
    /// them, padding adds nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length of `out` or `absent`, and for bags that are not those
    /// of the ids.
    pub fn find_pooled(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        bags: &Bags<'_>,
        absent: Absent<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        self.expect_find_pooled(ids, bags, absent, out)?;
        self.reading_through(pool, ids, |index, content, side| {
            let history = self.history().read();
            let keys = KeysIn {
                index,
                history: history.as_deref(),
                ids,
                absent,
            };
            self.find_pooled_from(pool, keys, (content, side), bags, out);
            Ok(())
        })
    }

    /// Checks the arguments of [`Table::find_pooled`].
    pub(in crate::table) fn expect_find_pooled(
        &self,
        ids: Ids<'_>,
        bags: &Bags<'_>,
        absent: Absent<'_>,
        out: &[f32],
    ) -> Result<()> {
        self.floats("out", out.len(), bags.len())?;
        match absent {
            Absent::Zeros => {}
            Absent::Row(row) => self.floats("absent", row.len(), 1)?,
            Absent::Rows(rows) => self.floats("absent", rows.len(), ids.len())?,
            Absent::Initial(_) => {
                return Err(Error::invalid("a pooled lookup gives no initial rows")
                    .with("table", &self.config().name));
            }
        }
        self.expect_bags(bags, ids.len())
    }

    /// [`Table::find_pooled`] in an index, a history and a content that are locked, of arguments
    /// that were checked; rows on disk are in `side`.
    pub(in crate::table) fn find_pooled_from(
        &self,
        pool: &Pool,
        keys: KeysIn<'_>,
        (content, side): (&Content, Option<&SideRows>),
        bags: &Bags<'_>,
        out: &mut [f32],
    ) {
        match &content.store {
            Store::InMemory(rows) => {
                as_now!(content, rows, now => self.find_pooled_in(pool, keys, now, bags, out));
            }
            Store::Tiered(tiered) => {
                let rows = &tiered.beside(side);
                as_now!(content, rows, now => self.find_pooled_in(pool, keys, now, bags, out));
            }
        }
    }

    fn find_pooled_in<S: ReadRows>(
        &self,
        pool: &Pool,
        keys: KeysIn<'_>,
        store: &S,
        bags: &Bags<'_>,
        out: &mut [f32],
    ) {
        let KeysIn {
            index,
            history,
            ids,
            absent,
        } = keys;
        let lookup = &KeyLookup {
            index,
            store,
            // Keys that have a row and are below the threshold of admission count as without.
            history: history.filter(|one| one.may_refuse()),
            absent,
            dim: self.dim(),
        };
        let (level, dim) = (Level::detect(), self.dim());
        pool.each(parts(pool, bags, dim, out), |(range, out)| {
            let Ok(()) = match ids {
                Ids::I64(ids) => pool_bags(level, KeyRows { lookup, ids }, bags, range, dim, out),
                Ids::I32(ids) => pool_bags(level, KeyRows { lookup, ids }, bags, range, dim, out),
            };
        });
    }

    /// Refuses bags that are not those of `n` ids.
    pub(in crate::table) fn expect_bags(&self, bags: &Bags<'_>, n: usize) -> Result<()> {
        bags.check(n)
            .map_err(|error| error.with("table", &self.config().name))
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

/// Keys, and where their rows are found: what of it is locked.
pub(in crate::table) struct KeysIn<'a> {
    pub(in crate::table) index: &'a Index,
    pub(in crate::table) history: Option<&'a History>,
    pub(in crate::table) ids: Ids<'a>,
    pub(in crate::table) absent: Absent<'a>,
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
