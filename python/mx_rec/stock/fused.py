"""Recognizes updates whose gradients come straight from lookups: these need no tensor of rows.

tf.gradients and the optimizers of TensorFlow make a chain of ops between the gradient of what a
lookup gives and the sparse update. Where nothing else stands in that chain, one op of the engine
does its work. Any other chain is left as it is, and the update takes its result.
"""

import collections
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mx_rec.stock.max_norm import Clipped, clipped_rows, is_alone, is_gradient
from mx_rec.stock.nodes import Nodes, Output, Use, shape_of
from mx_rec.stock.updates import Step
from mx_rec.stock.values import affine_value, constant_int, joined_rows

_PASS = ("Identity",)
# Ops that give the same rows in the same order.
_SAME_ROWS = ("Identity", "Reshape")
# Ops to which values of rows do not matter.
SHAPES = ("Shape", "ZerosLike", "OnesLike", "Size", "Rank")
_SUMS = {"SparseSegmentSum": "sum", "SparseSegmentMean": "mean", "SparseSegmentSqrtN": "sqrtn"}
_GRADIENTS = {"SparseSegmentMeanGrad": "mean", "SparseSegmentSqrtNGrad": "sqrtn"}


class Bags(NamedTuple):
    """A lookup whose rows are pooled, as tf.nn.safe_embedding_lookup_sparse makes it, or
    tf.nn.embedding_lookup_sparse.

    Attributes:
        result: Name of the op that gives the vectors of the bags.
        fill: Name of the SparseFillEmptyRows whose inputs are the sparse ids. "" without: the bags
            end with that of the last id, and vectors of bags without ids are zeros.
        combiner: "sum", "mean" or "sqrtn".
        sparse: The sparse ids: indices, values and, if bags are filled, shape.
        leaves_out: Whether negative ids among them are left out.
        pool: Name of the op that pools rows.
        max_norm: What rows are scaled down to before, None if they are not.
        of_rows: The gradient of rows that are scaled down or have weights, None if they do not.
        weights: What the row of each id is multiplied with, None if it is not. Then the sparse ids
            are those that TensorFlow has filled and left some out of, if it does, and `result` is
            the sum, which TensorFlow divides and chooses from.
    """

    result: str
    fill: str
    combiner: str
    sparse: Tuple[Output, ...]
    leaves_out: bool
    pool: str
    max_norm: Optional[float]
    of_rows: Optional[Output]
    weights: Optional[Output]


class _Pool(NamedTuple):
    """An op that pools rows.

    Attributes:
        node: The op.
        rows: The distinct rows that it pools.
        segments: The tensor that tells which bag the row of an id is of.
        weights: What the row of each id is multiplied with before, None if it is not.
        ops: Names of the ops between the rows and its result.
        combiner: "sum", "mean" or "sqrtn".
    """

    node: Any
    rows: Output
    segments: Output
    weights: Optional[Output]
    ops: Tuple[str, ...]
    combiner: str


class _Pooled(NamedTuple):
    """The vectors of bags.

    Attributes:
        result: The op that gives them.
        fill: Name of the SparseFillEmptyRows that they are of, "" without.
        ids: The tensors of the indices and of the ids.
        pool: How they are made of rows.
        clipped: The rows, if they are scaled down before.
    """

    result: Any
    fill: str
    ids: Tuple[Output, Output]
    pool: _Pool
    clipped: Optional[Clipped]


class Piece(NamedTuple):
    """A lookup and the gradient of what it gives.

    Attributes:
        gather: Name of the gather.
        grad: The tensor of the gradient: of each id's row, or of each bag's vector.
        bags: How rows are pooled, None if they are not.
        is_of_all: Whether `grad` is of each id's row of all lookups, one after the other.
    """

    gather: str
    grad: Output
    bags: Optional[Bags]
    is_of_all: bool = False


