//! The commit of a whole checkpoint for Python: paths and JSON in, JSON out, through ctypes
//! (include/mx_rec.h).

use crate::ffi_buffer::{as_path, bytes, give};
use mx_rec_kernels::checkpoint::commit::{self, Commit, Level, Refused, Step, Steps};
use mx_rec_kernels::Error;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Is told of a step on the disk before it is taken; returns 0, or the number of an error of the
/// system, which the step then ends with. Null is allowed.
type Before = Option<
    unsafe extern "C" fn(
        step: *const c_char,
        path: *const u8,
        path_size: usize,
        context: *mut c_void,
    ) -> c_int,
>;

/// The commits that are not finished, each with the thread that began it.
static COMMITS: Mutex<BTreeMap<u64, (ThreadId, Commit)>> = Mutex::new(BTreeMap::new());

/// Functions that do a part of a commit and give out its JSON.
macro_rules! commit_functions {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),*) |$steps:pat_param| $work:block
    )*) => {$(
        $(#[$doc])*
        #[no_mangle]
        pub(crate) unsafe extern "C" fn $name(
            $($arg: $type,)*
            before: Before,
            context: *mut c_void,
            result: *mut *mut u8,
            result_size: *mut usize,
        ) -> c_int {
            // SAFETY: the caller says so of all.
            unsafe { answer(before, context, result, result_size, |$steps| $work) }
        }
    )*};
}

commit_functions! {
    /// Makes ready for a save; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// `directory` points to that many readable bytes. `before` is null or may be called with
    /// `context`, from this thread, until this function returns. `result` and `result_size` point
    /// to places that can be written, or are null, and then nothing is done.
    fn mx_rec_commit_clean(directory: *const u8, directory_size: usize) |steps| {
        abandon();
        commit::clean(as_path(directory, directory_size), steps).map(|()| Value::Null)
    }

    /// Begins a commit; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`.
    fn mx_rec_commit_begin(directory: *const u8, directory_size: usize) |steps| {
        let commit = Commit::begin(as_path(directory, directory_size), steps)?;
        let staging = commit.staging();
        let name = staging.file_name().map(OsStr::to_string_lossy);
        Ok(json!({"staging": name, "commit": keep(commit)}))
    }

    /// Puts the tables of a commit in place; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`, for `content`.
    fn mx_rec_commit_place(commit: u64, content: *const u8, content_size: usize) |steps| {
        let content = object(bytes(content, content_size))?;
        let mut taken = take(commit)?;
        let placed = taken.1.put_in_place(&content, steps);
        commits().insert(commit, taken);
        placed.map(|()| Value::Null)
    }

    /// Ends a commit: removes what was replaced; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`.
    fn mx_rec_commit_finish(commit: u64) |steps| {
        take(commit)?.1.finish(steps).map(|()| Value::Null)
    }

    /// Ends a commit: puts back what was replaced; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`.
    fn mx_rec_commit_undo(commit: u64) |steps| {
        let taken = take(commit)?;
        let undone = taken.1.undo(steps);
        if undone.is_err() {
            commits().insert(commit, taken);
        }
        undone.map(|()| Value::Null)
    }

    /// Puts back what dead processes had replaced; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`.
    fn mx_rec_commit_recover(directory: *const u8, directory_size: usize) |steps| {
        abandon();
        commit::recover(as_path(directory, directory_size), steps).map(|()| Value::Null)
    }

    /// Removes a directory of tables; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`.
    fn mx_rec_commit_discard(directory: *const u8, directory_size: usize) |steps| {
        commit::discard(as_path(directory, directory_size), steps).map(|()| Value::Null)
    }

    /// Flushes the variables of a checkpoint to the disk; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`, for `checkpoint`.
    fn mx_rec_commit_flush(checkpoint: *const u8, checkpoint_size: usize) |steps| {
        commit::flush_variables(as_path(checkpoint, checkpoint_size), steps).map(|()| Value::Null)
    }

    /// The text of a manifest; include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_commit_clean`, for `directory` and `content`.
    fn mx_rec_commit_manifest(
        directory: *const u8,
        directory_size: usize,
        content: *const u8,
        content_size: usize
    ) |_| {
        let content = object(bytes(content, content_size))?;
        commit::manifest(as_path(directory, directory_size), &content).map(Value::from)
    }
}

