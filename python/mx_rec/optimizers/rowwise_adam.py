"""Adam for tables whose second moment is one float for a row."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import register
from mx_rec.optimizers.lazy_adam import CustomizedLazyAdam
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Float, Text, checked


class CustomizedRowwiseAdam(CustomizedLazyAdam):
    """LazyAdam with one second moment for a row: v = beta2 v + (1 - beta2) mean(g^2).

    Everything else is as in CustomizedLazyAdam. The mean is over the columns, as in
    PARTIAL_ROWWISE_ADAM of FBGEMM.
    """

    rule = "rowwise_adam"


@checked(learning_rate=LearningRate(), beta1=Float(above=0, below=1), beta2=Float(0, 1),
         epsilon=Float(above=0, most=1), name=Text(1, 200))
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9,
                          beta2: float = 0.999, epsilon: float = 1e-8,
                          name: str = "RowwiseAdam") -> CustomizedRowwiseAdam:
    """Creates a row-wise Adam optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        beta1: Decay of the first moment, in (0, 1).
        beta2: Decay of the second moment, in [0, 1].
        epsilon: In (0, 1].
        name: 1-200 characters.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    return register(CustomizedRowwiseAdam(learning_rate, beta1, beta2, epsilon, name))
