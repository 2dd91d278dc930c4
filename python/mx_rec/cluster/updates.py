"""Updates of tables on parameter servers.

    gradients by key --MxRecPackGradients--> one tensor for each server            on the worker
    request, gradients --MxRecPush--> rows changed                       on each parameter server

The request of a lookup is already where its rows were pulled: keys travel once.
"""

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.cluster.around import SPLIT_OP, pulls_of, requests_of
from mx_rec.cluster.lookups import BIRTHS, split_requests
from mx_rec.cluster.tables import Parts, encode, parts_of
from mx_rec.ops import library
from mx_rec.ops.copies import copies_of_variables
from mx_rec.ops.optimizers import PUSH, OptimizerStep
from mx_rec.state.table_variable import described_name
from mx_rec.tensorflow.names import tensor_util

_REDUCE, _JOIN = "MxRecReduce", "ConcatV2"

# (variable's tensor, keys, gradients by key) of one table; of one of this process its handle,
# offsets and gradients by offset.
Rows = Tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def by_table(every: Iterable[Rows]) -> List[List[Rows]]:
    """Groups gradients by table, so that every row gets one update."""
    groups = OrderedDict()  # type: Dict[str, List[Rows]]
    for rows in every:
        groups.setdefault(rows[0].name, []).append(rows)
    return list(groups.values())


def joined(group: Sequence[Rows]) -> Rows:
    """Joins the gradients of one table."""
    if len(group) == 1:
        return group[0]
    return (group[0][0], tf.concat([keys for _, keys, _ in group], 0),
            tf.concat([grad for _, _, grad in group], 0))


class _Request(NamedTuple):
    """Keys of several tables that are asked for together.

    Attributes:
        tables: The op of each member's table.
        by_server: The request for each parameter server.
        births: What each parameter server said of the rows that it was asked for; None where
            these are not the rows that the gradients are of.
        counts: For each member how many keys each part has.
        grads: For each member the gradients of its keys.
    """

    tables: List[tf.Operation]
    by_server: List[tf.Tensor]
    births: Optional[List[tf.Tensor]]
    counts: List[tf.Tensor]
    grads: List[tf.Tensor]


def push(step: OptimizerStep, tables: Sequence[List[Rows]],
         creates: bool = False) -> List[tf.Operation]:
    """Adds the ops that update the rows of tables on parameter servers, one for each of these.

    Args:
        step: The step of an optimizer.
        tables: For each table its gradients.
        creates: Whether keys without a row get one first.

    Returns:
        The ops.

    Raises:
        NotImplementedError: If the call stands in a branch, a loop or a function, or the tables are
            on different parameter servers.
    """
    graph = tf.compat.v1.get_default_graph()
    # pylint: disable=protected-access
    if graph.building_function or graph._get_control_flow_context() is not None:
        raise NotImplementedError(
            "the tables {}, which are on parameter servers, cannot be updated inside of a tf.cond, "
            "a loop or a tf.function yet: call apply_gradients outside of it.".format(
                ", ".join(repr(described_name(group[0][0].op)) for group in tables)))
    parts = parts_of(tables[0][0][0].op)
    devices = parts.servers
    for group in tables:
        if parts_of(group[0][0].op).servers != devices:
            raise NotImplementedError(
                "one optimizer cannot update tables on different parameter servers: {} and {}."
                .format(devices, parts_of(group[0][0].op).servers))
    requests = _requests([[one for rows in group for one in _apart(rows)] for group in tables],
                         parts)
    grads = [grad for request in requests for grad in request.grads]
    counts = [count for request in requests for count in request.counts]
    updates = []  # type: List[tf.Operation]
    hyper = _hyper(step.hyper, devices)
    for server, device in enumerate(devices):
        own = parts.attributes(server)
        packed = library().mx_rec_pack_gradients(grads, counts, part=own["part"],
                                                 count=own["count"], name="pack")
        with tf.device(device):
            configs = [tf.constant(encode([parts_of(op).config for op in request.tables]),
                                   name="configs") for request in requests]
            births = [tf.zeros([0], tf.int32, name="births") if request.births is None
                      else request.births[server] for request in requests]
            updates.append(library().mx_rec_push(
                configs, [request.by_server[server] for request in requests], births, packed,
                hyper[server], create=int(creates), optimizer=step.optimizer.place, name="push",
                **own).op)
    return updates


def _requests(tables: Sequence[List[Rows]], parts: Parts) -> List[_Request]:
    """Finds the requests of lookups whose gradients these are, and adds one for all others."""
    alone = set()  # type: Set[int]
    while True:
        by_split, others = _by_split(tables, parts, alone)
        unordered = {at for at, group in enumerate(tables)
                     if at not in alone and not _keeps_order(group, by_split)}
        if not unordered:
            break
        # Their lookups may be of groups, of which the rest is to leave with them.
        alone |= unordered
    requests = []  # type: List[_Request]
    for split, ordered in by_split.items():
        count = len(ordered)
        for _, keys, _ in ordered:
            # The parts get the keys by the requests: others that a step fed would be ignored.
            keys.graph.prevent_feeding(keys)
        pulls = pulls_of(split)
        births = None if pulls is None else [pull.outputs[BIRTHS] for pull in pulls]
        requests.append(_Request([rows[0].op for rows in ordered], requests_of(split), births,
                                 list(split.outputs[2 * count:3 * count]),
                                 [rows[2] for rows in ordered]))
    if others:
        requests.append(_new_request(others, parts))
    return requests


