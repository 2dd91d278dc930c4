"""`sparse_lookup`: checks its arguments and adds the ops of one lookup to the graph."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.base.ranks import get_rank_size
from mx_rec.cluster.lookups import Counting, check_lookup, is_shared
from mx_rec.cluster.lookups import look_up as look_up_by_key
from mx_rec.constants.constants import (ASCEND_SPARSE_LOOKUP_ENTRANCE,
                                        ASCEND_SPARSE_LOOKUP_ID_OFFSET,
                                        ASCEND_SPARSE_LOOKUP_LOCAL_EMB, MAX_INT32,
                                        MULTI_LOOKUP_TIMES, PADDING_KEY)
from mx_rec.core.admission import (OFF, as_int64, check_thresholds, check_timestamp,
                                   count_and_admit, count_shared)
from mx_rec.core.asc.source import ids_of_spec, timestamp_of_spec
from mx_rec.core.bags import Pooling, embed_pooled, find_ids, pool_rows
from mx_rec.core.ids import as_ids, is_id_type
from mx_rec.core.table import Table, scope_of
from mx_rec.ops import library
from mx_rec.ops.lookups import mark_group, mark_movable, read_rows, resolve
from mx_rec.state.feature_spec import FeatureSpec, normal_thresholds
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import raw_tensor, row_shape
from mx_rec.tensorflow.names import require_graph_mode
from mx_rec.validator.validator import Bool, Int, Text, Type, checked, is_int

# Of what all forms of a lookup take.
LOOKUP_CHECKS = {
    "is_train": Bool(), "name": Text(1, 255, optional=True), "modify_graph": Bool(),
    "batch": Type(dict, list, tuple, optional=True),
    "access_and_evict_config": Type(dict, optional=True), "is_grad": Bool(),
    "serving_default_value": Type(tf.Tensor, tf.Variable, np.ndarray, optional=True)}

_CONFIG_KEYS = ("access_threshold", "eviction_threshold", "faae_coefficient")


class LookupRequest(NamedTuple):
    """One lookup, checked; the fields are those of `sparse_lookup`.

    Attributes:
        absent: Its default rows.
        feature: The unique name of its FeatureSpec, "" for tensor ids.
        default: The default rows as they were given, if they have an effect.
    """

    table: Table
    ids: tf.Tensor
    is_train: bool
    is_grad: bool
    limit: int
    absent: Optional[tf.Tensor]
    thresholds: Tuple[int, int]
    coefficient: int
    timestamp: Optional[tf.Tensor]
    pooling: Optional[Pooling]
    feature: str
    default: Any

    def form(self) -> Tuple[Any, ...]:
        """Returns what lookups have in common that can share requests."""
        return (self.is_train, self.is_grad, self.limit, self.thresholds, self.coefficient,
                None if self.timestamp is None else id(self.timestamp))

    def has_ids_of(self, other: "LookupRequest") -> bool:
        """Whether both look the same ids of one feature up in one mode."""
        return bool(self.feature) and self.feature == other.feature \
            and self.is_train == other.is_train and self.ids is other.ids

    def differences(self, other: "LookupRequest") -> List[str]:
        """Returns the arguments of sparse_lookup and FeatureSpec in which two lookups differ."""
        poolings = [one.pooling and one.pooling.identity() for one in (self, other)]
        return [name for name, differs in (
            ("is_grad", self.is_train and self.is_grad != other.is_grad),
            ("send_count", self.limit != other.limit),
            ("access_threshold", self.thresholds[0] != other.thresholds[0]),
            ("eviction_threshold", self.thresholds[1] != other.thresholds[1]),
            ("faae_coefficient", self.coefficient != other.coefficient),
            ("timestamp of the batch", self.timestamp is not other.timestamp),
            ("serving_default_value", not _are_one_value(self.default, other.default)),
            ("combiner, weights or max_norm", poolings[0] != poolings[1]),
        ) if differs]


class PlannedLookup(NamedTuple):
    """A lookup whose arguments were checked.

    Attributes:
        request: What its ops are made from.
        scope: The name scope of its ops.
        send_count: As given.
        earlier: The result of the equal lookup that was made earlier, or None.
    """

    request: LookupRequest
    scope: str
    send_count: Optional[int]
    earlier: Optional[tf.Tensor]


@checked(hashtable=Type(Table), **LOOKUP_CHECKS)
def sparse_lookup(hashtable: Table, ids: Union[FeatureSpec, tf.Tensor, List[FeatureSpec]],
                  send_count: Optional[int] = None, is_train: bool = True,
                  name: Optional[str] = None, modify_graph: bool = False,
                  batch: Union[None, Dict[Any, tf.Tensor], Tuple[Any, ...], List[Any]] = None,
                  access_and_evict_config: Optional[Dict[str, Optional[int]]] = None,
                  is_grad: bool = True, serving_default_value: Optional[tf.Tensor] = None,
                  **kwargs: Any) -> tf.Tensor:
    """Looks up the embeddings of a batch of ids.

    In training, an id that has no row gets one, at once or, with an access threshold, when it has
    occurred often enough; until then its embedding is zeros and its gradient is dropped. In
    evaluation and prediction nothing is counted and no row is ever made. Id -1 is padding: its
    embedding is zeros and its gradient is dropped.

    A FeatureSpec that is looked up again in the same mode and with the same arguments gives the
    same tensor; with others it gives a lookup of its own.

    Args:
        hashtable: A table made by `create_table` in the same graph.
        ids: tensor of any shape (with modify_graph=True), int32, int64 or of another integer or
            float type, which is cast to int64 (floats must be whole), or a FeatureSpec that an
            insert function of the same mode has read, or a list of one FeatureSpec.
        send_count: Most distinct keys that a batch has per rank, in [1, 2147483647]. Required in
            static shape (`init(use_dynamic=False)`), else without effect.
        is_train: Whether this is a lookup of the training pipeline.
        name: 1-255 characters; default `sparse_lookup_<n>`. Ops are in the scope
            `<table>//<name>`.
        modify_graph: Whether the lookup may be moved into the input pipeline; required for
            tensors. A graph that is not modified gives the same numbers, more slowly.
        batch: The element of the dataset that the ids come from: dict, tuple or list. Required
            with a FeatureSpec in dynamic shape.
        access_and_evict_config: For tensor ids: dict with `access_threshold`,
            `eviction_threshold` (each None or an int in [-1, 2147483647], see FeatureSpec) and
            `faae_coefficient` (an int in [1, 2147483647]), the factor of the ids' occurrences.
            Eviction needs a timestamp in the collection ASCEND_TIMESTAMP.
        is_grad: Whether the result has gradients.
        serving_default_value: In evaluation and prediction, and in training with an access
            threshold, the rows of ids that have none: float32, broadcastable to (number of ids,
            dim). None is zeros.
        **kwargs: Internal arguments of the original, ignored.

    Returns:
        float32 tensor of shape ids.shape + [dim].

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, ids are a SparseTensor,
            a RaggedTensor or Keras tensors, tensor ids come without modify_graph, the FeatureSpec
            belongs to another table, send_count is missing in static shape, thresholds of one
            table differ, a feature whose ids are counted for admission is looked up again with
            other arguments, an eviction threshold comes without an access threshold or with dynamic
            expansion, or serving_default_value does not fit.
        RuntimeError: If eager execution is on, the table has 128 lookups of this mode, a
            FeatureSpec comes without batch in dynamic shape or was not read by an insert function
            of this mode, or a training lookup is made after `start_asc_pipeline`.
        KeyError: If the batch has no entry for the FeatureSpec.
        EnvironmentError: If `init` was not called.
    """
    require_graph_mode("sparse_lookup", "table {!r}".format(hashtable.table_name))
    return add_lookup(plan_lookup(hashtable, ids, send_count, is_train, name, modify_graph, batch,
                                  access_and_evict_config, is_grad, serving_default_value,
                                  **kwargs), modify_graph)


def add_lookup(planned: PlannedLookup, modify_graph: bool, group: str = "") -> tf.Tensor:
    """Adds the ops of a lookup to the graph.

    Args:
        planned: The lookup.
        modify_graph: Whether it may move.
        group: The name that lookups have in common which are needed together; "" for none.

    Returns:
        A row for each id, or a vector for each bag of them.

    Raises:
        ValueError: If it is the second lookup that counts the same ids for admission.
    """
    earlier = planned.earlier
    if earlier is None:
        # One that was planned together with this one.
        earlier = _earlier_lookup(planned.request)
    if earlier is not None:
        return earlier
    with tf.compat.v1.name_scope(planned.scope):
        result = _build(planned.request, modify_graph, group)
    note_lookup(planned, result)
    return result


def plan_lookup(table: Table, ids: Any, send_count: Optional[int], is_train: bool,
                name: Optional[str], modify_graph: bool, batch: Any,
                access_and_evict_config: Any, is_grad: bool, serving_default_value: Any,
                pooling: Optional[Pooling] = None, **kwargs: Any) -> PlannedLookup:
    """Checks the arguments of a lookup, which are those of `sparse_lookup` but for `pooling`.

    It adds no op of a table.

    Returns:
        The lookup, for `add_lookup`.
    """
    config = Settings.get_instance()
    if kwargs:
        logger.debug("sparse_lookup ignores the arguments %s.", ", ".join(sorted(kwargs)))
    spec, tensor = _check_ids(ids, modify_graph)
    state = graph_state()
    if table.variable.graph is not tf.compat.v1.get_default_graph() \
            and state.tables.get(table.table_name) is not table:
        raise ValueError("the table {!r} belongs to another graph; create it in the graph that "
                         "looks it up.".format(table.table_name))
    if is_train and state.frozen:
        raise RuntimeError("Cannot build new sparse forward graph after emb cache management was "
                           "built. (table {!r})".format(table.table_name))
    limit = _check_send_count(table, send_count, config.use_static)
    if spec is not None:
        thresholds, coefficient = spec.thresholds, spec.faae_coefficient
        if access_and_evict_config is not None:
            logger.warning("'access_and_evict_config' is for tensor ids; that of the lookup by %r "
                           "is ignored.", spec.name)
    else:
        thresholds, coefficient = _check_config(access_and_evict_config)
    if is_shared(table):
        check_lookup(table, serving_default_value)
    check_thresholds(table, is_train, thresholds)
    is_counted = is_train and thresholds[0] >= 0
    timestamp, default = None, None  # type: Optional[tf.Tensor], Any
    if spec is not None:
        if spec.table_name != table.table_name:
            raise ValueError("the feature {!r} is for the table {!r}, not for {!r}".format(
                spec.name, spec.table_name, table.table_name))
        tensor = ids_of_spec(spec, is_train, batch, config.use_static)
        _check_tensor(tensor)
        if is_counted:
            timestamp = timestamp_of_spec(spec, batch, config.use_static)
        if is_counted or not is_train:
            default = _frozen(serving_default_value)
    else:
        config.modify_graph = True
    request = LookupRequest(table, tensor, is_train, is_grad, limit, None, thresholds, coefficient,
                            timestamp, pooling, "" if spec is None else spec.name, default)
    earlier = _earlier_lookup(request)
    if earlier is not None:
        return PlannedLookup(request, "", send_count, earlier)
    absent = _check_default(serving_default_value, table, tensor)
    expect_room(table, is_train, 1)
    if name is None:
        name = "sparse_lookup_{}".format(state.lookups)
    if timestamp is not None:
        check_timestamp(timestamp, "the timestamp of the batch")
    scope = "{}//{}".format(scope_of(table.table_name), name)
    return PlannedLookup(request._replace(absent=absent), scope, send_count, None)


def expect_room(table: Table, is_train: bool, count: int) -> None:
    """Checks that a table may have so many lookups more.

    Args:
        table: The table.
        is_train: Their mode.
        count: How many.

    Raises:
        RuntimeError: If it would have more than 128.
    """
    known = table.multi_lookup_times[is_train]
    if known + count > MULTI_LOOKUP_TIMES:
        raise RuntimeError("the table {!r} has {} lookups for {} already; {}more are not possible, "
                           "only {} in all.".format(
                               table.table_name, known, "training" if is_train else "evaluation",
                               "" if count == 1 else "{} ".format(count), MULTI_LOOKUP_TIMES))


def note_lookup(planned: PlannedLookup, result: tf.Tensor) -> None:
    """Counts a lookup whose ops were added.

    Args:
        planned: A lookup that was not made earlier.
        result: What it gives, which an equal lookup of a feature gives again.
    """
    request, state = planned.request, graph_state()
    table, is_train = request.table, request.is_train
    if not request.feature:
        state.movable += 1
    state.lookups += 1
    if is_train or request.thresholds != OFF:
        table.thresholds[is_train] = request.thresholds
    table.multi_lookup_times[is_train] += 1
    if is_train:
        table.is_grad = table.is_grad or request.is_grad
        if planned.send_count is not None:
            table.send_count = (table.send_count or 0) + int(planned.send_count)
    if request.feature:
        table.lookups.append((request, result))


def _earlier_lookup(request: LookupRequest) -> Optional[tf.Tensor]:
    """Returns the result of an equal lookup of a feature that can be used here, None without one.

    Raises:
        ValueError: If it would be the second lookup that counts the same ids for admission.
    """
    for other, result in request.table.lookups:
        if not request.has_ids_of(other) or not _is_usable(result):
            continue
        changed = request.differences(other)
        if not changed:
            return result
        if request.is_train and request.thresholds[0] >= 0:
            raise ValueError(
                "the feature {!r} of the table {!r} is looked up again with another {}. Its "
                "lookups count ids for admission, and a second one would count each of them "
                "twice. Give all lookups of the feature the same arguments (tf.stop_gradient gives "
                "rows without gradient).".format(
                    request.feature, request.table.table_name, " and ".join(map(repr, changed))))
    return None


def _frozen(value: Any) -> Any:
    """Returns a copy of an array, which its owner may change; anything else as it is."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _are_one_value(one: Any, other: Any) -> bool:
    """Whether two default values are one object, or arrays of the same bytes."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape \
            and one.tobytes() == other.tobytes()
    return one is other


def _is_usable(result: tf.Tensor) -> bool:
    """Whether the present graph, branch or loop is the one of `result`, or is inside of it."""
    # pylint: disable=protected-access
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not result.graph:
        graph = getattr(graph, "outer_graph", None)
    if graph is None:
        return False
    inside = result.op._get_control_flow_context()
    context = graph._get_control_flow_context()
    while context is not None and context is not inside:
        context = context.outer_context
    return context is inside


def ids_of_lookup(request: LookupRequest, modify_graph: bool) -> tf.Tensor:
    """Adds the ops that make the ids of a lookup int32 or int64, in the present name scope."""
    ids = as_ids(request.ids, request.table.table_name)
    if modify_graph:
        ids = tf.identity(ids, name="ids")
        tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_ENTRANCE, ids)
    return ids


def _build(request: LookupRequest, modify_graph: bool, group: str) -> tf.Tensor:
    """Adds the ops of one lookup, in the present name scope."""
    table = request.table
    ids = ids_of_lookup(request, modify_graph)
    with tf.device("/cpu:0"):
        if is_shared(table):
            return look_up_shared([request], [ids], modify_graph)[0]
        if not request.is_train:
            found = find_ids(table, ids, request.absent, request.pooling)
            mark_movable(found.op, modify_graph)
            mark_group(found.op, group)
            return tf.stop_gradient(found)
        if request.thresholds[0] >= 0:
            stamp = None if request.timestamp is None else as_int64(request.timestamp)
            offsets, inverse = count_and_admit(table, ids, request.thresholds,
                                               request.coefficient, stamp, request.limit)
            mark_movable(offsets.op.inputs[1].op, modify_graph)
        else:
            offsets, inverse = resolve([table.handle], [ids], limit=request.limit).of(0)
            mark_movable(offsets.op, modify_graph)
            mark_group(offsets.op, group)
        of_rows = Settings.get_instance().use_dynamic_expansion and request.is_grad
        like = (raw_tensor if request.is_grad else row_shape)(table.variable)
        if request.pooling is not None:
            result, looked_up = embed_pooled(
                table, ids, (offsets, inverse), request.absent, request.pooling,
                request.thresholds[0] >= 0, request.is_grad, of_rows, group)
        elif of_rows:
            looked_up, = read_rows([table.handle], [like], [offsets], name="rows")
            embedding = library().mx_rec_restore(looked_up, inverse, name="embedding")
            result = _with_default(request, ids, inverse, embedding)
        else:
            looked_up, = read_rows([table.handle], [like], [offsets], [inverse])
            mark_group(looked_up.op, group)
            result = _with_default(request, ids, inverse, looked_up)
        if not request.is_grad:
            return result if request.pooling is not None else tf.stop_gradient(result)
        # With dynamic expansion gradients are taken of the distinct rows, else of the variable;
        # then the collection holds what the lookup returns.
        tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, looked_up)
        tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET, offsets)
        return result


def look_up_shared(requests: Sequence[LookupRequest], ids: Sequence[tf.Tensor],
                   modify_graph: bool) -> List[tf.Tensor]:
    """Adds the ops of lookups of tables on parameter servers, in the present name scope.

    They share one request for each server.

    Args:
        requests: Lookups of one form.
        ids: For each of them its ids, int32 or int64.
        modify_graph: Whether they may move.

    Returns:
        For each of them a row for each id, or a vector for each bag.
    """
    first = requests[0]
    has_grad = first.is_train and first.is_grad
    tables = [request.table for request in requests]
    counting = None  # type: Optional[Counting]
    if first.is_train and first.thresholds[0] >= 0:
        stamp = None if first.timestamp is None else as_int64(first.timestamp)
        counting = count_shared(tables, first.thresholds, first.coefficient, stamp)
    found = look_up_by_key(tables, ids, first.is_train, first.is_grad, first.limit, modify_graph,
                           counting)
    if first.pooling is not None:
        results = [pool_rows(rows, places, request.pooling) for rows, places, request
                   in zip(found.distinct_rows(), found.places, requests)]
    else:
        results = found.embeddings()
    if not has_grad:
        return [tf.stop_gradient(one) for one in results]
    for one in results:
        tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, one)
    return results


def _with_default(request: LookupRequest, ids: tf.Tensor, inverse: tf.Tensor,
                  embedding: tf.Tensor) -> tf.Tensor:
    """Returns a training lookup's result with the default rows of ids that are not admitted."""
    if request.absent is None or request.thresholds[0] < 0:
        return embedding
    dim = request.table.emb_size
    padding = tf.constant(PADDING_KEY, ids.dtype)
    refused = tf.logical_and(tf.less(inverse, 0), tf.not_equal(ids, padding))
    rows = tf.reshape(embedding, [-1, dim])
    default = tf.broadcast_to(tf.stop_gradient(request.absent), tf.shape(rows))
    chosen = tf.compat.v1.where(tf.reshape(refused, [-1]), default, rows)
    result = tf.reshape(chosen, tf.shape(embedding), name="embedding_or_default")
    result.set_shape(embedding.shape)
    return result


