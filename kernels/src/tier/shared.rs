//! What a log and its readings share.

use super::record;
use super::segments::Segments;
use super::Storage;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::Mutex;
use std::sync::Arc;

/// Bytes that are written at once.
pub(super) const WRITE: usize = 1 << 20;

/// What was done since the log was made.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) records_read: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) records_written: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) unreadable: AtomicU64,
}

/// What a log and its readings share.
pub(super) struct Shared {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) width: usize,
    pub(super) segments: Mutex<Segments>,
    buffers: Mutex<Vec<Vec<u8>>>,
    pub(super) counters: Counters,
}

impl Shared {
    pub(super) fn new(storage: Arc<dyn Storage>, width: usize, segments: Segments) -> Shared {
        Shared {
            storage,
            width,
            segments: Mutex::new(segments),
            buffers: Mutex::default(),
            counters: Counters::default(),
        }
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Floats of a record.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Bytes of a record.
    pub(super) fn record(&self) -> usize {
        record::bytes(self.width)
    }

    pub(super) fn take_buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    pub(super) fn keep_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < 4 && buffer.capacity() <= 4 * WRITE {
            buffers.push(buffer);
        }
    }

    pub(super) fn counted(&self, bytes: u64, records: u64) {
        self.counters.bytes_read.fetch_add(bytes, Relaxed);
        self.counters.records_read.fetch_add(records, Relaxed);
    }
}
