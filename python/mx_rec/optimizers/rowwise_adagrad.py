"""Adagrad for tables with one accumulator for a row."""

from typing import Dict, Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, TableOptimizer, register, scalars
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Float, Text, checked


class CustomizedRowwiseAdagrad(TableOptimizer):
    """Row-wise Adagrad: acc = acc + mean(g^2); w = w - lr g / (sqrt(acc) + epsilon).

    g is the summed gradient of the row, its mean is over the columns; as EXACT_ROWWISE_ADAGRAD of
    FBGEMM. The slot takes 4 bytes a row.
    """

    rule = "rowwise_adagrad"

    def __init__(self, learning_rate: Union[float, tf.Tensor], initial_accumulator_value: float,
                 epsilon: float, name: str) -> None:
        super().__init__(False, name)
        self._learning_rate = learning_rate
        self._initial_accumulator_value = initial_accumulator_value
        self._epsilon = epsilon

    def _prepare_numbers(self) -> Dict[str, tf.Tensor]:
        return scalars(lr=self._learning_rate, initial_accumulator=self._initial_accumulator_value,
                       epsilon=self._epsilon)


class CustomizedRowwiseAdagradByAddress(ByAddress, CustomizedRowwiseAdagrad):
    """Row-wise Adagrad for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), initial_accumulator_value=Float(0, 1),
         epsilon=Float(above=0, most=1), name=Text(1, 200))
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001,
                          initial_accumulator_value: float = 0.0, epsilon: float = 1e-8,
                          name: str = "RowwiseAdagrad") -> CustomizedRowwiseAdagrad:
    """Creates a row-wise Adagrad optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        initial_accumulator_value: Start of the accumulators, in [0, 1].
        epsilon: In (0, 1].
        name: 1-200 characters.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedRowwiseAdagrad(learning_rate, initial_accumulator_value, epsilon,
                                             name))


@checked(learning_rate=LearningRate(), initial_accumulator_value=Float(0, 1),
         epsilon=Float(above=0, most=1), name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8, name: str = "RowwiseAdagrad") -> CustomizedRowwiseAdagradByAddress:
    """Creates a row-wise Adagrad optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`; it is tables with a preset
    size that are refused.
    """
    return register(CustomizedRowwiseAdagradByAddress(learning_rate, initial_accumulator_value,
                                                      epsilon, name))
