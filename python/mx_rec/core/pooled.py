"""Pooled lookups: `sparse_lookup_pooled`, of one table and of many, and TensorFlow's forms."""

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from mx_rec.base.log import warn_once
from mx_rec.core.bags import COMBINERS, Pooling, may_be_trained
from mx_rec.core.grouped import add_group, check_group
from mx_rec.core.lookup import LOOKUP_CHECKS, PlannedLookup, add_lookup, plan_lookup
from mx_rec.core.table import Table
from mx_rec.state.feature_spec import FeatureSpec
from mx_rec.state.graph_state import graph_state
from mx_rec.validator.validator import Bool, Option, Type, checked

_Ids = Union[FeatureSpec, tf.Tensor, tf.SparseTensor, tf.RaggedTensor, List[FeatureSpec]]
_Weights = Union[None, tf.Tensor, tf.SparseTensor, tf.RaggedTensor]


@checked(hashtable=Type(Table), combiner=Option(sorted(COMBINERS)), **LOOKUP_CHECKS,
         is_weight_grad=Bool(True))
def sparse_lookup_pooled(hashtable: Table, ids: _Ids, combiner: str = "sum",
                         weights: _Weights = None, send_count: Optional[int] = None,
                         is_train: bool = True, name: Optional[str] = None,
                         modify_graph: bool = True,
                         batch: Union[None, Dict[Any, tf.Tensor], Tuple[Any, ...],
                                      List[Any]] = None,
                         access_and_evict_config: Optional[Dict[str, Optional[int]]] = None,
                         is_grad: bool = True,
                         serving_default_value: Optional[tf.Tensor] = None,
                         max_norm: Optional[float] = None,
                         is_weight_grad: Optional[bool] = None) -> tf.Tensor:
    """Looks up a batch of bags of ids and adds up the embeddings of every bag.

    What `sparse_lookup` and a sum give, without a tensor of an embedding for each id, in the
    forward pass and in the gradient. The rows of a bag are added in the order of its ids: results
    do not depend on threads, and sums of dense ids have the bits of tf.reduce_sum.

    Id -1 is padding: it adds nothing and does not count in means. An id that has no row, because it
    is not admitted or this is no training, counts, and adds zeros or `serving_default_value`. A bag
    without ids gives zeros, and so does one whose divisor (see `combiner`) is 0.

    Args:
        hashtable: A table made by `create_table` in the same graph.
        ids: What `sparse_lookup` takes, of rank 1 or more: a bag is the last dimension. Or a
            SparseTensor of rank 2 in the order of its rows, or a RaggedTensor of rank 2: a bag is a
            row.
        combiner: "sum"; "mean", the sum divided by the sum of the weights; or "sqrtn", the sum
            divided by the root of the sum of the squares of the weights. Without weights these are
            the number of ids and its root.
        weights: What each embedding is multiplied with, of a float type: a tensor of the shape of
            dense ids, or for sparse and ragged ids one of their kind with as many values, or a
            vector of as many. None is 1 for all.
        send_count: As of `sparse_lookup`.
        is_train: As of `sparse_lookup`.
        name: As of `sparse_lookup`.
        modify_graph: As of `sparse_lookup`.
        batch: As of `sparse_lookup`.
        access_and_evict_config: As of `sparse_lookup`.
        is_grad: Whether the rows have gradients.
        serving_default_value: As of `sparse_lookup`; weights and divisors apply to it.
        max_norm: If not None, every row whose l2 norm is greater is scaled down to it before it is
            added, as tf.clip_by_norm does to rounding; not together with
            `serving_default_value`.
        is_weight_grad: Whether the weights have gradients, which takes a tensor of the distinct
            rows. None is True in training for weights that are computed from variables.

    Returns:
        float32 tensor of shape (bags.., dim): ids.shape[:-1] + [dim] for dense ids, else (rows,
        dim).

    Raises:
        ValueError: As `sparse_lookup`, and if ids are a scalar or of another rank, or weights,
            combiner or max_norm do not fit.
        RuntimeError, KeyError, EnvironmentError: As `sparse_lookup`.
    """
    looked_up, pooling = _pooling(hashtable, ids, combiner, weights, is_train,
                                  serving_default_value, max_norm, is_weight_grad)
    return add_lookup(plan_lookup(hashtable, looked_up, send_count, is_train, name, modify_graph,
                                  batch, access_and_evict_config, is_grad, serving_default_value,
                                  pooling), modify_graph)


