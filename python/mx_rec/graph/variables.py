"""Variables of session scripts become tables before the first session of their graph."""

from typing import Any, Callable

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.graph.sessions import has_seen
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.analysis import VARIABLES
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph, options_of_process


def convert_variables(graph: tf.Graph) -> None:
    """Converts the graph of a script as `init(stock_tables=...)` says, once.

    Args:
        graph: The graph, complete. One that was finalized, or whose variables an open session has
            seen in a run, stays as it is.

    Raises:
        ValueError: If settings of eviction do not go together.
    """
    state = graph_state(graph)
    if options_of_process() is None or state.is_settled or graph.finalized:
        return
    # The global step may have been there before.
    first = next((position for position, op in enumerate(graph.get_operations(), 1)
                  if op.type in VARIABLES and op.get_attr("dtype") == tf.float32), None)
    if first is not None and any(has_seen(session, first) for session in state.sessions()):
        state.is_settled = True
        logger.warning("stock_tables: an open session has run the graph with its variables, which "
                       "stay TensorFlow's. Call modify_graph_and_start_emb_cache(), or make the "
                       "MonitoredTrainingSession, before the first session.run.")
        return
    convert_graph(graph, True)


def patched_monitored_session(stock: Callable[..., None]) -> Callable[..., None]:
    """Makes _MonitoredSession.__init__, which converts the graph first.

    Hooks that begin find its tables, and the Scaffold makes its Saver and its initializers of what
    is there then.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        convert_variables(tf.compat.v1.get_default_graph())
        stock(self, *args, **kwargs)

    return __init__


def patched_initializer(stock: Callable[[], tf.Operation]) -> Callable[[], tf.Operation]:
    """Makes tf.compat.v1.global_variables_initializer, which starts variables that are tables, too.

    They are in no collection any more.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def global_variables_initializer() -> tf.Operation:
        key = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES
        starts = [] if tf.executing_eagerly() else [
            variable.initializer for one in converted(tf.compat.v1.get_default_graph())
            for variable in one.objects.get(key, ()) if variable.op.name == one.plan.name]
        return tf.group(stock(), *starts, name="init") if starts else stock()

    return global_variables_initializer
