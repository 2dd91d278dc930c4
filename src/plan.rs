//! The graph pass for Python: bytes in, bytes out, through ctypes (include/mx_rec.h).

use crate::ffi_buffer::{bytes, give};
use mx_rec_tf_ops::graph::Plan;
use std::ffi::c_int;

/// Decides what of a graph can move into its input pipelines. include/mx_rec.h says what the bytes
/// are.
///
/// Returns 0 and a plan, or 1 and an error text in UTF-8; `*result` is then owned by the caller,
/// who gives it back to `mx_rec_free` with its size. Never panics.
///
/// # Safety
/// `graph` and `ops` point to that many readable bytes, or are null with a size of 0. `result` and
/// `result_size` point to places that can be written, or are null, and then nothing is done.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_plan(
    graph: *const u8,
    graph_size: usize,
    ops: *const u8,
    ops_size: usize,
    result: *mut *mut u8,
    result_size: *mut usize,
) -> c_int {
    // SAFETY: the caller says that all four are what they have to be.
    unsafe {
        let (graph, ops) = (bytes(graph, graph_size), bytes(ops, ops_size));
        give(result, result_size, "the graph pass", || {
            Plan::make(graph, ops)?.encode()
        })
    }
}
