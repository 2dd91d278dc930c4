//! `TF_Tensor`: inputs that are read in place, outputs that are written in place.

use super::buffers::{self, Buffer};
use crate::guard::guarded;
use crate::op_def::split;
use crate::sys::{self, TensorFlow};
use mx_rec_kernels::{Error, Kind, Lease, Result};
use smallvec::SmallVec;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

/// A type that a tensor's elements have in memory.
///
/// # Safety
/// `DTYPE` must be TensorFlow's number of a type with this layout, for which every bit pattern is a
/// value.
pub(crate) unsafe trait Element: Copy + 'static {
    /// TensorFlow's number.
    const DTYPE: sys::TF_DataType;
    /// TensorFlow's name.
    const NAME: &'static str;
}

// SAFETY: DT_FLOAT is an IEEE single.
unsafe impl Element for f32 {
    const DTYPE: sys::TF_DataType = sys::TF_FLOAT;
    const NAME: &'static str = "float32";
}

// SAFETY: DT_INT32.
unsafe impl Element for i32 {
    const DTYPE: sys::TF_DataType = sys::TF_INT32;
    const NAME: &'static str = "int32";
}

// SAFETY: DT_INT64.
unsafe impl Element for i64 {
    const DTYPE: sys::TF_DataType = sys::TF_INT64;
    const NAME: &'static str = "int64";
}

// SAFETY: DT_UINT8.
unsafe impl Element for u8 {
    const DTYPE: sys::TF_DataType = sys::TF_UINT8;
    const NAME: &'static str = "uint8";
}

/// A shape, without memory of its own up to four dimensions.
pub(crate) type Dims = SmallVec<[i64; 4]>;

/// An owned tensor; deleted when dropped.
struct Owned {
    api: &'static TensorFlow,
    raw: *mut sys::TF_Tensor,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: owned, deleted once.
        unsafe { self.api.TF_DeleteTensor(self.raw) }
    }
}

/// An input of the running op.
pub(crate) struct Input {
    tensor: Owned,
    /// As the op's definition has it.
    spec: &'static str,
}

impl Input {
    /// Takes over a tensor that `TF_GetInput` gave.
    ///
    /// # Safety
    /// `raw` is a live tensor whose only owner is the caller.
    pub(super) unsafe fn new(
        api: &'static TensorFlow,
        raw: *mut sys::TF_Tensor,
        spec: &'static str,
    ) -> Self {
        Self {
            tensor: Owned { api, raw },
            spec,
        }
    }

