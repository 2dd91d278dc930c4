"""Adagrad for tables."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, TableOptimizer, register
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Float, Text, checked


class CustomizedAdagrad(TableOptimizer, tf.compat.v1.train.AdagradOptimizer):
    """Adagrad: acc = acc + g^2; w = w - lr g / sqrt(acc), g being the summed gradient of the row.

    Ordinary variables are updated by TensorFlow's own AdagradOptimizer.
    """

    dense_optimizer = tf.compat.v1.train.AdagradOptimizer


class CustomizedAdagradByAddress(ByAddress, CustomizedAdagrad):
    """Adagrad for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), initial_accumulator_value=Float(above=0, most=1),
         use_locking=Bool(), name=Text(1, 200))
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001,
                          initial_accumulator_value: float = 0.9, use_locking: bool = False,
                          name: str = "Adagrad") -> CustomizedAdagrad:
    """Creates an Adagrad optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        initial_accumulator_value: Start of the accumulators, in (0, 1].
        use_locking: Locks for updates of ordinary variables; tables need none.
        name: 1-200 characters.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedAdagrad(learning_rate, initial_accumulator_value, use_locking, name))


@checked(learning_rate=LearningRate(), initial_accumulator_value=Float(above=0, most=1),
         name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, initial_accumulator_value: float = 0.9,
        name: str = "Adagrad") -> CustomizedAdagradByAddress:
    """Creates an Adagrad optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`; it is tables with a preset
    size that are refused.
    """
    return register(CustomizedAdagradByAddress(learning_rate, initial_accumulator_value, False,
                                               name))
