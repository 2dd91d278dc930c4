//! Where in a record, the words of 4 bytes that a store keeps for a row, its embedding and its
//! slots are.

use crate::halves::{stream, Place};
use crate::{RowStorage, SlotSpec, TableConfig};

/// `[embedding | slot 1 | slot 2 ..]`, each of values of its own type, of which those of 2 bytes
/// take half as many words, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Values of the embedding.
    pub(crate) dim: usize,
    /// The types.
    stored: RowStorage,
}

impl Layout {
    /// That of a table's rows.
    pub(crate) fn of(config: &TableConfig) -> Layout {
        let (dim, stored) = (config.dim, config.row_storage);
        Layout { dim, stored }
    }

    /// The embedding.
    pub(crate) fn embedding(self) -> Place {
        Place {
            start: 0,
            count: self.dim,
            dtype: self.stored.dtype,
            stream: 0,
        }
    }

    /// The slots.
    pub(crate) fn slots(self, slots: &[SlotSpec]) -> impl Iterator<Item = Place> + Clone + '_ {
        let mut start = self.words();
        slots.iter().map(move |slot| {
            let place = self.slot(slot, start);
            start += place.words();
            place
        })
    }

    fn slot(self, slot: &SlotSpec, start: usize) -> Place {
        let dtype = self.stored.of_slot(slot.per_row);
        // Floats are not rounded: most steps are spared a walk over the name.
        let stream = dtype.half().map_or(0, |_| stream(&slot.name));
        Place {
            start,
            count: slot.floats(self.dim),
            dtype,
            stream,
        }
    }

    /// Words of the embedding.
    pub(crate) fn words(self) -> usize {
        self.embedding().words()
    }

    /// Words of a record.
    pub(crate) fn width(self, slots: &[SlotSpec]) -> usize {
        self.words() + self.slots(slots).map(Place::words).sum::<usize>()
    }

    /// What is read of a slot in a new row.
    pub(crate) fn initial(self, slot: &SlotSpec) -> f32 {
        self.slot(slot, 0).nearest(slot.initial)
    }
}