@checked(hashtables=Type(list, tuple), ids=Type(list, tuple), **LOOKUP_CHECKS,
         combiner=Type(str, list, tuple), weights=Type(list, tuple, optional=True),
         is_weight_grad=Bool(True))
def sparse_lookup_pooled_many(hashtables: Sequence[Table], ids: Sequence[_Ids],
                              combiner: Union[str, Sequence[str]] = "sum",
                              weights: Optional[Sequence[_Weights]] = None,
                              send_count: Optional[int] = None, is_train: bool = True,
                              name: Optional[str] = None, modify_graph: bool = True,
                              batch: Union[None, Dict[Any, tf.Tensor], Tuple[Any, ...],
                                           List[Any]] = None,
                              access_and_evict_config: Optional[Dict[str, Optional[int]]] = None,
                              is_grad: bool = True,
                              serving_default_value: Optional[tf.Tensor] = None,
                              max_norm: Optional[float] = None,
                              is_weight_grad: Optional[bool] = None) -> List[tf.Tensor]:
    """Looks up batches of bags, each in a table of its own, and adds up the rows of every bag.

    The ops are those of one `sparse_lookup_pooled` for each pair of a table and ids. Before the
    first run of the graph they come to share ops for all tables: in training one that resolves the
    keys, one that reads the rows and one that updates them, in evaluation one that finds and reads
    rows (docs/graph-modification.md). If a batch fails in them, as one that exceeds the rows of its
    table, no table gets a row. The reading of rows whose weights have gradients has ops of its own.

    Args:
        hashtables: The tables; one may come several times.
        ids: For each table the ids, as for `sparse_lookup_pooled`.
        combiner: As there, for each of the lookups, or a list with one for each.
        weights: For each table the weights of its ids, or None; None for no weights at all.
        send_count: As of `sparse_lookup`, for each of the lookups.
        is_train: As of `sparse_lookup`.
        name: Name of the group, 1-255 characters.
        modify_graph: As of `sparse_lookup`.
        batch: As of `sparse_lookup`.
        access_and_evict_config: As of `sparse_lookup`, for each of the lookups.
        is_grad: Whether the rows have gradients.
        serving_default_value: As of `sparse_lookup`, for each of the lookups.
        max_norm: As of `sparse_lookup_pooled`, for each of the lookups.
        is_weight_grad: As of `sparse_lookup_pooled`, for each of the lookups.

    Returns:
        For each table a float32 tensor of shape (bags.., dim).

    Raises:
        ValueError: If there are no tables, or not as many ids, combiners or weights; and where
            `sparse_lookup_pooled` raises it.
        RuntimeError, KeyError, EnvironmentError: As `sparse_lookup`.
    """
    tables = list(hashtables)
    check_group(tables, ids)
    combiners = [combiner] * len(tables) if isinstance(combiner, str) else list(combiner)
    given = [None] * len(tables) if weights is None else list(weights)
    for what, values in (("combiner", combiners), ("weights", given)):
        if len(values) != len(tables):
            raise ValueError("{!r} should have one entry for each of the {} tables, but has "
                             "{}".format(what, len(tables), len(values)))
    for one in combiners:
        Option(sorted(COMBINERS))("combiner", one)
    first = graph_state().lookups
    planned = []  # type: List[PlannedLookup]
    for at, (table, value) in enumerate(zip(tables, ids)):
        looked_up, pooling = _pooling(table, value, combiners[at], given[at], is_train,
                                      serving_default_value, max_norm, is_weight_grad)
        planned.append(plan_lookup(table, looked_up, send_count, is_train,
                                   "sparse_lookup_{}".format(first + at), modify_graph, batch,
                                   access_and_evict_config, is_grad, serving_default_value,
                                   pooling))
    return add_group(planned, modify_graph, name or "sparse_lookup_pooled_many")


