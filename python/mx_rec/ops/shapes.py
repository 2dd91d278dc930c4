"""Static shapes of the plugin's ops, as far as TensorFlow 1.15 cannot infer them itself.

The C API of TensorFlow 1.15 lets a shape function see the first input and state the first output
only. What follows from other inputs is stated here when an op is made. A graph that is imported
later (a MetaGraph, a SavedModel) knows less of these shapes; its values are the same.
"""

from typing import Any, Callable, Dict, List, Optional

import tensorflow as tf

Shapes = List[tf.TensorShape]


def _of_ids(op: tf.Operation, ids: int, rows: int) -> tf.TensorShape:
    """Shape of the input `ids` with the last dimension of the input `rows` behind it."""
    return op.inputs[ids].shape.concatenate(_last(op.inputs[rows]))


def _last(tensor: tf.Tensor) -> tf.TensorShape:
    """The last dimension of a tensor as a shape of rank 1."""
    if tensor.shape.rank is None:
        return tf.TensorShape([None])
    return tensor.shape[-1:]


_SCALAR = tf.TensorShape([])
_VECTOR = tf.TensorShape([None])

# One shape per output, by op type; ops that are not here have one scalar output.
_SHAPES = {
    "MxRecTable": lambda op: [op.inputs[1].shape, _SCALAR],
    "MxRecIdOffset": lambda op: [_VECTOR, op.inputs[1].shape],
    "MxRecPrepare": lambda op: [_VECTOR] * op.get_attr("N") + [op.inputs[-1].shape],
    "MxRecClaim": lambda op: [_VECTOR, op.inputs[1].shape],
    "MxRecObserve": lambda op: [_VECTOR, op.inputs[1].shape],
    "MxRecAdmit": lambda op: [_VECTOR, op.inputs[2].shape],
    "MxRecEvict": lambda op: [tf.TensorShape([2])],
    "MxRecTableStats": lambda op: [tf.TensorShape([10])],
    "MxRecLookup": lambda op: [_of_ids(op, 2, 1)],
    "MxRecRestore": lambda op: [_of_ids(op, 1, 0)],
    "MxRecEmbed": lambda op: [_of_ids(op, 3, 1)],
    "MxRecReduce": lambda op: [_of_ids(op, 2, 0)],
    "MxRecFind": lambda op: [_of_ids(op, 2, 1)],
    "MxRecSave": lambda op: [_SCALAR, _SCALAR],
    "MxRecSaveDelta": lambda op: [_SCALAR, _SCALAR, _SCALAR],
    "MxRecLoad": lambda op: [_SCALAR, _SCALAR],
    "MxRecExport": lambda op: [_VECTOR, tf.TensorShape([None, None])],
    "MxRecExportSlot": lambda op: [_VECTOR, tf.TensorShape([None, None])],
}  # type: Dict[str, Callable[[tf.Operation], Shapes]]


# Ranks of the inputs that have one, by op type and position; the rest of an Apply op are scalars.
_RANKS = {
    "MxRecTable": {0: 1, 1: 2},
    "MxRecClaim": {0: 0, 2: 1},
    "MxRecObserve": {0: 0, 2: 0},
    "MxRecAdmit": {0: 0, 1: 1},
    "MxRecSetThreshold": {0: 0, 1: 0},
    "MxRecLookup": {0: 0, 1: 2, 2: 1},
    "MxRecRestore": {0: 2},
    "MxRecEmbed": {0: 0, 1: 2, 2: 1},
    "MxRecReduce": {2: 1},
    "MxRecFind": {0: 0, 1: 2, 3: 2},
    "MxRecExportSlot": {0: 0, 1: 1},
    "MxRecSave": {0: 0, 1: 1},
    "MxRecSaveDelta": {0: 0, 1: 1, 2: 0, 3: 0},
    "MxRecLoad": {0: 0, 1: 1},
    "MxRecWarmStart": {0: 0, 1: 1, 2: 1},
}  # type: Dict[str, Dict[int, int]]


def _ranks(op: tf.Operation) -> Dict[int, int]:
    """The rank that each input must have, by position."""
    if op.type == "MxRecPrepare":
        return {at: 0 for at in range(op.get_attr("N"))}
    if not op.type.startswith("MxRecApply"):
        return _RANKS.get(op.type, {0: 0})
    if op.type.endswith("ByRestore"):
        lookups = op.get_attr("N")
        ranks = {0: 0}
        ranks.update({1 + at: 1 for at in range(lookups)})
        ranks.update({at: 0 for at in range(1 + 3 * lookups, len(op.inputs))})
        return ranks
    ranks = {} if op.type.endswith("ByIds") else {1: 1, 2: 2}
    ranks.update({at: 0 for at in range(len(op.inputs)) if at not in (1, 2)})
    return ranks


def _names(op: tf.Operation) -> List[str]:
    """The name of the argument that each input belongs to; an argument may be a list."""
    names = []  # type: List[str]
    for arg in op.op_def.input_arg:
        names.extend([arg.name] * (op.get_attr(arg.number_attr) if arg.number_attr else 1))
    return names


def check_ranks(op: tf.Operation) -> None:
    """Refuses inputs whose rank is known and wrong.

    Args:
        op: An op of the plugin.

    Raises:
        ValueError: If an input has a wrong rank; the message names the op, the input and its shape.
    """
    for at, rank in _ranks(op).items():
        shape = op.inputs[at].shape
        if shape.rank not in (None, rank):
            raise ValueError("{} {!r}: {} must have rank {}, but has shape {}".format(
                op.type, op.name, _names(op)[at], rank, shape))


def state_shapes(op: Optional[tf.Operation]) -> None:
    """Checks the ranks of an op's inputs and states what is known of the shapes of its outputs.

    Args:
        op: An op of the plugin; None (eager execution) is left alone.

    Raises:
        ValueError: If an input has a wrong rank, or TensorFlow knows a shape that contradicts.
    """
    if op is None:
        return
    check_ranks(op)
    shapes = _SHAPES.get(op.type, lambda _: [_SCALAR])(op)
    for output, shape in zip(op.outputs, shapes):
        output.set_shape(shape)


class Library:
    """The Python functions of the plugin's ops; what they return has its static shape."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._module, name)
        if not name.startswith("mx_rec_") or not callable(made):
            return made

        def make(*args: Any, **kwargs: Any) -> Any:
            result = made(*args, **kwargs)
            first = result
            while isinstance(first, (list, tuple)):
                first = first[0]
            state_shapes(getattr(first, "op", None))
            return result

        make.__name__ = name
        make.__doc__ = made.__doc__
        setattr(self, name, make)
        return make
