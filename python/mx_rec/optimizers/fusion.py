"""Finds gradients of tables that can be summed in the op that applies them."""

from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.ops.optimizers import UPDATE, Gradients, OptimizerStep, gradients_of, update
from mx_rec.optimizers.columns import sliced
from mx_rec.tensorflow.names import tensor_util

_REDUCE_OP = "MxRecReduce"
_REDUCE_POOLED_OP = "MxRecReducePooled"
_REDUCE_COLUMNS_OP = "MxRecReduceColumns"
_CONCAT_OP = "ConcatV2"


class Reduction(NamedTuple):
    """A gradient of rows that is the output of MxRecReduce or MxRecReducePooled, by its inputs.

    Attributes:
        offsets: int64 (u), the rows.
        inverse: int32 (s...), for each id its place in offsets.
        grad: float32 (s..., dim), the gradient of the embeddings or of the bags' vectors; or
            (s..., width), that of a concatenation that they are columns of.
        bags: Of a pooled lookup int64 ends, float32 weights and float32 divisors of its bags; empty
            for others.
        column: The first of their columns; -1 if all are theirs.
    """

    offsets: tf.Tensor
    inverse: tf.Tensor
    grad: tf.Tensor
    bags: Tuple[tf.Tensor, ...] = ()
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
    """Looks for the ops that sum gradients of ids or bags behind a gradient of rows.

    Nothing between may change a value.
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
    if op.type in (_REDUCE_OP, _REDUCE_POOLED_OP, _REDUCE_COLUMNS_OP):
        grads, inverse, *bags = list(op.inputs)
        if bags.pop() is not offsets:
            return None
        column = op.get_attr("first") if op.type == _REDUCE_COLUMNS_OP else -1
        return Reductions([Reduction(offsets, inverse, grads, tuple(bags), column)],
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


def in_whole(part: Reduction) -> Tuple[Reduction, List[tf.Operation]]:
    """Looks for the gradient of a concatenation that the gradient of a lookup is columns of.

    Args:
        part: The reduction of a lookup.

    Returns:
        The reduction, with that gradient if there is one, and what the slice waits for.
    """
    found = None if part.column >= 0 else sliced(part.grad)
    if found is None:
        return part, []
    return part._replace(grad=found.whole, column=found.first), found.control_inputs


def is_pooled(found: Reductions) -> bool:
    """Whether one of the lookups is pooled."""
    return any(part.bags for part in found.parts)


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


def apply_fused(step: OptimizerStep, members: Sequence[Tuple[tf.Tensor, Reduction]],
                control_inputs: Sequence[tf.Operation]) -> tf.Operation:
    """Adds the op that sums gradients of ids and applies the sums, of one table or of many.

    Args:
        step: The step of an optimizer.
        members: The reductions, each with the handle of its table; those of one table in order.
        control_inputs: What the op waits for.

    Returns:
        The op. session.run refuses values for the sums that it leaves out.
    """
    handles = [handle for handle, _ in members]
    parts = [part for _, part in members]
    columns = [part.column for part in parts]
    is_single = all(handle is handles[0] for handle in handles)
    with tf.control_dependencies(control_inputs):
        bags = []  # type: List[Any]
        if any(part.bags for part in parts):
            none = (tf.zeros([0], tf.int64), tf.zeros([0]), tf.zeros([0]))
            bags = list(zip(*[part.bags or none for part in parts]))
        own = [] if is_single and max(columns) < 0 else [tf.constant(columns, tf.int32)]
        op = update(step, Gradients(
            handles, [part.offsets for part in parts], [part.grad for part in parts],
            [part.inverse for part in parts], bags, own))
    forbid_feeding(op)
    return op


def is_fused(op: tf.Operation) -> bool:
    """Whether the op sums the gradients of a table and applies the sums."""
    return op.type == UPDATE and op.get_attr("R") > 0


def forbid_feeding(fused: tf.Operation) -> None:
    """Makes session.run refuse values for the gradients that a fused update does not read.

    The update takes the inputs of MxRecReduce. A value that is fed for the sums, or for what joins
    the sums or the offsets of several lookups, would not reach it.

    Args:
        fused: An op for which `is_fused` holds.
    """
    given = gradients_of(fused)
    left_out = []  # type: List[tf.Tensor]
    for rows, inverse, grad, *described in zip(given.offsets, given.inverses, given.grads,
                                               *given.bags):
        sums = {_REDUCE_OP: [inverse, rows], _REDUCE_COLUMNS_OP: [inverse, rows],
                _REDUCE_POOLED_OP: [inverse] + described + [rows]}
        for op in inverse.consumers():
            if op.type not in sums or not _are(list(op.inputs)[1:], sums[op.type]):
                continue
            of_ids = op.inputs[0]
            found = None if of_ids is grad else sliced(of_ids)
            if of_ids is grad or found is not None and found.whole is grad:
                left_out.append(op.outputs[0])
                left_out.extend(found.passed if found is not None else [])
    for level in (left_out, list(given.offsets)):
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
