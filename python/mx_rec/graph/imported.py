"""Imported graphs: the variables of their tables, and what may not be fed."""

import re
from typing import Any, Callable, List

import tensorflow as tf

from mx_rec.core.frozen import check_imported
from mx_rec.edits.replacing import FUSED_NAME, forbid_marked
from mx_rec.edits.wiring import variable_name
from mx_rec.graph.plan import TRAINING_LOOKUPS
from mx_rec.graph.sessions import PIPELINE_SCOPE
from mx_rec.ops.lookups import may_move
from mx_rec.state.graph_state import graph_state
from mx_rec.state.table_variable import is_table_variable, table_variable

# How the types of all ops of the plugin begin.
_OUR_OPS = "MxRec"

# What TensorFlow says of an op that this build of the plugin lacks, or defines in another way.
_OTHER_OP = re.compile(r"Op type not registered '(MxRec\w+)'|NodeDef .*\bOp<name=(MxRec\w+);")


def patched_import(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """meta_graph.import_scoped_meta_graph_with_return_elements.

    A MetaGraphDef keeps the name of a table's tensor. Afterwards the collections hold the variables
    of tables, as those of the graph that was exported. Variables that were tables are not among
    those that are trained: here nothing reads their rows.
    """
    graph = kwargs.get("graph", args[2] if len(args) > 2 else None)
    graph = graph or tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    try:
        result = stock(*args, **kwargs)
    except (ValueError, tf.errors.OpError) as error:
        _explain_other_ops(error)
        raise
    for key in graph.get_all_collection_keys():
        values = graph.get_collection_ref(key)
        for place, value in enumerate(values):
            if isinstance(value, tf.Tensor) and is_table_variable(value):
                values[place] = table_variable(value.op)
    _forget_tables(graph, first)
    return result


def _forget_tables(graph: tf.Graph, first: int) -> None:
    """Removes variables that became tables from what is trained, which alone has them."""
    keys = tf.compat.v1.GraphKeys
    if keys.TRAINABLE_VARIABLES not in graph.get_all_collection_keys() or not any(
            op.type.startswith(_OUR_OPS) for op in graph.get_operations()[first:]):
        return
    known = {variable_name(one) for key in (keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES)
             for one in graph.get_collection(key)}
    trained = graph.get_collection_ref(keys.TRAINABLE_VARIABLES)
    trained[:] = [one for one in trained if variable_name(one) is None
                  or variable_name(one) in known
                  or one.op._id <= first]  # pylint: disable=protected-access


def patched_new_operations(stock: Callable[..., Any], self: tf.Graph, *args: Any,
                           **kwargs: Any) -> List[tf.Operation]:
    """Graph._add_new_tf_operations, which every import of a graph calls.

    A GraphDef does not say to TensorFlow what may not be fed, nor that its tables were filled
    elsewhere. Its training lookups that could move count as those that were made here.
    """
    operations = stock(self, *args, **kwargs)
    if not any(op.type.startswith(_OUR_OPS) for op in operations):
        return operations
    state = graph_state(self)
    is_modified = any(PIPELINE_SCOPE in op.name or FUSED_NAME in op.name
                      for op in operations)
    for op in operations:
        if is_modified:
            forbid_marked(op)
        if op.type in TRAINING_LOOKUPS and may_move(op):
            state.movable += 1
    check_imported(operations)
    return operations


def _explain_other_ops(error: Exception) -> None:
    """Raises what says more, if a graph has ops of the plugin as another build defines them.

    Args:
        error: Why a graph cannot be imported.

    Raises:
        tf.errors.OpError, ValueError: Of the type of the error, with what to do.
    """
    text = getattr(error, "message", str(error))
    found = _OTHER_OP.search(text)
    if found is None:
        return
    text = "the graph has the op {} as an earlier build of mx_rec wrote it, and this build does " \
        "not have it so. Write the graph again with this build, from the program that made it; " \
        "checkpoints are read as before, a SavedModel is exported again. ({})".format(
            found.group(1) or found.group(2), text)
    if isinstance(error, tf.errors.OpError):
        raise type(error)(error.node_def, error.op, text) from error
    raise ValueError(text) from error
