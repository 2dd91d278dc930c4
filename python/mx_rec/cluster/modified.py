"""Lookups of tables on parameter servers while a graph is modified.

The ids are made distinct and split in the input pipeline, which needs no table. In the step,
lookups of one pipeline whose tables one op updates share one pull for each parameter server, and
those of evaluation another one. So a run that needs one of them pulls the rows of all.
"""

import json
from collections import Counter, OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2

from mx_rec.cluster.ahead import Next, pull_ahead
from mx_rec.cluster.lookups import MOVABLE_ATTRIBUTE, REQUESTS, split_requests
from mx_rec.cluster.tables import encode
from mx_rec.core.table_variable import CLUSTER_TABLE_OP
from mx_rec.graph.edits import in_place_of, replace_each
from mx_rec.graph.plan import SPLIT
from mx_rec.ops import library
from mx_rec.tensorflow.names import tensor_util
from mx_rec.util.global_env_conf import groups_tables

SPLIT_OP = "MxRecDistinctSplit"
_PULL, _STITCH, _PUSH, _PACK = "MxRecPull", "MxRecStitch", "MxRecPush", "MxRecPackGradients"

# What the names of the lookups of one op end with in the graph that is planned.
_MEMBER = "/lookup_"


class Moving(NamedTuple):
    """Lookups whose ids are made distinct by one op of the pipeline.

    Attributes:
        splits: The ops of the step that do so without it.
        ids: Names of the tensors of their ids, one behind the other.
        is_ahead: Whether their rows are pulled one step before they are needed.
    """

    splits: List[tf.Operation]
    ids: List[str]
    is_ahead: bool = False


