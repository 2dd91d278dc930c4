"""FTRL for tables."""

import numbers
from typing import Any, Optional, Union

import tensorflow as tf

from mx_rec.constants.constants import MAX_INT32
from mx_rec.optimizers.base import TableOptimizer, register
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Number, Text, checked


class CustomizedFtrl(TableOptimizer, tf.compat.v1.train.FtrlOptimizer):
    """FTRL-proximal as TensorFlow computes it, also its sign.

    With p = learning_rate_power and g the summed gradient of the row (plus 2 shrinkage w in the
    linear term): acc' = acc + g^2; linear = linear + g - (acc'^-p - acc^-p) / lr w;
    quad = acc'^-p / lr + 2 l2; w = (sign(linear) l1 - linear) / quad if |linear| > l1, else 0.
    Ordinary variables are updated by TensorFlow's own FtrlOptimizer.
    """

    dense_optimizer = tf.compat.v1.train.FtrlOptimizer

    def __init__(self, learning_rate: Union[float, tf.Tensor], use_locking: bool, name: str,
                 **settings: Any) -> None:
        # In 2.x, TensorFlow's own part for dense variables takes no integer.
        if isinstance(learning_rate, numbers.Real):
            learning_rate = float(learning_rate)
        super().__init__(learning_rate, use_locking=use_locking, name=name, **settings)


@checked(learning_rate=LearningRate(), use_locking=Bool(), name=Text(1, 200),
         learning_rate_power=Number(-MAX_INT32, 0),
         initial_accumulator_value=Number(above=0, most=1),
         l1_regularization_strength=Number(0, 1e4), l2_regularization_strength=Number(0, 1e4),
         accum_name=Text(1, 255, optional=True), linear_name=Text(1, 255, optional=True),
         l2_shrinkage_regularization_strength=Number(0, 1e4))
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor], use_locking: bool = False,
                          name: str = "Ftrl", learning_rate_power: float = -0.5,
                          initial_accumulator_value: float = 0.1,
                          l1_regularization_strength: float = 0,
                          l2_regularization_strength: float = 0,
                          accum_name: Optional[str] = None, linear_name: Optional[str] = None,
                          l2_shrinkage_regularization_strength: float = 0) -> CustomizedFtrl:
    """Creates an FTRL optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        use_locking: Locks for updates of ordinary variables; tables need none.
        name: 1-200 characters.
        learning_rate_power: In [-2147483647, 0].
        initial_accumulator_value: Start of the accumulators, in (0, 1].
        l1_regularization_strength: In [0, 1e4].
        l2_regularization_strength: In [0, 1e4].
        accum_name: 1-255 characters: slot name for ordinary variables.
        linear_name: 1-255 characters: slot name for ordinary variables.
        l2_shrinkage_regularization_strength: In [0, 1e4].

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedFtrl(
        learning_rate, use_locking, name, learning_rate_power=learning_rate_power,
        initial_accumulator_value=initial_accumulator_value,
        l1_regularization_strength=l1_regularization_strength,
        l2_regularization_strength=l2_regularization_strength, accum_name=accum_name,
        linear_name=linear_name,
        l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength))
