"""What a saved table holds: the engine loads it into a table of its own, and exports that."""

import json
import os
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint import tables
from mx_rec.core.table import scope_of
from mx_rec.ops import library
from mx_rec.ops.lookups import find_rows


class Contents(NamedTuple):
    """Keys and rows of a table.

    Attributes:
        keys: int64 (n).
        rows: Their embeddings, float32 (n, dim).
        slots: The slots that were wanted and are there, by name, in the form of `rows`, or (n, 1)
            of a slot with one float for the row.
    """

    keys: np.ndarray
    rows: np.ndarray
    slots: Dict[str, np.ndarray]


# As the engine calls the admission history of a table among what comes with its rows.
HISTORY = "hist_rec"

# Rows that are looked up at once.
_AT_ONCE = 1 << 16


def read_table(links: Sequence[str], table: str, described: Sequence[Any],
               slots: Sequence[str] = (), found: bool = False) -> Contents:
    """Reads a table of a checkpoint, whole or in parts, as a restore gives it.

    Args:
        links: The directories of a whole save and of the deltas that follow it, in order.
        table: Name of the table.
        described: What `tables.describe` says of each of its directories in them.
        slots: Names of the slots that are wanted.
        found: Whether rows are left out that lookups without training do not find: those of keys
            below the access threshold.

    Raises:
        tf.errors.OpError: If a file is damaged or missing, or there is no memory.
    """
    there = {slot["name"] for one in described if one["rows"] for slot in one["slots"]}
    names = [slot for slot in slots if slot in there]
    config = {"name": table, "dim": described[0]["dim"],
              "capacity": max(1, sum(one["rows"] for one in described)), "seed": 0,
              "init_param": 1.0, "padding_keys": [], "initializer": {"kind": "zeros"}}
    paths = b"\0".join(os.fsencode(os.path.abspath(os.path.join(link, table))) for link in links)
    stored = (described[0]["config"] or {}).get("row_storage")
    if stored:
        config["row_storage"] = stored
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        variable, handle = temporary_table(config)
        # Without the history rows count as admitted.
        loaded = "\0".join(names + [HISTORY] if found else names)
        load = library().mx_rec_load(handle, _text(paths), [_text(loaded.encode())])
        with tf.control_dependencies([load.rows]):
            export = library().mx_rec_export(
                handle, [_text(name.encode()) for name in [""] + names])
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        looked_up = [find_rows([handle], [variable], [ids], [tf.fill([1, config["dim"]], value)])[0]
                     for value in (0.0, 1.0)] if found else []
        with tf.compat.v1.Session(config=alone()) as session:
            keys, (rows, *values) = session.run([export.keys, export.values])
            if found and any(one["history"] is not None for one in described):
                is_found = np.zeros([len(keys)], bool)
                for start in range(0, len(keys), _AT_ONCE):
                    part = slice(start, start + _AT_ONCE)
                    zeros, ones = session.run(looked_up, {ids: keys[part]})
                    # A row that depends on what absent keys get is not found.
                    is_found[part] = np.all(zeros.view(np.uint32) == ones.view(np.uint32), axis=1)
                keys, rows, *values = [one[is_found] for one in [keys, rows] + values]
    return Contents(keys, rows, dict(zip(names, values)))


def sound_table(path: str, what: str, look: Callable[[str], Any] = tables.describe) -> Any:
    """Returns what is found in the directory of a table, if its files are sound.

    Args:
        path: The directory.
        what: Begins the error: what cannot be done.
        look: `tables.describe` or `tables.verify`.

    Raises:
        tf.errors.DataLossError: If they are not.
    """
    try:
        return tables.sound(path, look(path))
    except tables.TableError as error:
        raise tf.errors.DataLossError(None, None, "{}: {}".format(what, error)) from error


def temporary_table(config: Dict[str, Any]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Adds a table to the default graph that ends with its session, and lies in memory.

    Args:
        config: A configuration, such as the one that is saved with a table.

    Returns:
        Its variable and its handle.
    """
    plain = {name: value for name, value in config.items() if name not in ("tier", "track_changes")}
    with tf.device("/cpu:0"):
        made = library().mx_rec_table(_text(json.dumps(plain).encode("utf-8")),
                                      tf.zeros([0, int(config["dim"])]),
                                      name=scope_of(config["name"]))
    return made[0], made[1]


def alone() -> tf.compat.v1.ConfigProto:
    """The configuration of a session that takes no accelerator."""
    return tf.compat.v1.ConfigProto(device_count={"GPU": 0})


def _text(text: bytes) -> tf.Tensor:
    return tf.constant(np.frombuffer(text, np.uint8), tf.uint8)
