"""Estimators whose model_fn does not know mx_rec: their graphs are converted when it has returned.

The four uses of a model_fn (train, evaluate, predict, export) call it by one method.
"""

from typing import Any, Callable, List, Optional, Set

import tensorflow as tf

from mx_rec.core.clusters import check_graph
from mx_rec.stock.analysis import StockVariable
from mx_rec.stock.convert import convert, converted
from mx_rec.util.settings import Settings
from mx_rec.util.log import logger, warn_once


def patched_model_fn(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Estimator._call_model_fn, which converts the graph afterwards.

    Without `init(stock_tables=...)` it changes nothing.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def _call_model_fn(self: Any, features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = stock(self, features, labels, mode, config)
        convert_graph(tf.compat.v1.get_default_graph(), mode == tf.estimator.ModeKeys.TRAIN)
        return spec

    return _call_model_fn


def convert_graph(graph: tf.Graph, trains: bool,
                  known: Optional[Set[str]] = None) -> List[StockVariable]:
    """Converts a graph as `init(stock_tables=...)` says.

    Args:
        graph: The graph, complete; no session has run it.
        trains: Whether it trains.
        known: Names of variables that are tables in the checkpoint.

    Returns:
        The plan; empty without stock_tables, and in jobs of several processes, which cannot share
        a table.
    """
    options = _options()
    if options is None:
        return []
    if tf.distribute.has_strategy():
        warn_once("stock_tables: variables of a distribution strategy stay TensorFlow's.")
        return []
    try:
        with graph.as_default():
            check_graph("stock_tables")
    except NotImplementedError as error:
        warn_once("stock_tables: all variables stay TensorFlow's: %s", error)
        return []
    plans = convert(graph, options, trains, known)
    tables = sum(plan.converts for plan in plans)
    logger.info("stock_tables: %d of %d variables with rows are tables.", tables, len(plans))
    return plans


def _options() -> Any:
    instance = Settings._single_instance  # pylint: disable=protected-access
    return None if instance is None else instance.stock_tables


__all__ = ["convert_graph", "converted", "patched_model_fn"]
