"""Reads variables that are tables in a checkpoint, as programs read others.

The manifest of a checkpoint says which variables its tables stand for. A program finds in readers
what a checkpoint has, and takes values from there, or restores what it has found.
"""

import os
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.chains import VARIABLES, read_manifest
from mx_rec.checkpoint.remote import directory_of, local_copy
from mx_rec.stock.checkpoints import saved_values, written_for
from mx_rec.stock.convert import ConvertedVariable


def described_variables(converted: Sequence[ConvertedVariable]) -> List[Dict[str, Any]]:
    """Returns what a manifest says of the variables that became tables.

    Args:
        converted: The variables. Those by ids without limits are left out: no variable has such.

    Returns:
        For each part of each variable and slot: the `name` and the sizes of the `whole` as in a
        checkpoint of variables, the `first` row of the part there and its `rows`; the `table`,
        the `key` of its first row in it, and of a slot its name as `slot`, and what it starts at.
    """
    found = []  # type: List[Dict[str, Any]]
    for one in converted:
        if one.plan.ids.is_lifted:
            continue
        places = [(one.saved, "", 0.0)] + [
            (place, slot.name, slot.initial) for place, slot in zip(one.slots, one.plan.slots)]
        found.extend({
            "name": place.name, "whole": [place.whole] + one.plan.shape[1:], "first": place.first,
            "rows": one.plan.shape[0], "table": one.table.table_name, "key": one.plan.first,
            "slot": slot, "initial": initial} for place, slot, initial in places)
    return found


class _Reader:
    """A reader of a checkpoint that has tables in the place of variables.

    Args:
        reader: TensorFlow's.
        checkpoint: The prefix of the checkpoint.
        tables: The variables that are tables there, by name.
    """

    def __init__(self, reader: Any, checkpoint: str,
                 tables: Dict[str, List[Dict[str, Any]]]) -> None:
        self._reader = reader
        self._checkpoint = checkpoint
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def has_tensor(self, name: str) -> bool:
        """Returns whether the checkpoint has a variable."""
        return name in self._tables or bool(self._reader.has_tensor(name))

    def get_variable_to_shape_map(self) -> Dict[str, List[int]]:
        """Returns the sizes of all variables by their names."""
        return dict(self._reader.get_variable_to_shape_map(),
                    **{name: list(parts[0]["whole"]) for name, parts in self._tables.items()})

    def get_variable_to_dtype_map(self) -> Dict[str, tf.DType]:
        """Returns the types of all variables by their names."""
        return dict(self._reader.get_variable_to_dtype_map(),
                    **{name: tf.float32 for name in self._tables})

    def get_tensor(self, name: str) -> np.ndarray:
        """Returns what a variable holds.

        Args:
            name: Of the variable.
        """
        parts = self._tables.get(tf.compat.as_text(name))
        return self._reader.get_tensor(name) if parts is None else _value(self._checkpoint, parts)


def saved_variables(checkpoint: str) -> Dict[str, List[Dict[str, Any]]]:
    """Returns the variables that are tables in a checkpoint, by name."""
    found = {}  # type: Dict[str, List[Dict[str, Any]]]
    with local_copy(directory_of(checkpoint)) as directory:
        for one in read_manifest(directory).get(VARIABLES, ()) if os.path.isdir(directory) else ():
            found.setdefault(one["name"], []).append(one)
    return found


def _value(checkpoint: str, parts: Sequence[Dict[str, Any]]) -> np.ndarray:
    """Returns what a variable would hold in a checkpoint: the numbers that evaluation computes
    with, whether a row was made or not."""
    whole = parts[0]["whole"]
    if sum(part["rows"] for part in parts) != whole[0]:
        raise tf.errors.InvalidArgumentError(
            None, None, "the variable {!r} has {} of its {} rows under this name: TensorFlow gives "
            "the slots of each part a name of their own.".format(
                parts[0]["name"], sum(part["rows"] for part in parts), whole[0]))
    value = np.empty([whole[0], int(np.prod(whole[1:], dtype=np.int64))], np.float32)
    with local_copy(directory_of(checkpoint)) as directory:
        for part in parts:
            slot, end = part["slot"], part["key"] + part["rows"]
            found = saved_values(directory, part["table"], end,
                                 {slot: part["initial"]} if slot else {}, not slot)
            value[part["first"]:part["first"] + part["rows"]] = found[slot][part["key"]:end]
    return value.reshape(whole)


def patched_reader(stock: Callable[..., Any], filepattern: Any) -> Any:
    """tf.compat.v1.train.NewCheckpointReader, which knows variables that are tables.

    Args:
        filepattern: The prefix of the checkpoint.
    """
    reader, checkpoint = stock(filepattern), tf.compat.as_text(filepattern)
    tables = saved_variables(checkpoint)
    return _Reader(reader, checkpoint, tables) if tables else reader


def patched_start(stock: Callable[..., None], variable: Any, ckpt_file: str, tensor_name: str,
                  *args: Any, **kwargs: Any) -> None:
    """What tf.compat.v1.train.init_from_checkpoint starts a variable by, also with a table.

    Args:
        variable: The variable.
        ckpt_file: The prefix of the checkpoint.
        tensor_name: The name of the variable there.
    """
    parts = saved_variables(ckpt_file).get(tensor_name)
    if parts is not None:
        ckpt_file = written_for(variable.graph, [(tensor_name, "", _value(ckpt_file, parts))])
    stock(variable, ckpt_file, tensor_name, *args, **kwargs)
