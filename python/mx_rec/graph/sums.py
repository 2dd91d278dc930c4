"""Sums over bags in a modified graph: rows are added up where they are read, and go back unrepeated."""

from typing import Any, Dict, List, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.graph.edits import (FUSED_ATTRIBUTE, FUSED_NAME, forbid_feeding, in_place_of,
                                mark_positions, replace_each, replace_tensor)
from mx_rec.graph.fusions import Gradient, Sum, Sums
from mx_rec.ops import library

_EMBED = "MxRecEmbed"
_EMBED_MANY = "MxRecEmbedMany"
_FIND = "MxRecFind"
_REDUCE = "MxRecReduce"

# Ops between the rows and their sum that change nothing.
_PASSED_ON = ("Identity", "StopGradient")


class _Rows:
    """The rows of a lookup: the op that reads them, its inputs, and its bags.

    Args:
        graph: The graph.
        planned: What the plan says of the lookup.
    """

    def __init__(self, graph: tf.Graph, planned: Sums) -> None:
        self.graph = graph
        self.op = graph.get_operation_by_name(planned.lookup)
        self.output = self.op.outputs[planned.output]
        inputs = list(self.op.inputs)
        if self.op.type == _EMBED_MANY:
            members = self.op.get_attr("N")
            inputs = inputs[planned.output::members]
        self.inputs = inputs
        # Places among offsets, or keys.
        self.ids = inputs[{_FIND: 2}.get(self.op.type, -1)]
        with in_place_of(graph, self.op):
            self.ends = library().mx_rec_bag_ends(self.ids, name="ends")
            self.none = tf.zeros([0], name="none")

    def pooled(self) -> tf.Tensor:
        """Adds the op that adds up the rows of each bag."""
        bags = (self.ends, self.none, self.none)
        with in_place_of(self.graph, self.op):
            if self.op.type == _FIND:
                handle, variable, keys, absent = self.inputs
                return library().mx_rec_find_pooled(handle, variable, keys, *bags, absent,
                                                    name=FUSED_NAME)
            if self.op.type in (_EMBED, _EMBED_MANY):
                return library().mx_rec_embed_pooled(*self.inputs, *bags, name=FUSED_NAME)
            return library().mx_rec_restore_pooled(*self.inputs, *bags, name=FUSED_NAME)

    def dim(self) -> tf.Tensor:
        """Returns the width of a row, int32 (1)."""
        width = self.output.shape.as_list()[-1] if self.output.shape.rank else None
        if width is not None:
            return tf.constant([width], name="dim")
        # The variable of a table has its width, and so have the rows of distinct keys.
        like = self.inputs[0 if self.op.type == "MxRecRestore" else 1]
        return tf.shape(like)[1:]


def mark_sums(graph: tf.Graph, planned: Sequence[Sums]) -> None:
    """Marks the rows that `fuse_sums` is going to replace, so that nothing else does.

    Args:
        graph: A graph that no session has run.
        planned: What the plan says of sums over bags.
    """
    for one in planned:
        if one.fuses:
            mark_positions(graph.get_operation_by_name(one.lookup), FUSED_ATTRIBUTE, [one.output])


def fuse_sums(graph: tf.Graph, planned: Sequence[Sums]) -> None:
    """Replaces lookups with sums behind them by pooled lookups, in both directions.

    The rows of each id stay in the graph for runs that fetch them.

    Args:
        graph: A graph that no session has run, after lookups have moved.
        planned: What the plan says of sums over bags.
    """
    many = {}  # type: Dict[str, Set[int]]
    for one in planned:
        if not one.fuses:
            continue
        rows = _Rows(graph, one)
        if rows.op.type == _EMBED_MANY:
            many.setdefault(one.lookup, set()).add(one.output)
        tensors = [graph.get_tensor_by_name(name) for name in one.left_out]
        shapes = [graph.get_operation_by_name(name) for name in one.shapes]
        gradients = [(graph.get_tensor_by_name(gradient.tensor), gradient)
                     for gradient in one.gradients]
        _replace_sums(rows, one.sums)
        _replace_shapes(rows, shapes)
        for tensor, gradient in gradients:
            _replace_gradient(rows, tensor, gradient)
        for tensor in tensors:
            forbid_feeding(tensor.op, [tensor.value_index])
    for name, fused in many.items():
        _read_rest(graph, graph.get_operation_by_name(name), fused)


