//! The graph pass for Python: bytes in, bytes out, through ctypes (include/mx_rec.h).

use crate::ffi_buffer::{bytes, give};
use mx_rec_tf_ops::graph::{Plan, ShapeOf};
use std::ffi::{c_int, c_void};

/// Shapes of more dimensions are not asked for.
const MOST_DIMS: usize = 16;

/// Writes the sizes of an output of a node, -1 for one that is not known, and returns how many
/// there are, or a negative number if that is not known or more than fit.
type Shape = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        node: *const u8,
        node_size: usize,
        output: u64,
        sizes: *mut [i64; MOST_DIMS],
    ) -> c_int,
>;

/// Decides what changes in a graph, with `moves` other than 0 also what moves into its input
/// pipelines. include/mx_rec.h says what the bytes are.
///
/// Returns 0 and a plan, or 1 and an error text in UTF-8; `*result` is then owned by the caller,
/// who gives it back to `mx_rec_free` with its size. Never panics.
///
/// # Safety
/// `graph` and `ops` point to that many readable bytes, or are null with a size of 0. `shape` is
/// null or may be called with `context` while this runs, as include/mx_rec.h says. `result` and
/// `result_size` point to places that can be written, or are null, and then nothing is done.
#[no_mangle]
pub(crate) unsafe extern "C" fn mx_rec_plan(
    graph: *const u8,
    graph_size: usize,
    ops: *const u8,
    ops_size: usize,
    moves: c_int,
    shape: Shape,
    context: *mut c_void,
    result: *mut *mut u8,
    result_size: *mut usize,
) -> c_int {
    // SAFETY: the caller says that all are what they have to be.
    unsafe {
        let (graph, ops) = (bytes(graph, graph_size), bytes(ops, ops_size));
        let shape_of = shape.map(|shape| {
            move |node: &str, output: u64| {
                let mut sizes = [0_i64; MOST_DIMS];
                let rank = shape(context, node.as_ptr(), node.len(), output, &mut sizes);
                let known = sizes.get(..usize::try_from(rank).ok()?)?;
                Some(
                    known
                        .iter()
                        .map(|&size| (size >= 0).then_some(size))
                        .collect(),
                )
            }
        });
        give(result, result_size, "the graph pass", || {
            let shape_of = shape_of.as_ref().map(|one| one as &ShapeOf<'_>);
            Plan::make(graph, ops, moves != 0, shape_of)?.encode()
        })
    }
}
