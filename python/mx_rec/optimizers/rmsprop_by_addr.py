"""RMSProp for tables with dynamic expansion."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, register
from mx_rec.optimizers.rmsprop import CustomizedRMSProp
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Number, Text, checked


class CustomizedRMSPropByAddress(ByAddress, CustomizedRMSProp):
    """RMSProp for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), decay=Number(0, 1), momentum=Number(0, 1),
         epsilon=Number(above=0, most=1), centered=Bool(), name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, decay: float = 0.9, momentum: float = 0.0,
        epsilon: float = 1e-10, centered: bool = False,
        name: str = "RMSPropByAddress") -> CustomizedRMSPropByAddress:
    """Creates an RMSProp optimizer for tables with dynamic expansion.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        decay: Decay of the averages of squares and, centered, of gradients, in [0, 1].
        momentum: In [0, 1].
        epsilon: Added under the root, in (0, 1].
        centered: Whether to divide by the root of the variance instead of that of the average of
            squares.
        name: 1-200 characters.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables have a preset
            size.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedRMSPropByAddress(learning_rate, decay, momentum, epsilon, False,
                                               centered, name))
