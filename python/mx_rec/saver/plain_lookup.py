"""One lookup in TensorFlow's own ops, as nodes that take the place of an op of the plugin."""

from typing import Any, Dict, List, NamedTuple, Optional

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.saver.plain_rows import PlainTable, mixed_tensor

# Ops by which a tensor from outside comes into a branch or a loop.
_ENTER = ("Enter", "RefEnter")
PASSING = _ENTER + ("Switch", "RefSwitch", "Identity")


class Lookup(NamedTuple):
    """An op of the plugin that looks rows up.

    Attributes:
        node: The op, whose output the embeddings are.
        table: Name of the op that makes the table.
        ids: Name of the tensor of ids, int32 or int64, of any shape.
        ids_type: Its dtype.
        absent: Name of the tensor with the rows of ids without one, None for zeros: float32 of
            shape (0, dim), (1, dim) or (number of ids, dim).
        absent_rows: Its first size if that is known.
        path: Nodes through which the table comes into a branch or a loop, the outermost first.
    """

    node: node_def_pb2.NodeDef
    table: str
    ids: str
    ids_type: tf.DType
    absent: Optional[str]
    absent_rows: Optional[int]
    path: List[node_def_pb2.NodeDef]

    @property
    def is_in_loop(self) -> bool:
        """Whether it is in a loop, whose ops need inputs of the loop."""
        return any(node.op in _ENTER for node in self.path)


def lookup_nodes(lookup: Lookup, table: PlainTable, names: List[str]
                 ) -> List[node_def_pb2.NodeDef]:
    """Returns the nodes of a lookup; the last has the name of the op that they replace.

    Args:
        lookup: What is replaced.
        table: The table.
        names: Names of the tensors of its index and its chunks.
    """
    prefix = lookup.node.name + "/plain/"
    nodes = []  # type: List[node_def_pb2.NodeDef]
    inputs = {"ids": lookup.ids, "absent": lookup.absent}  # type: Dict[str, Optional[str]]
    for number, name in enumerate(names):
        for level, node in enumerate(lookup.path):
            if node.op not in _ENTER:
                # Where the ids of a branch are dead, so is all that takes them.
                continue
            enter = node_def_pb2.NodeDef()
            enter.CopyFrom(node)
            enter.op, enter.name = "Enter", "{}enter_{}_{}".format(prefix, number, level)
            enter.attr["T"].type = tf.resource.as_datatype_enum
            del enter.input[:]
            enter.input.append(name)
            nodes.append(enter)
            name = enter.name
        inputs["resource_{}".format(number)] = name
    controls = [name for name in lookup.node.input if name.startswith("^")]
    for node in _template(lookup, table):
        if node.name in inputs:
            continue
        for place, name in enumerate(node.input):
            source = inputs.get(name.split(":")[0])
            node.input[place] = prefix + name if source is None else source
        if lookup.is_in_loop and not node.input:
            # A constant is of the loop if something of the loop comes before it.
            node.input.append("^" + lookup.ids.split(":")[0])
        node.device = lookup.node.device
        if node.name == "result":
            node.name = lookup.node.name
            node.input.extend(controls)
        else:
            node.name = prefix + node.name
        nodes.append(node)
    return nodes


def _template(lookup: Lookup, table: PlainTable) -> Any:
    """Returns the nodes of a lookup; placeholders stand for what comes from outside."""
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(lookup.ids_type, name="ids")
        absent = None
        if lookup.absent is not None and lookup.absent_rows != 0:
            absent = tf.compat.v1.placeholder(tf.float32, [lookup.absent_rows, table.dim],
                                              name="absent")
        resources = [tf.compat.v1.placeholder(tf.resource, [], name="resource_{}".format(number))
                     for number in range(1 + len(table.chunks))]
        tf.identity(_look_up(ids, absent, table, resources[0], resources[1:]), name="result")
        return graph.as_graph_def().node


def _look_up(ids: tf.Tensor, absent: Optional[tf.Tensor], table: PlainTable, index: tf.Tensor,
             chunks: List[tf.Tensor]) -> tf.Tensor:
    """Adds the ops: the rows of ids, of shape ids.shape + [dim].

    Args:
        ids: int32 or int64 of any shape.
        absent: As `Lookup.absent`.
        table: The table.
        index: Resource of its hash table.
        chunks: Resources of its rows.
    """
    keys = tf.reshape(tf.cast(ids, tf.int64), [-1])
    is_padding = tf.equal(keys, PADDING_KEY)
    words = mixed_tensor(keys)
    is_reserved = tf.logical_or(tf.equal(words, table.reserved[0]),
                                tf.equal(words, table.reserved[1]))
    substitute = tf.fill(tf.shape(words), tf.constant(table.substitute, tf.int64))
    words = tf.compat.v1.where(is_reserved, substitute, words)
    numbers = tf.raw_ops.LookupTableFindV2(table_handle=index, keys=words,
                                           default_value=tf.constant(table.count, tf.int32))
    numbers = tf.ensure_shape(numbers, [None])
    rows = tf.ensure_shape(_gather(numbers, table, chunks), [None, table.dim])
    if absent is not None:
        if tf.compat.dimension_value(absent.shape[0]) is None:
            # No row stands for a row of zeros.
            missing = tf.cast(tf.equal(tf.shape(absent)[0], 0), tf.int32)
            absent = tf.concat([absent, tf.zeros([missing, table.dim])], 0)
        default = tf.broadcast_to(absent, tf.shape(rows))
        is_absent = tf.logical_and(tf.equal(numbers, table.count), tf.logical_not(is_padding))
        rows = tf.compat.v1.where(is_absent, default, rows)
    return tf.reshape(rows, tf.concat([tf.shape(ids), [table.dim]], 0))


def _gather(numbers: tf.Tensor, table: PlainTable, chunks: List[tf.Tensor]) -> tf.Tensor:
    """Returns the rows of row numbers, an int32 vector."""
    if len(chunks) == 1:
        return tf.raw_ops.ResourceGather(resource=chunks[0], indices=numbers, dtype=tf.float32)
    part = numbers // table.chunk_rows
    numbers = numbers - part * table.chunk_rows
    places = tf.dynamic_partition(tf.range(tf.size(numbers)), part, len(chunks))
    numbers = tf.dynamic_partition(numbers, part, len(chunks))
    return tf.dynamic_stitch(places, [
        tf.raw_ops.ResourceGather(resource=chunk, indices=ones, dtype=tf.float32)
        for chunk, ones in zip(chunks, numbers)])


__all__ = [
    "PASSING",
    "Lookup",
    "lookup_nodes",
]  # type: List[str]
