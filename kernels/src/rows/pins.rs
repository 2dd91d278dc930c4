//! Which frames of memory keep their rows: those that a lease or a verb has asked for.

use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::sync::RwLock;
use std::sync::Arc;

/// By frame: how many hold its row in memory. Whoever pins a frame has the content's lock, at least
/// for reading; whoever unpins it needs none.
#[derive(Default)]
pub(super) struct Pins(RwLock<Vec<AtomicU32>>);

impl Pins {
    /// Makes room for `frames` frames.
    pub(super) fn fit(&self, frames: usize) {
        let mut pins = self.0.write();
        if frames > pins.len() {
            pins.resize_with(frames, AtomicU32::default);
        }
    }

    /// Whether a frame is pinned, for each of many that are asked about.
    pub(super) fn with<T>(&self, f: impl FnOnce(&dyn Fn(u32) -> bool) -> T) -> T {
        let pins = self.0.read();
        f(&|frame| {
            let pins = pins.get(frame as usize);
            pins.is_some_and(|pins| pins.load(Relaxed) > 0)
        })
    }

    /// Pins frames, each as often as it occurs.
    pub(super) fn pin(self: &Arc<Self>, frames: Vec<u32>) -> Pinned {
        let pins = self.0.read();
        for &frame in &frames {
            pins[frame as usize].fetch_add(1, Relaxed);
        }
        drop(pins);
        Pinned {
            pins: Arc::clone(self),
            frames,
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        4 * self.0.read().capacity()
    }
}

/// Rows that stay in memory for as long as this lives.
pub(crate) struct Pinned {
    pins: Arc<Pins>,
    frames: Vec<u32>,
}

impl Pinned {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        4 * self.frames.capacity()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let pins = self.pins.0.read();
        for &frame in &self.frames {
            pins[frame as usize].fetch_sub(1, Relaxed);
        }
    }
}
