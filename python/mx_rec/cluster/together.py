"""Lookups of several ops that come to share one request for each parameter server.

The rule tf_ops/src/graph/requests.rs says which ones.

    ids, ids --one MxRecDistinctSplit--> request --MxRecPull--> rows --one MxRecStitch--> embeddings
    gradients --MxRecPackGradients--> the same request --MxRecPush--> rows changed
"""

import itertools
from collections import OrderedDict
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.cluster.around import (configs_of, pulls_of, pushes_of, requests_of, row_dtypes_of,
                                   stitch_of)
from mx_rec.cluster.lookups import BIRTHS, ROWS, row_dtypes_input, split_requests
from mx_rec.cluster.tables import encode
from mx_rec.edits.replacing import in_place_of, replace_each, replace_reads
from mx_rec.ops import library
from mx_rec.ops.lookups import mark_movable, may_move
from mx_rec.ops.optimizers import PUSH
from mx_rec.ops.shapes import lists_of


def share_requests(graph: tf.Graph, names: Sequence[str]) -> None:
    """Makes lookups of the step share a request for each parameter server, as the plan says.

    Args:
        graph: A graph; no session has run these lookups.
        names: Those of the ops that make their ids distinct, in the order of the plan.
    """
    splits = [graph.get_operation_by_name(name) for name in names]
    moves = all(may_move(split) for split in splits)
    with in_place_of(splits[0]):
        outputs = split_as(splits[0], [tensor for split in splits for tensor in split.inputs])
    join(splits, outputs)
    # A copy of the graph may be modified elsewhere.
    mark_movable(outputs[0].op, moves)