def _by_split(tables: Sequence[List[Rows]], parts: Parts, alone: Set[int]
              ) -> Tuple["OrderedDict[tf.Operation, List[Rows]]", List[List[Rows]]]:
    """Returns the gradients of all lookups of an op, for each such op, and those of no such op.

    Args:
        tables: For each table its gradients.
        parts: Where the tables are.
        alone: The places of tables none of whose gradients may be with their lookups.
    """
    found = OrderedDict()  # type: OrderedDict[tf.Operation, Dict[int, Rows]]
    for at, group in enumerate(tables):
        places = [_member_of(rows[1], parts.count) for rows in group]
        if at in alone or any(place is None for place in places) \
                or len(set(places)) < len(places):
            continue
        for rows, (split, member) in zip(group, places):
            found.setdefault(split, {})[member] = rows
    # A request is pushed whole or not at all.
    by_split = OrderedDict((split, [members[member] for member in sorted(members)])
                           for split, members in found.items()
                           if len(members) == split.get_attr("N"))
    taken = {id(rows) for ordered in by_split.values() for rows in ordered}
    left = [[rows for rows in group if id(rows) not in taken] for group in tables]
    return by_split, [group for group in left if group]


def _keeps_order(group: List[Rows],
                 by_split: "OrderedDict[tf.Operation, List[Rows]]") -> bool:
    """Whether the sums of a table keep the order of its gradients, on which their bits depend.

    Requests are summed one after the other, the new one at the end.
    """
    if len(group) < 3:
        return True
    order = [id(rows) for ordered in by_split.values() for rows in ordered]
    places = {rows: at for at, rows in enumerate(order)}
    found = [places.get(id(rows), len(order)) for rows in group]
    return found == sorted(found)


def _apart(rows: Rows) -> List[Rows]:
    """The gradients that TensorFlow has joined, of a table that is looked up several times."""
    table, keys, grad = rows
    if keys.op.type != _JOIN or grad.op.type != _JOIN \
            or len(keys.op.inputs) != len(grad.op.inputs):
        return [rows]
    # Keys of one place and gradients of another would not be rows of each other.
    pairs = list(zip(keys.op.inputs[:-1], grad.op.inputs[:-1]))
    if any(not _is_sum_by(key, one) for key, one in pairs):
        return [rows]
    graph = tf.compat.v1.get_default_graph()
    for tensor in (keys, grad):
        # A value for it would not be read.
        graph.prevent_feeding(tensor)
    return [(table, key, one) for key, one in pairs]


def _is_sum_by(keys: tf.Tensor, grad: tf.Tensor) -> bool:
    """Whether a gradient is summed by keys, as the gradient of a lookup is."""
    while grad.op.type == "Identity":
        grad = grad.op.inputs[0]
    return grad.op.type == _REDUCE and grad.op.inputs[2] is keys


def _member_of(keys: tf.Tensor, parts: int) -> Optional[Tuple[tf.Operation, int]]:
    """Returns the op that made the keys of a lookup, and their place; None if they are others."""
    op = keys.op
    if op.type != SPLIT_OP or keys.value_index >= op.get_attr("N") \
            or op.get_attr("parts") != parts:
        return None
    return op, keys.value_index


def _new_request(groups: Sequence[List[Rows]], parts: Parts) -> _Request:
    """Adds a request for gradients that are not those of whole lookups."""
    tables = [joined(group) for group in by_table(rows for group in groups for rows in group)]
    keys, places, counts, requests, sizes, _ = library().mx_rec_distinct_split(
        [rows[1] for rows in tables], parts=parts.count, together=parts.together, name="split")
    grads = [library().mx_rec_reduce(rows[2], place, key)
             for rows, place, key in zip(tables, places, keys)]
    by_server = split_requests(requests, sizes, len(parts.servers))
    return _Request([rows[0].op for rows in tables], by_server, None, list(counts), grads)


def _hyper(tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> List[tf.Tensor]:
    """Returns the optimizer's numbers as a vector, for each parameter server.

    Numbers that never change are not transferred, others once to each server.

    Args:
        tensors: The numbers.
        devices: The parameter servers.
    """
    values = [tensor_util.constant_value(tensor) for tensor in tensors]
    changing = [tensor for tensor, value in zip(tensors, values) if value is None]
    if not changing:
        found = []  # type: List[tf.Tensor]
        for device in devices:
            with tf.device(device):
                found.append(tf.constant(np.array(values, np.float32), name="hyper"))
        return found
    # Where the last of them is: the powers of LazyAdam's decays are on one server.
    with tf.device(changing[-1].device):
        hyper = tf.stack([tensor if value is None else tf.constant(value, tf.float32)
                          for tensor, value in zip(tensors, values)], name="hyper")
        return [copies_of_variables(hyper)] * len(devices)


def readers(updates: Sequence[tf.Operation], device: str) -> List[tf.Operation]:
    """Returns what has read a variable of an optimizer when updates have read their numbers.

    A push on another parameter server is not waited for: what made its numbers is, which is on the
    server of the variable.

    Args:
        updates: Ops that update variables and tables.
        device: That of the variable.

    Returns:
        Ops; the variable may change when they have run.
    """
    def task(name: str) -> Any:
        spec = tf.DeviceSpec.from_string(name or "")
        return spec.job, spec.task

    found = [op.inputs[-1].op if op.type == PUSH and task(op.device) != task(device)
             else op for op in updates]
    return list(OrderedDict.fromkeys(found))