def _check_ids(ids: Any,
               modify_graph: bool) -> Tuple[Optional[FeatureSpec], Optional[tf.Tensor]]:
    """Returns (spec, None) or (None, tensor)."""
    if isinstance(ids, (list, tuple)):
        if len(ids) != 1 or not isinstance(ids[0], FeatureSpec):
            raise ValueError("Invalid parameter type of para 'ids': a list should hold exactly one "
                             "FeatureSpec; make one sparse_lookup per feature.")
        ids = ids[0]
    if isinstance(ids, FeatureSpec):
        return ids, None
    if isinstance(ids, tf.SparseTensor):
        raise ValueError("Invalid parameter type of para 'ids': SparseTensor ids are not "
                         "supported. Make them dense, with -1 as padding: "
                         "tf.sparse.to_dense(ids, default_value=-1).")
    if isinstance(ids, tf.RaggedTensor):
        raise ValueError("Invalid parameter type of para 'ids': RaggedTensor ids are not "
                         "supported. Make them dense, with -1 as padding: ids.to_tensor(-1).")
    if hasattr(ids, "_keras_history"):
        raise ValueError("Invalid parameter type of para 'ids': {} is a Keras tensor, and Keras "
                         "models are not supported. Build the model with plain TensorFlow ops or "
                         "with an Estimator.".format(ids))
    if not isinstance(ids, tf.Tensor):
        raise ValueError("Invalid parameter type of para 'ids', not in ['FeatureSpec', 'Tensor']: "
                         "it is a {}".format(type(ids).__name__))
    if not modify_graph:
        raise ValueError("tensor 'ids' need modify_graph=True; without it 'ids' should be a "
                         "FeatureSpec.")
    _check_tensor(ids)
    return None, ids


