"""A table on parameter servers: one part on each, by the buckets of its keys.

| op | on | what |
|---|---|---|
| MxRecClusterTable | the worker | stands for the table; gradients are taken of its variable |
| MxRecPart | each parameter server | stands for its part; says whether it is there: sessions wait |
| MxRecPartInit | each parameter server | makes its part, empty; the chief runs it |
| MxRecPartStage, MxRecPartPublish, ... | each parameter server | restores |

The parts are in TensorFlow's collection of shared resources: the Scaffold of a
MonitoredTrainingSession and of an Estimator initializes those, and its workers wait until all are.
"""

import json
import zlib
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.ops import library
from mx_rec.state.table_variable import SHARED_DEVICE, table_variable
from mx_rec.tensorflow.names import resources

# Parts of a table on each parameter server: pushes of several workers overlap in different parts.
PARTS_PER_SERVER = 2

# As many buckets as keys have.
_MOST_PARTS = 4096

# Attribute of an op of type MxRecClusterTable: its devices and configurations.
_PARTS = "_mx_rec_parts"


class Parts(NamedTuple):
    """Where the parts of a table are.

    Attributes:
        servers: The device of each parameter server.
        together: How many parts each of them holds, one after the other.
        config: The configuration of the table, as the ops take it.
        handles: What stands for each part, int64 scalars on their parameter servers.
    """

    servers: List[str]
    together: int
    config: Dict[str, Any]
    handles: List[tf.Tensor]

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self.servers) * self.together

    def attributes(self, server: int) -> Dict[str, int]:
        """Returns what ops take that are for all parts of one parameter server.

        Args:
            server: Its number.
        """
        return dict(part=server * self.together, parts=self.count, count=self.together)


def build(name: str, scope: str, config: Dict[str, Any], devices: List[str],
          is_save: bool) -> Tuple[Any, tf.Tensor]:
    """Adds the ops of one table to the present graph.

    Args:
        name: Name of the table's op.
        scope: Name scope of its other ops.
        config: The configuration of the whole table, as MxRecTable takes it.
        devices: The device of each parameter server.
        is_save: Whether checkpoints contain the table.

    Returns:
        The variable, and the numbers of the table (int64 vector, see
        mx_rec.util.stats.TableStats).
    """
    together = max(1, min(PARTS_PER_SERVER, _MOST_PARTS // len(devices)))
    count = together * len(devices)
    with tf.compat.v1.name_scope(scope):
        text = tf.constant(encode(config), name="config")
        like = tf.zeros([0, config["dim"]], name="like")
    variable = table_variable(
        library().mx_rec_cluster_table(text, like, parts=count, name=name).op)
    parts = Parts(list(devices), together, config, [])
    setattr(variable.op, _PARTS, parts)
    # By the name, as all workers know it: tables spread over the parameter servers.
    setattr(variable.op, SHARED_DEVICE, devices[zlib.crc32(config["name"].encode()) % len(devices)])
    stats = []  # type: List[tf.Tensor]
    for part in range(count):
        with tf.device(devices[part // together]), \
                tf.compat.v1.name_scope("{}part_{}/".format(scope, part)):
            own = tf.constant(encode(parts.config), name="config")
            handle, ready, _ = library().mx_rec_part(own, part=part, parts=count, name="handle")
            made = library().mx_rec_part_init(handle, name="init")
            parts.handles.append(handle)
            resources.register_resource(own, made.op, tf.not_equal(ready, 0))
            stats.append(library().mx_rec_table_stats(handle, name="stats"))
            if is_save:
                path = tf.compat.v1.placeholder(tf.uint8, [None], name="path")
                library().mx_rec_save(handle, path, -1, 0, name="save")
                library().mx_rec_part_stage(handle, path, name="stage")
                library().mx_rec_part_discard(handle, name="discard")
                library().mx_rec_part_publish(handle, name="publish")
    with tf.compat.v1.name_scope(scope):
        total = tf.add_n(stats)
        load = total[0] * 1000 // tf.maximum(total[1], 1)
        # The sixth number is a ratio, all others are sums.
        total = tf.concat([total[:5], [load], total[6:]], 0, name="stats")
    return variable, total


def encode(config: Any) -> np.ndarray:
    """Returns a configuration as the ops take it: JSON in a uint8 vector."""
    return np.frombuffer(json.dumps(config, sort_keys=True).encode("utf-8"), np.uint8)


def parts_of(table: tf.Operation) -> Parts:
    """Returns where the parts of a table are.

    Args:
        table: Its op, of type MxRecClusterTable.

    Raises:
        NotImplementedError: If the graph was imported: it does not tell.
    """
    found = getattr(table, _PARTS, None)
    if found is None:
        raise NotImplementedError(
            "the table op {!r} is of an imported graph, and its table is on parameter servers: "
            "such a graph can be run and saved, but lookups and updates cannot be added to it. "
            "Build the graph with create_table.".format(table.name))
    return found
