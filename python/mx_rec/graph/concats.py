"""Concatenations of lookups in a modified graph: rows are copied straight to their places."""

from typing import Dict, List, Sequence

import tensorflow as tf

from mx_rec.edits.replacing import FUSED_NAME, forbid_feeding, in_place_of, pass_on, replace_each
from mx_rec.edits.wiring import waits_between
from mx_rec.graph.plan import Record
from mx_rec.graph.rows import Constants, replace_shapes
from mx_rec.ops import library
from mx_rec.ops.lookups import member_of, read_rows


def fuse_concats(graph: tf.Graph, planned: Sequence[Record]) -> None:
    """Replaces lookups with a concatenation behind them by one op, in both directions.

    The rows of each lookup stay in the graph for runs that fetch them.

    Args:
        graph: A graph that no session has run, after lookups have moved.
        planned: What the plan says of concatenations.
    """
    constants = Constants(graph)
    for one in planned:
        if not one.fuses:
            continue
        readers = [graph.get_operation_by_name(part.lookup) for part in one.parts]
        inputs = [list(member_of(reader, 0).values()) for reader in readers]
        read = _concatenate(graph.get_operation_by_name(one.node), readers, inputs)
        replace_shapes(constants, map(graph.get_operation_by_name, one.shapes), {
            reader.outputs[0].name: (ids, part[1]) for reader, (*part, ids)
            in zip(readers, inputs)}, [read])
        passed = {}  # type: Dict[str, tf.Tensor]
        for columns in one.gradients:
            _replace_gradient(graph, read, columns, passed)
        # The outputs of ops in the place of others have become the tensor objects of these.
        for tensor in map(graph.get_tensor_by_name, one.left_out):
            forbid_feeding(tensor.op, [tensor.value_index])


def _concatenate(op: tf.Operation, readers: List[tf.Operation],
                 inputs: List[List[tf.Tensor]]) -> tf.Operation:
    waits = waits_between(op.outputs, [reader.outputs[0] for reader in readers])
    waits += [wait for reader in readers for wait in reader.control_inputs]
    lists = [list(part) for part in zip(*inputs)]
    with in_place_of(op), tf.control_dependencies(waits), tf.device(readers[0].device):
        whole, = read_rows(*lists, is_whole=True, name=FUSED_NAME)
    replace_each(op, [whole])
    return whole.op


def _replace_gradient(graph: tf.Graph, read: tf.Operation, columns: Record,
                      passed: Dict[str, tf.Tensor]) -> None:
    """Makes what takes the gradient of a part take its columns of the gradient of the whole, which
    is `passed` on to all parts at once where they wait for the same ops on the same device."""
    tensor = graph.get_tensor_by_name(columns.tensor)
    key = repr((columns.whole, sorted(columns.waits), tensor.op.device))
    if key not in passed:
        waits = [graph.get_operation_by_name(name) for name in columns.waits]
        # The shapes of the parts, which the slices take, come after the rows; the whole may not.
        passed[key] = pass_on(tensor.op, graph.get_tensor_by_name(columns.whole), waits + [read])
    shapeless = passed[key]
    for name in columns.readers:
        reader = graph.get_operation_by_name(name)
        with in_place_of(reader):
            reduced = library().mx_rec_reduce_columns(
                shapeless, reader.inputs[1], reader.inputs[2], first=columns.first,
                dim=columns.dim, name=FUSED_NAME)
        replace_each(reader, [reduced])
