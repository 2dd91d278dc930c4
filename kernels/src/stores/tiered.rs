//! Rows in memory up to a number, the others on disk.
//!
//! ```text
//! row number --places--> frame of memory     0xxx..   the row's floats, for verbs
//!                    \-> place in the log    1xxx..   a record in a file
//! ```
//! A row number stays the same wherever its row is. A row has one place: what comes into memory
//! leaves the log, and the other way round. Every place changes under the exclusive lock of the
//! content, while files are read and written under none of the table's (see `bring_in`).
//!
//! Memory for a row on disk: 4 bytes here, beside what the table keeps by key and by row number.

use super::buffers::Buffers;
use super::in_memory::InMemory;
use super::pins::{Lent, Pinned, Pins};
use super::setup::TierSetup;
use super::{ReadRows, RowPart};
use crate::mem::{prefetch, OwnedRows, Slab, NONE};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::tier::{Log, Policy, Record};
use crate::{Error, Kind, Pool, Result, PADDING};
use std::sync::Arc;

/// The bit of a place that is in the log.
const ON_DISK: u32 = 1 << 31;

/// The place of a row that has none: it is free.
const NOWHERE: u32 = ON_DISK - 1;

/// Places grow by one part in so many.
const GROWTH: usize = 8;

const NO_MEMORY: &str = "the system gives no memory";

/// What an error says of frames that are lacking, for [`shortage`].
const SHORTAGE: &str = "new rows find no place in memory";

/// How many frames are lacking, if that is what an error is about: whoever makes rows brings others
/// out of memory and tries again.
pub(crate) fn shortage(error: &Error) -> Option<usize> {
    let is_one = error.kind() == Kind::Aborted && error.message() == SHORTAGE;
    let mut pairs = error.context().iter().filter(|_| is_one);
    let (_, frames) = pairs.find(|(name, _)| *name == "new")?;
    frames.parse().ok()
}

/// The error for [`shortage`] of `n` new rows.
pub(crate) fn no_frames(n: usize) -> Error {
    Error::new(Kind::Aborted, SHORTAGE).with("new", n)
}

/// The error for [`shortage`] of rows that have to be brought in again.
pub(crate) fn again() -> Error {
    no_frames(0)
}

/// Where a row is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In this frame of memory.
    Frame(u32),
    /// In this place of the log.
    Disk(u32),
    /// Nowhere: it is free, or there is no such row.
    Nowhere,
}

/// The rows of a table with a tier.
pub(crate) struct Tiered {
    setup: Arc<TierSetup>,
    /// Which frames keep their rows. Another content has other ones.
    pub(super) pins: Arc<Pins>,
    pub(super) log: Arc<Log>,
    pub(super) policy: Policy,
    /// The rows in memory, by frame.
    pub(super) frames: Slab,
    /// By frame: its row, [`NONE`] if it is free.
    pub(super) rows: Vec<u32>,
    /// By frame: the key of its row.
    pub(super) keys: Vec<i64>,
    /// By frame: whether the row was written since it was last copied to go to disk.
    pub(super) changed: Vec<AtomicBool>,
    /// By frame: whether its row is being written to disk; the policy does not know it then.
    pub(super) leaving: Vec<bool>,
    /// Free frames below `frames.rows()`.
    free: Vec<u32>,
    /// By row: where it is.
    places: Vec<u32>,
    on_disk: u64,
    pub(super) buffers: Buffers,
}

impl Tiered {
    /// [`super::Store::spill`]: the rows, which leave `rows`. `None` without a tier.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory; nothing changed.
    pub(super) fn of(
        rows: &mut InMemory,
        used: impl Fn(u32) -> bool,
        mut keys: Vec<i64>,
    ) -> Result<Option<Tiered>> {
        let Some(standby) = &rows.standby else {
            return Ok(None);
        };
        let n = rows.slab.rows();
        let (mut by_frame, mut places) = (reserved(n)?, reserved(n)?);
        let (mut changed, mut leaving) = (reserved(n)?, reserved(n)?);
        let mut free = Vec::new();
        let mut policy = Policy::new();
        for row in 0..n as u32 {
            let is_used = used(row);
            match is_used {
                true => policy.admit(row, row),
                false => free.push(row),
            }
            by_frame.push(if is_used { row } else { NONE });
            places.push(if is_used { row } else { NOWHERE });
        }
        keys.resize(n, PADDING);
        changed.resize_with(n, || AtomicBool::new(true));
        leaving.resize(n, false);
        standby.pins.fit(n);
        let (setup, log) = (Arc::clone(&standby.setup), Arc::clone(&standby.log));
        let pins = Arc::clone(&standby.pins);
        let none = Slab::new(rows.slab.width(), 1);
        Ok(Some(Tiered {
            frames: std::mem::replace(&mut rows.slab, none),
            setup,
            pins,
            log,
            policy,
            rows: by_frame,
            keys,
            changed,
            leaving,
            free,
            places,
            on_disk: 0,
            buffers: Buffers::default(),
        }))
    }

