"""Recognizes rows that are scaled down to a greatest norm before they are pooled, and the gradients
of that: TensorFlow makes both of some thirty ops, which are compared with those that it makes now.
"""

import functools
from typing import Any, List, NamedTuple, Optional, Sequence, Set

import numpy as np
import tensorflow as tf

from mx_rec.stock.nodes import Nodes, Output
from mx_rec.stock.patterns import Search, op, pattern_of

# Ops that a gradient of rows goes through on its way to the update.
_TO_UPDATE = ("Reshape", "Identity", "ConcatV2", "UnsortedSegmentSum")
_SCALED = op("RealDiv", op("Mul", "rows", None), op("Maximum", None, "max_norm"))


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


def clipped_rows(nodes: Nodes, result: Output, dim: int) -> Optional[Clipped]:
    """Finds rows that are scaled down.

    Args:
        nodes: The graph.
        result: The tensor that may have the rows after.
        dim: Floats of a row.
    """
    search = Search(nodes)
    max_norm = _number(nodes, search.behind("max_norm")) if search.fits(result, _SCALED) else None
    if max_norm is None or not 0 < max_norm < float("inf"):
        return None
    rows = search.behind("rows")
    fits = Search(nodes, rows=[rows]).fits(result, _patterns(dim, max_norm).result)
    return Clipped(rows, result, max_norm, dim) if fits else None


def is_gradient(nodes: Nodes, clipped: Clipped, of_result: Sequence[Output],
                of_rows: Output) -> bool:
    """Whether a tensor is the gradient of rows, given that of the rows that were scaled down.

    Args:
        nodes: The graph.
        clipped: The rows.
        of_result: The gradient of the rows after: tensors of the same values. TensorFlow makes
            slices dense for each op that takes them.
        of_rows: The tensor.
    """
    return Search(nodes, rows=[clipped.rows], grad=of_result).fits(
        of_rows, _patterns(clipped.dim, clipped.max_norm).of_rows)


def is_alone(nodes: Nodes, rows: Output, pool: str, of_rows: Output, update: Set[str]) -> bool:
    """Whether nothing but a pooled lookup and its update needs rows, or waits for them.

    Args:
        nodes: The graph.
        rows: The rows, before they are scaled down or multiplied with weights.
        pool: The name of the op that pools them.
        of_rows: The gradient of the distinct rows.
        update: The names of the ops of the update.
    """
    needed = nodes.upstream([pool, of_rows[0]], waits=True)
    waiting, seen = [rows[0]], {pool, of_rows[0]}
    while waiting:
        for node in _dependents(nodes, waiting.pop()):
            is_shape = node.op == "Shape" and nodes.behind(nodes.inputs[node.name][0]) == rows
            # As TensorFlow leaves it for a gradient that nobody asks for.
            is_left_over = node.op == "Identity" and not _dependents(nodes, node.name)
            if node.name in seen or is_shape or is_left_over:
                continue
            if node.name not in needed:
                return False
            seen.add(node.name)
            waiting.append(node.name)
    waiting = [of_rows[0]]
    while waiting:
        for node in _dependents(nodes, waiting.pop()):
            if node.name in update:
                continue
            if node.op not in _TO_UPDATE:
                return False
            waiting.append(node.name)
    return True


def _dependents(nodes: Nodes, name: str) -> List[Any]:
    """Returns the nodes that read a node or wait for it."""
    return [use.node for use in nodes.all_uses(nodes.by_name[name])] + [
        nodes.by_name[one] for one in nodes.waiting.get(name, ())]


def _number(nodes: Nodes, output: Output) -> Optional[float]:
    """Returns a constant float32, None if it is none."""
    node = nodes.by_name[output[0]]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return float(value) if value.shape == () and value.dtype == np.float32 else None


class _Patterns(NamedTuple):
    """The `result`, and the gradient `of_rows`, of "rows" and a gradient "grad" of the result."""

    result: Any
    of_rows: Any


@functools.lru_cache(maxsize=None)
def _patterns(dim: int, max_norm: float) -> _Patterns:
    """Returns what TensorFlow makes of tf.clip_by_norm and of its gradient."""
    with tf.Graph().as_default():
        rows = tf.compat.v1.placeholder(tf.float32, [None, dim])
        grad = tf.compat.v1.placeholder(tf.float32, [None, dim])
        result = tf.clip_by_norm(rows, max_norm, axes=[1])
        of_rows, = tf.gradients(result, rows, grad)
        return _Patterns(pattern_of(result, rows=rows), pattern_of(of_rows, rows=rows, grad=grad))
