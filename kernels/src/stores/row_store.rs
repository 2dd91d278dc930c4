//! What the loops of a table's verbs need of whatever holds the floats of its rows.
//!
//! A table names rows by number, and asks anew under each lock where they are. Loops are compiled
//! once for each implementor, and the choice is made once a verb: see
//! [`with_rows`](super::with_rows).
//!
//! A row on disk has no floats to be had here: a verb brings its rows into memory first, and reads
//! and writes under one lock with the check that all are there.

/// Rows of one width, numbered from 0, to be read. `&self` keeps every row where it is.
pub(crate) trait ReadRows: Sync {
    /// Whether [`ReadRows::now`] may need its scratch.
    const SCRATCH: bool = false;

    /// Whether [`ReadRows::now`] always fills its scratch.
    const DECODES: bool = false;

    /// The row `row`, or `None` past the end.
    ///
    /// # Panics
    /// For a row that is on disk: zeros would be wrong numbers.
    fn row(&self, row: u32) -> Option<&[f32]>;

    /// Starts to bring the first `floats` of a row into the processor's cache.
    fn prefetch(&self, row: u32, floats: usize);

    /// [`ReadRows::prefetch`] of a block of rows.
    #[inline(always)]
    fn ask(&self, rows: &[u32], floats: usize) {
        rows.iter().for_each(|&row| self.prefetch(row, floats));
    }

    /// The embedding, and maybe more, of the row `number`, which [`ReadRows::row`] gave, as floats
    /// and as it is after the last step. `scratch (dim)` is for rows that have missed some, and for
    /// those of 2 bytes a value; where there are none it may be empty.
    #[inline(always)]
    fn now<'s>(&'s self, _number: u32, row: &'s [f32], _scratch: &'s mut [f32]) -> &'s [f32] {
        row
    }
}

/// The rows of one owner.
pub(crate) trait RowPart: Send {
    /// The row `row` for writing, or `None` if another part owns it or there is no such row.
    ///
    /// # Panics
    /// For a row that is on disk.
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]>;

    /// Whether a row is in memory, if it is one of this owner.
    fn has(&self, row: u32) -> bool;

    /// Starts to bring a row into the processor's cache.
    fn prefetch(&self, row: u32);
}
