"""The one layer that knows versions of TensorFlow: private names and differences."""
