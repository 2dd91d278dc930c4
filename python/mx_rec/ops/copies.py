"""Copies of variables on their way into the plugin's ops.

TensorFlow lends an op the memory of its inputs. That of a variable of the old kind (a reference
variable: `tf.Variable` with `use_resource=False`) is written in place by an assignment, also while
an op of another step reads it, and `Identity`, by which a variable is read, does not copy. The
plugin's ops need memory that stays as it is, so such an input is copied when its op is made, by an
op of TensorFlow's. Scalars need none: the plugin copies them itself, at once. Resource variables
need none: while somebody reads their memory, an assignment takes other memory.

A copy that is made beside an assignment holds, element by element, the old value or the new one.
Not seen are variables whose tensor a dataset, a queue or a feed hands on.
"""

from typing import Any, Iterable

import tensorflow as tf

from mx_rec.tensorflow.names import RefVariable, known_gradients

# The gradient of the copy, which TensorFlow's op has not.
_GRADIENT = "MxRecCopyOfVariable"

# Ops whose output may be the memory of an input: always, or for some shapes and attributes.
_PASS_ON = frozenset((
    "AddN", "Bitcast", "BroadcastTo", "Cast", "CheckNumerics", "Concat", "ConcatV2",
    "DebugIdentity", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Merge",
    "NextIteration", "Pack", "Pad", "PadV2", "PlaceholderWithDefault", "PreventGradient", "Print",
    "Reshape", "Reverse", "ReverseV2", "Slice", "Snapshot", "Split", "SplitV", "Squeeze",
    "StopGradient", "StridedSlice", "Switch", "TensorArrayReadV3", "TensorArrayWriteV3", "Tile",
    "Transpose", "Unpack"))


def copies_of_variables(value: Any) -> Any:
    """Returns `value` with copies in place of tensors that may be the memory of a variable.

    Args:
        value: An argument of one of the plugin's ops, or a list or tuple of such.
    """
    if isinstance(value, (list, tuple)):
        is_ours = (tf.Tensor, RefVariable)
        return [copies_of_variables(one) if isinstance(one, is_ours) else one for one in value]
    if isinstance(value, RefVariable):
        value = tf.convert_to_tensor(value)
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or value.shape.rank == 0:
        return value
    if not may_be_a_variable(value):
        return value
    with value.graph.as_default(), value.graph.gradient_override_map({"DeepCopy": _GRADIENT}):
        return tf.raw_ops.DeepCopy(x=value, name="copy_of_variable")


def may_be_a_variable(tensor: tf.Tensor) -> bool:
    """Returns whether the memory of a tensor may be that of a reference variable."""
    seen = set()
    todo = [tensor]
    while todo:
        one = todo.pop()
        if one.dtype._is_ref_dtype:  # pylint: disable=protected-access
            return True
        if one.op in seen:
            continue
        seen.add(one.op)
        if one.op.type in _PASS_ON:
            todo.extend(one.op.inputs)
        elif one.op.type == "Placeholder":
            todo.extend(_captured(one))
    return False


def _captured(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    """The tensors outside that a placeholder of a function stands for; none of others."""
    captures = getattr(tensor.graph, "captures", None)
    pairs = captures.items() if hasattr(captures, "items") else captures or ()
    return [outer for outer, inner in pairs if inner is tensor and isinstance(outer, tf.Tensor)]


def _gradient(op: tf.Operation, grad: Any) -> Any:
    """Gradient of a copy: that of what was copied."""
    del op
    return grad


if _GRADIENT not in known_gradients():
    tf.RegisterGradient(_GRADIENT)(_gradient)
