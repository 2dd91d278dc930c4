//! What TensorFlow says of a call that failed.

use std::ffi::CStr;
use std::fmt;
use tensorflow_sys_runtime as tf;

pub use tf::TF_Code as Code;

/// A call that TensorFlow refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// TensorFlow's code.
    pub code: Code,
    /// Its message.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}

/// What a call gives, or why TensorFlow refused it.
pub type Result<T> = std::result::Result<T, Failure>;

/// An owned status, first OK.
pub(crate) struct Status(*mut tf::TF_Status);

impl Status {
    pub(crate) fn new() -> Self {
        // SAFETY: takes no argument; the API is loaded before anything is made of it.
        Self(unsafe { tf::TF_NewStatus() })
    }

    /// The pointer for a call that reports through it; valid as long as `self`.
    pub(crate) fn raw(&self) -> *mut tf::TF_Status {
        self.0
    }

    /// What the last call reported.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: owned and not yet deleted; the message lives until the status is set again.
        let (code, message) = unsafe {
            let code = tf::TF_GetCode(self.0);
            (code, CStr::from_ptr(tf::TF_Message(self.0)))
        };
        if code == Code::TF_OK {
            return Ok(());
        }
        let message = message.to_string_lossy().into_owned();
        Err(Failure { code, message })
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: owned, deleted once.
        unsafe { tf::TF_DeleteStatus(self.0) }
    }
}
