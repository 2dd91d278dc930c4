//! The recorder of op runs for Python: through ctypes (include/mx_rec.h).

use std::panic::catch_unwind;

/// Begins to record the runs of our ops; what was recorded before and not fetched is dropped.
#[no_mangle]
pub(crate) extern "C" fn mx_rec_trace_start() {
    // Nothing in it panics but for a defect, and then there is nobody to tell.
    let _ = catch_unwind(mx_rec_tf_ops::trace::start);
}

exports! {
    /// Ends the recording and gives it out as JSON. include/mx_rec.h says what it holds.
    ///
    /// Returns 0 and the JSON, or 1 and an error text in UTF-8; `*result` is then owned by the
    /// caller, who gives it back to `mx_rec_free` with its size. Never panics.
    ///
    /// # Safety
    /// `result` and `result_size` point to places that can be written, or are null: then 1 is
    /// returned and the recording goes on.
    fn mx_rec_trace_stop() "the recorder" => mx_rec_tf_ops::trace::stop();
}
