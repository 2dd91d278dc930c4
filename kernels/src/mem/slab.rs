//! Rows of one width, numbered from 0, that never move and are written by several threads without
//! overlap.

use super::prefetch::{fetch, LINE};
use super::region::{FreshPages, Region, HUGE};
use crate::Result;
use std::marker::PhantomData;
use std::sync::Arc;

/// The address space that is taken at a time; memory follows as rows are touched.
const CHUNK: usize = 64 << 20;

/// From so many bytes on, the first rows move from small pages to a huge one.
const GROWN: usize = 3 << 20;

/// Bytes of a row that are worth a prefetch; the hardware follows a longer row by itself.
const AHEAD: usize = 24 * LINE;

/// Rows of a run, as a power of two. A run has one owner, so that short rows of two owners share no
/// cache line.
const RUN_LOG2: u32 = 4;

/// A growing array of rows of `width` floats.
///
/// ```text
/// chunks[0]: | row 0 | pad | row 1 | pad | .. | row 2^shift - 1 | pad |
/// chunks[1]: | row 2^shift | ..
///            |<- stride -->|   power of two up to 64 bytes, else a multiple of 64 bytes; of 8 if
///                              more than an eighth would be padding
/// ```
/// Invariant: `rows <= chunks.len() << shift`, and each chunk holds `stride << shift` floats.
pub(crate) struct Slab {
    chunks: Vec<Region>,
    width: usize,
    stride: usize,
    shift: u32,
    rows: usize,
    /// Bytes from the start of the first chunk on, chunk behind chunk, that have been asked for
    /// ahead of their first use.
    asked: usize,
    /// What was asked for ahead of the rows, about a huge page each, in order, with the place in
    /// these bytes where each begins.
    later: Vec<(usize, Arc<FreshPages>)>,
}

impl Slab {
    /// No rows, `width` floats each (1 or more); `most` rows are expected at most.
    pub(crate) fn new(width: usize, most: u64) -> Slab {
        let line = LINE / size_of::<f32>();
        let lines = width.next_multiple_of(line);
        let stride = if width <= line {
            width.max(1).next_power_of_two()
        } else if (lines - width) * 8 > lines {
            width.next_multiple_of(2)
        } else {
            lines
        };
        let fit = (CHUNK / (stride * size_of::<f32>())).max(1).ilog2();
        let most = u64::BITS - most.saturating_sub(1).leading_zeros();
        Slab {
            chunks: Vec::new(),
            width,
            stride,
            shift: fit.min(most),
            rows: 0,
            asked: HUGE,
            later: Vec::new(),
        }
    }

    /// Memory that rows made since the last call will take, with as much again in front as makes it
    /// `least` pieces: each to be asked for by one thread. Empty if there is none, and for a small
    /// table, which stays on small pages.
    pub(crate) fn fresh_pages(&mut self, least: usize) -> Vec<Arc<FreshPages>> {
        let end = self.end();
        let needed = self.later.partition_point(|&(start, _)| start < end);
        let asked_for = self.later.drain(..needed).map(|(_, pages)| pages);
        let mut pieces: Vec<_> = asked_for.filter(|pages| !pages.is_done()).collect();
        if !pieces.is_empty() {
            // Who would wait for the first one helps with those behind.
            let others = self.later.iter().map(|(_, pages)| pages);
            let others = others.filter(|pages| !pages.is_done());
            let more = least.saturating_sub(pieces.len());
            pieces.extend(others.take(more).cloned());
        }
        let ahead = end + (HUGE * least).min(end / 16);
        while self.asked < end || (self.asked < ahead && !pieces.is_empty() && pieces.len() < least)
        {
            let Some((_, pages)) = self.next_piece() else {
                break;
            };
            pieces.push(pages);
        }
        pieces
    }

