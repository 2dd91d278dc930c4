"""Changes of rows other than by an optimizer: assignments, and sums with given rows."""

from typing import NamedTuple

import tensorflow as tf

from mx_rec.edits.wiring import in_place_of, replace_change, waits_of_copy
from mx_rec.ops import library
from mx_rec.ops.lookups import resolve
from mx_rec.stock.admission import count_as_admitted
from mx_rec.stock.dense import chunk_of, each_chunk
from mx_rec.stock.rows import Rows


class _Change(NamedTuple):
    """What an op of TensorFlow does with a variable.

    Attributes:
        is_whole: Whether with all rows, not with those of ids.
        factor: Of what is added; 0 sets rows.
    """

    is_whole: bool
    factor: float


_CHANGES = {
    "Assign": _Change(True, 0.0), "AssignVariableOp": _Change(True, 0.0),
    "AssignAdd": _Change(True, 1.0), "AssignAddVariableOp": _Change(True, 1.0),
    "AssignSub": _Change(True, -1.0), "AssignSubVariableOp": _Change(True, -1.0),
    "ScatterUpdate": _Change(False, 0.0), "ResourceScatterUpdate": _Change(False, 0.0),
    "ScatterAdd": _Change(False, 1.0), "ResourceScatterAdd": _Change(False, 1.0),
    "ScatterSub": _Change(False, -1.0), "ResourceScatterSub": _Change(False, -1.0),
}
# The same by indices of several dimensions, of which rows have one.
_BY_INDICES = {kind.replace("Scatter", "ScatterNd"): what for kind, what in _CHANGES.items()
               if "Scatter" in kind}
_CHANGES.update(_BY_INDICES)


def is_change(op: tf.Operation) -> bool:
    """Whether tables know what an op with a variable as its first input changes in its rows."""
    return op.type in _CHANGES and (op.type not in _BY_INDICES or bool(
        op.inputs[1].shape.rank) and op.inputs[1].shape.as_list()[-1] == 1)


def change(rows: Rows, op: tf.Operation) -> None:
    """Replaces an op that changes rows of a variable; keys without a row get one.

    With admission, keys whose rows are changed so count as admitted.

    Args:
        rows: The rows.
        op: The op, for which `is_change` says yes.
    """
    kind, shape = _CHANGES[op.type], rows.plan.shape
    with in_place_of(op, waits_of_copy(op.inputs[0]), device=rows.device):
        if kind.is_whole:
            values = tf.reshape(tf.ensure_shape(op.inputs[1], shape), [-1, rows.plan.dim])
            done = each_chunk(shape[0], chunk_of(rows.table), lambda first, end: _change(
                rows, tf.range(first, end) + rows.plan.first, values[first:end], kind.factor))
            # The end of a loop has no input from what its body reads: feeds of that go on to count.
            with tf.control_dependencies([done]):
                done = tf.raw_ops.Shape(input=values, name="set").op
        else:
            ids, values = op.inputs[1], op.inputs[2]
            if values.shape.rank == 0:
                values = tf.fill(tf.concat([tf.shape(ids), shape[1:]], 0), values)
            done = _change(rows, rows.checked_ids(tf.reshape(ids, [-1])),
                           tf.reshape(values, [-1, rows.plan.dim]), kind.factor)
    replace_change(op, done)


def _change(rows: Rows, ids: tf.Tensor, values: tf.Tensor, factor: float) -> tf.Operation:
    """Adds the ops that change the rows of ids.

    Args:
        rows: The rows.
        ids: Checked ids (n). If they repeat, the last value is set, and all are added.
        values: float32 (n, dim).
        factor: See `_Change`.

    Returns:
        What has changed them.
    """
    make, table = library(), rows.table
    offsets, places = resolve([table.handle], [ids], name="offsets").of(0)
    count = tf.size(offsets)
    if factor:
        values = tf.math.unsorted_segment_sum(factor * values, places, count)
    else:
        last = tf.math.unsorted_segment_max(tf.range(tf.size(ids)), places, count)
        values = tf.gather(values, last)
    names, initial = rows.field()
    # Rows that an eviction has taken meanwhile are left out, with their values.
    read = make.mx_rec_read_rows(table.handle, offsets, values, names, initial, name="read")
    new = read.gradients + read.values[0] if factor else read.gradients
    done = make.mx_rec_write_rows(table.handle, read.rows, names, initial, read.values, [new],
                                  sets=int(not factor), name="write").op
    if rows.rules.counts and rows.plan.trains:
        with tf.control_dependencies([done]):
            return count_as_admitted(table, rows.rules, ids)
    return done