def pieces_of(nodes: Nodes, step: Step, gathers: Sequence[Any]) -> Optional[List[Piece]]:
    """Finds the lookups that the gradients of an update come straight from.

    Args:
        nodes: The graph.
        step: A sparse update.
        gathers: The gathers of its variable.

    Returns:
        The lookups, in the order in which their gradients are added; None if anything else stands
        between.
    """
    if step.sums and step.dense is None:
        return None
    by_ids = collections.Counter(_ids_of(nodes, gather) for gather in gathers)
    pieces = []  # type: List[Piece]
    for gather, ids, value, is_of_all in _gradients(nodes, step, gathers) or ():
        # Of two gathers by one tensor it does not show which one a gradient is of.
        is_known = by_ids[ids] == 1 and not is_of_all
        piece = _piece(nodes, gather, ids, value, step) if is_known else None
        if piece is None:
            return None
        pieces.append(piece)
    if not pieces:
        return None
    return pieces if len({piece.gather for piece in pieces}) == len(pieces) else None


def gradients_of(nodes: Nodes, step: Step, gathers: Sequence[Any]) -> Optional[List[Piece]]:
    """Finds the gradients of rows that an update sums, whatever was done to them before.

    Args:
        nodes: The graph.
        step: A sparse update.
        gathers: Gathers of its variable that it needs.

    Returns:
        Gradients of the rows of a gather's ids, in the order of the ids; None if anything else is
        summed. Of several gathers by the same ids it is the first.
    """
    found = _gradients(nodes, step, gathers)
    return [Piece(gather.name, value, None, is_of_all)
            for gather, _, value, is_of_all in found] if found else None


def _gradients(nodes: Nodes, step: Step,
               gathers: Sequence[Any]) -> Optional[List[Tuple[Any, Output, Output, bool]]]:
    """Returns gathers, their ids, the gradients of their rows, and whether these are one tensor for
    all gathers; None if it is not these."""
    if step.dense is not None:
        # What TensorFlow adds is cut no further: nothing joins gradients before.
        values, rows = [list(one) for one in zip(*step.parts)]
    elif step.sums:
        values, rows = joined_rows(nodes, step.grad), joined_rows(nodes, step.indices)
    else:
        unique = nodes.behind(step.indices)
        summed = nodes.behind(step.grad)
        if not _is(nodes, unique, ("Unique",), 0) \
                or not _is(nodes, summed, ("UnsortedSegmentSum",), 0):
            return None
        if nodes.inputs[summed[0]][1] != (unique[0], 1):
            return None
        values = joined_rows(nodes, nodes.inputs[summed[0]][0])
        rows = joined_rows(nodes, nodes.inputs[unique[0]][0])
    if len(values) not in (1, len(rows)):
        return None
    by_ids = {_ids_of(nodes, gather): gather for gather in reversed(gathers)}
    # Those of several lookups are joined first, and multiplied with a rate or clipped then.
    is_of_all = len(values) < len(rows)
    found = []  # type: List[Tuple[Any, Output, Output, bool]]
    for value, row in zip(values * len(rows) if is_of_all else values, rows):
        # The program may have reshaped the ids itself.
        while row not in by_ids:
            if not _is(nodes, row, _PASS + ("Reshape",), 0):
                return None
            row = nodes.inputs[row[0]][0]
        found.append((by_ids[row], row, value, is_of_all))
    return found


def _ids_of(nodes: Nodes, gather: Any) -> Output:
    return nodes.behind(nodes.inputs[gather.name][1])


def _piece(nodes: Nodes, gather: Any, ids: Output, value: Output, step: Step) -> Optional[Piece]:
    """Returns a lookup and its gradient; `value` is what is added to rows."""
    shaped = nodes.behind(value)
    if not _is(nodes, shaped, ("Reshape",), 0):
        return None
    grad = nodes.behind(nodes.inputs[shaped[0]][0])
    if not _is(nodes, ids, ("Unique",), 0):
        return Piece(gather.name, grad, None)
    return _pooled(nodes, gather, ids[0], grad, step)