def _check_tensor(ids: Any) -> None:
    if not isinstance(ids, tf.Tensor):
        raise ValueError("Invalid parameter type of para 'ids', not in ['Tensor']: the batch holds "
                         "a {}. Make sparse ids dense with tf.sparse.to_dense(ids, "
                         "default_value=-1).".format(type(ids).__name__))
    if not is_id_type(ids.dtype):
        raise ValueError("'ids' should be of an integer or float type, but {} is {}".format(
            ids.name, ids.dtype.name))


def _check_send_count(table: Table, send_count: Optional[int], use_static: bool) -> int:
    """Returns the most distinct keys that the lookup's batch may have, 0 for no limit."""
    if not use_static:
        Int(1, MAX_INT32, optional=True)("send_count", send_count)
        return 0
    if table.padding_keys_len is not None and table.padding_keys is not None:
        send_count = table.padding_keys_len
    if send_count is None or not is_int(send_count) or send_count <= 0:
        raise ValueError("Send count must be a integer which is larger than 0. (table {!r}, "
                         "send_count {!r})".format(table.table_name, send_count))
    send_count = Int(1, MAX_INT32)("send_count", send_count)
    limit = send_count * get_rank_size()
    if not table.is_hbm:
        for kind, size in (("device", table.slice_device_vocabulary_size),
                           ("host", table.slice_host_vocabulary_size)):
            if size < limit:
                raise ValueError(
                    "Given {}_vocabulary_size was too small for table {!r}: a rank holds {} rows, "
                    "but send_count times rank size is {}.".format(
                        kind, table.table_name, size, limit))
    return min(limit, MAX_INT32)


