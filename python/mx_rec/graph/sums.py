"""Sums over bags in a modified graph: rows are added up where they are read, in both directions."""

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.edits.replacing import (FUSED_NAME, forbid_feeding, in_place_of, replace_each,
                                    replace_ops)
from mx_rec.edits.wiring import waits_between
from mx_rec.graph.plan import Record
from mx_rec.graph.rows import Constants, replace_shapes
from mx_rec.ops import library
from mx_rec.ops.lookups import FIND, READ, RESTORE, find_rows, member_of, read_rows


class _Rows:
    """The rows of a lookup: the op that reads them, its inputs, and its bags.

    Args:
        graph: The graph.
        planned: What the plan says of the lookup.
        constants: Of the graph.
    """

    def __init__(self, graph: tf.Graph, planned: Record, constants: Constants) -> None:
        self.graph = graph
        self.planned = planned
        self.op = graph.get_operation_by_name(planned.lookup)
        self.inputs = member_of(self.op, 0)
        # Places among offsets, or keys.
        self.ids = self.inputs["ids" if self.op.type == FIND else "inverse"]
        # The rows, what passes them on, and their products with weights.
        self.passed = frozenset(planned.left_out) | {self.op.outputs[0].name}
        self.none = constants.of([], tf.float32, self.op.device)
        weights = planned.weights and graph.get_tensor_by_name(planned.weights.tensor)
        # What sums are computed from.
        self.read = [self.op.outputs[0]] + ([] if weights is None else [weights])
        with in_place_of(self.op):
            self.ends = library().mx_rec_bag_ends(self.ids, name="ends")
            self.weights = self.none if weights is None else tf.squeeze(
                weights, [planned.weights.axis], name="weights")

    def form(self, groups: Dict[str, int]) -> Tuple[Any, ...]:
        """One op can read the rows of all that have this in common.

        Args:
            groups: By the names of lookups numbers of those that share an op.
        """
        is_alone = self.op.name not in groups or self.op.control_inputs or self.op.type == RESTORE
        return (self.op.name if is_alone else groups[self.op.name], self.op.type, self.op.device,
                self.ids.dtype)

    def like(self) -> tf.Tensor:
        """Returns a tensor whose last dimension is that of the rows."""
        # The variable of a table has its width, and so have the rows of distinct keys.
        return self.inputs.get("variables", self.inputs.get("rows"))


def fuse_sums(graph: tf.Graph, planned: Sequence[Record], together: Iterable[Sequence[str]] = ()
              ) -> Dict[str, tf.Operation]:
    """Replaces lookups with sums behind them by pooled lookups, in both directions.

    The rows of each id stay in the graph for runs that fetch them.

    Args:
        graph: A graph that no session has run, after lookups have moved.
        planned: What the plan says of sums over bags.
        together: Names of lookups that share an op.

    Returns:
        By the name of each such lookup the op that reads rows of bags in its place.
    """
    groups = {name: number for number, names in enumerate(together) for name in names}
    constants = Constants(graph)
    same = OrderedDict()  # type: Dict[Any, List[_Rows]]
    for one in planned:
        if one.fuses:
            rows = _Rows(graph, one, constants)
            same.setdefault(rows.form(groups), []).append(rows)
    # An op for each of them, to be joined later, would take half as long again.
    found = [pair for several in same.values() for pair in zip(several, _pooled(several))]
    sums = [pair for rows, pooled in found for pair in _sums(rows, pooled)]
    replace_ops([op for op, _ in sums], [[value] for _, value in sums])
    for rows, pooled in found:
        known = {name: (rows.ids, rows.like()) for name in rows.passed}
        replace_shapes(constants, map(graph.get_operation_by_name, rows.planned.shapes), known,
                       [pooled.op])
        for gradient in rows.planned.gradients:
            _replace_gradient(rows, pooled.op, gradient)
        # The outputs of ops in the place of others have become the tensor objects of these.
        for tensor in map(graph.get_tensor_by_name, rows.planned.left_out):
            forbid_feeding(tensor.op, [tensor.value_index])
    return {rows.op.name: pooled.op for rows, pooled in found}


