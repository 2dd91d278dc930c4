//! Memory of rows on their way between memory and disk.

use crate::{Error, Kind, Result};

/// Floats that are kept for the next exchange, at most, in each direction.
const KEPT: usize = 16 << 20;

/// Memory of exchanges, which is kept for the next one: to get new pages takes longer than to fill
/// them.
#[derive(Default)]
pub(super) struct Buffers {
    /// What comes into memory.
    pub(super) arrivals: Vec<f32>,
    /// What leaves it.
    pub(super) leaving: Vec<f32>,
}

impl Buffers {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        size_of::<f32>() * (self.arrivals.capacity() + self.leaving.capacity())
    }

    /// Takes the place of these, if it is not too much to be kept.
    pub(super) fn keep(&mut self, others: Buffers) {
        if others.arrivals.capacity().max(others.leaving.capacity()) <= KEPT {
            *self = others;
        }
    }
}

/// Makes `floats` `n` long, with any contents.
///
/// # Errors
/// `ResourceExhausted` without memory.
pub(super) fn fit(floats: &mut Vec<f32>, n: usize) -> Result<()> {
    let more = n.saturating_sub(floats.len());
    floats.try_reserve_exact(more).map_err(|_| {
        Error::new(Kind::ResourceExhausted, "the system gives no memory").with("floats", n)
    })?;
    floats.resize(n, 0.0);
    Ok(())
}
