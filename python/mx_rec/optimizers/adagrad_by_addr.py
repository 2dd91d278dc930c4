"""Adagrad for tables with dynamic expansion."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.adagrad import CustomizedAdagrad
from mx_rec.optimizers.base import ByAddress, register
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Float, Text, checked


class CustomizedAdagradByAddress(ByAddress, CustomizedAdagrad):
    """Adagrad for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), initial_accumulator_value=Float(above=0, most=1),
         name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, initial_accumulator_value: float = 0.9,
        name: str = "Adagrad") -> CustomizedAdagradByAddress:
    """Creates an Adagrad optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of mx_rec.optimizers.adagrad;
    it is tables with a preset size that are refused.
    """
    return register(CustomizedAdagradByAddress(learning_rate, initial_accumulator_value, False,
                                               name))
