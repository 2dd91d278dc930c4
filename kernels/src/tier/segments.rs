//! Segments of slots, and which slots are live.
//!
//! A segment is an extent of one directory's file that holds a fixed number of records. It is
//! written from its first slot to its last, and again only after all of its records are freed.
//!
//! ```text
//! place   = segment << shift | slot
//! offset  = (extent << shift | slot) * bytes of a record       in the file of its directory
//!
//! Absent --open--> Open --full--> Sealed --no live record, nobody reads or writes--> Free
//!    ^               ^                                                                |  |
//!    |               +----------------------------open--------------------------------+  |
//!    +------------------------------its space is given back-------------------------------+
//! ```

use crate::{Error, Kind, Result};
use std::sync::Arc;

/// Places are below this number.
pub(super) const MOST_PLACES: u64 = 1 << 31;

/// A segment has so many slots at least.
const FEWEST_SLOTS: u32 = 64;

/// A segment should take a share of 1 / SHARE of all records, within these bounds in bytes.
const SHARE: u64 = 256;
const SMALLEST: u64 = 16 << 10;
const LARGEST: u64 = 64 << 20;

/// One use of a segment, from its opening until all of its records are freed. Whoever reads or
/// writes there holds it, and the segment is not used again meanwhile.
#[derive(Debug)]
pub(super) struct Use {
    /// Different in each use of a segment.
    pub(super) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its extent has no space.
    Absent,
    /// It has space, and no record that anybody wants.
    Free,
    /// Records are written there.
    Open,
    /// All slots were given out.
    Sealed,
}

#[derive(Debug)]
struct Segment {
    directory: usize,
    extent: u32,
    state: State,
    /// The slots below are given out.
    filled: u32,
    live: u32,
    /// A record in it cannot be read, so that it is not compacted.
    is_spoiled: bool,
    /// One bit a slot, set where its record is live.
    bits: Box<[u64]>,
    hold: Arc<Use>,
}

impl Segment {
    fn is_live(&self, slot: u32) -> bool {
        let word = self.bits.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }
}

/// Slots of one segment that follow one another.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) segment: u32,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) directory: usize,
    /// Where the first of them is in the file.
    pub(super) at: u64,
    pub(super) hold: Arc<Use>,
}

/// All segments of a log.
#[derive(Debug)]
pub(super) struct Segments {
    shift: u32,
    record: u64,
    list: Vec<Segment>,
    /// The open segment of each directory.
    heads: Vec<Option<u32>>,
    /// How many extents the file of each directory has.
    extents: Vec<u32>,
    /// The directory that the next records go to.
    turn: usize,
    live: u64,
    /// Segments that have space.
    present: u64,
    /// Those of them that are free.
    free: u64,
}

impl Segments {
    /// No segments, for records of `record` bytes, `most` of them at most, in so many directories.
    pub(super) fn new(directories: usize, record: usize, most: u64) -> Segments {
        let record = record as u64;
        let wanted = (most.saturating_mul(record) / SHARE).clamp(SMALLEST, LARGEST) / record;
        let wanted = wanted.clamp(u64::from(FEWEST_SLOTS), 1 << 20);
        Segments {
            shift: wanted.ilog2(),
            record,
            list: Vec::new(),
            heads: vec![None; directories],
            extents: vec![0; directories],
            turn: 0,
            live: 0,
            present: 0,
            free: 0,
        }
    }

    /// Slots of a segment.
    pub(super) fn slots(&self) -> u32 {
        1 << self.shift
    }

    /// Live records.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Slots that have space on disk.
    pub(super) fn present(&self) -> u64 {
        self.present << self.shift
    }

    /// How many segments may have records, or be written, before some are compacted, when `live`
    /// records are: 7/5 of what these fill, an open one in each directory, and two to go on with.
    fn needed(&self, live: u64) -> u64 {
        self.and_few((live * 7 / 5).div_ceil(u64::from(self.slots())))
    }

    /// How many segments may have space, free ones among them, before some of it is given back. It
    /// is between both bounds: space that goes and is taken again costs more than compaction.
    fn kept(&self, live: u64) -> u64 {
        self.and_few((live * 29 / 20).div_ceil(u64::from(self.slots())))
    }

    /// How many segments may have space whatever compaction takes: 3/2 of what `live` records
    /// fill, and as many more as in [`Segments::needed`].
    fn most(&self, live: u64) -> u64 {
        self.and_few((live * 3 / 2).div_ceil(u64::from(self.slots())))
    }

    /// Segments that are not free.
    fn taken(&self) -> u64 {
        self.present - self.free
    }

    fn and_few(&self, filled: u64) -> u64 {
        filled + self.heads.len() as u64 + 2
    }

