"""LazyAdam of TensorFlow's own ops: tf.contrib's, or the same rule where there is no contrib."""

import tensorflow as tf

tf1 = tf.compat.v1


class LazyAdam(tf1.train.AdamOptimizer):
    """Adam that leaves the rows, and their moments, alone of which a step has no gradient."""

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        """Updates the rows that `grad` names; the caller has summed what repeats.

        Args:
            grad: Values (u, dim) at distinct indices (u).
            var: The variable, (n, dim).

        Returns:
            The op that updates the variable and both moments.
        """
        first_power, second_power = self._get_beta_accumulators()
        rate = self._lr * tf.sqrt(1.0 - second_power) / (1.0 - first_power)
        first, second = self.get_slot(var, "m"), self.get_slot(var, "v")
        mean = (self._beta1 * tf.gather(first, grad.indices)
                + (1.0 - self._beta1) * grad.values)
        square = (self._beta2 * tf.gather(second, grad.indices)
                  + (1.0 - self._beta2) * tf.square(grad.values))
        step = rate * mean / (tf.sqrt(square) + self._epsilon)
        return tf.group(tf1.scatter_update(first, grad.indices, mean),
                        tf1.scatter_update(second, grad.indices, square),
                        tf1.scatter_sub(var, grad.indices, step))


def make_lazy_adam(rate: float) -> tf1.train.Optimizer:
    """Returns tf.contrib's LazyAdamOptimizer where there is one (TensorFlow 1.x), else LazyAdam.

    Args:
        rate: The learning rate.

    Returns:
        The optimizer, for variables of TensorFlow.
    """
    if tf.__version__.startswith("1."):
        return tf.contrib.opt.LazyAdamOptimizer(rate)
    return LazyAdam(rate)
