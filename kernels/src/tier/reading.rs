//! A batch of reads: planned under the lock of the log, and done without one.

use super::record::{self, Spot};
use super::segments::Use;
use super::shared::Shared;
use super::{ReadAt, ReadFailure};
use crate::pool::{ranges, Pool};
use crate::{Error, Kind, Result};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Reads of one thread that are under way at once.
const READS: usize = 1024;

/// Bytes that one thread reads at once, at most: one record more.
const BYTES: u64 = 512 << 10;

/// Records this close to each other are one read.
const GAP: u64 = 4 << 10;

/// A record that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Where it is, as [`Log::append`](super::Log::append) said.
    pub place: u32,
    /// Whose it is.
    pub row: u32,
}

/// One record of a reading, with all that finds and checks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) directory: usize,
    pub(super) at: u64,
    pub(super) generation: u32,
    pub(super) row: u32,
    /// Where its floats go.
    pub(super) index: u32,
}

/// Where a record goes.
trait Target: Send {
    /// Memory of this record alone, for all of its bytes: it may be read right there.
    fn own(&mut self) -> Option<&mut [u8]>;

    /// Takes a record that was read elsewhere.
    fn take(&mut self, record: &[u8]);
}

/// The parts of a record that say something to a table.
struct Parts<'t> {
    floats: &'t mut [f32],
    key: &'t mut i64,
}

impl Target for Parts<'_> {
    fn own(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn take(&mut self, record: &[u8]) {
        *self.key = record::header(record).key;
        record::floats(record, self.floats);
    }
}

/// All of a record.
impl Target for &mut [u8] {
    fn own(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }

    fn take(&mut self, record: &[u8]) {
        self.copy_from_slice(record);
    }
}

/// Reads of records that keep their places until this is dropped, whatever is freed meanwhile.
///
/// Whoever plans under a lock and runs without it looks afterwards, with the lock and before this
/// is dropped, whether the rows are where they were: if so the floats are theirs.
pub struct Reading {
    pub(super) shared: Arc<Shared>,
    /// By directory and offset.
    pub(super) items: Vec<Item>,
    pub(super) _holds: Vec<Arc<Use>>,
}

impl Reading {
    /// Reads all records: the floats of want `i` go to `into[i * width..][..width]`, its key to
    /// `keys[i]`. Every record's checksum, row and generation are compared.
    ///
    /// # Errors
    /// `DataLoss` for a record that is not what was written, with its row, its key as it stands
    /// there, file and offset; `Io`; `InvalidArgument` if `into` or `keys` is not as long as the
    /// records.
    pub fn run(&self, pool: &Pool, into: &mut [f32], keys: &mut [i64]) -> Result<()> {
        let width = self.shared.width();
        if into.len() != self.items.len() * width || keys.len() != self.items.len() {
            return Err(Error::invalid("records do not fit where they are to go")
                .with("floats", into.len())
                .with("keys", keys.len())
                .with("records", self.items.len())
                .with("floats_per_record", width));
        }
        let targets = into.chunks_exact_mut(width).zip(keys);
        let targets = targets.map(|(floats, key)| Parts { floats, key });
        self.run_all(pool, targets, None::<fn() -> Result<()>>)
    }

    /// Reads all records as they are, want `i` to `into[i * n..][..n]` where `n` is the bytes of a
    /// record, while another thread of the pool, if there is one, does something else.
    ///
    /// # Errors
    /// That of `beside`, else as for [`Reading::run`].
    pub(crate) fn run_beside(
        &self,
        pool: &Pool,
        into: &mut [u8],
        beside: impl FnOnce() -> Result<()> + Send,
    ) -> Result<()> {
        let record = self.shared.record();
        if into.len() != self.items.len() * record {
            return Err(Error::invalid("records do not fit where they are to go")
                .with("bytes", into.len())
                .with("records", self.items.len())
                .with("bytes_per_record", record));
        }
        self.run_all(pool, into.chunks_exact_mut(record), Some(beside))
    }

    fn run_all<T: Target>(
        &self,
        pool: &Pool,
        targets: impl Iterator<Item = T>,
        beside: Option<impl FnOnce() -> Result<()> + Send>,
    ) -> Result<()> {
        let mut places: Vec<Option<T>> = targets.map(Some).collect();
        let mut ordered: Vec<(Item, T)> = self
            .items
            .iter()
            .filter_map(|item| Some((*item, places[item.index as usize].take()?)))
            .collect();
        let parts = match (pool.parts(ordered.len(), READS / 8), &beside) {
            // The thread that is ready with something else helps with what is left.
            (parts @ 2.., Some(_)) => parts * 4,
            (parts, _) => parts,
        };
        let mut rest = ordered.as_mut_slice();
        let mut work: Vec<Work<'_, T, _>> = beside.into_iter().map(Work::Beside).collect();
        for range in ranges(rest.len(), parts) {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(range.len());
            rest = after;
            work.push(Work::Part(part));
        }
        pool.try_each(work, |work| match work {
            Work::Beside(run) => run(),
            Work::Part(part) => self.shared.fill(part),
        })
    }
}