    /// Bytes of a segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.record << self.shift
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        let each = size_of::<Segment>() + size_of::<Use>() + 16;
        (self.list.capacity() * each + self.list.len() * (self.slots() as usize / 8)) as u64
    }

    fn at(&self, segment: &Segment, slot: u32) -> u64 {
        ((u64::from(segment.extent) << self.shift) + u64::from(slot)) * self.record
    }

    /// The number of a slot.
    pub(super) fn place(&self, segment: u32, slot: u32) -> u32 {
        segment << self.shift | slot
    }

    fn slot(&self, place: u32) -> u32 {
        place & (self.slots() - 1)
    }

    /// The segment of a place.
    pub(super) fn segment(&self, place: u32) -> u32 {
        place >> self.shift
    }

    /// Takes slots for `n` records, which are not live yet, out of directories that are not
    /// `full`. `reserve` takes space for an extent, `(directory, first byte)`.
    ///
    /// # Errors
    /// `ResourceExhausted` for too many places; the first error of `reserve` if every directory
    /// has one. No slot is taken.
    pub(super) fn take(
        &mut self,
        n: usize,
        full: &mut [bool],
        mut reserve: impl FnMut(usize, u64) -> Result<()>,
    ) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut left = n as u64;
        let mut refused = None;
        while left > 0 {
            let Some(directory) = self.next_directory(full) else {
                let none = || Error::new(Kind::Internal, "no directory takes rows");
                self.give_back(&pieces);
                return Err(refused.unwrap_or_else(none));
            };
            let segment = match self.head(directory, &mut reserve) {
                Ok(segment) => segment,
                Err(error) => {
                    full[directory] = true;
                    refused.get_or_insert(error);
                    continue;
                }
            };
            let slots = self.slots();
            let head = &self.list[segment as usize];
            let (first, count) = (head.filled, left.min(u64::from(slots - head.filled)) as u32);
            pieces.push(Piece {
                segment,
                first,
                count,
                directory,
                at: self.at(head, first),
                hold: Arc::clone(&head.hold),
            });
            left -= u64::from(count);
            let head = &mut self.list[segment as usize];
            head.filled += count;
            if head.filled == slots {
                head.state = State::Sealed;
                self.heads[directory] = None;
            }
        }
        Ok(pieces)
    }

    /// The directory whose turn it is.
    fn next_directory(&mut self, full: &[bool]) -> Option<usize> {
        let directories = self.heads.len();
        let turns = (0..directories).map(|by| (self.turn + by) % directories);
        let directory = turns.into_iter().find(|&directory| !full[directory])?;
        self.turn = (directory + 1) % directories;
        Some(directory)
    }

    /// The open segment of a directory.
    fn head(
        &mut self,
        directory: usize,
        reserve: &mut impl FnMut(usize, u64) -> Result<()>,
    ) -> Result<u32> {
        if let Some(head) = self.heads[directory] {
            return Ok(head);
        }
        self.settle();
        let with = |list: &[Segment], state: State| {
            list.iter()
                .position(|segment| segment.directory == directory && segment.state == state)
        };
        let found = match with(&self.list, State::Free) {
            Some(free) => {
                self.free -= 1;
                free
            }
            None => {
                let absent = with(&self.list, State::Absent);
                let extent = absent.map_or(self.extents[directory], |at| self.list[at].extent);
                if absent.is_none() && (self.list.len() as u64 + 1) << self.shift > MOST_PLACES {
                    return Err(Error::new(
                        Kind::ResourceExhausted,
                        "too many rows on disk for one table",
                    )
                    .with("most", MOST_PLACES));
                }
                reserve(directory, u64::from(extent) * self.segment_bytes())?;
                self.present += 1;
                absent.unwrap_or_else(|| {
                    self.extents[directory] += 1;
                    self.list.push(Segment {
                        directory,
                        extent,
                        state: State::Free,
                        filled: 0,
                        live: 0,
                        is_spoiled: false,
                        bits: vec![0; self.slots() as usize / 64].into(),
                        hold: Arc::new(Use { generation: 0 }),
                    });
                    self.list.len() - 1
                })
            }
        };
        let segment = &mut self.list[found];
        segment.state = State::Open;
        segment.filled = 0;
        segment.is_spoiled = false;
        let generation = segment.hold.generation.wrapping_add(1);
        segment.hold = Arc::new(Use { generation });
        self.heads[directory] = Some(found as u32);
        Ok(found as u32)
    }

    /// Slots that were taken stay unused.
    pub(super) fn give_back(&mut self, pieces: &[Piece]) {
        for piece in pieces.iter().rev() {
            let segment = &mut self.list[piece.segment as usize];
            // Slots behind them may be somebody's by now: then these are lost until the segment is
            // compacted.
            if segment.filled == piece.first + piece.count {
                segment.filled = piece.first;
                if segment.state == State::Sealed && self.heads[segment.directory].is_none() {
                    segment.state = State::Open;
                    self.heads[segment.directory] = Some(piece.segment);
                }
            }
        }
    }

    /// The records of slots that were taken are live.
    pub(super) fn publish(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let segment = &mut self.list[piece.segment as usize];
            for slot in piece.first..piece.first + piece.count {
                segment.bits[slot as usize / 64] |= 1 << (slot % 64);
            }
            segment.live += piece.count;
            self.live += u64::from(piece.count);
        }
    }

    /// Where the record of a place is, if it is live: segment, directory, offset, use.
    pub(super) fn find(&self, place: u32) -> Option<Piece> {
        let number = self.segment(place);
        let segment = self.list.get(number as usize)?;
        let slot = self.slot(place);
        segment.is_live(slot).then(|| Piece {
            segment: number,
            first: slot,
            count: 1,
            directory: segment.directory,
            at: self.at(segment, slot),
            hold: Arc::clone(&segment.hold),
        })
    }

    /// Whether the record of a place is live.
    pub(super) fn is_live(&self, place: u32) -> bool {
        let segment = self.list.get(self.segment(place) as usize);
        segment.is_some_and(|segment| segment.is_live(self.slot(place)))
    }

    /// Offset of a slot behind the first of its segment.
    pub(super) fn offset_in_segment(&self, place: u32) -> u64 {
        u64::from(self.slot(place)) * self.record
    }

    /// A record is nobody's any more. `false`: it was not live.
    pub(super) fn free(&mut self, place: u32) -> bool {
        let slot = self.slot(place);
        let number = self.segment(place);
        let Some(segment) = self.list.get_mut(number as usize) else {
            return false;
        };
        if !segment.is_live(slot) {
            return false;
        }
        segment.bits[slot as usize / 64] &= !(1 << (slot % 64));
        segment.live -= 1;
        self.live -= 1;
        true
    }

    /// Segments without records become free, as long as nobody reads or writes there.
    fn settle(&mut self) {
        for segment in &mut self.list {
            let is_empty = segment.state == State::Sealed && segment.live == 0;
            if is_empty && Arc::strong_count(&segment.hold) == 1 {
                segment.state = State::Free;
                self.free += 1;
            }
        }
    }

    /// Gives back the space of free segments that are more than what is needed to go on: `release`
    /// does it, `(directory, first byte)`.
    pub(super) fn shrink(&mut self, release: impl Fn(usize, u64)) {
        self.settle();
        let kept = self.kept(self.live);
        for number in (0..self.list.len()).rev() {
            if self.present <= kept {
                break;
            }
            let segment = &mut self.list[number];
            if segment.state == State::Free {
                segment.state = State::Absent;
                self.present -= 1;
                self.free -= 1;
                let extent = u64::from(segment.extent);
                release(segment.directory, extent * (self.record << self.shift));
            }
        }
    }

    /// The segment to compact, if segments that are not free will be more than 7/5 of what live
    /// records need and a little: the one with the fewest live records that is none of `except`.
    /// Those will be free as soon as the caller has heard of the copies, and `going` live records
    /// fewer there.
    pub(super) fn victim(&mut self, except: &[u32], going: u64) -> Option<u32> {
        self.settle();
        let live = self.live.saturating_sub(going);
        if self.taken() <= self.needed(live) + except.len() as u64 {
            return None;
        }
        let candidates = self.list.iter().enumerate().filter(|(_, segment)| {
            segment.state == State::Sealed && segment.live > 0 && !segment.is_spoiled
        });
        let candidates = candidates.filter(|(number, _)| !except.contains(&(*number as u32)));
        let (number, segment) = candidates.min_by_key(|(_, segment)| segment.live)?;
        // A full one would give nothing.
        (u64::from(segment.live) < u64::from(self.slots()) * 15 / 16).then_some(number as u32)
    }

    /// The live slots of a segment from `from` on, out of `most` that follow one another, and what
    /// is needed to read them.
    pub(super) fn live_slots(&self, number: u32, from: u32, most: u64) -> (Vec<u32>, Piece) {
        let segment = &self.list[number as usize];
        let live = (from..self.slots()).filter(|&slot| segment.is_live(slot));
        let mut slots = Vec::new();
        for slot in live {
            if slots
                .first()
                .is_some_and(|&first| u64::from(slot - first) >= most)
            {
                break;
            }
            slots.push(slot);
        }
        let piece = Piece {
            segment: number,
            first: 0,
            count: self.slots(),
            directory: segment.directory,
            at: self.at(segment, 0),
            hold: Arc::clone(&segment.hold),
        };
        (slots, piece)
    }

    /// Whether the space will be more than 3/2 of what live records need and a little, when `done`
    /// segments are free and `going` live records fewer there.
    pub(super) fn is_too_large(&self, done: usize, going: u64) -> bool {
        let live = self.live.saturating_sub(going);
        self.taken() > self.most(live) + done as u64
    }

    /// A record of a segment cannot be read: it is not compacted as long as it has records.
    pub(super) fn spoil(&mut self, number: u32) {
        self.list[number as usize].is_spoiled = true;
    }

    /// Drops all records.
    pub(super) fn clear(&mut self) {
        self.heads.fill(None);
        self.live = 0;
        for segment in &mut self.list {
            segment.bits.fill(0);
            segment.live = 0;
            if segment.state == State::Open {
                segment.state = State::Sealed;
            }
        }
    }
}
