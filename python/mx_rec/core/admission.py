"""Admission and eviction: the ops that count keys before they get rows, and calls that evict.

A training lookup of a table with a threshold is two ops: MxRecObserve counts the keys of its batch,
MxRecAdmit gives rows to those that have been seen often enough. All lookups of one table in one
step are counted before any of them decides, so that their order does not matter.
"""

import threading
from collections import Counter, OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf

from mx_rec.base.global_env_conf import global_env
from mx_rec.base.log import logger, warn_once
from mx_rec.cluster.admission import evict_parts, set_part_thresholds
from mx_rec.cluster.lookups import Counting
from mx_rec.constants.constants import ASCEND_TIMESTAMP, MAX_INT32
from mx_rec.core.table import Table
from mx_rec.edits.upstream import upstream
from mx_rec.ops import library
from mx_rec.state.graph_state import GraphState, find_session, graph_state, outermost_graph
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import (CLUSTER_TABLE_OP, TABLE_OP, described_name, table_op_of,
                                         table_ops)
from mx_rec.tensorflow.scopes import own_scopes
from mx_rec.validator.validator import Int, Text, Type, checked

# Name scope of the stand-in for the timestamp of the collection.
_TIMESTAMP_SCOPE = "mx_rec_timestamp"

# What the name scope of `Controls` has behind the name of the table's op.
_CONTROLS_SCOPE = "//admission"

# Ops of training lookups, and one that only graphs with a counting lookup have.
_TRAINING_OPS = ("MxRecIdOffset", "MxRecObserve", "MxRecSetThreshold", "MxRecPartObserve")

# Ops that count keys for admission.
_COUNTING_OPS = ("MxRecObserve", "MxRecPartObserve")

# No threshold at all.
OFF = (-1, -1)


class Evicted(NamedTuple):
    """What an eviction did to a table.

    Attributes:
        evicted: Keys that lost their row, slots and history, or their history alone. With
            admission_sketch_bytes those that had a row: others are not known one by one.
        kept: Keys that the table still knows; with admission_sketch_bytes those with a row.
    """

    evicted: int
    kept: int


class Counted(NamedTuple):
    """The two ops of one training lookup."""

    observe: tf.Operation
    admit: tf.Operation


class Controls(NamedTuple):
    """The ops by which admission to one physical table is steered.

    Attributes:
        name: Name of the table.
        op: The op that makes it, or stands for it.
        handle: Its handle; None for a table on parameter servers.
        value: Placeholder of a new access threshold, int32 scalar.
        set_threshold: The op that sets it, int32 scalar.
        evict: (evicted, kept), int64 (2); None without an eviction threshold.
    """

    name: str
    op: tf.Operation
    handle: Optional[tf.Tensor]
    value: tf.Tensor
    set_threshold: tf.Tensor
    evict: Optional[tf.Tensor]


class Admission:
    """Admission to one physical table in one graph.

    Attributes:
        name: Name of the table that switched it on.
        thresholds: (access, eviction); -1 is none.
        lookups: The training lookups that count, in the order in which they were made.
        waits: Whether one of them takes its timestamp from the collection.
    """

    def __init__(self, table: Table, thresholds: Tuple[int, int]) -> None:
        self.name = table.table_name
        self.thresholds = thresholds
        self.lookups = []  # type: List[Counted]
        self.waits = False
        # Made here, so that they exist when the graph is finalised.
        with tf.init_scope(), tf.compat.v1.name_scope(None), tf.device("/cpu:0"), \
                tf.compat.v1.name_scope(table.variable.op.name + _CONTROLS_SCOPE):
            value = tf.compat.v1.placeholder(tf.int32, [], name="threshold")
            if table.handle is None:
                set_part_thresholds(table.variable.op, value)
                if thresholds[1] >= 0:
                    evict_parts(table.variable.op)
            else:
                library().mx_rec_set_threshold(table.handle, value, name="set_threshold")
                if thresholds[1] >= 0:
                    library().mx_rec_evict(table.handle, name="evict")


