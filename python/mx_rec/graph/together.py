"""Lookups that share an op: those of many tables are taken apart before the plan, which decides on
each lookup by itself; behind all other changes one op does the work of those that the plan groups.
"""

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2

from mx_rec.cluster.modified import apart as apart_by_key
from mx_rec.core.lookup import MOVABLE_ATTRIBUTE
from mx_rec.edits.replacing import FUSED_ATTRIBUTE, in_place_of, replace_each, replace_ops
from mx_rec.ops.lookups import (FIND, GROUP_ATTRIBUTE, ID_OFFSET, READ, Resolved, find_rows,
                                mark_group, read_rows, resolve)
from mx_rec.ops.shapes import list_lengths, lists_of

# How many lists of outputs an op that looks up by ids has.
_OUTPUT_LISTS = {ID_OFFSET: 2, FIND: 1}

# The number attributes of lists that are as long as there are tables, or empty.
_LENGTHS = ("N", "P", "A", "B", "L")

# The attributes that ops have in common which are joined, by their type.
_ATTRIBUTES = {ID_OFFSET: ("T", "create", "limit"), FIND: ("T",), READ: ()}


def take_apart(graph: tf.Graph, ops: Iterable[tf.Operation]) -> None:
    """Gives each lookup of a movable op for many tables an op of its own.

    Args:
        graph: The graph.
        ops: Ops that no session has run.
    """
    for op in ops:
        if op.type not in _OUTPUT_LISTS or not _is_movable(op) or op.get_attr("N") == 1:
            continue
        lists = lists_of(op)
        with in_place_of(graph, op):
            parts = [_made(op, {name: tensors[at:at + 1] for name, tensors in lists.items()},
                           "lookup_{}".format(at)) for at in range(op.get_attr("N"))]
        for part in parts:
            _set_movable(part[0].op, True)
            mark_group(part[0].op, op.name)
        _set_movable(op, False)
        replace_each(op, [part[at] for at in range(_OUTPUT_LISTS[op.type]) for part in parts])


class Together:
    """The lookups that share an op, while other rules change what they are.

    Args:
        graph: A graph that no session has run.
        planned: What the plan says of them.
    """

    def __init__(self, graph: tf.Graph, planned: Iterable[Any]) -> None:
        self._graph = graph
        self.groups = [group.nodes for group in planned]
        # The outputs of other ops that take the place of these become these tensor objects.
        self._outputs = {name: list(graph.get_operation_by_name(name).outputs)
                         for group in self.groups for name in group}

    def join(self, pooled: Dict[str, List[tf.Operation]]) -> List[tf.Operation]:
        """Makes one op of the lookups of each group that now have the same form.

        Args:
            pooled: By the names of lookups the ops that read rows of bags in their place.

        Returns:
            The ops that do the work of several lookups.
        """
        joined = []  # type: List[tf.Operation]
        for group in self.groups:
            same = OrderedDict()  # type: Dict[Any, Dict[tf.Operation, None]]
            for name in group:
                for op in [output.op for output in self._outputs[name]] + pooled.get(name, []):
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
        with in_place_of(self._graph, first):
            _fill_norms(every, given)
            made = _made(first, given, "together")
        if first.type in _OUTPUT_LISTS:
            _set_movable(made[0].op, _is_movable(first))
        members = len(given["handles"])
        values, at = [], 0  # type: List[List[tf.Tensor]], int
        for op in together:
            own = op.get_attr("N")
            _set_movable(op, False)
            values.append([tensor for begin in range(at, len(made), members)
                           for tensor in made[begin:begin + own]][:len(op.outputs)])
            at += own
        replace_ops(together, values)
        return made[0].op


def apart(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """Returns a GraphDef in which each lookup of a movable op for many tables is a node of its own.

    Args:
        graph_def: A GraphDef, which stays as it is.
    """
    graph_def = apart_by_key(graph_def)
    many = {node.name: node for node in graph_def.node
            if node.op in _OUTPUT_LISTS and node.attr[MOVABLE_ATTRIBUTE].b
            and node.attr["N"].i > 1}
    if not many:
        return graph_def
    result = graph_pb2.GraphDef()
    result.CopyFrom(graph_def)
    del result.node[:]
    for node in graph_def.node:
        if node.name in many:
            result.node.extend(_single_nodes(node))
            continue
        copy = result.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        for source in node.input:
            copy.input.extend(_sources(source, many))
    return result


def _made(op: tf.Operation, given: Dict[str, List[tf.Tensor]], name: str) -> List[tf.Tensor]:
    """Adds an op that does for some tables what another one does; returns its outputs."""
    bags = [given.get(part, []) for part in ("ends", "weights", "divisors")]
    norms = given.get("norms", [])
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
    return (op.type, op.device, lengths, _is_movable(op)) + attributes


def _is_movable(op: tf.Operation) -> bool:
    return MOVABLE_ATTRIBUTE in op.node_def.attr and op.get_attr(MOVABLE_ATTRIBUTE)


def _set_movable(op: tf.Operation, value: bool) -> None:
    """Says whether a lookup may be moved."""
    op._set_attr(  # pylint: disable=protected-access
        MOVABLE_ATTRIBUTE, attr_value_pb2.AttrValue(b=value))


def _single_nodes(node: Any) -> List[Any]:
    """The nodes of the lookups of a node for many tables."""
    members = node.attr["N"].i
    data = [source for source in node.input if not source.startswith("^")]
    waits = [source for source in node.input if source.startswith("^")]
    nodes = []
    for at in range(members):
        one = graph_pb2.GraphDef().node.add()
        one.name = _name_of(node.name, at)
        one.op = node.op
        one.device = node.device
        one.input.extend(data[at::members] + waits)
        for key in ("T", "create", "limit", "initial", MOVABLE_ATTRIBUTE):
            if key in node.attr:
                one.attr[key].CopyFrom(node.attr[key])
        for key in _LENGTHS:
            if key in node.attr:
                one.attr[key].i = min(node.attr[key].i, 1)
        one.attr[GROUP_ATTRIBUTE].s = node.name.encode("utf-8")
        nodes.append(one)
    return nodes


def _name_of(name: str, at: int) -> str:
    return "{}/lookup_{}".format(name, at)


def _sources(source: str, many: Dict[str, Any]) -> List[str]:
    """What stands for an input that may be an output of a node for many tables."""
    name, _, place = source.lstrip("^").partition(":")
    if name not in many:
        return [source]
    members = many[name].attr["N"].i
    if source.startswith("^"):
        return ["^" + _name_of(name, at) for at in range(members)]
    output, at = divmod(int(place or 0), members)
    return ["{}:{}".format(_name_of(name, at), output)]
