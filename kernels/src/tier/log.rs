//! A log of records on disk: appended, read, freed, compacted.

use super::reading::{Item, Reading, Want};
use super::record::{self, Spot};
use super::segments::{Piece, Segments, Use};
use super::shared::{Shared, WRITE};
use super::{ReadAt, Storage};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::{Error, Kind, Pool, Result};
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that one step of compaction reads at most, if less than a third of that was written since
/// the last step.
const STEP: u64 = 4 << 20;

/// How many times the bytes that were written since the last step one may read otherwise. Segments
/// that are less than 2/3 full give a byte back for each 3 that are read.
const SHARE: u64 = 3;

/// Bytes that compaction reads at once, at most, or one record.
const PIECE: u64 = 256 << 10;

/// A record that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Whose it is.
    pub row: u32,
    /// Its key, for error messages.
    pub key: i64,
    /// As many as the log's records have.
    pub floats: &'r [f32],
}

/// A record that compaction has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Whose it is.
    pub row: u32,
    /// Where it is still live.
    pub from: u32,
    /// Where its copy is live.
    pub to: u32,
}

/// What a step of compaction has copied.
///
/// Each record is live at both places. For each the caller looks where its row is: where that is
/// `from`, it is to be `to` from now on, and `from` is freed; else `to` is freed. No place of
/// `from` is used again until this is dropped.
#[derive(Debug, Default)]
pub struct Moves {
    list: Vec<Moved>,
    _holds: Vec<Arc<Use>>,
}

impl Deref for Moves {
    type Target = [Moved];

    fn deref(&self) -> &[Moved] {
        &self.list
    }
}

/// What a log holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Live records.
    pub live: u64,
    /// Records that the space taken on disk has room for.
    pub slots: u64,
    /// Bytes of that space.
    pub disk_bytes: u64,
    /// Bytes of memory that the bookkeeping takes.
    pub memory_bytes: u64,
    /// Records read for callers.
    pub records_read: u64,
    /// Bytes read from files, compaction included.
    pub bytes_read: u64,
    /// Records written for callers.
    pub records_written: u64,
    /// Bytes written to files, compaction included.
    pub bytes_written: u64,
    /// Records that compaction has copied.
    pub moved: u64,
    /// Segments that compaction found unreadable records in.
    pub unreadable: u64,
}

/// Records of one width in scratch files. All verbs may run at once.
pub struct Log {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Log {
    /// No records, of `width` floats each (1 or more), `most` of them at most; `storage` must be
    /// this log's alone.
    pub fn new(storage: Arc<dyn Storage>, width: usize, most: u64) -> Log {
        let segments = Segments::new(storage.directories(), record::bytes(width), most);
        Log {
            shared: Arc::new(Shared::new(storage, width, segments)),
        }
    }

    /// A log of records of another width in new files of the same directories.
    ///
    /// # Errors
    /// Those of making the files.
    pub fn another(&self, width: usize, most: u64) -> Result<Log> {
        Ok(Log::new(self.shared.storage.another()?, width, most))
    }

    /// Floats of a record.
    pub fn width(&self) -> usize {
        self.shared.width
    }

