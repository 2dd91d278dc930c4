"""Estimators whose model_fn does not know mx_rec: their graphs are converted when it has returned.

The four uses of a model_fn (train, evaluate, predict, export) call it by one method.
"""

import threading
from typing import Any, Callable

import tensorflow as tf

from mx_rec.saver.dense import saved_tables
from mx_rec.stock.select import convert_graph, options_of_process

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
        if options_of_process() is None or getattr(_here, "exports", False):
            return spec
        trains = mode == tf.estimator.ModeKeys.TRAIN
        checkpoint = tf.train.latest_checkpoint(self.model_dir) if self.model_dir else None
        known = saved_tables(checkpoint) if checkpoint else set()
        convert_graph(tf.compat.v1.get_default_graph(), trains, known,
                      checkpoint is not None and not trains)
        return spec

    return _call_model_fn


def patched_add_mode(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Estimator._add_meta_graph_for_mode: an exported model has variables, as without us.

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
