"""Tools that cut a model out of its graph: tables do not go with it, and the tools say so."""

import json
from typing import Any, Callable, Dict, List, Set

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from mx_rec.base.log import warn_once
from mx_rec.ops.lookups import FIND, READ
from mx_rec.state.table_variable import CLUSTER_TABLE_OP, TABLE_OP, TableVariable, refuse_value
from mx_rec.tensorflow.names import ops as tf_ops
from mx_rec.tensorflow.names import tensor_util

# What reads a table through its handle and never gives it a row.
_READERS = frozenset([READ, FIND, "MxRecTableStats", "MxRecExport", "MxRecSave"])
_LOAD_OP, _PULL_OP = "MxRecLoad", "MxRecPull"


def patched_tool(stock: Callable[..., graph_pb2.GraphDef], *args: Any,
                 **kwargs: Any) -> graph_pb2.GraphDef:
    """A function of TensorFlow that gives a graph for inference, which refuses tables."""
    result = stock(*args, **kwargs)
    loaded = {node.input[0].split(":")[0] for node in result.node
              if node.op == _LOAD_OP and node.input}
    _refuse_tables(result, loaded)
    return result


def patched_tensor_info(stock: Callable[..., Any], tensor: Any) -> Any:
    """saved_model.utils.build_tensor_info, which refuses the variable of a table."""
    if isinstance(tensor, TableVariable):
        refuse_value(tensor)
    return stock(tensor)


def patched_function_tool(stock: Callable[..., graph_pb2.GraphDef], *args: Any,
                          **kwargs: Any) -> graph_pb2.GraphDef:
    """The same for a function that is given a function: nobody can run the ops that load."""
    result = stock(*args, **kwargs)
    _refuse_tables(result, set())
    return result


def _refuse_tables(graph_def: graph_pb2.GraphDef, loaded: Set[str]) -> None:
    """Refuses a graph with tables whose rows could not be loaded any more.

    Args:
        graph_def: What is left of a graph.
        loaded: Names of the ops of tables that can be loaded.

    Raises:
        ValueError: If it holds any other table.
    """
    nodes = {node.name: node for node in graph_def.node}
    tables = {_name(node, nodes) for node in graph_def.node
              if node.op in (TABLE_OP, CLUSTER_TABLE_OP) and node.name not in loaded}
    for node in graph_def.node:
        if node.op == _PULL_OP:
            # Of tables on parameter servers it is all that an evaluation needs.
            tables.update(_pulled(node, nodes))
    if tables:
        raise ValueError(
            "the graph cannot be frozen: the rows of the table{} {} are no variables and cannot "
            "become constants, and every lookup in the frozen graph would give zeros. For a model "
            "that loads without mx_rec, use mx_rec.saver.export_plain, or the Estimator's "
            "export_saved_model with plain=True. Where mx_rec is installed, export the model with "
            "its tables (tf.compat.v1.saved_model.simple_save, export_saved_model), or restore "
            "its checkpoint with tf.compat.v1.train.Saver; or freeze only what follows the "
            "embeddings, with these as its inputs.".format(
                "s" if len(tables) > 1 else "", ", ".join(map(repr, sorted(tables)))))


def check_imported(operations: List[tf.Operation]) -> None:
    """Looks at the tables of an imported graph: whether they can be filled.

    Warns of tables that are looked up, but that nothing fills. A graph that trains from scratch
    begins with empty tables too; these are never anything else.

    Args:
        operations: The imported ops.

    Raises:
        NotImplementedError: If they are in a function of eager execution, which has no session for
            its tables: each function would have empty ones of its own.
    """
    for op in operations:
        if op.type != TABLE_OP:
            continue
        if tf_ops.executing_eagerly_outside_functions():
            raise NotImplementedError(
                "the table {!r} cannot be imported into a function of eager execution: a table "
                "lives in a session. Load the model with tf.compat.v1.saved_model.load in a "
                "tf.compat.v1.Session(graph=tf.Graph()), or with tf.contrib.predictor; or export "
                "it with mx_rec.saver.export_plain: such models load under eager execution.".format(
                    _table_name(tensor_util.constant_value(op.inputs[0]), op.name)))
        users = {consumer.type for consumer in op.outputs[1].consumers()}
        if FIND in users and users <= _READERS:
            warn_once("the imported graph looks the table %r up, but holds no op that loads or "
                      "trains it: every lookup gives zeros. It was cut out of a graph or frozen. "
                      "Import the whole graph and restore its checkpoint, or load a SavedModel.",
                      _table_name(tensor_util.constant_value(op.inputs[0]), op.name))


def _name(node: node_def_pb2.NodeDef, nodes: Dict[str, node_def_pb2.NodeDef]) -> str:
    """Returns the name of the table that a node makes."""
    config = _constant(node, nodes)
    return node.name if config is None else _table_name(config, node.name)


def _pulled(node: node_def_pb2.NodeDef, nodes: Dict[str, node_def_pb2.NodeDef]) -> List[str]:
    """Returns the names of the tables whose rows a node asks parameter servers for."""
    configs = _constant(node, nodes)
    if configs is None:
        return [node.name]
    return [str(one["name"]) for one in json.loads(configs.tobytes().decode("utf-8"))]


def _constant(node: node_def_pb2.NodeDef, nodes: Dict[str, node_def_pb2.NodeDef]) -> Any:
    """Returns the value of the first input of a node, or None if that is no constant."""
    value = nodes.get(node.input[0].split(":")[0]) if node.input else None
    if value is None or value.op != "Const":
        return None
    return tensor_util.MakeNdarray(value.attr["value"].tensor)


def _table_name(config: Any, default: str) -> str:
    """Returns the name in a configuration, a uint8 array, or `default` without one."""
    if config is None:
        return default
    return str(json.loads(config.tobytes().decode("utf-8"))["name"])
