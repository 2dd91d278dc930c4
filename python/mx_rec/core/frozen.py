"""Tools that cut a model out of its graph: tables do not go with it, and the tools say so."""

import json
from typing import Any, Callable, Dict, List

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import tensor_util

from mx_rec.core.table_variable import TABLE_OP
from mx_rec.util.log import warn_once

# What reads a table through its handle and never gives it a row.
_READERS = frozenset(["MxRecFind", "MxRecEmbed", "MxRecSize", "MxRecCapacity", "MxRecTableStats",
                      "MxRecExport", "MxRecExportSlot", "MxRecSave", "MxRecSaveDelta"])
_LOAD_OP = "MxRecLoad"


def patched_tool(stock: Callable[..., graph_pb2.GraphDef]) -> Callable[..., graph_pb2.GraphDef]:
    """Makes a function of TensorFlow that gives a graph for inference, which refuses tables.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def tool(*args: Any, **kwargs: Any) -> graph_pb2.GraphDef:
        result = stock(*args, **kwargs)
        refuse_tables(result)
        return result

    return tool


def refuse_tables(graph_def: graph_pb2.GraphDef) -> None:
    """Refuses a graph with tables whose rows could not be loaded any more.

    Args:
        graph_def: What is left of a graph.

    Raises:
        ValueError: If it holds a table without the op that loads it.
    """
    nodes = {node.name: node for node in graph_def.node}
    loaded = {node.input[0].split(":")[0] for node in graph_def.node
              if node.op == _LOAD_OP and node.input}
    tables = [_name(node, nodes) for node in graph_def.node
              if node.op == TABLE_OP and node.name not in loaded]
    if tables:
        raise ValueError(
            "the graph cannot be frozen: the rows of the table{} {} are no variables, cannot become "
            "constants, and every lookup in the frozen graph would give zeros. Export the model "
            "with its tables (tf.compat.v1.saved_model.simple_save, or export_saved_model of an "
            "Estimator), or restore its checkpoint with tf.compat.v1.train.Saver; or freeze only "
            "what follows the embeddings, with these as its inputs.".format(
                "s" if len(tables) > 1 else "", ", ".join(map(repr, sorted(tables)))))


def warn_of_empty_tables(operations: List[tf.Operation]) -> None:
    """Warns of tables in an imported graph that are looked up, but that nothing can fill.

    A graph that trains from scratch begins with empty tables too; these are never anything else.

    Args:
        operations: The imported ops.
    """
    for op in operations:
        if op.type != TABLE_OP:
            continue
        users = {consumer.type for consumer in op.outputs[1].consumers()}
        if "MxRecFind" in users and users <= _READERS:
            warn_once("the imported graph looks the table %r up, but holds no op that loads or "
                      "trains it: every lookup gives zeros. It was cut out of a graph or frozen. "
                      "Import the whole graph and restore its checkpoint, or load a SavedModel.",
                      _table_name(tensor_util.constant_value(op.inputs[0]), op.name))


def _name(node: node_def_pb2.NodeDef, nodes: Dict[str, node_def_pb2.NodeDef]) -> str:
    """Returns the name of the table that a node makes."""
    config = nodes.get(node.input[0].split(":")[0]) if node.input else None
    if config is None or config.op != "Const":
        return node.name
    return _table_name(tensor_util.MakeNdarray(config.attr["value"].tensor), node.name)


def _table_name(config: Any, default: str) -> str:
    """Returns the name in a configuration, a uint8 array, or `default` without one."""
    if config is None:
        return default
    return str(json.loads(config.tobytes().decode("utf-8"))["name"])
