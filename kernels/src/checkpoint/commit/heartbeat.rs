//! Signs of life of a save, for processes on other machines, which cannot look for its process.

use rustix::fs::{utimensat, AtFlags, Timespec, Timestamps, CWD, UTIME_NOW, UTIME_OMIT};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// A sign comes so often.
const EVERY: Duration = Duration::from_secs(10);

/// A save on another machine counts as dead after so many seconds without a sign.
pub(super) const SILENT: f64 = 120.0;

/// A thread that touches the owner's mark of a save for as long as this lives.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// The thread ends when this is dropped.
    _alive: Sender<()>,
}

impl Heartbeat {
    /// Starts to touch `mark`. Without a thread, saves of other machines take this one for dead
    /// after [`SILENT`] seconds.
    pub(super) fn start(mark: PathBuf) -> Heartbeat {
        let (alive, ended) = channel::<()>();
        let beat = move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                touch(&mark);
            }
        };
        let builder = thread::Builder::new().name("mx_rec save".to_owned());
        builder.spawn(beat).ok();
        Heartbeat { _alive: alive }
    }
}

/// Changes the times of a mark, but not that of its last modification, which says when the save
/// began. A mark that is gone stays so.
fn touch(mark: &Path) {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps {
        last_access: time(UTIME_NOW),
        last_modification: time(UTIME_OMIT),
    };
    utimensat(CWD, mark, &times, AtFlags::empty()).ok();
}

#[cfg(test)]
mod tests {
    use super::super::processes::{began, changed};
    use super::*;
    use crate::checkpoint::temp::Temp;

    #[test]
    fn a_sign_of_life_is_a_change_and_says_nothing_of_the_begin() {
        let temp = Temp::new();
        let mark = temp.at("mark");
        touch(&mark);
        assert!(!mark.exists());
        std::fs::create_dir(&mark).unwrap();
        let before = (began(&mark), changed(&mark));
        thread::sleep(Duration::from_millis(20));
        touch(&mark);
        assert_eq!(began(&mark), before.0);
        assert!(changed(&mark) > before.1);
    }
}
