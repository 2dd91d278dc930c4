"""Lookups in TensorFlow's own ops, as nodes that take the place of an op of the plugin."""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.export.plain_rows import PlainTable, mixed_tensor

# Ops by which a tensor from outside comes into a branch or a loop.
_ENTER = ("Enter", "RefEnter")
PASSING = _ENTER + ("Switch", "RefSwitch", "Identity")


class TableUse(NamedTuple):
    """A table that an op of the plugin reads.

    Attributes:
        table: Name of the op that makes it.
        path: Nodes through which it comes into a branch or a loop, the outermost first.
    """

    table: str
    path: List[node_def_pb2.NodeDef]


class Source(NamedTuple):
    """A tensor from outside that the ops of a replacement read.

    Attributes:
        name: Its name, as an input of a node.
        dtype: Its dtype.
        shape: What is known of its shape.
    """

    name: str
    dtype: tf.DType
    shape: tf.TensorShape


class OpenTable(NamedTuple):
    """A table where it is read.

    Attributes:
        plain: The table.
        index: Resource of its hash table.
        chunks: Resources of its rows.
    """

    plain: PlainTable
    index: tf.Tensor
    chunks: List[tf.Tensor]


# Adds ops that give the outputs of an op of the plugin, from its sources and its tables.
Make = Callable[[List[tf.Tensor], List[OpenTable]], List[tf.Tensor]]


class Replaced(NamedTuple):
    """An op of the plugin that TensorFlow's own ops stand for.

    Attributes:
        node: The op.
        tables: The tables that it reads.
        sources: What else it reads; at least one.
        make: Adds the ops.
    """

    node: node_def_pb2.NodeDef
    tables: List[TableUse]
    sources: List[Source]
    make: Make

    @property
    def may_be_in_loop(self) -> bool:
        """Whether it may be in a loop, whose ops need inputs of the loop."""
        return not self.tables or any(node.op in _ENTER for use in self.tables
                                      for node in use.path)


def replacing_nodes(replaced: Replaced, tables: List[PlainTable], names: List[List[str]]
                    ) -> List[node_def_pb2.NodeDef]:
    """Returns the nodes that replace an op; the last has its name and its outputs.

    Args:
        replaced: The op.
        tables: The tables that it reads.
        names: For each of them the names of the tensors of its index and its chunks.
    """
    prefix = replaced.node.name + "/plain/"
    nodes = []  # type: List[node_def_pb2.NodeDef]
    inputs = {_input(place): source.name for place, source in enumerate(replaced.sources)}
    for at, (use, of_table) in enumerate(zip(replaced.tables, names)):
        for number, name in enumerate(of_table):
            for level, node in enumerate(use.path):
                if node.op not in _ENTER:
                    # Where the ids of a branch are dead, so is all that takes them.
                    continue
                enter = node_def_pb2.NodeDef()
                enter.CopyFrom(node)
                enter.op = "Enter"
                enter.name = "{}enter_{}_{}_{}".format(prefix, at, number, level)
                enter.attr["T"].type = tf.resource.as_datatype_enum
                del enter.input[:]
                enter.input.append(name)
                nodes.append(enter)
                name = enter.name
            inputs[_resource(at, number)] = name
    controls = [name for name in replaced.node.input if name.startswith("^")]
    result = None  # type: Optional[node_def_pb2.NodeDef]
    for node in _template(replaced, tables):
        if node.name in inputs:
            continue
        for place, name in enumerate(node.input):
            if name.startswith("^"):
                node.input[place] = "^" + prefix + name[1:]
                continue
            node.input[place] = inputs.get(name.split(":")[0], prefix + name)
        if replaced.may_be_in_loop and not node.input:
            # A constant is of the loop if something of the loop comes before it.
            node.input.append("^" + replaced.sources[0].name.split(":")[0])
        node.device = replaced.node.device
        if node.name == "result":
            result = node
            continue
        node.name = prefix + node.name
        nodes.append(node)
    result.name = replaced.node.name
    result.input.extend(controls)
    return nodes + [result]


def _input(place: int) -> str:
    return "input_{}".format(place)


def _resource(table: int, number: int) -> str:
    return "resource_{}_{}".format(table, number)


