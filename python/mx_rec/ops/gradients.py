"""Gradients of the plugin's ops."""

from typing import Any, Callable, Dict, List, NoReturn, Optional

import tensorflow as tf

from mx_rec.ops import library
from mx_rec.ops.lookups import offsets_of_rows
from mx_rec.ops.shapes import definitions, lists_of
from mx_rec.tensorflow.names import array_ops, control_flow_util, known_gradients, while_v2


def _restore_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecRestore (rows, inverse -> embedding): sums the duplicates per row.

    Args:
        op: The forward op; inputs rows (u, dim) float32 and inverse (s...) int32.
        grad: Gradient of the embedding, (s..., dim) float32.

    Returns:
        The gradient of rows, (u, dim) float32, and None for inverse.
    """
    rows, inverse = op.inputs
    grad = tf.convert_to_tensor(grad)
    return [library().mx_rec_reduce(grad, inverse, offsets_of_rows(rows)), None]


def _reduce_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecReduce (grad, inverse, offsets -> rows): spreads each row again.

    Args:
        op: The forward op.
        grad: Gradient of its rows, (u, dim) float32.

    Returns:
        The gradient of its first input, (s..., dim) float32, and None for the others.
    """
    return [library().mx_rec_restore(tf.convert_to_tensor(grad), op.inputs[1]), None, None]


def _read_gradient(op: tf.Operation, *grads: tf.Tensor) -> List[Any]:
    """Gradient of MxRecRead (handles, variables, offsets, .. -> rows).

    Args:
        op: The forward op.
        *grads: Gradients of the rows, of the distinct ones (u, dim), of ids or bags (s..., dim), or
            of all members side by side (s..., width), float32. Those of rows that are kept for
            gradients count for nothing.

    Returns:
        For each variable IndexedSlices(values (u, dim) float32, summed over the ids or bags of each
        row, indices = offsets), None if the loss does not depend on its rows; None for the other
        inputs.

    Raises:
        NotImplementedError: If the lookups are inside a tf.while_loop with control flow v2.
    """
    op = op.outputs[0].op  # A tf.GradientTape gives less than an op.
    given = lists_of(op)
    offsets, inverses = given["offsets"], given["inverse"]
    bags = list(zip(given["ends"], given["weights"], given["divisors"]))
    if op.get_attr("M") != len(offsets):
        return _of_variables(op, _slices_of_whole(op, grads[0], given))
    slices = []  # type: List[Optional[tf.IndexedSlices]]
    norms, kept = given["norms"], op.outputs[len(offsets):]
    for at, (rows, grad) in enumerate(list(zip(op.outputs, grads))[:len(offsets)]):
        # In the place of gradients that there are not, TensorFlow gives zeros.
        if grad is None or len(offsets) > 1 and _is_zeros_like(grad, rows):
            slices.append(None)
            continue
        grad = tf.convert_to_tensor(grad)
        if bags:
            grad = library().mx_rec_reduce_pooled(grad, inverses[at], *bags[at],
                                                  norms[at:at + 1], kept[at:at + 1], offsets[at])
        elif inverses:
            grad = library().mx_rec_reduce(grad, inverses[at], offsets[at])
        slices.append(_slices(op, grad, offsets[at]))
    return _of_variables(op, slices)


def _slices_of_whole(op: tf.Operation, grad: tf.Tensor,
                     given: Dict[str, List[tf.Tensor]]) -> List[Optional[tf.IndexedSlices]]:
    """The gradient of each variable, from columns of the gradient of all rows side by side."""
    grad = tf.convert_to_tensor(grad)
    slices = []  # type: List[Optional[tf.IndexedSlices]]
    first = 0
    for variable, rows, inverse in zip(given["variables"], given["offsets"], given["inverse"]):
        dim = variable.shape.as_list()[1]
        summed = library().mx_rec_reduce_columns(grad, inverse, rows, first=first, dim=dim)
        summed.set_shape([None, dim])
        slices.append(_slices(op, summed, rows))
        first += dim
    return slices


def _of_variables(op: tf.Operation, slices: List[Optional[tf.IndexedSlices]]) -> List[Any]:
    """The gradients of all inputs: those of the second list, and None for the others."""
    members = len(slices)
    return [None] * members + slices + [None] * (len(op.inputs) - 2 * members)


def _stitch_gradient(op: tf.Operation, *grads: tf.Tensor) -> List[Any]:
    """Gradient of MxRecStitch (variables, keys, counts, places, types, rows -> embeddings).

    Args:
        op: The forward op.
        *grads: Gradients of the embeddings, each (s..., dim) float32.

    Returns:
        For each variable IndexedSlices(values (u, dim) float32, summed over the ids of each key,
        indices = keys), None if the loss does not depend on its embeddings; None for the other
        inputs.
    """
    members = op.get_attr("N")
    inputs = list(op.inputs)
    slices = []  # type: List[Any]
    for at, (embedding, grad) in enumerate(zip(op.outputs, grads)):
        if grad is None or _is_zeros_like(grad, embedding):
            slices.append(None)
            continue
        keys, places = inputs[members + at], inputs[3 * members + at]
        # The rows are made when they are pulled, and an update makes none: a gradient that needs no
        # row, as that of a sum, waits for them.
        with tf.control_dependencies([op.outputs[0].op]):
            summed = library().mx_rec_reduce(tf.convert_to_tensor(grad), places, keys)
        slices.append(_slices(op, summed, keys))
    return slices + [None] * (len(inputs) - members)


