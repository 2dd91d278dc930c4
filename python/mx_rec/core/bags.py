"""The ops of pooled lookups: rows of the ids of a bag, added up without a tensor of all of them."""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.core.table import Table
from mx_rec.edits.upstream import upstream
from mx_rec.ops import library
from mx_rec.ops.lookups import find_rows, read_rows
from mx_rec.state.table_variable import raw_tensor, row_shape

# Numbers of the attribute combiner; a sum is divided by nothing.
COMBINERS = {"sum": 0, "mean": 1, "sqrtn": 2}


class Pooling(NamedTuple):
    """How the rows of a lookup are pooled.

    Attributes:
        combiner: "sum", "mean" or "sqrtn".
        source: The ids as the caller has them: a SparseTensor or RaggedTensor, whose rows are the
            bags, or None, where bags lie along the last dimension.
        weights: Of a float type and of the shape of the ids that are looked up, or None.
        has_weight_grad: Whether the weights have gradients.
        max_norm: The greatest l2 norm of a row, None for any.
    """

    combiner: str
    source: Union[None, tf.SparseTensor, tf.RaggedTensor]
    weights: Optional[tf.Tensor]
    has_weight_grad: bool
    max_norm: Optional[float]

    def identity(self) -> Tuple[Any, ...]:
        """Returns what is equal for two poolings of one feature that give the same."""
        return self.combiner, id(self.weights), self.has_weight_grad, self.max_norm


class _Bags(NamedTuple):
    """What ops take of the bags of a lookup."""

    ends: tf.Tensor
    weights: tf.Tensor
    divisors: tf.Tensor


class Sought(NamedTuple):
    """A pooled lookup that makes no rows.

    Attributes:
        table: The table.
        ids: int32 or int64 ids.
        absent: float32 (k, dim), the rows of ids that have none; None for zeros.
        pooling: How they are pooled.
        scope: The name scope of its own ops.
    """

    table: Table
    ids: tf.Tensor
    absent: Optional[tf.Tensor]
    pooling: Pooling
    scope: str


def find_pooled(lookups: Sequence[Sought]) -> Tuple[List[tf.Tensor], List[tf.Operation]]:
    """Adds the ops of pooled lookups that make no rows.

    Lookups by ids of one type share an op. Those whose rows are scaled down have ops of their own.

    Args:
        lookups: The lookups.

    Returns:
        For each lookup the vectors of its bags; and the ops that take ids and that graph
        modification knows.
    """
    results = [None] * len(lookups)  # type: List[Any]
    finders = []  # type: List[tf.Operation]
    same = OrderedDict()  # type: Dict[tf.DType, List[Tuple[int, Sought, _Bags]]]
    for place, one in enumerate(lookups):
        with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(one.scope):
            bags = _bags(one.pooling, one.ids, one.ids)
            if one.pooling.max_norm is not None:
                results[place] = _find_clipped(one, bags)
            else:
                same.setdefault(one.ids.dtype, []).append((place, one, bags))
    for together in same.values():
        found = find_rows(
            [one.table.handle for _, one, _ in together],
            [row_shape(one.table.variable) for _, one, _ in together],
            [one.ids for _, one, _ in together], [one.absent for _, one, _ in together],
            list(zip(*[bags for _, _, bags in together])))
        finders.append(found[0].op)
        for (place, _, _), vectors in zip(together, found):
            results[place] = vectors
    return results, finders


def _find_clipped(one: Sought, bags: _Bags) -> tf.Tensor:
    """Returns the vectors of bags whose rows have at most the greatest norm."""
    ids = one.ids
    keys, places = tf.unique(tf.reshape(ids, [-1]))
    rows, = find_rows([one.table.handle], [row_shape(one.table.variable)], [keys], [one.absent])
    places = tf.compat.v1.where(
        tf.equal(tf.reshape(ids, [-1]), tf.constant(PADDING_KEY, ids.dtype)),
        tf.fill(tf.shape(places), -1), places)
    inverse = tf.reshape(places, tf.shape(ids))
    return library().mx_rec_restore_pooled(_clipped(rows, one.pooling), inverse, *bags,
                                           name="pooled")


class Bagged(NamedTuple):
    """A pooled training lookup whose keys are resolved.

    Attributes:
        table: The table.
        ids: int32 or int64 ids.
        resolved: offsets (u) int64 and inverse int32, of the shape of the ids.
        absent: The rows of ids that are not admitted, None for zeros.
        pooling: How they are pooled.
        is_counted: Whether ids can be without a row that are not padding.
        scope: The name scope of its own ops.
    """

    table: Table
    ids: tf.Tensor
    resolved: Tuple[tf.Tensor, tf.Tensor]
    absent: Optional[tf.Tensor]
    pooling: Pooling
    is_counted: bool
    scope: str


