"""Lookups that share an op: those of many tables are taken apart before the plan, which decides on
each lookup by itself; behind all other changes one op does the work of those that the plan groups.
"""

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.edits.replacing import (FUSED_ATTRIBUTE, forbid_feeding, in_place_of, replace_each,
                                    replace_ops)
from mx_rec.ops import library
from mx_rec.ops.lookups import (CHECKED_IDS, FIND, ID_OFFSET, READ, SPARSE_BAGS, Resolved,
                                checked_ids, find_rows, is_claim, mark_group, mark_movable,
                                may_move, read_rows, resolve)
from mx_rec.ops.shapes import list_lengths, lists_of
from mx_rec.tensorflow.names import tensor_util

# The attributes that ops have in common which are joined, by their type.
_ATTRIBUTES = {ID_OFFSET: ("T", "create", "limit"), FIND: ("T",), READ: (),
               SPARSE_BAGS: ("T", "leave_out", "fill")}

# Inputs that have a number for each member.
_VECTORS = {"rows", "combiners"}


def take_apart(ops: Iterable[tf.Operation]) -> None:
    """Gives each lookup of an op for many tables an op of its own, but for prepared ones.

    Args:
        ops: Ops that no session has run.
    """
    for op in ops:
        if not _can_join(op) or op.get_attr("N") == 1 or is_claim(op) \
                or op.type == FIND and op.get_attr("initial") \
                or op.type == READ and op.get_attr("M") == 1:
            continue
        lists = lists_of(op)
        with in_place_of(op):
            for name in _VECTORS.intersection(lists):
                lists[name] = _numbers(lists[name][0], op.get_attr("N"))
            parts = [_made(op, {name: tensors[at:at + 1] for name, tensors in lists.items()},
                           "lookup_{}".format(at)) for at in range(op.get_attr("N"))]
        for part in parts:
            mark_movable(part[0].op, may_move(op))
            mark_group(part[0].op, op.name)
        mark_movable(op, False)
        replace_each(op, [tensor for place in zip(*parts) for tensor in place])


class Together:
    """The lookups that share an op, while other rules change what they are.

    Args:
        graph: A graph that no session has run.
        planned: What the plan says of them.
    """

    def __init__(self, graph: tf.Graph, planned: Iterable[Any]) -> None:
        self._graph = graph
        self.groups = [group.nodes for group in planned]

    def join(self, pooled: Dict[str, tf.Operation]) -> List[tf.Operation]:
        """Makes one op of the lookups of each group that now have the same form.

        Args:
            pooled: By the names of lookups the op that reads rows of bags in its place.

        Returns:
            The ops that do the work of several lookups.
        """
        joined = []  # type: List[tf.Operation]
        for group in self.groups:
            same = OrderedDict()  # type: Dict[Any, Dict[tf.Operation, None]]
            for name in group:
                # The outputs of ops in the place of one become the tensor objects of its own.
                ops = [output.op for output in self._graph.get_operation_by_name(name).outputs]
                for op in ops + [pooled.get(name, ops[0])]:
                    if _can_join(op):
                        same.setdefault(_form(op), OrderedDict())[op] = None
            for together in same.values():
                if len(together) > 1:
                    joined.append(self._join(list(together)))
                else:
                    joined.extend(op for op in together if op.get_attr("N") > 1)
        return joined

    def _join(self, together: Sequence[tf.Operation]) -> tf.Operation:
        first = together[0]
        every = [lists_of(op) for op in together]
        given = {name: [tensor for lists in every for tensor in lists[name]] for name in every[0]}
        if first.type == FIND and given["absent"]:
            # Those without have no rows of their own; find_rows says so for each table.
            given["absent"] = [tensor for lists in every for tensor in
                               lists["absent"] or [None] * len(lists["handles"])]
        with in_place_of(first):
            _fill_norms(every, given)
            if first.type in (ID_OFFSET, FIND):
                given["ids"] = _checked_together(given["ids"])
            made = _made(first, given, "together")
        mark_movable(made[0].op, may_move(first))
        members = sum(op.get_attr("N") for op in together)
        values, at = [], 0  # type: List[List[tf.Tensor]], int
        for op in together:
            own = op.get_attr("N")
            mark_movable(op, False)
            values.append([tensor for begin in range(at, len(made), members)
                           for tensor in made[begin:begin + own]][:len(op.outputs)])
            at += own
        replace_ops(together, values)
        return made[0].op


