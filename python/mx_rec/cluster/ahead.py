"""Rows that a modified graph pulls from parameter servers one step before the step that needs them.

A step k gets from the pipeline its own request and that of step k + 1. It pulls the rows of the
latter beside its own work and holds them, with their births, in a variable of the worker, under the
tag of their batch; it takes its own rows from there. Where they are not there, in the first step or
after a run that read no row, it pulls them too.

    pipeline --request k, request k + 1, tag k--> step k
    held rows, if their tag is tag k  \\
    MxRecPull(request k, if not held)  --> MxRecStitch
    MxRecPull(request k + 1) --> held rows, under tag k + 1

An update waits for the pull beside it: rows are those before the update of the step before theirs.
"""

from typing import Any, Callable, List, Sequence, Tuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.cluster.lookups import BIRTHS, REQUEST, ROWS
from mx_rec.edits.replacing import in_place_of

# What stands before held rows: the tag, and floats that make the rows begin at a whole cache line.
_HEAD = 16


def with_next(dataset: Any, pick: Callable[[Any], Any], last: Any) -> Any:
    """Adds to each element some of the element behind it.

    Args:
        dataset: A dataset of tuples.
        pick: Takes that from an element.
        last: What stands for it behind the last element, arrays.

    Returns:
        A dataset of the same length: what an element has, then what is picked of the next one, then
        a tag, int64 scalar. Tags count up from a random number, another one at each start.
    """
    # No seed of the graph may give two starts the same tags.
    start = tf.data.Dataset.from_tensors(0).map(lambda _: tf.raw_ops.RandomUniformInt(
        shape=tf.constant([], tf.int32), minval=tf.constant(1, tf.int64),
        maxval=tf.constant(2 ** 62, tf.int64), seed=0, seed2=0))
    tags = start.flat_map(lambda first: tf.data.Dataset.range(first, 2 ** 63 - 1))
    windows = tf.data.Dataset.zip((dataset, tags)).window(2, shift=1)

    def pair(element: Any, tags_of_both: Any) -> Tuple[Any, ...]:
        own, tag = _single(tf.data.Dataset.zip((element, tags_of_both)).take(1))
        end = tf.data.Dataset.from_tensors(tf.nest.map_structure(tf.constant, last))
        following = tf.data.Dataset.zip(pick(element)).skip(1).concatenate(end).take(1)
        return own + (_single(following), tag)

    return windows.map(tf.autograph.experimental.do_not_convert(pair))


def pull_ahead(stitch: tf.Operation, pulls: Sequence[tf.Operation], floats: tf.Tensor,
               requests: tf.Tensor, sizes: tf.Tensor, tag: tf.Tensor) -> tf.Operation:
    """Makes lookups read rows that the step before has pulled, and pull those of the next one.

    Args:
        stitch: What spreads their rows.
        pulls: The pull from each parameter server, of the request of the step.
        floats: How many words the rows of the step's own request take, for each server.
        requests: The requests of the next step, one behind the other.
        sizes: How long each of them is.
        tag: A number of the batch, 1 or more; the next batch has the next number.

    Returns:
        The op that forgets held rows; the iterator is to wait for it when it starts.
    """
    with in_place_of(stitch):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=tf.TensorShape(None), container="",
                                        shared_name=stitch.name + "/held_rows", name="held_rows")
        forget = tf.raw_ops.AssignVariableOp(
            resource=handle, value=tf.zeros([_HEAD]), name="forget_rows")
        held = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="held")
        is_held = tf.equal(tf.bitcast(tf.reshape(held[:2], [2]), tf.int64), tag,
                           name="is_held")
        servers = len(pulls)
        nexts = [requests] if servers == 1 else \
            tf.split(requests, sizes, num=servers, name="next_requests")
        missing = tf.where(is_held, tf.zeros_like(floats), floats)
        head = tf.concat([tf.bitcast(tag + 1, tf.float32), tf.zeros([_HEAD - 2])], 0)
        own, ahead = [], []  # type: List[tf.Tensor], List[tf.Tensor]
        own_births, next_births = [], []  # type: List[tf.Tensor], List[tf.Tensor]
        lengths = [tf.size(pull.inputs[REQUEST]) for pull in pulls]
        pushes = [[op for op in pull.outputs[BIRTHS].consumers()] for pull in pulls]
        for server, (pull, after) in enumerate(zip(pulls, nexts)):
            request = pull.inputs[REQUEST]
            # A request without keys has a count, 0, for each table and part.
            none = tf.zeros([_empty(pull, stitch)], tf.int64)
            begin = tf.where(is_held, tf.size(request), 0)
            asked = tf.concat([none[:tf.where(is_held, tf.size(none), 0)], request[begin:], after],
                              0, name="request")
            _order(request, pull)
            pull._set_attr(  # pylint: disable=protected-access
                "requests", attr_value_pb2.AttrValue(i=2))
            pull._update_input(REQUEST, asked)  # pylint: disable=protected-access
            rows, births = pull.outputs[ROWS], tf.bitcast(pull.outputs[BIRTHS], tf.float32)
            own.append(rows[:missing[server]])
            ahead.append(rows[missing[server]:])
            first = tf.where(is_held, tf.size(none), lengths[server])
            own_births.append(births[:tf.where(is_held, 0, first)])
            next_births.append(births[first:])
        with tf.control_dependencies([held]):
            value = tf.concat([head] + ahead + next_births, 0, name="held_next")
            hold = tf.raw_ops.AssignVariableOp(resource=handle, value=value, name="hold_rows")
        with tf.control_dependencies([hold]):
            # Whoever reads rows has the next ones held.
            pulled = tf.concat(own + own_births, 0, name="pulled")
        # Not tf.cond: one of version 2 would wait for both of its inputs.
        ready = tf.raw_ops.Switch(data=held[_HEAD:], pred=is_held)[1]
        late = tf.raw_ops.Switch(data=pulled, pred=is_held)[0]
        found = tf.raw_ops.Merge(inputs=[ready, late], name="rows_and_births")[0]
        found.set_shape([None])
        floats = tf.reduce_sum(floats)
        rows = tf.identity(found[:floats], name="rows")
        births = tf.split(tf.bitcast(found[floats:], tf.int32), lengths, num=servers, name="births")
    # pylint: disable=protected-access
    stitch._update_input(len(stitch.inputs) - 1, rows)
    for pull, own_pushes, value in zip(pulls, pushes, births):
        for push in own_pushes:
            at = [tensor is pull.outputs[BIRTHS] for tensor in push.inputs].index(True)
            push._update_input(at, value)
    return forget


def _empty(pull: tf.Operation, stitch: tf.Operation) -> int:
    """How many numbers a request without keys has."""
    return int(stitch.get_attr("N") * pull.get_attr("count"))


def _order(request: tf.Tensor, pull: tf.Operation) -> None:
    """Makes the updates that take a request wait for the pull of the next one."""
    for consumer in request.consumers():
        if consumer.type == "MxRecPush" and pull not in consumer.control_inputs:
            consumer._add_control_input(pull)  # pylint: disable=protected-access


def _single(dataset: Any) -> Any:
    """The only element of a dataset, in a function of another dataset."""
    return tf.data.experimental.get_single_element(dataset)