def _check_config(config: Optional[Dict[str, Optional[int]]]) -> Tuple[Tuple[int, int], int]:
    """Returns the (access, eviction) thresholds, -1 for none, and the coefficient."""
    config = config or {}
    unknown = [key for key in config if key not in _CONFIG_KEYS]
    if unknown:
        raise ValueError("Invalid option of 'access_and_evict_config', should be one of {}: "
                         "{!r}".format(list(_CONFIG_KEYS), unknown))
    access = config.get("access_threshold")
    eviction = config.get("eviction_threshold")
    Int(-1, MAX_INT32, optional=True)("access_threshold", access)
    Int(-1, MAX_INT32, optional=True)("eviction_threshold", eviction)
    coefficient = config.get("faae_coefficient")
    Int(1, MAX_INT32, optional=True)("faae_coefficient", coefficient)
    return normal_thresholds(access, eviction), 1 if coefficient is None else int(coefficient)


def _check_default(value: Any, table: Table, ids: tf.Tensor) -> Optional[tf.Tensor]:
    """Returns the default rows as float32 of shape (1, dim) or (n, dim), None for zeros."""
    if value is None:
        return None
    value = tf.convert_to_tensor(value)
    if value.dtype != tf.float32:
        raise ValueError("'serving_default_value' should be float32, but is {}".format(
            value.dtype.name))
    count = ids.shape.num_elements()
    wanted = tf.TensorShape([count, table.emb_size])
    try:
        together = tf.broadcast_static_shape(value.shape, wanted)
    except ValueError:
        together = None
    if together is None or not together.is_compatible_with(wanted):
        raise ValueError("'serving_default_value' has the shape {}, which cannot be broadcast to "
                         "[n, dim] = {} in the table {!r}".format(
                             value.shape, wanted, table.table_name))
    rows = value.shape[0] if value.shape.rank == 2 else None
    if value.shape.rank in (0, 1) or rows == 1:
        return tf.broadcast_to(value, [1, table.emb_size])
    if rows == count and value.shape[1] == table.emb_size:
        return value
    return tf.broadcast_to(value, tf.stack([tf.size(ids), table.emb_size]))