/// What one thread does.
enum Work<'w, T, F> {
    /// What is done beside the reads.
    Beside(F),
    /// Records to be read, in order.
    Part(&'w mut [(Item, T)]),
}

impl Shared {
    /// Reads the records of `part`, which are in order.
    fn fill<T: Target>(&self, part: &mut [(Item, T)]) -> Result<()> {
        let bytes = self.record() as u64;
        let mut buffer = self.take_buffer();
        let mut done = 0;
        let mut outcome = Ok(());
        while done < part.len() && outcome.is_ok() {
            let spans = spans(&part[done..], bytes);
            let end = done + spans.last().map_or(0, |span| span.items.end);
            outcome = self.fill_spans(&mut part[done..end], &spans, &mut buffer);
            done = end;
        }
        self.keep_buffer(buffer);
        outcome
    }

    fn fill_spans<T: Target>(
        &self,
        part: &mut [(Item, T)],
        spans: &[Span],
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let record = self.record();
        let total: usize = spans.iter().map(|span| span.bytes as usize).sum();
        if buffer.len() < total {
            buffer.resize(total, 0);
        }
        let mut rest = &mut buffer[..total];
        let mut targets = &mut *part;
        let mut reads = Vec::with_capacity(spans.len());
        for span in spans {
            let (own, others) = std::mem::take(&mut targets).split_at_mut(span.items.len());
            targets = others;
            let alone = match own {
                [(_, target)] => target.own(),
                _ => None,
            };
            let into = alone.unwrap_or_else(|| {
                let (into, after) = std::mem::take(&mut rest).split_at_mut(span.bytes as usize);
                rest = after;
                into
            });
            reads.push(ReadAt {
                directory: span.directory,
                at: span.at,
                into,
            });
        }
        let done = self.storage().read(&mut reads);
        done.map_err(|failure| {
            let span = spans.get(failure.read).or(spans.first());
            let item = span.and_then(|span| part.get(span.items.start));
            self.unread(item.map(|(item, _)| item), failure)
        })?;
        self.counted(total as u64, part.len() as u64);
        let mut start = 0;
        for span in spans {
            let own = &mut part[span.items.clone()];
            if let [(item, target)] = own {
                if let Some(bytes) = target.own() {
                    self.check(item, bytes)?;
                    continue;
                }
            }
            for (item, target) in own {
                let from = start + (item.at - span.at) as usize;
                let bytes = &buffer[from..from + record];
                self.check(item, bytes)?;
                target.take(bytes);
            }
            start += span.bytes as usize;
        }
        Ok(())
    }

    /// Compares what a record says of itself with what it should be.
    fn check(&self, item: &Item, bytes: &[u8]) -> Result<()> {
        let header = record::header(bytes);
        let spot = Spot {
            directory: item.directory,
            at: item.at,
        };
        let what = if !record::is_whole(bytes, spot) {
            "the checksum of a row on disk is wrong"
        } else if header.generation != item.generation || header.row != item.row {
            "a row on disk is not the one that was written there"
        } else {
            return Ok(());
        };
        Err(Error::new(Kind::DataLoss, what)
            .with("row", item.row)
            .with("key_as_read", header.key)
            .with("file", self.storage().name(item.directory))
            .with("offset", item.at))
    }

    /// The error of a read that the system refused.
    fn unread(&self, item: Option<&Item>, failure: ReadFailure) -> Error {
        let (kind, what) = match failure.cause.kind() {
            io::ErrorKind::UnexpectedEof => (Kind::DataLoss, "the file of a row on disk is short"),
            _ => (Kind::Io, "cannot read a row on disk"),
        };
        let error = Error::new(kind, what);
        let error = match item {
            Some(item) => error
                .with("row", item.row)
                .with("file", self.storage().name(item.directory))
                .with("offset", item.at),
            None => error,
        };
        error.with("cause", failure.cause)
    }
}

/// Bytes of one file that are read at once.
struct Span {
    directory: usize,
    at: u64,
    bytes: u64,
    /// The items that lie in it.
    items: Range<usize>,
}

/// The spans of the first items: as many as are read at once.
fn spans<T>(items: &[(Item, T)], record: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut total = 0;
    for (number, (item, _)) in items.iter().enumerate() {
        let is_full = spans.len() == READS || total >= BYTES;
        match spans.last_mut() {
            Some(span)
                if span.directory == item.directory
                    && item.at <= span.at + span.bytes + GAP
                    && total < BYTES =>
            {
                let bytes = span.bytes.max(item.at + record - span.at);
                total += bytes - span.bytes;
                span.bytes = bytes;
                span.items.end = number + 1;
            }
            _ if is_full => break,
            _ => {
                total += record;
                spans.push(Span {
                    directory: item.directory,
                    at: item.at,
                    bytes: record,
                    items: number..number + 1,
                });
            }
        }
    }
    spans
}
