//! How rows come into memory and others go to disk in their stead.
//!
//! ```text
//! begin    content locked    which rows are wanted, who goes for them; these are copied
//! run      nothing locked    wanted records are read, victims appended, some records compacted
//! finish   content locked    the victims' places become the log, the wanted rows get frames
//! ```
//! One exchange of a table runs at a time; verbs that find their rows in memory go on beside it.
//! A victim stays in its frame, to be read and written, until `finish`: if it was written or asked
//! for meanwhile it stays, and what was appended is nobody's. A wanted row that was freed meanwhile
//! is left alone. So an exchange that fails has changed nothing but where some records on disk are.

use super::buffers::{sized, Buffers};
use super::pins::{Pinned, Pins};
use super::tiered::{free, Place, Tiered};
use crate::mem::{each_asked, OwnedRows, Slab};
use crate::pool::{ranges, shares};
use crate::sync::atomic::Ordering::Relaxed;
use crate::tier::{record, Log, Moved, Moves, Reading, Want};
use crate::{Error, Kind, Pool, Result};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of rows that are worth a thread to copy them.
const LEAST: usize = 64 << 10;

/// How long a step of compaction takes at most, as far as it can be cut.
const COMPACTION: Duration = Duration::from_millis(20);

/// What a verb needs in memory before it runs.
#[derive(Clone, Copy)]
pub(crate) struct Request<'r> {
    /// Rows, which may repeat; those that are nowhere are passed over.
    pub(crate) rows: &'r [u32],
    /// Frames for so many new rows.
    pub(crate) new: usize,
    /// Whether a batch looks the rows up: the policy counts that for those in memory.
    pub(crate) is_lookup: bool,
}

/// How a request stands.
pub(crate) enum Begun {
    /// All is in memory, and pinned.
    Ready(Pinned),
    /// Rows have to change places first.
    Exchange(Box<Exchange>),
    /// Too many rows in memory are pinned.
    Blocked,
}

/// A row that goes to disk.
#[derive(Clone, Copy)]
struct Victim {
    frame: u32,
    row: u32,
}

/// Rows that change places.
pub(crate) struct Exchange {
    /// The content that it is for.
    pins: Arc<Pins>,
    log: Arc<Log>,
    /// Bytes of a record.
    record: usize,
    reading: Option<Reading>,
    wants: Vec<Want>,
    /// What was read, by want, and what is written, by victim.
    buffers: Buffers,
    /// Whether what is wanted was read.
    is_read: bool,
    victims: Vec<Victim>,
    /// Where the victims were written.
    places: Vec<u32>,
    moved: Moves,
    /// Frames for so many new rows are wanted.
    new: usize,
    /// Keeps those of the wanted rows in memory that are there.
    pinned: Pinned,
}

impl Tiered {
    /// Begins what a request needs. Returns as well how many of its rows are in memory.
    ///
    /// # Errors
    /// `ResourceExhausted` if the request alone is more than memory may hold, or without memory.
    pub(crate) fn begin(&mut self, pool: &Pool, request: Request<'_>) -> Result<(Begun, u64)> {
        let Request {
            rows,
            new,
            is_lookup,
        } = request;
        let mut here = Vec::with_capacity(rows.len());
        let mut wants = Vec::new();
        let ask = |tiered: &&Tiered, &row: &u32| tiered.prefetch_place(row);
        each_asked(&*self, rows.iter(), ask, |tiered, &row| {
            match tiered.place(row) {
                Place::Frame(frame) => here.push(frame),
                Place::Disk(place) => wants.push(Want { place, row }),
                Place::Nowhere => {}
            }
        });
        wants.sort_unstable_by_key(|want| want.place);
        wants.dedup_by_key(|want| want.place);
        self.expect_fits(rows, wants.len() + new)?;
        if is_lookup {
            here.iter().for_each(|&frame| self.policy.touch(frame));
        }
        let found = here.len() as u64;
        let pinned = self.pins.pin(here);
        let begun = self.begin_exchange(pool, wants, new, pinned)?;
        Ok((begun, found))
    }

