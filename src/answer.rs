//! Bytes that C callers get: an answer or the text of an error, in a buffer that goes back to `mx_rec_free`.

use std::ffi::c_int;
use std::fmt::Display;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Gives out what `work` makes with 0, or the text of its error with 1; `what` names the work if it panics. Without a place for the
/// answer nothing is done, and the result is 1.
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
    let (status, answer) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => (0, answer),
        Ok(Err(error)) => (1, error.to_string().into_bytes()),
        Err(_) => (
            1,
            format!("a defect of the plugin: {what} panicked").into_bytes(),
        ),
    };
    let answer = answer.into_boxed_slice();
    // SAFETY: the caller says that both places can be written.
    unsafe {
        result_size.write(answer.len());
        result.write(Box::into_raw(answer).cast());
    }
    status
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