/// Does the work and gives out `{"notes": ..., "value": ...}` or `{"notes": ..., "error": ...}`.
///
/// # Safety
/// `before` is null or may be called with `context` until this function returns; `result` and
/// `result_size` are null or can be written.
unsafe fn answer(
    before: Before,
    context: *mut c_void,
    result: *mut *mut u8,
    result_size: *mut usize,
    work: impl FnOnce(&mut Steps<'_>) -> Result<Value, Refused>,
) -> c_int {
    let json = || {
        let mut tell = |step: Step, path: &Path| match before {
            Some(before) => {
                let path = path.as_os_str().as_bytes();
                // SAFETY: the caller says so; both texts live until the call returns.
                match unsafe { before(name(step).as_ptr(), path.as_ptr(), path.len(), context) } {
                    0 => Ok(()),
                    number => Err(io::Error::from_raw_os_error(number)),
                }
            }
            None => Ok(()),
        };
        let mut steps = Steps::new(&mut tell);
        let done = work(&mut steps);
        let notes = steps.into_notes().into_iter().map(|(level, text)| {
            let level = match level {
                Level::Info => "info",
                Level::Warning => "warning",
            };
            json!([level, text])
        });
        let notes: Vec<Value> = notes.collect();
        serde_json::to_vec(&match done {
            Ok(value) => json!({"notes": notes, "value": value}),
            Err(refused) => json!({"notes": notes, "error": told(refused)}),
        })
    };
    // SAFETY: the caller says so.
    unsafe { give(result, result_size, "the commit of a checkpoint", json) }
}

fn name(step: Step) -> &'static CStr {
    match step {
        Step::Make => c"make",
        Step::Write => c"write",
        Step::Flush => c"flush",
        Step::Link => c"link",
        Step::Copy => c"copy",
        Step::Rename => c"rename",
        Step::Exchange => c"exchange",
        Step::Remove => c"remove",
    }
}

/// An error as JSON: `errno` and `paths` of what the system refused, else `kind` and `message`.
fn told(refused: Refused) -> Value {
    if let Some(error) = refused.full_disk() {
        return told(Refused::Unsound(error));
    }
    match refused {
        Refused::System {
            cause, path, other, ..
        } => match cause.raw_os_error() {
            Some(number) => {
                let paths = std::iter::once(path).chain(other);
                let paths = paths.map(|path| path.to_string_lossy().into_owned());
                json!({"errno": number, "paths": paths.collect::<Vec<_>>()})
            }
            None => json!({
                "kind": "Io",
                "message": format!("{}: {cause}", path.display()),
            }),
        },
        Refused::NoDirectory(path) => json!({
            "kind": "NoDirectory",
            "message": format!(
                "the tables cannot be saved: {} exists and is no directory",
                path.display()
            ),
        }),
        Refused::Unsound(error) => json!({
            "kind": format!("{:?}", error.kind()),
            "message": error.to_string(),
        }),
    }
}

/// Forgets the commits that this thread has begun and not ended. A thread saves one checkpoint
/// after the other: an exception, such as that of Ctrl-C, has ended these. What they left is then
/// treated as that of a process that was killed.
fn abandon() {
    let thread = std::thread::current().id();
    commits().retain(|_, (owner, _)| *owner != thread);
}

fn commits() -> MutexGuard<'static, BTreeMap<u64, (ThreadId, Commit)>> {
    COMMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(commit: Commit) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Relaxed);
    commits().insert(number, (std::thread::current().id(), commit));
    number
}

/// The commit of this number; whoever takes it has it alone.
fn take(number: u64) -> Result<(ThreadId, Commit), Error> {
    let taken = commits().remove(&number);
    taken.ok_or_else(|| Error::invalid("no commit of this number waits").with("commit", number))
}

fn object(text: &[u8]) -> Result<serde_json::Map<String, Value>, Error> {
    serde_json::from_slice(text).map_err(|error| {
        Error::invalid("the content of a manifest is no JSON object").with("cause", error)
    })
}
