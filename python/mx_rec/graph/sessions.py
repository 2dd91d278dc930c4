"""What happens when a session runs a graph for the first time."""

import threading
from typing import Any, Callable, List, Optional, Set

import tensorflow as tf

from mx_rec.base.log import warn_once
from mx_rec.cluster.unmodified import share_requests
from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER, ASCEND_TIMESTAMP
from mx_rec.core.admission import settle_timestamp
from mx_rec.core.clusters import check_session, refuse_unknown_ops
from mx_rec.edits.replacing import extending, extensible
from mx_rec.graph.kept_rows import check_fetches, kept_rows
from mx_rec.state.graph_state import GraphState, graph_state
from mx_rec.stock.select import warn_of_variables

# Name scope of what a rewrite adds.
PIPELINE_SCOPE = "mx_rec_pipeline/"

# Attributes of a session: the rewritten iterators' initializers that it ran, that it ran them all,
# the state of the graph that it was prepared for, the names of ops that need rows of single ids
# beside their sums, and the lock of its preparation.
_RAN = "_mx_rec_initializers"
_SETTLED = "_mx_rec_settled"
_PREPARED = "_mx_rec_prepared"
_KEPT = "_mx_rec_kept"
_LOCK = "_mx_rec_lock"

# TensorFlow's own BaseSession.run, once it was replaced.
_stock_run = None  # type: Optional[Callable[..., Any]]


def starting_iterators(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes BaseSession.run, which prepares the session before it runs anything.

    Preparing refuses a cluster of several tasks, connects the timestamp of admission, replaces new
    ops on variables that are tables, joins the requests of lookups on parameter servers, and starts
    rewritten one-shot iterators, once for all threads.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    global _stock_run
    _stock_run = stock

    def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None,
            run_metadata: Any = None) -> Any:
        _prepare(self, fetches)
        if _SETTLED not in self.__dict__:
            _note(self, fetches)
        try:
            return stock(self, fetches, feed_dict, options, run_metadata)
        except tf.errors.NotFoundError as error:
            refuse_unknown_ops(error)
            raise

    return run


def preparing(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes BaseSession.make_callable or partial_run_setup, which prepare the session as run does.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _prepare(self, kwargs.get("fetches", args[0] if args else None))
        return stock(self, *args, **kwargs)

    return method


def fetching(stock: Callable[..., List[Any]]) -> Callable[..., List[Any]]:
    """Makes the methods by which the handler of a run's fetches lists tensors, and ops.

    In the place of variables that are tables it has what reads these.

    Args:
        stock: TensorFlow's own.

    Returns:
        Its replacement.
    """

    def method(self: Any) -> List[Any]:
        return [_instead_of(one) for one in stock(self)]

    return method


def _instead_of(fetched: Any) -> Any:
    late = graph_state(fetched.graph).late_ops
    return fetched if late is None else late.instead_of(fetched)


def has_run(session: Any) -> bool:
    """Returns whether an open session has run something."""
    return _RAN in session.__dict__ and not getattr(session, "_closed", False)


def has_seen(session: Any, position: int) -> bool:
    """Returns whether an open session has run the graph when it had a certain op.

    Args:
        session: The session.
        position: The place of the op among all of the graph, from 1 on.
    """
    return has_run(session) and position <= session.__dict__.get(_PREPARED, (0, 0))[0]


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


def _prepare(session: Any, fetches: Any) -> None:
    """Prepares a session for its graph as it is now; a graph may grow between two runs."""
    graph = session.graph
    now = graph.version, len(graph.get_collection(ASCEND_TIMESTAMP))
    marks = session.__dict__
    if marks.get(_PREPARED) != now:
        with marks.setdefault(_LOCK, threading.Lock()):
            if marks.get(_PREPARED) != now:
                check_session(session)
                settle_timestamp(graph)
                late = graph_state(graph).late_ops
                if late is not None:
                    late.adopt()
                if _RAN not in marks:
                    _begin(session, graph)
                marks[_KEPT] = kept_rows(graph)
                # Preparing may have added to the graph.
                marks[_PREPARED] = graph.version, now[1]
    if marks[_KEPT]:
        check_fetches(graph, marks[_KEPT], fetches)


def _begin(session: Any, graph: tf.Graph) -> None:
    """Does what comes before a session's first run."""
    warn_of_variables(graph)
    adopt_initializers(graph)
    state, marks = graph_state(graph), session.__dict__
    with extending:
        if not any(has_run(other) for other in state.sessions()):
            with extensible(graph):
                share_requests(graph)
        # No other thread may change the graph from here on.
        marks[_RAN] = set()
    try:
        marks[_RAN] = _first_run(state, session)
    except BaseException:
        del marks[_RAN]
        raise


def _first_run(state: GraphState, session: Any) -> Set[str]:
    """Runs what comes before a session's first run; returns the names of these ops."""
    # An imported graph that was modified elsewhere has initializers of rewritten iterators.
    if state.movable and not state.is_planned and not state.started_by:
        warn_once("lookups by tensor run inside the training step, because the graph was not "
                  "modified: the numbers are the same, but steps are slower than with key work "
                  "done ahead in the input pipeline. Call modify_graph_and_start_emb_cache, or "
                  "give GraphModifierHook to the session or the Estimator.")
    for op in state.started_first:
        _stock_run(session, op)
    return {op.name for op in state.started_first}


def _note(session: Any, fetches: Any) -> None:
    """Notes which initializers of rewritten iterators a run contains."""
    ran = getattr(session, _RAN)
    waited_for = {op.name for op in graph_state(session.graph).started_by}
    ran.update(waited_for.intersection(op.name for op in _operations(fetches)))
    if waited_for <= ran:
        setattr(session, _SETTLED, True)


def _operations(fetches: Any) -> List[tf.Operation]:
    """Returns the operations among fetches, which are nested as session.run allows."""
    if isinstance(fetches, tf.Operation):
        return [fetches]
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        return [op for part in fetches for op in _operations(part)]
    return []