def _pooled(nodes: Nodes, gather: Any, unique: str, grad: Output,
            step: Step) -> Optional[Piece]:
    """Returns a pooled lookup of distinct ids, given the gradient of their rows."""
    found = _pooling_of(nodes, gather, unique)
    if found is None:
        # The ids of an ordinary lookup may be distinct, too.
        return None
    pool = found.pool
    of_rows, of_pooled = None, grad  # type: Optional[Output], Optional[Output]
    if found.clipped is not None or pool.weights is not None:
        of_rows = grad
        if not is_alone(nodes, (gather.name, 0), pool.node.name, of_rows, set(step.ops)):
            return None
    if found.clipped is not None:
        of_pooled = _of_scaled(nodes, found.clipped, (unique, 1), grad)
    if of_pooled is None:
        return None
    of_result = _of_vectors(nodes, pool, unique, of_pooled)
    sparse = (found.ids, False)  # type: Optional[Tuple[Tuple[Output, ...], bool]]
    indices, _ = found.ids
    if pool.weights is not None and _is(nodes, indices, ("SparseFillEmptyRows",), 0):
        sparse = found.ids + (nodes.inputs[indices[0]][2],), False
    if found.fill:
        of_result, sparse = _chosen(nodes, found, of_result), _sparse(nodes, found.fill)
    if of_result is None or sparse is None:
        return None
    return Piece(gather.name, of_result, Bags(
        found.result.name, found.fill, pool.combiner, *sparse, pool=pool.node.name,
        max_norm=None if found.clipped is None else found.clipped.max_norm, of_rows=of_rows,
        weights=pool.weights))


def _of_scaled(nodes: Nodes, clipped: Clipped, places: Output, of_rows: Output) -> Optional[Output]:
    """Returns the gradient of the rows that were scaled down which becomes that of the rows.

    Args:
        nodes: The graph.
        clipped: The rows.
        places: Those of ids among the rows.
        of_rows: The gradient of the rows.
    """
    made = {}  # type: Dict[Tuple[Output, Output], List[Output]]
    for use in _by_places(nodes, places):
        if use.node.op in _GRADIENTS or use.node.op == "UnsortedSegmentSum":
            values, rows = nodes.inputs[use.node.name][:2]
            made.setdefault((values, rows), []).append((use.node.name, 0))
    found = [same[0] for same in made.values() if is_gradient(nodes, clipped, same, of_rows)]
    return found[0] if len(found) == 1 else None


def _chosen(nodes: Nodes, pooled: _Pooled, grad: Optional[Output]) -> Optional[Output]:
    """Returns the gradient of the vectors with zeros for bags without ids, given that of all:
    where(is_row_empty, zeros, grad)."""
    if grad is None or not _is(nodes, grad, ("Select",), 0):
        return None
    condition, zeros, of_result = nodes.inputs[grad[0]]
    if nodes.behind(condition) != nodes.behind(nodes.inputs[pooled.result.name][0]) \
            or not _is(nodes, nodes.behind(zeros), ("ZerosLike",), 0):
        return None
    return of_result


def _of_vectors(nodes: Nodes, pool: _Pool, unique: str, grad: Output) -> Optional[Output]:
    """Returns the gradient of pooled vectors of which another is that of their rows."""
    made = nodes.by_name[grad[0]]
    inputs = nodes.inputs[made.name]
    if made.op in _GRADIENTS:
        if _GRADIENTS[made.op] != pool.combiner or inputs[1] != (unique, 1) \
                or nodes.behind(inputs[2]) != pool.segments:
            return None
        return nodes.behind(inputs[0])
    if made.op != "UnsortedSegmentSum" or pool.combiner != "sum":
        return None
    spread = nodes.behind(inputs[0])  # type: Optional[Output]
    if pool.weights is not None:
        spread = _before_product(nodes, inputs[0], pool.weights)
    if spread is None or nodes.behind(inputs[1], _SAME_ROWS) != (unique, 1) \
            or not _takes_rows(nodes, spread) \
            or nodes.behind(nodes.inputs[spread[0]][1]) != pool.segments:
        return None
    return nodes.behind(nodes.inputs[spread[0]][0])


