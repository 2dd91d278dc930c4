"""Lookups of many tables while a graph is modified: taken apart before the plan, joined behind it.

The plan decides on each lookup by itself. Ops for many tables are therefore taken apart first; what
stays in the step is joined again, and what moves claims its batch by one op for all tables, which
also read their rows by one op.
"""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2

from mx_rec.base.global_env_conf import groups_tables
from mx_rec.cluster.modified import apart as apart_by_key
from mx_rec.core.lookup import MOVABLE_ATTRIBUTE
from mx_rec.edits.replacing import FUSED_ATTRIBUTE, in_place_of, replace_each
from mx_rec.ops.lookups import (FIND, ID_OFFSET, Resolved, find_rows, find_together, is_claim,
                                member_of, read_rows, reads_ids, resolve)
from mx_rec.ops.optimizers import UPDATE, gradients_of

# The name of the op for many tables that a lookup was part of.
_GROUP_ATTRIBUTE = "_mx_rec_group"

# How many lists of outputs an op that looks up by ids has.
_OUTPUT_LISTS = {ID_OFFSET: 2, FIND: 1}

# The number attributes of lists that are as long as there are tables, or empty.
_LENGTHS = ("N", "P", "A", "B")


class Claim(NamedTuple):
    """A training lookup that moved, and what the pipeline has prepared for it.

    Attributes:
        op: Its op in the step.
        ids: Its ids.
        offsets: Prepared offsets.
        inverse: The prepared inverse.
    """

    op: tf.Operation
    ids: tf.Tensor
    offsets: tf.Tensor
    inverse: tf.Tensor


def take_apart(graph: tf.Graph) -> List[List[tf.Tensor]]:
    """Gives each lookup of a movable op for many tables an op of its own.

    Args:
        graph: A graph that no session has run.

    Returns:
        For each op that was taken apart the first output of each of its lookups.
    """
    taken = []  # type: List[List[tf.Tensor]]
    for op in graph.get_operations():
        if op.type not in _OUTPUT_LISTS or MOVABLE_ATTRIBUTE not in op.node_def.attr \
                or not op.get_attr(MOVABLE_ATTRIBUTE) or op.get_attr("N") == 1:
            continue
        with in_place_of(graph, op):
            parts = [_single(op, at) for at in range(op.get_attr("N"))]
        for part in parts:
            set_movable(part, True)
            part._set_attr(  # pylint: disable=protected-access
                _GROUP_ATTRIBUTE, attr_value_pb2.AttrValue(s=op.name.encode("utf-8")))
        set_movable(op, False)
        outputs = [part.outputs[at] for at in range(_OUTPUT_LISTS[op.type]) for part in parts]
        replace_each(op, outputs)
        taken.append([op.outputs[0] for op in parts])
    return taken


def join_again(graph: tf.Graph, taken: Sequence[Sequence[tf.Tensor]]) -> None:
    """Makes one op for many tables of the lookups that were taken apart and have not moved.

    Args:
        graph: The graph.
        taken: What `take_apart` returned.
    """
    for tensors in taken:
        ops = [tensor.op for tensor in tensors]
        for kind, make, other in ((ID_OFFSET, _many_offsets, "limit"),
                                  (FIND, lambda ops: [find_together(ops)], "B")):
            same = OrderedDict()  # type: Dict[Any, List[tf.Operation]]
            for op in ops:
                if op.type == kind and not is_claim(op) and FUSED_ATTRIBUTE not in op.node_def.attr:
                    same.setdefault((op.get_attr("T"), op.get_attr(other)), []).append(op)
            for together in same.values():
                if len(together) < 2:
                    continue
                with in_place_of(graph, together[0]):
                    lists = make(together)
                # Those of evaluation may have moved: their ids are what moves.
                set_movable(lists[0][0].op, any(op.get_attr(MOVABLE_ATTRIBUTE) for op in together))
                for at, op in enumerate(together):
                    set_movable(op, False)
                    replace_each(op, [values[at] for values in lists])


