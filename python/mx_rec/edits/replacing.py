"""Changes of a graph that no session has run: ops in the place of others, and what not to feed."""

import contextlib
import threading
from collections import OrderedDict
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Set

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.tensorflow.moved import move_each
from mx_rec.tensorflow.names import deprecation
from mx_rec.tensorflow.scopes import own_scopes

# The outputs of an op that session.run takes no values for: a list of positions.
UNFED_ATTRIBUTE = "_mx_rec_unfed"

# The outputs of a reader of rows that other ops have taken the place of: a list of positions.
FUSED_ATTRIBUTE = "_mx_rec_fused"

# How the names of the ops end that have taken it.
FUSED_NAME = "mx_rec_fused"

# The attribute of a graph that tells which ops were made in `extensible`: pairs of its version
# before and after.
_OWN = "_mx_rec_own"

# Held while a graph is changed that sessions may be open on, by one thread at a time.
extending = threading.RLock()


def kept(owner: Any, name: str) -> Dict[Any, Any]:
    """Returns the dictionary that a graph or an op keeps under a name; it is empty at first."""
    if not hasattr(owner, name):
        setattr(owner, name, {})
    return getattr(owner, name)


@contextlib.contextmanager
def in_place_of(op: tf.Operation) -> Iterator[None]:
    """A context in which ops are made that take the place of `op`.

    Args:
        op: Any op.
    """
    graph = op.graph
    with graph.as_default(), graph.control_dependencies(None), \
            graph.control_dependencies(op.control_inputs), tf.device(op.device), \
            tf.name_scope(op.name + "/"):
        yield


@contextlib.contextmanager
def extensible(graph: tf.Graph) -> Iterator[None]:
    """A context in which ops can be added to a graph, also to one that was finalized.

    They are in no scope of a program, but on its devices; see `own_scopes`. No other thread adds an
    op or makes gradients meanwhile, so that none is taken for one that was looked at. No session
    may run inside, whose graph TensorFlow extends between ops of other threads.

    Args:
        graph: The graph.
    """
    with extending, _alone(graph):
        finalized, before = graph.finalized, graph.version
        if finalized:
            graph._unsafe_unfinalize()  # pylint: disable=protected-access
        try:
            with graph.as_default(), own_scopes(graph), tf.compat.v1.name_scope(None), \
                    making_many():
                yield
        finally:
            if graph.version > before:
                if not hasattr(graph, _OWN):
                    setattr(graph, _OWN, [])
                getattr(graph, _OWN).append((before, graph.version))
            if finalized:
                graph.finalize()


@contextlib.contextmanager
def _alone(graph: tf.Graph) -> Iterator[None]:
    """A context in which no other thread adds ops to a graph."""
    # pylint: disable=protected-access
    if graph._lock._is_owned():
        yield
        return
    # An op has its number before it is in the graph: those that are being made are finished first.
    with graph._session_run_lock():
        graph._lock.acquire()
    try:
        yield
    finally:
        graph._lock.release()


@contextlib.contextmanager
def unchanged(graph: tf.Graph) -> Iterator[None]:
    """A context in which no other thread changes a graph as in `extensible`.

    What has begun is finished first. As there, no session may run inside.

    Args:
        graph: The graph.
    """
    # pylint: disable=protected-access
    with graph._mutation_lock():
        with graph._lock:
            pass
        yield


def own_ops(graph: tf.Graph) -> Set[tf.Operation]:
    """Returns the ops of a graph that no program has made: those that were added in `extensible`.

    Args:
        graph: The graph.
    """
    operations = graph.get_operations()
    return {op for first, last in getattr(graph, _OWN, ()) for op in operations[first:last]}


@contextlib.contextmanager
def making_many() -> Iterator[None]:
    """A context in which many ops are made: TensorFlow looks for no deprecated arguments.

    That takes a tenth of the time of a conversion.
    """
    # pylint: disable=protected-access
    before = getattr(deprecation, "_PRINT_DEPRECATION_WARNINGS", True)
    deprecation._PRINT_DEPRECATION_WARNINGS = False
    try:
        yield
    finally:
        deprecation._PRINT_DEPRECATION_WARNINGS = before


