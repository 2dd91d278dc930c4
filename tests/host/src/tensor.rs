//! Tensors with values of one type.

use crate::library::load_plugin;
use std::ffi::c_int;
use tensorflow_sys_runtime as tf;

/// A type of values.
pub trait Element: Copy + 'static {
    /// TensorFlow's number for it.
    const TYPE: tf::TF_DataType;
}

impl Element for f32 {
    const TYPE: tf::TF_DataType = tf::TF_DataType::TF_FLOAT;
}
impl Element for i32 {
    const TYPE: tf::TF_DataType = tf::TF_DataType::TF_INT32;
}
impl Element for i64 {
    const TYPE: tf::TF_DataType = tf::TF_DataType::TF_INT64;
}
impl Element for u8 {
    const TYPE: tf::TF_DataType = tf::TF_DataType::TF_UINT8;
}

/// An owned tensor that nobody changes any more.
pub struct Tensor(*mut tf::TF_Tensor);

// SAFETY: TensorFlow counts references to a tensor's memory atomically, and no method changes it.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// A tensor of shape `dims`, in row-major order.
    ///
    /// # Panics
    /// If there are not as many values as `dims` say.
    pub fn new<T: Element>(dims: &[i64], values: &[T]) -> Tensor {
        load_plugin();
        assert_eq!(dims.iter().product::<i64>(), values.len() as i64);
        let bytes = std::mem::size_of_val(values);
        // SAFETY: the dimensions are lent for the call; the memory that comes back has `bytes`
        // bytes, is ours until the tensor is handed out, and is aligned for every type.
        unsafe {
            let raw = tf::TF_AllocateTensor(T::TYPE, dims.as_ptr(), dims.len() as c_int, bytes);
            assert!(!raw.is_null(), "no memory for a tensor");
            if bytes > 0 {
                let to = tf::TF_TensorData(raw).cast::<T>();
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
            }
            Tensor(raw)
        }
    }

    /// A tensor of rank 0.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::new(&[], &[value])
    }

    /// A tensor of rank 1.
    pub fn vector<T: Element>(values: &[T]) -> Tensor {
        Tensor::new(&[values.len() as i64], values)
    }

    /// # Safety
    /// `raw` is a tensor that nobody else deletes.
    pub(crate) unsafe fn own(raw: *mut tf::TF_Tensor) -> Tensor {
        Tensor(raw)
    }

    pub(crate) fn raw(&self) -> *mut tf::TF_Tensor {
        self.0
    }

    /// Its shape.
    pub fn dims(&self) -> Vec<i64> {
        // SAFETY: the tensor is alive, the places are below its rank.
        unsafe {
            let rank = tf::TF_NumDims(self.0);
            (0..rank).map(|at| tf::TF_Dim(self.0, at)).collect()
        }
    }

    /// Its values, in row-major order.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn values<T: Element>(&self) -> &[T] {
        // SAFETY: the tensor is alive, and its memory holds as many values of the type as its bytes
        // say; nobody changes them.
        unsafe {
            assert_eq!(tf::TF_TensorType(self.0), T::TYPE);
            let length = tf::TF_TensorByteSize(self.0) / size_of::<T>();
            if length == 0 {
                return &[];
            }
            std::slice::from_raw_parts(tf::TF_TensorData(self.0).cast::<T>(), length)
        }
    }

    /// The value of a tensor that has one.
    ///
    /// # Panics
    /// If it has several or none, or is of another type.
    pub fn value<T: Element>(&self) -> T {
        let values = self.values::<T>();
        assert_eq!(values.len(), 1);
        values[0]
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: owned, deleted once.
        unsafe { tf::TF_DeleteTensor(self.0) }
    }
}