def _pooling(table: Table, ids: _Ids, combiner: str, weights: _Weights, is_train: bool,
             default: Optional[tf.Tensor], max_norm: Optional[float],
             is_weight_grad: Optional[bool]) -> Tuple[Any, Pooling]:
    """Checks what a pooled lookup has beside a plain one.

    Returns:
        The ids as a plain lookup takes them, and how their rows are pooled.
    """
    if max_norm is not None:
        max_norm = _check_norm(max_norm, default)
    source = None  # type: Union[None, tf.SparseTensor, tf.RaggedTensor]
    looked_up = ids
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        _check_rank(ids, table)
        source, looked_up = ids, ids.values
    elif isinstance(ids, tf.Tensor) and ids.shape.rank == 0:
        raise ValueError("'ids' of a pooled lookup of the table {!r} should have a dimension that "
                         "is pooled, but are a scalar".format(table.table_name))
    has_weight_grad = False
    if weights is not None:
        weights = _check_weights(weights, ids, table)
        has_weight_grad = is_train and (may_be_trained(weights) if is_weight_grad is None
                                        else is_weight_grad)
    return looked_up, Pooling(combiner, source, weights, has_weight_grad, max_norm)


def embedding_lookup_sparse(params: Table, sp_ids: tf.SparseTensor,
                            sp_weights: Optional[tf.SparseTensor],
                            partition_strategy: str = "mod", name: Optional[str] = None,
                            combiner: Optional[str] = None, max_norm: Optional[float] = None,
                            **lookup: Any) -> tf.Tensor:
    """Does for a table what tf.nn.embedding_lookup_sparse does for a variable.

    Other than there, rows without ids give zeros, also the last ones, and rows whose weights add up
    to 0 do so too.

    Args:
        params: A table made by `create_table`.
        sp_ids: SparseTensor (n, m) of ids in the order of its rows.
        sp_weights: SparseTensor of a float type with the indices of `sp_ids`, or None for 1.
        partition_strategy: Without effect.
        name: As of `sparse_lookup`.
        combiner: "sum", "mean" or "sqrtn"; None is "mean", with a warning.
        max_norm: The greatest l2 norm of a row, greater ones are scaled down; None for any.
        **lookup: Further arguments of `sparse_lookup_pooled`, is_train for one.

    Returns:
        float32 (n, dim).

    Raises:
        TypeError: If `sp_ids` is no SparseTensor, or `sp_weights` neither that nor None.
        ValueError: As `sparse_lookup_pooled`.
        RuntimeError, KeyError, EnvironmentError: As `sparse_lookup`.
    """
    del partition_strategy
    if combiner is None:
        warn_once("the combiner of embedding_lookup_sparse is not given: it is \"mean\".")
        combiner = "mean"
    _check_sparse("sp_ids", sp_ids, "sp_weights", sp_weights)
    return sparse_lookup_pooled(params, sp_ids, combiner, sp_weights, name=name, max_norm=max_norm,
                                **lookup)


def safe_embedding_lookup_sparse(embedding_weights: Table, sparse_ids: tf.SparseTensor,
                                 sparse_weights: Optional[tf.SparseTensor] = None,
                                 combiner: str = "mean", default_id: Optional[int] = None,
                                 name: Optional[str] = None, partition_strategy: str = "div",
                                 max_norm: Optional[float] = None, **lookup: Any) -> tf.Tensor:
    """Does for a table what tf.nn.safe_embedding_lookup_sparse does for a variable.

    Ids below 0 are left out, and ids whose weight is not above 0 if the combiner is "mean" or
    "sqrtn": keys that are hashes should be made positive first. A row without ids gives the
    embedding of `default_id`, or zeros.

    Args:
        embedding_weights: A table made by `create_table`.
        sparse_ids: SparseTensor (.., n, m) of ids in the order of its rows, of rank 2 or more;
            int32 or int64.
        sparse_weights: SparseTensor of a float type with the indices of `sparse_ids`, or None for
            1.
        combiner: "sum", "mean" or "sqrtn".
        default_id: The id of rows without ids, 0 or more; None for zeros.
        name: As of `sparse_lookup`.
        partition_strategy: Without effect.
        max_norm: The greatest l2 norm of a row, greater ones are scaled down; None for any.
        **lookup: Further arguments of `sparse_lookup_pooled`, is_train for one.

    Returns:
        float32 (.., n, dim).

    Raises:
        TypeError: If `sparse_ids` is no SparseTensor, or `sparse_weights` neither that nor None.
        ValueError: As `sparse_lookup_pooled`.
        RuntimeError, KeyError, EnvironmentError: As `sparse_lookup`.
    """
    del partition_strategy
    _check_sparse("sparse_ids", sparse_ids, "sparse_weights", sparse_weights)
    rank = sparse_ids.get_shape().rank
    if rank is None or rank < 2:
        raise ValueError("'sparse_ids' should have a static rank of 2 or more, but have the shape "
                         "{}".format(sparse_ids.get_shape()))
    with tf.name_scope(name or "safe_embedding_lookup_sparse"):
        leading = sparse_ids.dense_shape[:-1]
        if rank > 2:
            sparse_ids = tf.sparse.reshape(
                sparse_ids, tf.stack([tf.reduce_prod(leading), sparse_ids.dense_shape[-1]]))
        weights = None
        if sparse_weights is not None:
            weights = tf.SparseTensor(sparse_ids.indices, sparse_weights.values,
                                      sparse_ids.dense_shape)
        is_kept = tf.greater_equal(sparse_ids.values, 0)
        if weights is not None and combiner != "sum":
            is_kept = tf.logical_and(is_kept, tf.greater(weights.values, 0))
        ids = tf.sparse.retain(sparse_ids, is_kept)
        weights = None if weights is None else tf.sparse.retain(weights, is_kept)
        if default_id is not None:
            ids, _ = tf.sparse.fill_empty_rows(ids, tf.cast(default_id, ids.dtype))
            if weights is not None:
                weights, _ = tf.sparse.fill_empty_rows(weights, tf.ones([], weights.dtype))
    pooled = sparse_lookup_pooled(embedding_weights, ids, combiner, weights, name=name,
                                  max_norm=max_norm, **lookup)
    if rank > 2:
        dim = tf.constant([embedding_weights.emb_size], leading.dtype)
        pooled = tf.reshape(pooled, tf.concat([leading, dim], 0))
    return pooled


