"""The FTRL of older releases that starts from the values of the variable or table."""

from typing import Optional, Union

import tensorflow as tf

from mx_rec.optimizers.ftrl_t import _CHECKS, CustomizedFtrlT
from mx_rec.validator.validator import checked


class CustomizedFtrlTZ(CustomizedFtrlT):
    """As CustomizedFtrlT, but w is the variable itself."""

    keeps_weights = False


@checked(**_CHECKS)
def create_ftrl_dense_optimizer(learning_rate: Union[float, tf.Tensor], use_locking: bool = False,
                                name: str = "Ftrl_t_dense", alpha: float = 0.06,
                                beta: float = 1.0, lambda1: float = 0, lambda2: float = 0,
                                epsilon: float = 0, grad_factor: float = 0,
                                z_name: Optional[str] = None, n_name: Optional[str] = None,
                                g_name: Optional[str] = None) -> CustomizedFtrlTZ:
    """Creates the optimizer; arguments and errors as mx_rec.optimizers.ftrl_t."""
    return CustomizedFtrlTZ(learning_rate, use_locking, name, alpha, beta, lambda1, lambda2,
                            epsilon, grad_factor, (z_name, n_name, g_name))


create_hash_optimizer = create_ftrl_dense_optimizer
