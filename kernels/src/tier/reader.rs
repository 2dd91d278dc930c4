//! What reads batches: what memory holds at once, the rest by io_uring where the system allows it,
//! else by threads.

use super::pages::{around, Pages, PAGE};
use super::pending::Pending;
use super::uring::Rings;
use super::{threads, ReadAt, ReadFailure};
use rustix::io::{preadv2, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSliceMut};

/// Threads that read at once without io_uring.
const THREADS: usize = 64;

/// How batches of reads are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// By io_uring.
    Ring,
    /// By so many threads at most.
    Threads(usize),
}

/// What reads batches.
#[derive(Debug)]
enum Means {
    Ring(Rings),
    Threads(usize),
}

/// What reads batches, and where they go on their way.
#[derive(Debug)]
pub(super) struct Reader {
    means: Means,
    pages: Pages,
}

/// A file, and how it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'f> {
    pub(super) file: &'f File,
    /// Whether its reads go past the page cache, so that they are whole pages.
    pub(super) is_direct: bool,
}

/// How this process reads rows that are not in memory, and why not by io_uring, for people.
pub(super) fn reads_by() -> String {
    match Rings::new() {
        Ok(_) => "io_uring".to_owned(),
        Err(cause) => threads_because(&cause),
    }
}

/// Why threads read.
fn threads_because(cause: &io::Error) -> String {
    let why = match cause.kind() {
        io::ErrorKind::PermissionDenied => "this system or container forbids io_uring",
        io::ErrorKind::Unsupported => "this system has no io_uring that reads",
        _ => "io_uring cannot be used",
    };
    format!("up to {THREADS} threads: {why} ({cause})")
}

impl Reader {
    /// What this system has. Containers often forbid io_uring.
    pub(super) fn new() -> Reader {
        Reader::by(Rings::new().map_or(Means::Threads(THREADS), Means::Ring))
    }

    /// The one that is asked for, if the system has it.
    pub(super) fn of(kind: ReadBy) -> io::Result<Reader> {
        Ok(Reader::by(match kind {
            ReadBy::Ring => Means::Ring(Rings::new()?),
            ReadBy::Threads(threads) => Means::Threads(threads),
        }))
    }

    fn by(means: Means) -> Reader {
        Reader {
            means,
            pages: Pages::default(),
        }
    }

    pub(super) fn kind(&self) -> ReadBy {
        match &self.means {
            Means::Ring(_) => ReadBy::Ring,
            Means::Threads(threads) => ReadBy::Threads(*threads),
        }
    }

    /// Fills all of `reads`; see [`Storage::read`](super::Storage::read).
    pub(super) fn read<'f>(
        &self,
        source: impl Fn(usize) -> Source<'f>,
        reads: &mut [ReadAt<'_>],
    ) -> Result<(), ReadFailure> {
        let direct = |read: &ReadAt<'_>| {
            let is_one = source(read.directory).is_direct && !read.into.is_empty();
            is_one.then(|| around(read.at, read.into.len()))
        };
        let bytes = reads.iter().filter_map(direct).map(|(_, bytes)| bytes);
        let bytes = bytes.sum();
        if bytes == 0 {
            return self.complete(cached(&source, reads));
        }
        self.pages.with(bytes, |pages| {
            let mut rest = &mut *pages;
            let mut pending = Vec::with_capacity(reads.len());
            let mut others = Vec::new();
            for (number, read) in reads.iter_mut().enumerate() {
                let Some((at, bytes)) = direct(read) else {
                    others.extend(not_cached(source(read.directory).file, number, read));
                    continue;
                };
                let (into, after) = std::mem::take(&mut rest).split_at_mut(bytes);
                rest = after;
                pending.push(Pending {
                    number,
                    file: source(read.directory).file,
                    at,
                    into,
                    needed: (read.at - at) as usize + read.into.len(),
                    unit: PAGE,
                });
            }
            pending.append(&mut others);
            self.complete(pending)?;
            let mut start = 0;
            for read in reads {
                let Some((at, bytes)) = direct(read) else {
                    continue;
                };
                let from = start + (read.at - at) as usize;
                let length = read.into.len();
                read.into.copy_from_slice(&pages[from..from + length]);
                start += bytes;
            }
            Ok(())
        })
    }

    /// Completes all of `pending`.
    fn complete(&self, pending: Vec<Pending<'_>>) -> Result<(), ReadFailure> {
        match &self.means {
            _ if pending.is_empty() => Ok(()),
            Means::Ring(rings) => match rings.read(pending) {
                Ok(outcome) => outcome,
                Err(pending) => threads::read(THREADS, pending),
            },
            Means::Threads(threads) => threads::read(*threads, pending),
        }
    }
}

/// Reads what memory holds; returns the others.
fn cached<'r, 'f: 'r>(
    source: &impl Fn(usize) -> Source<'f>,
    reads: &'r mut [ReadAt<'_>],
) -> Vec<Pending<'r>> {
    let reads = reads.iter_mut().enumerate();
    let rest = reads.filter_map(|(number, read)| {
        let file = source(read.directory).file;
        not_cached(file, number, read)
    });
    rest.collect()
}

/// Reads what memory holds; returns what it does not.
fn not_cached<'r>(file: &'r File, number: usize, read: &'r mut ReadAt<'_>) -> Option<Pending<'r>> {
    let filled = filled(file, read.at, read.into);
    let needed = read.into.len() - filled;
    (needed > 0).then(|| Pending {
        number,
        file,
        at: read.at + filled as u64,
        into: &mut read.into[filled..],
        needed,
        unit: 1,
    })
}

/// Reads what needs no wait. How many bytes that were: errors come again when the rest is read.
fn filled(file: &File, at: u64, into: &mut [u8]) -> usize {
    loop {
        let mut slices = [IoSliceMut::new(into)];
        match preadv2(file, &mut slices, at, ReadWriteFlags::NOWAIT) {
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
            done => return done.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::threads_because;
    use std::io::Error;

    #[test]
    fn threads_are_said_with_their_reason() {
        for (code, why) in [
            (libc::EPERM, "forbids io_uring (Operation not permitted"),
            (
                libc::ENOSYS,
                "has no io_uring that reads (Function not implemented",
            ),
            (libc::ENOMEM, "cannot be used (Cannot allocate memory"),
        ] {
            let said = threads_because(&Error::from_raw_os_error(code));
            assert!(
                said.starts_with("up to 64 threads: ") && said.contains(why),
                "{said}"
            );
        }
    }
}
