"""Operations of the device that have a meaning on CPUs."""

import tensorflow as tf


def initialize_system(name=None):
    """Returns an op that does nothing: there is no device to start."""
    return tf.no_op(name=name)


def shutdown_system(name=None):
    """Returns an op that does nothing: there is no device to stop."""
    return tf.no_op(name=name)


def dropout(x, keep_prob, noise_shape=None, seed=None, name=None):
    """Returns `tf.nn.dropout` of a float tensor of any shape.

    Args:
        x: The tensor.
        keep_prob: The probability that an element is kept, in (0, 1].
        noise_shape: Shape of the mask, that of `x` by default.
        seed: An int seed.
        name: A name for the op.
    """
    return tf.compat.v1.nn.dropout(x, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed,
                                   name=name)
