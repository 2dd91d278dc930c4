//! Many reads at once without io_uring: on threads that live as long as the batch.

use super::pending::{Pending, Progress};
use super::ReadFailure;
use crate::sync::Mutex;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;

/// A thread more is started for so many reads.
const READS_OF_THREAD: usize = 2;

/// Fills all of `reads`, a few or more. At most `threads` work, the caller's among them.
pub(super) fn read(threads: usize, reads: Vec<Pending<'_>>) -> Result<(), ReadFailure> {
    let threads = threads.min(reads.len().div_ceil(READS_OF_THREAD));
    let queue = Mutex::new(reads.into_iter());
    let failed: Mutex<Option<ReadFailure>> = Mutex::new(None);
    let work = || loop {
        let next = queue.lock().next();
        let Some(mut read) = next else {
            break;
        };
        let number = read.number;
        if let Err(cause) = complete(&mut read) {
            let mut failed = failed.lock();
            if failed.as_ref().is_none_or(|first| number < first.read) {
                *failed = Some(ReadFailure {
                    read: number,
                    cause,
                });
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let named = thread::Builder::new().name("mx_rec-read".into());
            if named.spawn_scoped(scope, work).is_err() {
                // Those there are do it.
                break;
            }
        }
        work();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Reads until all that is needed is there.
fn complete(read: &mut Pending<'_>) -> io::Result<()> {
    while read.needed > 0 {
        match read.file.read_at(read.into, read.at) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
            Ok(bytes) => match read.came(bytes) {
                Progress::Done => break,
                Progress::Rest => {}
                Progress::Ended => return Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
    }
    Ok(())
}