    /// Memory that `rows` rows more will take, or as many as are a sixteenth of those there are: to
    /// be asked for beside other work. [`Slab::fresh_pages`] gives what is not yet there when its
    /// rows are made.
    pub(crate) fn later_pages(&mut self, rows: usize) -> Vec<Arc<FreshPages>> {
        let end = self.end();
        let row_bytes = self.stride * size_of::<f32>();
        let ahead = end + rows.saturating_mul(row_bytes).min(end / 16);
        let mut pieces = Vec::new();
        while end > HUGE && self.asked < ahead {
            let Some((start, pages)) = self.next_piece() else {
                break;
            };
            self.later.push((start, Arc::clone(&pages)));
            pieces.push(pages);
        }
        pieces
    }

    /// The next piece that has not been asked for, about a huge page, and where it begins; `None`
    /// at the end of the address space that was taken.
    fn next_piece(&mut self) -> Option<(usize, Arc<FreshPages>)> {
        let chunk = self.chunk_bytes();
        let (at, from) = (self.asked / chunk, self.asked % chunk);
        let region = self.chunks.get(at)?;
        let to = self.end_of_page(self.asked + 1) - at * chunk;
        let pages = Arc::new(region.fresh_pages(from..to));
        let start = self.asked;
        self.asked += to - from;
        Some((start, pages))
    }

    /// Rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Floats of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the rows there are, padding included.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows as u64 * self.stride as u64 * size_of::<f32>() as u64
    }

    /// Takes the address space for `rows` rows in all, without making them.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system refuses; rows there are stay.
    pub(crate) fn reserve(&mut self, rows: usize) -> Result<()> {
        let wanted = rows.div_ceil(1 << self.shift);
        while self.chunks.len() < wanted {
            // A small table stays on small pages.
            let small = if self.chunks.is_empty() { HUGE } else { 0 };
            self.chunks.push(Region::new(self.chunk_bytes(), small)?);
        }
        Ok(())
    }

    /// Makes rows up to `rows` in all. Their contents are unspecified until they are written.
    ///
    /// # Errors
    /// As [`Slab::reserve`].
    pub(crate) fn grow(&mut self, rows: usize) -> Result<()> {
        self.reserve(rows)?;
        let before = self.end();
        self.rows = self.rows.max(rows);
        if before < GROWN && self.end() >= GROWN {
            if let Some(first) = self.chunks.first_mut() {
                first.collapse(0, HUGE);
            }
        }
        Ok(())
    }

    /// Drops rows from `rows` on and gives their memory back: most of it when the result is
    /// dropped.
    #[must_use = "to drop it takes time, which may be saved until no lock is held"]
    pub(crate) fn truncate(&mut self, rows: usize) -> impl Sized + use<> {
        self.rows = self.rows.min(rows);
        let kept = self.rows.div_ceil(1 << self.shift);
        self.asked = self.asked.min(self.end_of_page(self.end()).max(HUGE));
        let asked = self.asked;
        self.later.retain(|&(start, _)| start < asked);
        self.release(self.rows, kept << self.shift);
        self.chunks.split_off(kept.min(self.chunks.len()))
    }

    /// Gives the memory of rows `from..to` back; what they held is lost.
    pub(crate) fn release(&mut self, from: usize, to: usize) {
        let row_bytes = self.stride * size_of::<f32>();
        for (at, chunk) in self.chunks.iter_mut().enumerate() {
            let first = at << self.shift;
            let from = from.max(first).min(first + (1 << self.shift)) - first;
            let to = to.max(first).min(first + (1 << self.shift)) - first;
            if from < to {
                chunk.release(from * row_bytes, to * row_bytes);
            }
        }
    }

    /// The row `row`, `width` floats, or `None` past the end.
    #[inline(always)]
    pub(crate) fn row(&self, row: u32) -> Option<&[f32]> {
        if row as usize >= self.rows {
            return None;
        }
        // SAFETY: `row < rows`, so by the invariant of the slab its `stride >= width` floats lie in
        // a chunk; fresh pages are zeros and only floats are written. `&self` forbids writing for
        // as long as the slice lives.
        Some(unsafe { std::slice::from_raw_parts(self.address(row), self.width) })
    }

    /// Starts to bring the first `floats` of a row into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32, floats: usize) {
        if (row as usize) < self.rows {
            fetch_lines(self.address(row), floats);
        }
    }

    /// Divides the rows among `parts` owners; each may write its own rows while the others write
    /// theirs.
    pub(crate) fn split(&mut self, parts: usize) -> Vec<OwnedRows<'_>> {
        let parts = parts.clamp(1, u32::MAX as usize) as u32;
        let slab: &Slab = self;
        (0..parts)
            .map(|part| OwnedRows {
                slab,
                part,
                parts,
                exclusive: PhantomData,
            })
            .collect()
    }

    /// The row `row` for writing, or `None` past the end.
    pub(crate) fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        if row as usize >= self.rows {
            return None;
        }
        // SAFETY: as for `row`; `&mut self` makes this the only access.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address(row), self.width) })
    }

    /// Moves every row into `wider`, an empty slab with longer rows that takes the place of this
    /// one, and calls `finish` on each. Memory is given back as the rows move, so that the peak is
    /// little more than the larger of the two.
    ///
    /// # Errors
    /// `ResourceExhausted` before anything moved.
    pub(crate) fn move_into(
        &mut self,
        mut wider: Slab,
        mut finish: impl FnMut(&mut [f32]),
    ) -> Result<()> {
        wider.grow(self.rows)?;
        let chunk_rows = 1 << self.shift;
        let common = self.width.min(wider.width);
        for at in 0..self.rows {
            let row = at as u32;
            if let (Some(old), Some(new)) = (self.row(row), wider.row_mut(row)) {
                new[..common].copy_from_slice(&old[..common]);
                finish(new);
            }
            if (at + 1) % chunk_rows == 0 {
                self.release(at + 1 - chunk_rows, at + 1);
            }
        }
        wider.asked = wider.end().max(HUGE);
        *self = wider;
        Ok(())
    }

    /// The end of the huge page, or of the chunk, in which the bytes before `at` end.
    fn end_of_page(&self, at: usize) -> usize {
        let chunk = self.chunk_bytes();
        let start = at.saturating_sub(1) / chunk * chunk;
        start + (at - start).next_multiple_of(HUGE).min(chunk)
    }

    /// Bytes from the start of the first chunk to the end of the rows, chunk behind chunk.
    fn end(&self) -> usize {
        let within = self.rows & ((1 << self.shift) - 1);
        let rows = (self.rows >> self.shift) * self.chunk_bytes();
        rows + within * self.stride * size_of::<f32>()
    }

    fn chunk_bytes(&self) -> usize {
        (self.stride * size_of::<f32>()) << self.shift
    }

    /// Where a row below `rows` starts.
    #[inline(always)]
    fn address(&self, row: u32) -> *mut f32 {
        let chunk = self.chunks[(row >> self.shift) as usize]
            .start()
            .as_ptr()
            .cast::<f32>();
        let within = row as usize & ((1 << self.shift) - 1);
        chunk.wrapping_add(within * self.stride)
    }
}

