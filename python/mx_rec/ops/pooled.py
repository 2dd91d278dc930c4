"""Gradients of the ops of pooled lookups."""

from typing import Any, List, NoReturn, Optional

import tensorflow as tf

from mx_rec.ops import library
from mx_rec.ops.lookups import offsets_of_rows

_Gradients = List[Optional[tf.Tensor]]


def is_given(described: tf.Tensor) -> bool:
    """Whether weights or divisors of a pooled lookup are there: none have the static shape (0)."""
    return described.shape.rank != 1 or described.shape.as_list() != [0]


def restore_pooled_gradient(op: tf.Operation, grad: tf.Tensor) -> _Gradients:
    """Gradient of MxRecRestorePooled (rows, inverse, ends, weights, divisors, norms -> pooled).

    Args:
        op: The forward op.
        grad: Gradient of its result, (s..., dim) float32.

    Returns:
        The gradients of rows (u, dim), and of weights and divisors where there are any.
    """
    grad = tf.convert_to_tensor(grad)
    rows, inverse, ends, weights, divisors, *norms = op.inputs
    counted = offsets_of_rows(rows)
    if counted is None:
        counted = tf.range(tf.shape(rows, out_type=tf.int64)[0])
    of_weights = of_divisors = None  # type: Optional[tf.Tensor]
    if is_given(weights):
        of_weights = library().mx_rec_pooled_weight_gradient(grad, rows, inverse, ends,
                                                             divisors, norms)
    if is_given(divisors):
        products = tf.reduce_sum(grad * op.outputs[0], -1)
        of_divisors = tf.negative(tf.math.divide_no_nan(products, divisors))
    summed = library().mx_rec_reduce_pooled(grad, inverse, ends, weights, divisors, norms,
                                            [rows] if norms else [], counted)
    return [summed, None, None, of_weights, of_divisors] + [None] * len(norms)


def weights_gradient(op: tf.Operation, grad: tf.Tensor) -> _Gradients:
    """Gradient of MxRecBagWeights (weights, ids -> checked), which changes nothing."""
    del op
    return [grad, None]


def divisors_gradient(op: tf.Operation, grad: tf.Tensor) -> _Gradients:
    """Gradient of MxRecBagDivisors (ids, ends, weights -> divisors) with respect to the weights.

    Args:
        op: The forward op.
        grad: Gradient of the divisors, (s...) float32.

    Returns:
        The gradient of weights, 0 for padding; None for ids and ends.
    """
    ids, ends, weights = op.inputs
    if not is_given(weights):
        return [None, None, None]
    ends = tf.reshape(ends, [-1])
    bags = tf.searchsorted(ends, tf.range(tf.size(ids, out_type=tf.int64)), side="right")
    grad = tf.reshape(tf.convert_to_tensor(grad), [-1])
    if op.get_attr("combiner") == 2:
        grad = tf.math.divide_no_nan(grad, tf.reshape(op.outputs[0], [-1]))
    per_id = tf.gather(grad, bags)
    if op.get_attr("combiner") == 2:
        per_id *= tf.reshape(weights, [-1])
    is_padding = tf.equal(tf.reshape(ids, [-1]), tf.constant(-1, ids.dtype))
    per_id = tf.compat.v1.where(is_padding, tf.zeros_like(per_id), per_id)
    return [None, None, tf.reshape(per_id, tf.shape(weights))]


def no_second_gradient(op: tf.Operation, *grads: Any) -> NoReturn:
    """Refuses the gradient of a gradient of a pooled lookup."""
    del grads
    raise NotImplementedError(
        "{!r} is a gradient of a pooled lookup and has no gradient of its own (second order). Look "
        "the ids up with sparse_lookup, and pool the embeddings with ops of TensorFlow.".format(
            op.outputs[0].op.name))
