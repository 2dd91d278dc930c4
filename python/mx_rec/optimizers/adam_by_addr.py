"""Adam for tables with dynamic expansion, with the numbers of tf.train.AdamOptimizer."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.adam import CustomizedAdam
from mx_rec.optimizers.base import ByAddress, register
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Float, Text, checked


class CustomizedAdamByAddress(ByAddress, CustomizedAdam):
    """Adam for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), beta1=Float(above=0, below=1), beta2=Float(0, 1),
         epsilon=Float(above=0, most=1), name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, name: str = "AdamByAddress") -> CustomizedAdamByAddress:
    """Creates an Adam optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of mx_rec.optimizers.adam;
    it is tables with a preset size that are refused.
    """
    return register(CustomizedAdamByAddress(learning_rate, beta1, beta2, epsilon, name))
