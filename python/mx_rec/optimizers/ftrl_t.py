"""FTRL with averaged gradients and decaying state, of older releases."""

from typing import Any, Callable, List, Optional, Tuple, Union

import tensorflow as tf

from mx_rec.optimizers.customized import CustomizedOptimizer
from mx_rec.tensorflow.names import gen_state_ops, resource_variable_ops
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Number, Text, checked

# Below it, l1 regularisation is off.
_LEAST_LAMBDA1 = 1e-10

_CHECKS = {
    "learning_rate": LearningRate(), "use_locking": Bool(), "name": Text(1, 200),
    "alpha": Number(above=0), "beta": Number(0), "lambda1": Number(0), "lambda2": Number(0),
    "epsilon": Number(0, 1), "grad_factor": Number(0, 1),
    "z_name": Text(1, 255, optional=True), "n_name": Text(1, 255, optional=True),
    "g_name": Text(1, 255, optional=True),
}


class CustomizedFtrlT(tf.compat.v1.train.Optimizer, CustomizedOptimizer):
    """FTRL of older releases, with elementwise slots z, n, g and w that start at 0.

    g' = grad_factor g + (1 - grad_factor) gradient; r = (sqrt(n + g'^2) - sqrt(n)) / alpha;
    z' = (1 - epsilon) z + g' - r w; n' = (1 - epsilon) n + g'^2; and the weight becomes
    -z' / ((beta + sqrt(n')) / alpha + lambda2). With lambda1 > 0 the numerator is
    lambda1 sign(z') - z', and the weight 0 where |z'| <= lambda1. w is the weight that the last
    update left. Rows of a variable that a sparse gradient does not name stay as they are.
    """

    # Whether w is a slot, which starts at 0 whatever the variable starts with.
    keeps_weights = True

    def __init__(self, learning_rate: Union[float, tf.Tensor], use_locking: bool, name: str,
                 alpha: float, beta: float, lambda1: float, lambda2: float, epsilon: float,
                 grad_factor: float, slot_names: Tuple[Optional[str], ...]) -> None:
        self._get_name(name)
        super().__init__(use_locking, self.unique_name)
        self._learning_rate = learning_rate
        self._numbers = (alpha, beta, lambda1, lambda2, epsilon, grad_factor)
        names = [given or letter for given, letter in zip(slot_names, "zng")]
        self._slot_names = names + ["w"] if self.keeps_weights else names
        self._slot_num = len(self._slot_names)
        self._derivative = 2

    def get_slot_init_values(self) -> List[float]:
        """Returns what slots start with: zeros."""
        return [0.0] * self.slot_num

    def _create_slots(self, var_list: List[Any]) -> None:
        for variable in var_list:
            for slot in self._slot_names:
                self._zeros_slot(variable, slot, self._name + "/" + slot)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        return self._update(grad, var, lambda value: value,
                            lambda ref, value: tf.compat.v1.assign(ref, value).op)

    _resource_apply_dense = _apply_dense

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        return self._update(
            grad.values, var, lambda value: tf.gather(value, grad.indices),
            lambda ref, value: gen_state_ops.scatter_update(ref, grad.indices, value).op)

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any,
                               indices: tf.Tensor) -> tf.Operation:
        return self._update(
            grad, handle, lambda value: tf.gather(value, indices),
            lambda ref, value: resource_variable_ops.resource_scatter_update(
                ref.handle, indices, value))

    def _update(self, grad: tf.Tensor, var: Any, read: Callable[[Any], tf.Tensor],
                write: Callable[[Any, tf.Tensor], tf.Operation]) -> tf.Operation:
        """Adds one update; `read` and `write` take a variable's elements and set them."""
        alpha, beta, lambda1, lambda2, epsilon, factor = [
            tf.cast(number, var.dtype.base_dtype) for number in self._numbers]
        slots = [self.get_slot(var, slot) for slot in self._slot_names]
        old = [read(slot) for slot in slots]
        weight = old[3] if self.keeps_weights else read(var)
        z_old, n_old, g_old = old[:3]
        mean = factor * g_old + (1 - factor) * grad
        rate = (tf.sqrt(n_old + tf.square(mean)) - tf.sqrt(n_old)) / alpha
        z_new = (1 - epsilon) * z_old + mean - rate * weight
        n_new = (1 - epsilon) * n_old + tf.square(mean)
        divisor = (beta + tf.sqrt(n_new)) / alpha + lambda2
        new = -z_new / divisor
        if self._numbers[2] > _LEAST_LAMBDA1:
            kept = tf.cast(tf.abs(z_new) > lambda1, z_new.dtype)
            new = kept * (lambda1 * tf.sign(z_new) - z_new) / divisor
        values = [z_new, n_new, mean, new][:len(slots)]
        # Everything is read before anything is written.
        with tf.control_dependencies(values + [new]):
            updates = [write(slot, value) for slot, value in zip(slots, values)]
            return tf.group(write(var, new), *updates)


@checked(**_CHECKS)
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor], use_locking: bool = False,
                          name: str = "Ftrl_t", alpha: float = 0.06, beta: float = 1.0,
                          lambda1: float = 0, lambda2: float = 0, epsilon: float = 0,
                          grad_factor: float = 0, z_name: Optional[str] = None,
                          n_name: Optional[str] = None,
                          g_name: Optional[str] = None) -> CustomizedFtrlT:
    """Creates the FTRL of older releases.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10]; not part of the formula.
        use_locking: Without effect.
        name: 1-200 characters.
        alpha: Greater than 0.
        beta: At least 0.
        lambda1: At least 0: l1 regularisation.
        lambda2: At least 0: l2 regularisation.
        epsilon: In [0, 1]: how much of z and n goes with every update.
        grad_factor: In [0, 1]: weight of the last gradient in the mean.
        z_name: 1-255 characters: a slot's name.
        n_name: 1-255 characters: a slot's name.
        g_name: 1-255 characters: a slot's name.

    Returns:
        The optimizer, for tables and ordinary variables.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type.
    """
    return CustomizedFtrlT(learning_rate, use_locking, name, alpha, beta, lambda1, lambda2,
                           epsilon, grad_factor, (z_name, n_name, g_name))
