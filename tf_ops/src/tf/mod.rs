//! Safe owners for what TensorFlow's C API hands out.
//!
//! Every owner frees what it owns when it is dropped. A pointer that TensorFlow lends for the time
//! of a call (the contexts) is *valid* when it is the one TensorFlow passed to the callback that is
//! running.

mod buffers;
mod context;
mod register;
mod shape;
mod status;
mod tensor;

pub(crate) use buffers::Hold as HoldBuffers;
pub(crate) use context::{Construction, Context};
pub(crate) use register::{at_failure, has_kernel, register, OpKernel};
pub(crate) use status::{version, Status};
pub(crate) use tensor::{Dims, Input, Lent, Output, Settable};
