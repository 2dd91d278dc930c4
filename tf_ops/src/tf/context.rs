//! What a kernel sees of TensorFlow while it is made and while it runs.

use super::tensor::{Element, Input, Lent, Output, Settable};
use super::Status;
use crate::op_def::{split, Arg};
use crate::sys::{self, TensorFlow};
use mx_rec_kernels::{Error, Kind, Lease, Result};
use std::ffi::{c_int, CString};

/// The construction of a kernel: the node's attributes. TensorFlow 1.15 gives no more than int32
/// and types.
pub(crate) struct Construction {
    api: &'static TensorFlow,
    raw: *mut sys::TF_OpKernelConstruction,
}

impl Construction {
    /// # Safety
    /// `raw` is valid (see the module above) for as long as the value lives.
    pub(super) unsafe fn new(
        api: &'static TensorFlow,
        raw: *mut sys::TF_OpKernelConstruction,
    ) -> Self {
        Self { api, raw }
    }

    /// The int attribute `name`.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's message if there is none.
    pub(crate) fn int(&self, name: &str) -> Result<i32> {
        let text = CString::new(name)
            .map_err(|_| Error::new(Kind::Internal, "an attribute's name has a zero byte"))?;
        let status = Status::new(self.api);
        let mut value = 0;
        // SAFETY: the construction is valid, the name ends with a zero, value and status are ours.
        unsafe {
            self.api.TF_OpKernelConstruction_GetAttrInt32(
                self.raw,
                text.as_ptr(),
                &mut value,
                status.raw(),
            );
        }
        status.check()?;
        Ok(value)
    }

    /// Reports that the kernel cannot be made.
    pub(super) fn fail(&self, kind: Kind, message: &str) {
        let status = Status::new(self.api);
        status.set(kind, message);
        // SAFETY: the construction is valid, the status is copied.
        unsafe {
            self.api
                .TF_OpKernelConstruction_Failure(self.raw, status.raw())
        }
    }
}

/// One run of an op.
pub(crate) struct Context {
    api: &'static TensorFlow,
    raw: *mut sys::TF_OpKernelContext,
    inputs: &'static [Arg],
    /// Of the last call: each sets it anew.
    status: Status,
}

impl Context {
    /// # Safety
    /// `raw` is valid (see the module above) for as long as the value lives.
    pub(super) unsafe fn new(
        api: &'static TensorFlow,
        raw: *mut sys::TF_OpKernelContext,
        inputs: &'static [Arg],
    ) -> Self {
        Self {
            api,
            raw,
            inputs,
            status: Status::new(api),
        }
    }

    /// Input number `at`.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's message if there is none.
    pub(crate) fn input(&self, at: usize) -> Result<Input> {
        self.tensor(at, at)
    }

    /// Tensor number `at` of all that go into the op. Where an input is a list, tensors and inputs
    /// are not the same; `arg` is the number of the input that it belongs to.
    ///
    /// # Errors
    /// As [`Context::input`].
    pub(crate) fn tensor(&self, at: usize, arg: usize) -> Result<Input> {
        let spec = self.inputs.get(arg).map_or("input", |arg| arg.spec);
        let index = c_int::try_from(at)
            .map_err(|_| Error::new(Kind::Internal, "an op has too many inputs"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is valid; tensor and status are ours.
        unsafe {
            self.api
                .TF_GetInput(self.raw, index, &mut raw, self.status.raw())
        }
        self.status.check()?;
        if raw.is_null() {
            return Err(Error::new(Kind::Internal, "TensorFlow gave no tensor")
                .with("input", split(spec).0));
        }
        // SAFETY: TF_GetInput makes a tensor that its caller deletes.
        Ok(unsafe { Input::new(self.api, raw, spec) })
    }

    /// The number of the step that runs the op: the same for all ops of one `session.run`, also in
    /// the processes of a cluster, and of no other step.
    pub(crate) fn step(&self) -> i64 {
        // SAFETY: the context is valid.
        unsafe { self.api.TF_StepId(self.raw) }
    }

    /// A new tensor of shape `dims`; it becomes an output by [`Context::set`].
    ///
    /// # Errors
    /// As [`Output::new`].
    pub(crate) fn allocate<T: Element>(&self, dims: &[i64]) -> Result<Output<T>> {
        Output::new(self.api, dims)
    }

    /// A new tensor that is a vector of these values.
    ///
    /// # Errors
    /// As [`Context::allocate`].
    pub(crate) fn vector<T: Element>(&self, values: &[T]) -> Result<Output<T>> {
        let mut output = self.allocate::<T>(&[values.len() as i64])?;
        output.values().copy_from_slice(values);
        Ok(output)
    }

    /// A tensor that is the offsets of `lease`; it becomes an output by [`Context::set`].
    ///
    /// # Errors
    /// As [`Lent::new`].
    pub(crate) fn lend(&self, lease: Lease) -> Result<Lent> {
        Lent::new(self.api, lease)
    }

    /// Gives a tensor to TensorFlow as output number `at`, without a copy: a new one, or a
    /// reference to an input. Kernels call it last, when nothing can fail any more.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's message.
    pub(crate) fn set(&self, at: usize, tensor: impl Settable) -> Result<()> {
        let index = c_int::try_from(at)
            .map_err(|_| Error::new(Kind::Internal, "an op has too many outputs"))?;
        // SAFETY: the context is valid and the tensor alive; TensorFlow takes a reference of its
        // own to its memory.
        unsafe {
            self.api
                .TF_SetOutput(self.raw, index, tensor.raw(), self.status.raw())
        }
        self.status.check()
    }

    /// Gives tensors to TensorFlow as the outputs from number `first` on, as [`Context::set`] does.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn set_all(&self, first: usize, tensors: Vec<impl Settable>) -> Result<()> {
        let mut tensors = (first..).zip(tensors);
        tensors.try_for_each(|(at, tensor)| self.set(at, tensor))
    }

    /// Gives a scalar as output number `at`.
    ///
    /// # Errors
    /// As [`Context::allocate`] and [`Context::set`].
    pub(crate) fn set_scalar<T: Element>(&self, at: usize, value: T) -> Result<()> {
        let mut output = self.allocate::<T>(&[])?;
        output.values().fill(value);
        self.set(at, output)
    }

    /// Reports that the run failed.
    pub(super) fn fail(&self, kind: Kind, message: &str) {
        self.status.set(kind, message);
        // SAFETY: the context is valid, the status is copied.
        unsafe {
            self.api
                .TF_OpKernelContext_Failure(self.raw, self.status.raw())
        }
    }
}
