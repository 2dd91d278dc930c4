"""Lifts the limits of ids in a graph: hashes of 64 bits, no modulo, no size of a column."""

from typing import Any, Dict, Iterable, List, Optional

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.edits.replacing import replace_reads
from mx_rec.edits.upstream import readings
from mx_rec.edits.wiring import in_place_of, waits_between
from mx_rec.stock.id_limits import (ASSERTION, BUCKETS, COPIED, CROSS, DEFAULT, ID_END, IdPaths,
                                    Limit)
from mx_rec.stock.nodes import Nodes
from mx_rec.stock.planned import StockVariable


def lift(graph: tf.Graph, nodes: Nodes, plans: Iterable[StockVariable],
         limits: Iterable[Limit]) -> None:
    """Gives lookups ids without limits; all other readers keep theirs.

    Args:
        graph: The graph, which no session has run.
        nodes: The same, as it was analysed.
        plans: Those of the variables whose ids lose their limits.
        limits: All limits of these.
    """
    paths = IdPaths(nodes, plans)
    for limit in sorted(set(limits)):
        _lift(graph.get_operation_by_name(limit.node), limit, paths)


def _lift(op: tf.Operation, limit: Limit, paths: IdPaths) -> None:
    """Puts an op without a limit beside the one that has it, for lookups."""
    made = _made(op, limit)
    _redirect(op.outputs[limit.output], made.outputs[limit.output], paths)
    if op.outputs[limit.output].consumers() or len(op.outputs) == 1:
        return
    # Nothing takes the ids any more: what reads other outputs, reads those of the new op, so that
    # the old one does not run.
    replace_reads(op.outputs, made.outputs)


def _made(op: tf.Operation, limit: Limit) -> tf.Operation:
    """Makes the op without a limit."""
    if limit.kind in (BUCKETS, CROSS):
        return _copy(op, list(op.inputs), {"num_buckets": attr_value_pb2.AttrValue(i=ID_END)})
    if limit.kind == DEFAULT:
        # where(ids < 0 or ids >= size, default, ids) without its second half.
        negative = op.inputs[0].op.inputs[0]
        return _copy(op, [negative] + list(op.inputs[1:]), {},
                     waits=waits_between([op.inputs[0]], [negative]))
    if limit.kind == ASSERTION:
        return _copy(op, list(op.inputs), {}, limit.gone)
    # Negative ids come out as ids that are not, and no two become one.
    with in_place_of(op, waits_between(op.inputs[1:], ()), scope=op.name + "/unlimited"):
        end = tf.constant(op.inputs[0].dtype.max, op.inputs[0].dtype, name="end")
    return _copy(op, [op.inputs[0], end], {})


def _redirect(old: tf.Tensor, new: tf.Tensor, paths: IdPaths) -> None:
    """Gives ids without limits to the lookups that take those of a tensor."""
    for consumer, position in readings(old):
        _redirect_one(consumer, position, new, paths)
    # A run that feeds the old ids would not reach the lookups.
    old.graph.prevent_feeding(old)


def _redirect_one(consumer: tf.Operation, position: int, new: tf.Tensor, paths: IdPaths) -> None:
    further = paths.passes(consumer.name, position)
    if paths.takes(consumer.name, position) or (
            further is not None and paths.reaches(further) and paths.is_alone(further)):
        consumer._update_input(position, new)  # pylint: disable=protected-access
        return
    if further is None or not paths.reaches(further):
        return
    if consumer.type not in COPIED:
        raise RuntimeError("{} ({}) takes ids with and without limits, which the plan should not "
                           "have allowed.".format(consumer.name, consumer.type))
    inputs = list(consumer.inputs)
    inputs[position] = new
    made = _copy(consumer, inputs, {})
    _redirect(consumer.outputs[further[1]], made.outputs[further[1]], paths)


def _copy(op: tf.Operation, inputs: List[tf.Tensor], attributes: Dict[str, Any],
          gone: Optional[Iterable[str]] = None,
          waits: Iterable[tf.Operation] = ()) -> tf.Operation:
    """Makes a second op like one, which waits for the same, but for `gone`, and for `waits`."""
    attrs = {name: value for name, value in op.node_def.attr.items()
             if not name.startswith("_") or name == "_class"}
    attrs.update(attributes)
    graph = op.graph
    with graph.as_default(), graph.control_dependencies(None):
        before = [wait for wait in op.control_inputs if wait.name not in set(gone or ())]
        with graph.control_dependencies(before + list(waits)), graph.device(op.device):
            made = graph.create_op(op.type, inputs, [output.dtype for output in op.outputs],
                                   attrs=attrs, name=op.name + "/unlimited/")
    for old, new in zip(op.outputs, made.outputs):
        new.set_shape(old.shape)
    return made
