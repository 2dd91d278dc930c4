//! The door: what TensorFlow and Python find in the shared library.
//!
//! TensorFlow loads the library with `tf.load_op_library`; the hook below then registers every op.
//! Python asks through ctypes (include/mx_rec.h) whether that worked, how ops and tables are
//! defined (`definitions`), what the graph pass decides on a graph (`plan`), what the ops did when
//! (`trace`), what saved tables hold (`checkpoint`), and to put those of a checkpoint into place
//! (`commit`).

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

#[macro_use]
mod exports;

mod checkpoint;
mod commit;
mod definitions;
mod ffi_buffer;
mod plan;
mod trace;

use std::ffi::{c_char, c_int, CString};
use std::panic::catch_unwind;
use std::sync::OnceLock;

/// What the load hook met: a code that never changes its meaning, and a message.
struct Outcome {
    code: c_int,
    message: CString,
}

static OUTCOME: OnceLock<Outcome> = OnceLock::new();

/// The hook did not run.
const NOT_RUN: c_int = 4;
/// The hook panicked.
const PANICKED: c_int = 5;

// The section makes the dynamic linker call `on_load` when the library is opened. It must stand in
// the root crate: out of a dependency the linker would drop it.
#[used]
#[link_section = ".init_array"]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    let outcome = match catch_unwind(mx_rec_tf_ops::load) {
        Ok(Ok(version)) => (
            0,
            format!("the ops are registered with TensorFlow {version}"),
        ),
        Ok(Err(error)) => (error.code(), error.to_string()),
        Err(cause) => {
            let text = mx_rec_tf_ops::panic_text(cause.as_ref());
            let text = format!("a defect of the plugin: registering the ops panicked: {text}");
            (PANICKED, text)
        }
    };
    let (code, message) = outcome;
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A second run finds the first one's outcome and leaves it.
    let _ = OUTCOME.set(Outcome { code, message });
}

/// The version of the library, `MAJOR.MINOR.PATCH`; static, ends with a zero byte.
#[no_mangle]
pub extern "C" fn mx_rec_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// 0 if the ops are registered with the TensorFlow of this process. Else 1: no TensorFlow is
/// loaded; 2: it lacks a function; 3: it refused an op; 4: the load hook did not run; 5: it
/// panicked; 6: another copy of the library has registered them. `mx_rec_load_message` says it for
/// people.
#[no_mangle]
pub extern "C" fn mx_rec_load_status() -> c_int {
    OUTCOME.get().map_or(NOT_RUN, |outcome| outcome.code)
}

/// What `mx_rec_load_status` means, for a person; lives as long as the library, ends with a zero
/// byte.
#[no_mangle]
pub extern "C" fn mx_rec_load_message() -> *const c_char {
    OUTCOME
        .get()
        .map_or(c"the load hook did not run".as_ptr(), |outcome| {
            outcome.message.as_ptr()
        })
}
