"""The check of learning rates, which may be tensors."""

from typing import Any

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.tensorflow.names import tensor_util
from mx_rec.validator.validator import Check, Range, is_float, is_int


class LearningRate(Check):
    """A float, an int or a scalar tensor in [0, 10].

    A tensor whose value is only known in a session (a placeholder, a decayed rate) passes with
    a warning.
    """

    takes_numbers = True
    least = 0.0
    most = 10.0

    def check(self, name: str, value: Any) -> None:
        """Checks type, then bounds as far as they can be known."""
        if isinstance(value, (tf.Tensor, tf.Variable)):
            self._check_tensor(name, value)
            return
        if not is_float(value) and not is_int(value):
            raise ValueError("Invalid parameter type of para '{}', not in ['float', 'int', "
                             "'Tensor']: it is a {}".format(name, type(value).__name__))
        Range(self.least, self.most).check(name, value)

    def _check_tensor(self, name: str, value: Any) -> None:
        if value.shape.rank not in (None, 0):
            raise ValueError("'{}' should be a scalar, but has the shape {}".format(
                name, value.shape))
        if not value.dtype.base_dtype.is_floating:
            raise ValueError("'{}' should be a floating point tensor, but is {}".format(
                name, value.dtype.base_dtype.name))
        known = tensor_util.constant_value(value) if isinstance(value, tf.Tensor) else None
        if known is None:
            logger.warning("the value of '%s' is only known when the session runs; its range "
                           "[%s, %s] is not checked.", name, self.least, self.most)
            return
        Range(self.least, self.most).check(name, float(known))
