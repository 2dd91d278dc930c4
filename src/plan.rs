//! The graph pass for Python: bytes in, bytes out, through ctypes (include/mx_rec.h).

use mx_rec_tf_ops::graph::Plan;
use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Decides what of a graph can move into its input pipelines. include/mx_rec.h says what the bytes are.
///
/// Returns 0 and a plan, or 1 and an error text in UTF-8; `*result` is then owned by the caller, who gives it back to
/// `mx_rec_plan_free` with its size. Never panics.
///
/// # Safety
/// `graph` and `ops` point to that many readable bytes, or are null with a size of 0. `result` and `result_size` point
/// to places that can be written, or are null, and then nothing is done.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_plan(
    graph: *const u8,
    graph_size: usize,
    ops: *const u8,
    ops_size: usize,
    result: *mut *mut u8,
    result_size: *mut usize,
) -> c_int {
    if result.is_null() || result_size.is_null() {
        return 1;
    }
    // SAFETY: the caller says that both are readable for their sizes.
    let (graph, ops) = unsafe { (bytes(graph, graph_size), bytes(ops, ops_size)) };
    let made = catch_unwind(AssertUnwindSafe(|| Plan::make(graph, ops)?.encode()));
    let (status, answer) = match made {
        Ok(Ok(plan)) => (0, plan),
        Ok(Err(error)) => (1, error.to_string().into_bytes()),
        Err(_) => (
            1,
            b"a defect of the plugin: the graph pass panicked".to_vec(),
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

/// Frees what `mx_rec_plan` gave out; null is allowed.
///
/// # Safety
/// `result` is null, or what `mx_rec_plan` wrote together with `result_size`, and is freed once.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_plan_free(result: *mut u8, result_size: usize) {
    if !result.is_null() {
        // SAFETY: the pointer and the length are those of the boxed slice that mx_rec_plan let go of.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(result, result_size)) });
    }
}

/// The bytes, none if the pointer is null.
///
/// # Safety
/// `data` is null or points to `size` readable bytes, which stay as they are for `'a`.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if data.is_null() || size > isize::MAX as usize {
        return &[];
    }
    // SAFETY: not null, readable for `size` bytes, of any alignment.
    unsafe { std::slice::from_raw_parts(data, size) }
}
