"""Admission to tables on parameter servers: thresholds and evictions of all their parts."""

from typing import Callable, List

import tensorflow as tf

from mx_rec.cluster.tables import parts_of
from mx_rec.ops import library


def set_part_thresholds(table: tf.Operation, value: tf.Tensor) -> tf.Tensor:
    """Adds the ops that change the access threshold of a table.

    Args:
        table: The op that stands for it.
        value: int32 scalar, the new threshold.

    Returns:
        int32 scalar, the value, once all parts have it.
    """
    done = _each_part(table, lambda handle: library().mx_rec_set_threshold(
        handle, value, name="set_threshold_of_part"))
    with tf.control_dependencies(done):
        return tf.identity(value, name="set_threshold")


def evict_parts(table: tf.Operation) -> tf.Tensor:
    """Adds the ops that let go of the stale keys of a table.

    Args:
        table: The op that stands for it.

    Returns:
        int64 (2): keys that went, and keys that are still known.
    """
    return tf.add_n(_each_part(table, lambda handle: library().mx_rec_evict(
        handle, name="evict_part")), name="evict")


def _each_part(table: tf.Operation, make: Callable[[tf.Tensor], tf.Tensor]) -> List[tf.Tensor]:
    """Adds an op for each part of a table, on its parameter server."""
    made = []  # type: List[tf.Tensor]
    for handle in parts_of(table).handles:
        with tf.device(handle.device):
            made.append(make(handle))
    return made
