"""Gradient descent for tables."""

from typing import Dict, Optional, Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, TableOptimizer, register, scalars
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Float, Text, checked


class CustomizedGradientDescent(TableOptimizer, tf.compat.v1.train.GradientDescentOptimizer):
    """Gradient descent: w = w - lr (g + weight_decay w), g being the summed gradient of the row.

    Ordinary variables are updated by TensorFlow's own GradientDescentOptimizer, which knows no
    weight decay: with one they are refused.
    """

    rule = "sgd"
    dense_optimizer = tf.compat.v1.train.GradientDescentOptimizer

    def __init__(self, learning_rate: Union[float, tf.Tensor], use_locking: bool, name: str,
                 weight_decay: Optional[float]) -> None:
        super().__init__(learning_rate, use_locking=use_locking, name=name)
        self._weight_decay = weight_decay or 0.0
        if self._weight_decay:
            self.dense_optimizer = None

    def _prepare_numbers(self) -> Dict[str, tf.Tensor]:
        self._prepare()
        return scalars(lr=self._learning_rate, weight_decay=self._weight_decay)


class CustomizedGradientDescentByAddr(ByAddress, CustomizedGradientDescent):
    """Gradient descent for tables with dynamic expansion; see ByAddress."""


@checked(learning_rate=LearningRate(), use_locking=Bool(), name=Text(1, 200),
         use_fusion_optim=Bool(), weight_decay=Float(1e-5, 1e-2, optional=True))
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor], use_locking: bool = False,
                          name: str = "GradientDescent", use_fusion_optim: bool = False,
                          weight_decay: Optional[float] = None) -> CustomizedGradientDescent:
    """Creates a gradient descent optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        use_locking: Locks for updates of ordinary variables; tables need none.
        name: 1-200 characters.
        use_fusion_optim: Accepted and without effect: an update is one op in any case.
        weight_decay: None, or a float in [1e-5, 1e-2].

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    del use_fusion_optim
    return register(CustomizedGradientDescent(learning_rate, use_locking, name, weight_decay))


@checked(learning_rate=LearningRate(), weight_decay=Float(0, 1), use_locking=Bool(),
         name=Text(1, 200))
def create_hash_optimizer_by_addr(
        learning_rate: Union[float, tf.Tensor], weight_decay: float = 0.0001,
        use_locking: bool = False,
        name: str = "GradientDescentByAddr") -> CustomizedGradientDescentByAddr:
    """Creates a gradient descent optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`, but for `weight_decay`, a
    float in [0, 1]; it is tables with a preset size that are refused.
    """
    return register(CustomizedGradientDescentByAddr(learning_rate, use_locking, name,
                                                    weight_decay))