def claim_together(graph: tf.Graph, claims: Sequence[Claim]) -> List[Claim]:
    """Claims batches of many tables by one op, and reads their rows by one op.

    Those are lookups that belong together: they were made by one `sparse_lookup_many`, or one op
    updates their tables. A run that needs one of them then claims all of them, and may give keys of
    each table their rows. Lookups in branches and loops, and those that wait for other ops, are
    left alone.

    Args:
        graph: The graph.
        claims: The lookups that moved.

    Returns:
        Those that are left alone.
    """
    if not groups_tables():
        return list(claims)
    left = []  # type: List[Claim]
    same = OrderedDict()  # type: Dict[Any, List[Claim]]
    for claim in claims:
        op = claim.op
        group = _group_of(op)
        if group is not None and is_free(op):
            key = group, op.device, op.get_attr("T"), op.get_attr("limit")
            same.setdefault(key, []).append(claim)
        else:
            left.append(claim)
    for together in same.values():
        if len(together) < 2:
            left.extend(together)
            continue
        with in_place_of(graph, together[0].op):
            resolved = resolve(
                [claim.op.inputs[0] for claim in together], [claim.ids for claim in together],
                Resolved([claim.offsets for claim in together],
                         [claim.inverse for claim in together]),
                limit=together[0].op.get_attr("limit"), name="claim")
        readers = [_readers(claim.op) for claim in together]
        for at, claim in enumerate(together):
            replace_each(claim.op, list(resolved.of(at)))
        _embed_together(graph, [op for ops in readers for op in ops])
    return left


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


def _single(op: tf.Operation, at: int) -> tf.Operation:
    name, given = "lookup_{}".format(at), member_of(op, at)
    if op.type == FIND:
        bags = [[given[part]] if part in given else [] for part in ("ends", "weights", "divisors")]
        return find_rows([given["handles"]], [given["variables"]], [given["ids"]],
                         [given.get("absent")], bags, name=name)[0].op
    return resolve([given["handles"]], [given["ids"]], limit=op.get_attr("limit"),
                   name=name).offsets[0].op


def _many_offsets(ops: List[tf.Operation]) -> List[List[tf.Tensor]]:
    handles, ids = zip(*[op.inputs for op in ops])
    return list(resolve(handles, ids, limit=ops[0].get_attr("limit")))


def is_free(op: tf.Operation) -> bool:
    """Returns whether an op stands in no branch or loop and waits for nothing but its inputs.

    Args:
        op: Any op.
    """
    # pylint: disable=protected-access
    return not op.control_inputs and op._get_control_flow_context() is None


def _group_of(op: tf.Operation) -> Optional[str]:
    """The name of what a lookup and those that belong to it have in common, None without any."""
    if _GROUP_ATTRIBUTE in op.node_def.attr:
        return op.get_attr(_GROUP_ATTRIBUTE).decode("utf-8")
    updates = sorted(reader.name for reader in op.outputs[0].consumers()
                     if reader.type == UPDATE and _is_of_many(reader))
    return updates[0] if updates else None


def _is_of_many(update: tf.Operation) -> bool:
    """Whether an update is one for several tables, or takes columns of a concatenation."""
    given = gradients_of(update)
    return bool(given.columns) or len(set(handle.name for handle in given.handles)) > 1


def _readers(op: tf.Operation) -> List[tf.Operation]:
    """The ops that read the rows that a lookup has found, and can do so with those of others."""
    offsets, inverse = op.outputs
    return [reader for reader in offsets.consumers()
            if reads_ids(reader) and reader.get_attr("N") == 1 and is_free(reader)
            and reader.inputs[2] is offsets and reader.inputs[3] is inverse
            and FUSED_ATTRIBUTE not in reader.node_def.attr]


def _embed_together(graph: tf.Graph, readers: Sequence[tf.Operation]) -> None:
    """Reads the rows of several lookups by one op."""
    same = OrderedDict()  # type: Dict[str, List[tf.Operation]]
    for reader in readers:
        same.setdefault(reader.device, []).append(reader)
    for together in same.values():
        if len(together) < 2:
            continue
        inputs = [list(part) for part in zip(*[op.inputs for op in together])]
        with in_place_of(graph, together[0]):
            embeddings = read_rows(*inputs)
        for op, embedding in zip(together, embeddings):
            replace_each(op, [embedding])


def set_movable(op: tf.Operation, value: bool) -> None:
    """Says whether a lookup may be moved.

    Args:
        op: An op that looks up by ids.
        value: Whether it may.
    """
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
