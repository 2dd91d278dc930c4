"""Lookups of tables on parameter servers.

    ids --MxRecDistinctSplit--> keys, places, counts, a request for each server    on the worker
    request --MxRecPartObserve--> counts, with an access threshold   on each parameter server
    request --MxRecPull--> rows                                          on each parameter server
    rows of all parts, places --MxRecStitch--> embeddings                          on the worker
"""

from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.cluster.tables import encode, parts_of
from mx_rec.ops import library
from mx_rec.ops.lookups import mark_movable
from mx_rec.state.table_variable import CLUSTER_TABLE_OP, raw_tensor, row_shape

# Value of the attribute create of MxRecPull: keys that were counted often enough get rows.
ADMITTED = 2

# Keys without a row get none, and read as what one would start with.
INITIAL = 3

# As what rows are sent, by the number that MxRecStitch has for it.
_SENT_AS = ("float32", "bfloat16", "float16")

# The outputs of MxRecPull, and where its input is that says what is asked for.
ROWS, BIRTHS = 0, 1
REQUEST = 1


def is_shared(table: Any) -> bool:
    """Returns whether a table of mx_rec.core.table is on parameter servers."""
    return bool(table.variable.op.type == CLUSTER_TABLE_OP)


def check_lookup(table: Any, absent: Any) -> None:
    """Refuses what lookups of tables on parameter servers cannot do.

    Args:
        table: The table.
        absent: serving_default_value.

    Raises:
        NotImplementedError: If it is given, or the lookup stands in a branch, a loop or a function.
    """
    graph = tf.compat.v1.get_default_graph()
    inside = graph.building_function \
        or graph._get_control_flow_context() is not None  # pylint: disable=protected-access
    refused = [what for what, is_there in (
        ("serving_default_value", absent is not None),
        ("a place inside of a tf.cond, a loop, a dataset's function or a tf.function", inside),
    ) if is_there]
    if refused:
        raise NotImplementedError(
            "the table {!r} is on parameter servers, and a lookup of it cannot have {} yet. Look "
            "ids up outside of branches and functions, without these.".format(
                table.table_name, " and ".join(refused)))


class Counting(NamedTuple):
    """How the keys of a lookup are counted for admission.

    Attributes:
        thresholds: (access, eviction), -1 for no eviction.
        coefficient: Factor of the occurrences.
        timestamp: The batch's time, int64.
        note: Called with the op that counts and the one that admits, for each parameter server.
    """

    thresholds: Tuple[int, int]
    coefficient: int
    timestamp: tf.Tensor
    note: Callable[[tf.Operation, tf.Operation], None]


class Found(NamedTuple):
    """What lookups give that share one request for each parameter server.

    Attributes:
        variables: What gradients are taken of, for each lookup.
        keys: The distinct keys of each lookup.
        places: For each id its place among these.
        counts: How many of the keys each part has.
        rows: The rows of all lookups, as the parameter servers sent them.
        row_dtypes: As what each lookup's were sent (`sent_as`); none if all are float32.
    """

    variables: List[tf.Tensor]
    keys: List[tf.Tensor]
    places: List[tf.Tensor]
    counts: List[tf.Tensor]
    rows: tf.Tensor
    row_dtypes: List[int]

    def embeddings(self) -> List[tf.Tensor]:
        """Adds the op that gives a row for each id, float32 of shape ids.shape + [dim]."""
        return self._spread(self.places)

    def distinct_rows(self) -> List[tf.Tensor]:
        """Adds the op that gives a row for each distinct key, float32 (u, dim)."""
        return self._spread([tf.range(tf.size(keys)) for keys in self.keys])

    def _spread(self, places: List[tf.Tensor]) -> List[tf.Tensor]:
        return list(library().mx_rec_stitch(
            self.variables, self.keys, self.counts, places, row_dtypes_input(self.row_dtypes),
            self.rows, name="embedding"))


