"""Patterns of ops, which tensors of a graph are compared with.

A pattern is what a tensor has to be:

    | pattern | the tensor |
    |---|---|
    | an Op | is given by such an op |
    | a name | is any, and the same wherever the name stands |
    | a number | has no other elements |
    | a tuple of patterns | fits one of them |
    | None | is any |
"""

from typing import Any, Collection, Dict, NamedTuple, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.stock.nodes import Nodes, Output, attributes_of
from mx_rec.stock.values import affine_value


class Op(NamedTuple):
    """What an op gives.

    Attributes:
        kinds: The types that it may have.
        of: The patterns of its first inputs.
        output: Which of its outputs.
        name: Of the tensor, "" without.
        is_own: Whether the op belongs to what is looked for.
        numbers: Attributes and their values.
        waits: Patterns of ops that it waits for.
        model: None, or a node of the same attributes, and of no other inputs than `of`.
    """

    kinds: Tuple[str, ...]
    of: Tuple[Any, ...] = ()
    output: int = 0
    name: str = ""
    is_own: bool = True
    numbers: Tuple[Tuple[str, int], ...] = ()
    waits: Tuple[Any, ...] = ()
    model: Any = None


def op(kinds: str, *of: Any, **more: Any) -> Op:
    """Returns an Op of one of some types, which `kinds` has with blanks between."""
    return Op(tuple(kinds.split()), of, **more)


def gathered(rows: Any, ids: Any) -> Tuple[Op, Op]:
    """Returns the pattern of rows of a tensor that a gather takes."""
    return op("Gather", rows, ids), op("GatherV2", rows, ids, 0, numbers=(("batch_dims", 0),))


class Reshaped(NamedTuple):
    """A tensor that ops may have given another shape."""

    of: Any


class Search:
    """The comparison of tensors of a graph with patterns, which have their names in common.

    Args:
        nodes: The graph.
        copies: The types of ops that may stand between any others, and copy a tensor.
        **known: By names what they stand for: one of some tensors.

    Attributes:
        tensors: What other names stand for, with the copies through which it was read first.
        ops: The names of the ops that fitted and are own ones.
    """

    def __init__(self, nodes: Nodes, copies: Tuple[str, ...] = ("Identity",),
                 **known: Collection[Output]) -> None:
        self.tensors = {}  # type: Dict[str, Output]
        self.ops = set()  # type: Set[str]
        self._nodes = nodes
        self._copies = copies
        self._known = known
        # What has fitted before. The values keep the ids unique.
        self._fitting = {}  # type: Dict[Tuple[Output, int], Op]

    def behind(self, name: str) -> Output:
        """Returns the tensor that a name stands for, behind its copies."""
        return self._nodes.behind(self.tensors[name], self._copies)

    def fits(self, read: Output, pattern: Any) -> bool:
        """Returns whether a tensor fits a pattern; if not, this search is of no further use."""
        output = self._nodes.behind(read, self._copies)
        if pattern is None:
            return True
        if isinstance(pattern, str):
            if pattern not in self._known:
                self.tensors.setdefault(pattern, read)
                return self.behind(pattern) == output
            return output in self._known[pattern]
        if isinstance(pattern, (int, float)):
            value = affine_value(self._nodes, *output)
            return value is not None and value.kind is None and value.shift == pattern
        if isinstance(pattern, Reshaped):
            return self.fits(self._nodes.behind(output, self._copies + ("Reshape",)), pattern.of)
        if isinstance(pattern, Op):
            return self._is(output, pattern)
        return any(self._may_be(output, one) for one in pattern)

    def _may_be(self, output: Output, pattern: Any) -> bool:
        """Returns whether a tensor fits a pattern; if not, nothing has changed."""
        before = dict(self.tensors), set(self.ops), dict(self._fitting)
        if self.fits(output, pattern):
            return True
        self.tensors, self.ops, self._fitting = before
        return False

    def _is(self, output: Output, pattern: Op) -> bool:
        if (output, id(pattern)) in self._fitting:
            return True
        node = self._nodes.by_name.get(output[0])
        if node is None or node.op not in pattern.kinds or output[1] != pattern.output \
                or any(node.attr[name].i != value for name, value in pattern.numbers):
            return False
        inputs = self._nodes.inputs[node.name]
        if len(inputs) < len(pattern.of) or pattern.model is not None and (
                len(inputs) > len(pattern.of) or not _are_ops_alike(node, pattern.model)):
            return False
        are_inputs = self._are_in_any_order if node.op == "AddN" else self._are_in_order
        if pattern.name and not self.fits(output, pattern.name) \
                or not are_inputs(inputs, pattern.of):
            return False
        waits = self._nodes.waits[node.name]
        if not all(any(self._may_be((name, 0), one) for name in waits) for one in pattern.waits):
            return False
        if pattern.is_own:
            self.ops.add(node.name)
        self._fitting[output, id(pattern)] = pattern
        return True

    def _are_in_order(self, inputs: Collection[Output], patterns: Collection[Any]) -> bool:
        return all(self.fits(*pair) for pair in zip(inputs, patterns))

    def _are_in_any_order(self, inputs: Collection[Output], patterns: Collection[Any]) -> bool:
        left = list(inputs)
        for pattern in patterns:
            same = next((one for one in left if self._may_be(one, pattern)), None)
            if same is None:
                return False
            left.remove(same)
        return True


def _are_ops_alike(node: Any, model: Any) -> bool:
    """Whether nodes do the same with what they read."""
    if node.op == "Const":
        values = [tf.make_ndarray(one.attr["value"].tensor) for one in (node, model)]
        return values[0].dtype == values[1].dtype and np.array_equal(*values)
    return attributes_of(node) == attributes_of(model)


def pattern_of(tensor: tf.Tensor, **names: tf.Tensor) -> Any:
    """Returns the pattern of what TensorFlow makes now.

    Args:
        tensor: A tensor.
        **names: Tensors that it is computed from, which may be any.
    """
    nodes = Nodes(tensor.graph.as_graph_def())
    made = {(one.op.name, one.value_index): name
            for name, one in names.items()}  # type: Dict[Output, Any]

    def of(output: Output) -> Any:
        output = nodes.behind(output)
        if output not in made:
            node = nodes.by_name[output[0]]
            made[output] = Op((node.op,), tuple(map(of, nodes.inputs[node.name])), output[1],
                              model=node)
        return made[output]

    return of((tensor.op.name, tensor.value_index))
