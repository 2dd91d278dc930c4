"""Finds gradients of tables that can be summed in the op that applies them."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from mx_rec.ops import library

_APPLY_PREFIX = "MxRecApply"
_FUSED_SUFFIX = "ByRestore"
_GROUPED = "Many"
_REDUCE_OP = "MxRecReduce"
_REDUCE_COLUMNS_OP = "MxRecReduceColumns"
_CONCAT_OP = "ConcatV2"


class Reduction(NamedTuple):
    """A gradient of rows that is the output of an MxRecReduce, by that op's inputs.

    Attributes:
        offsets: int64 (u), the rows.
        inverse: int32 (s...), for each id its place in offsets.
        grad: float32 (s..., dim), the gradient of the embeddings, or (s..., width), that of a
            concatenation that they are columns of.
        column: The first of their columns; -1 if all are theirs.
    """

    offsets: tf.Tensor
    inverse: tf.Tensor
    grad: tf.Tensor
    column: int = -1


class Reductions(NamedTuple):
    """What can take the place of gradients of one table.

    Attributes:
        parts: One for each lookup, in the order in which their rows occur in the gradient.
        control_inputs: What the ops that are left out wait for.
    """

    parts: List[Reduction]
    control_inputs: List[tf.Operation]


def reductions(offsets: tf.Tensor, grad: tf.Tensor) -> Optional[Reductions]:
    """Looks for MxRecReduce behind a gradient, with nothing between that changes a value.

    tf.gradients makes such a gradient: the sums of one lookup, or those of several lookups, joined
    along the first dimension together with their offsets.

    Args:
        offsets: int64 (n), the rows that the gradient is for.
        grad: float32 (n, dim).

    Returns:
        The reductions, or None if the gradient is anything else, or was made in another graph,
        condition or loop than the present one.
    """
    op = grad.op
    if not _is_here(op):
        return None
    if op.type in (_REDUCE_OP, _REDUCE_COLUMNS_OP):
        if op.inputs[2] is not offsets:
            return None
        column = op.get_attr("first") if op.type == _REDUCE_COLUMNS_OP else -1
        return Reductions([Reduction(offsets, op.inputs[1], op.inputs[0], column)],
                          list(op.control_inputs))
    if not _joins_rows(op) or not _is_here(offsets.op) or not _joins_rows(offsets.op) \
            or len(op.inputs) != len(offsets.op.inputs):
        return None
    parts = []  # type: List[Reduction]
    control_inputs = []  # type: List[tf.Operation]
    for left_out in (op, op.inputs[-1].op, offsets.op, offsets.op.inputs[-1].op):
        control_inputs.extend(left_out.control_inputs)
    for some_offsets, some_grad in zip(list(offsets.op.inputs)[:-1], list(op.inputs)[:-1]):
        found = reductions(some_offsets, some_grad)
        if found is None:
            return None
        parts.extend(found.parts)
        control_inputs.extend(found.control_inputs)
    return Reductions(parts, control_inputs)


def all_reductions(grads: Sequence[Tuple[tf.Tensor, tf.Tensor]]) -> Optional[Reductions]:
    """Returns the reductions that all gradients of one table are made of, None if one is not.

    Args:
        grads: The gradients, each with the rows that it is for: (offsets, gradient).
    """
    joined = Reductions([], [])
    for offsets, grad in grads:
        found = reductions(offsets, grad)
        if found is None:
            return None
        joined.parts.extend(found.parts)
        joined.control_inputs.extend(found.control_inputs)
    return joined


def _joins_rows(op: tf.Operation) -> bool:
    """Whether the op joins tensors along their first dimension."""
    return op.type == _CONCAT_OP and op.inputs[-1].op.type == "Const" \
        and tensor_util.constant_value(op.inputs[-1]) == 0


def _is_here(op: tf.Operation) -> bool:
    """Whether the op stands in the present graph, and in the present condition or loop of it."""
    graph = tf.compat.v1.get_default_graph()
    # pylint: disable=protected-access
    return op.graph is graph \
        and op._get_control_flow_context() is graph._get_control_flow_context()


def apply_fused(apply_op: str, members: Sequence[Tuple[tf.Tensor, Reduction]],
                control_inputs: Sequence[tf.Operation], tensors: Sequence[tf.Tensor],
                attributes: Dict[str, Any]) -> tf.Operation:
    """Adds the op that sums gradients of ids and applies the sums, of one table or of many.

    Args:
        apply_op: Name of the plugin's function that updates rows of one table by offset.
        members: The reductions, each with the handle of its table; those of one table in order.
        control_inputs: What the op waits for.
        tensors: Numbers of the optimizer, in the op's order.
        attributes: Attributes of the op.

    Returns:
        The op.
    """
    handles = [handle for handle, _ in members]
    lists = [[part.offsets for _, part in members], [part.inverse for _, part in members],
             [part.grad for _, part in members]]
    columns = [part.column for _, part in members]
    is_one = all(handle is handles[0] for handle in handles) and max(columns) < 0
    with tf.control_dependencies(control_inputs):
        if is_one:
            make = getattr(library(), apply_op + "_by_restore")
            update = make(handles[0], *lists, *tensors, **attributes).op
        else:
            make = getattr(library(), apply_op + "_many_by_restore")
            update = make(handles, *lists, tf.constant(columns, tf.int32), *tensors,
                          **attributes).op
    forbid_feeding(update)
    return update


def is_fused(op: tf.Operation) -> bool:
    """Whether the op sums the gradients of a table and applies the sums."""
    kind = op.type
    return kind.startswith(_APPLY_PREFIX) and kind.endswith(_FUSED_SUFFIX)


def forbid_feeding(update: tf.Operation) -> None:
    """Makes session.run refuse values for the gradients that a fused update does not read.

    The update takes the inputs of MxRecReduce. A value that is fed for the sums, or for what joins
    the sums or the offsets of several lookups, would not reach it.

    Args:
        update: An op for which `is_fused` holds.
    """
    lookups = update.get_attr("N")
    # One handle, or one for each lookup of a group.
    first = lookups if _GROUPED in update.type else 1
    offsets, inverses, grads = [list(update.inputs)[first + part * lookups:][:lookups]
                                for part in range(3)]
    left_out = []  # type: List[tf.Tensor]
    for part in zip(grads, inverses, offsets):
        left_out.extend(op.outputs[0] for op in part[0].consumers()
                        if op.type in (_REDUCE_OP, _REDUCE_COLUMNS_OP)
                        and _are(op.inputs, part))
    for level in (left_out, list(offsets)):
        # Joins may be joined again: TensorFlow joins gradients of one loss, scripts those of two.
        waiting = list(level)
        known = {id(tensor) for tensor in level}
        while waiting:
            for op in waiting.pop().consumers():
                if _joins_rows(op) and id(op.outputs[0]) not in known \
                        and known.issuperset(id(tensor) for tensor in list(op.inputs)[:-1]):
                    known.add(id(op.outputs[0]))
                    waiting.append(op.outputs[0])
                    left_out.extend([op.outputs[0], op.inputs[-1]])
    for tensor in left_out:
        tensor.graph.prevent_feeding(tensor)


def _are(inputs: Iterable[tf.Tensor], tensors: Iterable[tf.Tensor]) -> bool:
    return all(one is other for one, other in zip(inputs, tensors))
