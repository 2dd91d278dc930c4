//! A row whose embedding has 2 bytes a value, as an optimizer updates it.

use crate::halves::{encode, read, Draws, Half, Place, RowDraws, Unusual};
use crate::mem::LINE;
use crate::simd::Level;

/// A row whose embedding has 2 bytes a value: it is read as floats, and rounded again.
pub struct HalfRow<'a> {
    /// `[words of the embedding | slots ..]`.
    pub(super) record: &'a mut [f32],
    pub(super) half: Half,
    /// The optimizer's slots, in its order.
    pub(super) slots: &'a [StoredSlot],
    draws: Draws,
    /// What of its key it is rounded by; to the nearest without.
    pub(super) folded: Option<u32>,
    level: Level,
    pub(super) unusual: Unusual,
    room: &'a mut Room,
}

/// A slot of an optimizer beside embeddings of 2 bytes a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredSlot {
    pub(crate) place: Place,
    /// The random numbers of the update, for values of 2 bytes.
    pub(crate) draws: Draws,
}

/// Room for a row of floats.
#[derive(Default)]
pub(crate) struct Room {
    /// Those of a row start at a cache line: vectors that span two lines take twice as long, and
    /// longer where one has just been written.
    floats: Vec<f32>,
    starts: Vec<usize>,
}

impl<'a> HalfRow<'a> {
    /// The row of a record, to be rounded by `draws` and what its key is folded to.
    pub(crate) fn new(
        (level, half): (Level, Half),
        (draws, folded): (Draws, Option<u32>),
        slots: &'a [StoredSlot],
        record: &'a mut [f32],
        room: &'a mut Room,
    ) -> HalfRow<'a> {
        HalfRow {
            record,
            half,
            slots,
            draws,
            folded,
            level,
            unusual: Unusual::default(),
            room,
        }
    }

    /// The values that could not be stored so far.
    pub(crate) fn unusual(&self) -> Unusual {
        self.unusual
    }

    /// The slot `at`, which has one float for the row.
    pub(super) fn slot_mut(&mut self, at: usize) -> &mut f32 {
        &mut self.record[self.slots[at].place.start]
    }

    /// What the embedding is rounded by; to the nearest without.
    pub(super) fn draws(&self) -> Option<RowDraws> {
        Some(self.draws.of(self.folded?))
    }

    /// Calls `f` with the row `[embedding (dim) | slots ..]` of floats, and with where the slots
    /// are in it.
    pub(super) fn as_floats(&mut self, dim: usize, f: impl FnOnce(&mut [f32], &[usize])) {
        let (draws, folded) = (self.draws(), self.folded);
        let places = self.slots.iter().map(|slot| slot.place);
        let size = dim + places.clone().map(|place| place.count).sum::<usize>();
        let room = &mut *self.room;
        if room.floats.len() < size {
            room.floats = vec![0.0; size + LINE / size_of::<f32>()];
        }
        room.starts.clear();
        let mut start = dim;
        room.starts.extend(places.map(|place| {
            start += place.count;
            start - place.count
        }));
        let first = room.floats.as_ptr().align_offset(LINE);
        let floats = &mut room.floats[first..first + size];
        read(self.level, self.half, self.record, &mut floats[..dim]);
        for (slot, &start) in self.slots.iter().zip(&room.starts) {
            let values = &mut floats[start..start + slot.place.count];
            slot.place.read(self.level, self.record, values);
        }
        f(floats, &room.starts);
        self.unusual += encode(self.level, self.half, draws, &floats[..dim], self.record);
        for (slot, &start) in self.slots.iter().zip(&room.starts) {
            let (place, draws) = (slot.place, folded.map(|folded| slot.draws.of(folded)));
            let values = &floats[start..start + place.count];
            self.unusual += place.write(self.level, draws, values, self.record);
        }
    }
}
