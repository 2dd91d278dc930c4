"""What a Keras program sets before the first run of its graph: weights, and iterators of datasets.

Keras sets them by a run. A model that loads its weights, whose layers are given some, or that is
fitted to a dataset would have run before it has a training op, and its variables could not become
tables any more. So the values, and the initializers of iterators, wait for the first run, which
converts the graph, and are set before anything else runs.
"""

from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.graph.runs import PREPARED, stock_run
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.select import candidates, options_of_process
from mx_rec.tensorflow.names import keras_backend
from mx_rec.tensorflow.names import session as sessions

# The attributes of a session that has pairs of variables and values, in their order, and that has
# initializers of iterators.
_HELD = "_mx_rec_held_weights"
_INITIALIZERS = "_mx_rec_held_initializers"

# Ops that tell how many elements a dataset has.
_SIZES = ("DatasetCardinality", "ExperimentalDatasetCardinality")

# TensorFlow's own: patches.py imports this before it replaces anything. 2.x has it not.
_stock_set = getattr(keras_backend, "batch_set_value", None)


def holding(stock: Callable[..., Any], tuples: Sequence[Tuple[Any, Any]]) -> Any:
    """keras.backend.batch_set_value, which waits for the first run."""
    pairs = list(tuples)
    return None if _hold(pairs) else stock(pairs)


def holding_one(stock: Callable[..., Any], x: Any, value: Any) -> Any:
    """keras.backend.set_value, which does the same for one variable."""
    return None if _hold([(x, value)]) else stock(x, value)


def holding_iterator(stock: Callable[..., Any], iterator: Any) -> None:
    """Keras's initialize_iterator, which waits as well: fit calls it before it has training ops.

    A model that is built from its first batch has no variables then.
    """
    session = _waiting(has_variables=False)
    if session is None:
        stock(iterator)
    else:
        vars(session).setdefault(_INITIALIZERS, []).append(iterator.initializer)


def asking_size(stock: Callable[..., Any], x: Any) -> Any:
    """keras.backend.get_value, which asks how large a dataset is in a session of its own.

    fit asks for it before it has a training op.
    """
    session = _waiting() if getattr(getattr(x, "op", None), "type", "") in _SIZES else None
    if session is None:
        return stock(x)
    # pylint: disable=protected-access
    own = sessions.BaseSession("", session.graph, session._config)
    try:
        return stock_run(own, x)
    except tf.errors.OpError:
        # The dataset is made of what the session of Keras has.
        return stock(x)
    finally:
        own.close()


def _waiting(has_variables: bool = True) -> Optional[Any]:
    """Returns the session of Keras if its first run may make tables of variables, else None.

    Args:
        has_variables: Whether variables that may be chosen have to be there by now.
    """
    options = options_of_process()
    if options is None or tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    if graph_state(graph).is_settled or has_variables and not candidates(graph, options):
        return None
    session = keras_backend._get_session()  # pylint: disable=protected-access
    has_run = session.graph is not graph or any(
        PREPARED in vars(one) for one in graph_state(graph).sessions())
    return None if has_run else session


def _hold(pairs: Sequence[Tuple[Any, Any]]) -> bool:
    """Keeps values for the first run of the session of Keras; returns whether it does.

    It does where that run may make tables of variables. A value of another shape is TensorFlow's
    error, at once.
    """
    session = _waiting() if pairs else None
    if session is None or any(
            not isinstance(one, tf.Variable) or one.graph is not session.graph
            or one.shape.as_list() != list(np.shape(value)) for one, value in pairs):
        return False
    vars(session).setdefault(_HELD, []).extend((one, np.array(value)) for one, value in pairs)
    return True


def set_held(session: Any) -> None:
    """Sets the values, and initializes the iterators, that waited for the first run of a session.

    Args:
        session: The session.
    """
    held, initializers = (vars(session).pop(name, None) for name in (_HELD, _INITIALIZERS))
    if held:
        with session.graph.as_default(), session.as_default():
            _stock_set(held)
    if initializers:
        session.run(initializers)
