"""Loss scaling, which is TensorFlow's own; apart, as importing tf.contrib takes seconds."""

import tensorflow as tf
from tensorflow.contrib import mixed_precision

from .ranks import need_single_rank


class FixedLossScaleManager(mixed_precision.FixedLossScaleManager):
    """A loss scale that stays.

    Args:
        loss_scale: A number >= 1.
        enable_overflow_check: Whether steps with gradients that are not finite are left out.

    Raises:
        ValueError: If `loss_scale` is less than 1.
    """

    def __init__(self, loss_scale, enable_overflow_check=True):
        super().__init__(loss_scale)
        self._enable_overflow_check = enable_overflow_check

    def get_enable_overflow_check(self):
        """Returns `enable_overflow_check`."""
        return self._enable_overflow_check


class ExponentialUpdateLossScaleManager(mixed_precision.ExponentialUpdateLossScaleManager):
    """`tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager`."""


class NPULossScaleOptimizer(mixed_precision.LossScaleOptimizer):
    """`tf.contrib.mixed_precision.LossScaleOptimizer`, also for missing and sparse gradients.

    Args:
        opt: A `tf.compat.v1.train.Optimizer`.
        loss_scale_manager: A manager of this module or of tf.contrib.
        is_distributed: Whether ranks would agree on leaving a step out.

    Raises:
        NotImplementedError: If there are several ranks and `is_distributed`.
    """

    def __init__(self, opt, loss_scale_manager, is_distributed=False):
        if is_distributed:
            need_single_rank("NPULossScaleOptimizer")
        super().__init__(opt, loss_scale_manager)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Applies the gradients if all are finite, and tells the manager whether they were."""
        grads_and_vars = list(grads_and_vars)
        is_checked = getattr(self._loss_scale_manager, "get_enable_overflow_check", lambda: True)
        if not is_checked():
            return self._opt.apply_gradients(grads_and_vars, global_step, name)
        finite = [tf.reduce_all(tf.math.is_finite(_values(gradient)))
                  for gradient, _ in grads_and_vars if gradient is not None]
        is_finite = tf.reduce_all(finite)
        update = tf.cond(
            is_finite,
            lambda: tf.group(self._opt.apply_gradients(grads_and_vars, global_step, name)),
            tf.no_op)
        return tf.group(update, self._loss_scale_manager.update_loss_scale(is_finite))

    def _down_scale(self, grads_vars, loss_scale):
        """Returns the gradients divided by the loss scale."""
        inverse = 1 / loss_scale

        def scaled(gradient):
            if gradient is None:
                return None
            values = _values(gradient)
            values = values * tf.cast(inverse, values.dtype)
            if isinstance(gradient, tf.IndexedSlices):
                return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
            return values

        return [(scaled(gradient), variable) for gradient, variable in grads_vars]


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
