"""A session that has run its graph begins anew, with the values that its variables have.

A session keeps a copy of each op that was there when it ran: what a conversion changes of them
later has no effect in it. So a session that has evaluated, loaded or shown a model before the
program makes its training ops gets a fresh session of TensorFlow under the same object of Python,
and the values of its variables, which are then rows of tables where the graph has these.
"""

import gc
import threading
import weakref
from typing import Any, Container, Dict, List, Optional, Set

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.edits.replacing import extensible
from mx_rec.graph.runs import FRESH, PREPARED, stock_run
from mx_rec.state.graph_state import remember_session
from mx_rec.state.table_variable import table_ops
from mx_rec.stock.analysis import VARIABLES
from mx_rec.tensorflow.names import session as sessions

# Attributes of a session: values of variables by their ops, which are to be set; its callables and
# the options of each; the targets of all that it had; that it has others, which remember ops; and
# the session of TensorFlow that it was, if other threads may still be in it.
_VALUES = "_mx_rec_values"
_CALLABLES = "_mx_rec_callables"
_TARGETS = "_mx_rec_targets"
_CLOSURES = "_mx_rec_closures"
_BEFORE = "_mx_rec_before"

_SCOPE = "mx_rec_values"

# The stateful ops that leave nothing in a session but values of variables. Random ops are among
# them: they begin again, as in a session that loads a checkpoint.
_STATELESS = frozenset([
    "VarHandleOp", "VariableV2", "Variable", "ReadVariableOp", "VarIsInitializedOp",
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "DestroyResourceOp",
    "VariableShape", "ResourceStridedSliceAssign", "StridedSliceAssign", "IsVariableInitialized",
    "Assert", "Print", "PrintV2", "PyFunc", "PyFuncStateless", "EagerPyFunc", "Timestamp",
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal",
    "ParameterizedTruncatedNormal", "RandomShuffle", "Multinomial", "RandomGamma", "RandomPoisson",
    "RandomPoissonV2", "RandomCrop", "UniformCandidateSampler", "LogUniformCandidateSampler",
    "LearnedUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler",
    "ThreadUnsafeUnigramCandidateSampler", "Save", "SaveV2", "SaveSlices", "Restore", "RestoreV2",
    "RestoreSlice", "MergeV2Checkpoints", "ReadFile", "WriteFile", "MatchingFiles",
    # Of one run alone.
    "TensorArrayV3", "TensorArrayGradV3", "TensorArrayWriteV3", "TensorArrayReadV3",
    "TensorArrayGatherV3", "TensorArrayScatterV3", "TensorArrayConcatV3", "TensorArraySplitV3",
    "TensorArraySizeV3", "TensorArrayCloseV3", "StackV2", "StackPushV2", "StackPopV2",
    "StackCloseV2"])
_STATELESS_BEGINNINGS = ("ResourceGather", "ResourceScatter", "ResourceApply",
                         "ResourceSparseApply", "MxRec")


def note_callable(session: Any, made: Any, options: Any) -> None:
    """Notes a callable of a session, which is made again if the session begins anew.

    Args:
        session: The session.
        made: The callable.
        options: What was asked for, before anything took its place.
    """
    vars(session).setdefault(_CALLABLES, weakref.WeakKeyDictionary())[made] = options
    vars(session).setdefault(_TARGETS, set()).update(options.target)


def given_up(session: Any) -> Set[str]:
    """Returns the names of the targets of callables of a session that are gone.

    Args:
        session: The session.
    """
    # A model and its functions refer to each other.
    gc.collect()
    living = {name for options in vars(session).get(_CALLABLES, {}).values()
              for name in options.target}
    return vars(session).get(_TARGETS, set()) - living


def note_closure(session: Any) -> None:
    """Notes that a session gave out a function that remembers ops of the graph.

    Args:
        session: The session.
    """
    setattr(session, _CLOSURES, True)


def reason_to_stay(session: Any, tables: Container[tf.Operation] = ()) -> str:
    """Returns what a session has beside variables, which it would lose; "" if nothing.

    Args:
        session: An open session that has run its graph.
        tables: The ops of the tables that are among these variables.
    """
    # pylint: disable=protected-access
    if session._target:
        return "it runs on a server"
    if _CLOSURES in vars(session):
        return "it gave out functions by make_callable"
    kinds = {op.type: op for op in _seen(session)}
    others = [op for op in table_ops(session.graph) if op not in tables]
    for op in others + [kinds[kind] for kind in sorted(kinds)]:
        if op in others or (op.op_def.is_stateful and op.type not in _STATELESS
                            and not op.type.startswith(_STATELESS_BEGINNINGS)):
            return "it has the state of {} ({})".format(op.name, op.type)
    return ""


