"""Pooled lookups in TensorFlow's own ops: what takes the place of the plugin's ops of bags.

Sums have the bits of the plugin's: tf.math.unsorted_segment_sum adds the rows of a bag in the order
of its ids, beginning with 0, on CPUs.
"""

from typing import Iterator, List, NamedTuple, Optional, Tuple

import tensorflow as tf

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.export.plain_lookup import OpenTable, find_rows

# The attribute combiner of MxRecBagDivisors.
_ROOT = 2


class Given(NamedTuple):
    """What there is of the bags of a lookup beside their ends.

    Attributes:
        weights: Whether there are weights of ids.
        divisors: Whether there are divisors of bags.
        norm: Whether rows have a greatest norm.
    """

    weights: bool
    divisors: bool
    norm: bool

    def read(self, sources: Iterator[tf.Tensor]) -> List[Optional[tf.Tensor]]:
        """Takes these from sources; returns weights, divisors and norm, None for what is not."""
        return [next(sources) if is_there else None for is_there in self]


def dense_ends(sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes the ends of bags that lie along the last dimension of ids, the source."""
    del tables
    shape = tf.shape(sources[0], out_type=tf.int64)
    bags, length = shape[:-1], shape[-1]
    is_matrix = _check(tf.greater(tf.size(shape), 0), "ids must not be a scalar", [shape])
    with tf.control_dependencies([is_matrix]):
        number = tf.range(tf.constant(1, tf.int64), tf.reduce_prod(bags) + 1)
    return [tf.reshape(number * length, bags)]


def ragged_ends(sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes the ends of the bags of ragged ids from their row splits."""
    del tables
    splits = tf.reshape(tf.cast(sources[0], tf.int64), [-1])
    # Of no splits at all, the first is not 0 either.
    begins = _check(tf.reduce_all(tf.equal(tf.concat([splits, [1]], 0)[0], 0)),
                    "row_splits must begin with 0", [splits])
    with tf.control_dependencies([begins]):
        return [splits[1:]]


def sparse_ends(sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes the ends of the bags of sparse ids from their indices and their dense shape."""
    del tables
    indices, shape = sources
    has_rank = _check(tf.reduce_all(tf.equal([tf.size(shape), tf.shape(indices)[1]], 2)),
                      "sparse ids must have rank 2", [tf.shape(indices), shape])
    with tf.control_dependencies([has_rank]):
        rows, count = tf.identity(indices)[:, 0], tf.identity(shape)[0]
    # From 0 they ascend to the last bag.
    bounded = tf.concat([[tf.constant(0, tf.int64)], rows, [count - 1]], 0)
    in_order = tf.reduce_all(tf.less_equal(bounded[:-1], bounded[1:]))
    in_order = tf.logical_or(in_order, tf.equal(tf.size(rows) + tf.cast(count, tf.int32), 0))
    ascends = _check(in_order, "the rows of sparse ids must ascend and lie inside of their shape",
                     [rows, shape])
    with tf.control_dependencies([ascends]):
        rows = tf.identity(rows)
    return [tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, count))]


def sparse_bags(rows: List[int], combiners: List[int], leaves_out: bool, fills: bool,
                sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes bags of the sparse ids of several lookups.

    Its sources are the indices of each lookup, then the ids, then the dense shapes.

    Args:
        rows: What the ids of each are below.
        combiners: What the sums of each are divided by: 0 nothing, 1 the number of ids, 2 its root.
        leaves_out: Whether negative ids are left out; else they are refused.
        fills: Whether a bag without ids gets the id 0 and the divisor 0.
    """
    del tables
    count = len(rows)
    made = [_sparse_bags(sources[at::count], rows[at], combiners[at], leaves_out, fills)
            for at in range(count)]
    return [bags[output] for output in range(3) for bags in made]


def _sparse_bags(sources: List[tf.Tensor], rows: int, combiner: int, leaves_out: bool,
                 fills: bool) -> List[tf.Tensor]:
    """Returns the ids of bags in their order, where each bag ends, and divisors."""
    indices, ids, shape = sources
    bags, ids, number = indices[:, 0], tf.cast(ids, tf.int64), shape[0]
    fits = tf.logical_and(tf.greater_equal(bags, 0), tf.less(bags, number))
    is_row = tf.less(ids, rows)
    if not leaves_out:
        is_row = tf.logical_and(is_row, tf.greater_equal(ids, 0))
    checked = _check(tf.reduce_all(tf.logical_and(fits, is_row)),
                     "sparse ids must lie inside of their shape, and be in [0, {})".format(rows),
                     [bags, ids, shape])
    with tf.control_dependencies([checked]):
        is_kept = tf.greater_equal(ids, 0)
    bags, ids = tf.boolean_mask(bags, is_kept), tf.boolean_mask(ids, is_kept)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(bags), bags, number)
    sizes = counts
    if fills:
        empty = tf.compat.v1.where(tf.equal(counts, 0))[:, 0]
        bags, ids = tf.concat([bags, empty], 0), tf.concat([ids, tf.zeros_like(empty)], 0)
        sizes = tf.maximum(counts, 1)
    if combiner == 0:
        divisors_of_bags = tf.cast(tf.greater(counts, 0), tf.float32)
    elif combiner == _ROOT:
        divisors_of_bags = tf.cast(tf.sqrt(tf.cast(counts, tf.float64)), tf.float32)
    else:
        divisors_of_bags = tf.cast(counts, tf.float32)
    return [tf.gather(ids, tf.argsort(bags, stable=True)), tf.cumsum(sizes), divisors_of_bags]


def weights(sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes weights, the first source, that are checked against ids, the other."""
    del tables
    given, wanted = tf.shape(sources[0]), tf.shape(sources[1])
    # Tensors of another rank have another number of sizes.
    is_rank = tf.equal(tf.size(given), tf.size(wanted))
    has_rank = _check(is_rank, "weights must have the shape of the ids", [given, wanted])
    with tf.control_dependencies([has_rank]):
        is_shape = tf.reduce_all(tf.equal(tf.identity(given), tf.identity(wanted)))
    has_shape = _check(is_shape, "weights must have the shape of the ids", [given, wanted])
    with tf.control_dependencies([has_shape]):
        return [tf.identity(sources[0])]


def checked_ids(sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes ids, all sources but the last, that are checked each against a number of rows there."""
    del tables
    *members, rows = sources
    checked = []  # type: List[tf.Tensor]
    for ids, end in zip(members, tf.unstack(rows, len(members))):
        is_row = tf.reduce_all(tf.logical_and(tf.greater_equal(ids, 0),
                                              tf.less(tf.cast(ids, tf.int64), end)))
        is_checked = _check(is_row, "ids must be in [0, rows)", [ids, end])
        with tf.control_dependencies([is_checked]):
            checked.append(tf.identity(ids))
    return checked


def divisors(combiner: int, has_weights: bool, sources: List[tf.Tensor],
             tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes the divisors of bags, from ids, ends and, if there are any, weights.

    Args:
        combiner: 1: the sum of the weights; 2: the root of the sum of their squares.
        has_weights: Whether there are weights; else they are 1.
    """
    del tables
    ids, ends = tf.reshape(sources[0], [-1]), sources[1]
    of_ids = tf.reshape(sources[2], [-1]) if has_weights else tf.ones(tf.shape(ids))
    if combiner == _ROOT:
        of_ids *= of_ids
    counts = tf.not_equal(ids, tf.constant(PADDING_KEY, ids.dtype))
    total = _sum(of_ids, counts, ends)
    if combiner == _ROOT:
        # Roots of single precision are not rounded correctly by every version.
        total = tf.cast(tf.sqrt(tf.cast(total, tf.float64)), tf.float32)
    return [tf.reshape(total, tf.shape(ends))]


def find_pooled_many(given_of_each: List[Tuple[Given, bool]], sources: List[tf.Tensor],
                     tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes pooled lookups of several tables.

    Args:
        given_of_each: For each table what there is of its bags, and whether there are rows of
            absent ids. Its sources are ids, ends, and what there is of these; those of the tables
            follow one another.
    """
    given = iter(sources)
    results = []
    for table, (of_bags, has_absent) in zip(tables, given_of_each):
        ids, ends = next(given), next(given)
        described = of_bags.read(given)
        rows, counts = find_rows(ids, next(given) if has_absent else None, table)
        results.append(_pool(rows, counts, ends, described, table.plain.dim))
    return results


def restore_pooled(of_bags: Given, by_ids: bool, sources: List[tf.Tensor],
                   tables: List[OpenTable]) -> List[tf.Tensor]:
    """Pools rows of distinct keys.

    Its sources are the rows, the inverse, the ends, and what else there is of the bags.

    Args:
        of_bags: What there is.
        by_ids: Whether the second source are ids, whose inverse is to be computed.
    """
    del tables
    given = iter(sources)
    rows, inverse, ends = next(given), tf.reshape(next(given), [-1]), next(given)
    described = of_bags.read(given)
    if by_ids:
        inverse = _places(inverse)
    dim = tf.compat.dimension_value(rows.shape[1])
    dim = tf.shape(rows)[1] if dim is None else dim
    # No id may have a row.
    missing = tf.cast(tf.equal(tf.shape(rows)[0], 0), tf.int32)
    rows = tf.concat([rows, tf.zeros(tf.stack([missing, dim]))], 0)
    counts = tf.not_equal(inverse, -1)
    places = tf.compat.v1.where(counts, inverse, tf.zeros_like(inverse))
    return [_pool(tf.gather(rows, places), counts, ends, described, dim)]


def distinct_rows(sources: List[tf.Tensor], tables: List[OpenTable]) -> List[tf.Tensor]:
    """Makes the rows of distinct ids, in the order of their first occurrence, without padding."""
    ids = tf.reshape(sources[0], [-1])
    keys, _ = tf.unique(tf.boolean_mask(ids, _is_key(ids)))
    return [find_rows(keys, None, tables[0])[0]]


def _is_key(ids: tf.Tensor) -> tf.Tensor:
    return tf.not_equal(ids, tf.constant(PADDING_KEY, ids.dtype))


def _places(ids: tf.Tensor) -> tf.Tensor:
    """Returns the place of each id, a vector, among the rows of `distinct_rows`; -1 is padding."""
    is_key = _is_key(ids)
    _, places = tf.unique(tf.boolean_mask(ids, is_key))
    at = tf.compat.v1.where(is_key)
    return tf.scatter_nd(at, places + 1, tf.shape(ids, out_type=tf.int64)) - 1


def _pool(rows: tf.Tensor, counts: tf.Tensor, ends: tf.Tensor,
          described: List[Optional[tf.Tensor]], dim: int) -> tf.Tensor:
    """Returns the vectors of bags, float32 (shape of ends, dim).

    Args:
        rows: float32 (number of ids, dim).
        counts: bool (number of ids), whether the row of an id is added.
        ends: Where the bags end, int64.
        described: Weights, divisors and the greatest norm of a row, each None if there is none.
        dim: Floats of a row.
    """
    of_ids, of_bags, norm = described
    if norm is not None:
        rows = tf.clip_by_norm(rows, norm, axes=[1])
    if of_ids is not None:
        rows = rows * tf.reshape(of_ids, [-1, 1])
    total = _sum(rows, counts, ends)
    if of_bags is not None:
        total = tf.math.divide_no_nan(total, tf.reshape(of_bags, [-1, 1]))
    return tf.reshape(total, tf.concat([tf.shape(ends), [dim]], 0))


def _sum(values: tf.Tensor, counts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns sums over bags, of entries of `values` that count: one for each of `ends`."""
    ends = tf.reshape(ends, [-1])
    number = tf.size(counts, out_type=tf.int64)
    bounds = tf.concat([[tf.constant(0, tf.int64)], ends], 0)
    fits = tf.logical_and(tf.reduce_all(tf.less_equal(bounds[:-1], bounds[1:])),
                          tf.equal(bounds[-1], number))
    checked = _check(fits, "the ends of bags must ascend from 0 to the number of ids",
                     [ends, number])
    with tf.control_dependencies([checked]):
        at = tf.range(number)
    bags = tf.raw_ops.UpperBound(sorted_inputs=tf.expand_dims(ends, 0),
                                 values=tf.expand_dims(at, 0), out_type=tf.int32)[0]
    # Entries of a negative bag are left out.
    bags = tf.compat.v1.where(counts, bags, tf.fill(tf.shape(bags), -1))
    return tf.math.unsorted_segment_sum(values, bags, tf.size(ends))


def _check(condition: tf.Tensor, text: str, values: List[tf.Tensor]) -> tf.Operation:
    """Returns an op that fails if a condition does not hold."""
    return tf.raw_ops.Assert(condition=condition, data=[text] + values)
