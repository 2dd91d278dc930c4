//! A recorder of op runs: which op, on which table, on which thread, from when to when.
//!
//! TensorFlow's own trace of a step (RunMetadata) does not contain what input pipelines do; this
//! does. While it is off, which it is unless somebody asks, an op run pays one relaxed load.

use mx_rec_kernels::{Error, Kind, Result, Table};
use parking_lot::Mutex;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Spans beyond this number are counted, not kept: some 20 MB at most.
const CAPACITY: usize = 1 << 18;

/// Of the process.
static RECORDER: Recorder = Recorder::new(CAPACITY);

/// The next thread's number.
static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// Whether a span has begun on this thread and not ended.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    /// The table of the op that runs on this thread, while it is being recorded.
    static TABLE: RefCell<Option<Arc<Table>>> = const { RefCell::new(None) };
}

/// Begins to record. What was recorded before and not fetched is dropped.
pub fn start() {
    RECORDER.start();
}

/// Ends the recording and returns it as JSON in UTF-8; include/mx_rec.h has its fields.
///
/// # Errors
/// `Internal` if the spans cannot be written as JSON.
pub fn stop() -> Result<Vec<u8>> {
    let recording = RECORDER.stop();
    serde_json::to_vec(&recording).map_err(|error| {
        Error::new(Kind::Internal, "the trace cannot be written as JSON").with("cause", error)
    })
}

/// A span from now until it is dropped, if recording is on.
pub(crate) fn span(op: &'static str) -> Option<Running<'static>> {
    RECORDER.span(op)
}

/// Tells the span of this thread, if there is one, on which table its op works.
pub(crate) fn note(table: &Arc<Table>) {
    // Outside a span nobody would take the table out again, and it would outlive its session.
    if RECORDER.run.load(Ordering::Relaxed) != 0 && RUNNING.try_with(Cell::get).unwrap_or(false) {
        // A thread that is ending has no place left; its span then has no table.
        let _ = TABLE.try_with(|place| place.replace(Some(Arc::clone(table))));
    }
}

/// What a recording gives out.
#[derive(Default, Serialize)]
struct Recording {
    version: u32,
    dropped: u64,
    spans: Vec<Span>,
}

/// One run of an op.
#[derive(Serialize)]
struct Span {
    op: &'static str,
    table: Option<String>,
    thread: u64,
    /// Microseconds since the Unix epoch, as in RunMetadata.
    start: u64,
    /// Microseconds.
    duration: f64,
}

struct Recorder {
    /// The number of the present recording; 0: off.
    run: AtomicU64,
    capacity: usize,
    kept: Mutex<Kept>,
}

struct Kept {
    runs: u64,
    dropped: u64,
    spans: Vec<Span>,
}

impl Recorder {
    const fn new(capacity: usize) -> Self {
        Self {
            run: AtomicU64::new(0),
            capacity,
            kept: Mutex::new(Kept {
                runs: 0,
                dropped: 0,
                spans: Vec::new(),
            }),
        }
    }

    fn start(&self) {
        let mut kept = self.kept.lock();
        kept.spans = Vec::new();
        kept.dropped = 0;
        kept.runs += 1;
        self.run.store(kept.runs, Ordering::Relaxed);
    }

    fn stop(&self) -> Recording {
        let mut kept = self.kept.lock();
        self.run.store(0, Ordering::Relaxed);
        Recording {
            version: 1,
            dropped: std::mem::take(&mut kept.dropped),
            spans: std::mem::take(&mut kept.spans),
        }
    }

    fn span(&self, op: &'static str) -> Option<Running<'_>> {
        let run = self.run.load(Ordering::Relaxed);
        if run == 0 {
            return None;
        }
        let start = SystemTime::now().duration_since(UNIX_EPOCH);
        let _ = RUNNING.try_with(|running| running.set(true));
        Some(Running {
            recorder: self,
            run,
            op,
            start: start.map_or(0, |start| start.as_micros() as u64),
            begun: Instant::now(),
        })
    }

    /// Keeps a span of recording number `run`, unless that one is over.
    fn keep(&self, run: u64, span: Span) {
        let mut kept = self.kept.lock();
        // The lock orders this with start and stop.
        if self.run.load(Ordering::Relaxed) != run {
            return;
        }
        if kept.spans.len() < self.capacity {
            kept.spans.push(span);
        } else {
            kept.dropped += 1;
        }
    }
}

/// A span that has not ended.
pub(crate) struct Running<'a> {
    recorder: &'a Recorder,
    run: u64,
    op: &'static str,
    start: u64,
    begun: Instant,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let duration = self.begun.elapsed().as_nanos() as f64 / 1e3;
        let _ = RUNNING.try_with(|running| running.set(false));
        let table = TABLE.try_with(RefCell::take).ok().flatten();
        let span = Span {
            op: self.op,
            table: table.map(|table| table.config().name.clone()),
            thread: thread(),
            start: self.start,
            duration,
        };
        self.recorder.keep(self.run, span);
    }
}