    /// Writes records. Returns their places, in their order; places are below 2^31. Memory: all of
    /// them once more.
    ///
    /// # Errors
    /// `ResourceExhausted`, with the directory, if no directory has space; `Io`;
    /// `InvalidArgument` for records of another width. No record is written then, and those there
    /// are stay.
    pub fn append(&self, records: &[Record<'_>]) -> Result<Vec<u32>> {
        let width = self.width();
        if let Some(odd) = records.iter().find(|record| record.floats.len() != width) {
            return Err(Error::invalid("a record for another log")
                .with("floats", odd.floats.len())
                .with("expected", width));
        }
        let size = self.shared.record();
        let mut bytes = vec![0; records.len() * size];
        for (bytes, one) in bytes.chunks_exact_mut(size).zip(records) {
            record::lay_out(bytes, one.row, one.key, one.floats);
        }
        self.append_laid_out(&mut bytes)
    }

    /// [`Log::append`] of records that [`record::lay_out`] has laid out one after the other. What
    /// they hold beside that is unspecified afterwards.
    ///
    /// # Errors
    /// As there; `InvalidArgument` for a part of a record.
    pub(crate) fn append_laid_out(&self, records: &mut [u8]) -> Result<Vec<u32>> {
        let size = self.shared.record();
        if !records.len().is_multiple_of(size) {
            return Err(Error::invalid("records for another log")
                .with("bytes", records.len())
                .with("bytes_per_record", size));
        }
        let places = self.write_all(records)?;
        let counter = &self.shared.counters.records_written;
        counter.fetch_add(places.len() as u64, Relaxed);
        Ok(places)
    }

    fn write_all(&self, records: &mut [u8]) -> Result<Vec<u32>> {
        let n = records.len() / self.shared.record();
        let storage = &self.shared.storage;
        let mut full = vec![false; storage.directories()];
        let mut first = None;
        loop {
            let pieces = {
                let mut segments = self.shared.segments.lock();
                let bytes = segments.segment_bytes();
                let taken = segments.take(n, &mut full, |directory, from| {
                    let done = storage.reserve(directory, from, bytes);
                    done.map_err(|cause| self.unwritten(directory, bytes, &cause))
                });
                match taken {
                    Ok(pieces) => pieces,
                    Err(error) => return Err(first.unwrap_or(error)),
                }
            };
            let written = self.write_pieces(&pieces, records);
            let mut segments = self.shared.segments.lock();
            let Err((directory, cause)) = written else {
                segments.publish(&pieces);
                let places = pieces.iter().flat_map(|piece| {
                    let slots = piece.first..piece.first + piece.count;
                    let place = |slot| segments.place(piece.segment, slot);
                    slots.map(place).collect::<Vec<_>>()
                });
                return Ok(places.collect());
            };
            segments.give_back(&pieces);
            drop(segments);
            let bytes = (n * self.shared.record()) as u64;
            let error = self.unwritten(directory, bytes, &cause);
            if error.kind() != Kind::ResourceExhausted {
                return Err(error);
            }
            full[directory] = true;
            let error = first.get_or_insert(error);
            if full.iter().all(|&full| full) {
                return Err(error.clone());
            }
        }
    }

    /// Writes records to slots that are theirs. The directory and the cause of an error.
    fn write_pieces(&self, pieces: &[Piece], records: &mut [u8]) -> Result<(), (usize, io::Error)> {
        let size = self.shared.record();
        let most = (WRITE / size).max(1) * size;
        let mut rest = records;
        for piece in pieces {
            let (own, others) = rest.split_at_mut(piece.count as usize * size);
            rest = others;
            let mut at = piece.at;
            for bytes in own.chunks_mut(most) {
                let written = self.write_sealed(piece, at, bytes);
                written.map_err(|cause| (piece.directory, cause))?;
                at += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes records that are laid out from byte `at` on, in a piece that is theirs.
    fn write_sealed(&self, piece: &Piece, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let size = self.shared.record();
        for (number, record) in bytes.chunks_exact_mut(size).enumerate() {
            let spot = Spot {
                directory: piece.directory,
                at: at + (number * size) as u64,
            };
            record::seal(record, piece.hold.generation, spot);
        }
        self.shared.storage.write(piece.directory, at, bytes)?;
        let counter = &self.shared.counters.bytes_written;
        counter.fetch_add(bytes.len() as u64, Relaxed);
        Ok(())
    }

    /// The error of a write, or of taking space, that the system refused.
    fn unwritten(&self, directory: usize, bytes: u64, cause: &io::Error) -> Error {
        let storage = &self.shared.storage;
        let (kind, what) = match cause.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => (
                Kind::ResourceExhausted,
                "no space for rows on disk: make some, or name another directory",
            ),
            _ => (Kind::Io, "cannot write rows to disk"),
        };
        let error = Error::new(kind, what)
            .with("file", storage.name(directory))
            .with("bytes", bytes);
        let error = match storage.free_space(directory) {
            Ok(free) => error.with("free_bytes", free),
            Err(_) => error,
        };
        error.with("cause", cause)
    }

    /// Reads records; see [`Log::plan`] and [`Reading::run`].
    ///
    /// # Errors
    /// As for these.
    pub fn read(
        &self,
        pool: &Pool,
        wants: &[Want],
        into: &mut [f32],
        keys: &mut [i64],
    ) -> Result<()> {
        self.plan(wants)?.run(pool, into, keys)
    }

    /// Finds records without reading them, which takes no time: under a lock of the caller, say.
    ///
    /// Reads that lie close together become one: wants that fill most of the files are read at the
    /// speed of reading in sequence, whatever their order.
    ///
    /// # Errors
    /// `Internal` for a place without a record.
    pub fn plan(&self, wants: &[Want]) -> Result<Reading> {
        let mut ordered: Vec<u64> = (0_u64..)
            .zip(wants)
            .map(|(index, want)| u64::from(want.place) << 32 | index)
            .collect();
        ordered.sort_unstable();
        let mut items = Vec::with_capacity(wants.len());
        let mut holds = Vec::new();
        let segments = self.shared.segments.lock();
        // The segment of the last item, where its first slot is, and how it is found.
        let mut last: Option<(u32, u64, usize, u32)> = None;
        for entry in ordered {
            let index = entry as u32;
            let want = wants[index as usize];
            let number = segments.segment(want.place);
            let within = segments.offset_in_segment(want.place);
            let is_live = segments.is_live(want.place);
            if last.is_none_or(|(segment, ..)| segment != number) {
                if let Some(piece) = segments.find(want.place) {
                    let start = piece.at - within;
                    last = Some((number, start, piece.directory, piece.hold.generation));
                    holds.push(piece.hold);
                }
            }
            let Some((_, start, directory, generation)) = last.filter(|_| is_live) else {
                return Err(Error::new(Kind::Internal, "a row on disk has no record")
                    .with("row", want.row)
                    .with("place", want.place));
            };
            items.push(Item {
                directory,
                at: start + within,
                generation,
                row: want.row,
                index,
            });
        }
        drop(segments);
        Ok(Reading {
            shared: Arc::clone(&self.shared),
            items,
            _holds: holds,
        })
    }

    /// Records are nobody's any more.
    ///
    /// # Errors
    /// `Internal` for a place without a record; the others are freed.
    pub fn free(&self, places: &[u32]) -> Result<()> {
        let mut outcome = Ok(());
        let mut segments = self.shared.segments.lock();
        for &place in places {
            if !segments.free(place) && outcome.is_ok() {
                outcome = Err(
                    Error::new(Kind::Internal, "a place was freed that has no record")
                        .with("place", place),
                );
            }
        }
        outcome
    }

    /// One step of compaction: copies the live records of segments with few of them, and gives
    /// space back, if the space taken is more than 7/5 of what live records need and a little. A
    /// step reads 4 MiB at most, or as much as keeps the space below 3/2 of that, and a little, if
    /// one follows each append: 3 times what was appended since the last one, 4.5 times what goes.
    ///
    /// A record that cannot be read stays where it is: whoever wants it gets the error.
    ///
    /// # Errors
    /// As for [`Log::append`], of the copies; nothing changed.
    pub fn compact(&self) -> Result<Moves> {
        self.compact_within(Duration::MAX, 0)
    }

    /// [`Log::compact`] for a caller who frees `going` more live records when it has heard of the
    /// copies. It ends before `limit` is over, as far as can be foreseen: it goes on in pieces of
    /// 256 KiB as long as one that takes as long as the longest before ends in time. What is left
    /// is done by the next steps, which may read as much more. The limit does not hold while the
    /// space is more than 3/2 of what live records need.
    ///
    /// # Errors
    /// As there.
    pub fn compact_within(&self, limit: Duration, going: u64) -> Result<Moves> {
        let mut moves = Moves::default();
        let record = self.shared.record() as u64;
        let written = self.shared.counters.records_written.load(Relaxed);
        let before = self.shared.compacted_at.load(Relaxed);
        let recent = written.saturating_sub(before).saturating_mul(SHARE);
        let recent = recent.max(going.saturating_mul(SHARE) * 3 / 2);
        let mut left = STEP.max(recent.saturating_mul(record));
        let mut time = Time::new(limit);
        let mut done = Vec::new();
        let mut is_late = false;
        'segments: while left > 0 && !is_late {
            // Copies count twice until the caller has heard of them.
            let gone = |moves: &Moves| going + moves.len() as u64;
            let victim = self.shared.segments.lock().victim(&done, gone(&moves));
            let Some(victim) = victim else {
                break;
            };
            done.push(victim);
            let mut from = Some(0);
            while let Some(start) = from.filter(|_| left > 0) {
                if !time.has_more() {
                    let segments = self.shared.segments.lock();
                    if !segments.is_too_large(done.len(), gone(&moves)) {
                        is_late = true;
                        break 'segments;
                    }
                }
                let most = left.min(PIECE);
                let (read, next) = match self.compact_piece(victim, start, most, &mut moves) {
                    Ok(done) => done,
                    Err(error) if moves.is_empty() => return Err(error),
                    // The caller has to hear of the copies there are.
                    Err(_) => break 'segments,
                };
                left = left.saturating_sub(read);
                from = next;
                time.note();
            }
        }
        // What there was no time for is read by the next steps.
        let until = if is_late { before } else { written };
        self.shared.compacted_at.store(until, Relaxed);
        self.give_back();
        Ok(moves)
    }

    /// Gives space back that free segments take beyond what is needed to go on.
    pub fn give_back(&self) {
        let mut segments = self.shared.segments.lock();
        let bytes = segments.segment_bytes();
        // Under the lock: nobody takes an extent while its space goes.
        segments.shrink(|directory, from| {
            // Space that cannot be given back is used again.
            let _ = self.shared.storage.release(directory, from, bytes);
        });
    }

    /// Copies records of a segment, of slots `from` on. The bytes read, and where to go on; `None`
    /// at the end of the segment.
    fn compact_piece(
        &self,
        victim: u32,
        from: u32,
        limit: u64,
        moves: &mut Moves,
    ) -> Result<(u64, Option<u32>)> {
        let size = self.shared.record();
        let most = (limit / size as u64).max(1);
        let (slots, piece) = self.shared.segments.lock().live_slots(victim, from, most);
        let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else {
            return Ok((0, None));
        };
        let start = piece.at + u64::from(first) * size as u64;
        let mut buffer = self.shared.take_buffer();
        let bytes = sized(&mut buffer, (last - first + 1) as usize * size);
        let mut reads = [ReadAt {
            directory: piece.directory,
            at: start,
            into: bytes,
        }];
        let spoil = || {
            self.shared.segments.lock().spoil(victim);
            self.shared.counters.unreadable.fetch_add(1, Relaxed);
        };
        if self.shared.storage.read(&mut reads).is_err() {
            spoil();
            return Ok((0, None));
        }
        let read = bytes.len() as u64;
        self.shared.counted(read, 0);
        // Whole records move to the front, and are written from there.
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            let from = (slot - first) as usize * size;
            let record = &bytes[from..from + size];
            let header = record::header(record);
            let spot = Spot {
                directory: piece.directory,
                at: start + from as u64,
            };
            if !record::is_whole(record, spot) || header.generation != piece.hold.generation {
                spoil();
                continue;
            }
            bytes.copy_within(from..from + size, found.len() * size);
            found.push((slot, header));
        }
        let records = &mut bytes[..found.len() * size];
        let places = self.write_all(records);
        self.shared.keep_buffer(buffer);
        let places = places?;
        self.shared
            .counters
            .moved
            .fetch_add(places.len() as u64, Relaxed);
        let segments = self.shared.segments.lock();
        for (&(slot, header), to) in found.iter().zip(places) {
            moves.list.push(Moved {
                row: header.row,
                from: segments.place(victim, slot),
                to,
            });
        }
        drop(segments);
        moves._holds.push(piece.hold);
        Ok((read, Some(last + 1)))
    }

    /// Drops all records.
    pub fn clear(&self) {
        self.shared.segments.lock().clear();
        self.give_back();
    }

    /// What it holds and has done.
    pub fn stats(&self) -> LogStats {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let segments = self.shared.segments.lock();
        LogStats {
            live: segments.live(),
            slots: segments.present(),
            disk_bytes: segments.present() * self.shared.record() as u64,
            memory_bytes: segments.bytes(),
            records_read: read(&counters.records_read),
            bytes_read: read(&counters.bytes_read),
            records_written: read(&counters.records_written),
            bytes_written: read(&counters.bytes_written),
            moved: read(&counters.moved),
            unreadable: read(&counters.unreadable),
        }
    }
}

/// The first `n` bytes of a buffer, with any contents.
fn sized(buffer: &mut Vec<u8>, n: usize) -> &mut [u8] {
    if buffer.len() < n {
        buffer.resize(n, 0);
    }
    &mut buffer[..n]
}

/// How much time is left for pieces of work.
struct Time {
    limit: Duration,
    start: Instant,
    /// When the piece before ended.
    last: Duration,
    /// How long the longest piece took.
    longest: Duration,
}

impl Time {
    fn new(limit: Duration) -> Time {
        Time {
            limit,
            start: Instant::now(),
            last: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }

    /// Whether a piece that takes as long as the longest one ends in time.
    fn has_more(&self) -> bool {
        self.last.saturating_add(self.longest) < self.limit
    }

    /// A piece has ended.
    fn note(&mut self) {
        let now = self.start.elapsed();
        self.longest = self.longest.max(now.saturating_sub(self.last));
        self.last = now;
    }
}