    /// The name of the input in the op's definition.
    pub(crate) fn name(&self) -> &'static str {
        split(self.spec).0
    }

    /// Whether the elements are `T`.
    pub(crate) fn is<T: Element>(&self) -> bool {
        // SAFETY: a live tensor.
        unsafe { self.tensor.api.TF_TensorType(self.tensor.raw) == T::DTYPE }
    }

    pub(crate) fn rank(&self) -> usize {
        // SAFETY: a live tensor.
        let rank = unsafe { self.tensor.api.TF_NumDims(self.tensor.raw) };
        usize::try_from(rank).unwrap_or(0)
    }

    /// The size of dimension `at`, 0 if there is none.
    pub(crate) fn dim(&self, at: usize) -> i64 {
        match c_int::try_from(at) {
            // SAFETY: a live tensor, and `at` is below its rank.
            Ok(index) if at < self.rank() => unsafe {
                self.tensor.api.TF_Dim(self.tensor.raw, index)
            },
            _ => 0,
        }
    }

    pub(crate) fn dims(&self) -> Dims {
        (0..self.rank()).map(|at| self.dim(at)).collect()
    }

    /// Its shape with one dimension behind it.
    pub(crate) fn dims_and(&self, last: usize) -> Dims {
        let mut dims = self.dims();
        dims.push(last as i64);
        dims
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not `T`.
    pub(crate) fn values<T: Element>(&self) -> Result<&[T]> {
        let (data, len) = (self.data::<T>()?, self.len::<T>());
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: `len` elements of type T lie at `data`, which is aligned and not null, and the
        // tensor lives as long as `self`. Nobody writes to them meanwhile: TensorFlow changes no
        // input of a running op but the memory of a variable of the old kind, of which ops get
        // copies (python/mx_rec/ops/copies.py).
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// How many elements of type T the tensor's bytes are.
    fn len<T: Element>(&self) -> usize {
        // SAFETY: a live tensor.
        let bytes = unsafe { self.tensor.api.TF_TensorByteSize(self.tensor.raw) };
        bytes / size_of::<T>()
    }

    /// Where the elements are: aligned, and not null but for an empty tensor.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not `T`.
    fn data<T: Element>(&self) -> Result<*const T> {
        if !self.is::<T>() {
            return Err(Error::invalid(format!(
                "{} must be {}",
                self.name(),
                T::NAME
            )));
        }
        // SAFETY: a live tensor.
        let data = unsafe { self.tensor.api.TF_TensorData(self.tensor.raw) }.cast::<T>();
        if self.len::<T>() > 0 && (data.is_null() || !data.is_aligned()) {
            return Err(
                Error::new(Kind::Internal, "a tensor is not aligned to its elements")
                    .with("input", self.name()),
            );
        }
        Ok(data)
    }

    /// The one element of a scalar.
    ///
    /// # Errors
    /// `InvalidArgument` if the input is not a scalar of `T`.
    pub(crate) fn scalar<T: Element>(&self) -> Result<T> {
        let data = self.data::<T>()?;
        if self.rank() != 0 || self.len::<T>() != 1 {
            return Err(Error::invalid(format!("{} must be a scalar", self.name()))
                .with("shape", format_args!("{:?}", self.dims())));
        }
        // SAFETY: one element of type T lies at `data`, which is aligned and not null. It is copied
        // by one volatile read and no reference to it is made: if it is the memory of a variable, a
        // step beside this one may assign it.
        Ok(unsafe { data.read_volatile() })
    }
}

/// Takes the memory of a large output back when the last tensor that refers to it is gone; `size`
/// is a number.
unsafe extern "C" fn give_back(data: *mut c_void, _: usize, size: *mut c_void) {
    // SAFETY: `Output::new` gave these two values to TensorFlow, which calls this once.
    let buffer = unsafe { Buffer::from_raw(data.cast(), size.addr()) };
    let _ = guarded(|| {
        if let Some(buffer) = buffer {
            buffers::give_back(buffer);
        }
        Ok(())
    });
}

/// Ends a lease when the last tensor that refers to its offsets is gone.
unsafe extern "C" fn end_lease(_: *mut c_void, _: usize, lease: *mut c_void) {
    // SAFETY: `Lent::new` made this box and gave it to TensorFlow, which calls this once.
    let lease = unsafe { Box::from_raw(lease.cast::<Lease>()) };
    let _ = guarded(|| {
        drop(lease);
        Ok(())
    });
}

/// What can become an output of the running op, by [`super::Context::set`].
pub(crate) trait Settable {
    /// A live tensor.
    fn raw(&self) -> *const sys::TF_Tensor;
}

impl Settable for &Input {
    fn raw(&self) -> *const sys::TF_Tensor {
        self.tensor.raw
    }
}

impl<T: Element> Settable for &Output<T> {
    fn raw(&self) -> *const sys::TF_Tensor {
        self.tensor.raw
    }
}

impl<T: Element> Settable for Output<T> {
    fn raw(&self) -> *const sys::TF_Tensor {
        self.tensor.raw
    }
}

impl Settable for Lent {
    fn raw(&self) -> *const sys::TF_Tensor {
        self.tensor.raw
    }
}

/// A new tensor for an output of the running op. TensorFlow sees it when [`super::Context::set`] is
/// called with it.
///
/// Its elements are initialised from the start, as zeros or as numbers of an earlier output: safe
/// code may read what it has not written.
pub(crate) struct Output<T> {
    tensor: Owned,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: TensorFlow counts references to a tensor's memory atomically, and whoever has the only
// `Output` of a tensor may use and delete it on any thread.
unsafe impl<T: Element + Send> Send for Output<T> {}

impl<T: Element> Output<T> {
    /// A tensor of shape `dims` with unspecified elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a negative dimension, `ResourceExhausted` if there is no memory.
    pub(crate) fn new(api: &'static TensorFlow, dims: &[i64]) -> Result<Self> {
        let exhausted = || {
            Error::new(Kind::ResourceExhausted, "there is no memory for an output")
                .with("shape", format_args!("{dims:?}"))
        };
        let mut len = 1usize;
        for &dim in dims {
            let dim = usize::try_from(dim).map_err(|_| {
                Error::invalid("a dimension is negative").with("shape", format_args!("{dims:?}"))
            })?;
            len = len.checked_mul(dim).ok_or_else(exhausted)?;
        }
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(exhausted)?;
        let rank = c_int::try_from(dims.len()).map_err(|_| exhausted())?;
        let raw = if bytes < buffers::LARGE {
            // SAFETY: `dims` holds `rank` sizes, and `bytes` is what they need.
            unsafe { api.TF_AllocateTensor(T::DTYPE, dims.as_ptr(), rank, bytes) }
        } else {
            let (data, size) = buffers::take(bytes).ok_or_else(exhausted)?.into_raw();
            // SAFETY: as above; `data` has at least `bytes` bytes and is aligned far beyond what
            // TensorFlow asks for, so that it is not copied. TensorFlow calls `give_back` once,
            // with the pointer and the size given here.
            unsafe {
                api.TF_NewTensor(
                    T::DTYPE,
                    dims.as_ptr(),
                    rank,
                    data.cast(),
                    bytes,
                    Some(give_back),
                    std::ptr::without_provenance_mut(size),
                )
            }
        };
        if raw.is_null() {
            return Err(exhausted());
        }
        let tensor = Owned { api, raw };
        // SAFETY: a live tensor.
        let data = unsafe { api.TF_TensorData(raw) }.cast::<T>();
        if len > 0 && (data.is_null() || !data.is_aligned()) {
            return Err(exhausted());
        }
        if len > 0 && bytes < buffers::LARGE {
            // SAFETY: `len` elements of type T have room at `data`, nobody else has seen them, and
            // zero bytes are a value of T. What is not initialised must not be handed out as `&mut
            // [T]`; larger outputs lie in initialised memory.
            unsafe { data.write_bytes(0, len) };
        }
        Ok(Self {
            tensor,
            len,
            element: PhantomData,
        })
    }

    /// The elements, to be written.
    pub(crate) fn values(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: `new` checked that the data is there and aligned, and saw to it that it is
        // initialised; nobody else has seen the tensor, and `&mut self` makes this the only access.
        unsafe {
            let data = self.tensor.api.TF_TensorData(self.tensor.raw).cast::<T>();
            std::slice::from_raw_parts_mut(data, self.len)
        }
    }
}

/// A tensor that is the offsets of a lease, in the lease's own memory. The lease ends when the last
/// tensor that refers to it is gone. Others read the memory meanwhile, so there is no access to it
/// here.
pub(crate) struct Lent {
    tensor: Owned,
}

impl Lent {
    /// The offsets of a lease as a vector.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no memory.
    pub(crate) fn new(api: &'static TensorFlow, lease: Lease) -> Result<Self> {
        let len = lease.offsets().len();
        let dims = [len as i64];
        if len == 0 {
            // TensorFlow gives an empty tensor other memory at every turn: it could never be known
            // again.
            let Output { tensor, .. } = Output::<i64>::new(api, &dims)?;
            return Ok(Self { tensor });
        }
        let (data, bytes) = (lease.offsets().as_ptr(), size_of_val(lease.offsets()));
        let lease = Box::into_raw(Box::new(lease));
        // SAFETY: `data` has `len` numbers, is aligned to a cache line, so that it is not copied,
        // and lives until TensorFlow calls `end_lease`, which it does once. TensorFlow never writes
        // to the memory of such a tensor: it takes it as not its own and does not reuse it for
        // outputs (`OwnsMemory` of its buffer, in 1.15 and 2.x).
        let raw = unsafe {
            api.TF_NewTensor(
                i64::DTYPE,
                dims.as_ptr(),
                1,
                data.cast_mut().cast(),
                bytes,
                Some(end_lease),
                lease.cast(),
            )
        };
        if raw.is_null() {
            return Err(
                Error::new(Kind::ResourceExhausted, "there is no memory for an output")
                    .with("shape", format_args!("{dims:?}")),
            );
        }
        Ok(Self {
            tensor: Owned { api, raw },
        })
    }
}