def look_up(tables: Sequence[Any], ids: Sequence[tf.Tensor], is_train: bool, is_grad: bool,
            limit: int, movable: bool, counting: Optional[Counting] = None,
            is_initial: bool = False) -> Found:
    """Adds the ops of lookups that share one request for each parameter server.

    Args:
        tables: The tables, all on the same parameter servers.
        ids: For each table its ids, int32 or int64.
        is_train: Whether unknown keys get rows.
        is_grad: Whether the rows have gradients.
        limit: Most distinct keys of each lookup, 0 for any number. Not with `counting`, where it
            would be for admitted keys, which the worker does not know.
        movable: Whether graph modification may move the work on ids.
        counting: How keys are counted before they get rows; None: each gets one.
        is_initial: Whether keys without a row read as what one would start with, in the place of
            zeros; not in training.

    Returns:
        The rows, and what is known of them.
    """
    parts = parts_of(tables[0].variable.op)
    if len({value.dtype for value in ids}) > 1:
        ids = [tf.cast(value, tf.int64) for value in ids]
    split = library().mx_rec_distinct_split(
        list(ids), parts=parts.count, together=parts.together,
        limit=limit if counting is None else 0, counted=int(counting is not None), name="split")
    servers = len(parts.servers)
    requests = split_requests(split.requests, split.sizes, servers)
    mark_movable(split.requests.op, movable)
    times = [split.times]
    if counting is not None and servers > 1:
        # A request is a count for each table and part besides its keys.
        times = tf.split(split.times, split.sizes - len(tables) * parts.together, num=servers,
                         name="times")
    create = INITIAL if is_initial else int(is_train)
    rows = [_pull(tables, server, requests[server], create, counting,
                  times[server] if counting is not None else None).outputs[ROWS]
            for server in range(servers)]
    like = raw_tensor if is_train and is_grad else row_shape
    return Found([like(table.variable) for table in tables], list(split.keys), list(split.places),
                 list(split.counts), rows[0] if servers == 1 else tf.concat(rows, 0, name="rows"),
                 sent_as(table.variable.op for table in tables))


def sent_as(tables: Iterable[tf.Operation]) -> List[int]:
    """Returns as what the rows of tables are sent, by the numbers that MxRecStitch has.

    Args:
        tables: Their ops.

    Returns:
        None for tables that all have float32: they need not be packed.
    """
    stored = [(parts_of(table).config.get("row_storage") or {}).get("dtype", _SENT_AS[0])
              for table in tables]
    return [_SENT_AS.index(one) for one in stored] if any(
        one != _SENT_AS[0] for one in stored) else []


def row_dtypes_input(row_dtypes: Sequence[int]) -> List[tf.Tensor]:
    """Returns the input of MxRecStitch for what `sent_as` gave."""
    return [tf.constant(row_dtypes, tf.int32, name="row_dtypes")] if row_dtypes else []


def words_of(dim: int, row_dtype: int) -> int:
    """Returns how many words a row takes that is sent as a type.

    Args:
        dim: Its values.
        row_dtype: One of `sent_as`.
    """
    return dim if row_dtype == 0 else -(-dim // 2)


def _pull(tables: Sequence[Any], server: int, request: tf.Tensor, create: int,
          counting: Optional[Counting], times: Optional[tf.Tensor]) -> tf.Operation:
    """Adds the ops of one parameter server."""
    found = [parts_of(table.variable.op) for table in tables]
    attributes = dict(found[0].attributes(server),
                      packed=int(bool(sent_as(table.variable.op for table in tables))))
    with tf.device(found[0].servers[server]):
        configs = tf.constant(encode([one.config for one in found]), name="configs")
        if counting is None:
            return library().mx_rec_pull(configs, request, create=create, name="pull",
                                         **attributes).rows.op
        weight = tf.constant(counting.coefficient, tf.int32, name="coefficient")
        observed = library().mx_rec_part_observe(
            configs, request, times, weight, counting.timestamp,
            access_threshold=counting.thresholds[0], eviction_threshold=counting.thresholds[1],
            name="observe", **found[0].attributes(server))
        with tf.control_dependencies([observed]):
            pull = library().mx_rec_pull(configs, request, create=ADMITTED, name="pull",
                                         **attributes).rows.op
    counting.note(observed.op, pull)
    return pull


def split_requests(requests: tf.Tensor, sizes: tf.Tensor, servers: int) -> List[tf.Tensor]:
    """Returns the request for each parameter server."""
    return [requests] if servers == 1 else tf.split(requests, sizes, num=servers, name="requests")
