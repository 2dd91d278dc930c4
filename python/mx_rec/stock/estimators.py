"""Estimators whose model_fn does not know mx_rec: their graphs are converted when it has returned.

The four uses of a model_fn (train, evaluate, predict, export) call it by one method.
"""

import threading
from typing import Any, Callable

import tensorflow as tf

from mx_rec.base.log import warn_once
from mx_rec.checkpoint.sources import sources_of
from mx_rec.core.clusters import check_graph
from mx_rec.core.feature_process import EvictHook
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.planned import table_name
from mx_rec.stock.checkpoints import dense_variables, saved_histories, saved_tables
from mx_rec.stock.convert import Needs, converted
from mx_rec.stock.select import convert_graph, options_of_process
from mx_rec.stock.warm_start import goes_on, needs_of

_here = threading.local()


def patched_model_fn(stock: Callable[..., Any], self: Any, features: Any, labels: Any, mode: Any,
                     config: Any) -> Any:
    """Estimator._call_model_fn, which converts the graph afterwards.

    Without `init(stock_tables=...)` it changes nothing. Evaluation and prediction convert what the
    last checkpoint has as tables.
    """
    spec = stock(self, features, labels, mode, config)
    options = options_of_process()
    graph = tf.compat.v1.get_default_graph()
    settings = getattr(self, "_warm_start_settings", None)
    checkpoint = tf.train.latest_checkpoint(self.model_dir) \
        if self.model_dir and (options is not None or settings is not None) else None
    if settings is not None and checkpoint is not None:
        goes_on(graph)
    if options is None:
        return spec
    # A session of this graph leaves all others to TensorFlow.
    graph_state(graph).is_settled = True
    if getattr(_here, "exports", False):
        _convert_unlimited(graph, self.model_dir)
        return spec
    trains = mode == tf.estimator.ModeKeys.TRAIN
    if settings is not None and (trains or checkpoint is None) and _has_servers(graph):
        warn_once("stock_tables: the Estimator has warm_start_from, so that its variables on "
                  "parameter servers stay TensorFlow's.")
        return spec
    if checkpoint:
        needs = Needs(saved_tables(checkpoint), not trains, dense_variables(graph, checkpoint)
                      if trains and options.unlimited_ids else frozenset(),
                      saved_histories(checkpoint))
    else:
        needs = Needs(histories={}) if settings is None else _needs(graph, settings)
    convert_graph(graph, trains, needs)
    return _with_eviction(graph, spec, options) if trains else spec


def _with_eviction(graph: tf.Graph, spec: Any, options: Any) -> Any:
    """Adds the hook that evicts to an EstimatorSpec, if a converted variable has eviction."""
    if not any(one.rules.eviction >= 0 for one in converted(graph)):
        return spec
    hook = EvictHook(True, options.evict_time_interval, options.evict_step_interval)
    return spec._replace(training_hooks=tuple(spec.training_hooks) + (hook,))


def _has_servers(graph: tf.Graph) -> bool:
    """Whether the variables of a graph are on parameter servers, or other tasks share them."""
    try:
        with graph.as_default():
            return bool(check_graph("stock_tables"))
    except NotImplementedError:
        return True


def _needs(graph: tf.Graph, settings: Any) -> Needs:
    """Returns what a warm start asks of the conversion."""
    try:
        return needs_of(graph, sources_of(graph, *settings))
    except FileNotFoundError:
        # The warm start itself says so.
        return Needs(histories={})


def _convert_unlimited(graph: tf.Graph, model_dir: str) -> None:
    """Converts the variables of an exported graph that have rows for any id.

    A variable of TensorFlow cannot have these; all others stay variables.
    """
    checkpoint = tf.train.latest_checkpoint(model_dir) if model_dir else None
    known = saved_tables(checkpoint) if checkpoint else set()
    unlimited = known & {table_name(variable.op.name, True) for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.GLOBAL_VARIABLES) if isinstance(variable, tf.Variable)}
    if unlimited:
        convert_graph(graph, False, Needs(unlimited, True, histories=saved_histories(checkpoint)))


def patched_add_mode(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Estimator._add_meta_graph_for_mode: an exported model has variables, as without us.

    Those by ids without limits are tables in it.
    """
    _here.exports = True
    try:
        return stock(self, *args, **kwargs)
    finally:
        _here.exports = False
