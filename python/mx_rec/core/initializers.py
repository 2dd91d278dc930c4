"""Maps TensorFlow's initializer objects to the engine's description of new rows."""

import hashlib
import inspect
import json
from typing import Any, Dict, Optional, Tuple

import numpy as np
import tensorflow as tf

from mx_rec import plugin
from mx_rec.constants.constants import DEFAULT_SEED
from mx_rec.ops import library
from mx_rec.tensorflow.names import tensor_util

SUPPORTED = ("zeros", "ones", "constant", "random_uniform", "random_normal", "truncated_normal",
             "variance_scaling (also glorot, he and lecun)")

# The classes, which TensorFlow's releases have in several modules, and Keras in its own.
_KINDS = frozenset(("Zeros", "Ones", "Constant", "RandomUniform", "RandomNormal", "TruncatedNormal",
                    "VarianceScaling"))


def describe_initializer(initializer: Any, rows: int, dim: int, table: str) -> Dict[str, Any]:
    """Describes an initializer for the engine.

    Args:
        initializer: A TensorFlow v1, v2 or Keras initializer: an object, or its class.
        rows: Rows of the table as its creator states them; with `dim` it sets the fans of
            variance_scaling, as the shape (rows, dim) of a variable does.
        dim: Columns of the table.
        table: Name of the table, for errors.

    Returns:
        The engine's JSON object: "kind" and its numbers.

    Raises:
        ValueError: If it is none of the supported initializers, or has a number that is not
            known when the graph is built.
    """
    if inspect.isclass(initializer) and _is_tensorflow(initializer):
        initializer = initializer()
    if not _is_tensorflow(type(initializer)):
        raise _unsupported(initializer, table)

    def number(name: str) -> float:
        return _number(table, name, getattr(initializer, name))

    kind = _kind(initializer)
    if kind == "Zeros":
        return {"kind": "zeros"}
    if kind == "Ones":
        return {"kind": "ones"}
    if kind == "Constant":
        return {"kind": "constant", "value": number("value")}
    if kind == "RandomUniform":
        least = 0.0 if initializer.minval is None else number("minval")
        most = 1.0 if initializer.maxval is None else number("maxval")
        return {"kind": "random_uniform", "min": least, "max": most}
    if kind == "TruncatedNormal":
        return {"kind": "truncated_normal", "mean": number("mean"), "stddev": number("stddev")}
    if kind == "RandomNormal":
        return {"kind": "random_normal", "mean": number("mean"), "stddev": number("stddev")}
    if kind == "VarianceScaling":
        distribution = initializer.distribution
        return {
            "kind": "variance_scaling",
            "scale": number("scale"),
            "mode": initializer.mode,
            "distribution": "truncated_normal" if distribution == "normal" else distribution,
            "fan_in": float(rows),
            "fan_out": float(dim),
        }
    raise _unsupported(initializer, table)


def check_table(name: str, initializer: Dict[str, Any], config: bytes) -> str:
    """Asks the engine whether a table can be made by a configuration.

    Args:
        name: The table's name.
        initializer: What `describe_initializer` made.
        config: The whole configuration as the op MxRecTable takes it: JSON.

    Returns:
        How this process reads rows on disk, of a table that has some; else nothing.

    Raises:
        ValueError: If it cannot, with the table, the setting and its value: a stddev below 0, a
            min above max, numbers that do not fit float32.
    """
    library()  # TensorFlow has to be the first to open the plugin.
    status, result = plugin.call("mx_rec_check_table", config, len(config))
    text = result.decode("utf-8", "replace")
    if status == 0:
        return text
    if text.startswith("initializer") or text.startswith("the initializer"):
        raise ValueError("'emb_initializer' of the table {!r} is {}, of which rows cannot be "
                         "made: {}".format(name, json.dumps(initializer, sort_keys=True), text))
    raise ValueError("the table {!r} cannot be made: {}".format(name, text))


def table_seed(initializer: Any, table_name: str) -> int:
    """Chooses the seed of a table's new rows.

    Args:
        initializer: The table's initializer.
        table_name: The table's name; tables with equal seeds get different rows.

    Returns:
        An int in [0, 2**64), the same in every process: made from the initializer's seed, else
        the graph's seed, else 10086, and the name.

    Raises:
        ValueError: As `seed_of`.
    """
    seed = seed_of(initializer, table_name)
    if seed is None:
        seed = tf.compat.v1.get_default_graph().seed
    if seed is None:
        seed = DEFAULT_SEED
    digest = hashlib.sha256("{}:{}".format(int(seed), table_name).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "little")


def seed_of(initializer: Any, table: str) -> Optional[int]:
    """Returns the seed of an initializer as an int of Python, None if it has none.

    Args:
        initializer: The table's initializer.
        table: Name of the table, for the error.

    Raises:
        ValueError: If the seed is no integer that is known when the table is created.
    """
    # Keras 3 draws a seed where none was given, and keeps what was given beside it.
    seed = getattr(initializer, "_init_seed", getattr(initializer, "seed", None))
    try:
        number = None if seed is None else int(seed)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("'emb_initializer' of the table {!r}: seed should be an int that is known "
                         "when the table is created, but is {!r}.".format(table, seed)) from None
    return number


def _is_tensorflow(kind: type) -> bool:
    """Whether the class is TensorFlow's or Keras's: a user's subclass may compute anything."""
    module: Tuple[str, ...] = tuple(kind.__module__.split("."))
    return module[0] in ("tensorflow", "tensorflow_core", "keras", "tf_keras")


def _kind(initializer: Any) -> str:
    """Which of `_KINDS` an initializer is, by its class or the nearest base; "" if none."""
    return next((kind.__name__ for kind in type(initializer).__mro__
                 if kind.__name__ in _KINDS and _is_tensorflow(kind)), "")


def _number(table: str, name: str, value: Any) -> float:
    if isinstance(value, tf.Tensor):
        value = tensor_util.constant_value(value)
    array = np.asarray(value)
    # An int beyond 64 bits is an object for NumPy.
    is_number = array.shape == () and (array.dtype.kind in "iuf" or type(value) is int)
    try:
        number = float(value) if is_number else float("nan")
    except OverflowError:
        number = float("inf")
    if not np.isfinite(number):
        raise ValueError("'emb_initializer' of the table {!r}: {} should be one finite number that "
                         "is known when the table is created, but is {!r}.".format(
                             table, name, value))
    return number


def _unsupported(initializer: Any, table: str) -> ValueError:
    kind = initializer if inspect.isclass(initializer) else type(initializer)
    return ValueError("'emb_initializer' of the table {!r} is a {}.{}, which tables cannot use; "
                      "supported are TensorFlow's {}.".format(
                          table, kind.__module__, kind.__name__, ", ".join(SUPPORTED)))
