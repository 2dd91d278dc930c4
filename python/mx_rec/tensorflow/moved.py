"""Tensor objects that become the outputs of another op: whoever holds them has the new ones.

Up to TensorFlow 2.12 a tensor object of Python says itself which op it belongs to. Later its op is
fixed when it is made, and the object gets a class whose properties are those of the new tensor.
"""

from typing import Any, Dict, Iterable, Sequence

import tensorflow as tf

# Attribute of a moved object: the tensor that it stands for.
_STANDS_FOR = "_mx_rec_stands_for"
_classes = {}  # type: Dict[type, type]


def move_each(old: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> None:
    """Makes tensor objects of outputs those of other ops, in order.

    Args:
        old: Outputs of ops.
        values: A tensor for each of them, of the same type; no two are the same.

    Raises:
        NotImplementedError: If this TensorFlow does not let them.
    """
    # pylint: disable=protected-access
    for output, value in zip(old, values):
        op, place = value.op, value.value_index
        if hasattr(op, "_outputs"):
            output._op = op
            output._value_index = place
            # TensorFlow finds these anew.
            output._name = output._tf_output = output._shape_val = None
            op._outputs[place] = output
            continue
        outputs = op.outputs
        if not hasattr(output, _STANDS_FOR):
            # One that moves again is of that class.
            output.__class__ = _class_of(type(output))
        setattr(output, _STANDS_FOR, value)
        outputs[place] = output
        if op.outputs[place] is not output:
            raise NotImplementedError(
                "this TensorFlow ({}) does not let another op take over the tensors of {!r}: leave "
                "modify_graph out, and lookups stay in the step.".format(
                    tf.__version__, output.op.name))


def take_back(operations: Iterable[tf.Operation]) -> None:
    """Makes tensor objects that moved to other ops those of the outputs of their first ops again.

    Args:
        operations: The first ops.
    """
    # pylint: disable=protected-access
    for op in operations:
        for place, output in enumerate(op._outputs if hasattr(op, "_outputs") else op.outputs):
            if hasattr(output, _STANDS_FOR):
                value = getattr(output, _STANDS_FOR)
                value.op.outputs[value.value_index] = value
                output.__class__ = type(output).__mro__[1]
                delattr(output, _STANDS_FOR)
            elif hasattr(op, "_outputs") and output.op is not op:
                output.op._outputs[output.value_index] = tf.Tensor(
                    output.op, output.value_index, output.dtype)
                output._op, output._value_index = op, place
                output._name = output._tf_output = None


def _class_of(kind: type) -> type:
    """Returns the subclass of a class of tensors whose objects are what they stand for."""
    if kind not in _classes:
        body = {name: _property(name) for name in ("name", "_name", "op", "_op", "shape", "_shape",
                                                   "value_index")}
        body.update({name: _method(name) for name in ("_as_tf_output", "_as_node_def_input",
                                                      "_set_shape", "consumers", "set_shape")})
        # Without slots of its own, so that objects of the one class can become of the other.
        body["__slots__"] = ()
        _classes[kind] = type(kind.__name__, (kind,), body)
    return _classes[kind]


def _property(name: str) -> Any:
    return property(lambda self: getattr(getattr(self, _STANDS_FOR), name))


def _method(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(self, _STANDS_FOR), name)(*args, **kwargs)

    method.__name__ = name
    return method
