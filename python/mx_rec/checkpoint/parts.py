"""Tables that parameter servers hold in parts: their ops and their directories in a checkpoint.

A checkpoint has `<table>-part-<part>-of-<parts>` for each part, where a table of one process has
`<table>`. Either can be read by any number of parameter servers, and by one process.
"""

import os
import re
from collections import OrderedDict
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow as tf

from mx_rec.state.table_variable import CLUSTER_TABLE_OP, table_name_of, table_ops

_PART, _INIT, _SAVE = "MxRecPart", "MxRecPartInit", "MxRecSave"
_RESTORES = ("MxRecPartStage", "MxRecPartDiscard", "MxRecPartPublish")
_NAME = re.compile(r"^(.+)-part-\d{5}-of-\d{5}$")
# The scope of a part's ops, below that of its table's.
_SCOPE = re.compile(r"/part_\d+/config$")


class PartOps(NamedTuple):
    """The ops of one part of a table.

    Attributes:
        table: Name of the table.
        init: Makes the part, empty.
        discard: Forgets what was read.
        publish: Opens what was read.
        is_new: Whether the checkpoint that is restored has not got the table.
    """

    table: str
    init: tf.Operation
    discard: tf.Operation
    publish: tf.Operation
    is_new: bool = False


def saved_parts(graph: tf.Graph) -> Iterator[Tuple[str, tf.Operation, tf.Operation, tf.Operation,
                                                   PartOps]]:
    """Finds the parts of tables that a graph saves, also an imported one.

    Yields:
        The name of the directory of a part, the op that stands for its table, what saves the part
        and what reads it, and its other ops.
    """
    tables = {op.inputs[0].op.name: op for op in table_ops(graph, CLUSTER_TABLE_OP)}
    for part, ops in _parts_of(graph).items() if tables else ():
        # The configuration of a part lies below that of its table.
        table = tables.get(_SCOPE.sub("/config", part.inputs[0].op.name))
        if _SAVE in ops and table is not None:
            name = table_name_of(table)
            directory = "{}-part-{:05d}-of-{:05d}".format(
                name, part.get_attr("part"), part.get_attr("parts"))
            stage, discard, publish = [ops[kind] for kind in _RESTORES]
            yield directory, table, ops[_SAVE], stage, PartOps(name, ops[_INIT], discard, publish)


def _parts_of(graph: tf.Graph) -> Dict[tf.Operation, Dict[str, tf.Operation]]:
    """Returns the ops on each part of a table, by their types."""
    return OrderedDict((part, {op.type: op for op in part.outputs[0].consumers()})
                       for part in graph.get_operations() if part.type == _PART)


def open_parts(sess: Any, restored: Iterable[Any], is_first: bool) -> None:
    """Opens the parts that a restore has not brought, so that the session gets ready.

    Parts of tables that no Saver saves begin anew with a session of the chief, as the tables of one
    process do. Others that their server has not got begin empty, until their own Saver restores
    them.

    Args:
        sess: A session of their graph.
        restored: `TableOps` of what was restored.
        is_first: Whether the session has run nothing before the restore.
    """
    brought = {op.load.inputs[0].op for op in restored if op.part is not None}
    parts = [(part, ops) for part, ops in _parts_of(sess.graph).items() if part not in brought]
    if not parts:
        return
    ready = sess.run([part.outputs[1] for part, _ in parts])
    closed = [ops[_INIT] for (_, ops), is_ready in zip(parts, ready)
              if not is_ready or (is_first and _SAVE not in ops)]
    if closed:
        sess.run(closed)


def directories_of(directory: str, table: str) -> List[str]:
    """Returns where a checkpoint holds a table: one directory, or one for each part.

    Args:
        directory: Of the checkpoint's tables.
        table: The table's name.

    Returns:
        `<directory>/<table>` if it is there or nothing is, else those of its parts, in order.
    """
    whole = os.path.join(directory, table)
    if os.path.isdir(whole) or not os.path.isdir(directory):
        return [whole]
    parts = [os.path.join(directory, name) for name in sorted(os.listdir(directory))
             if name_of(name) == table and name != table]
    return parts or [whole]


def name_of(directory: str) -> str:
    """Returns the table that a directory of a checkpoint holds, or a part of it."""
    match = _NAME.match(directory)
    return match.group(1) if match else directory


def run_on_parts(sess: Any, operations: Iterable[Any], what: str,
                 feed: Optional[Dict[tf.Tensor, Any]] = None) -> List[int]:
    """Runs one op of each part.

    Args:
        sess: A session of their graph.
        operations: `TableOps` of parts.
        what: "load" or the name of a field of `PartOps`.
        feed: What is fed.

    Returns:
        The rows of each part.
    """
    fetches = [(op.load if what == "load" else getattr(op.part, what)).outputs[0]
               for op in operations]
    return [int(rows) for rows in sess.run(fetches, feed)] if fetches else []
