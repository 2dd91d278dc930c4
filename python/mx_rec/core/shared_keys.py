"""Lookups of several tables by one tensor of ids: which of them make its keys distinct together."""

import zlib

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.base.global_env_conf import shares_keys
from mx_rec.state.graph_state import graph_state, outermost_graph

# The attribute of MxRecIdOffset: what has the same number may share its work.
ATTRIBUTE = "shared"


def share_keys(op: tf.Operation, ids: tf.Tensor) -> None:
    """Lets the key work of a training lookup be shared with that of others by the same ids.

    All of them get a number that follows from the name of the ids. Ops that stand in another
    control flow context, in a function, or in a graph that a session has run already, share
    nothing; neither do the first ones with MXREC_SHARE_KEYS=0. The results are the same.

    Args:
        op: The lookup's MxRecIdOffset, just made.
        ids: The ids that the script has given.

    Raises:
        ValueError: If MXREC_SHARE_KEYS is neither 0 nor 1.
    """
    # pylint: disable=protected-access
    if not shares_keys() or op.graph is not ids.graph or op.graph is not outermost_graph(op.graph):
        return
    state = graph_state()
    ops = state.key_work.setdefault((ids.name, op._get_control_flow_context()), [])
    ops.append(op)
    if op is ops[0]:
        return
    number = attr_value_pb2.AttrValue(i=zlib.crc32(ids.name.encode()) & 0x7fffffff or 1)
    if state.session is None:
        ops[0]._set_attr(ATTRIBUTE, number)
    if ops[0].get_attr(ATTRIBUTE) != 0:
        op._set_attr(ATTRIBUTE, number)