def embed_pooled(lookups: Sequence[Bagged], is_grad: bool, with_rows: bool = False
                 ) -> Tuple[List[tf.Tensor], List[tf.Tensor]]:
    """Adds the ops of pooled training lookups behind those that resolve their keys.

    Lookups whose weights have gradients, or whose rows are scaled down, have ops of their own.

    Args:
        lookups: The lookups.
        is_grad: Whether the rows have gradients.
        with_rows: Whether gradients are to be taken of the distinct rows.

    Returns:
        For each lookup the vectors of its bags, and what gradients are taken of: these, or the
        distinct rows.
    """
    results = [None] * len(lookups)  # type: List[Any]
    distinct = [None] * len(lookups)  # type: List[Any]
    like = raw_tensor if is_grad else row_shape
    described = []  # type: List[_Bags]
    together = []  # type: List[int]
    for place, one in enumerate(lookups):
        with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(one.scope):
            offsets, inverse = one.resolved
            # Ids that a pipeline has resolved need not be computed in the step for this.
            bags = _bags(one.pooling, one.ids if one.is_counted else inverse, inverse)
            described.append(bags)
            if not (with_rows or one.pooling.has_weight_grad or one.pooling.max_norm is not None):
                together.append(place)
                continue
            # Also the weights' gradient reads these rows, which the step may have changed by then.
            rows, = read_rows([one.table.handle], [like(one.table.variable)], [offsets],
                              name="rows")
            used = rows if is_grad else tf.stop_gradient(rows)
            results[place] = library().mx_rec_restore_pooled(
                _clipped(used, one.pooling), inverse, *bags, name="pooled")
            distinct[place] = rows if with_rows else None
    if together:
        some = [lookups[place] for place in together]
        made = read_rows(
            [one.table.handle for one in some], [like(one.table.variable) for one in some],
            [one.resolved[0] for one in some], [one.resolved[1] for one in some],
            list(zip(*[described[place] for place in together])), name="pooled")
        for place, pooled in zip(together, made):
            results[place] = pooled if is_grad else tf.stop_gradient(pooled)
    for place, (one, bags) in enumerate(zip(lookups, described)):
        if one.absent is not None and one.is_counted:
            with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(one.scope):
                default = _default(one.ids, one.resolved[1], one.absent, bags)
                results[place] = tf.add(results[place], default, name="pooled_or_default")
    return results, [pooled if rows is None else rows for pooled, rows in zip(results, distinct)]


def pool_rows(rows: tf.Tensor, places: tf.Tensor, pooling: Pooling) -> tf.Tensor:
    """Adds the ops that pool rows which are there already.

    Args:
        rows: The rows of distinct keys, float32 (u, dim).
        places: For each id its place among them, int32; -1 for padding.
        pooling: How they are pooled.

    Returns:
        The vectors of the bags.
    """
    return library().mx_rec_restore_pooled(_clipped(rows, pooling), places,
                                           *_bags(pooling, places, places), name="pooled")


def may_be_trained(weights: tf.Tensor) -> bool:
    """Returns whether weights are computed from variables, or may be: inside of functions."""
    return any(
        op.graph.building_function and op.type == "Placeholder"
        or op.type in ("VarHandleOp", "MxRecTable")
        # pylint: disable=protected-access
        or any(output.dtype._is_ref_dtype for output in op.outputs)
        for op in upstream([weights]))


def _bags(pooling: Pooling, ids: tf.Tensor, shaped: tf.Tensor) -> _Bags:
    """Returns the bags of ids; `shaped` has their shape, and `ids` -1 where they are padding."""
    source = pooling.source
    count = None  # type: Optional[int]
    if isinstance(source, tf.SparseTensor):
        ends = library().mx_rec_sparse_bag_ends(source.indices, source.dense_shape, name="ends")
        if source.get_shape().rank is not None:
            count = source.get_shape().as_list()[0]
    elif isinstance(source, tf.RaggedTensor):
        ends = library().mx_rec_ragged_bag_ends(source.row_splits, name="ends")
        splits = source.row_splits.shape.as_list()[0]
        count = None if splits is None else splits - 1
    else:
        ends = library().mx_rec_bag_ends(shaped, name="ends")
    if source is not None:
        ends.set_shape([count])
    weights = divisors = tf.zeros([0], name="none")
    if pooling.weights is not None:
        weights = tf.cast(pooling.weights, tf.float32)
        if not pooling.has_weight_grad:
            weights = tf.stop_gradient(weights)
        weights = library().mx_rec_bag_weights(weights, shaped, name="weights")
    if pooling.combiner != "sum":
        divisors = library().mx_rec_bag_divisors(
            ids, ends, weights, combiner=COMBINERS[pooling.combiner], name="divisors")
    return _Bags(ends, weights, divisors)


def _clipped(rows: tf.Tensor, pooling: Pooling) -> tf.Tensor:
    """Returns rows with at most the greatest norm."""
    if pooling.max_norm is None:
        return rows
    return tf.clip_by_norm(rows, pooling.max_norm, axes=[1], name="clipped")


def _default(ids: tf.Tensor, inverse: tf.Tensor, absent: tf.Tensor, bags: _Bags) -> tf.Tensor:
    """Returns what the rows of ids that are not admitted add to the vectors of their bags."""
    padding = tf.constant(PADDING_KEY, ids.dtype)
    is_refused = tf.logical_and(tf.less(inverse, 0), tf.not_equal(ids, padding))
    places = tf.zeros_like(inverse)
    if absent.shape.as_list()[0] != 1:
        places = tf.reshape(tf.range(tf.size(inverse)), tf.shape(inverse))
    nowhere = tf.fill(tf.shape(inverse), -1)
    return library().mx_rec_restore_pooled(
        tf.stop_gradient(absent), tf.compat.v1.where(is_refused, places, nowhere), *bags,
        name="default")
