"""Gradients of the plugin's ops."""

from typing import List, Optional

import tensorflow as tf

from mx_rec.ops import library

_NOT_DIFFERENTIABLE = (
    "MxRecTable",
    "MxRecIdOffset",
    "MxRecPrepare",
    "MxRecClaim",
    "MxRecObserve",
    "MxRecAdmit",
    "MxRecFind",
    "MxRecSize",
    "MxRecCapacity",
    "MxRecExport",
    "MxRecExportSlot",
    "MxRecAssign",
    "MxRecRemove",
    "MxRecClear",
    "MxRecSave",
    "MxRecSaveDelta",
    "MxRecLoad",
    "MxRecWarmStart",
    "MxRecSetThreshold",
    "MxRecEvict",
    "MxRecTableStats",
)


def _restore_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecRestore (rows, restore -> embedding): sums the duplicates per row.

    Args:
        op: The forward op; inputs rows (u, dim) float32 and restore (s...) int32.
        grad: Gradient of the embedding, (s..., dim) float32.

    Returns:
        The gradient of rows, (u, dim) float32, and None for restore.
    """
    rows, restore = op.inputs
    # The op that looked the rows up knows their number without waiting for their values.
    source = rows.op
    while source.type == "Identity":
        source = source.inputs[0].op
    if source.type == "MxRecLookup":
        counted = source.inputs[2]
    else:
        counted = tf.range(tf.shape(rows, out_type=tf.int64)[0])
    return [library().mx_rec_reduce(_as_tensor(grad), restore, counted), None]


def _reduce_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecReduce (grad, restore, offsets -> rows): spreads each row again.

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
    """Gradient of MxRecEmbed (handle, variable, offsets, restore -> embedding).

    Args:
        op: The forward op; its third input is offsets (u) int64, its fourth restore (s...) int32.
        grad: Gradient of the embedding, (s..., dim) float32.

    Returns:
        IndexedSlices(values (u, dim) float32, summed over the ids of each row, indices = offsets)
        for the variable, and None for the others. As that of MxRecLookup it has no dense shape.
    """
    _, _, offsets, restore = op.inputs
    summed = library().mx_rec_reduce(_as_tensor(grad), restore, offsets)
    return [None, tf.IndexedSlices(summed, offsets), None, None]


def _as_tensor(grad: tf.Tensor) -> tf.Tensor:
    return tf.convert_to_tensor(grad)


def _register() -> None:
    """Registers all gradients; TensorFlow refuses a second registration of a name."""
    from tensorflow.python.framework import ops as tf_ops

    known = tf_ops._gradient_registry.list()  # pylint: disable=protected-access
    for name, function in (("MxRecRestore", _restore_gradient),
                           ("MxRecReduce", _reduce_gradient),
                           ("MxRecLookup", _lookup_gradient),
                           ("MxRecEmbed", _embed_gradient)):
        if name not in known:
            tf.RegisterGradient(name)(function)
    for name in _NOT_DIFFERENTIABLE:
        if name not in known:
            tf.no_gradient(name)


_register()
