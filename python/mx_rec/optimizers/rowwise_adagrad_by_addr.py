"""Row-wise Adagrad for tables with dynamic expansion."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, register
from mx_rec.optimizers.rowwise_adagrad import CustomizedRowwiseAdagrad
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Float, Text, checked


class CustomizedRowwiseAdagradByAddress(ByAddress, CustomizedRowwiseAdagrad):
    """Row-wise Adagrad for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), initial_accumulator_value=Float(0, 1),
         epsilon=Float(above=0, most=1), name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8, name: str = "RowwiseAdagrad") -> CustomizedRowwiseAdagradByAddress:
    """Creates a row-wise Adagrad optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of mx_rec.optimizers.rowwise_adagrad;
    it is tables with a preset size that are refused.
    """
    return register(CustomizedRowwiseAdagradByAddress(learning_rate, initial_accumulator_value,
                                                      epsilon, name))