def check_thresholds(table: Table, is_train: bool, thresholds: Tuple[int, int]) -> None:
    """Checks the thresholds of a lookup that is about to be made.

    Args:
        table: Its table.
        is_train: Its mode.
        thresholds: (access, eviction) threshold, -1 for none.

    Raises:
        ValueError: If other lookups of the table have other thresholds (a lookup for evaluation,
            which only reads, may have none), or there is an eviction threshold with dynamic
            expansion.
    """
    if thresholds == OFF and not is_train:
        return
    others = table.thresholds.get(is_train)
    if others is None and thresholds != OFF:
        others = table.thresholds.get(not is_train, OFF)
        others = None if others == OFF else others
    if others is None and is_train and thresholds != OFF:
        shared = graph_state().admissions.get(table.physical_name)
        others = None if shared is None else shared.thresholds
    if others not in (None, thresholds):
        raise ValueError("the access and evict threshold param must be same in one table when "
                         "multi lookup. (table {!r} has {}, this lookup {})".format(
                             table.table_name, others, thresholds))
    if thresholds[1] >= 0 and Settings.get_instance().use_dynamic_expansion:
        raise ValueError(
            "the lookup of the table {!r} has an 'eviction_threshold', which is not possible with "
            "dynamic expansion: offsets that a script holds would name rows that are gone. Leave "
            "the threshold out, or give tables a size and use init without "
            "use_dynamic_expansion.".format(table.table_name))


def count_and_admit(table: Table, ids: tf.Tensor, thresholds: Tuple[int, int], coefficient: int,
                    timestamp: Optional[tf.Tensor], limit: int) -> Tuple[tf.Tensor, tf.Tensor]:
    """Adds the ops of a training lookup with admission, in the present name scope.

    Args:
        table: The table.
        ids: int32 or int64 of any shape.
        thresholds: (access, eviction); the access threshold is at least 0.
        coefficient: Factor of the occurrences of the ids.
        timestamp: The batch's time, int64 scalar; None takes that of ASCEND_TIMESTAMP.
        limit: Most distinct keys of a batch, 0 for any number.

    Returns:
        offsets (v) int64, the rows of the admitted keys, and their inverse index, int32 in the
        shape of ids: positions in offsets, -1 for padding and for keys that are not admitted.
    """
    admission, timestamp = admission_of(table, thresholds, timestamp)
    weight = tf.constant(coefficient, tf.int32, name="coefficient")
    keys, places = library().mx_rec_observe(
        table.handle, ids, weight, timestamp, access_threshold=thresholds[0],
        eviction_threshold=thresholds[1], name="observe")
    offsets, inverse = library().mx_rec_admit(table.handle, keys, places, limit=limit, name="admit")
    made = Counted(keys.op, offsets.op)
    _count_first(table, admission.lookups, made)
    admission.lookups.append(made)
    settle_timestamp(is_last_call=False)
    return offsets, inverse


def admission_of(table: Table, thresholds: Tuple[int, int],
                 timestamp: Optional[tf.Tensor]) -> Tuple[Admission, tf.Tensor]:
    """Returns the admission to a table, and the timestamp of what counts its keys.

    The first call makes the ops that set the access threshold and evict.

    Args:
        table: The table.
        thresholds: (access, eviction); the access threshold is at least 0.
        timestamp: See `count_and_admit`.
    """
    state = graph_state()
    admission = state.admissions.get(table.physical_name)
    if admission is None:
        admission = Admission(table, thresholds)
        state.admissions[table.physical_name] = admission
        if global_env.use_combine_faae:
            warn_once("USE_COMBINE_FAAE has no effect: every table counts its own keys.")
    if timestamp is None:
        timestamp = _stand_in(state)
        admission.waits = True
    return admission, timestamp


def count_shared(tables: Sequence[Table], thresholds: Tuple[int, int], coefficient: int,
                 timestamp: Optional[tf.Tensor]) -> Counting:
    """Says how the keys of a training lookup of tables on parameter servers are counted.

    Args:
        tables: The tables of the lookup, which share its requests.
        thresholds: (access, eviction); the access threshold is at least 0.
        coefficient: Factor of the occurrences of the ids.
        timestamp: The batch's time, int64 scalar; None takes that of ASCEND_TIMESTAMP.

    Returns:
        What `mx_rec.cluster.lookups.look_up` takes.
    """
    admissions = [admission_of(table, thresholds, timestamp) for table in tables]

    def note(observe: tf.Operation, admit: tf.Operation) -> None:
        made = Counted(observe, admit)
        # A parameter server counts for itself.
        part = observe.get_attr("part")
        known = []  # type: List[Counted]
        for table, (admission, _) in zip(tables, admissions):
            others = [other for other in admission.lookups
                      if other.observe.get_attr("part") == part and other not in known
                      and other != made]
            _count_first(table, others, made)
            known.extend(others)
            if made not in admission.lookups:
                admission.lookups.append(made)
        settle_timestamp(is_last_call=False)

    return Counting(thresholds, coefficient, admissions[0][1], note)


