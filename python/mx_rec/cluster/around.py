"""The ops of a lookup on parameter servers: what takes its requests, its rows and its gradients."""

import json
from collections import OrderedDict
from typing import Any, List, Optional

import numpy as np
import tensorflow as tf

from mx_rec.cluster.lookups import INITIAL
from mx_rec.ops.shapes import lists_of
from mx_rec.state.table_variable import CLUSTER_TABLE_OP
from mx_rec.tensorflow.names import tensor_util

SPLIT_OP = "MxRecDistinctSplit"
_PULL, _STITCH, _PUSH = "MxRecPull", "MxRecStitch", "MxRecPush"


def is_training(split: tf.Operation) -> bool:
    """Returns whether a lookup may make rows.

    Args:
        split: The op that makes its ids distinct, here and below.
    """
    return any(pull.get_attr("create") not in (0, INITIAL) for pull in pulls_of(split) or [])


def requests_of(split: tf.Operation) -> List[tf.Tensor]:
    """Returns the request for each parameter server."""
    requests = split.outputs[3 * split.get_attr("N")]
    for consumer in requests.consumers():
        if consumer.type == "SplitV":
            return list(consumer.outputs)
    return [requests]


def pulls_of(split: tf.Operation) -> Optional[List[tf.Operation]]:
    """Returns the pull from each parameter server; None if there is not one from each."""
    found = [[op for op in request.consumers() if op.type == _PULL]
             for request in requests_of(split)]
    return [ops[0] for ops in found] if all(len(ops) == 1 for ops in found) else None


def pushes_of(split: tf.Operation) -> List[List[tf.Operation]]:
    """Returns the updates that take its requests and run, for each parameter server."""
    # pylint: disable=protected-access
    return [list(OrderedDict.fromkeys(op for op in request.consumers()
                                      if op.type == _PUSH and op._control_outputs))
            for request in requests_of(split)]


def has_gradients(split: tf.Operation) -> bool:
    """Returns whether a lookup is one of training whose rows have gradients."""
    stitch = stitch_of(split)
    return is_training(split) and stitch is not None \
        and any(tensor.op.type == CLUSTER_TABLE_OP for tensor in stitch.inputs)


def is_updated(split: tf.Operation) -> bool:
    """Returns whether it has gradients, and each server is pushed those of its request."""
    return has_gradients(split) and all(pushes_of(split))


def stitch_of(split: tf.Operation) -> Optional[tf.Operation]:
    """Returns the op that spreads the rows; None if there is not exactly one."""
    found = list(OrderedDict.fromkeys(op for op in split.outputs[0].consumers()
                                      if op.type == _STITCH))
    return found[0] if len(found) == 1 else None


def row_dtypes_of(stitch: tf.Operation) -> List[int]:
    """Returns as what each lookup's rows are sent, by the numbers of cluster.lookups.sent_as.

    Args:
        stitch: The op that spreads the rows.
    """
    packed = lists_of(stitch)["row_dtypes"]
    return [int(one) for one in tensor_util.constant_value(packed[0])] if packed \
        else [0] * stitch.get_attr("N")


def configs_of(tensor: tf.Tensor) -> List[Any]:
    """Returns the configurations in an input of a pull or push.

    Args:
        tensor: The input.

    Raises:
        ValueError: If it is not constant.
    """
    value = tensor_util.constant_value(tensor)  # type: Optional[np.ndarray]
    if value is None:
        raise ValueError("the configurations {!r} are not constant".format(tensor.name))
    return list(json.loads(value.tobytes().decode("utf-8")))