/// The number of this thread: from 1, in the order in which threads are first recorded; 0 for one
/// that is ending.
fn thread() -> u64 {
    THREAD
        .try_with(|number| {
            if number.get() == 0 {
                number.set(THREADS.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mx_rec_kernels::TableConfig;
    use std::time::Duration;

    fn ops(recording: &Recording) -> Vec<&str> {
        recording.spans.iter().map(|span| span.op).collect()
    }

    #[test]
    fn nothing_is_recorded_while_it_is_off() {
        let recorder = Recorder::new(4);
        assert!(recorder.span("early").is_none());
        recorder.start();
        drop(recorder.span("during"));
        assert_eq!(ops(&recorder.stop()), ["during"]);
        assert!(recorder.span("late").is_none());
        assert!(recorder.stop().spans.is_empty());
    }

    #[test]
    fn a_span_belongs_to_the_recording_in_which_it_began() {
        let recorder = Recorder::new(4);
        recorder.start();
        let ends_after_stop = recorder.span("first");
        assert!(recorder.stop().spans.is_empty());
        recorder.start();
        drop(ends_after_stop);
        drop(recorder.span("second"));
        assert_eq!(ops(&recorder.stop()), ["second"]);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_a_new_recording_is_empty() {
        let recorder = Recorder::new(2);
        recorder.start();
        for _ in 0..5 {
            drop(recorder.span("op"));
        }
        let recording = recorder.stop();
        assert_eq!((recording.spans.len(), recording.dropped), (2, 3));
        recorder.start();
        drop(recorder.span("left"));
        recorder.start();
        let recording = recorder.stop();
        assert_eq!((recording.spans.len(), recording.dropped), (0, 0));
    }

    #[test]
    fn times_are_those_of_the_clock_and_threads_have_numbers() {
        let recorder = Recorder::new(8);
        let now = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.unwrap_or_default().as_micros() as u64
        };
        let before = now();
        recorder.start();
        let run = || {
            let _span = recorder.span("op");
            std::thread::sleep(Duration::from_millis(3));
        };
        run();
        std::thread::scope(|scope| {
            scope.spawn(run);
        });
        let recording = recorder.stop();
        let [first, second] = recording.spans.as_slice() else {
            panic!("{} spans", recording.spans.len());
        };
        assert!(before <= first.start && second.start <= now());
        assert!(first.duration >= 3000.0 && first.duration < 3e6);
        assert!(first.start + 3000 <= second.start);
        assert_ne!(first.thread, second.thread);
        assert!(first.thread > 0 && second.thread > 0);
    }

    #[test]
    fn the_recorder_of_the_process_writes_json_with_the_table() -> Result<()> {
        let table = Arc::new(Table::new(TableConfig::new("users", 1, 1))?);
        start();
        note(&table);
        assert_eq!(Arc::strong_count(&table), 1);
        drop(span("MxRecEvict"));
        {
            let _span = span("MxRecFind");
            note(&table);
        }
        let text = String::from_utf8(stop()?).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        assert_eq!(value["version"], 1, "{text}");
        assert_eq!(value["dropped"], 0, "{text}");
        assert_eq!(value["spans"][0]["op"], "MxRecEvict", "{text}");
        assert!(value["spans"][0]["table"].is_null(), "{text}");
        assert_eq!(value["spans"][1]["table"], "users", "{text}");
        assert!(value["spans"][1]["duration"].is_f64(), "{text}");
        assert_eq!(Arc::strong_count(&table), 1);
        Ok(())
    }
}
