//! What a table needs of whatever holds the floats of its rows.
//!
//! Nobody but an implementor knows where a row is: a table names rows by number, and asks anew
//! under each lock. Calls are dispatched statically, one implementor a build.
//!
//! # What a tier on disk will need
//!
//! Every row is in memory today, so that [`RowStore::row`] answers for all of them. With some of
//! the rows on disk:
//!
//! - Row numbers stay. Whether a row is in memory or on disk is the store's business alone, and
//!   changes under its exclusive lock only: `&self` keeps every row where it is.
//! - A batch asks first, `bring_in(rows)`, with the rows of a whole batch at once, so that the
//!   reads from disk overlap. It reads and writes afterwards, under one lock with the check that
//!   all of its rows are there. [`RowStore::prefetch`] is for the cache of the processor and stays
//!   so.
//! - A row that a batch has asked for is pinned until the batch is through, and those of a live
//!   lease until its end: neither goes to disk meanwhile.
//! - [`RowStore::row`] gives `None` for a row past the end. A row on disk needs an answer of its
//!   own: read as zeros it would be a wrong number.
//! - [`RowStore::grow`], [`RowStore::truncate`] and [`RowStore::release`] speak of numbers, and
//!   concern both places. [`RowStore::widen`] has to go through the rows on disk as well.
//! - A snapshot reads every row once: it needs a way past the rows that are pinned in memory.

use crate::mem::FreshPages;
use crate::{Error, Result};

/// Rows of one width, numbered from 0.
pub(crate) trait RowStore: Sized {
    /// Some of the rows, with the right to write them; see [`RowStore::split`].
    type Part<'s>: RowPart
    where
        Self: 's;

    /// No rows, `width` floats each (1 or more); `most` rows are expected at most.
    fn new(width: usize, most: u64) -> Self;

    /// How many rows there are.
    fn rows(&self) -> usize;

    /// Floats of a row.
    fn width(&self) -> usize;

    /// Bytes of memory that the rows take, padding included.
    fn bytes(&self) -> u64;

    /// Makes rows up to `rows` in all. Their contents are unspecified until they are written.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses; rows there are stay.
    fn grow(&mut self, rows: usize) -> Result<()>;

    /// Memory that new rows will take, in pieces of which each is to be asked for by one thread;
    /// `least` pieces, if it does not take so many and they do not make the rows much larger.
    fn fresh_pages(&mut self, least: usize) -> Vec<FreshPages<'_>>;

    /// Drops rows from `rows` on and gives their memory back: most of it when the result is
    /// dropped, which takes time and should wait until no lock is held.
    #[must_use = "to drop it takes time, which may be saved until no lock is held"]
    fn truncate(&mut self, rows: usize) -> impl Sized + use<Self>;

    /// Gives the memory of rows `from..to` back; what they held is lost.
    fn release(&mut self, from: usize, to: usize);

    /// The row `row`, `width` floats, or `None` past the end.
    fn row(&self, row: u32) -> Option<&[f32]>;

    /// The row `row` for writing, or `None` past the end.
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]>;

    /// Starts to bring the first `floats` of a row into the processor's cache.
    fn prefetch(&self, row: u32, floats: usize);

    /// Divides the rows among `parts` owners; each may write its own rows while the others write
    /// theirs.
    fn split(&mut self, parts: usize) -> Vec<Self::Part<'_>>;

    /// Which of `parts` owners has a row after [`RowStore::split`].
    fn owner(row: u32, parts: u32) -> u32;

    /// Gives all rows `width` floats instead of fewer, with the floats they have in front, and
    /// calls `finish` on each. The peak of memory is little more than what the wider rows take.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the store as it was.
    fn widen(
        self,
        width: usize,
        most: u64,
        finish: impl FnMut(&mut [f32]),
    ) -> Result<Self, (Self, Error)>;
}

/// The rows of one owner.
pub(crate) trait RowPart: Send {
    /// The row `row` for writing, or `None` if another part owns it or there is no such row.
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]>;

    /// Starts to bring a row into the processor's cache.
    fn prefetch(&self, row: u32);
}
