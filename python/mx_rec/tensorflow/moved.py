"""Tensor objects that become the outputs of another op: whoever holds them has the new ones.

Up to TensorFlow 2.12 a tensor object of Python says itself which op it belongs to. Later its op is
fixed when it is made, and the object gets a class whose properties are those of the new tensor.
"""

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

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


class Places:
    """Where the tensor objects of ops are: outputs of their own op, or of one that they moved to.

    Args:
        operations: The ops.
    """

    def __init__(self, operations: Sequence[tf.Operation]) -> None:
        self._operations = operations
        self._moved = {id(output): _place(output) + (getattr(output, _STANDS_FOR, None),)
                       for op in operations for output in _outputs(op) if output.op is not op}

    def take_back(self, later: Sequence[tf.Operation] = ()) -> Dict[str, str]:
        """Makes tensor objects outputs of the ops again that they were outputs of.

        Args:
            later: Ops that were made later, whose tensor objects were their own.

        Returns:
            The names of the objects that had moved since, by those that they had there.
        """
        renamed, seen = {}, set()  # type: Dict[str, str], Set[int]
        for op in list(self._operations) + list(later):
            for place, output in enumerate(list(_outputs(op))):
                # An op that an object has left still lists it, behind the first one.
                if id(output) in seen:
                    continue
                seen.add(id(output))
                name, before = output.name, self._moved.get(id(output), (op, place, None))
                if _place(output) != before[:2]:
                    _put(output, *before)
                    renamed[name] = output.name
        return renamed


def _outputs(op: tf.Operation) -> List[tf.Tensor]:
    """The list of an op's tensor objects."""
    return op._outputs if hasattr(op, "_outputs") else op.outputs  # pylint: disable=W0212


def _place(output: tf.Tensor) -> Tuple[tf.Operation, int]:
    return output.op, output.value_index


def _put(output: tf.Tensor, op: tf.Operation, place: int, value: Optional[tf.Tensor]) -> None:
    """Makes a moved object an output of an op, where it stands for `value` or is the op's own."""
    # pylint: disable=protected-access
    if not hasattr(output, _STANDS_FOR):
        _outputs(output.op)[output.value_index] = tf.Tensor(
            output.op, output.value_index, output.dtype)
        output._op, output._value_index = op, place
        output._name = output._tf_output = None
        _outputs(op)[place] = output
        return
    now = getattr(output, _STANDS_FOR)
    _outputs(now.op)[now.value_index] = now
    if value is None:
        output.__class__ = type(output).__mro__[1]
        delattr(output, _STANDS_FOR)
    else:
        setattr(output, _STANDS_FOR, value)
    _outputs(op)[place] = output


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