def _template(replaced: Replaced, tables: List[PlainTable]) -> Any:
    """Returns the nodes of a replacement; placeholders stand for what comes from outside."""
    with tf.Graph().as_default() as graph:
        placeholder = tf.compat.v1.placeholder
        sources = [placeholder(source.dtype, source.shape, name=_input(place))
                   for place, source in enumerate(replaced.sources)]
        opened = []
        for at, table in enumerate(tables):
            resources = [placeholder(tf.resource, [], name=_resource(at, number))
                         for number in range(1 + len(table.chunks))]
            opened.append(OpenTable(table, resources[0], resources[1:]))
        results = replaced.make(sources, opened)
        if len(results) == 1:
            tf.identity(results[0], name="result")
        else:
            tf.identity_n(results, name="result")
        return graph.as_graph_def().node


def finding(has_absent: List[bool], side_by_side: bool, sources: List[tf.Tensor],
            tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes lookups.

    Its sources are for each lookup the ids, int32 or int64 of any shape, and, if `has_absent` says
    so, the rows of ids without one: float32 of shape (0, dim), (1, dim) or (number of ids, dim).

    Args:
        has_absent: For each lookup whether there are such rows.
        side_by_side: Whether the embeddings are concatenated along their last dimension.
    """
    given = iter(sources)
    results = []
    for table, has in zip(tables, has_absent):
        ids = next(given)
        rows, _ = find_rows(ids, next(given) if has else None, table)
        results.append(tf.reshape(rows, tf.concat([tf.shape(ids), [table.plain.dim]], 0)))
    return [tf.concat(results, -1)] if side_by_side else results


def find_rows(ids: tf.Tensor, absent: Optional[tf.Tensor],
              table: OpenTable) -> Tuple[tf.Tensor, tf.Tensor]:
    """Adds the ops that find rows.

    Args:
        ids: int32 or int64 of any shape.
        absent: The rows of ids without one, None for zeros.
        table: The table.

    Returns:
        The rows of ids, float32 (number of ids, dim), and for each whether the table or `absent`
        has it, bool (number of ids); the others are zeros.
    """
    plain = table.plain
    keys = tf.reshape(tf.cast(ids, tf.int64), [-1])
    numbers = row_numbers(mixed_tensor(keys), table)
    if plain.is_updated:
        # Of keys that were removed.
        numbers = tf.compat.v1.where(tf.less(numbers, 0), tf.fill(
            tf.shape(numbers), tf.constant(plain.absent, tf.int32)), numbers)
    rows = plain.storage.decode(_gather(numbers, plain, table.chunks), plain.dim)
    is_found = tf.not_equal(numbers, plain.absent)
    if absent is None:
        return rows, is_found
    is_absent = tf.logical_not(tf.logical_or(is_found, tf.equal(keys, PADDING_KEY)))
    if tf.compat.dimension_value(absent.shape[0]) is None:
        # No row stands for a row of zeros.
        has_rows = tf.greater(tf.shape(absent)[0], 0)
        missing = 1 - tf.cast(has_rows, tf.int32)
        absent = tf.concat([absent, tf.zeros([missing, plain.dim])], 0)
        is_given = tf.logical_and(is_absent, has_rows)
    else:
        is_given = is_absent
    default = tf.broadcast_to(absent, tf.shape(rows))
    return (tf.compat.v1.where(is_absent, default, rows), tf.logical_or(is_found, is_given))


def row_numbers(words: tf.Tensor, table: OpenTable) -> tf.Tensor:
    """Adds the ops that give what the index has for mixed keys, int32 (n).

    It is a row, `absent` for a key without one, or less than 0 for one that was removed.
    """
    is_reserved = tf.logical_or(tf.equal(words, table.plain.reserved[0]),
                                tf.equal(words, table.plain.reserved[1]))
    substitute = tf.fill(tf.shape(words), tf.constant(table.plain.substitute, tf.int64))
    words = tf.compat.v1.where(is_reserved, substitute, words)
    return tf.ensure_shape(tf.raw_ops.LookupTableFindV2(
        table_handle=table.index, keys=words,
        default_value=tf.constant(table.plain.absent, tf.int32)), [None])


def _gather(numbers: tf.Tensor, table: PlainTable, chunks: List[tf.Tensor]) -> tf.Tensor:
    """Returns the rows of row numbers, an int32 vector, as they are stored."""
    if len(chunks) == 1:
        return tf.raw_ops.ResourceGather(resource=chunks[0], indices=numbers,
                                         dtype=table.storage.dtype)
    part = numbers // table.chunk_rows
    numbers = numbers - part * table.chunk_rows
    places = tf.dynamic_partition(tf.range(tf.size(numbers)), part, len(chunks))
    numbers = tf.dynamic_partition(numbers, part, len(chunks))
    return tf.dynamic_stitch(places, [
        tf.raw_ops.ResourceGather(resource=chunk, indices=ones, dtype=table.storage.dtype)
        for chunk, ones in zip(chunks, numbers)])
