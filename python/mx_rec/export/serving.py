"""SavedModels that load their tables where their variables are restored, without this package."""

import os
from typing import Any, Callable

import tensorflow as tf

from mx_rec.checkpoint.paths import SPARSE_PREFIX
from mx_rec.checkpoint.table_ops import distinct, table_ops
from mx_rec.ops import library
from mx_rec.state.table_variable import refuse_shared_tables, table_name_of

_LOAD_OP = "MxRecLoad"


def patched_saver_of_builder(stock: Callable[..., Any], self: Any, saver: Any = None) -> Any:
    """SavedModelBuilder._maybe_create_saver, whose saver restores tables inside the graph.

    A loader of SavedModels runs the saver's restore op and knows nothing of tables.
    """
    saver = stock(self, saver)
    if getattr(saver, "saver_def", None) is not None:
        _restore_tables_too(tf.compat.v1.get_default_graph(), saver.saver_def)
    return saver


def restores_tables(graph: tf.Graph, saver_def: Any) -> bool:
    """Returns whether the restore op of a saver loads the tables of the graph itself.

    Args:
        graph: The saver's graph.
        saver_def: Its SaverDef.
    """
    return any(op.type == _LOAD_OP
               for op in graph.get_operation_by_name(saver_def.restore_op_name).control_inputs)


def _restore_tables_too(graph: tf.Graph, saver_def: Any) -> None:
    """Makes the restore op wait for a load of every saved table beside the variables' files."""
    if restores_tables(graph, saver_def):
        return
    refuse_shared_tables(graph, "the export of a SavedModel")
    tables = [one.table for one in distinct(table_ops(graph, None), "exported")]
    if not tables:
        return
    filename = graph.get_tensor_by_name(saver_def.filename_tensor_name)
    with graph.as_default(), graph.control_dependencies(None), tf.device("/cpu:0"), \
            tf.compat.v1.name_scope("mx_rec_restore"):
        directory = tf.strings.regex_replace(filename, "([^/]*)$", SPARSE_PREFIX + "\\1",
                                             replace_global=False)
        loads = [library().mx_rec_load(op.outputs[1], tf.io.decode_raw(
            tf.strings.join([directory, os.sep + table_name_of(op)]), tf.uint8), []).rows.op
                 for op in tables]
    restore = graph.get_operation_by_name(saver_def.restore_op_name)
    restore._add_control_inputs(loads)  # pylint: disable=protected-access