    /// Brings `wants` in, ascending, and makes room for `new` rows.
    fn begin_exchange(
        &mut self,
        pool: &Pool,
        wants: Vec<Want>,
        new: usize,
        pinned: Pinned,
    ) -> Result<Begun> {
        let lacking = (wants.len() + new).saturating_sub(self.available());
        if wants.is_empty() && lacking == 0 {
            return Ok(Begun::Ready(pinned));
        }
        let mut frames = Vec::new();
        let policy = &mut self.policy;
        self.pins
            .with(|is_pinned| policy.victims(lacking, is_pinned, &mut frames));
        if frames.len() < lacking {
            self.stay(&frames);
            return Ok(Begun::Blocked);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        let copied = self.copy(pool, &frames, &mut buffers.leaving);
        let reading = match wants.is_empty() {
            true => Ok(None),
            false => self.log.plan(&wants).map(Some),
        };
        match (copied, reading) {
            (Ok(()), Ok(reading)) => {
                let victims = frames.iter().map(|&frame| Victim {
                    frame,
                    row: self.rows[frame as usize],
                });
                let victims: Vec<Victim> = victims.collect();
                for victim in &victims {
                    let at = victim.frame as usize;
                    self.leaving[at] = true;
                    *self.changed[at].get_mut() = false;
                }
                Ok(Begun::Exchange(Box::new(Exchange {
                    pins: Arc::clone(&self.pins),
                    log: Arc::clone(&self.log),
                    record: record::bytes(self.width()),
                    reading,
                    wants,
                    buffers,
                    is_read: false,
                    victims,
                    places: Vec::new(),
                    moved: Moves::default(),
                    new,
                    pinned,
                })))
            }
            (Err(error), _) | (_, Err(error)) => {
                self.stay(&frames);
                Err(error)
            }
        }
    }

    /// An exchange that only moves records within the files, so that they take less space.
    pub(crate) fn begin_compaction(&self) -> Box<Exchange> {
        Box::new(Exchange {
            pins: Arc::clone(&self.pins),
            log: Arc::clone(&self.log),
            record: record::bytes(self.width()),
            reading: None,
            wants: Vec::new(),
            buffers: Buffers::default(),
            is_read: false,
            victims: Vec::new(),
            places: Vec::new(),
            moved: Moves::default(),
            new: 0,
            pinned: self.pins.pin(Vec::new()),
        })
    }

    /// Whether an exchange is for these rows and these files.
    pub(crate) fn is_of(&self, exchange: &Exchange) -> bool {
        Arc::ptr_eq(&self.pins, &exchange.pins) && Arc::ptr_eq(&self.log, &exchange.log)
    }

    /// Ends an exchange: if it ran, rows change places; if not, all stay where they are. The rows
    /// that were wanted, if they are all in memory now, with room for the new ones.
    pub(crate) fn finish(&mut self, pool: &Pool, exchange: Box<Exchange>) -> Option<Pinned> {
        let Exchange {
            pins,
            log,
            record,
            wants,
            buffers,
            is_read,
            victims,
            places,
            moved,
            new,
            mut pinned,
            ..
        } = *exchange;
        if !Arc::ptr_eq(&pins, &self.pins) {
            drop_places(&log, &places);
            return None;
        }
        if !Arc::ptr_eq(&log, &self.log) {
            // Rows have become wider, in other files.
            victims.iter().for_each(|victim| self.stays(*victim));
            return None;
        }
        let mut freed = Vec::new();
        let pins = Arc::clone(&self.pins);
        pins.with(|is_pinned| {
            let written = places.iter().map(Some).chain(std::iter::repeat(None));
            for (&victim, place) in victims.iter().zip(written) {
                let at = victim.frame as usize;
                let goes = self.leaving[at] && !self.changed[at].load(Relaxed);
                match place {
                    Some(&place) if goes && !is_pinned(victim.frame) => {
                        self.leaving[at] = false;
                        self.put_on_disk(victim.frame, place);
                    }
                    place => {
                        self.stays(victim);
                        freed.extend(place);
                    }
                }
            }
        });
        let mut records = Vec::with_capacity(wants.len());
        let arrivals = match is_read {
            true => &buffers.arrivals[..],
            false => &[],
        };
        for (want, record) in wants.iter().zip(arrivals.chunks_exact(record)) {
            if self.on_disk(want.row) != Some(want.place) {
                continue;
            }
            // Victims that have stayed, or new rows, may have taken its frame: it is asked for
            // again.
            let Ok(frame) = self.take_frame() else {
                break;
            };
            self.put(want.row, frame);
            self.keys[frame as usize] = record::header(record).key;
            records.push((frame, record));
            freed.push(want.place);
        }
        self.fill(pool, &records);
        for &Moved { row, from, to } in moved.iter() {
            if self.on_disk(row) == Some(from) {
                self.moved(row, to);
                freed.push(from);
            } else {
                freed.push(to);
            }
        }
        free(&self.log, &freed);
        let came: Vec<u32> = records.iter().map(|&(frame, _)| frame).collect();
        self.buffers.keep(buffers);
        // Else it is found out what is where.
        let is_done = came.len() == wants.len() && self.available() >= new;
        is_done.then(|| {
            pinned.extend(&came);
            pinned
        })
    }

    /// Refuses a request whose distinct rows memory cannot hold: `more`, and those of `rows` that
    /// are in memory.
    fn expect_fits(&self, rows: &[u32], more: usize) -> Result<()> {
        let most = self.ram_rows();
        if (rows.len() + more) as u64 <= most {
            return Ok(());
        }
        let mut here: Vec<u32> = rows.to_vec();
        here.retain(|&row| self.on_disk(row).is_none() && (row as usize) < self.rows());
        here.sort_unstable();
        here.dedup();
        let distinct = (here.len() + more) as u64;
        if distinct <= most {
            return Ok(());
        }
        Err(Error::new(
            Kind::ResourceExhausted,
            "the distinct keys of one batch are more than the rows that may be in memory: raise \
             device_vocabulary_size or host_vocabulary_size, or make batches smaller",
        )
        .with("distinct", distinct)
        .with("rows_in_memory", most))
    }

    /// Lays the rows of some frames out as records, one after the other.
    fn copy(&self, pool: &Pool, frames: &[u32], records: &mut Vec<u8>) -> Result<()> {
        let (width, size) = (self.width(), record::bytes(self.width()));
        let records = sized(records, frames.len() * size)?;
        let parts = ranges(frames.len(), pool.parts(records.len(), LEAST));
        pool.each(shares(records, size, parts), |(range, records)| {
            let mut records = records.chunks_exact_mut(size);
            // They were not in use for long.
            let ask = |all: &&Slab, &frame: &u32| all.prefetch(frame, width);
            each_asked(&self.frames, frames[range].iter(), ask, |all, &frame| {
                if let (Some(record), Some(floats)) = (records.next(), all.row(frame)) {
                    let (row, key) = (self.rows[frame as usize], self.keys[frame as usize]);
                    record::lay_out(record, row, key, floats);
                }
            });
        });
        Ok(())
    }

    /// Copies the floats of records into the frames that were taken for them.
    fn fill(&mut self, pool: &Pool, records: &[(u32, &[u8])]) {
        let bytes = records.len() * record::bytes(self.width());
        let parts = self.frames.split(pool.parts(bytes, LEAST));
        pool.each(parts, |mut part| {
            let own = records.iter().filter(|(frame, _)| part.owns(*frame));
            let own: Vec<(u32, &[u8])> = own.copied().collect();
            let ask = |part: &&mut OwnedRows<'_>, &(frame, _): &(u32, &[u8])| part.prefetch(frame);
            each_asked(&mut part, own.iter(), ask, |part, &(frame, record)| {
                if let Some(floats) = part.row_mut(frame) {
                    record::floats(record, floats);
                }
            });
        });
    }

    /// Gives frames that were chosen to be emptied back to the policy.
    fn stay(&mut self, frames: &[u32]) {
        for &frame in frames {
            self.policy.admit(frame, self.rows[frame as usize]);
        }
    }

    /// A victim stays, unless it was freed meanwhile.
    fn stays(&mut self, victim: Victim) {
        let at = victim.frame as usize;
        if std::mem::replace(&mut self.leaving[at], false) {
            self.policy.admit(victim.frame, victim.row);
        }
    }
}

/// Another content has taken the place of the one that an exchange was for. If that content has the
/// same log, it was emptied, before or after the victims were appended.
fn drop_places(log: &Log, places: &[u32]) {
    let _ = log.free(places);
}

impl Exchange {
    /// Ends an exchange whose content is no table's any more.
    pub(crate) fn abandon(self) {
        drop_places(&self.log, &self.places);
    }

