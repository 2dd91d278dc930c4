"""Updates of tables: they sum gradients of ids themselves, and those of many tables share an op."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.base.global_env_conf import groups_tables
from mx_rec.edits.replacing import FUSED_NAME, forbid_feeding
from mx_rec.edits.wiring import in_place_of, replace_waiting
from mx_rec.graph.fusions import Member, Update, Updates
from mx_rec.ops.optimizers import Gradients, OptimizerStep, gradients_of, optimizer_of, update
from mx_rec.tensorflow.names import tensor_util

_REDUCE_COLUMNS = "MxRecReduceColumns"


class _Part(NamedTuple):
    """What an update takes for one member."""

    handle: tf.Tensor
    offsets: tf.Tensor
    grad: tf.Tensor
    inverse: Optional[tf.Tensor]
    bags: Tuple[tf.Tensor, ...]
    column: int


def fuse_updates(graph: tf.Graph, planned: Sequence[Updates], first: int = 0
                 ) -> List[Tuple[tf.Operation, List[tf.Operation]]]:
    """Puts ops that sum gradients of ids, for many tables, in the places of updates.

    The sums stay in the graph for runs that fetch them. With the environment variable
    MXREC_GROUP_TABLES=0 each update stays an op of its own.

    Args:
        graph: A graph, before lookups change.
        planned: What the plan says of updates that no session has run.
        first: The number of ops that sessions may have run, which stay as they are.

    Returns:
        New ops, each with those in whose place it stands.
    """
    groups = [one.updates for one in planned]
    if not groups_tables():
        groups = [[one] for group in groups for one in group]
    made = []  # type: List[Tuple[tf.Operation, List[tf.Operation]]]
    for group in groups:
        if len(group) > 1 or any(one.sum or one.whole for one in group[0].members):
            ops = [graph.get_operation_by_name(one.node) for one in group]
            made.append((_fused(graph, group, ops), ops))
            for name in [name for one in group for name in one.left_out]:
                tensor = graph.get_tensor_by_name(name)
                if tensor.op._id > first:  # pylint: disable=protected-access
                    forbid_feeding(tensor.op, [tensor.value_index])
                else:
                    graph.prevent_feeding(tensor)
    return made


def _fused(graph: tf.Graph, group: Sequence[Update], ops: Sequence[tf.Operation]) -> tf.Operation:
    """Adds the op that does what some updates do."""
    first = ops[0]
    parts = [_part(graph, gradients_of(op), member)
             for one, op in zip(group, ops) for member in one.members]
    waits = [graph.get_operation_by_name(name) for one in group for name in one.waits]
    waits.extend(wait for op in ops for wait in op.control_inputs)
    columns = [part.column for part in parts]
    with in_place_of(first, waits, [op.name for op in ops], first.name, first.device):
        bags = []  # type: List[Tuple[tf.Tensor, ...]]
        if any(part.bags for part in parts):
            none = (tf.zeros([0], tf.int64), tf.zeros([0]), tf.zeros([0]))
            bags = list(zip(*[part.bags or none for part in parts]))
        made = update(
            OptimizerStep(optimizer_of(first), list(first.inputs)[-first.get_attr("H"):]),
            Gradients([part.handle for part in parts], [part.offsets for part in parts],
                      [part.grad for part in parts],
                      [part.inverse for part in parts if part.inverse is not None], bags,
                      [tf.constant(columns, tf.int32)] if max(columns) >= 0 else []), FUSED_NAME)
    for op in ops:
        replace_waiting(op, made)
    return made


def _part(graph: tf.Graph, given: Gradients, member: Member) -> _Part:
    place, bags, column = member.place, (), -1  # type: int, Tuple[tf.Tensor, ...], int
    if member.sum is not None:
        op = graph.get_operation_by_name(member.sum)
        grad, inverse, *bags, offsets = op.inputs
        if op.type == _REDUCE_COLUMNS:
            column = op.get_attr("first")
    else:
        offsets, grad = given.offsets[place], given.grads[place]
        inverse = given.inverses[place] if given.inverses else None
        bags = tuple(part[place] for part in given.bags)
        if given.columns:
            column = tensor_util.constant_value(given.columns[0])[place]
    if member.whole is not None:
        grad, column = graph.get_tensor_by_name(member.whole), member.first
    return _Part(given.handles[place], offsets, grad, inverse, tuple(bags), int(column))