/// The rows of one owner of a [`Slab::split`].
pub(crate) struct OwnedRows<'a> {
    slab: &'a Slab,
    part: u32,
    parts: u32,
    exclusive: PhantomData<&'a mut f32>,
}

impl OwnedRows<'_> {
    /// Which of `parts` owners has the row: those of a run together, else spread evenly.
    #[inline(always)]
    pub(crate) fn owner(row: u32, parts: u32) -> u32 {
        let mixed = (row >> RUN_LOG2).wrapping_mul(0x9E37_79B1);
        ((u64::from(mixed) * u64::from(parts)) >> 32) as u32
    }

    /// Whether this part may write `row`.
    #[inline(always)]
    pub(crate) fn owns(&self, row: u32) -> bool {
        self.parts == 1 || Self::owner(row, self.parts) == self.part
    }

    /// The row `row` for writing, or `None` if another part owns it or there is no such row.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: u32) -> Option<&mut [f32]> {
        if row as usize >= self.slab.rows || !self.owns(row) {
            return None;
        }
        // SAFETY: the place is valid as for `Slab::row`. No two references overlap: `split` borrows
        // the slab exclusively for as long as its parts live, every row has one owner among the
        // parts, and `&mut self` lets an owner have one row at a time.
        Some(unsafe { std::slice::from_raw_parts_mut(self.slab.address(row), self.slab.width) })
    }

    /// Starts to bring a row into the cache, to be written.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32) {
        if (row as usize) < self.slab.rows {
            fetch_lines(self.slab.address(row), self.slab.width);
        }
    }
}

