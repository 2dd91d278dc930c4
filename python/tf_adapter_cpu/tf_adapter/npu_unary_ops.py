"""Activations of the device, made of TensorFlow's own ops."""

import math
import sys

import tensorflow as tf

_FACTOR = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def gelu(features, name=None):
    """Returns the Gaussian error linear unit of a tensor, by the approximation with tanh.

    Args:
        features: A float tensor of any shape.
        name: A name for the op.

    Returns:
        x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), of the same shape and dtype.
    """
    with tf.name_scope(name or "gelu"):
        x = tf.convert_to_tensor(features)
        return 0.5 * x * (1 + tf.tanh(_FACTOR * (x + _CUBIC * x * x * x)))


def gelu_grad(dy, x, y, name=None):
    """Returns the gradient of `gelu`.

    Args:
        dy: The gradient of its output, of the shape and dtype of `x`.
        x: Its input.
        y: Its output, which is not needed.
        name: A name for the op.

    Returns:
        The gradient of `x`.
    """
    del y
    with tf.name_scope(name or "gelu_grad"):
        x = tf.convert_to_tensor(x)
        tanh = tf.tanh(_FACTOR * (x + _CUBIC * x * x * x))
        slope = _FACTOR * (1 + 3 * _CUBIC * x * x)
        return dy * 0.5 * (1 + tanh + x * (1 - tanh * tanh) * slope)


# The vendor's module has its ops in an attribute of its own name.
npu_unary_ops = sys.modules[__name__]
