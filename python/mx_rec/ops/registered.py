"""The ops that this process has loaded, as TensorFlow's registry of ops defines them."""

import re
import sys
from typing import FrozenSet

from tensorflow.core.framework import op_def_pb2

from mx_rec.tensorflow.names import c_api

# They keep a state and change nothing that is read elsewhere.
_DRAWS = re.compile(r"Random|(Parameterized)?TruncatedNormal$|Multinomial$|Stateless")

# What they give is not in their inputs alone.
_NOT_OF_INPUTS_ALONE = frozenset((
    "PlaceholderWithDefault", "Switch", "Merge", "Enter", "Exit", "NextIteration"))


class _Registered:
    """What was found last, and how many modules there were then."""

    ops = b""
    pure = frozenset()  # type: FrozenSet[str]
    modules = 0


_registered = _Registered()


def registered_ops() -> bytes:
    """Returns the definitions of all ops that this process has loaded, a serialized OpList.

    They are asked for again after an import: `tf.load_op_library` makes a module of what it loads.
    A list without the newest ops would be safe, since ops that it lacks never move.
    """
    if _registered.modules != len(sys.modules):
        buffer = c_api.TF_GetAllOpList()
        try:
            _registered.ops = c_api.TF_GetBuffer(buffer)
        finally:
            c_api.TF_DeleteBuffer(buffer)
        _registered.pure = frozenset()
        _registered.modules = len(sys.modules)
    return _registered.ops


def only_computes(op_type: str) -> bool:
    """Returns whether ops of a type do no more than compute outputs from their inputs.

    Args:
        op_type: The type; one that is not registered does not.
    """
    given = registered_ops()
    if not _registered.pure:
        _registered.pure = frozenset(
            one.name for one in op_def_pb2.OpList.FromString(given).op
            if one.output_arg and not any(arg.is_ref for arg in one.input_arg)
            and (not one.is_stateful or _DRAWS.match(one.name)))
    # A reference that is read, not changed.
    return op_type in _registered.pure or op_type in ("Identity", "Switch", "Merge")


def gives_the_same(op_type: str) -> bool:
    """Returns whether ops of a type always give the same for the same inputs.

    Args:
        op_type: The type.
    """
    return only_computes(op_type) and not _DRAWS.match(op_type) \
        and op_type not in _NOT_OF_INPUTS_ALONE
