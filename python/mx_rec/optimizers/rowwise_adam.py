"""Adam for tables whose second moment is one float for a row."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, register
from mx_rec.optimizers.lazy_adam import ADAM_CHECKS, CustomizedLazyAdam
from mx_rec.validator.validator import checked


class CustomizedRowwiseAdam(CustomizedLazyAdam):
    """LazyAdam with one second moment for a row: v = beta2 v + (1 - beta2) mean(g^2).

    Everything else is as in CustomizedLazyAdam. The mean is over the columns, as in
    PARTIAL_ROWWISE_ADAM of FBGEMM.
    """

    rule = "rowwise_adam"


class CustomizedRowwiseAdamByAddress(ByAddress, CustomizedRowwiseAdam):
    """Row-wise Adam for tables with dynamic expansion; see ByAddress."""


@checked(**ADAM_CHECKS)
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9,
                          beta2: float = 0.999, epsilon: float = 1e-8,
                          name: str = "RowwiseAdam") -> CustomizedRowwiseAdam:
    """Creates a row-wise Adam optimizer for tables.

    Arguments, ranges and errors are those of `mx_rec.optimizers.lazy_adam.create_hash_optimizer`.
    """
    return register(CustomizedRowwiseAdam(learning_rate, beta1, beta2, epsilon, name))


@checked(**ADAM_CHECKS)
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, name: str = "RowwiseAdam") -> CustomizedRowwiseAdamByAddress:
    """Creates a row-wise Adam optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`; it is tables with a preset
    size that are refused.
    """
    return register(CustomizedRowwiseAdamByAddress(learning_rate, beta1, beta2, epsilon, name))
