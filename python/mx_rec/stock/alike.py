"""Compares what a graph computes with what TensorFlow makes of the same now."""

from typing import Any, Dict, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.stock.nodes import Nodes, Output, attributes_of


class Pattern:
    """Ops that TensorFlow makes now, with which those of a graph are compared.

    Args:
        graph: The graph that has them.
        **tensors: Tensors of it, by the names that `fits` takes.
    """

    def __init__(self, graph: tf.Graph, **tensors: tf.Tensor) -> None:
        self._nodes = Nodes(graph.as_graph_def())
        self._tensors = {name: self._nodes.behind((one.op.name, one.value_index))
                         for name, one in tensors.items()}

    def fits(self, nodes: Nodes, output: Output, model: str, **known: Sequence[Output]) -> bool:
        """Whether a tensor is computed from some others as a tensor of the pattern is.

        Args:
            nodes: The graph.
            output: The tensor.
            model: The name of the tensor of the pattern.
            **known: By names of tensors of the pattern those that they stand for.
        """
        pattern = self._nodes
        given = {self._tensors[name]: outputs for name, outputs in known.items()}
        judged = {}  # type: Dict[Tuple[Output, Output], bool]

        def judge(one: Output, other: Output) -> bool:
            one, other = nodes.behind(one), pattern.behind(other)
            if other in given:
                return one in given[other]
            if (one, other) not in judged:
                judged[one, other] = _are_ops_alike(nodes.by_name[one[0]],
                                                    pattern.by_name[other[0]]) \
                    and one[1] == other[1] \
                    and are_inputs_alike(nodes.inputs[one[0]], pattern.inputs[other[0]],
                                         pattern.by_name[other[0]].op == "AddN")
            return judged[one, other]

        def are_inputs_alike(ones: Any, others: Any, in_any_order: bool) -> bool:
            if len(ones) != len(others):
                return False
            if not in_any_order:
                return all(judge(*pair) for pair in zip(ones, others))
            left = list(ones)
            for other in others:
                same = next((one for one in left if judge(one, other)), None)
                if same is None:
                    return False
                left.remove(same)
            return True

        return judge(output, self._tensors[model])


def _are_ops_alike(node: Any, model: Any) -> bool:
    """Whether nodes do the same with what they read."""
    if node.op != model.op:
        return False
    if node.op == "Const":
        values = [tf.make_ndarray(one.attr["value"].tensor) for one in (node, model)]
        return values[0].dtype == values[1].dtype and np.array_equal(*values)
    return attributes_of(node) == attributes_of(model)