def _before_product(nodes: Nodes, grad: Output, weights: Output) -> Optional[Output]:
    """Returns what the gradients of the rows of ids were before they were multiplied with weights.

    Weights are one for each id: a sum over the dimensions along which the rows were repeated is one
    over none.
    """
    product = nodes.behind(grad, _SAME_ROWS)
    if _is(nodes, product, ("Sum",), 0):
        product, axes = [nodes.behind(one) for one in nodes.inputs[product[0]]]
        if nodes.by_name[axes[0]].op != "BroadcastGradientArgs":
            return None
    if not _is(nodes, product, ("Mul",), 0):
        return None
    one, other = [nodes.behind(factor) for factor in nodes.inputs[product[0]]]
    return one if other == weights else other if one == weights else None


def _takes_rows(nodes: Nodes, output: Output) -> bool:
    """Whether a tensor is of rows of another, which a gather takes."""
    if not _is(nodes, output, ("GatherV2", "Gather"), 0):
        return False
    node = nodes.by_name[output[0]]
    return node.op == "Gather" or (constant_int(nodes, node.name, 2) == 0
                                   and not node.attr["batch_dims"].i)


def _by_places(nodes: Nodes, places: Output) -> List[Use]:
    """Returns what reads the places of ids among distinct ones, or a vector of them."""
    found = nodes.uses(*places)
    return found + [other for use in found if use.node.op == "Reshape"
                    for other in nodes.uses(use.node.name)]


def _sparse(nodes: Nodes, fill: str) -> Optional[Tuple[Tuple[Output, ...], bool]]:
    """Returns the sparse ids of SparseFillEmptyRows, and whether negative ones are left out.

    None if it fills rows with another id than 0.
    """
    if constant_int(nodes, fill, 3) != 0:
        return None
    # Copies as they are: one may wait for an assertion.
    indices, values, shape = nodes.inputs[fill][:3]
    found = (indices, values, shape)
    retained = [nodes.by_name[nodes.behind(one)[0]] for one in (indices, values)]
    if any(node.op != "GatherV2" or constant_int(nodes, node.name, 2) != 0 for node in retained):
        return found, False
    (all_indices, all_values), (kept, also_kept) = [
        [nodes.inputs[node.name][at] for node in retained] for at in (0, 1)]
    kept = nodes.behind(kept)
    if kept != nodes.behind(also_kept) or not _is(nodes, kept, ("Reshape",), 0):
        return found, False
    where = nodes.behind(nodes.inputs[kept[0]][0])
    if not _is(nodes, where, ("Where",), 0):
        return found, False
    test = nodes.behind(nodes.inputs[where[0]][0])
    if not _is(nodes, test, ("GreaterEqual",), 0) \
            or nodes.behind(nodes.inputs[test[0]][0]) != nodes.behind(all_values) \
            or constant_int(nodes, test[0], 1) != 0:
        return found, False
    return (all_indices, all_values, shape), True


def _pooling_of(nodes: Nodes, gather: Any, unique: str) -> Optional[_Pooled]:
    """Finds the vectors of bags behind a gather of distinct ids, for which others may be chosen
    where there are no ids: where(is_row_empty, zeros, pooled).

    Args:
        nodes: The graph.
        gather: The gather.
        unique: Name of the op that made its ids distinct.

    Returns:
        The vectors of the bags, None if there are none.
    """
    pools = [(pool, _clipped(nodes, gather, pool.rows)) for pool in _pools(nodes, unique)]
    pools = [(pool, clipped) for pool, clipped in pools
             if clipped is not None or pool.rows == (gather.name, 0)]
    if len(pools) != 1:
        return None
    pool, clipped = pools[0]
    # TensorFlow reads rows for all before it updates them. A reader of its own is not ordered so.
    if clipped is None and any(use.node.op not in SHAPES and use.node.name not in pool.ops
                               for use in _readers(nodes, gather)):
        return None
    indices, ids = _matrix_of(nodes, pool.segments), nodes.behind(nodes.inputs[unique][0])
    if indices is None:
        return None
    if pool.weights is not None and gather.name in nodes.upstream([pool.weights[0]], waits=True):
        return None
    pooled = _Pooled(pool.node, "", (indices, ids), pool, clipped)
    if pool.weights is not None or not _is(nodes, ids, ("SparseFillEmptyRows",), 1):
        return pooled
    fill, vectors = ids[0], pool.node
    if indices != (fill, 0) or any(use.node.op not in SHAPES for use in _readers(nodes, vectors)
                                   if use.node.op != "Select"):
        return None
    chosen = [use.node for use in nodes.uses(vectors.name) if use.node.op == "Select"
              and use.position == 2]
    if len(chosen) != 1:
        return None
    condition, zeros, _ = nodes.inputs[chosen[0].name]
    tile = nodes.behind(condition)
    if not _is(nodes, tile, ("Tile",), 0) or not _is(nodes, nodes.behind(zeros),
                                                     ("ZerosLike",), 0):
        return None
    column = nodes.behind(nodes.inputs[tile[0]][0])
    if not _is(nodes, column, ("Reshape",), 0) \
            or nodes.behind(nodes.inputs[column[0]][0]) != (fill, 2):
        return None
    return pooled._replace(result=chosen[0], fill=fill)


