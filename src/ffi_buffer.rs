//! Bytes that C callers get: a result or the text of an error, in a buffer that goes back to
//! `mx_rec_free`.

use mx_rec_tf_ops::panic_text;
use std::ffi::{c_int, OsStr};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

/// Gives out what `work` makes with 0, or the text of its error with 1; `what` names the work if it
/// panics. Without a place for the result nothing is done, and 1 is returned.
///
/// # Safety
/// `result` and `result_size` are null or can be written.
pub(crate) unsafe fn give<E: Display>(
    result: *mut *mut u8,
    result_size: *mut usize,
    what: &str,
    work: impl FnOnce() -> Result<Vec<u8>, E>,
) -> c_int {
    if result.is_null() || result_size.is_null() {
        return 1;
    }
    let (status, bytes) = outcome(what, work);
    let bytes = bytes.into_boxed_slice();
    // SAFETY: the caller says that both places can be written.
    unsafe {
        result_size.write(bytes.len());
        result.write(Box::into_raw(bytes).cast());
    }
    status
}

/// Does the work: 0 and what it makes, or 1 and the text of its error or panic.
pub(crate) fn outcome<E: Display>(
    what: &str,
    work: impl FnOnce() -> Result<Vec<u8>, E>,
) -> (c_int, Vec<u8>) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(bytes)) => (0, bytes),
        Ok(Err(error)) => (1, error.to_string().into_bytes()),
        Err(cause) => {
            let text = panic_text(cause.as_ref());
            let text = format!("a defect of the plugin: {what} panicked: {text}");
            (1, text.into_bytes())
        }
    }
}

/// Frees a buffer that one of our functions gave out; null is allowed.
///
/// # Safety
/// `result` is null, or what one of them wrote together with `result_size`, and is freed once.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_free(result: *mut u8, result_size: usize) {
    if !result.is_null() {
        // SAFETY: the pointer and the length are those of the boxed slice that `give` let go of.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(result, result_size)) });
    }
}

/// The bytes, none if the pointer is null.
///
/// # Safety
/// `data` is null or points to `size` readable bytes, which stay as they are for `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if data.is_null() || size > isize::MAX as usize {
        return &[];
    }
    // SAFETY: not null, readable for `size` bytes, of any alignment.
    unsafe { std::slice::from_raw_parts(data, size) }
}

/// The path of these bytes, the empty one if the pointer is null.
///
/// # Safety
/// `path` is null or points to `size` readable bytes, which stay as they are for `'a`.
pub(crate) unsafe fn as_path<'a>(path: *const u8, size: usize) -> &'a Path {
    // SAFETY: the caller says so.
    Path::new(OsStr::from_bytes(unsafe { bytes(path, size) }))
}