def _count_first(table: Table, others: Sequence[Counted], made: Counted) -> None:
    """Makes every lookup of a table decide after all of them have counted."""
    decisions = {other.admit for other in others}
    # Those of them that have to run before the new lookup counts.
    above = decisions.intersection(upstream([made.observe] if others else (), control_inputs=True))
    for other in others:
        if not _in_one_place(made.admit, other.admit):
            logger.info("the lookups %s and %s of the table %r are in different branches, loops "
                        "or functions: they do not wait for each other's counts.",
                        made.observe.name, other.observe.name, table.table_name)
            continue
        # pylint: disable=protected-access
        made.admit._add_control_input(other.observe)
        if other.admit in above:
            logger.info("the ids of %s depend on the result of %s, which therefore decides before "
                        "they are counted (table %r).", made.observe.name, other.admit.name,
                        table.table_name)
        else:
            other.admit._add_control_input(made.observe)


def _in_one_place(one: tf.Operation, other: tf.Operation) -> bool:
    """Whether two ops are in one graph, and in one branch or loop of it."""
    # pylint: disable=protected-access
    return one.graph is other.graph \
        and one._get_control_flow_context() is other._get_control_flow_context()


# Timestamps ----------------------------------------------------------------------------------


def check_timestamp(value: Any, what: str) -> tf.Tensor:
    """Returns `value` if it can be a timestamp.

    Args:
        value: What was given.
        what: What it is, for the message.

    Returns:
        An int32 or int64 tensor of rank 0 or of unknown rank.

    Raises:
        ValueError: If it is anything else.
    """
    if not isinstance(value, tf.Tensor):
        raise ValueError("{} should be a Tensor, but is a {}".format(what, type(value).__name__))
    if value.dtype not in (tf.int32, tf.int64):
        raise ValueError("{} should be int64 seconds, but is {}".format(what, value.dtype.name))
    if value.shape.rank not in (None, 0):
        raise ValueError("{} should be a scalar, one for the batch, but has the shape {}".format(
            what, value.shape))
    return value


def as_int64(value: tf.Tensor) -> tf.Tensor:
    """Returns an integer tensor as int64."""
    return value if value.dtype == tf.int64 else tf.cast(value, tf.int64)


def _stand_in(state: GraphState) -> tf.Tensor:
    """Returns a tensor that stands for the timestamp of the collection, which may come later.

    Until `settle_timestamp` connects the timestamp it is an empty vector, which notes no time.
    """
    if state.timestamp is None:
        with tf.init_scope(), tf.compat.v1.name_scope(None), tf.device("/cpu:0"), \
                tf.compat.v1.name_scope(_TIMESTAMP_SCOPE):
            # Of unknown shape, so that a scalar can take its place.
            none = tf.compat.v1.placeholder_with_default(tf.zeros([0], tf.int64), None, "none")
            state.timestamp = tf.identity(none, name="timestamp")
    return state.timestamp