def _pools(nodes: Nodes, unique: str) -> Iterator[_Pool]:
    """Yields the ops that pool the rows of distinct ids."""
    for use in nodes.uses(unique, 1):
        node, inputs = use.node, nodes.inputs[use.node.name]
        rows = nodes.behind(inputs[0])
        if use.position == 1 and node.op in _SUMS:
            yield _Pool(node, rows, nodes.behind(inputs[2]), None, (node.name,), _SUMS[node.op])
        elif use.position == 1 and _takes_rows(nodes, (node.name, 0)):
            # What tf.nn.embedding_lookup_sparse makes of weights.
            for product in nodes.uses(node.name):
                times = product.node.name
                for total in nodes.uses(times) if product.node.op == "Mul" else ():
                    if total.node.op == "SegmentSum" and total.position == 0:
                        weights = nodes.behind(nodes.inputs[times][1 - product.position])
                        segments = nodes.behind(nodes.inputs[total.node.name][1])
                        yield _Pool(total.node, rows, segments, weights,
                                    (node.name, times, total.node.name), "sum")


def _clipped(nodes: Nodes, gather: Any, result: Output) -> Optional[Clipped]:
    """Returns the rows that a gather gives, if `result` has them scaled down."""
    variable = nodes.by_name[nodes.behind(nodes.inputs[gather.name][0])[0]]
    shape = shape_of(variable)
    if shape is None or len(shape) != 2:
        return None
    found = clipped_rows(nodes, result, shape[1])
    return found if found is not None and found.rows == (gather.name, 0) else None


def _matrix_of(nodes: Nodes, segments: Output) -> Optional[Output]:
    """Returns the indices whose first column segments are, None if they are none."""
    if _is(nodes, segments, ("Cast",), 0):
        segments = nodes.behind(nodes.inputs[segments[0]][0])
    if not _is(nodes, segments, ("StridedSlice",), 0):
        return None
    node = nodes.by_name[segments[0]]
    # [:, 0]: all of the first dimension, and the first place of the second.
    masks = node.attr["begin_mask"].i, node.attr["end_mask"].i, node.attr["shrink_axis_mask"].i
    if masks != (1, 1, 2) or node.attr["ellipsis_mask"].i or node.attr["new_axis_mask"].i:
        return None
    begin, strides = [affine_value(nodes, *nodes.inputs[node.name][at]) for at in (1, 3)]
    is_first = begin is not None and begin.kind is None and begin.shift == 0.0 \
        and strides is not None and strides.kind is None and strides.shift == 1.0
    return nodes.behind(nodes.inputs[node.name][0]) if is_first else None


def _readers(nodes: Nodes, node: Any) -> List[Any]:
    """Returns the uses of a node's output, through Identity."""
    found = []  # type: List[Any]
    for use in nodes.uses(node.name):
        if use.node.op in _PASS:
            found.extend(_readers(nodes, use.node))
        else:
            found.append(use)
    return found


def _is(nodes: Nodes, output: Output, kinds: Sequence[str], place: int) -> bool:
    """Whether a tensor is output number `place` of an op of one of some types."""
    node = nodes.by_name.get(output[0])
    return node is not None and node.op in kinds and output[1] == place