def split_as(split: tf.Operation, ids: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Adds the op that makes the ids of lookups distinct that share requests.

    Args:
        split: The op that does so for the first of them.
        ids: Of all of them, one lookup behind the other.

    Returns:
        All its outputs.
    """
    if len({value.dtype for value in ids}) > 1:
        ids = [tf.cast(value, tf.int64) for value in ids]
    made = library().mx_rec_distinct_split(
        list(ids), name="split", **{name: split.get_attr(name)
                                    for name in ("parts", "together", "limit", "counted")})
    return list(made.requests.op.outputs)


def join(splits: Sequence[tf.Operation], values: Sequence[tf.Tensor]
         ) -> Tuple[List[tf.Operation], Any]:
    """Makes lookups take what one op made of the ids of all of them.

    Args:
        splits: The ops that made the ids distinct; several can share requests.
        values: Outputs of an MxRecDistinctSplit of their ids, one lookup behind the other, or
            what hands them on.

    Returns:
        The pull from each parameter server and the op that spreads the rows, as they are now;
        none of them for gradients of what was not looked up.
    """
    for split in splits:
        mark_movable(split, False)
    if len(splits) == 1:
        one, pulled = stitch_of(splits[0]), pulls_of(splits[0]) or []
        replace_each(splits[0], values)
        return pulled, one
    count = sum(split.get_attr("N") for split in splits)
    with in_place_of(splits[0]):
        requests = split_requests(
            values[3 * count], values[3 * count + 1],
            splits[0].get_attr("parts") // splits[0].get_attr("together"))
    stitches = [stitch_of(split) for split in splits]
    pulls = [pulls_of(split) for split in splits]
    pushes = [pushes_of(split) for split in splits]
    old = [requests_of(split) for split in splits]
    # Gradients of what was not looked up are pushed alone.
    is_pulled = stitches[0] is not None
    row_dtypes = sum((row_dtypes_of(stitch) for stitch in stitches if is_pulled), [])
    row_dtypes = row_dtypes if any(row_dtypes) else []
    pulled = []  # type: List[tf.Operation]
    for server, request in enumerate(requests if is_pulled else []):
        first = pulls[0][server]
        configs = sum((configs_of(one[server].inputs[0]) for one in pulls), [])
        with in_place_of(first):
            pulled.append(library().mx_rec_pull(
                tf.constant(encode(configs), name="configs"), request, name="pull", **{
                    name: first.get_attr(name)
                    for name in ("part", "parts", "count", "create")},
                packed=int(bool(row_dtypes))).rows.op)
    for server, group in enumerate(zip(*pushes)):
        for push in OrderedDict.fromkeys(one for several in group for one in several):
            _push_together(push, [one[server] for one in old], requests[server],
                           pulled[server].outputs[BIRTHS] if is_pulled else None)
    ends = list(itertools.accumulate(split.get_attr("N") for split in splits))
    members = [slice(end - split.get_attr("N"), end) for split, end in zip(splits, ends)]
    for split, own in zip(splits, members):
        replace_reads(split.outputs[:3 * split.get_attr("N")], [
            value for place in range(3) for value in values[place * count:][own]])
    if not is_pulled:
        return [], None
    rows = [pull.outputs[ROWS] for pull in pulled]
    with in_place_of(stitches[0]):
        every = [lists_of(stitch) for stitch in stitches]
        made = library().mx_rec_stitch(
            *[sum((lists[name] for lists in every), [])
              for name in ("variables", "keys", "counts", "places")],
            row_dtypes_input(row_dtypes),
            rows[0] if len(rows) == 1 else tf.concat(rows, 0, name="rows"), name="embedding")
    for stitch, own in zip(stitches, members):
        replace_each(stitch, made[own])
        _keep_by_name(stitch, made[own], splits[0].get_attr("parts"))
    return pulled, made[0].op


def _keep_by_name(stitch: tf.Operation, found: Sequence[tf.Tensor], parts: int) -> None:
    """Makes an op that was replaced give what took its place, to whoever fetches it by its name.

    Its own pull would not be ordered before the update of the same run.

    Args:
        stitch: The op, whose outputs nothing reads any more.
        found: What is in their places.
        parts: How many parts tables have.
    """
    count = len(found)
    values = []  # type: List[List[tf.Tensor]]
    with in_place_of(stitch):
        for value in found:
            # As if each id were a key of its own, and all of the first part.
            rows = tf.reshape(value, [-1, int(value.shape[-1])])
            ids = tf.shape(rows)[0]
            counts = tf.concat([[tf.cast(ids, tf.int64)], tf.zeros([parts - 1], tf.int64)], 0)
            values.append([tf.range(tf.cast(ids, tf.int64)), counts,
                           tf.reshape(tf.range(ids), tf.shape(value)[:-1])])
        rows = tf.concat([tf.reshape(value, [-1]) for value in found], 0)
        row_dtypes = row_dtypes_input([0] * count if stitch.get_attr("P") else [])
    inputs = [tensor for kind in zip(*values) for tensor in kind] + row_dtypes + [rows]
    for position, tensor in enumerate(inputs, count):
        stitch._update_input(position, tensor)  # pylint: disable=protected-access


class _Pushed(NamedTuple):
    """What an update takes for one request: constant configurations, births and gradients."""

    config: tf.Tensor
    request: tf.Tensor
    births: tf.Tensor
    grads: List[tf.Tensor]
    counts: List[tf.Tensor]


def join_pushes(pushes: Sequence[tf.Operation]) -> tf.Operation:
    """Adds the op that updates what several do on one parameter server; nothing waits for it.

    Args:
        pushes: The updates, of one optimizer with the same numbers; no session has run them.

    Returns:
        The op.
    """
    return _push(pushes, sum((_pushed_by(push) for push in pushes), []))


def gradients_by(update: tf.Operation) -> int:
    """Returns how many gradients an update applies, of this process or of a parameter server."""
    return int((_pack_of(update) if update.type == PUSH else update).get_attr("N"))


def _push_together(push: tf.Operation, old: List[tf.Tensor], request: tf.Tensor,
                   births: Optional[tf.Tensor]) -> None:
    """Makes an update take one request instead of several; None: the births stay those it has."""
    several = _pushed_by(push)
    places = [at for value in old for at, one in enumerate(several) if one.request is value]
    if len(places) < len(old):
        raise ValueError("the update {!r} takes {} of the requests {}".format(
            push.name, len(places), [value.name for value in old]))
    joined = [several[at] for at in places]
    with in_place_of(push):
        config = tf.constant(encode(sum((configs_of(one.config) for one in joined), [])),
                             name="configs")
    members = [one for at, one in enumerate(several) if at not in places]
    # Where the first of them was.
    members.insert(sum(at not in places for at in range(places[0])), _Pushed(
        config, request, joined[0].births if births is None else births,
        sum((one.grads for one in joined), []), sum((one.counts for one in joined), [])))
    replace_each(push, _push([push], members).outputs)


def _pushed_by(push: tf.Operation) -> List[_Pushed]:
    """Returns what an update takes, for each of its requests."""
    given, packed = lists_of(push), lists_of(_pack_of(push))
    found, end = [], 0  # type: List[_Pushed], int
    for config, request, births in zip(given["configs"], given["requests"], given["births"]):
        own = slice(end, end + len(configs_of(config)))
        found.append(_Pushed(config, request, births, packed["grads"][own], packed["counts"][own]))
        end = own.stop
    return found


def _pack_of(push: tf.Operation) -> tf.Operation:
    """Returns the op that puts the gradients of an update together."""
    return push.inputs[3 * push.get_attr("N")].op


def _push(pushes: Sequence[tf.Operation], members: Sequence[_Pushed]) -> tf.Operation:
    """Adds an update in the place of others, and waits for what these wait for."""
    first, packs = pushes[0], [_pack_of(push) for push in pushes]
    # Constants of configurations that are put together wait for nothing any more.
    waiting = packs + [one.config.op for push in pushes for one in _pushed_by(push)]
    with in_place_of(packs[0]), _waiting_also(packs[0], waiting):
        packed = library().mx_rec_pack_gradients(
            sum((one.grads for one in members), []), sum((one.counts for one in members), []),
            part=packs[0].get_attr("part"), count=packs[0].get_attr("count"), name="pack")
    attributes = {name: value for name, value in first.node_def.attr.items()
                  if not name.startswith("_")}
    attributes["N"] = attr_value_pb2.AttrValue(i=len(members))
    with in_place_of(first), _waiting_also(first, pushes):
        return first.graph.create_op(
            first.type, [one.config for one in members] + [one.request for one in members]
            + [one.births for one in members] + [packed] + [first.inputs[-1]],
            dtypes=[tf.int64], name="push", attrs=attributes)


def _waiting_also(first: tf.Operation, others: Sequence[tf.Operation]) -> Any:
    """A context in which ops wait for what others wait for and the first does not."""
    waits = OrderedDict.fromkeys(wait for op in others for wait in op.control_inputs)
    return tf.control_dependencies([wait for wait in waits if wait not in first.control_inputs])
