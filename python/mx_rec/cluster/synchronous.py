"""Tables on parameter servers under SyncReplicasOptimizer: their gradients are summed.

TensorFlow averages a sparse gradient over those workers that have one for the index, so that a key
in the batch of one of two workers would get twice the update that one process with both batches
gives it. Gradients of tables are summed, and then divided by how many they are: with backup
workers these may be more than the update waits for.
"""

import threading
from typing import Any, Callable, List, Optional, Set, Tuple

import tensorflow as tf

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.state.table_variable import CLUSTER_TABLE_OP, is_table_variable
from mx_rec.tensorflow.names import sync_replicas

_lock = threading.Lock()


class _MeanOfAll(tf.compat.v1.SparseConditionalAccumulator):
    """Gives the sum of the gradients that it has, divided by their number.

    Each gradient comes with ones for the padding key, for which tables have no row and no gradient.
    They add up to that number.
    """

    def apply_indexed_slices_grad(self, grad: tf.IndexedSlices, local_step: Any = 0,
                                  name: Optional[str] = None) -> tf.Operation:
        """Adds a gradient, with the arguments of TensorFlow's method."""
        ones = tf.ones([1, grad.values.shape[1]], grad.values.dtype)
        padding = tf.constant([PADDING_KEY], grad.indices.dtype)
        counted = tf.IndexedSlices(tf.concat([grad.values, ones], 0),
                                   tf.concat([grad.indices, padding], 0), grad.dense_shape)
        return super().apply_indexed_slices_grad(counted, local_step, name)

    def take_indexed_slices_grad(self, num_required: Any,
                                 name: Optional[str] = None) -> tf.IndexedSlices:
        """Takes the mean, with the arguments of TensorFlow's method."""
        taken = super().take_indexed_slices_grad(num_required, name)
        is_count = tf.cast(tf.equal(taken.indices, PADDING_KEY), tf.int32)
        sums, ones = tf.dynamic_partition(taken.values, is_count, 2)
        keys, _ = tf.dynamic_partition(taken.indices, is_count, 2)
        return tf.IndexedSlices(sums / tf.reduce_sum(ones, 0), keys, taken.dense_shape)


class _Counting:
    """TensorFlow's data_flow_ops, with other accumulators for some names.

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
            return _MeanOfAll(*args, reduction_type="SUM", **kwargs)
        return self._module.SparseConditionalAccumulator(*args, **kwargs)


def patched_sync_apply(stock: Callable[..., Any], self: Any, grads_and_vars: Any, *args: Any,
                       **kwargs: Any) -> Any:
    """SyncReplicasOptimizer.apply_gradients, which averages the gradients of tables itself."""
    pairs = list(grads_and_vars)  # type: List[Tuple[Any, Any]]
    names = {variable.name + "/" for grad, variable in pairs
             if is_table_variable(variable) and variable.op.type == CLUSTER_TABLE_OP
             and isinstance(grad, tf.IndexedSlices)}  # type: Set[str]
    if not names:
        return stock(self, pairs, *args, **kwargs)
    with _lock:
        made = sync_replicas.data_flow_ops
        sync_replicas.data_flow_ops = _Counting(made, tuple(names))
        try:
            return stock(self, pairs, *args, **kwargs)
        finally:
            sync_replicas.data_flow_ops = made
