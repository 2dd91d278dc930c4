//! What comes out of files in blocks: how far the reading is, of which the caller is told and may
//! stop it, and the keys and values in them.

use crate::halves::from_bytes;
use crate::simd::Level;
use crate::{Error, Kind, Result, RowDtype};

/// How far a long reading is. The caller is told `(bytes done, bytes in all)` and answers whether
/// to go on.
pub(super) struct Progress<'a> {
    done: u64,
    total: u64,
    tell: &'a mut dyn FnMut(u64, u64) -> bool,
    stopped: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(total: u64, tell: &'a mut dyn FnMut(u64, u64) -> bool) -> Progress<'a> {
        Progress {
            done: 0,
            total,
            tell,
            stopped: false,
        }
    }

    /// Counts bytes that were read.
    ///
    /// # Errors
    /// `Io` if the caller wants no more.
    pub(super) fn advance(&mut self, bytes: usize) -> Result<()> {
        // Files may grow while they are read: never more than all.
        self.done = self.done.saturating_add(bytes as u64).min(self.total);
        if (self.tell)(self.done, self.total) {
            return Ok(());
        }
        self.stopped = true;
        Err(Error::new(Kind::Io, "the caller stopped it"))
    }

    /// Whether the caller stopped it: then an error is not the file's.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }
}

/// The keys in whole records of `bytes`.
pub(super) fn keys(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    bytes
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, i64::from_le_bytes))
}

/// The values of a type in whole records of `bytes`, as floats.
pub(super) fn values_of(dtype: RowDtype, bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let value = move |bytes: &[u8]| match dtype.half() {
        None => bytes.try_into().map_or(0.0, f32::from_le_bytes),
        Some(half) => {
            let mut value = [0.0];
            from_bytes(Level::detect(), half, bytes, &mut value);
            value[0]
        }
    };
    bytes.chunks_exact(dtype.bytes()).map(value)
}
