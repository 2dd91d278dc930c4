"""What happens when a session runs a graph for the first time."""

import contextlib
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from mx_rec.base.log import warn_once
from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER
from mx_rec.core.admission import settle_timestamp
from mx_rec.core.clusters import check_session, refuse_unknown_ops
from mx_rec.edits.replacing import extending, extensible
from mx_rec.graph.anew import note_callable, note_closure, set_values
from mx_rec.graph.fuse import pass_over
from mx_rec.graph.needs import Needs, has_fused
from mx_rec.graph.runs import (PREPARED, RAN, READY, SETTLED, begin_run, end_run, has_run,
                               note_ready, preparation, setting, stock_run)
from mx_rec.graph.variables import convert_before_run
from mx_rec.graph.weights import set_held
from mx_rec.state.graph_state import GraphState, graph_state
from mx_rec.tensorflow.names import c_api, version_for

# Name scope of what a rewrite adds.
PIPELINE_SCOPE = "mx_rec_pipeline/"

# Attribute of a session, beside those of runs.py: what partial runs fetch in the place of others.
_PARTS = "_mx_rec_parts"


def starting_iterators(stock: Callable[..., Any], self: Any, fetches: Any, feed_dict: Any = None,
                       options: Any = None, run_metadata: Any = None) -> Any:
    """BaseSession.run, which prepares the session before it runs anything.

    Preparing refuses a cluster of several tasks, makes tables of variables as
    `init(stock_tables=...)` says, connects the timestamp of admission, replaces new ops on
    variables that are tables, passes over the graph, and starts rewritten one-shot iterators, once
    for all threads.
    """
    is_begun = False
    while not is_begun:
        # Most runs find the graph as the one before left it, and are to cost nothing.
        if self.__dict__.get(READY) != version_for(self):
            _prepare(self)
            _note(self, fetches)
        is_begun = begin_run(self)
    try:
        return stock(self, fetches, feed_dict, options, run_metadata)
    except tf.errors.NotFoundError as error:
        refuse_unknown_ops(error)
        raise
    finally:
        end_run(self)


