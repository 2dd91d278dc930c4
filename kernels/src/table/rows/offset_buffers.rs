//! Buffers of offsets that outlive a batch, so that the next one needs no new pages.

use crate::keeper::Keeper;
use crate::mem::Lines;

/// At most so many buffers of at most so many bytes in all are kept.
const KEPT: (usize, usize) = (16, 64 << 20);

/// Buffers of offsets for later batches.
pub(in crate::table) struct OffsetBuffers(Keeper<Lines>);

impl Default for OffsetBuffers {
    fn default() -> OffsetBuffers {
        OffsetBuffers(Keeper::new(KEPT.0, KEPT.1))
    }
}

impl OffsetBuffers {
    /// A buffer for `n` offsets with unspecified contents.
    pub(in crate::table) fn take(&self, n: usize) -> Lines {
        let fits = |lines: &Lines| (n..=n.saturating_mul(4).max(4096)).contains(&lines.room());
        // The next batch may be a little longer.
        let kept = self.0.take(fits);
        let mut lines = kept.unwrap_or_else(|| Lines::new(n + n / 8));
        lines.fit(n);
        lines
    }

    /// Takes a buffer back, in place of the oldest ones beyond what is kept.
    pub(in crate::table) fn keep(&self, lines: Lines) {
        self.0.keep(lines);
    }

    /// Gives all buffers up.
    pub(in crate::table) fn clear(&self) {
        self.0.clear();
    }

    /// Bytes kept.
    pub(in crate::table) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
