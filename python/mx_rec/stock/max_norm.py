"""Recognizes rows that are scaled down to a greatest norm before they are pooled, and the gradients
of that: TensorFlow makes both of some thirty ops, which are compared with those that it makes now.
"""

import functools
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.stock.nodes import Nodes, Output

# Ops that a gradient of rows goes through on its way to the update.
_TO_UPDATE = ("Reshape", "Identity", "ConcatV2", "UnsortedSegmentSum")


class Clipped(NamedTuple):
    """Rows that tf.clip_by_norm scales down one by one.

    Attributes:
        rows: The rows before.
        result: The rows after.
        max_norm: Their greatest norm.
        dim: Floats of a row.
    """

    rows: Output
    result: Output
    max_norm: float
    dim: int


class _Pattern(NamedTuple):
    """What TensorFlow makes of tf.clip_by_norm and of its gradient.

    Attributes:
        nodes: The graph.
        rows: The rows.
        grad: The gradient of the result.
        result: The result.
        of_rows: The gradient of the rows.
    """

    nodes: Nodes
    rows: Output
    grad: Output
    result: Output
    of_rows: Output


def clipped_rows(nodes: Nodes, result: Output, dim: int) -> Optional[Clipped]:
    """Finds rows that are scaled down.

    Args:
        nodes: The graph.
        result: The tensor that may have the rows after.
        dim: Floats of a row.
    """
    quotient, _ = result
    if nodes.by_name[quotient].op != "RealDiv":
        return None
    (product, _), (divisor, _) = nodes.inputs[quotient]
    if nodes.by_name[product].op != "Mul" or nodes.by_name[divisor].op != "Maximum":
        return None
    max_norm = _number(nodes, nodes.inputs[divisor][1])
    if max_norm is None or not 0 < max_norm < float("inf"):
        return None
    pattern = _pattern(dim, max_norm)
    rows = nodes.behind(nodes.inputs[product][0])
    found = Clipped(rows, result, max_norm, dim)
    return found if _is_alike(nodes, result, pattern, pattern.result, {pattern.rows: rows}) \
        else None


def is_gradient(nodes: Nodes, clipped: Clipped, of_result: Output, of_rows: Output) -> bool:
    """Whether a tensor is the gradient of rows, given that of the rows that were scaled down.

    Args:
        nodes: The graph.
        clipped: The rows.
        of_result: The gradient of the rows after.
        of_rows: The tensor.
    """
    pattern = _pattern(clipped.dim, clipped.max_norm)
    return _is_alike(nodes, of_rows, pattern, pattern.of_rows,
                     {pattern.rows: clipped.rows, pattern.grad: of_result})


def is_alone(nodes: Nodes, clipped: Clipped, pool: str, of_rows: Output, update: Set[str]) -> bool:
    """Whether nothing but a pooled lookup and its update needs rows that are scaled down.

    Args:
        nodes: The graph.
        clipped: The rows.
        pool: The name of the op that pools them.
        of_rows: The gradient of the rows.
        update: The names of the ops of the update.
    """
    needed = nodes.upstream([pool, of_rows[0]], waits=True)
    waiting, seen = [clipped.rows[0]], {pool, of_rows[0]}
    while waiting:
        for use in nodes.all_uses(nodes.by_name[waiting.pop()]):
            name = use.node.name
            is_shape = use.node.op == "Shape" \
                and nodes.behind(nodes.inputs[name][0]) == clipped.rows
            # As TensorFlow leaves it for a gradient that nobody asks for.
            is_left_over = use.node.op == "Identity" and not nodes.all_uses(use.node) \
                and not nodes.waiting.get(name)
            if name in seen or is_shape or is_left_over:
                continue
            if name not in needed:
                return False
            seen.add(name)
            waiting.append(name)
    waiting = [of_rows[0]]
    while waiting:
        for use in nodes.all_uses(nodes.by_name[waiting.pop()]):
            if use.node.name in update:
                continue
            if use.node.op not in _TO_UPDATE:
                return False
            waiting.append(use.node.name)
    return True


def _number(nodes: Nodes, output: Output) -> Optional[float]:
    """Returns a constant float32, None if it is none."""
    node = nodes.by_name[nodes.behind(output)[0]]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return float(value) if value.shape == () and value.dtype == np.float32 else None


@functools.lru_cache(maxsize=None)
def _pattern(dim: int, max_norm: float) -> _Pattern:
    with tf.Graph().as_default() as graph:
        rows = tf.compat.v1.placeholder(tf.float32, [None, dim])
        grad = tf.compat.v1.placeholder(tf.float32, [None, dim])
        result = tf.clip_by_norm(rows, max_norm, axes=[1])
        of_rows, = tf.gradients(result, rows, grad)
        nodes = Nodes(graph.as_graph_def())
    tensors = [nodes.behind((one.op.name, one.value_index))
               for one in (rows, grad, result, of_rows)]
    return _Pattern(nodes, *tensors)


def _is_alike(nodes: Nodes, output: Output, pattern: _Pattern, model: Output,
              known: Dict[Output, Output]) -> bool:
    """Whether a tensor is computed from some others as a tensor of a pattern is.

    Args:
        nodes: The graph.
        output: The tensor.
        pattern: The pattern.
        model: The tensor of the pattern.
        known: By tensors of the pattern those that they stand for.
    """
    judged = {}  # type: Dict[Tuple[Output, Output], bool]

    def judge(one: Output, other: Output) -> bool:
        one, other = nodes.behind(one), pattern.nodes.behind(other)
        if other in known:
            return one == known[other]
        if (one, other) not in judged:
            judged[one, other] = _are_ops_alike(nodes.by_name[one[0]],
                                                pattern.nodes.by_name[other[0]]) \
                and one[1] == other[1] \
                and are_inputs_alike(nodes.inputs[one[0]], pattern.nodes.inputs[other[0]],
                                     pattern.nodes.by_name[other[0]].op == "AddN")
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

    return judge(output, model)


def _are_ops_alike(node: Any, model: Any) -> bool:
    """Whether nodes do the same with what they read."""
    def told(one: Any) -> Dict[str, bytes]:
        return {key: value.SerializeToString() for key, value in one.attr.items()
                if not key.startswith("_")}

    if node.op != model.op:
        return False
    if node.op == "Const":
        values = [tf.make_ndarray(one.attr["value"].tensor) for one in (node, model)]
        return values[0].dtype == values[1].dtype and np.array_equal(*values)
    return told(node) == told(model)