def _reduce_columns_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecReduceColumns (grad, inverse, offsets -> rows): zeros beside its columns.

    Args:
        op: The forward op.
        grad: Gradient of its rows, (u, dim) float32.

    Returns:
        The gradient of its first input, (s..., width) float32, and None for the others.
    """
    spread = library().mx_rec_restore(tf.convert_to_tensor(grad), op.inputs[1])
    first, dim = op.get_attr("first"), op.get_attr("dim")
    behind = tf.shape(op.inputs[0])[-1] - (first + dim)
    columns = tf.one_hot(tf.rank(spread) - 1, tf.rank(spread), dtype=tf.int32)
    paddings = tf.stack([columns * first, columns * behind], axis=1)
    wide = tf.pad(spread, paddings)
    wide.set_shape(op.inputs[0].shape)
    return [wide, None, None]


def _is_given(described: tf.Tensor) -> bool:
    """Whether weights or divisors of a pooled lookup are there: none have the static shape (0)."""
    return described.shape.rank != 1 or described.shape.as_list() != [0]


def _restore_pooled_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecRestorePooled (rows, inverse, ends, weights, divisors, norms -> pooled).

    Args:
        op: The forward op.
        grad: Gradient of its result, (s..., dim) float32.

    Returns:
        The gradients of rows (u, dim), and of weights and divisors where there are any.
    """
    grad = tf.convert_to_tensor(grad)
    rows, inverse, ends, weights, divisors, *norms = op.inputs
    of_weights = of_divisors = None  # type: Optional[tf.Tensor]
    if _is_given(weights):
        of_weights = library().mx_rec_pooled_weight_gradient(grad, rows, inverse, ends,
                                                             divisors, norms)
    if _is_given(divisors):
        products = tf.reduce_sum(grad * op.outputs[0], -1)
        of_divisors = tf.negative(tf.math.divide_no_nan(products, divisors))
    summed = library().mx_rec_reduce_pooled(grad, inverse, ends, weights, divisors, norms,
                                            [rows] if norms else [], offsets_of_rows(rows))
    return [summed, None, None, of_weights, of_divisors] + [None] * len(norms)


def _weights_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecBagWeights (weights, ids -> checked), which changes nothing."""
    del op
    return [grad, None]


def _divisors_gradient(op: tf.Operation, grad: tf.Tensor) -> List[Optional[tf.Tensor]]:
    """Gradient of MxRecBagDivisors (ids, ends, weights -> divisors) with respect to the weights.

    Args:
        op: The forward op.
        grad: Gradient of the divisors, (s...) float32.

    Returns:
        The gradient of weights, 0 for padding; None for ids and ends.
    """
    ids, ends, weights = op.inputs
    if not _is_given(weights):
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


def _no_second_gradient(op: tf.Operation, *grads: Any) -> NoReturn:
    """Refuses the gradient of a gradient of a pooled lookup."""
    del grads
    raise NotImplementedError(
        "{!r} is a gradient of a pooled lookup and has no gradient of its own (second order). Look "
        "the ids up with sparse_lookup, and pool the embeddings with ops of TensorFlow.".format(
            op.outputs[0].op.name))


def _is_zeros_like(grad: Any, tensor: tf.Tensor) -> bool:
    """Whether a gradient is what TensorFlow makes where there is none."""
    return isinstance(grad, tf.Tensor) and grad.op.type == "ZerosLike" \
        and grad.op.inputs[0] is tensor


def _slices(op: tf.Operation, values: tf.Tensor, offsets: tf.Tensor) -> tf.IndexedSlices:
    """Returns the gradient of a table's variable, by the second input of a lookup.

    The slices have no dense shape: a table's rows are not a dense tensor, and TensorFlow refuses to
    turn the gradient into one. In a branch it joins them with the zeros of the other branch, which
    have the shape of the variable, (0, dim); so have the slices there. Turned into a dense tensor
    they would be an error of the session: no index is below 0 rows.
    """
    op = op.outputs[0].op  # A tf.GradientTape gives less than an op.
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if isinstance(graph, while_v2._WhileBodyGradFuncGraph):  # pylint: disable=protected-access
            raise NotImplementedError(
                "the lookup {!r} has no gradient: it is inside a tf.while_loop (tf.map_fn, "
                "tf.scan) with control flow v2, as tf.function makes it, where TensorFlow turns "
                "gradients into dense tensors, and a table has no dense value. Look the rows up "
                "before the loop, or make the loop with control flow v1, outside of tf.function: "
                "tf.compat.v1.disable_control_flow_v2().".format(op.name))
        graph = getattr(graph, "outer_graph", None)
    dense_shape = None
    if op.graph.building_function or control_flow_util.IsInCond(op):
        # Computed from the values, so that it exists only in the branch that is taken.
        dense_shape = array_ops.shape_internal(values, optimize=False) * [0, 1]
    return tf.IndexedSlices(values, offsets, dense_shape)


# The gradient of each op that has one, by its definition; no gradient goes through the others.
_GRADIENTS = {
    "MxRecRestore": _restore_gradient,
    "MxRecReduce": _reduce_gradient,
    "MxRecRead": _read_gradient,
    "MxRecRestorePooled": _restore_pooled_gradient,
    "MxRecBagWeights": _weights_gradient,
    "MxRecBagDivisors": _divisors_gradient,
    "MxRecReducePooled": _no_second_gradient,
    "MxRecPooledWeightGradient": _no_second_gradient,
    "MxRecReduceColumns": _reduce_columns_gradient,
    "MxRecStitch": _stitch_gradient,
}  # type: Dict[str, Callable[[tf.Operation, tf.Tensor], List[Any]]]


def _register() -> None:
    """Registers all gradients; TensorFlow refuses a second registration of a name."""
    known = known_gradients()
    for name, definition in definitions().items():
        if name in known:
            continue
        if definition["differentiable"]:
            tf.RegisterGradient(name)(_GRADIENTS[name])
        else:
            tf.no_gradient(name)


_register()
