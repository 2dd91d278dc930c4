"""Recognizes a variable that is read with zeros in the place of its first row, as models make it
for the id of padding: `tf.concat([tf.zeros([1, dim]), v[1:, :]], 0)`; and the gradient of that.

Its gathers are those of the variable in which id 0 is padding. Its gradient is dense, and a sum of
gradients of rows in which those of id 0 are left out.
"""

import functools
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.stock.nodes import Nodes, Output
from mx_rec.stock.patterns import Search, pattern_of
from mx_rec.stock.values import joined_rows

#: The op of the gradient.
GRADIENT = "StridedSliceGrad"


def padded_value(nodes: Nodes, rest: Any, shape: Sequence[int]) -> Optional[Any]:
    """Finds the value of a variable with zeros in the place of its first row.

    Args:
        nodes: The graph.
        rest: What may be the other rows: an op that takes a part of the variable's value.
        shape: The sizes of the variable.

    Returns:
        The op that gives it; None if there is none, or something else needs `rest`, too.
    """
    uses = nodes.all_uses(rest)
    if rest.op != "StridedSlice" or len(shape) != 2 or len(uses) != 1:
        return None
    made = uses[0].node
    variable = nodes.behind(nodes.inputs[rest.name][0])
    return made if any(
        Search(nodes, variable=[variable]).fits((made.name, 0), pattern.padded)
        for pattern in _patterns(*shape, tf.int32)) else None


def padded_gradients(nodes: Nodes, grad: Any,
                     shape: Sequence[int]) -> List[Tuple[Output, Output]]:
    """Takes the gradient of a variable apart that comes from such a value.

    Args:
        nodes: The graph.
        grad: The op that gives it, of the type GRADIENT.
        shape: The sizes of the variable.

    Returns:
        The gradients of rows and their ids, of which id 0 counts for nothing; nothing if it is
        anything else.
    """
    for pattern in _patterns(*shape, tf.int32) + _patterns(*shape, tf.int64) \
            if len(shape) == 2 else ():
        search = Search(nodes)
        if search.fits((grad.name, 0), pattern.of_variable):
            of_rows, ids = search.behind("values"), search.behind("ids")
            parts = joined_rows(nodes, of_rows), joined_rows(nodes, ids)
            return list(zip(*parts)) if len(parts[0]) == len(parts[1]) else [(of_rows, ids)]
    return []


class _Patterns(NamedTuple):
    """The `padded` value of a "variable", and the gradient `of_variable` of those of rows, which
    are "values" and "ids"."""

    padded: Any
    of_variable: Any


@functools.lru_cache(maxsize=None)
def _patterns(rows: int, dim: int, kind: tf.DType) -> List[_Patterns]:
    """Returns the ways to write it, with ids of a type."""
    found = []  # type: List[_Patterns]
    for cut in (lambda v: v[1:, :], lambda v: v[1:]):
        with tf.Graph().as_default():
            variable = tf.compat.v1.placeholder(tf.float32, [rows, dim])
            values = tf.compat.v1.placeholder(tf.float32, [None, dim])
            ids = tf.compat.v1.placeholder(kind, [None])
            padded = tf.concat([tf.zeros([1, dim]), cut(variable)], 0)
            grad, = tf.gradients(padded, variable, tf.IndexedSlices(values, ids, tf.shape(padded)))
            found.append(_Patterns(pattern_of(padded, variable=variable),
                                   pattern_of(grad, values=values, ids=ids)))
    return found
