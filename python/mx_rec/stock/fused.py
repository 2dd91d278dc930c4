"""Recognizes updates whose gradients come straight from lookups: these need no tensor of rows.

tf.gradients and the optimizers of TensorFlow make a chain of ops between the gradient of what a
lookup gives and the sparse update. Where nothing else stands in that chain, one op of the engine
does its work. Any other chain is left as it is, and the update takes its result.
"""

import collections
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mx_rec.stock.max_norm import Clipped, clipped_rows, is_alone, is_gradient
from mx_rec.stock.nodes import Nodes, Output, Use, shape_of
from mx_rec.stock.patterns import Reshaped, Search, gathered, op
from mx_rec.stock.updates import Step
from mx_rec.stock.values import joined_rows

# Ops to which values of rows do not matter.
SHAPES = ("Shape", "ZerosLike", "OnesLike", "Size", "Rank")
_SUMS = {"SparseSegmentSum": "sum", "SparseSegmentMean": "mean", "SparseSegmentSqrtN": "sqrtn"}

# The gradient of what a lookup gives, as that of its rows.
_OF_ROWS = op("Reshape", "grad")
# The first column of a matrix: all of the first dimension, and the first place of the second.
_COLUMN = op("StridedSlice", "matrix", 0, None, 1, numbers=(
    ("begin_mask", 1), ("end_mask", 1), ("shrink_axis_mask", 2), ("ellipsis_mask", 0),
    ("new_axis_mask", 0)))
# Sparse ids without negative ones, in which rows without ids have id 0.
_FILLED = op("SparseFillEmptyRows", "indices", "values", "shape", 0)
_KEPT = op("Reshape", op("Where", op("GreaterEqual", "values", 0)), name="kept")
_RETAINED = op("SparseFillEmptyRows", gathered("indices", "kept"), gathered("values", _KEPT),
               "shape")
# Vectors of bags, zeros for those without ids; and the gradient of the vectors.
_CHOSEN = op("Select", op("Tile", op("Reshape", "is_empty")), op("ZerosLike"), None)
_OF_CHOSEN = op("Select", "condition", op("ZerosLike"), "grad")
# The gradients of rows that are pooled, of distinct ids.
_OF_VECTORS = {
    "sum": op("UnsortedSegmentSum", gathered("grad", "segments"), Reshaped("places")),
    "mean": op("SparseSegmentMeanGrad", "grad", "places", "segments"),
    "sqrtn": op("SparseSegmentSqrtNGrad", "grad", "places", "segments")}
# The same of rows with weights. Weights are one for each id: a sum over the dimensions along which
# the rows were repeated is one over none.
_SPREAD = gathered("grad", "segments")
_PRODUCT = op("Mul", "weights", _SPREAD), op("Mul", _SPREAD, "weights")
_REPEATED = op("BroadcastGradientArgs"), op("BroadcastGradientArgs", output=1)
_OF_WEIGHTED = op("UnsortedSegmentSum", Reshaped(_PRODUCT + (op("Sum", _PRODUCT, _REPEATED),)),
                  Reshaped("places"))


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
    """The vectors of bags, and the op that pools their rows.

    Attributes:
        node: The op.
        rows: The distinct rows that it pools.
        segments: The tensor that tells which bag the row of an id is of.
        weights: What the row of each id is multiplied with before, None if it is not.
        ops: Names of the ops between the rows and its result.
        combiner: "sum", "mean" or "sqrtn".
        result: The op that gives the vectors.
        fill: Name of the SparseFillEmptyRows that they are of, "" without.
        ids: The tensors of the indices and of the ids.
        clipped: The rows, if they are scaled down before.
    """

    node: Any
    rows: Output
    segments: Output
    weights: Optional[Output]
    ops: Tuple[str, ...]
    combiner: str
    result: Any
    fill: str = ""
    ids: Tuple[Output, ...] = ()
    clipped: Optional[Clipped] = None


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
    for one in gradients_of(nodes, step, gathers) or ():
        gather = nodes.by_name[one.gather]
        ids = _ids_of(nodes, gather)
        # Of two gathers by one tensor it does not show which one a gradient is of.
        is_known = by_ids[ids] == 1 and not one.is_of_all
        piece = _piece(nodes, gather, ids, one.grad, step) if is_known else None
        if piece is None:
            return None
        pieces.append(piece)
    return pieces if pieces and len({one.gather for one in pieces}) == len(pieces) else None


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
    if step.dense is not None:
        # What TensorFlow adds is cut no further: nothing joins gradients before.
        values, rows = [list(one) for one in zip(*step.parts)]
    elif step.sums:
        values, rows = joined_rows(nodes, step.grad), joined_rows(nodes, step.indices)
    else:
        unique, _ = nodes.behind(step.indices)
        search = Search(nodes, places=[(unique, 1)])
        if not search.fits((unique, 0), op("Unique", "ids")) \
                or not search.fits(step.grad, op("UnsortedSegmentSum", "values", "places")):
            return None
        values = joined_rows(nodes, search.tensors["values"])
        rows = joined_rows(nodes, search.tensors["ids"])
    if len(values) not in (1, len(rows)):
        return None
    by_ids = {_ids_of(nodes, gather): gather for gather in reversed(gathers)}
    # Those of several lookups are joined first, and multiplied with a rate or clipped then.
    is_of_all = len(values) < len(rows)
    found = []  # type: List[Piece]
    for value, row in zip(values * len(rows) if is_of_all else values, rows):
        # The program may have reshaped the ids itself.
        while row not in by_ids:
            if row[1] != 0 or nodes.by_name[row[0]].op not in ("Identity", "Reshape"):
                return None
            row = nodes.inputs[row[0]][0]
        found.append(Piece(by_ids[row].name, value, None, is_of_all))
    return found or None