    /// What the table was told of its tier.
    pub(super) fn setup(&self) -> &Arc<TierSetup> {
        &self.setup
    }

    /// How many row numbers there are.
    pub(super) fn rows(&self) -> usize {
        self.places.len()
    }

    /// Floats of a row.
    pub(super) fn width(&self) -> usize {
        self.frames.width()
    }

    /// Bytes of the rows in memory.
    pub(super) fn row_bytes(&self) -> u64 {
        self.frames.bytes()
    }

    /// Bytes of what is kept beside them.
    pub(super) fn other_bytes(&self) -> u64 {
        let by_row = 4 * self.places.capacity();
        let by_frame = 4 * (self.rows.capacity() + self.free.capacity())
            + 8 * self.keys.capacity()
            + self.changed.capacity()
            + self.leaving.capacity()
            + self.pins.bytes()
            + self.buffers.bytes();
        (by_row + by_frame) as u64 + self.policy.bytes() + self.log.stats().memory_bytes
    }

    /// Rows in memory, and on disk.
    pub(crate) fn count(&self) -> (u64, u64) {
        let used = self.frames.rows() - self.free.len();
        (used as u64, self.on_disk)
    }

    /// The most rows in memory.
    pub(crate) fn ram_rows(&self) -> u64 {
        self.setup.ram_rows
    }

    /// Where records are.
    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    #[inline(always)]
    pub(super) fn place(&self, row: u32) -> Place {
        match self.places.get(row as usize) {
            Some(&place) if place < NOWHERE => Place::Frame(place),
            Some(&place) if place >= ON_DISK => Place::Disk(place & !ON_DISK),
            _ => Place::Nowhere,
        }
    }

    /// Starts to bring what is known of where a row is into the processor's cache.
    #[inline(always)]
    pub(super) fn prefetch_place(&self, row: u32) {
        if let Some(place) = self.places.get(row as usize) {
            prefetch(place);
        }
    }

    /// The frame of a row in memory.
    #[inline(always)]
    pub(super) fn frame(&self, row: u32) -> u32 {
        match self.place(row) {
            Place::Frame(frame) => frame,
            _ => not_in_memory(row),
        }
    }

    /// Where a row is in the log, if it is there.
    pub(crate) fn on_disk(&self, row: u32) -> Option<u32> {
        match self.place(row) {
            Place::Disk(place) => Some(place),
            _ => None,
        }
    }

    /// Whether all of some rows can be read and written: none is on disk.
    pub(crate) fn has_all(&self, mut rows: impl Iterator<Item = u32>) -> bool {
        self.on_disk == 0 || rows.all(|row| self.on_disk(row).is_none())
    }

    /// Pins those of some rows that are in memory.
    pub(crate) fn pin(&self, rows: impl Iterator<Item = u32>) -> Pinned {
        self.pins.pin(self.frames_of(rows).collect())
    }

    /// Pins rows if none is on disk, and counts a lookup of them if it is one; how many are in
    /// memory. A row that comes in for a batch is not looked up again by the same one.
    pub(crate) fn pin_all_of(&self, rows: &[u32], is_lookup: bool) -> Option<(Pinned, u64)> {
        let mut frames = Vec::with_capacity(rows.len());
        for &row in rows {
            match self.place(row) {
                Place::Frame(frame) => frames.push(frame),
                Place::Disk(_) => return None,
                Place::Nowhere => {}
            }
        }
        if is_lookup {
            frames.iter().for_each(|&frame| self.policy.touch(frame));
        }
        let found = frames.len() as u64;
        Some((self.pins.pin(frames), found))
    }

    /// Whether these are pins of so many rows that are all in memory, of this content.
    pub(crate) fn is_pinned(&self, pinned: &Pinned, rows: usize) -> bool {
        pinned.holds(&self.pins, rows)
    }

    /// Whether a lease of so many offsets that is not over keeps the rows of all of them in memory.
    pub(crate) fn is_leased(&self, lent: &Lent, offsets: usize) -> bool {
        !lent.is_over() && self.is_pinned(&lent.pinned, offsets)
    }

