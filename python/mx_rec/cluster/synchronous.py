"""Tables on parameter servers under SyncReplicasOptimizer: their gradients are summed.

TensorFlow averages a sparse gradient over those workers that have one for the index, so that a key
in the batch of one of two workers would get twice the update that one process with both batches
gives it. Gradients of tables are divided by the number of workers first, and then summed.
"""

import threading
from typing import Any, Callable, List, Set, Tuple

import tensorflow as tf

from mx_rec.state.table_variable import CLUSTER_TABLE_OP, is_table_variable
from mx_rec.tensorflow.names import sync_replicas

_lock = threading.Lock()


class _Summing:
    """TensorFlow's data_flow_ops, whose accumulators of some names sum.

    Args:
        module: TensorFlow's own.
        names: What the shared names of these accumulators start with.
    """

    def __init__(self, module: Any, names: Tuple[str, ...]) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def SparseConditionalAccumulator(self, *args: Any, **kwargs: Any) -> Any:
        """Makes an accumulator. The name is TensorFlow's."""
        # pylint: disable=invalid-name
        if str(kwargs.get("shared_name")).startswith(self._names):
            kwargs["reduction_type"] = "SUM"
        return self._module.SparseConditionalAccumulator(*args, **kwargs)


def patched_sync_apply(stock: Callable[..., Any], self: Any, grads_and_vars: Any, *args: Any,
                       **kwargs: Any) -> Any:
    """SyncReplicasOptimizer.apply_gradients, which sums the gradients of tables."""
    pairs = []  # type: List[Tuple[Any, Any]]
    names = set()  # type: Set[str]
    for grad, variable in grads_and_vars:
        if is_table_variable(variable) and variable.op.type == CLUSTER_TABLE_OP \
                and isinstance(grad, tf.IndexedSlices):
            names.add(variable.name + "/")
            workers = self._replicas_to_aggregate  # pylint: disable=protected-access
            grad = tf.IndexedSlices(grad.values / workers, grad.indices, grad.dense_shape)
        pairs.append((grad, variable))
    if not names:
        return stock(self, pairs, *args, **kwargs)
    with _lock:
        made = sync_replicas.data_flow_ops
        sync_replicas.data_flow_ops = _Summing(made, tuple(names))
        try:
            return stock(self, pairs, *args, **kwargs)
        finally:
            sync_replicas.data_flow_ops = made