def _ids_of(nodes: Nodes, gather: Any) -> Output:
    return nodes.behind(nodes.inputs[gather.name][1])


def _piece(nodes: Nodes, gather: Any, ids: Output, value: Output, step: Step) -> Optional[Piece]:
    """Returns a lookup and its gradient; `value` is what is added to rows."""
    search = Search(nodes)
    if not search.fits(value, _OF_ROWS):
        return None
    grad = search.behind("grad")
    if not search.fits(ids, op("Unique")):
        return Piece(gather.name, grad, None)
    return _pooled(nodes, gather, ids[0], grad, step)


def _pooled(nodes: Nodes, gather: Any, unique: str, grad: Output,
            step: Step) -> Optional[Piece]:
    """Returns a pooled lookup of distinct ids, given the gradient of their rows."""
    pool = pooling_of(nodes, gather, unique)
    if pool is None:
        # The ids of an ordinary lookup may be distinct, too.
        return None
    of_rows, of_pooled = None, grad  # type: Optional[Output], Optional[Output]
    if pool.clipped is not None or pool.weights is not None:
        of_rows = grad
        if not is_alone(nodes, (gather.name, 0), pool.node.name, of_rows, set(step.ops)):
            return None
    if pool.clipped is not None:
        of_pooled = _of_scaled(nodes, pool.clipped, (unique, 1), grad)
    if of_pooled is None:
        return None
    of_result = _of_vectors(nodes, pool, unique, of_pooled)
    sparse = (pool.ids, False)  # type: Optional[Tuple[Tuple[Output, ...], bool]]
    indices = pool.ids[0]
    if pool.weights is not None and Search(nodes).fits(indices, op("SparseFillEmptyRows")):
        sparse = pool.ids + (nodes.inputs[indices[0]][2],), False
    if pool.fill:
        of_result, sparse = _chosen(nodes, pool, of_result), _sparse(nodes, pool.fill)
    if of_result is None or sparse is None:
        return None
    return Piece(gather.name, of_result, Bags(
        pool.result.name, pool.fill, pool.combiner, *sparse, pool=pool.node.name,
        max_norm=None if pool.clipped is None else pool.clipped.max_norm, of_rows=of_rows,
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
        if any(use.node.op in pattern.kinds for pattern in _OF_VECTORS.values()):
            values, rows = nodes.inputs[use.node.name][:2]
            made.setdefault((values, rows), []).append((use.node.name, 0))
    found = [same[0] for same in made.values() if is_gradient(nodes, clipped, same, of_rows)]
    return found[0] if len(found) == 1 else None


def _chosen(nodes: Nodes, pool: _Pool, grad: Optional[Output]) -> Optional[Output]:
    """Returns the gradient of the vectors with zeros for bags without ids, given that of all:
    where(is_row_empty, zeros, grad)."""
    condition = nodes.behind(nodes.inputs[pool.result.name][0])
    search = Search(nodes, condition=[condition])
    return search.tensors["grad"] if grad is not None and search.fits(grad, _OF_CHOSEN) else None


def _of_vectors(nodes: Nodes, pool: _Pool, unique: str, grad: Output) -> Optional[Output]:
    """Returns the gradient of pooled vectors of which another is that of their rows."""
    search = Search(nodes, places=[(unique, 1)], segments=[pool.segments], weights=[pool.weights])
    pattern = _OF_VECTORS[pool.combiner] if pool.weights is None else _OF_WEIGHTED
    return search.behind("grad") if search.fits(grad, pattern) else None


def _by_places(nodes: Nodes, places: Output) -> List[Use]:
    """Returns what reads the places of ids among distinct ones, or a vector of them."""
    found = nodes.uses(*places)
    return found + [other for use in found if use.node.op == "Reshape"
                    for other in nodes.uses(use.node.name)]


def _sparse(nodes: Nodes, fill: str) -> Optional[Tuple[Tuple[Output, ...], bool]]:
    """Returns the sparse ids of SparseFillEmptyRows, and whether negative ones are left out.

    None if it fills rows with another id than 0.
    """
    filled, retained = Search(nodes), Search(nodes)
    if not filled.fits((fill, 0), _FILLED):
        return None
    leaves_out = retained.fits((fill, 0), _RETAINED)
    # Copies as they are: one may wait for an assertion.
    found = (retained if leaves_out else filled).tensors
    return (found["indices"], found["values"], found["shape"]), leaves_out


def pooling_of(nodes: Nodes, gather: Any, unique: str) -> Optional[_Pool]:
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
    search = Search(nodes)
    if not search.fits(pool.segments, (op("Cast", _COLUMN), _COLUMN)):
        return None
    indices, ids = search.behind("matrix"), nodes.behind(nodes.inputs[unique][0])
    if pool.weights is not None and gather.name in nodes.upstream([pool.weights[0]], waits=True):
        return None
    pooled = pool._replace(ids=(indices, ids), clipped=clipped)
    if pool.weights is not None or not search.fits(ids, op("SparseFillEmptyRows", output=1)):
        return pooled
    fill, vectors = ids[0], pool.node
    if indices != (fill, 0) or any(use.node.op not in SHAPES for use in _readers(nodes, vectors)
                                   if use.node.op != "Select"):
        return None
    chosen = [use.node for use in nodes.uses(vectors.name) if use.node.op == "Select"
              and use.position == 2]
    search = Search(nodes, is_empty=[(fill, 2)])
    if len(chosen) != 1 or not search.fits((chosen[0].name, 0), _CHOSEN):
        return None
    return pooled._replace(result=chosen[0], fill=fill)


def _pools(nodes: Nodes, unique: str) -> Iterator[_Pool]:
    """Yields the ops that pool the rows of distinct ids."""
    for use in nodes.uses(unique, 1):
        node, inputs = use.node, nodes.inputs[use.node.name]
        rows = nodes.behind(inputs[0])
        if use.position == 1 and node.op in _SUMS:
            yield _Pool(node, rows, nodes.behind(inputs[2]), None, (node.name,), _SUMS[node.op],
                        node)
        elif use.position == 1 and Search(nodes).fits((node.name, 0), gathered(None, None)):
            # What tf.nn.embedding_lookup_sparse makes of weights.
            for product in nodes.uses(node.name):
                times = product.node.name
                for total in nodes.uses(times) if product.node.op == "Mul" else ():
                    if total.node.op == "SegmentSum" and total.position == 0:
                        weights = nodes.behind(nodes.inputs[times][1 - product.position])
                        segments = nodes.behind(nodes.inputs[total.node.name][1])
                        yield _Pool(total.node, rows, segments, weights,
                                    (node.name, times, total.node.name), "sum", total.node)


def _clipped(nodes: Nodes, gather: Any, result: Output) -> Optional[Clipped]:
    """Returns the rows that a gather gives, if `result` has them scaled down."""
    variable = nodes.by_name[nodes.behind(nodes.inputs[gather.name][0])[0]]
    shape = shape_of(variable)
    if shape is None or len(shape) != 2:
        return None
    found = clipped_rows(nodes, result, shape[1])
    return found if found is not None and found.rows == (gather.name, 0) else None


def _readers(nodes: Nodes, node: Any) -> List[Any]:
    """Returns the uses of a node's output, through Identity."""
    found = []  # type: List[Any]
    for use in nodes.uses(node.name):
        if use.node.op == "Identity":
            found.extend(_readers(nodes, use.node))
        else:
            found.append(use)
    return found
