//! What a table whose embeddings have 2 bytes a value keeps beside its rows: what random numbers
//! they are rounded by, and how many values could not be stored.

use crate::halves::{folded, read, round_row, Draws, Half, Place, RowDraws, Unusual};
use crate::mem::Slab;
use crate::optim::{HalfRow, Room, StoredSlot};
use crate::simd::Level;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::{Result, Rounding, RowDtype};

/// Beside rows of 2 bytes a value.
pub(crate) struct HalfRows {
    pub(crate) half: Half,
    rounding: Rounding,
    seed: u64,
    /// How many updates there were. A checkpoint has it, so that what follows is rounded as if it
    /// had followed at once.
    updates: u64,
    /// The random numbers of the last one.
    draws: Draws,
    /// By row: the bits of its key that they depend on. Empty if nobody asks. In large pages, as
    /// rows are: one is read with each row that is updated.
    folded: Slab,
    saturated: AtomicU64,
    not_finite: AtomicU64,
    pub(crate) level: Level,
}

impl HalfRows {
    /// Of a table without rows, with this seed; `None` if it keeps float32.
    pub(crate) fn of(dtype: RowDtype, rounding: Rounding, seed: u64) -> Option<Box<HalfRows>> {
        Some(Box::new(HalfRows {
            half: dtype.half()?,
            rounding,
            seed,
            updates: 0,
            draws: Draws::new(seed, 0),
            folded: no_keys(),
            saturated: AtomicU64::new(0),
            not_finite: AtomicU64::new(0),
            level: Level::detect(),
        }))
    }

    /// The same without rows.
    pub(crate) fn emptied(&self) -> Box<HalfRows> {
        let found = self.unusual();
        Box::new(HalfRows {
            folded: no_keys(),
            saturated: AtomicU64::new(found.saturated),
            not_finite: AtomicU64::new(found.not_finite),
            ..*self
        })
    }

    /// Makes room for the keys of so many rows.
    ///
    /// # Errors
    /// `ResourceExhausted`; nothing changed.
    pub(crate) fn fit(&mut self, rows: usize) -> Result<()> {
        match self.rounding {
            Rounding::Nearest => Ok(()),
            Rounding::Stochastic => self.folded.grow(rows),
        }
    }

    /// Notes the keys of rows, for which there is room.
    pub(crate) fn name(&mut self, keys: &[i64], rows: &[u32]) {
        if self.rounding == Rounding::Stochastic {
            for (&key, &row) in keys.iter().zip(rows) {
                if let Some([place]) = self.folded.row_mut(row) {
                    *place = f32::from_bits(folded(key));
                }
            }
        }
    }

    /// Notes that a row has got another number.
    pub(crate) fn moved(&mut self, from: u32, to: u32) {
        let folded = self.folded.row(from).map(|folded| folded[0]);
        if let (Some(folded), Some([place])) = (folded, self.folded.row_mut(to)) {
            *place = folded;
        }
    }

    /// Rows from `rows` on are no more. What is returned holds their memory.
    #[must_use = "to drop it takes time, which may be saved until no lock is held"]
    pub(crate) fn truncate(&mut self, rows: usize) -> impl Sized + use<> {
        self.folded.truncate(rows)
    }

    /// Starts to bring what is known of a row into the processor's cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32) {
        self.folded.prefetch(row, 1);
    }

    /// Reads the embedding of a record.
    pub(crate) fn read(&self, record: &[f32], out: &mut [f32]) {
        read(self.level, self.half, record, out);
    }

    /// How many updates there were.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// Sets how many there were.
    pub(crate) fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
        self.draws = Draws::new(self.seed, updates);
    }

    /// The slot of an optimizer, whose row the last update changes.
    pub(crate) fn slot(&self, place: Place) -> StoredSlot {
        let draws = Draws::new(self.seed ^ place.stream, self.updates);
        StoredSlot { place, draws }
    }

    /// Calls `f` with the row of a record, which the last update changes, and with `slots`, which
    /// [`HalfRows::slot`] gave since. What its key is folded to may be given.
    pub(crate) fn update(
        &self,
        (number, folded): (u32, Option<u32>),
        (record, slots): (&mut [f32], &[StoredSlot]),
        room: &mut Room,
        f: impl FnOnce(&mut HalfRow<'_>),
    ) {
        let folded = match folded {
            None => self.folded_of(number),
            Some(_) => folded,
        };
        let draws = (self.draws, folded);
        let mut row = HalfRow::new((self.level, self.half), draws, slots, record, room);
        f(&mut row);
        self.note(row.unusual());
    }

    /// Writes values that the last update has made to their place in the record of the row `row`.
    pub(crate) fn write(&self, place: Place, row: u32, values: &[f32], record: &mut [f32]) {
        self.write_as(self.updates, place, row, values, record);
    }

    /// Writes values as they are after the update number `update` to their place in the record of
    /// the row `row`.
    pub(crate) fn write_as(
        &self,
        update: u64,
        place: Place,
        row: u32,
        values: &[f32],
        record: &mut [f32],
    ) {
        let draws = Draws::new(self.seed ^ place.stream, update);
        let draws = self.draws_of(row, draws);
        self.note(place.write(self.level, draws, values, record));
    }

    /// Rounds an embedding, in place, to what [`HalfRows::write_as`] would make of it.
    pub(crate) fn round(&self, row: u32, update: u64, values: &mut [f32]) {
        let draws = self.draws_of(row, Draws::new(self.seed, update));
        round_row(self.level, self.half, draws, values);
    }

    fn draws_of(&self, row: u32, draws: Draws) -> Option<RowDraws> {
        Some(draws.of(self.folded_of(row)?))
    }

    /// What of its key a row is rounded by; to the nearest without.
    fn folded_of(&self, row: u32) -> Option<u32> {
        (self.rounding == Rounding::Stochastic).then(|| {
            let folded = self.folded.row(row);
            folded.map_or(0, |folded| folded[0].to_bits())
        })
    }

    /// Writes given values to their place in the record of a key, rounded to the nearest, or as of
    /// an update number 0, which there is not.
    pub(crate) fn set(
        &self,
        rounding: Rounding,
        (place, key): (Place, i64),
        values: &[f32],
        record: &mut [f32],
    ) {
        let draws = || Draws::new(self.seed ^ place.stream, 0).of(folded(key));
        let draws = (rounding == Rounding::Stochastic).then(draws);
        self.note(place.write(self.level, draws, values, record));
    }

    /// Writes given values to their place in a record, rounded to the nearest.
    pub(crate) fn set_nearest(&self, place: Place, values: &[f32], record: &mut [f32]) {
        self.note(place.write(self.level, None, values, record));
    }

    fn note(&self, found: Unusual) {
        if found != Unusual::default() {
            self.saturated.fetch_add(found.saturated, Relaxed);
            self.not_finite.fetch_add(found.not_finite, Relaxed);
        }
    }

    /// Rounds values, in place, to what [`HalfRows::set_nearest`] would make of them.
    pub(crate) fn round_nearest(&self, place: Place, values: &mut [f32]) {
        if let Some(half) = place.dtype.half() {
            round_row(self.level, half, None, values);
        }
    }

    /// How many values could not be stored since the table was made, or since it was restored.
    pub(crate) fn unusual(&self) -> Unusual {
        Unusual {
            saturated: self.saturated.load(Relaxed),
            not_finite: self.not_finite.load(Relaxed),
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.folded.bytes() as usize
    }
}

fn no_keys() -> Slab {
    Slab::new(1, u64::MAX)
}
