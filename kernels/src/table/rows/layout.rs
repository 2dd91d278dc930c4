//! Where in a record, the words of 4 bytes that a store keeps for a row, its embedding and its slots
//! are.

use crate::{RowDtype, SlotSpec, TableConfig};

/// `[embedding | slot 1 | slot 2 ..]`. An embedding of 2 bytes a value takes half as many words,
/// rounded up; a slot is a float for each column, or one for the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Values of the embedding.
    pub(crate) dim: usize,
    /// Their type.
    pub(crate) dtype: RowDtype,
}

impl Layout {
    /// That of a table's rows.
    pub(crate) fn of(config: &TableConfig) -> Layout {
        let (dim, dtype) = (config.dim, config.row_storage.dtype);
        Layout { dim, dtype }
    }

    /// Words of the embedding.
    pub(crate) fn words(self) -> usize {
        self.dtype.words(self.dim)
    }

    /// Words of a record.
    pub(crate) fn width(self, slots: &[SlotSpec]) -> usize {
        self.start(slots, slots.len())
    }

    /// Where slot `at` starts.
    pub(crate) fn start(self, slots: &[SlotSpec], at: usize) -> usize {
        let before = slots.iter().take(at);
        self.words() + before.map(|slot| slot.floats(self.dim)).sum::<usize>()
    }
}
