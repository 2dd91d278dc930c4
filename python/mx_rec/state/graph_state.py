"""What mx_rec knows of one TensorFlow graph; it lives and dies with that graph."""

import threading
import weakref
from typing import Any, Dict, List, Optional, Set

import tensorflow as tf

from mx_rec.state.feature_spec import FeatureSpec, Insertion

_ATTRIBUTE = "_mx_rec_state"
_first = threading.Lock()


class GraphState:
    """Tables, lookups and input pipelines of one graph.

    Attributes:
        tables: Tables (mx_rec.core.table.Table) by name, in order of creation.
        merged: Physical tables of `create_table(enable_merge=True)`, by configuration.
        insertions: What each traced insert function put into its batch, by marker name.
        timestamp_spec: The training feature that carries the timestamp, if there is one.
        admissions: Admission to tables (mx_rec.core.admission.Admission), by the name of the
            physical table.
        timestamp: What stands for the timestamp of the collection ASCEND_TIMESTAMP, once needed.
        has_timestamp: Whether the collection's tensor was connected to it.
        timestamps: The ops that stand so for a timestamp, those of imported graphs as well.
        searched_timestamps: How many of its first ops were searched for them.
        frozen: Whether `start_asc_pipeline` was called.
        lookups: Number of lookups made, for default names.
        movable: Number of lookups made with modify_graph=True, and of such training lookups that
            came with imported graphs.
        is_planned: Whether a graph modification has looked at these lookups.
        passed: The version of the graph that the graph pass has left, 0 before it.
        needs: What runs need of fused and joined lookups (mx_rec.graph.needs.Needs), None without
            any.
        is_settled: Whether it is settled which of its variables `init(stock_tables=...)` makes
            tables of.
        was_run: Whether a session had run the graph before that, and has begun anew.
        without_training: How many of its first ops were searched for one of an optimizer before
            that, in vain.
        before: What the graph was before each of its conversions (mx_rec.stock.undo.Before).
        settled: How many of its first ops have variables for which it is settled; what a session
            script adds is looked at again. 0 before that, and where nothing is.
        retired: Names of the ops that callables ran, and no callable does any more, when variables
            of tables were variables again.
        went_back: How often they were.
        saved_since: Whether a tf.train.Saver was made since that was settled.
        savers: What is known of each tf.train.Saver that was made for the graph
            (mx_rec.saver.var_lists.KnownSaver).
        element_specs: Nesting of the elements of an iterator, by the name of its op.
        initializers: Initialisation op of the rewritten iterator, by is_training.
        target_batches: Batch of the rewritten iterator, by is_training.
        started_by: Initialisation ops of all rewritten iterators.
        started_first: Those of them that every session runs by itself before anything else.
        session: The session that was opened last on this graph.
        late_ops: What replaces ops that are made on variables which are tables
            (mx_rec.stock.late.LateOps), None without such variables.
        computed: What runs compute in the place of what they fetch (mx_rec.graph.sessions).
    """

    def __init__(self) -> None:
        self.tables = {}  # type: Dict[str, Any]
        self.merged = {}  # type: Dict[str, Any]
        self.insertions = {}  # type: Dict[str, Insertion]
        self.timestamp_spec = None  # type: Optional[FeatureSpec]
        self.admissions = {}  # type: Dict[str, Any]
        self.timestamp = None  # type: Optional[tf.Tensor]
        self.has_timestamp = False
        self.timestamps = []  # type: List[tf.Operation]
        self.searched_timestamps = 0
        self.frozen = False
        self.lookups = 0
        self.movable = 0
        self.is_planned = False
        self.passed = 0
        self.needs = None  # type: Any
        self.is_settled = False
        self.was_run = False
        self.without_training = 0
        self.before = []  # type: List[Any]
        self.settled = 0
        self.retired = set()  # type: Set[str]
        self.went_back = 0
        self.saved_since = False
        self.savers = []  # type: List[Any]
        self.element_specs = {}  # type: Dict[str, Any]
        self.initializers = {}  # type: Dict[bool, tf.Operation]
        self.target_batches = {}  # type: Dict[bool, Any]
        self.started_by = []  # type: List[tf.Operation]
        self.started_first = []  # type: List[tf.Operation]
        self.session = None  # type: Optional[weakref.ReferenceType]
        self.late_ops = None  # type: Any
        self.computed = {}  # type: Dict[Any, Any]
        self._sessions = weakref.WeakSet()  # type: Any
        self._lock = threading.Lock()

    def add_session(self, session: Any) -> None:
        """Notes that a session was opened, without keeping it alive. Threads may open several."""
        with self._lock:
            self.session = weakref.ref(session)
            self._sessions.add(session)

    def sessions(self) -> List[Any]:
        """Returns the sessions opened on this graph that somebody still refers to."""
        with self._lock:
            return list(self._sessions)

    def insertions_of(self, spec: FeatureSpec,
                      is_training: Optional[bool] = None) -> List[Insertion]:
        """Returns the insertions that read `spec`, of one mode or, for None, of both."""
        return [insertion for insertion in self.insertions.values()
                if is_training in (None, insertion.is_training)
                and spec.name in insertion.components]


def outermost_graph(graph: Optional[tf.Graph] = None) -> tf.Graph:
    """Returns the graph that a session runs: functions being built are left.

    Args:
        graph: Where to start; None is the present default graph.

    Returns:
        The graph itself, or the one that the function graph is part of.
    """
    graph = graph if graph is not None else tf.compat.v1.get_default_graph()
    while True:
        outer = getattr(graph, "outer_graph", None) or getattr(graph, "_outer_graph", None)
        if outer is None or outer is graph:
            return graph
        graph = outer


def graph_state(graph: Optional[tf.Graph] = None) -> GraphState:
    """Returns the state of a graph, made at first use.

    Args:
        graph: A graph, or None for the present default graph.

    Returns:
        The one state of the graph's outermost graph.
    """
    graph = outermost_graph(graph)
    state = getattr(graph, _ATTRIBUTE, None)
    if state is None:
        # Of two threads that come first, such as by opening sessions, both get the same one.
        with _first:
            state = getattr(graph, _ATTRIBUTE, None)
            if state is None:
                state = GraphState()
                setattr(graph, _ATTRIBUTE, state)
    return state


def remember_session(session: Any) -> None:
    """Notes that `session` is the latest one of its graph, without keeping it alive."""
    graph = getattr(session, "graph", None)
    if graph is not None:
        graph_state(graph).add_session(session)


def find_session(graph: tf.Graph) -> Any:
    """Finds a session in which ops of `graph` can run.

    Args:
        graph: The graph.

    Returns:
        The default session if it runs this graph, else the session opened last on it.

    Raises:
        RuntimeError: If there is none, or the last one is gone.
    """
    session = tf.compat.v1.get_default_session()
    if session is not None and session.graph is graph:
        return session
    last = graph_state(graph).session
    session = last() if last is not None else None
    if session is None:
        raise RuntimeError(
            "a table lives in a session, and this table's graph has none yet: open a "
            "tf.compat.v1.Session (or a MonitoredTrainingSession) on the graph first.")
    return session
