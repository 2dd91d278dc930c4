"""The plan of a graph modification: what the pass of the plugin decided, in words and data."""

import ctypes
import json
import struct
from typing import Any, List, NamedTuple, Optional

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec import plugin
from mx_rec.base.command import counted
from mx_rec.base.log import logger
from mx_rec.ops.lookups import ID_OFFSET
from mx_rec.ops.registered import registered_ops
from mx_rec.state.settings import Settings

TRAIN = "train"
EVAL = "eval"
ADMIT = "admit"
SPLIT = "split"
ONE_SHOT = "one_shot"

# The ops that look up by ids in training, of those that graph modification may move.
TRAINING_LOOKUPS = (ID_OFFSET, "MxRecObserve")

# What the text of a plan calls lookups of a kind.
_SPOKEN = {EVAL: "evaluation lookup", SPLIT: "lookup on parameter servers"}

# What the plugin asks for shapes, and the most dimensions that it takes.
_MOST_DIMS = 16
_SHAPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                          ctypes.c_uint64, ctypes.POINTER(ctypes.c_int64))

# So many moved ops are named in the text of a plan, and so many tables or updates of one op.
_SHOWN = 20
MOST_NAMES = 5


class Record(dict):  # type: ignore
    """One thing that a plan tells of: its fields by their names, which can be read as attributes.

    tf_ops/src/graph says what they are: PlannedLookup, PlannedIterator and others of their kind.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Plan(NamedTuple):
    """What a modification would change.

    Attributes:
        nodes: Number of nodes of the graph.
        lookups: All lookups made with modify_graph=True, in the order of the graph.
        iterators: The iterators that feed those that move; `graph` is the GraphDef of their nodes.
        sums: The lookups whose rows are summed over bags; none after `init(graph_pass=False)`.
        concats: The concatenations of lookups; none there, either.
        together: The lookups that share an op; none there, either.
        updates: The updates that change; none there, either.
        requests: The lookups on parameter servers that share requests; none there, either.
    """

    nodes: int
    lookups: List[Record]
    iterators: List[Record]
    sums: List[Record] = []
    concats: List[Record] = []
    together: List[Record] = []
    updates: List[Record] = []
    requests: List[Record] = []

    def text(self) -> str:
        """Returns the plan for a person to read, several lines."""
        moving = sum(lookup.moves for lookup in self.lookups)
        lines = ["{} nodes, {} that may be moved: {} move, {} stay.".format(
            self.nodes, counted(len(self.lookups), "lookup"), moving, len(self.lookups) - moving)]
        for iterator in self.iterators:
            lines.append("")
            lines.append("{} iterator {}, read by {}, {}:".format(
                iterator.kind.replace("_", "-"), iterator.iterator, iterator.get_next,
                counted(iterator.components, "component")))
            for position in iterator.lookups:
                lines.append("  moves  " + _line(self.lookups[position]))
            if iterator.nodes:
                lines.append("  with   {}: {}".format(counted(len(iterator.nodes), "op"),
                                                     few(iterator.nodes, _SHOWN)))
            if iterator.initializers:
                lines.append("  starts by {}".format(", ".join(iterator.initializers)))
        staying = [lookup for lookup in self.lookups if not lookup.moves]
        for title, told in (
                ("in the step as before:", ["stays  " + _line(lookup) for lookup in staying]),
                ("sums over bags:", map(_text_of_sums, self.sums)),
                ("concatenations of lookups:", map(_text_of_concat, self.concats)),
                ("updates:", map(_text_of_updates, self.updates)),
                ("lookups that share an op:", map(_text_of_group, self.together)),
                ("lookups on parameter servers that share requests:",
                 map(self._text_of_requests, self.requests))):
            found = ["  " + text for text in told]
            lines.extend(["", title] + found if found else [])
        return "\n".join(lines) + "\n"

    def _text_of_requests(self, one: Record) -> str:
        where = "in the step" if one.iterator is None else "in the pipeline of {}".format(
            self.iterators[one.iterator].iterator)
        return "joins  {} {}: {}".format(few(one.nodes, _SHOWN), where, one.reason)


def make_plan(graph_def: bytes, op_list: Optional[bytes] = None,
              graph: Optional[tf.Graph] = None, moves: bool = True) -> Plan:
    """Finds out what changes in a graph: what is fused, what is joined, and what moves.

    Args:
        graph_def: A serialized GraphDef.
        op_list: A serialized OpList, which says what ops keep state; ops that it lacks never
            move. None is all ops that this process has loaded.
        graph: The graph that this is, which is asked for static shapes; None for those that the
            GraphDef states (`add_shapes`).
        moves: Whether lookups are to move into the input pipelines; without it the plan has none.

    Returns:
        The plan; nothing is changed.

    Raises:
        ValueError: If the bytes are no GraphDef or no OpList.
        ImportError: If the plugin cannot be loaded.
    """
    plugin.load()
    result = _call(graph_def, registered_ops() if op_list is None else op_list, graph, moves)
    (length,) = struct.unpack_from("<Q", result)
    described = json.loads(result[8:8 + length].decode("utf-8"), object_hook=Record)
    for iterator in described.iterators:
        start, size = iterator.graph
        start += 8 + length
        iterator["graph"] = graph_pb2.GraphDef.FromString(result[start:start + size])
    for rule in described.left_out:
        logger.warning("graph pass: a rule failed and changes nothing: %s", rule)
    plan = Plan(**{name: described[name] for name in Plan._fields})
    return plan if Settings.passes_graphs() \
        else plan._replace(sums=[], concats=[], together=[], updates=[], requests=[])


def _call(graph_def: bytes, op_list: bytes, graph: Optional[tf.Graph], moves: bool) -> bytes:
    """Calls the pass of the plugin."""
    shape_of = _SHAPE() if graph is None else _SHAPE(lambda *asked: _shape_of(graph, *asked))
    status, result = plugin.call("mx_rec_plan", graph_def, len(graph_def), op_list, len(op_list),
                                 int(moves), shape_of, None)
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


def _text_of_updates(one: Record) -> str:
    return "{}  {}: {}".format("joins" if len(one.updates) > 1 else "fuses",
                               few([part.node for part in one.updates]), one.reason)


def _text_of_concat(one: Record) -> str:
    tables = list(dict.fromkeys(repr(part.table) for part in one.parts))
    return "{}  {} of {} lookups of {}: {}".format(
        "fuses" if one.fuses else "stays", one.node, len(one.parts), few(tables),
        one.reason)


def _text_of_sums(one: Record) -> str:
    sums = " and ".join("the {}{} {}".format("weighted " if one.weights else "", part.combiner,
                                             part.node) for part in one.sums)
    return "{}  {} over bags of {} of the table {!r}: {}".format(
        "fuses" if one.fuses else "stays", sums, one.lookup, one.table, one.reason)


def _text_of_group(one: Record) -> str:
    return "joins  {} of {}: {}".format(counted(len(one.nodes), one.op), few(one.nodes, _SHOWN),
                                        one.reason)


def few(names: List[str], most: int = MOST_NAMES) -> str:
    """Returns the first of some names in words, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (" and {} more".format(rest) if rest > 0 else "")


def _line(lookup: Record) -> str:
    return "{} {} of the table {!r} by {}: {}".format(
        _SPOKEN.get(lookup.kind, "training lookup"), lookup.node, lookup.table, lookup.ids,
        lookup.reason)
