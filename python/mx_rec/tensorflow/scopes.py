"""Scopes of a graph that a thread has for itself while it changes a graph that others build.

TensorFlow keeps name scopes for each thread, and keeps devices, control dependencies, colocations
and branches for the graph: what one thread enters is in force for all.
"""

import contextlib
import threading
from typing import Any, Callable, Dict, Iterator

import tensorflow as tf


class _Own(threading.local):
    """The values of attributes that graphs have in a thread.

    Attributes:
        values: By the id of the graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = {}  # type: Dict[int, Dict[str, Any]]


_own = _Own()


class _OfThread:
    """An attribute of graphs that a thread in `own_scopes` has a value of its own of.

    Args:
        name: The attribute.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, graph: Any, owner: Any = None) -> Any:
        if graph is None:
            return self
        try:
            return _own.values.get(id(graph), graph.__dict__)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, graph: Any, value: Any) -> None:
        _own.values.get(id(graph), graph.__dict__)[self._name] = value


# The attributes, and what a thread of its own begins with: the devices that are in force.
# pylint: disable=protected-access
_FRESH = {
    "_stack_state_is_thread_local": lambda graph: False,
    "_graph_device_function_stack": lambda graph: graph._device_function_stack.copy(),
    "_graph_colocation_stack": lambda graph: type(graph._colocation_stack)(),
    "_graph_control_dependencies_stack": lambda graph: [],
    "_control_flow_context": lambda graph: None,
    "_attr_scope_map": lambda graph: {},
    "_gradient_override_map": lambda graph: {},
}  # type: Dict[str, Callable[[Any], Any]]


# Whether the attributes of a graph can be read and set past those of its class.
_ARE_APART = "__dict__" in dir(tf.Graph)


@contextlib.contextmanager
def own_scopes(graph: tf.Graph) -> Iterator[None]:
    """A context in which this thread makes ops in no scope of the graph but its devices.

    Other threads that build the graph meanwhile stay in their scopes, and not in those of this one,
    but where graphs have no `__dict__`, as in TensorFlow 2.21.

    Args:
        graph: The graph.
    """
    if not _ARE_APART:
        with graph.control_dependencies(None):
            yield
        return
    before = _own.values.get(id(graph))
    _own.values[id(graph)] = {name: begin(graph) for name, begin in _FRESH.items()}
    try:
        yield
    finally:
        if before is None:
            del _own.values[id(graph)]
        else:
            _own.values[id(graph)] = before


def keep_scopes_apart() -> None:
    """Lets all graphs have scopes by `own_scopes`; a second call changes nothing."""
    for name in _FRESH if _ARE_APART else ():
        setattr(tf.Graph, name, _OfThread(name))