def settle_timestamp(graph: Optional[tf.Graph] = None, is_last_call: bool = True) -> None:
    """Connects the timestamp of the collection to the lookups that wait for it.

    Called when a lookup is made, when the building of the graph ends, and before the first run.

    Args:
        graph: The graph; None is the present default graph.
        is_last_call: Whether a timestamp that is needed has to be there.

    Raises:
        ValueError: If there are several timestamps, it is no int64 scalar, or a table has an
            eviction threshold and there is none.
    """
    graph = outermost_graph(graph)
    state = graph_state(graph)
    if state.has_timestamp:
        return
    waiting = [] if state.timestamp is None else [state.timestamp.op]
    if is_last_call:
        waiting += [op for op in _imported_timestamps(graph) if op not in waiting]
    if not waiting:
        return
    given = []  # type: List[Any]
    for value in graph.get_collection(ASCEND_TIMESTAMP):
        if not any(value is other for other in given):
            given.append(value)
    if len(given) > 1:
        raise ValueError("the collection {} holds {} timestamps; a training graph has one.".format(
            ASCEND_TIMESTAMP, len(given)))
    if given:
        value = check_timestamp(given[0], "the timestamp in the collection " + ASCEND_TIMESTAMP)
        if value.graph is not graph:
            raise ValueError("the timestamp {} in the collection {} belongs to another graph or to "
                             "a function.".format(value.name, ASCEND_TIMESTAMP))
        if value.dtype != tf.int64:
            if graph.finalized:
                raise ValueError("the timestamp {} is {}: put tf.cast(..., tf.int64) of it into "
                                 "the collection {}.".format(value.name, value.dtype.name,
                                                             ASCEND_TIMESTAMP))
            with graph.as_default(), own_scopes(graph), tf.device("/cpu:0"):
                value = tf.cast(value, tf.int64, name=_TIMESTAMP_SCOPE + "/cast")
        for op in waiting:
            op._update_input(0, value)  # pylint: disable=protected-access
        state.has_timestamp = True
        return
    if not is_last_call:
        return
    needing = [one.name for one in state.admissions.values()
               if one.waits and one.thresholds[1] >= 0]
    counting = [reader for op in waiting for reader in op.outputs[0].consumers()
                if reader.type in _COUNTING_OPS and reader.get_attr("eviction_threshold") >= 0]
    needing += [reader.inputs[0].op.name if reader.type == "MxRecObserve" else reader.name
                for reader in counting]
    if needing:
        raise ValueError(
            "the lookups of the table {!r} have an 'eviction_threshold', but there is no "
            "timestamp to tell how old a key is. Give each training batch one, an int64 scalar "
            "of seconds: as FeatureSpec(..., is_timestamp=True), or by "
            "tf.compat.v1.add_to_collection({!r}, tensor).".format(needing[0], ASCEND_TIMESTAMP))


def _imported_timestamps(graph: tf.Graph) -> List[tf.Operation]:
    """Returns the stand-ins, also of imported graphs, that no timestamp was connected to."""
    state, operations = graph_state(graph), graph.get_operations()
    state.timestamps += [op for op in operations[state.searched_timestamps:]
                         if op.type == "Identity"
                         and op.name.endswith(_TIMESTAMP_SCOPE + "/timestamp")]
    state.searched_timestamps = len(operations)
    return [op for op in state.timestamps if op.inputs[0].op.type == "PlaceholderWithDefault"]


# Thresholds and evictions while training -----------------------------------------------------


def set_threshold_op(input: Any,  # pylint: disable=redefined-builtin
                     emb_name: Union[str, Sequence[str]] = "", ids_name: str = "") -> tf.Tensor:
    """Makes an op that changes the admission threshold of tables, `set_threshold` of the original.

    Args:
        input: int32 scalar tensor, or an int: the new threshold, greater than 0; or 0, which stops
            the counting of keys. The op fails for less.
        emb_name: A table's name, or a list of names; empty is all tables with admission.
        ids_name: Of the original, without effect.

    Returns:
        int32 scalar, the value, once it is set.

    Raises:
        ValueError: If there is no such table in the present graph, or it has no admission.
    """
    del ids_name
    names = [emb_name] if isinstance(emb_name, str) else list(emb_name)
    for name in names:
        Text(0, 255)("emb_name", name)
    controls = _controls([name for name in names if name])
    value = tf.convert_to_tensor(input, tf.int32, name="threshold")
    with tf.device("/cpu:0"):
        done = [library().mx_rec_set_threshold(one.handle, value, name="set_threshold")
                if one.handle is not None
                else set_part_thresholds(one.op, value) for one in controls]
        if len(done) == 1:
            return done[0]
        with tf.control_dependencies(done):
            return tf.identity(value, name="thresholds")


@checked(threshold=Int(0, MAX_INT32), table=Type(Table, str, optional=True))
def set_threshold(threshold: int, table: Union[None, str, Table] = None) -> None:
    """Changes the admission threshold of a table in the present session.

    The session is found as `table.size()` finds it. Keys that have a row keep it; while their count
    is below the new threshold, lookups treat them as not admitted.

    Args:
        threshold: The new threshold in [1, 2147483647]; or 0: keys are not counted any more.
        table: A table or its name, of an imported graph also the name of the op that makes it;
            None is all tables with admission.

    Raises:
        ValueError: If the threshold is out of its range, or there is no such table, or it has no
            admission, or several imported tables have the name.
        RuntimeError: If no session was opened on the graph.
    """
    graph = _graph_of(table, "set_threshold")
    controls = _controls(_names(table), graph)
    find_session(graph).run([one.set_threshold for one in controls],
                            {one.value: threshold for one in controls})


