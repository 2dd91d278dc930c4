//! `TF_Status`: how the C API reports errors; and its version.

use crate::sys::{self, TensorFlow};
use mx_rec_kernels::{Error, Kind, Result};
use std::ffi::{CStr, CString};

/// An owned status, first OK.
pub(crate) struct Status {
    api: &'static TensorFlow,
    raw: *mut sys::TF_Status,
}

impl Status {
    pub(crate) fn new(api: &'static TensorFlow) -> Self {
        // SAFETY: takes no argument.
        let raw = unsafe { api.TF_NewStatus() };
        Self { api, raw }
    }

    /// The pointer for a call that reports through it; valid as long as `self`.
    pub(crate) fn raw(&self) -> *mut sys::TF_Status {
        self.raw
    }

    /// What the last call reported.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: `raw` is owned and not yet deleted; the message lives until the status is set
        // again.
        let (code, message) = unsafe {
            let code = self.api.TF_GetCode(self.raw);
            (code, CStr::from_ptr(self.api.TF_Message(self.raw)))
        };
        if code == sys::TF_OK {
            return Ok(());
        }
        Err(Error::new(Kind::Internal, message.to_string_lossy()))
    }

    /// Sets code and message.
    pub(crate) fn set(&self, kind: Kind, message: &str) {
        set(self.api, self.raw, kind, message);
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: owned, deleted once.
        unsafe { self.api.TF_DeleteStatus(self.raw) }
    }
}

/// The version of TensorFlow, as it says.
pub(crate) fn version(api: &TensorFlow) -> String {
    // SAFETY: takes no argument and gives a string that lives as long as TensorFlow.
    let version = unsafe { CStr::from_ptr(api.TF_Version()) };
    version.to_string_lossy().into_owned()
}

/// Sets a status that TensorFlow lends for the time of a callback.
pub(crate) fn set(api: &TensorFlow, status: *mut sys::TF_Status, kind: Kind, message: &str) {
    let text: Vec<u8> = message.bytes().filter(|&byte| byte != 0).collect();
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the status is owned or lent for this call, the text is copied by TensorFlow.
    unsafe { api.TF_SetStatus(status, code(kind), text.as_ptr()) }
}

/// TensorFlow's number for a kind of error.
fn code(kind: Kind) -> sys::TF_Code {
    match kind {
        Kind::InvalidArgument => sys::TF_INVALID_ARGUMENT,
        Kind::NotFound => sys::TF_NOT_FOUND,
        Kind::ResourceExhausted => sys::TF_RESOURCE_EXHAUSTED,
        Kind::Aborted => sys::TF_ABORTED,
        Kind::DataLoss => sys::TF_DATA_LOSS,
        Kind::Io => sys::TF_UNKNOWN,
        Kind::Internal => sys::TF_INTERNAL,
    }
}