/// Asks for the lines of `floats` floats from `start` on, up to what pays.
#[inline(always)]
fn fetch_lines(start: *const f32, floats: usize) {
    let bytes = (floats * size_of::<f32>()).min(AHEAD);
    let mut at = 0;
    while at < bytes {
        fetch(start.cast::<u8>().wrapping_add(at));
        at += LINE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_placed_by_cache_line() {
        for (width, stride) in [
            (1, 1),
            (3, 4),
            (16, 16),
            (17, 18),
            (28, 32),
            (33, 34),
            (64, 64),
            (65, 66),
            (8192, 8192),
        ] {
            assert_eq!(Slab::new(width, 1000).stride, stride, "{width}");
        }
    }

    #[test]
    fn every_row_has_one_owner_and_keeps_what_it_wrote() {
        let mut slab = Slab::new(3, 1 << 30);
        let rows = (CHUNK / 16) as u32 + 100;
        slab.grow(rows as usize).unwrap();
        for mut part in slab.split(3) {
            for row in (0..rows).filter(|row| row % 1000 < 40) {
                if let Some(place) = part.row_mut(row) {
                    place
                        .iter_mut()
                        .for_each(|value| *value += 1.0 + row as f32);
                }
            }
            assert!(part.row_mut(rows).is_none());
        }
        for row in (0..rows).filter(|row| row % 1000 < 40) {
            assert_eq!(slab.row(row).unwrap(), [1.0 + row as f32; 3]);
        }
        assert!(slab.row(rows).is_none());
    }

    #[test]
    fn rows_keep_their_values_when_they_move_to_a_huge_page() {
        let mut slab = Slab::new(3, 1 << 20);
        let rows = |bytes: usize| bytes / 16;
        let value = |row: usize| [row as f32, -1.0, 0.5];
        let write = |slab: &mut Slab, from: usize| {
            for row in from..slab.rows() {
                slab.row_mut(row as u32)
                    .unwrap()
                    .copy_from_slice(&value(row));
            }
        };
        for _ in 0..2 {
            slab.grow(rows(GROWN) - 1).unwrap();
            write(&mut slab, 0);
            let (start, old) = (slab.row(0).unwrap().as_ptr(), slab.rows());
            slab.grow(rows(GROWN) + 5).unwrap();
            write(&mut slab, old);
            assert_eq!(slab.row(0).unwrap().as_ptr(), start);
            let mut found = (0..slab.rows()).map(|row| (slab.row(row as u32), row));
            assert!(found.all(|(found, row)| found == Some(&value(row)[..])));
            // Smaller, and large once more: its memory went back to the system in between.
            drop(slab.truncate(rows(1 << 20)));
            write(&mut slab, 0);
        }
    }

    #[test]
    fn rows_survive_a_move_to_wider_rows() {
        let mut slab = Slab::new(2, 100);
        slab.grow(50).unwrap();
        for row in 0..50 {
            slab.row_mut(row).unwrap().fill(row as f32);
        }
        slab.move_into(Slab::new(4, 100), |row| row[2..].fill(-1.0))
            .unwrap();
        assert_eq!(slab.row(49).unwrap(), [49.0, 49.0, -1.0, -1.0]);
        assert_eq!(slab.rows(), 50);
    }

    #[test]
    fn pages_that_were_asked_for_later_are_there_for_their_rows() {
        let rows = |mib: usize| (mib << 20) / 64;
        let mut slab = Slab::new(16, 1 << 20);
        slab.grow(rows(1)).unwrap();
        assert!(slab.later_pages(1 << 20).is_empty(), "a small table");
        slab.grow(rows(40)).unwrap();
        slab.fresh_pages(2).iter().for_each(|pages| pages.ask());
        // Nothing lies between the end of the rows and what is there already.
        assert!(slab.later_pages(0).is_empty());
        slab.grow(rows(41)).unwrap();
        // At most a sixteenth more, whatever is asked for.
        let later = slab.later_pages(usize::MAX);
        assert_eq!(later.len(), 2);
        assert!(!later[0].is_done());
        // Who needs what nobody has asked for yet helps with what lies behind.
        slab.grow(rows(42)).unwrap();
        let needed = slab.fresh_pages(2);
        assert_eq!(needed.len(), 2);
        assert!(needed.iter().zip(&later).all(|(a, b)| Arc::ptr_eq(a, b)));
        needed.iter().for_each(|pages| pages.ask());
        assert!(later[1].is_done());
        assert!(slab.fresh_pages(2).is_empty());
        // What is there is not asked for again.
        slab.grow(rows(44)).unwrap();
        assert!(slab.fresh_pages(2).is_empty());
        let later = slab.later_pages(rows(2));
        later.iter().for_each(|pages| pages.ask());
        slab.grow(rows(46)).unwrap();
        assert!(later.len() == 1 && slab.fresh_pages(2).is_empty());
        // Pages outlive the rows that they were for.
        let later = slab.later_pages(rows(2));
        drop(slab.truncate(rows(3)));
        drop(slab);
        later.iter().for_each(|pages| pages.ask());
    }

    #[test]
    fn fresh_pages_are_asked_for_once_and_a_little_ahead() {
        // A chunk is 16 huge pages and a half.
        let mut slab = Slab::new(528, 1 << 20);
        let (chunk, row) = (slab.chunk_bytes(), 528 * 4);
        assert_eq!(chunk, 33 << 20);
        // Pieces as positions from the start of the first chunk, in MiB.
        let mut pieces = |bytes: usize, least: usize| -> Vec<(usize, usize)> {
            slab.grow(bytes / row).unwrap();
            let starts: Vec<usize> = slab
                .chunks
                .iter()
                .map(|chunk| chunk.start().as_ptr().addr())
                .collect();
            let pieces = slab.fresh_pages(least);
            let mut places = Vec::new();
            for piece in pieces {
                let found = piece.addresses();
                let at = starts
                    .iter()
                    .position(|start| (*start..start + chunk).contains(&found.start))
                    .unwrap();
                let place = |address: usize| (at * chunk + address - starts[at]) >> 20;
                places.push((place(found.start), place(found.end)));
                piece.ask();
            }
            places
        };
        assert_eq!(pieces(2 << 20, 2), []);
        assert_eq!(pieces(3 << 20, 1), [(2, 4)]);
        // Not so far ahead that the rows become much larger.
        assert_eq!(pieces(5 << 20, 4), [(4, 6)]);
        assert_eq!(pieces(6 << 20, 4), []);
        assert_eq!(pieces(31 << 20, 1).len(), 13);
        // Over the end of a chunk, as far as there is another.
        assert_eq!(pieces((32 << 20) + row, 3), [(32, 33)]);
        assert_eq!(pieces(36 << 20, 3), [(33, 35), (35, 37), (37, 39)]);
        assert_eq!(pieces(38 << 20, 3), []);
        // Rows that went and came again.
        drop(slab.truncate((34 << 20) / row));
        slab.grow((36 << 20) / row).unwrap();
        assert_eq!(slab.fresh_pages(1).len(), 1);
        slab.row_mut(((35 << 20) / row) as u32).unwrap().fill(1.0);
        assert!(slab.fresh_pages(9).is_empty());
    }

    #[test]
    fn a_shorter_slab_forgets_the_rows_behind() {
        let mut slab = Slab::new(16, 1 << 20);
        slab.grow(70_000).unwrap();
        slab.row_mut(69_999).unwrap().fill(3.0);
        drop(slab.truncate(10));
        assert!(slab.row(10).is_none());
        slab.grow(70_000).unwrap();
        assert_eq!(slab.row(69_999).unwrap(), [0.0; 16]);
    }
}
