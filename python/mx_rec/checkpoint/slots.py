"""What another script does not take of a saved table, in the log: slots, and sketches."""

import json
import os
from typing import Any, List, Set

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.ops.optimizers import PUSH, UPDATE, optimizer_of
from mx_rec.optimizers.user_written import slot_names_of
from mx_rec.state.table_variable import table_config_of, table_name_of
from mx_rec.tensorflow.names import tensor_util

_STAGE = "MxRecPartStage"
# What user-written optimizers update by.
_WRITE = "MxRecWriteRows"


def log_other_slots(load: tf.Operation, saved: List[str]) -> None:
    """Logs slots that a graph's optimizers want and a checkpoint has not, and the other way round.

    A graph without optimizers, as for evaluation, wants none and logs nothing.

    Args:
        load: The load op of a table, or of a part of one that parameter servers hold.
        saved: Names of the slots that the checkpoint has of it.
    """
    if load.type == _STAGE:
        name = str(_configurations(load.inputs[0].op.inputs[0])[0]["name"])
        wanted = _slots_of_pushes(load.graph, name)
    else:
        name = table_name_of(load.inputs[0].op)
        wanted = _slots_of_updates(load)
    if not wanted:
        return
    missing = [slot for slot in sorted(wanted) if slot not in saved]
    others = [slot for slot in saved if slot not in wanted]
    if missing:
        logger.warning("the table %r was saved without the slots %s: they start fresh in every "
                       "row.", name, ", ".join(missing))
    if others:
        logger.warning("the table %r was saved with the slots %s, which no optimizer of this "
                       "graph uses: they are ignored.", name, ", ".join(others))


def _slots_of_updates(load: tf.Operation) -> Set[str]:
    """The slots that the updates of a table of this process want."""
    wanted = set()  # type: Set[str]
    for op in load.inputs[0].consumers():
        if op.type not in (UPDATE, _WRITE):
            continue
        optimizer = optimizer_of(op)
        wanted.update(slot_names_of(op) if optimizer is None else optimizer.slot_names)
    return wanted


def _slots_of_pushes(graph: tf.Graph, name: str) -> Set[str]:
    """The slots that the updates of a table on parameter servers want."""
    wanted = set()  # type: Set[str]
    for op in graph.get_operations():
        optimizer = optimizer_of(op) if op.type == PUSH else None
        if optimizer is not None and any(
                one["name"] == name for tensor in list(op.inputs)[:op.get_attr("N")]
                for one in _configurations(tensor)):
            wanted.update(optimizer.slot_names)
    return wanted


def _configurations(tensor: tf.Tensor) -> List[Any]:
    """The configurations in an input of an op on parts, also one of an imported graph."""
    value = json.loads(tensor_util.constant_value(tensor).tobytes().decode("utf-8"))
    return value if isinstance(value, list) else [value]


def log_other_sketch(load: tf.Operation, directory: str) -> None:
    """Logs that counts of keys without rows are not restored: the table has no such sketch.

    Args:
        load: The load op of a table.
        directory: What the table is loaded from.
    """
    path = os.path.join(directory, "hist_sketch")
    if not os.path.isfile(path):
        return
    table = load.inputs[0].op
    # 16 bytes say how wide and deep it is; cells come in fours of 8 bytes.
    saved = os.path.getsize(path) - 16
    wanted = table_config_of(table).get("admission_sketch_bytes", 0) // 32 * 32
    if saved != wanted:
        logger.warning("the table %r was saved with a sketch of %d bytes and has %s: the counts of "
                       "keys without rows are not restored.", table_name_of(table), saved,
                       "one of {} bytes".format(wanted) if wanted else "exact counters")
