//! Finding TensorFlow's C API among the libraries that the process has loaded.

use super::bindings::TensorFlow;
use libloading::os::unix::Library;
use std::fmt;
use std::sync::OnceLock;

/// The libraries that hold the C API: that of the wheels of 1.15 and the older 2.x, then those of
/// the newer ones, which have parts of it in both. A function is looked up in a library and in what
/// that needs.
const LIBRARIES: [&str; 3] = [
    "_pywrap_tensorflow_internal.so",
    "libtensorflow_cc.so.2",
    "libtensorflow_framework.so.2",
];

/// Why no C API was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The process has loaded no TensorFlow.
    NoTensorFlow,
    /// The TensorFlow in the process lacks a function that the plugin needs; the linker's message.
    MissingFunction(String),
    /// TensorFlow refused an op or a kernel; its message.
    Refused(String),
    /// Another copy of the plugin has registered the ops in this process.
    OtherCopy,
}

impl LoadError {
    /// A number for each kind of error; numbers never change their meaning. 0 is kept for "no
    /// error".
    pub fn code(&self) -> i32 {
        match self {
            LoadError::NoTensorFlow => 1,
            LoadError::MissingFunction(_) => 2,
            LoadError::Refused(_) => 3,
            LoadError::OtherCopy => 6,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NoTensorFlow => f.write_str(
                "this process has not loaded TensorFlow: run `import tensorflow` first, then load \
                    the \
                 plugin with tf.load_op_library",
            ),
            LoadError::MissingFunction(cause) => write!(
                f,
                "the TensorFlow in this process lacks a function of the C API that the plugin \
                    needs \
                 ({cause}): use TensorFlow 1.15 or newer"
            ),
            LoadError::Refused(cause) => write!(f, "TensorFlow refused an op: {cause}"),
            LoadError::OtherCopy => f.write_str(
                "another copy of the plugin has registered its ops in this process, and TensorFlow \
                    takes them \
                 only once: load one file only, and start a new process after building a new one",
            ),
        }
    }
}

impl std::error::Error for LoadError {}

static API: OnceLock<TensorFlow> = OnceLock::new();

/// The C API, if [`find`] found one.
pub(crate) fn loaded() -> Option<&'static TensorFlow> {
    API.get()
}

/// Finds the C API of the TensorFlow that is in the process. Nothing is loaded that was not there.
///
/// # Errors
/// [`LoadError::NoTensorFlow`] if there is none, [`LoadError::MissingFunction`] if it is too old.
pub(crate) fn find() -> Result<&'static TensorFlow, LoadError> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let mut missing = None;
    for name in LIBRARIES {
        // SAFETY: RTLD_NOLOAD gives a handle only of a library that is loaded already, so no
        // initialiser runs.
        let library = unsafe { Library::open(Some(name), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        let Ok(library) = library else { continue };
        // SAFETY: the names belong to TensorFlow's stable C API, and a test compiles our
        // declarations together with TensorFlow's own headers.
        match unsafe { TensorFlow::from_library(library) } {
            Ok(api) => return Ok(API.get_or_init(|| api)),
            Err(cause) => missing = Some(cause.to_string()),
        }
    }
    Err(missing.map_or(LoadError::NoTensorFlow, LoadError::MissingFunction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_tensorflow_gets_an_error_that_says_what_to_do() {
        let error = find().err();
        assert_eq!(error, Some(LoadError::NoTensorFlow));
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("import tensorflow"), "{text}");
    }

    #[test]
    fn every_error_has_a_code_of_its_own() {
        let errors = [
            LoadError::NoTensorFlow,
            LoadError::MissingFunction(String::new()),
            LoadError::Refused(String::new()),
            LoadError::OtherCopy,
        ];
        let codes: Vec<i32> = errors.iter().map(LoadError::code).collect();
        assert_eq!(codes, [1, 2, 3, 6]);
    }
}
