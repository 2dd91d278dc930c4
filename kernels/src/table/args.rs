//! The arguments and results of a table's verbs.

use crate::{Bags, Columns, SlotSpec, TableConfig};

/// The gradients of some rows of a table.
#[derive(Clone, Copy, Debug)]
pub struct RowGradients<'a> {
    /// Offsets as [`Table::id_offset`](crate::Table::id_offset) gave them `(n)`; they may repeat,
    /// -1 and 0 are skipped.
    pub offsets: &'a [i64],
    /// The gradients `(n, dim)`.
    pub grads: &'a [f32],
}

/// The gradients of one lookup, one for each of its ids or bags, as columns of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct LookupGradients<'a> {
    /// Those of its distinct keys `(u)`, as [`Table::id_offset`](crate::Table::id_offset) gave
    /// them; they may repeat, -1 and 0 are skipped.
    pub offsets: &'a [i64],
    /// For each id its place in `offsets`, `(n)`; -1 is skipped.
    pub inverse: &'a [i32],
    /// The gradients `(n, dim)`, of a pooled lookup `(b, dim)`.
    pub grads: Columns<'a>,
    /// The bags of a pooled lookup.
    pub bags: Option<Bags<'a>>,
}

/// Values of a slot of some rows.
#[derive(Clone, Debug)]
pub struct SlotValues<'a> {
    /// The slot. Its name must be that of a directory, see
    /// [`check_slot`](crate::checkpoint::check_slot).
    pub slot: SlotSpec,
    /// Its values, as many floats a row as [`SlotSpec::floats`] says.
    pub values: &'a [f32],
}

/// What [`Table::find_many`](crate::Table::find_many) gives for keys without a row. The padding key
/// always gives zeros.
#[derive(Clone, Copy, Debug)]
pub enum Absent<'a> {
    /// Zeros.
    Zeros,
    /// The same row for all, shape `(dim)`.
    Row(&'a [f32]),
    /// A row for every id of the call, shape `(n, dim)`.
    Rows(&'a [f32]),
    /// The row that a new key would start with in a table of this configuration. Not for pooled
    /// lookups.
    Initial(&'a TableConfig),
}

/// Bytes a table holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Rows in use or waiting for reuse, slots and alignment included.
    pub rows_bytes: u64,
    /// The index from keys to rows.
    pub index_bytes: u64,
    /// Everything else: lists of free rows, working memory kept between batches.
    pub other_bytes: u64,
}