@checked(table=Type(Table, str, optional=True))
def evict(table: Union[None, str, Table] = None) -> Dict[str, Evicted]:
    """Evicts stale keys in the present session, as EvictHook does, and waits for the end.

    Stale are keys whose last timestamp lies at least the table's eviction threshold behind the
    latest one. The session is found as `table.size()` finds it.

    Args:
        table: A table or its name, of an imported graph also the name of the op that makes it;
            None is all tables with an eviction threshold.

    Returns:
        What was done, by the name of the table; where imported tables have one name, by the names
        of their ops.

    Raises:
        ValueError: If there is no such table, or it has no eviction threshold, or several imported
            tables have the name.
        RuntimeError: If no session was opened on the graph.
    """
    graph = _graph_of(table, "evict")
    evicting = evicting_tables(graph, _names(table))
    numbers = run_beside(find_session(graph), {name: one.evict for name, one in evicting.items()})
    return {name: Evicted(*(int(number) for number in pair)) for name, pair in numbers.items()}


def _graph_of(table: Union[None, str, Table], name: str) -> tf.Graph:
    """Returns the graph of the tables that a function is called for.

    Args:
        table: As it was given.
        name: Name of the function.

    Raises:
        ValueError: If it is the default graph of a thread that has none of its own.
    """
    if isinstance(table, Table):
        return outermost_graph(table.variable.graph)
    graph = outermost_graph()
    if not has_tables(graph) and threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "{}() finds no table in the default graph of the thread {!r}: each thread has its own "
            "default graph. Call it inside of 'with graph.as_default():', or give it a table as "
            "create_table has returned it.".format(name, threading.current_thread().name))
    return graph


def run_beside(session: tf.compat.v1.Session, fetches: Any) -> Any:
    """Runs ops that take long on the calling thread: steps have all of the session's threads.

    Args:
        session: A session.
        fetches: As for `session.run`.

    Returns:
        What `session.run` gives.
    """
    return session.run(fetches, options=tf.compat.v1.RunOptions(inter_op_thread_pool=-1))


def evicting_tables(graph: tf.Graph, names: Sequence[str] = ()) -> Dict[str, Controls]:
    """Finds the tables of a graph that evict, also those of imported graphs.

    Args:
        graph: The graph.
        names: Names of tables; none is all that have an eviction threshold.

    Returns:
        The ops that steer them, by name; where imported tables have one name, by the names of
        their ops.

    Raises:
        ValueError: If one of `names` has no eviction threshold, or no table at all has one.
    """
    config = Settings.get_instance()
    if config.use_dynamic_expansion:
        raise ValueError("tables with dynamic expansion cannot evict: offsets that a script holds "
                         "would name rows that are gone. Give tables a size and use init without "
                         "use_dynamic_expansion.")
    found = _controls(names, graph) if names else list(_all_controls(graph).values())
    evicting = {one.name: one for one in found if one.evict is not None}
    for one in found:
        if names and one.evict is None:
            raise ValueError("the lookups of the table {!r} have no 'eviction_threshold': nothing "
                             "of it is ever stale. Give them one, in seconds.".format(one.name))
    if not evicting:
        _check_cut([op for op in table_ops(graph, TABLE_OP)
                    if op.name not in _all_controls(graph)], graph)
        raise ValueError("no training lookup of this graph has an 'eviction_threshold': there is "
                         "nothing to evict. Give lookups an access_threshold (1 admits every key, "
                         "which is eviction alone) and an eviction_threshold in seconds.")
    return evicting


def may_evict(graph: tf.Graph) -> bool:
    """Returns whether a lookup of a graph, made here or imported, has an eviction threshold.

    True with dynamic expansion, where `evicting_tables` says why nothing evicts.

    Raises:
        ValueError: If the graph was imported without the ops that evict.
    """
    if Settings.get_instance().use_dynamic_expansion:
        return True
    controls = _all_controls(graph)
    if any(one.evict is not None for one in controls.values()):
        return True
    _check_cut([op for op in table_ops(graph, TABLE_OP) if op.name not in controls], graph)
    return False


