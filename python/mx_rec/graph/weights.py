"""Weights that a Keras program sets before the first run of its graph.

Keras sets them by a run. A model that loads its weights, or whose layers are given some, would have
run before it has a training op, and its variables could not become tables any more. So the values
wait for the first run, which converts the graph, and are set before anything else runs.
"""

from typing import Any, Callable, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.graph.runs import PREPARED
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.select import candidates, options_of_process
from mx_rec.tensorflow.names import keras_backend

# The attribute of a session that has pairs of variables and values, in their order.
_HELD = "_mx_rec_held_weights"

# TensorFlow's own: patches.py imports this before it replaces anything. 2.x has it not.
_stock_set = getattr(keras_backend, "batch_set_value", None)


def holding(stock: Callable[..., Any], tuples: Sequence[Tuple[Any, Any]]) -> Any:
    """keras.backend.batch_set_value, which waits for the first run."""
    pairs = list(tuples)
    return None if _hold(pairs) else stock(pairs)


def holding_one(stock: Callable[..., Any], x: Any, value: Any) -> Any:
    """keras.backend.set_value, which does the same for one variable."""
    return None if _hold([(x, value)]) else stock(x, value)


def _hold(pairs: Sequence[Tuple[Any, Any]]) -> bool:
    """Keeps values for the first run of the session of Keras; returns whether it does.

    It does where that run may make tables of variables. A value of another shape is TensorFlow's
    error, at once.
    """
    options = options_of_process()
    if options is None or not pairs or tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    if graph_state(graph).is_settled or not candidates(graph, options):
        return False
    if any(not isinstance(one, tf.Variable) or one.graph is not graph
           or one.shape.as_list() != list(np.shape(value)) for one, value in pairs):
        return False
    session = keras_backend._get_session()  # pylint: disable=protected-access
    if session.graph is not graph or any(
            PREPARED in vars(one) for one in graph_state(graph).sessions()):
        return False
    vars(session).setdefault(_HELD, []).extend((one, np.array(value)) for one, value in pairs)
    return True


def set_held(session: Any) -> None:
    """Sets the values that waited for the first run of a session.

    Args:
        session: The session.
    """
    held = vars(session).pop(_HELD, None)
    if held:
        with session.graph.as_default(), session.as_default():
            _stock_set(held)
