"""What is remembered of the iterators of a graph: the nesting of their elements."""

from typing import Any, Callable, Sequence

import tensorflow as tf

from mx_rec.state.graph_state import GraphState, graph_state
from mx_rec.tensorflow.names import structure


def remembering_elements(stock: Callable[..., None], self: Any, iterator_resource: Any, *args: Any,
                         **kwargs: Any) -> None:
    """Iterator.__init__, which notes the nesting of the iterator's elements at its graph."""
    stock(self, iterator_resource, *args, **kwargs)
    graph = getattr(iterator_resource, "graph", None)
    if graph is not None:
        specs = graph_state(graph).element_specs
        specs[iterator_resource.op.name] = self._element_spec


def nested_batch(state: GraphState, iterator: str, components: Sequence[tf.Tensor]) -> Any:
    """Puts the tensors of an element into the nesting of the user's dataset.

    Args:
        state: The graph's state.
        iterator: Name of the op that is the iterator.
        components: The tensors that its get_next gives.

    Returns:
        The batch; a flat tuple if the iterator is older than the import of this package.
    """
    spec = state.element_specs.get(iterator)
    if spec is None:
        return tuple(components)
    return structure.from_compatible_tensor_list(spec, list(components))
