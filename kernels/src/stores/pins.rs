//! Which frames of memory keep their rows: those that a lease or a verb has asked for.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use crate::sync::Mutex;
use std::sync::Arc;

/// How many hold the rows of frames in memory. Whoever pins has the content's lock, at least for
/// reading; whoever unpins needs none.
#[derive(Default)]
pub(super) struct Pins {
    /// By frame: how many hold its row. Plain numbers under a lock: thousands of atomic ones wait
    /// for memory one after the other.
    frames: Mutex<Vec<u32>>,
    /// How many hold all rows.
    all: AtomicU32,
}

impl Pins {
    /// Makes room for `frames` frames.
    pub(super) fn fit(&self, frames: usize) {
        let mut pins = self.frames.lock();
        if frames > pins.len() {
            pins.resize(frames, 0);
        }
    }

    /// Whether a frame is pinned, for each of many that are asked about. `f` must not pin or unpin.
    pub(super) fn with<T>(&self, f: impl FnOnce(&dyn Fn(u32) -> bool) -> T) -> T {
        let pins = self.frames.lock();
        let all = self.all.load(Relaxed) > 0;
        f(&|frame| {
            let pins = pins.get(frame as usize);
            all || pins.is_some_and(|&pins| pins > 0)
        })
    }

    /// Pins frames, each as often as it occurs.
    pub(super) fn pin(self: &Arc<Self>, frames: Vec<u32>) -> Pinned {
        self.add(&frames);
        Pinned {
            pins: Arc::clone(self),
            frames: Held::Frames(frames),
        }
    }

    fn add(&self, frames: &[u32]) {
        let mut pins = self.frames.lock();
        for &frame in frames {
            pins[frame as usize] += 1;
        }
    }

    /// Pins all frames there are and will be.
    pub(super) fn pin_all(self: &Arc<Self>) -> Pinned {
        self.all.fetch_add(1, Relaxed);
        Pinned {
            pins: Arc::clone(self),
            frames: Held::All,
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        4 * self.frames.lock().capacity()
    }
}

/// Which frames somebody has pinned.
enum Held {
    Frames(Vec<u32>),
    All,
}

/// Rows that stay in memory for as long as this lives.
pub(crate) struct Pinned {
    pins: Arc<Pins>,
    frames: Held,
}

impl Pinned {
    /// Pins further frames of the same rows.
    pub(super) fn extend(&mut self, more: &[u32]) {
        if let Held::Frames(frames) = &mut self.frames {
            frames.extend_from_slice(more);
            self.pins.add(more);
        }
    }

    /// Whether it holds so many rows of these, or all.
    pub(super) fn holds(&self, pins: &Arc<Pins>, rows: usize) -> bool {
        let is_all = match &self.frames {
            Held::Frames(frames) => frames.len() == rows,
            Held::All => true,
        };
        is_all && Arc::ptr_eq(&self.pins, pins)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match &self.frames {
            Held::Frames(frames) => 4 * frames.capacity(),
            Held::All => 0,
        }
    }
}

/// Pins of a lease, which lends them to verbs that use its rows.
pub(crate) struct LeasePins(Arc<Lent>);

/// Pins that were borrowed from a lease.
pub(crate) struct Lent {
    pub(super) pinned: Pinned,
    /// The lease has ended, or has given its rows up. Its rows may be freed from then on.
    is_over: AtomicBool,
}

impl LeasePins {
    /// Those of a lease that begins.
    pub(crate) fn new(pinned: Pinned) -> LeasePins {
        LeasePins(Arc::new(Lent {
            pinned,
            is_over: AtomicBool::new(false),
        }))
    }

    /// Keeps the rows in memory beyond the end of the lease.
    pub(crate) fn lend(&self) -> Arc<Lent> {
        Arc::clone(&self.0)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.0.pinned.bytes()
    }
}

impl Drop for LeasePins {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

impl Lent {
    /// Whether the lease has ended. Whoever has the content locked knows then that none of its rows
    /// was freed before.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        match &self.frames {
            Held::All => {
                self.pins.all.fetch_sub(1, Relaxed);
            }
            Held::Frames(frames) => {
                let mut pins = self.pins.frames.lock();
                for &frame in frames {
                    pins[frame as usize] -= 1;
                }
            }
        }
    }
}
