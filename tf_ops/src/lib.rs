//! The adapter: everything that knows TensorFlow.
