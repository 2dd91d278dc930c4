//! A row whose embedding has 2 bytes a value, as an optimizer updates it.

use crate::halves::{encode, read, Half, RowDraws, Unusual};
use crate::mem::LINE;
use crate::simd::Level;

/// A row whose embedding has 2 bytes a value: it is read as floats, and rounded again.
pub struct HalfRow<'a> {
    /// `[words of the embedding | slots ..]`.
    pub(super) record: &'a mut [f32],
    pub(super) half: Half,
    /// What it is rounded by; to the nearest without.
    pub(super) draws: Option<RowDraws>,
    level: Level,
    pub(super) unusual: Unusual,
    room: &'a mut Room,
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
    /// The row of a record, to be rounded by `draws`.
    pub(crate) fn new(
        (level, half): (Level, Half),
        draws: Option<RowDraws>,
        record: &'a mut [f32],
        room: &'a mut Room,
    ) -> HalfRow<'a> {
        HalfRow {
            record,
            half,
            draws,
            level,
            unusual: Unusual::default(),
            room,
        }
    }

    /// The values that could not be stored so far.
    pub(crate) fn unusual(&self) -> Unusual {
        self.unusual
    }

    /// A float of its slots.
    pub(super) fn slot_mut(&mut self, place: usize) -> &mut f32 {
        &mut self.record[place]
    }

    /// Calls `f` with the row `[embedding (dim) | slots ..]` of floats and with where the slots are
    /// in it, which are at `starts` in the record.
    pub(super) fn as_floats(
        &mut self,
        dim: usize,
        starts: &[usize],
        f: impl FnOnce(&mut [f32], &[usize]),
    ) {
        let words = dim.div_ceil(2);
        let size = self.record.len() - words + dim;
        let room = &mut *self.room;
        if room.floats.len() < size {
            room.floats = vec![0.0; size + LINE / size_of::<f32>()];
        }
        room.starts.clear();
        room.starts
            .extend(starts.iter().map(|start| start - words + dim));
        let first = room.floats.as_ptr().align_offset(LINE);
        let floats = &mut room.floats[first..first + size];
        read(self.level, self.half, self.record, &mut floats[..dim]);
        floats[dim..].copy_from_slice(&self.record[words..]);
        f(floats, &room.starts);
        let values = &floats[..dim];
        self.unusual += encode(self.level, self.half, self.draws, values, self.record);
        self.record[words..].copy_from_slice(&floats[dim..]);
    }
}