def _pooled(several: Sequence[_Rows]) -> List[tf.Tensor]:
    """Adds the op that adds up the rows of each bag."""
    first = several[0].op
    lists = {name: [rows.inputs[name] for rows in several] for name in several[0].inputs
             if name != "absent"}
    bags = [[getattr(rows, name) for rows in several] for name in ("ends", "weights", "none")]
    with in_place_of(first):
        if first.type == FIND:
            absent = [rows.inputs.get("absent") for rows in several]
            return find_rows(*lists.values(), absent, bags, name=FUSED_NAME)
        if first.type == READ:
            return read_rows(*lists.values(), bags, name=FUSED_NAME)
        return [library().mx_rec_restore_pooled(*[one for one, in lists.values()],
                                                *[one for one, in bags], [], name=FUSED_NAME)]


def _sums(rows: _Rows, pooled: tf.Tensor) -> List[Tuple[tf.Operation, tf.Tensor]]:
    """Returns the sums of rows, and what takes the place of each."""
    found = []  # type: List[Tuple[tf.Operation, tf.Tensor]]
    used = set()  # type: Set[str]
    for one in rows.planned.sums:
        op = rows.graph.get_operation_by_name(one.node)
        waits, value = waits_between(op.outputs, rows.read), pooled
        if waits or one.combiner == "mean" or one.keep_dims or value.name in used:
            with in_place_of(op), tf.control_dependencies(waits):
                if one.combiner == "mean":
                    value = tf.realdiv(value, _length(rows.ids), name="mean")
                if one.keep_dims:
                    value = tf.expand_dims(value, -2, name="kept")
                if waits or value.name in used:
                    value = tf.identity(value, name="sum")
        used.add(value.name)
        found.append((op, value))
    return found


def _length(ids: tf.Tensor) -> tf.Tensor:
    """Returns how many ids a bag has, a float32 scalar."""
    length = ids.shape.as_list()[-1] if ids.shape.rank else None
    if length is not None:
        return tf.constant(length, tf.float32, name="length")
    return tf.cast(tf.shape(ids)[-1], tf.float32, name="length")


def _replace_gradient(rows: _Rows, reader_of_bags: tf.Operation, gradient: Record) -> None:
    """Makes what takes a gradient of each id take that of each bag."""
    # A gradient of each id has the shape of the rows, so that no update comes before they are
    # read. One of each bag may be a constant.
    waits = [rows.graph.get_operation_by_name(name) for name in gradient.waits]
    waits.append(reader_of_bags)
    with in_place_of(rows.graph.get_tensor_by_name(gradient.tensor).op), \
            tf.control_dependencies(waits):
        of_bags = _of_bags(rows, gradient.repeated)
    for name in gradient.readers:
        reader = rows.graph.get_operation_by_name(name)
        with in_place_of(reader), tf.control_dependencies(waits):
            reduced = library().mx_rec_reduce_pooled(
                of_bags, reader.inputs[1], rows.ends, rows.weights, rows.none, [], [],
                reader.inputs[2], name=FUSED_NAME)
        replace_each(reader, [reduced])


def _of_bags(rows: _Rows, repeated: Any) -> tf.Tensor:
    """Adds the ops that compute what a gradient repeats, (bags.., dim)."""
    (kind, value), = repeated.items()
    if kind == "added":
        return tf.add_n([_of_bags(rows, one) for one in value], name="gradient")
    if kind == "scaled":
        of, by = _of_bags(rows, value["of"]), rows.graph.get_tensor_by_name(value["by"])
        make = tf.realdiv if value["op"] == "RealDiv" else tf.multiply
        return make(of, by, name="gradient")
    kept = rows.graph.get_tensor_by_name(value)
    before = kept.op.inputs[0] if kept.op.type == "Reshape" and not kept.op.control_inputs else None
    if before is not None and _is_without_bags(before.shape, kept.shape):
        forbid_feeding(kept.op, [0])
        return before
    return tf.squeeze(kept, [-2], name="gradient")


def _is_without_bags(shape: tf.TensorShape, kept: tf.TensorShape) -> bool:
    """Whether a shape is the other one without its last dimension but one, of size 1."""
    if shape.rank is None or kept.rank is None or shape.rank != kept.rank - 1:
        return False
    wanted = kept.as_list()[:-2] + kept.as_list()[-1:]
    # At most one size is left to be what the others leave.
    return shape.as_list() == wanted and wanted.count(None) <= 1
