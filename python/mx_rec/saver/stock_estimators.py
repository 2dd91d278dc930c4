"""Estimators whose model_fn does not know mx_rec: their graphs are converted when it has returned.

The four uses of a model_fn (train, evaluate, predict, export) call it by one method.
"""

import os
import threading
from typing import Any, Callable, Set

import tensorflow as tf

from mx_rec.core.feature_process import EvictHook
from mx_rec.saver.dense import dense_variables, saved_histories, saved_tables
from mx_rec.stock.analysis import table_name
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph, options_of_process
from mx_rec.util.log import warn_once

_here = threading.local()


def patched_model_fn(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Estimator._call_model_fn, which converts the graph afterwards.

    Without `init(stock_tables=...)` it changes nothing. Evaluation and prediction convert what the
    last checkpoint has as tables.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def _call_model_fn(self: Any, features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = stock(self, features, labels, mode, config)
        options = options_of_process()
        if options is None:
            return spec
        graph = tf.compat.v1.get_default_graph()
        if getattr(_here, "exports", False):
            _convert_unlimited(graph, self.model_dir)
            return spec
        trains = mode == tf.estimator.ModeKeys.TRAIN
        if trains and getattr(self, "_warm_start_settings", None) is not None:
            _refuse_unlimited_source(graph, self._warm_start_settings)
            warn_once("stock_tables: the Estimator has warm_start_from, so that its variables stay "
                      "TensorFlow's; a training that goes on without it takes them over.")
            return spec
        checkpoint = tf.train.latest_checkpoint(self.model_dir) if self.model_dir else None
        known = saved_tables(checkpoint) if checkpoint else set()
        dense = dense_variables(graph, checkpoint) \
            if checkpoint and trains and options.unlimited_ids else set()  # type: Set[str]
        convert_graph(graph, trains, known, checkpoint is not None and not trains, dense,
                      saved_histories(checkpoint) if checkpoint else {})
        return _with_eviction(graph, spec, options) if trains else spec

    return _call_model_fn


def _with_eviction(graph: tf.Graph, spec: Any, options: Any) -> Any:
    """Adds the hook that evicts to an EstimatorSpec, if a converted variable has eviction."""
    if not any(one.rules.eviction >= 0 for one in converted(graph)):
        return spec
    hook = EvictHook(True, options.evict_time_interval, options.evict_step_interval)
    return spec._replace(training_hooks=tuple(spec.training_hooks) + (hook,))


def _refuse_unlimited_source(graph: tf.Graph, settings: Any) -> None:
    """Refuses to warm-start all variables from tables by ids without limits.

    Raises:
        ValueError: If the checkpoint has such a table in the place of a trained variable.
    """
    source = settings.ckpt_to_initialize_from
    if settings.vars_to_warm_start != ".*" or settings.var_name_to_prev_var_name \
            or settings.var_name_to_vocab_info or not isinstance(source, str):
        return
    checkpoint = tf.train.latest_checkpoint(source) if os.path.isdir(source) else source
    known = saved_tables(checkpoint) if checkpoint else set()
    for variable in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES):
        if isinstance(variable, tf.Variable) and table_name(variable.op.name, True) in known:
            raise ValueError(
                "warm_start_from {!r} has the table {!r}, whose ids have no limits, in the place "
                "of the variable {!r}: continue its directory, or leave the variable out of "
                "vars_to_warm_start".format(
                    source, table_name(variable.op.name, True), variable.op.name))


def _convert_unlimited(graph: tf.Graph, model_dir: str) -> None:
    """Converts the variables of an exported graph that have rows for any id.

    A variable of TensorFlow cannot have these; all others stay variables.
    """
    checkpoint = tf.train.latest_checkpoint(model_dir) if model_dir else None
    known = saved_tables(checkpoint) if checkpoint else set()
    unlimited = known & {table_name(variable.op.name, True) for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.GLOBAL_VARIABLES) if isinstance(variable, tf.Variable)}
    if unlimited:
        convert_graph(graph, False, unlimited, True,
                      histories=saved_histories(checkpoint) if checkpoint else {})


def patched_add_mode(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Estimator._add_meta_graph_for_mode: an exported model has variables, as without us.

    Those by ids without limits are tables in it.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def _add_meta_graph_for_mode(self: Any, *args: Any, **kwargs: Any) -> Any:
        _here.exports = True
        try:
            return stock(self, *args, **kwargs)
        finally:
            _here.exports = False

    return _add_meta_graph_for_mode
