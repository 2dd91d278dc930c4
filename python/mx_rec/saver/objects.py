"""tf.train.Checkpoint in a graph with tables: it knows only variables.

A table that was a variable of an unchanged model is one there: all of its rows are saved and set,
as any op does that reads or assigns the variable. Other tables are refused.
"""

import os
from typing import Any, Callable

import tensorflow as tf

from mx_rec.checkpoint.chains import tables_directory
from mx_rec.checkpoint.table_ops import table_ops
from mx_rec.stock.convert import converted


def patched_object_save(stock: Callable[..., Any], self: Any, file_prefix: Any,
                        checkpoint_number: Any = None, session: Any = None, **kwargs: Any) -> Any:
    """TrackableSaver.save, by which tf.train.Checkpoint and CheckpointManager save.

    Raises:
        NotImplementedError: If the graph has tables whose rows would not be saved: that were
            no variables, or have keys that are no rows of theirs.
    """
    names = _names_of_tables(session, True)
    if names:
        raise NotImplementedError(
            "tf.train.Checkpoint and CheckpointManager do not save tables: {!r} would lack the "
            "rows of {}. Use tf.compat.v1.train.Saver().save(session, path), which saves "
            "variables and tables.".format(file_prefix, names))
    return stock(self, file_prefix, checkpoint_number, session, **kwargs)


def patched_object_restore(stock: Callable[..., Any], self: Any, save_path: Any, *args: Any,
                           **kwargs: Any) -> Any:
    """TrackableSaver.restore, by which tf.train.Checkpoint restores.

    Raises:
        NotImplementedError: If the graph has tables and the checkpoint has tables as well,
            which would not be restored.
    """
    names = _names_of_tables(None, False) if save_path else ""
    if names:
        directory = tables_directory(tf.compat.as_str_any(save_path))
        if os.path.isdir(directory) or tf.io.gfile.isdir(directory):
            raise NotImplementedError(
                "tf.train.Checkpoint does not restore tables: {} would keep their rows instead "
                "of those in {}. Use tf.compat.v1.train.Saver().restore(session, {!r})."
                .format(names, directory, save_path))
    return stock(self, save_path, *args, **kwargs)


def _names_of_tables(session: Any, but_variables: bool) -> str:
    """Returns the names of the tables of a session's graph, or of the default one, as a text.

    Args:
        session: The session, None for the default graph.
        but_variables: Whether to leave out those that are read and set as variables.
    """
    if tf.executing_eagerly():
        return ""
    graph = getattr(session, "graph", None) or tf.compat.v1.get_default_graph()
    names = {one.table_name for one in table_ops(graph, None)}
    if but_variables:
        names -= {one.plan.table for one in converted(graph) if not one.plan.on_servers
                  and (one.plan.ids.keeps_rows or not one.plan.ids.is_lifted)}
    return "the tables " + ", ".join(map(repr, sorted(names))) if names else ""
