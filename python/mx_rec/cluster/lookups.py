"""Lookups of tables on parameter servers.

    ids --MxRecDistinctSplit--> keys, places, counts, a request for each part      on the worker
    request --MxRecPull--> rows                                          on each parameter server
    rows of all parts, places --MxRecStitch--> embeddings                          on the worker
"""

from typing import Any, List, Sequence

import tensorflow as tf

from mx_rec.cluster.tables import encode, parts_of
from mx_rec.core.table_variable import CLUSTER_TABLE_OP, raw_tensor, row_shape
from mx_rec.ops import library

# Attribute of an op of type MxRecDistinctSplit: the request of each part.
REQUESTS = "_mx_rec_requests"


def is_shared(table: Any) -> bool:
    """Returns whether a table of mx_rec.core.table is on parameter servers."""
    return bool(table.variable.op.type == CLUSTER_TABLE_OP)


def check_lookup(table: Any, is_spec: bool, thresholds: Sequence[int], absent: Any, pooling: Any,
                 ) -> None:
    """Refuses what lookups of tables on parameter servers cannot do.

    Args:
        table: The table.
        is_spec: Whether the lookup is by FeatureSpec.
        thresholds: (access, eviction), -1 for none.
        absent: serving_default_value.
        pooling: How the rows are pooled, None if they are not.

    Raises:
        NotImplementedError: If one of these is asked for, or the lookup stands in a branch, a loop
            or a function.
    """
    graph = tf.compat.v1.get_default_graph()
    inside = graph.building_function \
        or graph._get_control_flow_context() is not None  # pylint: disable=protected-access
    refused = [what for what, is_there in (
        ("a FeatureSpec", is_spec),
        ("admission and eviction (access_threshold, eviction_threshold)",
         tuple(thresholds) != (-1, -1)),
        ("serving_default_value", absent is not None),
        ("pooling", pooling is not None),
        ("a place inside of a tf.cond, a loop, a dataset's function or a tf.function", inside),
    ) if is_there]
    if refused:
        raise NotImplementedError(
            "the table {!r} is on parameter servers, and a lookup of it cannot have {} yet. Look "
            "up tensor ids outside of branches and functions, without these.".format(
                table.table_name, " and ".join(refused)))


def look_up(tables: Sequence[Any], ids: Sequence[tf.Tensor], is_train: bool, is_grad: bool,
            limit: int) -> List[tf.Tensor]:
    """Adds the ops of lookups that share one request for each parameter server.

    Args:
        tables: The tables, all on the same parameter servers.
        ids: For each table its ids, int32 or int64.
        is_train: Whether unknown keys get rows.
        is_grad: Whether the results have gradients.
        limit: Most distinct keys of each lookup, 0 for any number.

    Returns:
        For each table float32 of shape ids.shape + [dim].
    """
    ops = [table.variable.op for table in tables]
    found = [parts_of(op) for op in ops]
    devices = found[0].devices
    if len({value.dtype for value in ids}) > 1:
        ids = [tf.cast(value, tf.int64) for value in ids]
    keys, places, counts, requests, sizes = library().mx_rec_distinct_split(
        list(ids), parts=len(devices), limit=limit, name="split")
    by_part = split_requests(requests, sizes, len(devices))
    setattr(requests.op, REQUESTS, by_part)
    rows = []  # type: List[tf.Tensor]
    for part, device in enumerate(devices):
        with tf.device(device):
            configs = tf.constant(encode([one.configs[part] for one in found]), name="configs")
            rows.append(library().mx_rec_pull(
                configs, by_part[part], part=part, parts=len(devices), create=int(is_train),
                name="pull"))
    has_gradient = is_train and is_grad
    like = raw_tensor if has_gradient else row_shape
    results = library().mx_rec_stitch(
        [like(table.variable) for table in tables], keys, counts, places,
        rows[0] if len(rows) == 1 else tf.concat(rows, 0, name="rows"), name="embedding")
    return list(results) if has_gradient else [tf.stop_gradient(one) for one in results]


def split_requests(requests: tf.Tensor, sizes: tf.Tensor, parts: int) -> List[tf.Tensor]:
    """Returns the request of each part."""
    return [requests] if parts == 1 else tf.split(requests, sizes, num=parts, name="requests")
