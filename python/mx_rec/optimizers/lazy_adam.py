"""LazyAdam for tables: Adam whose moments decay only in the rows of the batch."""

from typing import Dict, List, Union

import tensorflow as tf

from mx_rec.cluster.updates import readers
from mx_rec.optimizers.base import ByAddress, TableOptimizer, register, scalars
from mx_rec.validator.learning_rate import LearningRate
from mx_rec.validator.validator import Bool, Float, Text, checked

# Of what all forms of Adam take.
ADAM_CHECKS = {"learning_rate": LearningRate(), "beta1": Float(above=0, below=1),
               "beta2": Float(0, 1), "epsilon": Float(above=0, most=1), "name": Text(1, 200)}


class CustomizedLazyAdam(TableOptimizer):
    """LazyAdam as in tf.contrib.opt: one step for each row of the batch, none for the others.

    lr_t = lr * sqrt(1 - beta2^t) / (1 - beta1^t); m = beta1 m + (1 - beta1) g;
    v = beta2 v + (1 - beta2) g^2; w = w - lr_t m / (sqrt(v) + epsilon), where t counts the calls
    of the training op and g is the summed gradient of the row.
    """

    rule = "lazy_adam"

    def __init__(self, learning_rate: Union[float, tf.Tensor], beta1: float, beta2: float,
                 epsilon: float, name: str, use_locking: bool = False) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._powers = {}

    def _create_state(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        # Keyed by the graph's identity and kept beside it, so that no graph outlives its user.
        if self._powers.get("graph") is not graph:
            first = _power(self._beta1, "beta1_power")
            # Parameter servers get both from one of them.
            with tf.device(first.device):
                second = _power(self._beta2, "beta2_power")
            self._powers = {"graph": graph, "beta1_power": first, "beta2_power": second}

    def _prepare_numbers(self) -> Dict[str, tf.Tensor]:
        return scalars(lr=self._learning_rate, beta1_power=self._powers["beta1_power"],
                       beta2_power=self._powers["beta2_power"], beta1=self._beta1,
                       beta2=self._beta2, epsilon=self._epsilon)

    def _advance(self, updates: List[tf.Operation]) -> List[tf.Operation]:
        advanced = []  # type: List[tf.Operation]
        for name, factor in (("beta1_power", self._beta1), ("beta2_power", self._beta2)):
            power = self._powers[name]
            with tf.control_dependencies(readers(updates, power.device)):
                # Where the variable is: a worker would multiply a copy of before its step, and the
                # steps that other workers did meanwhile would not count. The factor is made there.
                with tf.compat.v1.colocate_with(power):
                    advanced.append(power.assign(power * factor, use_locking=self._use_locking).op)
        return advanced


class CustomizedLazyAdamByAddress(ByAddress, CustomizedLazyAdam):
    """LazyAdam for tables with dynamic expansion; see ByAddress."""


def _power(initial: float, name: str) -> tf.Variable:
    return tf.compat.v1.Variable(initial, trainable=False, name=name, dtype=tf.float32)


@checked(**ADAM_CHECKS, use_fusion_optim=Bool())
def create_hash_optimizer(learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9,
                          beta2: float = 0.999, epsilon: float = 1e-8, name: str = "LazyAdam",
                          use_fusion_optim: bool = False) -> CustomizedLazyAdam:
    """Creates a LazyAdam optimizer for tables.

    Args:
        learning_rate: A float or a scalar tensor in [0, 10].
        beta1: Decay of the first moment, in (0, 1).
        beta2: Decay of the second moment, in [0, 1].
        epsilon: In (0, 1].
        name: 1-200 characters.
        use_fusion_optim: Accepted and without effect: an update is one op in any case.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or tables grow
            dynamically.
        EnvironmentError: If `init` was not called.
    """
    del use_fusion_optim
    return register(CustomizedLazyAdam(learning_rate, beta1, beta2, epsilon, name))


@checked(**ADAM_CHECKS)
def create_hash_optimizer_by_address(
        learning_rate: Union[float, tf.Tensor] = 0.001, beta1: float = 0.9, beta2: float = 0.999,
        epsilon: float = 1e-8, name: str = "LazyAdamByAddress") -> CustomizedLazyAdamByAddress:
    """Creates a LazyAdam optimizer for tables with dynamic expansion.

    Arguments, ranges and errors are those of `create_hash_optimizer`; it is tables with a preset
    size that are refused.
    """
    return register(CustomizedLazyAdamByAddress(learning_rate, beta1, beta2, epsilon, name))
