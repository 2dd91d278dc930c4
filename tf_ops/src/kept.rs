//! Buffers that are kept from one step to the next, while there are tables.

use crate::sync::Mutex;

/// What is kept: it has a size.
pub(crate) trait Bytes {
    /// Bytes of memory.
    fn bytes(&self) -> usize;
}

/// The most that is kept. Beyond either number the oldest buffers go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes in all.
    pub(crate) bytes: usize,
    /// Buffers.
    pub(crate) buffers: usize,
}

/// Buffers that wait to be used again. Nothing is kept unless somebody [holds](Kept::hold) the
/// buffers open.
///
/// The count of holders and the buffers are under one lock: a buffer that comes back after the last
/// holder left is dropped, whichever of the two comes first.
pub(crate) struct Kept<B> {
    limits: Limits,
    state: Mutex<State<B>>,
}

struct State<B> {
    holders: usize,
    /// The latest last.
    buffers: Vec<B>,
    /// Of all `buffers`.
    bytes: usize,
}

impl<B: Bytes> Kept<B> {
    /// Keeps nothing yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: Mutex::new(State {
                holders: 0,
                buffers: Vec::new(),
                bytes: 0,
            }),
        }
    }

    /// Counts one more holder; [`Kept::release`] takes it back.
    pub(crate) fn hold(&self) {
        self.state.lock().holders += 1;
    }

    /// Counts one holder less. With the last one all that is kept is dropped.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.holders = state.holders.saturating_sub(1);
        let mut old = Vec::new();
        if state.holders == 0 {
            old = std::mem::take(&mut state.buffers);
            state.bytes = 0;
        }
        drop(state);
        drop(old);
    }

    /// The latest buffer of `size` bytes, or of up to a quarter more.
    pub(crate) fn take(&self, size: usize) -> Option<B> {
        let fits = |buffer: &B| (size..=size + size / 4).contains(&buffer.bytes());
        let mut state = self.state.lock();
        let at = state.buffers.iter().rposition(fits)?;
        let buffer = state.buffers.remove(at);
        state.bytes -= buffer.bytes();
        Some(buffer)
    }

    /// Takes a buffer back, to be used again. Drops it without a holder, and the oldest ones beyond
    /// the limits.
    pub(crate) fn give_back(&self, buffer: B) {
        let mut state = self.state.lock();
        if state.holders == 0 || buffer.bytes() > self.limits.bytes {
            // The buffer is an argument: it is dropped after the lock.
            return;
        }
        state.bytes += buffer.bytes();
        state.buffers.push(buffer);
        let (mut bytes, mut count, mut old) = (state.bytes, state.buffers.len(), 0);
        for buffer in &state.buffers {
            if bytes <= self.limits.bytes && count <= self.limits.buffers {
                break;
            }
            bytes -= buffer.bytes();
            count -= 1;
            old += 1;
        }
        state.bytes = bytes;
        let old: Vec<B> = state.buffers.drain(..old).collect();
        drop(state);
        drop(old);
    }

    /// Buffers and bytes that are kept.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.buffers.len(), state.bytes)
    }
}
