"""Gradient descent for tables with dynamic expansion."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, register
from mx_rec.optimizers.gradient_descent import CustomizedGradientDescent
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Float, Text, checked


class CustomizedGradientDescentByAddr(ByAddress, CustomizedGradientDescent):
    """Gradient descent for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), weight_decay=Float(0, 1), use_locking=Bool(),
         name=Text(1, 200))
def create_hash_optimizer_by_addr(
        learning_rate: Union[float, tf.Tensor], weight_decay: float = 0.0001,
        use_locking: bool = False,
        name: str = "GradientDescentByAddr") -> CustomizedGradientDescentByAddr:
    """Creates a gradient descent optimizer for tables with dynamic expansion.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        weight_decay: A float in [0, 1].
        use_locking: Locks for updates of ordinary variables; tables need none.
        name: 1-200 characters.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables have a preset
            size.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedGradientDescentByAddr(learning_rate, use_locking, name,
                                                    weight_decay))