def _names(table: Union[None, str, Table]) -> List[str]:
    if table is None:
        return []
    return [table.table_name if isinstance(table, Table) else table]


def _controls(names: Sequence[str], graph: Optional[tf.Graph] = None) -> List[Controls]:
    """Finds the ops that steer admission to tables by name, of all tables without names."""
    graph = outermost_graph(graph)
    known = _all_controls(graph)
    if not names:
        if not known:
            _check_cut(table_ops(graph, TABLE_OP), graph)
            raise ValueError("no training lookup of this graph has an 'access_threshold': there is "
                             "no admission whose threshold could be set.")
        return list(known.values())
    tables = graph_state(graph).tables
    ops = {op.name: op for op in table_ops(graph, TABLE_OP)}
    found = []
    for name in names:
        if name in tables:
            ours = [tables[name].variable.op]
        else:
            ours = [ops[name]] if name in ops else [op for op in ops.values()
                                                    if described_name(op) == name]
        if not ours:
            raise ValueError("threshold set error: there is no table {!r} in this graph; tables "
                             "are {}.".format(name, sorted(set(tables).union(
                                 map(described_name, ops.values())))))
        if len(ours) > 1:
            raise ValueError("threshold set error: this graph has several tables {!r}, of which "
                             "the ops are {}. Give the name of the op instead.".format(
                                 name, sorted(op.name for op in ours)))
        if ours[0].name not in known:
            _check_cut(ours, graph)
            raise ValueError("threshold set error: no training lookup of the table {!r} has an "
                             "'access_threshold', so that it admits every key.".format(name))
        found.append(known[ours[0].name])
    return found


def _all_controls(graph: tf.Graph) -> Dict[str, Controls]:
    """Returns the ops that steer admission to the tables of a graph, by the name of the table's op,
    whether they were made here or came with imported graphs."""
    found = OrderedDict()  # type: Dict[str, Controls]
    tables = table_ops(graph, TABLE_OP)
    uses = Counter(map(described_name, tables))
    for op in tables:
        handle = op.outputs[1]
        setters = [one for one in handle.consumers() if one.type == "MxRecSetThreshold"
                   and _CONTROLS_SCOPE + "/" in one.name
                   and one.inputs[1].op.type == "Placeholder"]
        if not setters:
            continue
        name = described_name(op)
        name = op.name if uses[name] > 1 else name
        evicting = [one.outputs[0] for one in handle.consumers() if one.type == "MxRecEvict"
                    and _CONTROLS_SCOPE + "/" in one.name]
        found[op.name] = Controls(name, op, handle, setters[0].inputs[1], setters[0].outputs[0],
                                  evicting[0] if evicting else None)
    for op in table_ops(graph, CLUSTER_TABLE_OP):
        scope = op.name + _CONTROLS_SCOPE
        if not _has(graph, scope + "/set_threshold"):
            continue
        evict_op = scope + "/evict"
        found[op.name] = Controls(
            described_name(op), op, None, graph.get_tensor_by_name(scope + "/threshold:0"),
            graph.get_tensor_by_name(scope + "/set_threshold:0"),
            graph.get_tensor_by_name(evict_op + ":0") if _has(graph, evict_op) else None)
    return found


def _has(graph: tf.Graph, name: str) -> bool:
    """Whether a graph has an op of this name."""
    return name in graph._nodes_by_name  # pylint: disable=protected-access


def _check_cut(tables: Sequence[tf.Operation], graph: tf.Graph) -> None:
    """Refuses tables whose lookups count although nothing steers them: their graph was cut."""
    for op in graph.get_operations():
        if op.type != "MxRecObserve":
            continue
        table = table_op_of(op.inputs[0])
        if table in tables:
            raise ValueError(
                "the lookup {!r} of the table {!r} has thresholds, but the imported graph lacks "
                "the ops that set and evict: it was cut. Import the whole graph.".format(
                    op.name, described_name(table)))


def has_tables(graph: tf.Graph) -> bool:
    """Returns whether a graph has tables, made here or imported."""
    return bool(graph_state(graph).tables or table_ops(graph, TABLE_OP))


def trains(graph: tf.Graph) -> bool:
    """Returns whether a graph has training lookups, made here or imported."""
    return any(table.multi_lookup_times[True] for table in graph_state(graph).tables.values()) \
        or any(op.type in _TRAINING_OPS for op in graph.get_operations())
