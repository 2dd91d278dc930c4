//! Memory of rows on their way between memory and disk.

use crate::{Error, Kind, Result};

/// Bytes that are kept for the next exchange, at most, in each direction.
const KEPT: usize = 64 << 20;

/// Memory of exchanges, which is kept for the next one: to get new pages takes longer than to fill
/// them. Records, as they are in files.
#[derive(Default)]
pub(super) struct Buffers {
    /// What comes into memory.
    pub(super) arrivals: Vec<u8>,
    /// What leaves it.
    pub(super) leaving: Vec<u8>,
}

impl Buffers {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.arrivals.capacity() + self.leaving.capacity()
    }

    /// Takes the place of these, if it is not too much to be kept.
    pub(super) fn keep(&mut self, others: Buffers) {
        if others.arrivals.capacity().max(others.leaving.capacity()) <= KEPT {
            *self = others;
        }
    }
}

/// The first `n` bytes of a buffer, with any contents.
///
/// # Errors
/// `ResourceExhausted` without memory.
pub(super) fn sized(bytes: &mut Vec<u8>, n: usize) -> Result<&mut [u8]> {
    let more = n.saturating_sub(bytes.len());
    if more > 0 {
        bytes.try_reserve_exact(more).map_err(|_| {
            Error::new(Kind::ResourceExhausted, "the system gives no memory").with("bytes", n)
        })?;
        bytes.resize(n, 0);
    }
    Ok(&mut bytes[..n])
}
