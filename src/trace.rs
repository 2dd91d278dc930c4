//! The recorder of op runs for Python: through ctypes (include/mx_rec.h).

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Begins to record the runs of our ops; what was recorded before and not fetched is dropped.
#[no_mangle]
pub(crate) extern "C" fn mx_rec_trace_start() {
    // Nothing in it panics but for a defect, and then there is nobody to tell.
    let _ = catch_unwind(mx_rec_tf_ops::trace::start);
}

/// Ends the recording and gives it out as JSON. include/mx_rec.h says what it holds.
///
/// Returns 0 and the JSON, or 1 and an error text in UTF-8; `*result` is then owned by the caller, who gives it back to
/// `mx_rec_trace_free` with its size. Never panics.
///
/// # Safety
/// `result` and `result_size` point to places that can be written, or are null: then 1 is returned and the recording
/// goes on.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_trace_stop(
    result: *mut *mut u8,
    result_size: *mut usize,
) -> c_int {
    if result.is_null() || result_size.is_null() {
        return 1;
    }
    let (status, answer) = match catch_unwind(AssertUnwindSafe(mx_rec_tf_ops::trace::stop)) {
        Ok(Ok(json)) => (0, json),
        Ok(Err(error)) => (1, error.to_string().into_bytes()),
        Err(_) => (1, b"a defect of the plugin: the recorder panicked".to_vec()),
    };
    let answer = answer.into_boxed_slice();
    // SAFETY: the caller says that both places can be written.
    unsafe {
        result_size.write(answer.len());
        result.write(Box::into_raw(answer).cast());
    }
    status
}

/// Frees what `mx_rec_trace_stop` gave out; null is allowed.
///
/// # Safety
/// `result` is null, or what `mx_rec_trace_stop` wrote together with `result_size`, and is freed once.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_trace_free(result: *mut u8, result_size: usize) {
    if !result.is_null() {
        // SAFETY: the pointer and the length are those of the boxed slice that mx_rec_trace_stop let go of.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(result, result_size)) });
    }
}