    /// The frames of those of some rows that are in memory.
    fn frames_of<'s>(
        &'s self,
        rows: impl Iterator<Item = u32> + 's,
    ) -> impl Iterator<Item = u32> + 's {
        rows.filter_map(|row| match self.place(row) {
            Place::Frame(frame) => Some(frame),
            _ => None,
        })
    }

    /// Frames without a row, those included that were never used.
    pub(crate) fn available(&self) -> usize {
        let unused = self
            .setup
            .ram_rows
            .saturating_sub(self.frames.rows() as u64);
        self.free.len() + usize::try_from(unused).unwrap_or(usize::MAX)
    }

    /// Makes row numbers up to `rows` in all, without places.
    pub(super) fn grow(&mut self, rows: usize) -> Result<()> {
        let more = rows.saturating_sub(self.places.len());
        if rows > self.places.capacity() {
            // By an eighth, and not twofold: this is most of what a row on disk costs beside its
            // key.
            let more = more.max(self.places.len() / GROWTH);
            let reserved = self.places.try_reserve_exact(more);
            reserved
                .map_err(|_| Error::new(Kind::ResourceExhausted, NO_MEMORY).with("rows", more))?;
        }
        self.places.resize(rows.max(self.places.len()), NOWHERE);
        Ok(())
    }

    /// Takes a frame that is free.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory, or without a free frame.
    pub(super) fn take_frame(&mut self) -> Result<u32> {
        if let Some(frame) = self.free.pop() {
            return Ok(frame);
        }
        if self.available() == 0 {
            return Err(no_frames(1));
        }
        let frame = self.frames.rows();
        self.frames.grow(frame + 1)?;
        self.pins.fit(frame + 1);
        self.rows.push(NONE);
        self.keys.push(0);
        self.changed.push(AtomicBool::new(false));
        self.leaving.push(false);
        Ok(frame as u32)
    }

    /// Puts a row that has no place, or is on disk, into a frame that was taken.
    pub(super) fn put(&mut self, row: u32, frame: u32) {
        if self.on_disk(row).is_some() {
            self.on_disk -= 1;
        }
        self.places[row as usize] = frame;
        self.rows[frame as usize] = row;
        *self.changed[frame as usize].get_mut() = true;
        self.policy.admit(frame, row);
    }

    /// Empties a frame: its row is in the log from now on.
    pub(super) fn put_on_disk(&mut self, frame: u32, place: u32) {
        let row = std::mem::replace(&mut self.rows[frame as usize], NONE);
        self.places[row as usize] = ON_DISK | place;
        self.on_disk += 1;
        self.free.push(frame);
    }

    /// A row in the log has moved there.
    pub(super) fn moved(&mut self, row: u32, place: u32) {
        self.places[row as usize] = ON_DISK | place;
    }

    /// Gives new rows frames.
    pub(super) fn seat(&mut self, rows: &[u32]) -> Result<()> {
        let mut frames = reserved(rows.len())?;
        for _ in rows {
            match self.take_frame() {
                Ok(frame) => frames.push(frame),
                Err(error) => {
                    self.free.append(&mut frames);
                    return Err(error);
                }
            }
        }
        for (&row, frame) in rows.iter().zip(frames) {
            self.put(row, frame);
        }
        Ok(())
    }

    /// Notes the keys of rows in memory.
    pub(super) fn name(&mut self, keys: &[i64], rows: &[u32]) {
        for (&key, &row) in keys.iter().zip(rows) {
            if let Place::Frame(frame) = self.place(row) {
                self.keys[frame as usize] = key;
            }
        }
    }

    /// Appends rows that have no place to the log: `floats (n, width)`.
    ///
    /// # Errors
    /// What the files refuse; nothing changed then.
    pub(crate) fn append(&mut self, rows: &[u32], keys: &[i64], floats: &[f32]) -> Result<()> {
        let places = append(&self.log, rows, keys, floats, self.width())?;
        for (&row, place) in rows.iter().zip(places) {
            self.places[row as usize] = ON_DISK | place;
            self.on_disk += 1;
        }
        Ok(())
    }

    /// Takes rows out of their places. Those on disk are not read.
    pub(super) fn vacate(&mut self, rows: &[u32]) {
        let mut freed = Vec::new();
        for &row in rows {
            match self.place(row) {
                Place::Nowhere => continue,
                Place::Disk(place) => {
                    self.on_disk -= 1;
                    freed.push(place);
                }
                Place::Frame(frame) => {
                    let at = frame as usize;
                    if !std::mem::replace(&mut self.leaving[at], false) {
                        self.policy.forget(frame);
                    }
                    self.rows[at] = NONE;
                    self.free.push(frame);
                }
            }
            self.places[row as usize] = NOWHERE;
        }
        free(&self.log, &freed);
    }

    /// Forgets the row numbers from `rows` on, which are free.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.places.truncate(rows);
        self.places.shrink_to_fit();
    }

    pub(super) fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        if row as usize >= self.places.len() {
            return None;
        }
        let frame = self.frame(row);
        *self.changed[frame as usize].get_mut() = true;
        self.frames.row_mut(frame)
    }

    pub(super) fn split(&mut self, parts: usize) -> impl Iterator<Item = TieredPart<'_>> {
        let (places, changed) = (&self.places[..], &self.changed[..]);
        let parts = self.frames.split(parts).into_iter();
        parts.map(move |frames| TieredPart {
            places,
            changed,
            frames,
        })
    }

    /// [`super::Store::widen`]. The rows on disk are copied into other files, in the order of
    /// their places; until that is done both exist.
    pub(super) fn widen(
        &mut self,
        width: usize,
        most: u64,
        mut finish: impl FnMut(&mut [f32]),
    ) -> Result<()> {
        let (log, narrow) = (self.setup.log(width, most)?, self.width());
        let mut places = reserved(self.places.len())?;
        places.extend_from_slice(&self.places);
        let pool = Pool::alone();
        let (mut keys, mut floats, mut wider) = (Vec::new(), Vec::new(), Vec::new());
        self.each_on_disk(&mut |wants| {
            keys.resize(wants.len(), 0);
            floats.resize(wants.len() * narrow, 0.0);
            self.log.read(&pool, wants, &mut floats, &mut keys)?;
            wider.resize(wants.len() * width, 0.0);
            let both = wider.chunks_exact_mut(width);
            for (wide, row) in both.zip(floats.chunks_exact(narrow)) {
                wide[..narrow].copy_from_slice(row);
                finish(wide);
            }
            let rows: Vec<u32> = wants.iter().map(|want| want.row).collect();
            let new = append(&log, &rows, &keys, &wider, width)?;
            for (row, place) in rows.into_iter().zip(new) {
                places[row as usize] = ON_DISK | place;
            }
            Ok(())
        })?;
        let wide = Slab::new(width, self.setup.ram_rows.min(most));
        self.frames.move_into(wide, finish)?;
        (self.log, self.places) = (log, places);
        Ok(())
    }
}

