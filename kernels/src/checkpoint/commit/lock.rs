//! One process at a time looks for what dead saves left, puts it right, or begins a save.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A process that was stopped does not stop the others for longer.
const LONGEST: Duration = Duration::from_secs(60);

/// The lock of a directory of checkpoints, held until this is dropped. Python's
/// `checkpoint/commit.py` takes the same one. Where the file system has no locks, nothing is held.
#[derive(Debug)]
pub(super) struct Lock(Option<File>);

impl Lock {
    pub(super) fn of(dir: &Path) -> Lock {
        let begun = Instant::now();
        let Ok(file) = File::open(dir) else {
            return Lock(None);
        };
        loop {
            match file.try_lock() {
                Ok(()) => return Lock(Some(file)),
                Err(std::fs::TryLockError::WouldBlock) if begun.elapsed() < LONGEST => {
                    #[cfg(test)]
                    super::schedules::wait_for_lock();
                    thread::sleep(Duration::from_millis(2));
                }
                Err(_) => return Lock(None),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that was forked meanwhile has the file open, too.
        if let Some(file) = &self.0 {
            file.unlock().ok();
        }
    }
}
