"""Momentum for tables."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import TableOptimizer, register
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Float, Text, checked


class CustomizedMomentum(TableOptimizer, tf.compat.v1.train.MomentumOptimizer):
    """Momentum: m = mom m + g; w = w - lr m, or with Nesterov w = w - lr (g + mom m).

    g is the summed gradient of the row. Ordinary variables are updated by TensorFlow's own
    MomentumOptimizer.
    """

    dense_optimizer = tf.compat.v1.train.MomentumOptimizer


@checked(learning_rate_input=LearningRate(), mom=Float(0, 1), enable_locking=Bool(),
         optimizer_name=Text(1, 200), enable_nesterov=Bool())
def create_hash_optimizer(learning_rate_input: Union[float, tf.Tensor] = 0.001, mom: float = 0.9,
                          enable_locking: bool = False, optimizer_name: str = "momentum",
                          enable_nesterov: bool = False) -> CustomizedMomentum:
    """Creates a momentum optimizer for tables.

    Args:
        learning_rate_input: A float or a scalar tensor in [0, 10].
        mom: The momentum, in [0, 1].
        enable_locking: Locks for updates of ordinary variables; tables need none.
        optimizer_name: 1-200 characters.
        enable_nesterov: Whether to use Nesterov's form.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedMomentum(learning_rate_input, mom, enable_locking, optimizer_name,
                                       enable_nesterov))
