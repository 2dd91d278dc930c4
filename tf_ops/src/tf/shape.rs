//! Shape inference: what TensorFlow can know of an output's shape before it runs.

use super::Status;
use crate::shapes::Shape;
use crate::sys::{self, TensorFlow};
use mx_rec_kernels::Result;
use std::ffi::c_int;

/// The shapes of one node.
pub(crate) struct ShapeContext {
    api: &'static TensorFlow,
    raw: *mut sys::TF_ShapeInferenceContext,
}

/// An owned shape of TensorFlow's.
struct Handle {
    api: &'static TensorFlow,
    raw: *mut sys::TF_ShapeHandle,
}

impl Handle {
    fn new(api: &'static TensorFlow) -> Self {
        // SAFETY: takes no argument.
        let raw = unsafe { api.TF_NewShapeHandle() };
        Self { api, raw }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: owned, deleted once.
        unsafe { self.api.TF_DeleteShapeHandle(self.raw) }
    }
}

impl ShapeContext {
    /// # Safety
    /// `raw` is valid (see the module above) for as long as the value lives.
    pub(super) unsafe fn new(
        api: &'static TensorFlow,
        raw: *mut sys::TF_ShapeInferenceContext,
    ) -> Self {
        Self { api, raw }
    }

    /// The shapes of all tensors that go into the node, those of lists included. Nothing is known
    /// of one that TensorFlow does not show: the C API of 1.15 refuses every tensor but the first.
    /// mx_rec/ops/shapes.py states what is missed for that reason.
    pub(super) fn inputs(&self) -> Vec<Shape> {
        // SAFETY: the context is valid.
        let count = unsafe { self.api.TF_ShapeInferenceContextNumInputs(self.raw) };
        let count = usize::try_from(count).unwrap_or(0);
        (0..count).map(|at| self.input(at)).collect()
    }

    fn input(&self, at: usize) -> Shape {
        let (shape, status) = (Handle::new(self.api), Status::new(self.api));
        let index = c_int::try_from(at).ok()?;
        // SAFETY: the context is valid, shape and status are ours.
        unsafe {
            self.api
                .TF_ShapeInferenceContextGetInput(self.raw, index, shape.raw, status.raw());
        }
        status.check().ok()?;
        // SAFETY: the context is valid, the shape is ours.
        let rank = unsafe {
            let known = self
                .api
                .TF_ShapeInferenceContextRankKnown(self.raw, shape.raw)
                != 0;
            known.then(|| self.api.TF_ShapeInferenceContextRank(self.raw, shape.raw))
        }?;
        Some((0..rank).map(|at| self.size(&shape, at)).collect())
    }

    /// The size of dimension `at`, which lies within the rank of `shape`, if it is known.
    fn size(&self, shape: &Handle, at: i64) -> Option<i64> {
        // SAFETY: the context is valid and the shape ours; TensorFlow checks `at`. The dimension is
        // ours and deleted once.
        unsafe {
            let dim = self.api.TF_NewDimensionHandle();
            self.api
                .TF_ShapeInferenceContextDim(self.raw, shape.raw, at, dim);
            let known = self.api.TF_DimensionHandleValueKnown(dim) != 0;
            let value = known.then(|| self.api.TF_DimensionHandleValue(dim));
            self.api.TF_DeleteDimensionHandle(dim);
            value
        }
    }

    /// A vector of this length.
    fn vector(&self, length: Option<i64>) -> Handle {
        // The largest size is -1 as a signed number, TensorFlow's mark of an unknown dimension; the
        // C API of 1.15 has no other way to make one.
        let size = length.and_then(|length| usize::try_from(length).ok());
        // SAFETY: the context is valid; the handle that comes back is ours.
        let raw = unsafe {
            self.api
                .TF_ShapeInferenceContextVectorFromSize(self.raw, size.unwrap_or(usize::MAX))
        };
        Handle { api: self.api, raw }
    }

    /// TensorFlow's form of a shape whose rank is known.
    fn handle(&self, dims: &[Option<i64>]) -> Result<Handle> {
        let status = Status::new(self.api);
        let mut made = Handle::new(self.api);
        let vector = self.vector(None);
        // SAFETY: the context is valid, shapes and status are ours. A part of no dimension is a
        // scalar.
        unsafe {
            self.api.TF_ShapeInferenceContextSubshape(
                self.raw,
                vector.raw,
                0,
                0,
                made.raw,
                status.raw(),
            );
        }
        status.check()?;
        for dim in dims {
            let (vector, joined) = (self.vector(*dim), Handle::new(self.api));
            // SAFETY: as above.
            unsafe {
                self.api.TF_ShapeInferenceContextConcatenateShapes(
                    self.raw,
                    made.raw,
                    vector.raw,
                    joined.raw,
                    status.raw(),
                );
            }
            status.check()?;
            made = joined;
        }
        Ok(made)
    }

    /// States that nothing is known of any output; shape functions start with it.
    pub(super) fn set_unknown(&self) -> Result<()> {
        let status = Status::new(self.api);
        // SAFETY: the context is valid, the status is ours.
        unsafe {
            self.api
                .TF_ShapeInferenceContextSetUnknownShape(self.raw, status.raw())
        }
        status.check()
    }

    /// States the shape of output number `at`. Where TensorFlow does not take it (1.15 takes the
    /// first output only), the output stays unknown.
    pub(super) fn set(&self, at: usize, shape: &Shape) -> Result<()> {
        let (Some(dims), Ok(index)) = (shape, c_int::try_from(at)) else {
            return Ok(());
        };
        let (shape, status) = (self.handle(dims)?, Status::new(self.api));
        // SAFETY: the context is valid, shape and status are ours.
        unsafe {
            self.api
                .TF_ShapeInferenceContextSetOutput(self.raw, index, shape.raw, status.raw());
        }
        Ok(())
    }
}
