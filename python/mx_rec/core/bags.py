"""The ops of pooled lookups: rows of the ids of a bag, added up without a tensor of all of them."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import tensorflow as tf

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.core.table import Table
from mx_rec.edits.upstream import upstream
from mx_rec.ops import library
from mx_rec.ops.lookups import find_rows, mark_group, read_rows
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
    norms: List[tf.Tensor]

    def arguments(self) -> Dict[str, Any]:
        """Returns what `find_rows` and `read_rows` take of them."""
        return {"bags": ([self.ends], [self.weights], [self.divisors]), "norms": self.norms}


def find_ids(table: Table, ids: tf.Tensor, absent: Optional[tf.Tensor],
             pooling: Optional[Pooling]) -> tf.Tensor:
    """Adds the ops of a lookup that makes no rows.

    Args:
        table: The table.
        ids: int32 or int64 ids.
        absent: float32 (k, dim), the rows of ids that have none; None for zeros.
        pooling: How the rows are pooled, None if they are not.

    Returns:
        A row for each id, or the vectors of the bags.
    """
    bags = {} if pooling is None else _bags(pooling, ids, ids).arguments()
    return find_rows([table.handle], [row_shape(table.variable)], [ids], [absent], **bags)[0]


def embed_pooled(table: Table, ids: tf.Tensor, resolved: Tuple[tf.Tensor, tf.Tensor],
                 absent: Optional[tf.Tensor], pooling: Pooling, is_counted: bool, is_grad: bool,
                 with_rows: bool, group: str) -> Tuple[tf.Tensor, tf.Tensor]:
    """Adds the ops of a pooled training lookup behind those that resolve its keys.

    Args:
        table: The table.
        ids: int32 or int64 ids.
        resolved: offsets (u) int64 and inverse int32, of the shape of the ids.
        absent: The rows of ids that are not admitted, None for zeros.
        pooling: How the rows are pooled.
        is_counted: Whether ids can be without a row that are not padding.
        is_grad: Whether the rows have gradients.
        with_rows: Whether gradients are to be taken of the distinct rows.
        group: As of `mark_group`.

    Returns:
        The vectors of the bags, and what gradients are taken of: these, or the distinct rows.
    """
    offsets, inverse = resolved
    like = (raw_tensor if is_grad else row_shape)(table.variable)
    # Ids that a pipeline has resolved need not be computed in the step for this.
    bags = _bags(pooling, ids if is_counted else inverse, inverse)
    rows = None  # type: Optional[tf.Tensor]
    if with_rows or pooling.has_weight_grad:
        # Also the weights' gradient reads these rows, which the step may have changed by then.
        rows, = read_rows([table.handle], [like], [offsets], name="rows")
        used = rows if is_grad else tf.stop_gradient(rows)
        pooled = library().mx_rec_restore_pooled(used, inverse, *bags, name="pooled")
    else:
        pooled, = read_rows([table.handle], [like], [offsets], [inverse], name="pooled",
                            **bags.arguments())
        mark_group(pooled.op, group)
        pooled = pooled if is_grad else tf.stop_gradient(pooled)
    if absent is not None and is_counted:
        pooled = tf.add(pooled, _default(ids, inverse, absent, bags), name="pooled_or_default")
    return pooled, rows if with_rows else pooled


def pool_rows(rows: tf.Tensor, places: tf.Tensor, pooling: Pooling) -> tf.Tensor:
    """Adds the ops that pool rows which are there already.

    Args:
        rows: The rows of distinct keys, float32 (u, dim).
        places: For each id its place among them, int32; -1 for padding.
        pooling: How they are pooled.

    Returns:
        The vectors of the bags.
    """
    return library().mx_rec_restore_pooled(rows, places, *_bags(pooling, places, places),
                                           name="pooled")


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
    return _Bags(ends, weights, divisors, norms_of(pooling.max_norm))


def norms_of(max_norm: Optional[float]) -> List[tf.Tensor]:
    """Returns what ops take as the greatest norm of the rows of a table: nothing for any norm."""
    return [] if max_norm is None else [tf.constant(max_norm, tf.float32, name="max_norm")]


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
