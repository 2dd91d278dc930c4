"""The one layer that knows versions of TensorFlow: private names, differences, all patches."""
