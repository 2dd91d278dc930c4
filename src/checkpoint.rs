//! Saved tables for Python: looking at them, and loading several together; paths in, JSON out,
//! through ctypes (include/mx_rec.h).

use crate::ffi_buffer::{as_path, bytes};
use mx_rec_kernels::checkpoint::inspect;
use mx_rec_kernels::{Error, Result};
use mx_rec_tf_ops::loads;
use serde::Serialize;
use serde_json::{json, Value};
use std::ffi::{c_int, c_void, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What fails if it panics.
const READING: &str = "reading the checkpoint";

/// Is told bytes done and bytes in all; 0 stops the work. Null is allowed.
type Progress = Option<unsafe extern "C" fn(done: u64, total: u64, context: *mut c_void) -> c_int>;

exports! {
    /// What the directory of a table holds; data files are not read. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// `path` points to that many readable bytes. `result` and `result_size` point to places that
    /// can be written, or are null, and then nothing is done.
    fn mx_rec_checkpoint_describe(path: *const u8, path_size: usize)
        READING => told(inspect::describe(as_path(path, path_size)));

    /// Reads every file of a table and tells all that is wrong. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_checkpoint_describe`; `progress` is null or may be called with `context`, from
    /// this thread, until this function returns.
    fn mx_rec_checkpoint_verify(
        path: *const u8,
        path_size: usize,
        progress: Progress,
        context: *mut c_void,
    ) READING => {
        let mut tell = progress_callback(progress, context);
        told(inspect::verify(as_path(path, path_size), &mut tell))
    };

    /// The row of a key. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_checkpoint_verify`.
    fn mx_rec_checkpoint_row(
        path: *const u8,
        path_size: usize,
        key: i64,
        progress: Progress,
        context: *mut c_void,
    ) READING => {
        let mut tell = progress_callback(progress, context);
        told(inspect::row(as_path(path, path_size), key, &mut tell))
    };

    /// How two tables differ, by key. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_checkpoint_verify`, for both paths.
    fn mx_rec_checkpoint_diff(
        here: *const u8,
        here_size: usize,
        there: *const u8,
        there_size: usize,
        progress: Progress,
        context: *mut c_void,
    ) READING => {
        let (here, there) = (as_path(here, here_size), as_path(there, there_size));
        told(inspect::diff(here, there, &mut progress_callback(progress, context)))
    };

    /// Reads and checks the files of several tables; none changes. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// `handles` points to `tables` numbers and `paths` to that many readable bytes. `result` and
    /// `result_size` as of `mx_rec_checkpoint_describe`.
    fn mx_rec_checkpoint_stage(
        handles: *const i64,
        tables: usize,
        paths: *const u8,
        paths_size: usize,
    ) READING => told(stage(numbers(handles, tables), chains(bytes(paths, paths_size))));

    /// Replaces the contents of the tables of a group that was staged. include/mx_rec.h has the
    /// JSON.
    ///
    /// # Safety
    /// As of `mx_rec_checkpoint_describe` for `result` and `result_size`.
    fn mx_rec_checkpoint_publish(group: u64) READING => told(loads::publish(group).map(|loaded| {
        let told = loaded.iter().map(|one| json!({"rows": one.rows, "epoch": one.epoch}));
        told.collect::<Vec<_>>()
    }));

    /// Forgets a group that was staged. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_checkpoint_describe` for `result` and `result_size`.
    fn mx_rec_checkpoint_discard(group: u64) READING => {
        loads::discard(group);
        told(Ok(()))
    };
}

/// Reads and checks the files of tables.
fn stage(handles: &[i64], chains: Vec<Vec<&Path>>) -> Result<Value> {
    if chains.len() != handles.len() {
        return Err(Error::invalid("every table needs its paths")
            .with("tables", handles.len())
            .with("paths", chains.len()));
    }
    let requests: Vec<(i64, Vec<&Path>)> = handles.iter().copied().zip(chains).collect();
    Ok(match loads::stage(&requests) {
        Ok(Some((group, rows))) => json!({"group": group, "rows": rows}),
        Ok(None) => json!({"group": null}),
        Err(error) => json!({
            "kind": format!("{:?}", error.kind()),
            "message": error.to_string(),
        }),
    })
}

/// The paths of each table: a zero byte stands between two paths, and two of them between two
/// tables.
fn chains(paths: &[u8]) -> Vec<Vec<&Path>> {
    let mut chains = vec![Vec::new()];
    for path in paths.split(|byte| *byte == 0) {
        if path.is_empty() {
            chains.push(Vec::new());
        } else if let Some(chain) = chains.last_mut() {
            chain.push(Path::new(OsStr::from_bytes(path)));
        }
    }
    chains
}

/// The numbers, none if the pointer is null or not aligned.
///
/// # Safety
/// `data` is null or points to `count` readable numbers, which stay as they are for `'a`.
unsafe fn numbers<'a>(data: *const i64, count: usize) -> &'a [i64] {
    if data.is_null() || !data.is_aligned() || count > isize::MAX as usize / size_of::<i64>() {
        return &[];
    }
    // SAFETY: not null, aligned, and readable for `count` numbers, as the caller says.
    unsafe { std::slice::from_raw_parts(data, count) }
}

/// What was made as JSON.
fn told(made: Result<impl Serialize>) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    Ok(serde_json::to_vec(&made?)?)
}

/// The caller's function as ours; without one the work goes on.
///
/// # Safety
/// `progress` is null or may be called with `context` from any thread that calls what is returned,
/// as long as that lives.
unsafe fn progress_callback(
    progress: Progress,
    context: *mut c_void,
) -> impl FnMut(u64, u64) -> bool {
    move |done, total| match progress {
        // SAFETY: the caller says so.
        Some(progress) => unsafe { progress(done, total, context) != 0 },
        None => true,
    }
}
