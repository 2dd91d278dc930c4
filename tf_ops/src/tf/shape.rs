//! Shape inference: what TensorFlow can know of an output's shape before it runs.

use super::Status;
use crate::sys::{self, TensorFlow};
use mx_rec_kernels::{Error, Result};
use std::ffi::c_int;

/// The shapes of one node.
pub(crate) struct ShapeContext {
    api: &'static TensorFlow,
    raw: *mut sys::TF_ShapeInferenceContext,
}

/// A shape, or what is known of it.
pub(crate) struct Shape {
    api: &'static TensorFlow,
    raw: *mut sys::TF_ShapeHandle,
}

impl Shape {
    fn new(api: &'static TensorFlow) -> Self {
        // SAFETY: takes no argument.
        let raw = unsafe { api.TF_NewShapeHandle() };
        Self { api, raw }
    }
}

impl Drop for Shape {
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

    /// The shape of input number `at`, or `None` if TensorFlow does not show it: the C API of 1.15 refuses every input
    /// but the first. mx_rec/ops/shapes.py states what is missed for that reason.
    pub(crate) fn input(&self, at: i32) -> Result<Option<Shape>> {
        let (shape, status) = (Shape::new(self.api), Status::new(self.api));
        // SAFETY: the context is valid, shape and status are ours.
        unsafe {
            self.api.TF_ShapeInferenceContextGetInput(
                self.raw,
                at as c_int,
                shape.raw,
                status.raw(),
            );
        }
        Ok(status.check().is_ok().then_some(shape))
    }

    /// The rank, if it is known.
    pub(crate) fn rank(&self, shape: &Option<Shape>) -> Option<i64> {
        let shape = shape.as_ref()?;
        // SAFETY: the context is valid, the shape is ours.
        unsafe {
            (self
                .api
                .TF_ShapeInferenceContextRankKnown(self.raw, shape.raw)
                != 0)
                .then(|| self.api.TF_ShapeInferenceContextRank(self.raw, shape.raw))
        }
    }

    /// The size of dimension `at` (negative: from the end) if it is known.
    pub(crate) fn dim(&self, shape: &Option<Shape>, at: i64) -> Option<i64> {
        let rank = self.rank(shape)?;
        let shape = shape.as_ref()?;
        if at >= rank || at < -rank {
            return None;
        }
        // SAFETY: the context is valid and `at` lies within the rank; the dimension is ours and deleted once.
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

    /// Dimensions `start..end` of `shape` (negative: from the end).
    pub(crate) fn part(
        &self,
        shape: &Option<Shape>,
        start: i64,
        end: i64,
    ) -> Result<Option<Shape>> {
        let Some(shape) = shape else { return Ok(None) };
        let (part, status) = (Shape::new(self.api), Status::new(self.api));
        // SAFETY: the context is valid, shapes and status are ours.
        unsafe {
            self.api.TF_ShapeInferenceContextSubshape(
                self.raw,
                shape.raw,
                start,
                end,
                part.raw,
                status.raw(),
            );
        }
        status.check()?;
        Ok(Some(part))
    }

    /// The dimensions of `first`, then those of `second`.
    pub(crate) fn join(
        &self,
        first: &Option<Shape>,
        second: &Option<Shape>,
    ) -> Result<Option<Shape>> {
        let (Some(first), Some(second)) = (first, second) else {
            return Ok(None);
        };
        let (joined, status) = (Shape::new(self.api), Status::new(self.api));
        // SAFETY: the context is valid, shapes and status are ours.
        unsafe {
            self.api.TF_ShapeInferenceContextConcatenateShapes(
                self.raw,
                first.raw,
                second.raw,
                joined.raw,
                status.raw(),
            );
        }
        status.check()?;
        Ok(Some(joined))
    }

    /// A vector whose length is not known.
    pub(crate) fn unknown_vector(&self) -> Option<Shape> {
        // The largest size is -1 as a signed number, TensorFlow's mark of an unknown dimension; the C API of 1.15
        // has no other way to make one.
        // SAFETY: the context is valid; the handle that comes back is ours.
        let raw = unsafe {
            self.api
                .TF_ShapeInferenceContextVectorFromSize(self.raw, usize::MAX)
        };
        Some(Shape { api: self.api, raw })
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

    /// States the shape of output number `at`. Where TensorFlow does not take it (1.15 takes the first output only), the
    /// output stays unknown.
    pub(crate) fn set(&self, at: i32, shape: &Option<Shape>) -> Result<()> {
        let Some(shape) = shape else { return Ok(()) };
        let status = Status::new(self.api);
        // SAFETY: the context is valid, shape and status are ours.
        unsafe {
            self.api.TF_ShapeInferenceContextSetOutput(
                self.raw,
                at as c_int,
                shape.raw,
                status.raw(),
            );
        }
        Ok(())
    }

    /// Refuses an input whose rank is known and is not `rank`.
    pub(crate) fn expect_rank(&self, at: i32, name: &str, rank: i64) -> Result<Option<Shape>> {
        let shape = self.input(at)?;
        match self.rank(&shape) {
            Some(found) if found != rank => Err(Error::invalid(format!(
                "{name} must have rank {rank}, but has rank {found}"
            ))),
            _ => Ok(shape),
        }
    }

    /// Refuses two sizes that are both known and differ.
    pub(crate) fn expect_equal(
        &self,
        what: &str,
        one: Option<i64>,
        other: Option<i64>,
    ) -> Result<()> {
        match (one, other) {
            (Some(one), Some(other)) if one != other => Err(Error::invalid(format!(
                "{what} must agree, but are {one} and {other}"
            ))),
            _ => Ok(()),
        }
    }
}
