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

    Arguments, ranges and errors are those of mx_rec.optimizers.rmsprop;
    it is tables with a preset size that are refused.
    """
    return register(CustomizedRMSPropByAddress(learning_rate, decay, momentum, epsilon, False,
                                               centered, name))