impl ReadRows for Tiered {
    #[inline(always)]
    fn row(&self, row: u32) -> Option<&[f32]> {
        if row as usize >= self.places.len() {
            return None;
        }
        self.frames.row(self.frame(row))
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, floats: usize) {
        if let Place::Frame(frame) = self.place(row) {
            self.frames.prefetch(frame, floats);
        }
    }
}

/// The rows of one owner among those in memory.
pub(crate) struct TieredPart<'s> {
    places: &'s [u32],
    changed: &'s [AtomicBool],
    frames: OwnedRows<'s>,
}

impl RowPart for TieredPart<'_> {
    #[inline(always)]
    fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        let &frame = self.places.get(row as usize)?;
        if frame >= NOWHERE {
            not_in_memory(row);
        }
        let floats = self.frames.row_mut(frame)?;
        let changed = &self.changed[frame as usize];
        if !changed.load(Relaxed) {
            changed.store(true, Relaxed);
        }
        Some(floats)
    }

    #[inline(always)]
    fn has(&self, row: u32) -> bool {
        let place = self.places.get(row as usize);
        place.is_some_and(|&place| place < NOWHERE)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        if let Some(&frame) = self.places.get(row as usize).filter(|&&one| one < NOWHERE) {
            self.frames.prefetch(frame);
        }
    }
}

/// `n` zeros.
///
/// # Errors
/// `ResourceExhausted` without memory.
pub(super) fn zeroed(n: usize) -> Result<Vec<f32>> {
    let mut floats = reserved(n)?;
    floats.resize(n, 0.0);
    Ok(floats)
}

/// Room for `n` values.
///
/// # Errors
/// `ResourceExhausted` without memory.
pub(super) fn reserved<T>(n: usize) -> Result<Vec<T>> {
    crate::mem::reserved(n, NO_MEMORY, "rows")
}

/// Appends records `floats (n, width)` to a log; returns their places.
pub(super) fn append(
    log: &Log,
    rows: &[u32],
    keys: &[i64],
    floats: &[f32],
    width: usize,
) -> Result<Vec<u32>> {
    let names = rows.iter().zip(keys);
    let records = names.zip(floats.chunks_exact(width));
    let records = records.map(|((&row, &key), floats)| Record { row, key, floats });
    log.append(&records.collect::<Vec<_>>())
}

/// Frees records that are the caller's own.
pub(super) fn free(log: &Log, places: &[u32]) {
    if !places.is_empty() {
        let freed = log.free(places);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

#[cold]
#[inline(never)]
pub(super) fn not_in_memory(row: u32) -> ! {
    panic!("row {row} is used while it is on disk: a defect of this library")
}