def begin_anew(session: Any, reads: Optional[Dict[tf.Operation, tf.Tensor]] = None) -> None:
    """Gives a session a fresh session of TensorFlow; `set_values` has to follow.

    Args:
        session: A session of which `reason_to_stay` says "", and of which no run goes on: what it
            changes would be lost.
        reads: What tells the values of variables that are tables, by their ops.
    """
    # pylint: disable=protected-access
    graph, marks = session.graph, vars(session)
    # Values that were still to be set are no state of it.
    values = {**_values(session, reads or {}), **marks.get(_VALUES, {})}
    fresh = sessions.BaseSession("", graph, session._config)
    # What is there now would be released in the other session.
    for one in marks.get(_CALLABLES, ()):
        one._handle = None
    session._session, fresh._session = fresh._session, session._session
    for mark in FRESH:
        marks.pop(mark, None)
    marks[_VALUES] = values
    if threading.active_count() > 1:
        marks[_BEFORE] = fresh
    else:
        fresh.close()
    remember_session(session)
    logger.info("stock_tables: the session that has run the graph begins anew with the values of "
                "its %d variables (%.1f MiB).", len(values),
                sum(one.nbytes for one in values.values()) / 2.0 ** 20)


def set_values(session: Any) -> None:
    """Sets the values that a session had before it began anew, if it did.

    Args:
        session: A session that is prepared.
    """
    marks = vars(session)
    values = marks.get(_VALUES)
    if values is None:
        return
    # Nothing runs without them: after an error the next run tries it again.
    _set_each(session, values)
    if marks.get(_VALUES) is values:
        del marks[_VALUES]
    # pylint: disable=protected-access
    for one, options in list(marks.get(_CALLABLES, {}).items()):
        made = session._make_callable_from_options(options)
        one._handle, made._handle = made._handle, None


def _set_each(session: Any, values: Dict[tf.Operation, np.ndarray]) -> None:
    """Sets variables in one run."""
    with extensible(session.graph):
        done, feeds = [], {}
        for op, value in values.items():
            with tf.device(op.device), tf.name_scope(_SCOPE + "/"):
                given = tf.compat.v1.placeholder(value.dtype if value.dtype != object
                                                 else tf.string, value.shape)
                feeds[given] = value
                done.append(_set(op, given))
    session.run(done, feeds)


def _seen(session: Any) -> List[tf.Operation]:
    """Returns the ops that the graph of a session had when it ran last."""
    return session.graph.get_operations()[:vars(session)[PREPARED]]


def rename(session: Any, names: Dict[str, str]) -> None:
    """Has the callables of a session, which are still to be made again, take tensors of new names.

    Args:
        session: A session that begins anew.
        names: The new names by those of before.
    """
    for options in vars(session).get(_CALLABLES, {}).values():
        for field in (options.feed, options.fetch):
            field[:] = [names.get(name, name) for name in field]


def _values(session: Any, tables: Dict[tf.Operation, tf.Tensor]) -> Dict[tf.Operation, np.ndarray]:
    """Returns the values of the variables that a session has initialized, by their ops."""
    with extensible(session.graph):
        reads = {op: tables.get(op) if op in tables else _read(op)
                 for op in _seen(session) if op.type in VARIABLES}
    try:
        return dict(zip(reads, stock_run(session, list(reads.values()))))
    except tf.errors.FailedPreconditionError:
        found = {op: _value(session, read) for op, read in reads.items()}
    return {op: value for op, value in found.items() if value is not None}


def _value(session: Any, read: tf.Tensor) -> Optional[np.ndarray]:
    try:
        return np.asarray(stock_run(session, read))
    except tf.errors.FailedPreconditionError:
        return None


def _read(op: tf.Operation) -> tf.Tensor:
    """Returns the value of a variable, if possible as the graph reads it."""
    # pylint: disable=protected-access
    variable = op.outputs[0]
    kind = "ReadVariableOp" if variable.dtype == tf.resource else "Identity"
    for reader in variable.consumers():
        if reader.type == kind and not reader.control_inputs and op.graph.is_fetchable(reader) \
                and reader._get_control_flow_context() is None:
            return reader.outputs[0]
    with tf.device(op.device), tf.name_scope(_SCOPE + "/"):
        if kind == "Identity":
            return tf.identity(variable)
        return tf.raw_ops.ReadVariableOp(resource=variable, dtype=op.get_attr("dtype"))


def _set(op: tf.Operation, value: tf.Tensor) -> tf.Operation:
    """Returns an op that sets a variable."""
    if op.outputs[0].dtype == tf.resource:
        made = tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=value)
        return made if isinstance(made, tf.Operation) else made.op
    return tf.raw_ops.Assign(ref=op.outputs[0], value=value, validate_shape=False).op
