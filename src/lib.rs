//! The door: what TensorFlow and Python find in the shared library.
