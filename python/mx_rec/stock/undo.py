"""Takes a change of a graph back that failed: the graph computes what it did before.

TensorFlow cannot take ops out of a graph. Those of the change stay, and nothing runs them.
"""

import contextlib
import copy
from typing import Any, Dict, Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec.edits.wiring import REPLACED
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.convert import CONVERTED
from mx_rec.tensorflow.moved import take_back

# The attributes of graphs that a change fills, TensorFlow's and ours, and how ours of ops begin.
# They are named: the graphs of new versions have no __dict__ that could be listed.
_OF_GRAPH = ("_unfeedable_tensors", "_unfetchable_ops")
_FILLED = (REPLACED, CONVERTED)
_OURS = "_mx_rec_"


@contextlib.contextmanager
def undone_by_error(graph: tf.Graph, definition: bytes) -> Iterator[None]:
    """A context in which a graph is changed; an error leaves the graph as it was before.

    Args:
        graph: The graph.
        definition: Its serialized GraphDef.
    """
    before = _Before(graph, definition)
    try:
        yield
    except BaseException:
        before.restore()
        raise


class _Before:
    """What a graph was, as far as a change of it goes.

    Args:
        graph: The graph.
        definition: Its serialized GraphDef.
    """

    def __init__(self, graph: tf.Graph, definition: bytes) -> None:
        self._graph = graph
        self._definition = definition
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
        """Makes the graph what it was."""
        # pylint: disable=protected-access
        graph, state = self._graph, graph_state(self._graph)
        nodes = graph_pb2.GraphDef.FromString(self._definition).node
        operations = graph.get_operations()
        made = operations[len(nodes):]
        operations = operations[:len(nodes)]
        now = [[tensor.name for tensor in op.inputs] for op in operations]
        take_back(operations)
        for op, node, names in zip(operations, nodes, now):
            waits = [source[1:] for source in node.input if source.startswith("^")]
            for position, name in enumerate(names):
                source = node.input[position]
                source = source if ":" in source else source + ":0"
                if source != name:
                    op._update_input(position, graph.get_tensor_by_name(source))
            if {waited.name for waited in op.control_inputs} != set(waits):
                op._remove_all_control_inputs()
                op._add_control_inputs([graph.get_operation_by_name(name) for name in waits])
            for name in list(op.node_def.attr):
                if name.startswith(_OURS) and name not in node.attr:
                    op._clear_attr(name)
                elif name.startswith(_OURS):
                    op._set_attr(name, node.attr[name])
        for key in graph.get_all_collection_keys():
            graph.get_collection_ref(key)[:] = self._collections.get(key, [])
        for name in _FILLED:
            if hasattr(graph, name):
                delattr(graph, name)
        for name, value in self._attributes.items():
            setattr(graph, name, value)
        for one, attributes in self._objects:
            vars(one).clear()
            vars(one).update(attributes)
        vars(state).update(self._state)
        state.undone.update(op.name for op in made)


def _plain(attributes: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the attributes of a state that a change sets, and copies of those it fills."""
    return {name: copy.copy(value) if isinstance(value, (dict, list, set)) else value
            for name, value in attributes.items() if not name.startswith("_")}


__all__ = ["undone_by_error"]
