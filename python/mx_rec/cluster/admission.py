"""Admission to tables on parameter servers: thresholds and evictions of all their parts."""

from typing import Callable, List

import tensorflow as tf

from mx_rec.cluster.tables import encode, parts_of
from mx_rec.ops import library


def set_part_thresholds(table: tf.Operation, value: tf.Tensor, name: str) -> tf.Tensor:
    """Adds the ops that change the access threshold of a table.

    Args:
        table: The op that stands for it.
        value: int32 scalar, the new threshold.
        name: Name of the result.

    Returns:
        int32 scalar, the value, once all parts have it.
    """
    done = _each_part(table, lambda config, **part: library().mx_rec_part_set_threshold(
        config, value, name="set_threshold_of_part", **part))
    with tf.control_dependencies(done):
        return tf.identity(value, name=name)


def evict_parts(table: tf.Operation, name: str) -> tf.Tensor:
    """Adds the ops that let go of the stale keys of a table.

    Args:
        table: The op that stands for it.
        name: Name of the result.

    Returns:
        int64 (2): keys that went, and keys that are still known.
    """
    return tf.add_n(_each_part(table, lambda config, **part: library().mx_rec_part_evict(
        config, name="evict_part", **part)), name=name)


def _each_part(table: tf.Operation, make: Callable[..., tf.Tensor]) -> List[tf.Tensor]:
    """Adds an op for each part of a table, on its parameter server."""
    parts = parts_of(table)
    made = []  # type: List[tf.Tensor]
    for part in range(parts.count):
        with tf.device(parts.servers[part // parts.together]):
            config = tf.constant(encode(parts.config), name="config")
            made.append(make(config, part=part, parts=parts.count))
    return made
