"""Adam for tables, with the numbers of tf.train.AdamOptimizer: each step moves all rows."""

from typing import Union

import tensorflow as tf

from mx_rec.optimizers.base import ByAddress, register
from mx_rec.optimizers.lazy_adam import ADAM_CHECKS, CustomizedLazyAdam
from mx_rec.validator.validator import Bool, checked


class CustomizedAdam(CustomizedLazyAdam):
    """Adam as tf.train.AdamOptimizer has it for sparse gradients: one step for each row.

    The formula is that of LazyAdam, with g = 0 for rows outside of the batch: their moments decay
    and they move, too. A step takes time for the rows of the batch: the others wait, and whoever
    reads one adds what it has missed.
    """

    rule = "adam"


class CustomizedAdamByAddress(ByAddress, CustomizedAdam):
    """Adam for tables with dynamic expansion; see ByAddress."""


@checked(**ADAM_CHECKS, use_fusion_optim=Bool())
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9,
                          beta2: float = 0.999, epsilon: float = 1e-8, name: str = "Adam",
                          use_fusion_optim: bool = False) -> CustomizedAdam:
    """Creates an Adam optimizer for tables, with the numbers of tf.train.AdamOptimizer.

    Arguments, ranges and errors are those of `mx_rec.optimizers.lazy_adam.create_hash_optimizer`.
    """
    del use_fusion_optim
    return register(CustomizedAdam(learning_rate, beta1, beta2, epsilon, name))


@checked(**ADAM_CHECKS)
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, name: str = "AdamByAddress") -> CustomizedAdamByAddress:
    """Creates an Adam optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`; it is tables with a preset
    size that are refused.
    """
    return register(CustomizedAdamByAddress(learning_rate, beta1, beta2, epsilon, name))
