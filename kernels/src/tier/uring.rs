//! Many reads at once by io_uring: one call of the system for a whole batch.

use super::pending::{Pending, Progress};
use super::ReadFailure;
use crate::sync::Mutex;
use io_uring::{opcode, types::Fd, IoUring, Probe};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Reads that are under way at once.
const DEPTH: u32 = 512;

/// Rings that wait for the next batch.
const KEPT: usize = 4;

/// Rings, one for each batch that is read at the same time.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rings")
    }
}

impl Rings {
    /// Rings, if this system has them and lets this process use them.
    ///
    /// # Errors
    /// What the system says, `Unsupported` if it has rings that cannot read.
    pub(super) fn new() -> io::Result<Rings> {
        let ring = IoUring::new(DEPTH)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Rings {
            idle: Mutex::new(vec![ring]),
        })
    }

    /// Fills all of `reads`, or gives them back if the system has no ring for them.
    pub(super) fn read<'r>(
        &self,
        mut reads: Vec<Pending<'r>>,
    ) -> Result<Result<(), ReadFailure>, Vec<Pending<'r>>> {
        let idle = self.idle.lock().pop();
        let Ok(mut ring) = idle.map_or_else(|| IoUring::new(DEPTH), Ok) else {
            return Err(reads);
        };
        let (is_sound, outcome) = run(&mut ring, &mut reads);
        let mut idle = self.idle.lock();
        if is_sound && idle.len() < KEPT {
            idle.push(ring);
        }
        Ok(outcome)
    }
}

/// Completes all of `pending`. Whether the ring can be used again, and what came of the reads. When
/// this returns the system writes to none of their buffers any more.
fn run(ring: &mut IoUring, pending: &mut [Pending<'_>]) -> (bool, Result<(), ReadFailure>) {
    let depth = DEPTH as usize;
    let mut failed: Option<ReadFailure> = None;
    let fail = |read: usize, cause: io::Error, failed: &mut Option<ReadFailure>| {
        if failed.as_ref().is_none_or(|first| read < first.read) {
            *failed = Some(ReadFailure { read, cause });
        }
    };
    let (mut next, mut again, mut under_way) = (0, Vec::new(), 0_usize);
    loop {
        while under_way < depth && failed.is_none() {
            let number = match again.pop() {
                Some(number) => number,
                None if next < pending.len() => {
                    next += 1;
                    next - 1
                }
                None => break,
            };
            let read = &mut pending[number];
            let length = u32::try_from(read.into.len()).unwrap_or(1 << 30);
            let file = Fd(read.file.as_raw_fd());
            let entry = opcode::Read::new(file, read.into.as_mut_ptr(), length)
                .offset(read.at)
                .build()
                .user_data(number as u64);
            // SAFETY: the entry names an open file and the bytes of `into`, both lent to `pending`,
            // and nobody touches these bytes until the entry's completion is seen below: `run`
            // returns only when all completions were, or when the entries that had none were never
            // given to the system. The queue has a place for each entry: it holds `DEPTH`, and no
            // more are under way.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                again.push(number);
                break;
            }
            under_way += 1;
        }
        if under_way == 0 {
            return (true, failed.map_or(Ok(()), Err));
        }
        // While more reads wait, half of the queue is kept busy.
        let is_last = next == pending.len() && again.is_empty();
        let wanted = match is_last || failed.is_some() {
            true => under_way,
            false => under_way.saturating_sub(depth / 2).max(1),
        };
        if let Err(cause) = ring.submit_and_wait(wanted) {
            match cause.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                _ => {
                    fail(usize::MAX, cause, &mut failed);
                    if ring.submission().len() >= under_way {
                        // None of them was given to the system: it never hears of them.
                        return (false, failed.map_or(Ok(()), Err));
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        for completed in ring.completion() {
            under_way -= 1;
            let number = completed.user_data() as usize;
            let read = &mut pending[number];
            match completed.result() {
                result if result >= 0 => match read.came(result as usize) {
                    Progress::Done => {}
                    Progress::Rest => again.push(number),
                    Progress::Ended => fail(
                        read.number,
                        io::ErrorKind::UnexpectedEof.into(),
                        &mut failed,
                    ),
                },
                error if [libc::EINTR, libc::EAGAIN].contains(&-error) => again.push(number),
                error => fail(
                    read.number,
                    io::Error::from_raw_os_error(-error),
                    &mut failed,
                ),
            }
        }
    }
}
