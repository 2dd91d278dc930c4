"""The GraphDef of a graph as bytes, which the plugin reads, without nodes, and what nodes take."""

from typing import Any, Container, List

import tensorflow as tf

from mx_rec.tensorflow.names import c_api
from mx_rec.tensorflow.versions import IS_1


def serialized(graph: tf.Graph) -> bytes:
    """Returns the serialized GraphDef of a graph.

    Args:
        graph: The graph.

    Raises:
        ValueError: If it is larger than 2 GB.
    """
    if not IS_1:
        return graph.as_graph_def().SerializeToString()
    # pylint: disable=protected-access
    buffer = c_api.TF_NewBuffer()
    try:
        with graph._lock:
            c_api.TF_GraphToGraphDef(graph._c_graph, buffer)
        return c_api.TF_GetBuffer(buffer)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(str(error)) from error
    finally:
        c_api.TF_DeleteBuffer(buffer)


def without_nodes(graph_def: Any, names: Container[str]) -> Any:
    """Removes nodes from a GraphDef; returns it.

    Args:
        graph_def: The graph, its ops in order.
        names: Of the nodes.
    """
    places = [place for place, node in enumerate(graph_def.node) if node.name in names]
    # A slice at a time: many follow each other.
    while places:
        end = places.pop() + 1
        first = end - 1
        while places and places[-1] == first - 1:
            first = places.pop()
        del graph_def.node[first:end]
    return graph_def


def tensors_of(node: Any) -> List[str]:
    """Returns the names of the tensors that a NodeDef takes."""
    return [source if ":" in source else source + ":0" for source in node.input
            if not source.startswith("^")]


def waits_of(node: Any) -> List[str]:
    """Returns the names of the ops that a NodeDef waits for."""
    return [source[1:] for source in node.input if source.startswith("^")]
