"""Takes a change of a graph back: the graph computes what it did before.

TensorFlow cannot take ops out of a graph. Those of the change stay, and nothing runs them.
"""

import contextlib
import copy
from typing import Any, Dict, Iterator, List, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec.edits.wiring import INSTEAD, REPLACED, Inputs, inputs_of
from mx_rec.ops.lookups import mark_movable, may_move
from mx_rec.state.graph_state import graph_state
from mx_rec.state.table_variable import undo_tables
from mx_rec.stock.convert import CONVERTED
from mx_rec.tensorflow.graph_def import tensors_of, waits_of
from mx_rec.tensorflow.moved import Places

# The attributes of graphs that a change fills, TensorFlow's and ours, and how ours of ops begin.
# They are named: the graphs of new versions have no __dict__ that could be listed.
_OF_GRAPH = ("_unfeedable_tensors", "_unfetchable_ops")
_FILLED = (REPLACED, INSTEAD, CONVERTED)
_OURS = "_mx_rec_"

_MISSING = object()


@contextlib.contextmanager
def undone_by_error(graph: tf.Graph, definition: bytes) -> Iterator["Before"]:
    """A context in which a graph is changed; an error leaves the graph as it was before.

    Args:
        graph: The graph.
        definition: Its serialized GraphDef.
    """
    before = Before(graph, definition)
    try:
        yield before
    except BaseException:
        before.restore()
        raise


class Before:
    """What a graph was, as far as a change of it goes.

    Args:
        graph: The graph.
        definition: Its serialized GraphDef.
    """

    def __init__(self, graph: tf.Graph, definition: bytes) -> None:
        self._graph = graph
        self._definition = definition
        self._operations = graph.get_operations()
        self._places = Places(self._operations)
        self._added = {}  # type: Dict[str, List[Any]]
        self._collections = {key: list(graph.get_collection_ref(key))
                             for key in graph.get_all_collection_keys()}
        self._attributes = {name: copy.copy(getattr(graph, name)) for name in _FILLED
                            if hasattr(graph, name)}
        for name in _OF_GRAPH:
            # A copy of a set by identity would be the same set.
            self._attributes[name] = type(getattr(graph, name))(list(getattr(graph, name)))
        state = graph_state(graph)
        self._state = _plain(vars(state))
        objects = [variable for values in self._collections.values() for variable in values
                   if isinstance(variable, tf.Variable)]
        objects += [known.saver for known in state.savers]
        # The same object may be in several collections.
        self._objects = [(one, dict(vars(one))) for one in {id(one): one
                                                            for one in objects}.values()]

    def restore(self) -> None:
        """Makes the graph what it was; nothing else has changed it since."""
        self.keep()
        self.go_back(())

    def keep(self) -> None:
        """Notes what the change has done, so that `go_back` can take that alone back."""
        self._objects = [(one, {name: (attributes.get(name, _MISSING), vars(one).get(name))
                                for name in set(attributes) | set(vars(one))
                                if attributes.get(name, _MISSING) is not vars(one).get(name)})
                         for one, attributes in self._objects]
        graph = self._graph
        self._added = {key: _without(graph.get_collection_ref(key), self._collections.get(key, ()))
                       for key in graph.get_all_collection_keys()}

    def go_back(self, replaced: Sequence[Inputs]) -> Dict[str, str]:
        """Takes the change back later; what the program has added to the graph since stays.

        Args:
            replaced: Ops that the program made since and that were replaced, and what they had
                taken, in the order in which they were.

        Returns:
            What tensors are named now that had the names of others, by these.
        """
        graph, state = self._graph, graph_state(self._graph)
        added = [inputs_of(op) for op in graph.get_operations()[len(self._operations):]]
        renamed = self._restore_ops([op for op, _, _ in replaced])
        for op, inputs, waits in added + list(reversed(replaced)):
            _set_inputs(op, op.node_def, [tensor.name for tensor in inputs],
                        [one.name for one in waits])
        for key in graph.get_all_collection_keys():
            first, values = self._collections.get(key, []), graph.get_collection_ref(key)
            values[:] = first + _without(values, first + self._added.get(key, []))
        for one, attributes in self._objects:
            for name, (value, changed) in attributes.items():
                if isinstance(value, tf.Operation) and isinstance(changed, tf.Operation):
                    # Of an initializer that the program may hold.
                    changed._add_control_input(value)  # pylint: disable=protected-access
                if vars(one).get(name) is changed:
                    if value is _MISSING:
                        vars(one).pop(name, None)
                    else:
                        vars(one)[name] = value
        _bury([op for op, _, _ in added])
        vars(state).update(self._state)
        return renamed

    def _restore_ops(self, others: Sequence[tf.Operation] = ()) -> Dict[str, str]:
        """Gives ops back what they took, and their outputs to those that read them.

        Args:
            others: Ops that were made later, and replaced, which get their outputs back as well.

        Returns:
            The names of the tensors that had moved, by those that they had there.
        """
        # pylint: disable=protected-access
        graph = self._graph
        nodes = graph_pb2.GraphDef.FromString(self._definition).node
        renamed = self._places.take_back(others)
        for op, node in zip(self._operations, nodes):
            now = op.node_def
            _set_inputs(op, now, tensors_of(node), waits_of(node))
            for name in list(now.attr):
                if name.startswith(_OURS) and name not in node.attr:
                    op._clear_attr(name)
                elif name.startswith(_OURS):
                    op._set_attr(name, node.attr[name])
        for name in _FILLED:
            if hasattr(graph, name):
                delattr(graph, name)
        for name, value in self._attributes.items():
            setattr(graph, name, value)
        return renamed


def _set_inputs(op: tf.Operation, now: Any, inputs: Sequence[str], waits: Sequence[str]) -> None:
    """Makes an op take some tensors and wait for some ops, where it takes or waits for others.

    Args:
        op: The op.
        now: Its NodeDef: the tensors of Python may have other names since it took them.
        inputs: Names of tensors.
        waits: Names of ops.
    """
    # pylint: disable=protected-access
    for position, (source, name) in enumerate(zip(tensors_of(now), inputs)):
        if source != name:
            op._update_input(position, op.graph.get_tensor_by_name(name))
    if set(waits_of(now)) != set(waits):
        op._remove_all_control_inputs()
        op._add_control_inputs([op.graph.get_operation_by_name(name) for name in waits])


def _bury(made: Sequence[tf.Operation]) -> None:
    """Marks the tables and lookups among ops that a change had made, for what reads the graph."""
    undo_tables(made)
    for op in made:
        if may_move(op):
            mark_movable(op, False)


def _without(values: Sequence[Any], others: Sequence[Any]) -> List[Any]:
    """Returns the values that are none of others."""
    known = {id(one) for one in others}
    return [value for value in values if id(value) not in known]


def _plain(attributes: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the attributes of a state that a change sets, and copies of those it fills."""
    return {name: copy.copy(value) if isinstance(value, (dict, list, set)) else value
            for name, value in attributes.items() if not name.startswith("_")}
