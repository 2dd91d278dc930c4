"""Static shapes of the plugin's ops, as far as TensorFlow 1.15 cannot infer them itself.

The C API of TensorFlow 1.15 lets a shape function see the first input and state the first output
only. What follows from other inputs is stated here when an op is made; the plugin infers it from
the ops' definitions. A graph that is imported later (a MetaGraph, a SavedModel) knows less of these
shapes; its values are the same.
"""

import functools
import json
from typing import Any, Dict, List, Optional, Tuple

import tensorflow as tf

from mx_rec import plugin
from mx_rec.ops.copies import copies_of_variables

_definitions = {}  # type: Dict[str, Dict[str, Any]]


def definitions() -> Dict[str, Dict[str, Any]]:
    """Returns the definition of each op of the plugin by its name; include/mx_rec.h has the fields.

    Raises:
        ImportError: If the plugin cannot be loaded.
    """
    if not _definitions:
        status, result = plugin.call("mx_rec_op_definitions")
        if status != 0:
            raise ImportError(result.decode("utf-8", "replace"))
        _definitions.update({one["name"]: one for one in json.loads(result.decode("utf-8"))})
    return _definitions


@functools.lru_cache(maxsize=None)
def _arguments(op_type: str) -> Tuple[List[Tuple[str, str]], List[str]]:
    """The names of what ops of a type take with the number attribute of each, and all of these."""
    definition = definitions()[op_type]
    counts = {arg["name"]: arg["type"].rpartition(" * ")[0]
              for arg in definition["inputs"] + definition["outputs"]}
    return ([(arg["name"], counts[arg["name"]]) for arg in definition["inputs"]],
            sorted(set(filter(None, counts.values()))))


def list_lengths(op: tf.Operation) -> Dict[str, int]:
    """Returns how many tensors the lists of an op have, by their number attributes.

    Args:
        op: An op of the plugin.
    """
    return {name: int(op.get_attr(name)) for name in _arguments(op.type)[1]}


def lists_of(op: tf.Operation) -> Dict[str, List[tf.Tensor]]:
    """Returns the inputs of an op by their names; one that is no list is one of one.

    Args:
        op: An op of the plugin.
    """
    inputs, lengths = iter(op.inputs), list_lengths(op)
    return {name: [next(inputs) for _ in range(lengths[attribute] if attribute else 1)]
            for name, attribute in _arguments(op.type)[0]}


def _dims(shape: tf.TensorShape) -> Optional[List[Optional[int]]]:
    return None if shape.rank is None else shape.as_list()


def state_shapes(op: Optional[tf.Operation]) -> None:
    """Checks the shapes of an op's inputs and states what is known of the shapes of its outputs.

    Args:
        op: An op of the plugin; None (eager execution) is left alone.

    Raises:
        ValueError: If the shape of an input contradicts the op's definition, or TensorFlow knows a
            shape that does. The message names the op, the input and its shape.
    """
    if op is None:
        return
    question = json.dumps({"op": op.type, "inputs": [_dims(one.shape) for one in op.inputs],
                           "lists": list_lengths(op)}).encode("utf-8")
    status, result = plugin.call("mx_rec_infer_shapes", question, len(question))
    text = result.decode("utf-8", "replace")
    if status != 0:
        raise ValueError("{} {!r}: {}".format(op.type, op.name, text))
    for output, dims in zip(op.outputs, json.loads(text)):
        output.set_shape(tf.TensorShape(dims))


class Library:
    """The Python functions of the plugin's ops; what they return has its static shape."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._module, name)
        if not name.startswith("mx_rec_") or not callable(made):
            return made

        @tf.autograph.experimental.do_not_convert
        def make(*args: Any, **kwargs: Any) -> Any:
            with_copies = [copies_of_variables(arg) for arg in args]
            named_copies = {key: copies_of_variables(arg) for key, arg in kwargs.items()}
            result = made(*with_copies, **named_copies)
            first = result
            while isinstance(first, (list, tuple)):
                first = first[0]
            state_shapes(getattr(first, "op", None))
            return result

        make.__name__ = name
        make.__doc__ = made.__doc__
        setattr(self, name, make)
        return make