def _made(op: tf.Operation, given: Dict[str, List[tf.Tensor]], name: str) -> List[tf.Tensor]:
    """Adds an op that does for some tables what another one does; returns its outputs."""
    bags = [given.get(part, []) for part in ("ends", "weights", "divisors")]
    norms = given.get("norms", [])
    if op.type == SPARSE_BAGS:
        made = library().mx_rec_sparse_bags_many(
            given["indices"], given["ids"], given["dense_shape"], _one_vector(given["rows"]),
            _one_vector(given["combiners"]), leave_out=op.get_attr("leave_out"),
            fill=op.get_attr("fill"), name=name)
        return list(made.bag_ids[0].op.outputs)
    if op.type == ID_OFFSET:
        prepared = Resolved(given["prepared_offsets"], given["prepared_inverse"])
        found = resolve(given["handles"], given["ids"], prepared if prepared.offsets else None,
                        bool(op.get_attr("create")), op.get_attr("limit"), name)
        return found.offsets + found.inverse
    if op.type == FIND:
        return find_rows(given["handles"], given["variables"], given["ids"], given["absent"], bags,
                         norms=norms, name=name)
    return list(read_rows(given["handles"], given["variables"], given["offsets"],
                          given["inverse"], bags, norms=norms, name=name)[0].op.outputs)


def _checked_together(ids: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Returns ids of which one op checks those that ops of their own check."""
    checks = list(OrderedDict.fromkeys(
        one.op for one in ids if one.op.type == CHECKED_IDS and not one.op.control_inputs))
    given = [lists_of(op) for op in checks]
    rows, names = ([tensor_util.constant_value(lists[name][0]) for lists in given]
                   for name in ("rows", "names"))
    if len(checks) < 2 or any(value is None for value in rows + names):
        return list(ids)
    made = checked_ids([tensor for lists in given for tensor in lists["ids"]],
                       np.concatenate(rows), [name.tobytes().decode("utf-8") for name in names])
    # A run needs one of them or the other, and would ignore what that one is fed.
    for op in [made[0].op] + checks:
        forbid_feeding(op, range(len(op.outputs)))
    new = dict(zip([output.name for op in checks for output in op.outputs], made))
    return [new.get(one.name, one) for one in ids]


def _one_vector(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns vectors, which mostly are constants, as one."""
    values = [tensor_util.constant_value(part) for part in parts]
    return tf.concat(parts, 0) if any(value is None for value in values) \
        else tf.constant(np.concatenate(values))


def _numbers(vector: tf.Tensor, count: int) -> List[tf.Tensor]:
    """Returns the numbers of a vector, which mostly is constant, as a vector each."""
    value = tensor_util.constant_value(vector)
    return tf.split(vector, count) if value is None \
        else [tf.constant(value[at:at + 1]) for at in range(count)]


def _fill_norms(every: Sequence[Dict[str, List[tf.Tensor]]],
                given: Dict[str, List[tf.Tensor]]) -> None:
    """Gives lookups that are joined with others whose rows have a greatest norm none."""
    if given.get("norms"):
        none = tf.zeros([0], name="none")
        given["norms"] = [tensor for lists in every for tensor in
                          lists["norms"] or [none] * len(lists["handles"])]


def _can_join(op: tf.Operation) -> bool:
    """Whether a lookup is read, and stands where an op for many tables can."""
    # pylint: disable=protected-access
    return op.type in _ATTRIBUTES and any(output.consumers() for output in op.outputs) \
        and not op.control_inputs and op._get_control_flow_context() is None \
        and FUSED_ATTRIBUTE not in op.node_def.attr


def _form(op: tf.Operation) -> Tuple[Any, ...]:
    """What ops have in common of which one can be made."""
    lengths = tuple(length > 0 for name, length in list_lengths(op).items()
                    if name not in ("A", "L"))
    attributes = tuple(op.get_attr(name) for name in _ATTRIBUTES[op.type])
    return (op.type, op.device, lengths, may_move(op)) + attributes
