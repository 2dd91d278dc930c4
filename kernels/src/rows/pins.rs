//! Which frames of memory keep their rows: those that a lease or a verb has asked for.

use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::sync::RwLock;
use std::sync::Arc;

/// How many hold the rows of frames in memory. Whoever pins has the content's lock, at least for
/// reading; whoever unpins needs none.
#[derive(Default)]
pub(super) struct Pins {
    /// By frame: how many hold its row.
    frames: RwLock<Vec<AtomicU32>>,
    /// How many hold all rows.
    all: AtomicU32,
}

impl Pins {
    /// Makes room for `frames` frames.
    pub(super) fn fit(&self, frames: usize) {
        let mut pins = self.frames.write();
        if frames > pins.len() {
            pins.resize_with(frames, AtomicU32::default);
        }
    }

    /// Whether a frame is pinned, for each of many that are asked about.
    pub(super) fn with<T>(&self, f: impl FnOnce(&dyn Fn(u32) -> bool) -> T) -> T {
        let pins = self.frames.read();
        let all = self.all.load(Relaxed) > 0;
        f(&|frame| {
            let pins = pins.get(frame as usize);
            all || pins.is_some_and(|pins| pins.load(Relaxed) > 0)
        })
    }

    /// Pins frames, each as often as it occurs.
    pub(super) fn pin(self: &Arc<Self>, frames: Vec<u32>) -> Pinned {
        let pins = self.frames.read();
        for &frame in &frames {
            pins[frame as usize].fetch_add(1, Relaxed);
        }
        drop(pins);
        Pinned {
            pins: Arc::clone(self),
            frames: Held::Frames(frames),
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
        4 * self.frames.read().capacity()
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
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match &self.frames {
            Held::Frames(frames) => 4 * frames.capacity(),
            Held::All => 0,
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        match &self.frames {
            Held::All => {
                self.pins.all.fetch_sub(1, Relaxed);
            }
            Held::Frames(frames) => {
                let pins = self.pins.frames.read();
                for &frame in frames {
                    pins[frame as usize].fetch_sub(1, Relaxed);
                }
            }
        }
    }
}
