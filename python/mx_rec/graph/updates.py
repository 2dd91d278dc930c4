"""Updates of tables: they sum gradients of ids themselves, and those of many tables share an op."""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.cluster.together import join_pushes
from mx_rec.edits.replacing import FUSED_NAME, forbid_feeding, replace_waiting
from mx_rec.edits.wiring import in_place_of
from mx_rec.graph.plan import Record
from mx_rec.ops.optimizers import (PUSH, Gradients, OptimizerStep, gradients_of, optimizer_of,
                                   update)


class _Part(NamedTuple):
    """What an update takes for one member."""

    handle: tf.Tensor
    offsets: tf.Tensor
    grad: tf.Tensor
    inverse: Optional[tf.Tensor] = None
    bags: Sequence[tf.Tensor] = ()
    column: int = -1


class Updating:
    """The updates that change, while other rules change the sums that they take.

    Args:
        graph: A graph.
        planned: What the plan says of updates that no session has run.
    """

    def __init__(self, graph: tf.Graph, planned: Sequence[Record]) -> None:
        self._graph = graph
        self._groups = [one.updates for one in planned
                        if len(one.updates) > 1 or one.updates[0].members]
        self._instead = {}  # type: Dict[tf.Operation, tf.Operation]

    def join_pushes(self) -> List[Tuple[tf.Operation, List[tf.Operation]]]:
        """Puts ops in the places of updates on parameter servers, one for all that share it.

        Returns:
            As `fuse`.
        """
        made = []  # type: List[Tuple[tf.Operation, List[tf.Operation]]]
        for ops, ends in map(self._ops_of, self._groups):
            if ops[0].type == PUSH:
                joined = join_pushes(ops)
                for op in ops:
                    replace_waiting(op, [joined])
                made.append((joined, ops + ends))
        joined_ones = {joined for joined, _ in made}
        ends = {}  # type: Dict[Any, tf.Operation]
        for op in OrderedDict.fromkeys(op for _, replaced in made for op in replaced):
            # A run that wants one of these wants it without the other updates.
            if op._control_outputs:  # pylint: disable=protected-access
                # Those that wait for the same pushes are one, and others stay where they are.
                waits = frozenset(op.control_inputs)
                key = op if waits.isdisjoint(joined_ones) else waits
                if key not in ends:
                    with in_place_of(op, scope=op.name, device=op.device):
                        ends[key] = tf.no_op(name=FUSED_NAME)
                replace_waiting(op, [ends[key]])
        return made

    def _ops_of(self, group: Sequence[Record]) -> Tuple[List[tf.Operation], List[tf.Operation]]:
        """Returns the updates of a group, and what runs may want without the others."""
        return ([self._graph.get_operation_by_name(one.node) for one in group],
                [self._graph.get_operation_by_name(name) for one in group for name in one.ends])

    def fuse(self, first: int) -> List[Tuple[tf.Operation, List[tf.Operation]]]:
        """Puts ops that sum gradients of ids, for many tables, in the places of updates.

        The sums stay in the graph for runs that fetch them.

        Args:
            first: The number of ops that sessions may have run, which stay as they are.

        Returns:
            New ops, each with those in whose place it stands, and what runs want one of these for.
        """
        made = []  # type: List[Tuple[tf.Operation, List[tf.Operation]]]
        for group in self._groups:
            ops, ends = self._ops_of(group)
            if ops[0].type != PUSH:
                made.append((self._fused(group, ops), ops + ends))
        for tensor in [self._graph.get_tensor_by_name(name) for group in self._groups
                       for one in group for name in one.left_out]:
            if tensor.op._id > first:  # pylint: disable=protected-access
                forbid_feeding(tensor.op, [tensor.value_index])
            else:
                self._graph.prevent_feeding(tensor)
        return made

    def _fused(self, group: Sequence[Record], ops: Sequence[tf.Operation]) -> tf.Operation:
        """Adds the op that does what some updates do."""
        first = ops[0]
        parts = []  # type: List[_Part]
        waits = [wait for op in ops for wait in op.control_inputs]
        for one, op in zip(group, ops):
            given = gradients_of(op)
            waits.extend(wait for name in one.waits for wait in self._present(name))
            if not one.members:
                parts.append(_Part(given.handles[0], given.offsets[0], given.grads[0]))
            for member in one.members:
                part, before = self._part(given.handles[0], member)
                parts.append(part)
                waits.extend(before)
        columns = [part.column for part in parts]
        with in_place_of(first, waits, [op.name for op in ops], first.name, first.device):
            bags = []  # type: List[Tuple[tf.Tensor, ...]]
            if any(part.bags for part in parts):
                none = [tf.zeros([0], tf.int64), tf.zeros([0]), tf.zeros([0]), tf.zeros([0]),
                        tf.zeros([0, 0])][:max(len(part.bags) for part in parts)]
                bags = list(zip(*[list(part.bags) + none[len(part.bags):] for part in parts]))
            made = update(
                OptimizerStep(optimizer_of(first), list(first.inputs)[-first.get_attr("H"):]),
                Gradients([part.handle for part in parts], [part.offsets for part in parts],
                          [part.grad for part in parts],
                          [part.inverse for part in parts if part.inverse is not None], bags,
                          [tf.constant(columns, tf.int32)] if max(columns) >= 0 else []),
                FUSED_NAME)
        for op in ops:
            replace_waiting(op, [made])
            self._instead[op] = made
        return made

    def _present(self, name: str) -> List[tf.Operation]:
        """Returns what stands in the place of an op that the plan names: the outputs of other ops
        that take its place become its tensor objects."""
        planned = self._graph.get_operation_by_name(name)
        ops = [output.op for output in planned.outputs] or [planned]
        return [self._instead.get(op, op) for op in ops]

    def _part(self, handle: tf.Tensor, member: Record) -> Tuple[_Part, List[tf.Operation]]:
        """Returns what is taken in the place of a sum, and what that waits for."""
        # Sums over bags and concatenations may have got another op for it.
        op = self._graph.get_tensor_by_name(member.sum).op
        grad, inverse, *bags, offsets = op.inputs
        column = -1
        if op.type == "MxRecReduceColumns":
            column = op.get_attr("first")
        elif member.whole is not None:
            grad, column = self._graph.get_tensor_by_name(member.whole), member.first
        return _Part(handle, offsets, grad, inverse, bags, column), op.control_inputs
