"""LazyAdam for tables with dynamic expansion."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, register
from mx_rec.optimizers.lazy_adam import CustomizedLazyAdam
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Float, Text, checked


class CustomizedLazyAdamByAddress(ByAddress, CustomizedLazyAdam):
    """LazyAdam for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), beta1=Float(above=0, below=1), beta2=Float(0, 1),
         epsilon=Float(above=0, most=1), name=Text(1, 200))
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, name: str = "LazyAdamByAddress") -> CustomizedLazyAdamByAddress:
    """Creates a LazyAdam optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of mx_rec.optimizers.lazy_adam;
    it is tables with a preset size that are refused.
    """
    return register(CustomizedLazyAdamByAddress(learning_rate, beta1, beta2, epsilon, name))
