//! A storage that fails on request.

use mx_rec_kernels::tier::{ReadAt, ReadFailure, Storage};
use mx_rec_kernels::Result;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Taking space.
    Reserve,
    /// A write.
    Write,
    /// A batch of reads: its first read of the directory.
    Read,
    /// Any of them.
    Any,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    operation: Operation,
    directory: Option<usize>,
    /// So many more operations succeed.
    after: u64,
    /// So many fail then.
    times: u64,
    kind: io::ErrorKind,
}

/// Another storage, with faults: for tests of what a log and a table make of them.
#[derive(Clone)]
pub(crate) struct Faulty {
    inner: Arc<dyn Storage>,
    faults: Arc<Mutex<Vec<Fault>>>,
    /// What [`Storage::another`] made last, `inner` before.
    newest: Arc<Mutex<Arc<dyn Storage>>>,
    /// How long each write and each batch of reads takes longer.
    pause: Arc<Mutex<Duration>>,
}

impl Faulty {
    /// `inner`, without faults yet. Clones, and what [`Storage::another`] makes, share their
    /// faults.
    pub(crate) fn new(inner: Arc<dyn Storage>) -> Faulty {
        Faulty {
            newest: Arc::new(Mutex::new(Arc::clone(&inner))),
            inner,
            faults: Arc::default(),
            pause: Arc::default(),
        }
    }

    /// Lets operations on a directory (`None`: on all) fail with an error: `after` of them succeed,
    /// then `times` of them fail.
    pub(crate) fn fail(
        &self,
        operation: Operation,
        directory: Option<usize>,
        (after, times): (u64, u64),
        kind: io::ErrorKind,
    ) {
        self.faults.lock().push(Fault {
            operation,
            directory,
            after,
            times,
            kind,
        });
    }

    /// Lets each write and each batch of reads take so much longer.
    pub(crate) fn slow(&self, pause: Duration) {
        *self.pause.lock() = pause;
    }

    fn wait(&self) {
        let pause = *self.pause.lock();
        if pause > Duration::ZERO {
            std::thread::sleep(pause);
        }
    }

    /// No more faults.
    pub(crate) fn heal(&self) {
        self.faults.lock().clear();
    }

    /// Flips a bit of byte `at` of the file of a directory, of the files that were made last.
    ///
    /// # Errors
    /// Those of reading and writing it.
    pub(crate) fn flip(&self, directory: usize, at: u64, bit: u32) -> io::Result<()> {
        let mut byte = [0];
        let mut reads = [ReadAt {
            directory,
            at,
            into: &mut byte,
        }];
        let newest = self.newest.lock();
        newest.read(&mut reads).map_err(|failure| failure.cause)?;
        byte[0] ^= 1 << (bit % 8);
        newest.write(directory, at, &byte)
    }

    /// The error of an operation, if one is due.
    fn due(&self, operation: Operation, directory: usize) -> io::Result<()> {
        for fault in self.faults.lock().iter_mut() {
            let is_meant = [operation, Operation::Any].contains(&fault.operation)
                && fault.directory.is_none_or(|one| one == directory);
            if !is_meant {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                return Err(fault.kind.into());
            }
        }
        Ok(())
    }
}

impl Storage for Faulty {
    fn directories(&self) -> usize {
        self.inner.directories()
    }

    fn name(&self, directory: usize) -> String {
        self.inner.name(directory)
    }

    fn reserve(&self, directory: usize, from: u64, bytes: u64) -> io::Result<()> {
        self.due(Operation::Reserve, directory)?;
        self.inner.reserve(directory, from, bytes)
    }

    fn release(&self, directory: usize, from: u64, bytes: u64) -> io::Result<()> {
        self.inner.release(directory, from, bytes)
    }

    fn write(&self, directory: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.wait();
        if let Err(error) = self.due(Operation::Write, directory) {
            // As on a disk that fills up: some of it is there.
            self.inner.write(directory, at, &bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.inner.write(directory, at, bytes)
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) -> Result<(), ReadFailure> {
        self.wait();
        for directory in 0..self.directories() {
            let read = reads.iter().position(|read| read.directory == directory);
            if let Some(read) = read {
                self.due(Operation::Read, directory)
                    .map_err(|cause| ReadFailure { read, cause })?;
            }
        }
        self.inner.read(reads)
    }

    fn free_space(&self, directory: usize) -> io::Result<u64> {
        self.inner.free_space(directory)
    }

    fn another(&self) -> Result<Arc<dyn Storage>> {
        let inner = self.inner.another()?;
        *self.newest.lock() = Arc::clone(&inner);
        Ok(Arc::new(Faulty {
            inner,
            faults: Arc::clone(&self.faults),
            newest: Arc::clone(&self.newest),
            pause: Arc::clone(&self.pause),
        }))
    }
}
