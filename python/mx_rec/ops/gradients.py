"""Gradients of the plugin's ops."""

from typing import Any, Callable, Dict, List, Optional

import tensorflow as tf

from mx_rec.ops import library
from mx_rec.ops.shapes import definitions

# An identity that carries this attribute divides its gradient by the attribute's value.
RANK_SIZE_ATTRIBUTE = "_mx_rec_rank_size"
DIVIDE_GRADIENT = "MxRecDivideByRankSize"


def _restore_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecRestore (rows, inverse -> embedding): sums the duplicates per row.

    Args:
        op: The forward op; inputs rows (u, dim) float32 and inverse (s...) int32.
        grad: Gradient of the embedding, (s..., dim) float32.

    Returns:
        The gradient of rows, (u, dim) float32, and None for inverse.
    """
    rows, inverse = op.inputs
    # The op that looked the rows up knows their number without waiting for their values.
    source = rows.op
    while source.type == "Identity":
        source = source.inputs[0].op
    if source.type == "MxRecLookup":
        counted = source.inputs[2]
    else:
        counted = tf.range(tf.shape(rows, out_type=tf.int64)[0])
    return [library().mx_rec_reduce(_as_tensor(grad), inverse, counted), None]


def _reduce_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecReduce (grad, inverse, offsets -> rows): spreads each row again.

    Args:
        op: The forward op.
        grad: Gradient of its rows, (u, dim) float32.

    Returns:
        The gradient of its first input, (s..., dim) float32, and None for the others.
    """
    return [library().mx_rec_restore(_as_tensor(grad), op.inputs[1]), None, None]


def _lookup_gradient(op: tf.Operation,
                     grad: tf.Tensor) -> List[Optional[tf.IndexedSlices]]:
    """Gradient of MxRecLookup (handle, variable, offsets -> rows) with respect to the variable.

    Args:
        op: The forward op; its third input is offsets (u) int64.
        grad: Gradient of the rows, (u, dim) float32.

    Returns:
        IndexedSlices(values (u, dim) float32, indices = offsets (u) int64) for the variable, and
        None for the handle and the offsets. The slices have no dense shape: a table's rows
        are not a dense tensor, and turning the gradient into one is refused by TensorFlow.
    """
    return [None, tf.IndexedSlices(_as_tensor(grad), op.inputs[2]), None]


def _embed_gradient(op: tf.Operation,
                    grad: tf.Tensor) -> List[Optional[tf.IndexedSlices]]:
    """Gradient of MxRecEmbed (handle, variable, offsets, inverse -> embedding).

    Args:
        op: The forward op; its third input is offsets (u) int64, its fourth inverse (s...) int32.
        grad: Gradient of the embedding, (s..., dim) float32.

    Returns:
        IndexedSlices(values (u, dim) float32, summed over the ids of each row, indices = offsets)
        for the variable, and None for the others. As that of MxRecLookup it has no dense shape.
    """
    _, _, offsets, inverse = op.inputs
    summed = library().mx_rec_reduce(_as_tensor(grad), inverse, offsets)
    return [None, tf.IndexedSlices(summed, offsets), None, None]


def _divide_gradient(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    """Gradient of an identity in a table whose gradients are divided by the rank count."""
    return _as_tensor(grad) / float(op.get_attr(RANK_SIZE_ATTRIBUTE))


def _as_tensor(grad: tf.Tensor) -> tf.Tensor:
    return tf.convert_to_tensor(grad)


# The gradient of each op that has one, by its definition; no gradient goes through the others.
_GRADIENTS = {
    "MxRecRestore": _restore_gradient,
    "MxRecReduce": _reduce_gradient,
    "MxRecLookup": _lookup_gradient,
    "MxRecEmbed": _embed_gradient,
}  # type: Dict[str, Callable[[tf.Operation, tf.Tensor], List[Any]]]


def _register() -> None:
    """Registers all gradients; TensorFlow refuses a second registration of a name."""
    from tensorflow.python.framework import ops as tf_ops

    known = tf_ops._gradient_registry.list()  # pylint: disable=protected-access
    for name, definition in definitions().items():
        if name in known:
            continue
        if definition["differentiable"]:
            tf.RegisterGradient(name)(_GRADIENTS[name])
        else:
            tf.no_gradient(name)
    if DIVIDE_GRADIENT not in known:
        tf.RegisterGradient(DIVIDE_GRADIENT)(_divide_gradient)


_register()