def replace_each(old: tf.Operation, values: Sequence[tf.Tensor]) -> None:
    """Puts outputs of other ops in the place of the outputs of `old`, in order.

    Ops that read an old output read the new one, ops that wait for `old` wait for the other ops.
    The tensor objects that the script may hold become those of the new outputs.

    Args:
        old: An op.
        values: A tensor for each of its outputs, of the same types; no two are the same.
    """
    replace_ops([old], [values])


def replace_ops(ops: Sequence[tf.Operation], values: Sequence[Sequence[tf.Tensor]]) -> None:
    """As `replace_each`, for many ops at once: what reads several of them is read once.

    Args:
        ops: Ops.
        values: For each a tensor for each of its outputs.
    """
    outputs = [list(op.outputs) for op in ops]
    olds, news = sum(outputs, []), [value for own in values for value in own]
    for output, value in zip(olds, news):
        value.set_shape(output.shape)
    replace_reads(olds, news)
    for old, own in zip(ops, values):
        replace_waiting(old, list(OrderedDict.fromkeys(value.op for value in own)))
    move_each(olds, news)


def replace_waiting(old: tf.Operation, news: Sequence[tf.Operation],
                    replaced: Sequence[tf.Operation] = (),
                    of: Optional[Iterable[tf.Operation]] = None) -> None:
    """Makes the ops that wait for `old` wait for others.

    Args:
        old: An op.
        news: The others.
        replaced: Ops that do not wait for these.
        of: Which ops that wait; None: all.
    """
    # pylint: disable=protected-access
    for waiting in list(old._control_outputs if of is None else of):
        if waiting in news:
            continue
        others = [op for op in waiting.control_inputs if op is not old]
        if waiting not in replaced:
            others += [new for new in news if new not in others]
        waiting._remove_all_control_inputs()
        waiting._add_control_inputs(others)


def replace_reads(olds: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> None:
    """Makes all ops that read tensors read others in their places."""
    instead = {id(old): value for old, value in zip(olds, values)}
    for consumer in OrderedDict.fromkeys(one for old in olds for one in old.consumers()):
        for position, tensor in enumerate(list(consumer.inputs)):
            if id(tensor) in instead:
                # pylint: disable=protected-access
                consumer._update_input(position, instead[id(tensor)])


def mark_positions(op: tf.Operation, attribute: str, positions: Iterable[int]) -> None:
    """Adds positions to those that an attribute of an op lists.

    Args:
        op: The op.
        attribute: Name of the attribute.
        positions: Numbers of outputs.
    """
    listed = set(op.get_attr(attribute)) if attribute in op.node_def.attr else set()
    value = attr_value_pb2.AttrValue.ListValue(i=sorted(listed.union(positions)))
    op._set_attr(  # pylint: disable=protected-access
        attribute, attr_value_pb2.AttrValue(list=value))


def pass_on(op: tf.Operation, tensor: tf.Tensor,
            waits: Iterable[tf.Operation]) -> tf.Tensor:
    """Returns a tensor as one whose shape is not known, which may stand for one of any shape.

    TensorFlow lets an op read another tensor in the place of one only if their shapes agree.

    Args:
        op: The op in whose place it stands.
        tensor: The tensor.
        waits: Ops that it waits for, besides.
    """
    with in_place_of(op), tf.control_dependencies(list(waits)):
        value = tf.compat.v1.placeholder_with_default(tensor, None, name=FUSED_NAME)
    forbid_feeding(value.op, [0])
    return value


def forbid_feeding(op: tf.Operation, positions: Iterable[int]) -> None:
    """Makes session.run refuse values for some outputs of an op, also where it is imported.

    Args:
        op: The op.
        positions: Numbers of its outputs.
    """
    positions = list(positions)
    if positions:
        mark_positions(op, UNFED_ATTRIBUTE, positions)
    for position in positions:
        op.graph.prevent_feeding(op.outputs[position])


def forbid_marked(op: Any) -> None:
    """Makes session.run refuse values for the outputs that a rewrite has marked.

    Args:
        op: Any op.
    """
    if UNFED_ATTRIBUTE not in op.node_def.attr:
        return
    for position in op.get_attr(UNFED_ATTRIBUTE):
        op.graph.prevent_feeding(op.outputs[position])
