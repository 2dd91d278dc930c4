//! What reads batches: what memory holds at once, the rest by io_uring where the system allows it,
//! else by threads.

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
pub(super) enum Reader {
    Ring(Rings),
    Threads(usize),
}

/// How this process reads rows that are not in memory, and why not by io_uring, for people.
pub fn reads_by() -> String {
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
        Rings::new().map_or(Reader::Threads(THREADS), Reader::Ring)
    }

    /// The one that is asked for, if the system has it.
    pub(super) fn of(kind: ReadBy) -> io::Result<Reader> {
        match kind {
            ReadBy::Ring => Rings::new().map(Reader::Ring),
            ReadBy::Threads(threads) => Ok(Reader::Threads(threads)),
        }
    }

    pub(super) fn kind(&self) -> ReadBy {
        match self {
            Reader::Ring(_) => ReadBy::Ring,
            Reader::Threads(threads) => ReadBy::Threads(*threads),
        }
    }

    /// Fills all of `reads`; see [`Storage::read`](super::Storage::read).
    pub(super) fn read<'f>(
        &self,
        file: impl Fn(usize) -> &'f File,
        reads: &mut [ReadAt<'_>],
    ) -> Result<(), ReadFailure> {
        let mut pending = Vec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            let file = file(read.directory);
            let filled = filled(file, read.at, read.into);
            if filled < read.into.len() {
                pending.push(Pending {
                    number,
                    file,
                    at: read.at + filled as u64,
                    into: &mut read.into[filled..],
                });
            }
        }
        match self {
            _ if pending.is_empty() => Ok(()),
            Reader::Ring(rings) => match rings.read(pending) {
                Ok(outcome) => outcome,
                Err(pending) => threads::read(THREADS, pending),
            },
            Reader::Threads(threads) => threads::read(*threads, pending),
        }
    }
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
