"""What happens when a session runs a graph for the first time."""

from typing import Any, Callable, List

import tensorflow as tf

from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER
from mx_rec.core.admission import settle_timestamp
from mx_rec.core.clusters import check_session
from mx_rec.core.graph_state import GraphState, graph_state
from mx_rec.util.log import warn_once

# Name scope of what a rewrite adds.
PIPELINE_SCOPE = "mx_rec_pipeline/"

# Attributes of a session: the rewritten iterators' initializers that it ran, and that all is done.
_RAN = "_mx_rec_initializers"
_SETTLED = "_mx_rec_settled"


def starting_iterators(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes BaseSession.run, which starts rewritten one-shot iterators before anything else.

    Before that it refuses a cluster of several tasks, if the graph has tables now.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None,
            run_metadata: Any = None) -> Any:
        check_session(self)
        if _SETTLED not in self.__dict__:
            _before_run(self, fetches, lambda op: stock(self, op))
        return stock(self, fetches, feed_dict, options, run_metadata)

    return run


def has_run(session: Any) -> bool:
    """Returns whether an open session has run something."""
    return _RAN in session.__dict__ and not getattr(session, "_closed", False)


def start_iterators(session: Any) -> None:
    """Runs the initializers of rewritten iterators that nobody else runs in this session.

    Args:
        session: A session on the modified graph.
    """
    others = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    for op in graph_state(session.graph).started_by:
        if op not in others and op.name not in session.__dict__.get(_RAN, ()):
            session.run(op)


def adopt_initializers(graph: tf.Graph) -> None:
    """Finds the initializers of rewritten iterators in an imported graph that was modified.

    Args:
        graph: Any graph; one that was modified here is left alone.
    """
    state = graph_state(graph)
    if state.started_by:
        return
    for op in graph.get_collection(ASCEND_CUTTING_POINT_INITIALIZER):
        if isinstance(op, tf.Operation):
            state.started_by.append(op)
            # Those of one-shot iterators are made by the rewrite; others are the script's own.
            if PIPELINE_SCOPE in op.name:
                state.started_first.append(op)


def _before_run(session: Any, fetches: Any, run: Callable[[tf.Operation], Any]) -> None:
    state = graph_state(session.graph)
    if _RAN not in session.__dict__:
        adopt_initializers(session.graph)
        settle_timestamp(session.graph)
        setattr(session, _RAN, set())
        _first_run(session, state, run)
    ran = getattr(session, _RAN)
    waited_for = {op.name for op in state.started_by}
    ran.update(waited_for.intersection(op.name for op in _operations(fetches)))
    if waited_for <= ran:
        setattr(session, _SETTLED, True)


def _first_run(session: Any, state: GraphState, run: Callable[[tf.Operation], Any]) -> None:
    if state.movable and not state.is_planned:
        warn_once("lookups by tensor run inside the training step, because the graph was not "
                  "modified: the numbers are the same, but steps are slower than with key work "
                  "done ahead in the input pipeline. Call modify_graph_and_start_emb_cache, or "
                  "give GraphModifierHook to the session or the Estimator.")
    for op in state.started_first:
        getattr(session, _RAN).add(op.name)
        run(op)


def _operations(fetches: Any) -> List[tf.Operation]:
    """Returns the operations among fetches, which are nested as session.run allows."""
    if isinstance(fetches, tf.Operation):
        return [fetches]
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        return [op for part in fetches for op in _operations(part)]
    return []