def _check_norm(max_norm: Any, default: Any) -> float:
    """Returns the greatest norm as a number above 0."""
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float, np.number)) \
            or not 0 < float(max_norm) < float("inf"):
        raise ValueError("'max_norm' should be None or a number above 0, but is {!r}".format(
            max_norm))
    if default is not None:
        raise ValueError("'max_norm' and 'serving_default_value' do not go together")
    return float(max_norm)


def _check_rank(ids: Union[tf.SparseTensor, tf.RaggedTensor], table: Table) -> None:
    """Refuses sparse and ragged ids that are not a matrix."""
    if isinstance(ids, tf.RaggedTensor):
        if ids.ragged_rank != 1 or ids.values.shape.rank != 1:
            raise ValueError("RaggedTensor ids of the table {!r} should have rank 2, but their "
                             "shape is {}".format(table.table_name, ids.shape))
    elif ids.get_shape().rank not in (None, 2):
        raise ValueError("SparseTensor ids of the table {!r} should have rank 2, but their shape "
                         "is {}. safe_embedding_lookup_sparse takes more.".format(
                             table.table_name, ids.get_shape()))


def _check_weights(weights: Any, ids: Any, table: Table) -> tf.Tensor:
    """Returns weights as a tensor of a float type, of the shape of the ids that are looked up."""
    if isinstance(weights, (tf.SparseTensor, tf.RaggedTensor)):
        if not isinstance(ids, type(weights)):
            raise ValueError("'weights' of the table {!r} are a {}, but 'ids' are a {}".format(
                table.table_name, type(weights).__name__, type(ids).__name__))
        weights = weights.values
    weights = tf.convert_to_tensor(weights)
    if not weights.dtype.is_floating:
        raise ValueError("'weights' of the table {!r} should be of a float type, but are {}".format(
            table.table_name, weights.dtype.name))
    looked_up = ids.values if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)) else ids
    if isinstance(looked_up, tf.Tensor) and not weights.shape.is_compatible_with(looked_up.shape):
        raise ValueError("'weights' of the table {!r} have the shape {}, but the ids have "
                         "{}".format(table.table_name, weights.shape, looked_up.shape))
    return weights


def _check_sparse(ids_name: str, ids: Any, weights_name: str, weights: Any) -> None:
    """Refuses what TensorFlow's functions refuse."""
    if not isinstance(ids, tf.SparseTensor):
        raise TypeError("'{}' should be a SparseTensor, but is {!r}".format(ids_name, ids))
    if weights is not None and not isinstance(weights, tf.SparseTensor):
        raise TypeError("'{}' should be None or a SparseTensor, but is {!r}".format(
            weights_name, weights))
