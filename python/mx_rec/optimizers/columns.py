"""Finds gradients that are columns of the gradient of a concatenation."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.tensorflow.names import tensor_util

# Ops between a slice and what reads it.
_MOST_PASSED = 8
_SLICES = frozenset(("Slice", "Split", "SplitV"))


class Sliced(NamedTuple):
    """A gradient that another one has as columns, with the same sizes before the last.

    Attributes:
        whole: The other one, float32 (s..., width).
        first: The first of the columns.
        passed: The tensors that need not be computed: the slice, and its copies.
        control_inputs: What these wait for, beside the slices of `whole`.
    """

    whole: tf.Tensor
    first: int
    passed: List[tf.Tensor]
    control_inputs: List[tf.Operation]


def sliced(grad: tf.Tensor) -> Optional[Sliced]:
    """Looks for the slice that tf.gradients makes for an input of a concatenation.

    tf.concat along the last dimension has such a gradient: tf.split of the gradient of the whole,
    or a tf.slice for each input if there are at most 16.

    Args:
        grad: float32 (s..., dim), dim known.

    Returns:
        What it is columns of; None if it is no such slice, or one made in another branch or loop
        than the present one.
    """
    passed = []  # type: List[tf.Tensor]
    control_inputs = []  # type: List[tf.Operation]
    rank = grad.shape.rank
    dim = grad.shape.as_list()[-1] if rank else None
    # pylint: disable=protected-access
    present = grad.graph._get_control_flow_context()
    for _ in range(_MOST_PASSED):
        op = grad.op
        if dim is None or op._get_control_flow_context() is not present:
            return None
        passed.append(grad)
        control_inputs.extend(_waits(op))
        # Feature columns and layers give a tensor of two dimensions the shape that it has.
        if op.type == "Identity" or op.type == "Reshape" and rank == 2 and grad.shape.rank == 2 \
                and grad.shape.as_list()[-1] == dim and op.inputs[0].shape.rank == 2:
            grad = op.inputs[0]
            continue
        if op.type not in _SLICES:
            return None
        whole = op.inputs[1 if op.type == "Split" else 0]
        widths, place = _widths_of_slices(op, grad.value_index, whole.shape.rank)
        before = widths[:place + 1]
        if not before or before[-1] != dim or any(not width or width < 0 for width in before):
            return None
        return Sliced(whole, sum(width or 0 for width in before[:-1]), passed, control_inputs)
    return None


def _widths_of_slices(op: tf.Operation, place: int,
                      rank: Optional[int]) -> Tuple[Sequence[Optional[int]], int]:
    """Returns how many columns each slice has, and which one is meant: output `place` of an op.

    None are known if the slices are not all sizes of the other dimensions.
    """
    if op.type == "Slice":
        return _widths_of_concatenated(op, rank)
    axis = _number(op.inputs[0 if op.type == "Split" else 2])
    if axis is None or axis != -1 and (rank is None or axis != rank - 1):
        return [], place
    if op.type == "SplitV":
        return _widths(op.inputs[1]), place
    return [output.shape.as_list()[-1] if output.shape.rank else None
            for output in op.outputs], place


def _widths_of_concatenated(op: tf.Operation,
                            rank: Optional[int]) -> Tuple[Sequence[Optional[int]], int]:
    """Returns the widths of what was concatenated, and of which of them a slice is the gradient."""
    begin, size = op.inputs[1:]
    offsets = begin.op
    if offsets.type != "ConcatOffset":
        return [], 0
    axis, *shapes = list(offsets.inputs)
    number = _number(axis)
    # Its own slice, as long as that input: then the sizes before the last are whole.
    if rank is None or number not in (-1, rank - 1) or size is not shapes[begin.value_index]:
        return [], 0
    return [_last_size(shape) for shape in shapes], begin.value_index


def _widths(sizes: tf.Tensor) -> Sequence[Optional[int]]:
    """Returns the sizes that a SplitV takes: constants, or the last ones of stacked shapes."""
    known = tensor_util.constant_value(sizes)
    if known is not None:
        return [int(one) for one in known]
    squeeze = sizes.op
    if squeeze.type != "Squeeze" or squeeze.inputs[0].op.type != "Slice":
        return []
    stacked, begin, size = squeeze.inputs[0].op.inputs
    all_of_row = tensor_util.constant_value(size)
    if stacked.op.type != "Pack" or stacked.op.get_attr("axis") != 1 \
            or all_of_row is None or list(all_of_row) != [1, -1]:
        return []
    shapes = list(stacked.op.inputs)
    ranks = shapes[0].shape
    if ranks.rank != 1 or ranks.as_list()[0] is None \
            or _row(begin) not in (-1, ranks.as_list()[0] - 1):
        return []
    return [_last_size(shape) for shape in shapes]


def _row(begin: tf.Tensor) -> Optional[int]:
    """Returns the row in which a slice of stacked shapes begins, at its first column."""
    known = tensor_util.constant_value(begin)
    if known is not None:
        return int(known[0]) if len(known) == 2 and known[1] == 0 else None
    if begin.op.type != "Pack" or len(begin.op.inputs) != 2 or _number(begin.op.inputs[1]) != 0:
        return None
    return _number(begin.op.inputs[0])


def _last_size(shape: tf.Tensor) -> Optional[int]:
    """Returns the last element of a tensor that is a shape, if that is known."""
    known = tensor_util.constant_value(shape)
    if known is not None:
        return int(known[-1]) if len(known) else None
    if shape.op.type not in ("Shape", "ShapeN"):
        return None
    sizes = shape.op.inputs[shape.value_index].shape
    last = sizes.as_list()[-1] if sizes.rank else None
    return None if last is None else int(last)


def _number(tensor: tf.Tensor) -> Optional[int]:
    """Returns a constant, also one modulo another, as the gradient of tf.concat has its axis."""
    if tensor.op.type == "FloorMod":
        number, divisor = [_number(one) for one in tensor.op.inputs]
        return number % divisor if number is not None and divisor else None
    known = tensor_util.constant_value(tensor)
    return int(known) if known is not None and known.ndim == 0 else None


def _waits(op: tf.Operation) -> List[tf.Operation]:
    """Returns what an op that is left out waits for.

    TensorFlow lets the constants wait that an op takes, if they are made in the same scope as it.
    """
    found = []  # type: List[tf.Operation]
    seen, waiting = {op}, [op]
    while waiting:
        one = waiting.pop()
        found.extend(wait for wait in one.control_inputs if not _ties_slices(wait))
        if one.type in ("Shape", "ShapeN"):
            continue
        for tensor in one.inputs:
            # Sizes are integers, what is sliced is float.
            if tensor.dtype != tf.float32 and tensor.op not in seen:
                seen.add(tensor.op)
                waiting.append(tensor.op)
    return found


def _ties_slices(op: tf.Operation) -> bool:
    """Whether an op waits for slices alone, as the one that ties the gradients of an op together.

    These have no effect but their values.
    """
    return op.type == "NoOp" and not op.inputs and all(
        one.type in _SLICES and not one.control_inputs for one in op.control_inputs)


__all__ = ["Sliced", "sliced"]
