"""RMSProp for tables, with momentum, plain and centered."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, TableOptimizer, register
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Number, Text, checked


class CustomizedRMSProp(TableOptimizer, tf.compat.v1.train.RMSPropOptimizer):
    """RMSProp as TensorFlow's for sparse gradients: one step for each row of the batch.

    rms = decay rms + (1 - decay) g^2; mom = momentum mom + lr g / sqrt(rms + epsilon);
    w = w - mom. Centered, with mg = decay mg + (1 - decay) g, the root is that of
    rms + epsilon - mg^2. g is the summed gradient of the row; rms starts at 1, mg and mom at 0.
    Ordinary variables are updated by TensorFlow's own RMSPropOptimizer.
    """

    dense_optimizer = tf.compat.v1.train.RMSPropOptimizer


class CustomizedRMSPropByAddress(ByAddress, CustomizedRMSProp):
    """RMSProp for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), decay=Number(0, 1), momentum=Number(0, 1),
         epsilon=Number(above=0, most=1), use_locking=Bool(), centered=Bool(), name=Text(1, 200))
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001, decay: float = 0.9,
                          momentum: float = 0.0, epsilon: float = 1e-10,
                          use_locking: bool = False, centered: bool = False,
                          name: str = "RMSProp") -> CustomizedRMSProp:
    """Creates an RMSProp optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        decay: Decay of the averages of squares and, centered, of gradients, in [0, 1].
        momentum: In [0, 1].
        epsilon: Added under the root, in (0, 1].
        use_locking: Locks for updates of ordinary variables; tables need none.
        centered: Whether to divide by the root of the variance instead of that of the average of
            squares.
        name: 1-200 characters.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedRMSProp(learning_rate, decay, momentum, epsilon, use_locking,
                                      centered, name))


@checked(learning_rate=LearningRate(), decay=Number(0, 1), momentum=Number(0, 1),
         epsilon=Number(above=0, most=1), centered=Bool(), name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, decay: float = 0.9, momentum: float = 0.0,
        epsilon: float = 1e-10, centered: bool = False,
        name: str = "RMSPropByAddress") -> CustomizedRMSPropByAddress:
    """Creates an RMSProp optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`; it is tables with a preset
    size that are refused.
    """
    return register(CustomizedRMSPropByAddress(learning_rate, decay, momentum, epsilon, False,
                                               centered, name))
