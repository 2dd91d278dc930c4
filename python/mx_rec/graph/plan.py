"""The plan of a graph modification: what the pass of the plugin decided, in words and data."""

import ctypes
import json
import struct
from typing import Any, Dict, List, NamedTuple, Optional

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec import plugin
from mx_rec.base.global_env_conf import fuses_lookups
from mx_rec.base.log import logger
from mx_rec.core.lookup import MOVABLE_ATTRIBUTE
from mx_rec.graph.fusions import (Concat, Sums, Updates, read_concats, read_sums, read_updates,
                                    text_of_concats, text_of_sums, text_of_updates)
from mx_rec.ops.lookups import FIND, ID_OFFSET
from mx_rec.ops.registered import registered_ops

TRAIN = "train"
EVAL = "eval"
ADMIT = "admit"
SPLIT = "split"
ONE_SHOT = "one_shot"

# The ops that look up by ids, of those that graph modification may move.
TRAINING_LOOKUPS = (ID_OFFSET, "MxRecObserve")
_LOOKUPS = TRAINING_LOOKUPS + (FIND, "MxRecDistinctSplit")

# What the text of a plan calls lookups of a kind.
_SPOKEN = {EVAL: "evaluation lookup", SPLIT: "lookup on parameter servers"}

# What the plugin asks for shapes, and the most dimensions that it takes.
_MOST_DIMS = 16
_SHAPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                          ctypes.c_uint64, ctypes.POINTER(ctypes.c_int64))

# So many moved ops are named in the text of a plan.
_SHOWN = 20


class Lookup(NamedTuple):
    """One lookup that may be moved.

    Attributes:
        node: Name of its op: MxRecIdOffset (training), MxRecObserve (training with admission),
            MxRecFind (evaluation), or MxRecDistinctSplit (of a table on parameter servers).
        kind: "train", "admit", "eval" or "split".
        table: Name of its table.
        handle: Name of the tensor that is the table's handle.
        ids: Name of the tensor of its ids.
        moves: Whether it moves into the input pipeline.
        iterator: Which of `Plan.iterators` feeds it; None if it stays.
        reason: Why it moves or stays, one sentence.
    """

    node: str
    kind: str
    table: str
    handle: str
    ids: str
    moves: bool
    iterator: Optional[int]
    reason: str


class Ids(NamedTuple):
    """The ids of one or several lookups of an iterator.

    Attributes:
        tensor: Their name in the graph.
        component: Which component of the iterator's element they are; None if they are computed.
        dtype: TensorFlow's number of their type.
    """

    tensor: str
    component: Optional[int]
    dtype: int


class Iterator(NamedTuple):
    """An iterator whose pipeline takes over work of the step.

    Attributes:
        get_next: Name of the op that reads it.
        iterator: Name of the op that is it.
        kind: "initializable" or "one_shot".
        initializers: Names of the MakeIterator ops; several for a reinitializable one.
        components: Number of tensors of its element.
        lookups: Positions in `Plan.lookups`.
        ids: Distinct ids of these lookups.
        bags: Names of the tensors that describe bags of these lookups and move with their ids.
        nodes: Names of the ops whose copies compute ids and bags, inputs before consumers.
        graph: These ops as a GraphDef; inputs from outside are components of get_next.
    """

    get_next: str
    iterator: str
    kind: str
    initializers: List[str]
    components: int
    lookups: List[int]
    ids: List[Ids]
    bags: List[str]
    nodes: List[str]
    graph: graph_pb2.GraphDef


class Group(NamedTuple):
    """Lookups of one verb that share an op.

    Attributes:
        op: The type of their ops.
        nodes: Their names.
        reason: Why they do, one sentence.
    """

    op: str
    nodes: List[str]
    reason: str


class Plan(NamedTuple):
    """What a modification would change.

    Attributes:
        nodes: Number of nodes of the graph.
        lookups: All lookups made with modify_graph=True, in the order of the graph.
        iterators: The iterators that feed those that move.
        sums: The lookups whose rows are summed over bags; none where MXREC_FUSE_LOOKUPS is 0.
        concats: The concatenations of lookups; none there, either.
        together: The lookups that share an op.
        updates: The updates that change.
    """

    nodes: int
    lookups: List[Lookup]
    iterators: List[Iterator]
    sums: List[Sums] = []
    concats: List[Concat] = []
    together: List[Group] = []
    updates: List[Updates] = []

    def text(self) -> str:
        """Returns the plan for a person to read, several lines."""
        moving = sum(lookup.moves for lookup in self.lookups)
        lines = ["{} nodes, {} that may be moved: {} move, {} stay.".format(
            self.nodes, _count(len(self.lookups), "lookup"), moving, len(self.lookups) - moving)]
        for iterator in self.iterators:
            lines.append("")
            lines.append("{} iterator {}, read by {}, {}:".format(
                iterator.kind.replace("_", "-"), iterator.iterator, iterator.get_next,
                _count(iterator.components, "component")))
            for position in iterator.lookups:
                lines.append("  moves  " + _line(self.lookups[position]))
            if iterator.nodes:
                shown = ", ".join(iterator.nodes[:_SHOWN])
                rest = len(iterator.nodes) - _SHOWN
                lines.append("  with   {}: {}{}".format(
                    _count(len(iterator.nodes), "op"), shown,
                    " and {} more".format(rest) if rest > 0 else ""))
            if iterator.initializers:
                lines.append("  starts by {}".format(", ".join(iterator.initializers)))
        staying = [lookup for lookup in self.lookups if not lookup.moves]
        if staying:
            lines.append("")
            lines.append("in the step as before:")
            lines.extend("  stays  " + _line(lookup) for lookup in staying)
        lines.extend(text_of_sums(self.sums))
        lines.extend(text_of_concats(self.concats))
        lines.extend(text_of_updates(self.updates))
        together = [group for group in self.together if len(group.nodes) > 1]
        if together:
            lines.extend(["", "lookups that share an op:"])
        for group in together:
            shown = ", ".join(group.nodes[:_SHOWN])
            rest = len(group.nodes) - _SHOWN
            lines.append("  joins  {} of {}{}: {}".format(
                _count(len(group.nodes), group.op), shown,
                " and {} more".format(rest) if rest > 0 else "", group.reason))
        return "\n".join(lines) + "\n"