    /// How many records were copied to take less space.
    pub(crate) fn copies(&self) -> usize {
        self.moved.len()
    }

    /// Its files, which may give space back when it is finished.
    pub(crate) fn log(&self) -> Arc<Log> {
        Arc::clone(&self.log)
    }

    /// How many rows come in.
    pub(crate) fn arrivals(&self) -> usize {
        self.wants.len()
    }

    /// Reads and writes; the caller holds no lock of the table.
    ///
    /// # Errors
    /// What the log says. `finish` leaves all rows in memory or on disk, as they are, then.
    pub(crate) fn run(&mut self, pool: &Pool) -> Result<()> {
        let Buffers { arrivals, leaving } = &mut self.buffers;
        let (log, leaving) = (&self.log, &mut leaving[..self.victims.len() * self.record]);
        let (places, moved, going) = (&mut self.places, &mut self.moved, self.wants.len());
        // What is written, and what moves within the files.
        let mut write = || -> Result<()> {
            if !leaving.is_empty() {
                *places = log.append_laid_out(leaving)?;
            }
            // What cannot be compacted stays, and says so when it is wanted.
            let compacted = log.compact_within(COMPACTION, going as u64);
            *moved = compacted.unwrap_or_default();
            Ok(())
        };
        let done = match &self.reading {
            None => write(),
            Some(reading) => {
                let arrivals = sized(arrivals, going * self.record)?;
                reading.run_beside(pool, arrivals, write)
            }
        };
        if done.is_err() {
            // Neither half changes anything but where records are.
            drop_places(log, &std::mem::take(&mut self.places));
        }
        self.is_read = done.is_ok() && self.reading.is_some();
        done
    }
}
