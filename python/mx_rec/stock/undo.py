"""Takes a conversion back that failed: the graph computes what it did before.

TensorFlow cannot take ops out of a graph. Those of the conversion stay, and nothing runs them.
"""

import contextlib
import copy
from typing import Any, Dict, Iterator, List, Tuple

import tensorflow as tf

from mx_rec.state.graph_state import graph_state
from mx_rec.tensorflow.moved import take_back

# The attributes of graphs that a conversion sets, TensorFlow's and how ours begin.
_OF_GRAPH = ("_unfeedable_tensors", "_unfetchable_ops")
_OURS = "_mx_rec_"

_Place = Tuple[tf.Operation, int]


@contextlib.contextmanager
def undone_by_error(graph: tf.Graph) -> Iterator[None]:
    """A context in which a graph is converted; an error leaves the graph as it was before.

    Args:
        graph: The graph.
    """
    before = _Before(graph)
    try:
        yield
    except BaseException:
        before.restore()
        raise


class _Before:
    """What a graph was, as far as a conversion changes it.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._operations = graph.get_operations()
        self._inputs = [(_places(op), op.control_inputs) for op in self._operations]
        self._collections = {key: list(graph.get_collection_ref(key))
                             for key in graph.get_all_collection_keys()}
        self._attributes = {name: copy.copy(value) for name, value in vars(graph).items()
                            if name.startswith(_OURS) and isinstance(value, (dict, list))}
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
        now = [_places(op) for op in self._operations]
        made = graph.get_operations()[len(self._operations):]
        take_back(self._operations)
        for op, (places, waits), places_now in zip(self._operations, self._inputs, now):
            for position, (place, other) in enumerate(zip(places, places_now)):
                if place != other:
                    op._update_input(position, place[0].outputs[place[1]])
            if set(op.control_inputs) != set(waits):
                op._remove_all_control_inputs()
                op._add_control_inputs(waits)
        for key in graph.get_all_collection_keys():
            graph.get_collection_ref(key)[:] = self._collections.get(key, [])
        for name in [name for name, value in vars(graph).items()
                     if name.startswith(_OURS) and isinstance(value, (dict, list))]:
            delattr(graph, name)
        vars(graph).update(self._attributes)
        for one, attributes in self._objects:
            vars(one).clear()
            vars(one).update(attributes)
        vars(state).update(self._state)
        state.undone.update(op.name for op in made)


def _places(op: tf.Operation) -> List[_Place]:
    """Returns what an op reads: the op of each input, and the position of its output."""
    return [(tensor.op, tensor.value_index) for tensor in op.inputs]


def _plain(attributes: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the attributes of a state that a conversion sets, and copies of those it fills."""
    return {name: copy.copy(value) if isinstance(value, (dict, list, set)) else value
            for name, value in attributes.items() if not name.startswith("_")}


__all__ = ["undone_by_error"]
