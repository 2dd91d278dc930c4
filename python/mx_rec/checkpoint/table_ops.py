"""The ops that save and load the tables of a graph."""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.parts import PartOps, saved_parts
from mx_rec.state.table_variable import is_undone, table_config_of, table_name_of


class TableOps(NamedTuple):
    """The ops that save and load one table.

    Attributes:
        name: The table's name, which is that of its directory.
        table: The op that owns it.
        path: Where a directory is fed, as bytes.
        save: Saves it, whole or what changed.
        load: Loads it.
        part: The other ops of a part that a parameter server holds; None for a table of the
            session's own. The name is then that of the part's directory, the table what stands for
            it, and `load` reads the part without changing anything.
    """

    name: str
    table: tf.Operation
    path: tf.Tensor
    save: tf.Operation
    load: tf.Operation
    part: Optional[PartOps] = None

    @property
    def table_name(self) -> str:
        """The name of the table, also of a part."""
        return self.name if self.part is None else self.part.table

    @property
    def config(self) -> Any:
        """The configuration of the table or of the part."""
        return table_config_of(self.table if self.part is None else self.load.inputs[0].op)

    @property
    def handle(self) -> tf.Tensor:
        """int64 scalar by which the engine finds the table."""
        return self.table.outputs[1]


def table_ops(graph: tf.Graph, names: Optional[List[str]]) -> List[TableOps]:
    """Finds the save and load ops of a graph, which may be an imported one.

    Args:
        graph: The graph.
        names: Names of the table ops to take, None for all.

    Returns:
        The ops by table, those of a table on parameter servers by part; tables without is_save
        have none.
    """
    loads = {}  # type: Dict[Tuple[str, str], tf.Operation]
    saves = []  # type: List[tf.Operation]
    for op in graph.get_operations():
        if op.type == "MxRecLoad":
            loads[op.inputs[0].op.name, op.inputs[1].name] = op
        elif op.type == "MxRecSave":
            saves.append(op)
    found = []  # type: List[TableOps]
    for save in saves:
        table = save.inputs[0].op
        place = table.name, save.inputs[1].name
        # An import that was given a table of the graph has ops of its own for it.
        if is_undone(table) or any(one.table is table for one in found):
            continue
        if place in loads and (names is None or table.name in names):
            found.append(TableOps(table_name_of(table), table, save.inputs[1], save, loads[place]))
    found.extend(TableOps(directory, table, save.inputs[1], save, stage, ops)
                 for directory, table, save, stage, ops in saved_parts(graph)
                 if not is_undone(table) and (names is None or table.name in names))
    return found


def distinct(operations: List[TableOps], use: str) -> List[TableOps]:
    """Returns the ops if no two of them are of different tables with one name.

    A graph has such tables after two imports of one graph; they would share a directory.

    Args:
        operations: From `table_ops`.
        use: What is to be done with them, a verb for the error's text.

    Raises:
        ValueError: If two tables have one name; the text names both.
    """
    owners = {}  # type: Dict[str, tf.Operation]
    for op in operations:
        refuse_namesake(op.name, owners.setdefault(op.name, op.table), op.table, use)
    return operations


def refuse_namesake(name: str, one: tf.Operation, other: tf.Operation, use: str) -> None:
    """Raises ValueError if two ops own different tables of the name `name`."""
    if one is not other:
        raise ValueError(
            "the table {!r} cannot be {}: the ops {!r} and {!r} of the graph both make a table of "
            "that name, and a checkpoint has one directory for it. Import the graph once, or give "
            "Saver a var_list with the variable of one of them.".format(name, use, one.name,
                                                                       other.name))


def paths_of(operations: List[TableOps], directories: List[str]) -> Dict[tf.Tensor, Any]:
    """Feeds what `path_of` gives for each table."""
    return {op.path: np.frombuffer(path_of(op, directories), np.uint8) for op in operations}


def paths_to_load(operations: List[TableOps], directories: List[str]) -> Dict[tf.Tensor, Any]:
    """Feeds where each table lies: a part is read from wherever its table is."""
    whole = [op._replace(name=op.table_name) for op in operations]
    return paths_of(whole, directories)


def path_of(operation: TableOps, directories: List[str]) -> bytes:
    """Returns `<directory>/<table>` of each directory, with a zero byte between two."""
    return b"\0".join(os.fsencode(os.path.abspath(os.path.join(directory, operation.name)))
                      for directory in directories)