def preparing(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """BaseSession.make_callable, which prepares the session as run does."""
    _prepare(self)
    note_closure(self)
    result = stock(self, *args, **kwargs)
    # What the run fetches may be newer than what the session knew when this began.
    self._extend_graph()  # pylint: disable=protected-access
    return result


def preparing_parts(stock: Callable[..., Any], self: Any, fetches: Any, feeds: Any = None) -> Any:
    """BaseSession.partial_run_setup, which prepares the session as run does.

    What stands in the place of fetches is decided for all parts of the run together.
    """
    _prepare(self)
    find = self.graph.as_graph_element
    fed = [find(one, allow_operation=False) for one in feeds or ()
           if isinstance(one, (str, tf.Tensor))]
    with _deciding(fed=fed) as decided:
        handle = stock(self, fetches, feeds)
    if decided.instead:
        self.__dict__.setdefault(_PARTS, {})[handle] = decided.instead
    return handle


def running_parts(stock: Callable[..., Any], self: Any, handle: Any, fetches: Any,
                  feed_dict: Any = None) -> Any:
    """BaseSession.partial_run, which fetches what its setup has decided."""
    with _deciding(instead=self.__dict__.get(_PARTS, {}).get(handle, {})):
        return stock(self, handle, fetches, feed_dict)


def extending_session(stock: Callable[..., None], self: Any) -> None:
    """BaseSession._extend_graph, which gives a session no op that has yet to be replaced.

    Other threads may have made some since the run was prepared. A session has a copy of each op,
    which is changed in vain.
    """
    # pylint: disable=protected-access
    late = graph_state(self.graph).late_ops
    if late is None:
        stock(self)
        return
    with self.graph._session_run_lock():
        if late.version == version_for(self):
            c_api.ExtendSession(self._session)
            return
    with extensible(self.graph):
        late.adopt()
        c_api.ExtendSession(self._session)


class _Computed(NamedTuple):
    """What a run computes that fetches and is fed certain objects.

    Attributes:
        version: The version of the graph for which it is known.
        instead: What it computes, by the ids of what it fetches.
        of: These objects, so that no others have their ids.
    """

    version: int
    instead: Dict[int, Any]
    of: Any


# Attribute of the handler of a run's fetches: what the run computes.
_COMPUTED = "_mx_rec_computed"

# So many kinds of runs of a graph are remembered.
_MOST_COMPUTED = 256


class _Decision(threading.local):
    """What is known of the partial run that a thread sets up or goes on with.

    Attributes:
        is_part: Whether there is one.
        fed: In its setup the tensors that it may be fed.
        instead: What it fetches in the place of others; None until it is decided.
    """

    is_part = False
    fed = ()  # type: Sequence[Any]
    instead = None  # type: Optional[Dict[str, Any]]


_decision = _Decision()


@contextlib.contextmanager
def _deciding(fed: Sequence[Any] = (),
              instead: Optional[Dict[str, Any]] = None) -> Iterator[_Decision]:
    """A context in which a partial run is set up, or goes on with what was decided."""
    _decision.is_part, _decision.fed, _decision.instead = True, fed, instead
    try:
        yield _decision
    finally:
        _decision.is_part = False


def preparing_options(stock: Callable[..., Any], self: Any, callable_options: Any) -> Any:
    """BaseSession._make_callable_from_options, by which Keras runs its functions."""
    _prepare(self)
    state, find = graph_state(self.graph), self.graph.as_graph_element
    asked = callable_options
    if _has_instead(state):
        options = type(callable_options)()
        options.CopyFrom(callable_options)
        fetched = [find(name) for name in list(options.fetch) + list(options.target)]
        fed = [find(name) for name in options.feed]
        for names in (options.fetch, options.target):
            some = [find(name) for name in names]
            names[:] = [one.name for one in _instead_of(some, fetched, fed)]
        callable_options = options
        self._extend_graph()
    made = stock(self, callable_options)
    note_callable(self, made, asked)
    return made


def fetching(stock: Callable[..., List[Any]], self: Any) -> List[Any]:
    """The methods by which the handler of a run's fetches lists tensors, and ops.

    In the place of variables that are tables it has what reads these, and in that of what a run
    does not need by fused and joined lookups what computes it otherwise.
    """
    # pylint: disable=protected-access
    some = stock(self)
    if not some:
        return some
    # The handler of one run lists tensors, then ops.
    known = self.__dict__.get(_COMPUTED)
    if known is not None:
        return [known.instead[id(one)] for one in some]
    graph = some[0].graph
    state = graph_state(graph)
    if not _has_instead(state):
        return some
    # Newer TensorFlow has references to the tensors that are fed.
    fed = [one.deref() if hasattr(one, "deref") else one for one in self._feeds]
    fetched = self._final_fetches + self._targets
    if _decision.is_part:
        return _instead_of(some, fetched, fed)
    # A training asks for the same again and again.
    key = tuple(map(id, fetched)), tuple(map(id, fed))
    known = state.computed.get(key)
    if known is None or known.version != graph.version:
        instead = _instead_of(fetched, fetched, fed)
        known = _Computed(graph.version, dict(zip(key[0], instead)), (fetched, fed))
        if len(state.computed) >= _MOST_COMPUTED:
            state.computed.clear()
        state.computed[key] = known
    self.__dict__[_COMPUTED] = known
    return [known.instead[id(one)] for one in some]


def _has_instead(state: GraphState) -> bool:
    """Whether runs of a graph may compute something in the place of what they fetch."""
    return state.late_ops is not None or state.needs is not None


def _instead_of(some: List[Any], fetched: List[Any], fed: Sequence[Any]) -> List[Any]:
    """Returns what a run computes in the place of some of what it fetches."""
    if not some:
        return some
    state = graph_state(some[0].graph)
    if state.late_ops is not None:
        some, fetched = [[state.late_ops.instead_of(one) for one in each]
                         for each in (some, fetched)]
    if state.needs is not None:
        instead = _decision.instead if _decision.is_part else None
        if instead is None:
            instead = state.needs.instead(fetched, _decision.fed if _decision.is_part else fed,
                                          _decision.is_part)
            _decision.instead = instead
        some, fetched = [[instead.get(one.name, one) for one in each] for each in (some, fetched)]
    if state.late_ops is not None and not _decision.is_part:
        names = [one.name for one in fed]
        some = [state.late_ops.at_end(one, fetched, names) for one in some]
    return some


def start_iterators(session: Any) -> None:
    """Runs the initializers of rewritten iterators that nobody else runs in this session.

    Args:
        session: A session on the modified graph.
    """
    others = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    for op in graph_state(session.graph).started_by:
        if op not in others and op.name not in session.__dict__.get(RAN, ()):
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


def _prepare(session: Any) -> None:
    """Prepares a session for its graph as it is now; a graph may grow between two runs."""
    graph = session.graph
    now, marks = graph.version, session.__dict__
    if marks.get(PREPARED) != now:
        with preparation(session):
            if marks.get(PREPARED) != now:
                check_session(session)
                convert_before_run(session)
                settle_timestamp(graph)
                late = graph_state(graph).late_ops
                if late is not None:
                    late.adopt()
                if RAN not in marks:
                    _begin(session, graph)
                elif graph.version > marks[PREPARED]:
                    _pass_over(graph)
                state = graph_state(graph)
                state.computed.clear()
                if state.needs is None and has_fused(graph):
                    state.needs = Needs(graph)
                # Preparing may have added to the graph, and so may other threads meanwhile.
                with extensible(graph):
                    if late is not None:
                        late.adopt()
                    marks[PREPARED] = graph.version
    with setting(session) as is_first:
        if is_first:
            set_values(session)
            set_held(session)


def _begin(session: Any, graph: tf.Graph) -> None:
    """Does what comes before a session's first run."""
    adopt_initializers(graph)
    state, marks = graph_state(graph), session.__dict__
    with extending:
        _pass_over(graph)
        # No other thread may change the graph from here on.
        marks[RAN] = set()
    try:
        marks[RAN] = _first_run(state, session)
    except BaseException:
        del marks[RAN]
        raise


def _pass_over(graph: tf.Graph) -> None:
    """Passes over what no open session has run."""
    with extending:
        seen = [other.__dict__.get(PREPARED, graph.version)
                for other in graph_state(graph).sessions() if has_run(other)]
        with extensible(graph):
            pass_over(graph, max(seen, default=0))


def _first_run(state: GraphState, session: Any) -> Set[str]:
    """Runs what comes before a session's first run; returns the names of these ops."""
    # An imported graph that was modified elsewhere has initializers of rewritten iterators.
    if state.movable and not state.is_planned and not state.started_by:
        warn_once("lookups by tensor run inside the training step, because the graph was not "
                  "modified: the numbers are the same, but steps are slower than with key work "
                  "done ahead in the input pipeline. Call modify_graph_and_start_emb_cache, or "
                  "give GraphModifierHook to the session or the Estimator.")
    for op in state.started_first:
        stock_run(session, op)
    return {op.name for op in state.started_first}


def _note(session: Any, fetches: Any) -> None:
    """Notes which initializers of rewritten iterators a run contains, and what is left to do."""
    marks = session.__dict__
    if SETTLED not in marks:
        waited_for = {op.name for op in graph_state(session.graph).started_by}
        marks[RAN].update(waited_for.intersection(op.name for op in _operations(fetches)))
        if not waited_for <= marks[RAN]:
            return
        marks[SETTLED] = True
    note_ready(session)


def _operations(fetches: Any) -> List[tf.Operation]:
    """Returns the operations among fetches, which are nested as session.run allows."""
    if isinstance(fetches, tf.Operation):
        return [fetches]
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        return [op for part in fetches for op in _operations(part)]
    return []