def make_plan(graph_def: bytes, op_list: Optional[bytes] = None,
              graph: Optional[tf.Graph] = None) -> Plan:
    """Finds out which lookups of a graph can move into its input pipelines.

    Args:
        graph_def: A serialized GraphDef.
        op_list: A serialized OpList, which says what ops keep state; ops that it lacks never
            move. None is all ops that this process has loaded.
        graph: The graph that this is, which is asked for static shapes; None for those that the
            GraphDef states (`add_shapes`).

    Returns:
        The plan; nothing is changed.

    Raises:
        ValueError: If the bytes are no GraphDef or no OpList.
        ImportError: If the plugin cannot be loaded.
    """
    plugin.load()
    result = _call(graph_def, registered_ops() if op_list is None else op_list, graph)
    (length,) = struct.unpack_from("<Q", result)
    described = json.loads(result[8:8 + length].decode("utf-8"))
    raw = result[8 + length:]
    lookups = [Lookup(**{field: entry[field] for field in Lookup._fields})
               for entry in described["lookups"]]
    iterators = [_iterator(entry, raw) for entry in described["iterators"]]
    together = [Group(**entry) for entry in described["together"]]
    plan = Plan(described["nodes"], lookups, iterators, together=together,
                updates=read_updates(described["updates"]))
    for rule in described["left_out"]:
        logger.warning("graph pass: a rule failed and changes nothing: %s", rule)
    if not fuses_lookups():
        return plan
    return plan._replace(sums=read_sums(described["sums"]),
                         concats=read_concats(described["concats"]))


def is_movable(op: tf.Operation) -> bool:
    """Returns whether an op is a lookup that a graph modification may move.

    Lookups of an imported graph count as well: the mark is an attribute of the op.
    """
    return op.type in _LOOKUPS and MOVABLE_ATTRIBUTE in op.node_def.attr \
        and op.get_attr(MOVABLE_ATTRIBUTE)


def _iterator(entry: Dict[str, Any], raw: bytes) -> Iterator:
    start, length = entry["graph"]
    graph = graph_pb2.GraphDef.FromString(raw[start:start + length])
    ids = [Ids(one["tensor"], one["component"], one["dtype"]) for one in entry["ids"]]
    values = dict(entry, graph=graph, ids=ids)
    return Iterator(**{field: values[field] for field in Iterator._fields})


def _call(graph_def: bytes, op_list: bytes, graph: Optional[tf.Graph]) -> bytes:
    """Calls the pass of the plugin."""
    shape_of = _SHAPE() if graph is None else _SHAPE(lambda *asked: _shape_of(graph, *asked))
    status, result = plugin.call("mx_rec_plan", graph_def, len(graph_def), op_list, len(op_list),
                                 shape_of, None)
    if status != 0:
        raise ValueError("the graph cannot be read: {}".format(result.decode("utf-8", "replace")))
    return result


def _shape_of(graph: tf.Graph, _: Any, name: Any, length: int, output: int, sizes: Any) -> int:
    """Tells the plugin the static shape of a tensor of a graph: see include/mx_rec.h."""
    try:
        op = graph.get_operation_by_name(ctypes.string_at(name, length).decode("utf-8"))
        shape = op.outputs[output].shape
        if shape.rank is None or shape.rank > _MOST_DIMS:
            return -1
        for at, size in enumerate(shape.as_list()):
            sizes[at] = -1 if size is None else size
        return shape.rank
    except Exception:  # pylint: disable=broad-except
        # A node that this graph has not: its shape is what the GraphDef says. Nothing may be raised
        # through the plugin.
        return -1


def _line(lookup: Lookup) -> str:
    return "{} {} of the table {!r} by {}: {}".format(
        _SPOKEN.get(lookup.kind, "training lookup"), lookup.node, lookup.table, lookup.ids,
        lookup.reason)


def _count(number: int, what: str) -> str:
    return "{} {}{}".format(number, what, "" if number == 1 else "s")