def apart(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """Returns a GraphDef for a plan, in which each of several lookups has a node of its own.

    Args:
        graph_def: A GraphDef, which stays as it is.
    """
    many = [node for node in graph_def.node if node.op == SPLIT_OP
            and node.attr[MOVABLE_ATTRIBUTE].b and node.attr["N"].i > 1]
    if not many:
        return graph_def
    result = graph_pb2.GraphDef()
    result.CopyFrom(graph_def)
    for node in result.node:
        if node.op == SPLIT_OP and node.attr["N"].i > 1:
            node.attr[MOVABLE_ATTRIBUTE].b = False
    for node in many:
        data = [source for source in node.input if not source.startswith("^")]
        waits = [source for source in node.input if source.startswith("^")]
        for at, source in enumerate(data):
            one = result.node.add()
            one.CopyFrom(node)
            one.name = node.name + _MEMBER + str(at)
            one.attr["N"].i = 1
            del one.input[:]
            one.input.extend([source] + waits)
    return result


def split_of(graph: tf.Graph, node: str) -> Tuple[tf.Operation, int]:
    """Returns the op of a planned lookup, and which of its lookups it is."""
    nodes = graph._nodes_by_name  # pylint: disable=protected-access
    if node in nodes:
        return graph.get_operation_by_name(node), 0
    name, _, at = node.rpartition(_MEMBER)
    return graph.get_operation_by_name(name), int(at)


def is_training(split: tf.Operation) -> bool:
    """Returns whether a lookup may make rows."""
    return any(pull.get_attr("create") != 0 for pull in _pulls(split) or [])


def table_of(graph: tf.Graph, node: str) -> str:
    """Returns the name of the table of a planned lookup, or its op's where that is not known."""
    split, at = split_of(graph, node)
    pulls = _pulls(split)
    return str(_configs(pulls[0].inputs[0])[at]["name"]) if pulls else split.name


def moving(graph: tf.Graph, lookups: Sequence[Any],
           is_ahead: bool) -> Tuple[List[Moving], List[Any]]:
    """Finds what one pipeline makes distinct.

    Args:
        graph: The graph.
        lookups: Planned lookups of tables on parameter servers that its iterator feeds.
        is_ahead: Whether rows of training with gradients are pulled ahead.

    Returns:
        The work of the pipeline, and the lookups of ops of which others stay in the step.
    """
    by_split = OrderedDict()  # type: Dict[tf.Operation, Dict[int, Any]]
    for lookup in lookups:
        split, at = split_of(graph, lookup.node)
        by_split.setdefault(split, {})[at] = lookup
    together = OrderedDict()  # type: Dict[Any, List[tf.Operation]]
    left = []  # type: List[Any]
    for split, members in by_split.items():
        if len(members) < split.get_attr("N"):
            left.extend(members.values())
            continue
        together.setdefault(_key(split), []).append(split)
    found = []  # type: List[Moving]
    for splits in (run for key in together.values() for run in _in_order_of_push(key)):
        ids = [by_split[split][at].ids for split in splits for at in range(split.get_attr("N"))]
        found.append(Moving(splits, ids, is_ahead and _updates(splits[0])))
    return found, left


def check_ahead(graph: tf.Graph, lookups: Sequence[Any]) -> None:
    """Refuses to pull rows ahead where a lookup of training cannot.

    Lookups of training without gradients pull in their step, as do those of evaluation.

    Args:
        graph: The graph.
        lookups: All planned lookups.

    Raises:
        NotImplementedError: If a lookup with gradients cannot; the text names it and says why.
    """
    moves = {}  # type: Dict[tf.Operation, Optional[str]]
    for lookup in lookups:
        if lookup.kind == SPLIT:
            split, _ = split_of(graph, lookup.node)
            moves[split] = moves.get(split) or (None if lookup.moves else lookup.reason)
    for split in graph.get_operations():
        if split.type != SPLIT_OP or not _has_gradients(split):
            continue
        pulls = _pulls(split) or []
        if split not in moves:
            reason = "it is not by a tensor with modify_graph=True, or was modified before"
        elif moves[split]:
            reason = "a lookup that it shares requests with stays in the step: " \
                + str(moves[split])
        elif split.get_attr("counted"):
            reason = "its keys are counted for admission in the order of the steps"
        elif split.control_inputs or any(pull.control_inputs for pull in pulls):
            reason = "it has control dependencies"
        elif not _updates(split):
            reason = "its gradients are not pushed in the same step by the keys of the lookup, " \
                "as with SyncReplicasOptimizer or without an update"
        else:
            continue
        names = [repr(str(one["name"])) for one in _configs(pulls[0].inputs[0])]
        raise NotImplementedError(
            "pull_ahead: the rows of the lookup {!r} of {} cannot be pulled before their step: {}. "
            "Leave pull_ahead off, or change the lookup.".format(
                split.name, ", ".join(names), reason))


def prepare(work: Moving, ids: Dict[str, tf.Tensor]) -> List[tf.Tensor]:
    """Adds the op of the pipeline, in its function.

    Args:
        work: What it is for.
        ids: The ids by name.

    Returns:
        All its outputs.
    """
    values = [ids[name] for name in work.ids]
    if len({value.dtype for value in values}) > 1:
        values = [tf.cast(value, tf.int64) for value in values]
    split = work.splits[0]
    made = library().mx_rec_distinct_split(
        values, name="split", **{name: split.get_attr(name)
                                 for name in ("parts", "together", "limit", "counted")})
    outputs = list(made.requests.op.outputs)
    return outputs + [_floats(work, made.counts)] if work.is_ahead else outputs


def _floats(work: Moving, counts: Sequence[tf.Tensor]) -> tf.Tensor:
    """How many floats the rows of a request take, for each parameter server: int64 (servers)."""
    dims = [int(tensor.shape[1]) for split in work.splits
            for tensor in list(_stitch(split).inputs)[:split.get_attr("N")]]
    by_part = tf.add_n([count * dim for count, dim in zip(counts, dims)])
    return tf.reduce_sum(tf.reshape(by_part, [-1, work.splits[0].get_attr("together")]), 1)


def outputs_of(work: Moving) -> int:
    """Returns how many outputs `prepare` gives."""
    return 3 * len(work.ids) + 3 + int(work.is_ahead)


def take_over(graph: tf.Graph, work: Moving, values: Sequence[tf.Tensor],
              following: Sequence[tf.Tensor]) -> List[tf.Operation]:
    """Makes lookups in the step take what the pipeline gives.

    Args:
        graph: The graph.
        work: The lookups.
        values: What `prepare` gave, as it leaves the iterator.
        following: The requests of the next element, their sizes and the tag of the element, where
            rows are pulled ahead; nothing elsewhere.

    Returns:
        Ops that the iterator is to wait for when it starts.
    """
    if not work.is_ahead:
        _take_over(graph, work, values)
        return []
    pulls, stitch = _take_over(graph, work, values[:-1])
    return [pull_ahead(graph, stitch, pulls, Next(values[-1], *following))]


def no_request(work: Moving) -> List[np.ndarray]:
    """Returns requests for no key, and their sizes, as `prepare` gives them."""
    split = work.splits[0]
    parts, together = split.get_attr("parts"), split.get_attr("together")
    return [np.zeros(parts * len(work.ids), np.int64),
            np.full(parts // together, together * len(work.ids), np.int64)]


def _take_over(graph: tf.Graph, work: Moving, values: Sequence[tf.Tensor]
               ) -> Tuple[List[tf.Operation], Any]:
    """The same without what comes next; returns the pulls and the stitch that are there now."""
    for split in work.splits:
        split._set_attr(  # pylint: disable=protected-access
            MOVABLE_ATTRIBUTE, attr_value_pb2.AttrValue(b=False))
    if len(work.splits) == 1:
        one, pulled = _stitch(work.splits[0]), _pulls(work.splits[0]) or []
        replace_each(work.splits[0], values)
        return pulled, one
    count = len(work.ids)
    requests = _new_requests(graph, work, values)
    stitches = [_stitch(split) for split in work.splits]
    pulls = [_pulls(split) for split in work.splits]
    pushes = [_pushes(split) for split in work.splits]
    old = [_requests(split) for split in work.splits]
    joined = _Joined(requests, [
        sum((_configs(one[server].inputs[0]) for one in pulls), [])
        for server in range(len(requests))])
    for server, group in enumerate(zip(*pushes)):
        for push in OrderedDict.fromkeys(one for several in group for one in several):
            _push_together(graph, push, [one[server] for one in old], joined, server)
    start = 0
    for split in work.splits:
        own = split.get_attr("N")
        for place in range(3):
            for at in range(own):
                replace_output(split.outputs[place * own + at], values[place * count + start + at])
        start += own
    rows = []  # type: List[tf.Tensor]
    for server, request in enumerate(requests):
        first = pulls[0][server]
        with in_place_of(graph, first):
            configs = tf.constant(encode(joined.configs[server]), name="configs")
            rows.append(library().mx_rec_pull(configs, request, name="pull", **{
                name: first.get_attr(name) for name in ("part", "parts", "count", "create")}))
    with in_place_of(graph, stitches[0]):
        lists = [[], [], [], []]  # type: List[List[tf.Tensor]]
        for stitch in stitches:
            own = stitch.get_attr("N")
            for place, part in enumerate(lists):
                part.extend(list(stitch.inputs)[place * own:(place + 1) * own])
        made = library().mx_rec_stitch(
            *lists, rows[0] if len(rows) == 1 else tf.concat(rows, 0, name="rows"),
            name="embedding")
    start = 0
    for stitch in stitches:
        own = stitch.get_attr("N")
        replace_each(stitch, made[start:start + own])
        start += own
    return [one.op for one in rows], made[0].op


def replace_output(old: tf.Tensor, value: tf.Tensor) -> None:
    """Makes all ops that read an output read another tensor."""
    for consumer in old.consumers():
        for position, tensor in enumerate(consumer.inputs):
            if tensor is old:
                consumer._update_input(position, value)  # pylint: disable=protected-access


class _Joined(NamedTuple):
    """The requests of lookups that were joined, and the configurations of each."""

    requests: List[tf.Tensor]
    configs: List[List[Any]]


def _new_requests(graph: tf.Graph, work: Moving, values: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """The request for each parameter server out of what the pipeline gives."""
    split = work.splits[0]
    count = 3 * len(work.ids)
    with in_place_of(graph, split):
        return split_requests(values[count], values[count + 1],
                              split.get_attr("parts") // split.get_attr("together"))


def _push_together(graph: tf.Graph, push: tf.Operation, old: List[tf.Tensor], joined: _Joined,
                   server: int) -> None:
    """Makes an update take one request instead of several."""
    several = push.get_attr("N")
    inputs = list(push.inputs)
    configs, requests = inputs[:several], inputs[several:2 * several]
    places = [at for value in old for at, request in enumerate(requests) if request is value]
    others = [at for at in range(several) if at not in places]
    pack = inputs[2 * several].op
    # The gradients of each request.
    grads, counts = [], []  # type: List[List[tf.Tensor]], List[List[tf.Tensor]]
    start, members = 0, pack.get_attr("N")
    for config in configs:
        end = start + len(_configs(config))
        grads.append(list(pack.inputs)[start:end])
        counts.append(list(pack.inputs)[members + start:members + end])
        start = end
    # Where the first of them was.
    before = [at for at in others if at < places[0]]
    order = before + places + others[len(before):]
    with in_place_of(graph, pack):
        packed = library().mx_rec_pack_gradients(
            sum((grads[at] for at in order), []), sum((counts[at] for at in order), []),
            part=pack.get_attr("part"), count=pack.get_attr("count"), name="pack")
    with in_place_of(graph, push):
        config = tf.constant(encode(joined.configs[server]), name="configs")
        attributes = {name: value for name, value in push.node_def.attr.items()
                      if not name.startswith("_")}
        attributes["N"] = attr_value_pb2.AttrValue(i=1 + len(others))
        first, last = others[:len(before)], others[len(before):]
        made = graph.create_op(
            push.type, [configs[at] for at in first] + [config] + [configs[at] for at in last]
            + [requests[at] for at in first] + [joined.requests[server]]
            + [requests[at] for at in last] + [packed] + inputs[2 * several + 1:],
            dtypes=[tf.int64], name="push", attrs=attributes)
    replace_each(push, made.outputs)


def _in_order_of_push(splits: List[tf.Operation]) -> List[List[tf.Operation]]:
    """Those that can share requests, in the order in which their update takes their gradients.

    Sums of three and more gradients of a table have other bits in another order: what would pass
    another gradient of its table does not share.
    """
    pushes = _pushes(splits[0])
    if len(splits) < 2 or not pushes or not pushes[0]:
        return [splits]
    inputs = list(pushes[0][0].inputs)
    count = pushes[0][0].get_attr("N")
    tables = [[one["name"] for one in _configs(tensor)] for tensor in inputs[:count]]
    several = Counter(name for names in tables for name in names)
    summed = {name for name, times in several.items() if times > 2}
    by_place = {}  # type: Dict[int, tf.Operation]
    for split in splits:
        request = _requests(split)[0]
        by_place[[tensor is request for tensor in inputs[count:2 * count]].index(True)] = split
    runs = []  # type: List[List[tf.Operation]]
    passed = set()  # type: Set[str]
    for place, names in enumerate(tables):
        if place not in by_place:
            passed.update(names)
        elif runs and not passed.intersection(names).intersection(summed):
            runs[-1].append(by_place[place])
        else:
            runs.append([by_place[place]])
            passed = set()
    return runs


def _key(split: tf.Operation) -> Any:
    """What is equal for lookups that can share requests; of its own for all others."""
    pulls, stitch = _pulls(split), _stitch(split)
    free = pulls is not None and stitch is not None and groups_tables() \
        and not split.control_inputs and not split.get_attr("counted") \
        and not stitch.control_inputs and not any(pull.control_inputs for pull in pulls)
    if not free:
        return split.name
    pushes = _pushes(split)
    if any(len(group) > 1 or group and push_reads(group[0], split) != 1 for group in pushes):
        return split.name
    if is_training(split) and not any(pushes):
        # A run need not need it with any other, and what is pulled may get a row.
        return split.name
    return (tuple(split.get_attr(name) for name in ("parts", "together", "limit")),
            tuple(pull.get_attr("create") for pull in pulls), tuple(pull.device for pull in pulls),
            split.device, tuple(one.name for group in pushes for one in group))


def push_reads(push: tf.Operation, split: tf.Operation) -> int:
    """Returns how many of the requests of an update are those of one op."""
    return sum(any(tensor is request for request in _requests(split)) for tensor in push.inputs)


def _requests(split: tf.Operation) -> List[tf.Tensor]:
    """The request of a split for each parameter server."""
    known = getattr(split, REQUESTS, None)
    if known is not None:
        return known
    requests = split.outputs[3 * split.get_attr("N")]
    for consumer in requests.consumers():
        if consumer.type == "SplitV":
            return list(consumer.outputs)
    return [requests]


def _pulls(split: tf.Operation) -> Optional[List[tf.Operation]]:
    """The pull from each parameter server; None if there is not one from each."""
    found = [[op for op in request.consumers() if op.type == _PULL] for request in _requests(split)]
    return [ops[0] for ops in found] if all(len(ops) == 1 for ops in found) else None


def _pushes(split: tf.Operation) -> List[List[tf.Operation]]:
    """The updates that take its requests, for each parameter server."""
    return [list(OrderedDict.fromkeys(op for op in request.consumers()
                                      if op.type.startswith(_PUSH)))
            for request in _requests(split)]


def _has_gradients(split: tf.Operation) -> bool:
    """Whether a lookup is one of training whose rows have gradients."""
    stitch = _stitch(split)
    return is_training(split) and stitch is not None \
        and any(tensor.op.type == CLUSTER_TABLE_OP for tensor in stitch.inputs)


def _updates(split: tf.Operation) -> bool:
    """Whether a lookup has gradients, and each parameter server is pushed those of its request."""
    return _has_gradients(split) and all(_pushes(split))


def _stitch(split: tf.Operation) -> Optional[tf.Operation]:
    """The op that spreads the rows; None if there is not exactly one."""
    found = list(OrderedDict.fromkeys(op for op in split.outputs[0].consumers()
                                      if op.type == _STITCH))
    return found[0] if len(found) == 1 else None


def _configs(tensor: tf.Tensor) -> List[Any]:
    """The configurations in an input of a pull or push."""
    value = tensor_util.constant_value(tensor)  # type: Optional[np.ndarray]
    if value is None:
        raise ValueError("the configurations {!r} are not constant".format(tensor.name))
    return list(json.loads(value.tobytes().decode("utf-8")))