def _replace_sums(rows: _Rows, sums: Sequence[Sum]) -> None:
    pooled = rows.pooled()
    used = set()  # type: Set[str]
    for one in sums:
        op = rows.graph.get_operation_by_name(one.node)
        waits = _waits(op, rows.op)
        with in_place_of(rows.graph, op), tf.control_dependencies(waits):
            value = pooled
            if one.combiner == "mean":
                value = tf.realdiv(value, _length(rows.ids), name="mean")
            if one.keep_dims:
                value = tf.expand_dims(value, -2, name="kept")
            if waits or value.name in used:
                value = tf.identity(value, name="sum")
        used.add(value.name)
        replace_each(op, [value])


def _waits(op: tf.Operation, reader: tf.Operation) -> List[tf.Operation]:
    """What a sum and the ops between the rows and it wait for."""
    waits = []  # type: List[tf.Operation]
    while op is not reader:
        waits.extend(op.control_inputs)
        # In the place of an op, TensorFlow lets the constants wait that it reads.
        for constant in list(op.inputs)[1:]:
            waits.extend(constant.op.control_inputs)
        op = op.inputs[0].op
    return waits


def _length(ids: tf.Tensor) -> tf.Tensor:
    """Returns how many ids a bag has, a float32 scalar."""
    length = ids.shape.as_list()[-1] if ids.shape.rank else None
    if length is not None:
        return tf.constant(length, tf.float32, name="length")
    return tf.cast(tf.shape(ids)[-1], tf.float32, name="length")


def _replace_shapes(rows: _Rows, shapes: Sequence[tf.Operation]) -> None:
    """Makes the shape of the rows known without the rows."""
    for op in shapes:
        if not op.outputs[0].consumers():
            continue
        with in_place_of(rows.graph, op):
            sizes = tf.concat([tf.shape(rows.ids), rows.dim()], 0, name="shape")
            if op.outputs[0].dtype != sizes.dtype:
                sizes = tf.cast(sizes, op.outputs[0].dtype)
        replace_each(op, [sizes])


def _replace_gradient(rows: _Rows, tensor: tf.Tensor, gradient: Gradient) -> None:
    """Makes what takes a gradient of each id take that of each bag."""
    waits = [rows.graph.get_operation_by_name(name) for name in gradient.waits]
    with in_place_of(rows.graph, tensor.op), tf.control_dependencies(waits):
        of_bags = _of_bags(rows, gradient.repeated)
        # TensorFlow lets an op read another tensor in the place of one only if their shapes agree.
        shapeless = tf.compat.v1.placeholder_with_default(of_bags, None, name=FUSED_NAME)
    forbid_feeding(shapeless.op, [0])
    for name in gradient.readers:
        reader = rows.graph.get_operation_by_name(name)
        if reader.type != _REDUCE:
            for position, read in enumerate(reader.inputs):
                if read is tensor:
                    reader._update_input(  # pylint: disable=protected-access
                        position, shapeless)
        elif reader.outputs[0].consumers():
            with in_place_of(rows.graph, reader):
                reduced = library().mx_rec_reduce_pooled(
                    of_bags, reader.inputs[1], rows.ends, rows.none, rows.none, reader.inputs[2],
                    name=FUSED_NAME)
            replace_each(reader, [reduced])
        else:
            # An update has taken over what it does.
            forbid_feeding(reader, [0])


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


def _read_rest(graph: tf.Graph, op: tf.Operation, fused: Set[int]) -> None:
    """Reads the rows of those members of a group that stay by an op of their own."""
    rest = [at for at in range(op.get_attr("N")) if at not in fused]
    if not rest:
        return
    members = op.get_attr("N")
    inputs = list(op.inputs)
    lists = [[inputs[start + at] for at in rest] for start in range(0, len(inputs), members)]
    with in_place_of(graph, op):
        if len(rest) == 1:
            embeddings = [library().mx_rec_embed(*[part[0] for part in lists], name="embedding")]
        else:
            embeddings = list(library().mx_rec_embed_many(*lists, name="embedding"))
    for at, embedding in zip(rest, embeddings):
        replace_tensor(op.outputs[at], embedding)
