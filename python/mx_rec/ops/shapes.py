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
    "MxRecLookup": lambda op: [_of_ids(op, 2, 1)],
    "MxRecRestore": lambda op: [_of_ids(op, 1, 0)],
    "MxRecReduce": lambda op: [_of_ids(op, 2, 0)],
    "MxRecFind": lambda op: [_of_ids(op, 2, 1)],
    "MxRecExport": lambda op: [_VECTOR, tf.TensorShape([None, None])],
    "MxRecExportSlot": lambda op: [_VECTOR, tf.TensorShape([None, None])],
}  # type: Dict[str, Callable[[tf.Operation], Shapes]]


def state_shapes(op: Optional[tf.Operation]) -> None:
    """States what is known of the shapes of an op's outputs.

    Args:
        op: An op of the plugin; None (eager execution) is left alone.

    Raises:
        ValueError: If TensorFlow knows a shape that contradicts.
    """
    if op is None:
        return
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
            first = result[0] if isinstance(result, tuple) else result
            state_shapes(getattr(first, "op", None))
            return result

        make.__name__ = name
        make.__doc__ = made.__doc__
        setattr(self, name, make)
        return make
