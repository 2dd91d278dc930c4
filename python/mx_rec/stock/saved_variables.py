"""What an Estimator says of its variables that are tables in its last checkpoint.

The manifest of a checkpoint says which variables its tables stand for. TensorFlow's own readers of
checkpoints do not know tables, and list the other variables alone.
"""

import os
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.chains import VARIABLES, chain_of, read_manifest
from mx_rec.checkpoint.parts import directories_of
from mx_rec.checkpoint.remote import directory_of, local_copy
from mx_rec.stock.checkpoints import initial_rows, refused_rows, saved_rows
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


def _saved_variables(model_dir: str) -> Dict[str, List[Dict[str, Any]]]:
    """Returns the variables that are tables in the last checkpoint of a model_dir, by name."""
    checkpoint = tf.train.latest_checkpoint(model_dir) if model_dir else None
    if checkpoint is None:
        return {}
    found = {}  # type: Dict[str, List[Dict[str, Any]]]
    with local_copy(directory_of(checkpoint)) as directory:
        for one in read_manifest(directory).get(VARIABLES, ()) if os.path.isdir(directory) else ():
            found.setdefault(one["name"], []).append(one)
    return found


def _value(model_dir: str, parts: Sequence[Dict[str, Any]]) -> np.ndarray:
    """Returns what a variable would hold in the last checkpoint of a model_dir: the numbers that
    evaluation computes with, whether a row was made or not."""
    whole = parts[0]["whole"]
    if sum(part["rows"] for part in parts) != whole[0]:
        raise tf.errors.InvalidArgumentError(
            None, None, "the variable {!r} has {} of its {} rows under this name: TensorFlow gives "
            "the slots of each part a name of their own.".format(
                parts[0]["name"], sum(part["rows"] for part in parts), whole[0]))
    value = np.empty([whole[0], int(np.prod(whole[1:], dtype=np.int64))], np.float32)
    with local_copy(directory_of(tf.train.latest_checkpoint(model_dir))) as directory:
        for part in parts:
            slot, end = part["slot"], part["key"] + part["rows"]
            rows, slots = saved_rows(
                directory, part["table"],
                lambda described, end=end: initial_rows(described[0]["config"], end),
                {slot: part["initial"]} if slot else {})
            if slot:
                rows = slots.get(slot, np.full_like(rows, part["initial"]))
            else:
                rows[np.all([refused_rows(path, end) for path in directories_of(
                    chain_of(directory)[-1], part["table"])], axis=0)] = 0
            value[part["first"]:part["first"] + part["rows"]] = rows[part["key"]:end]
    return value.reshape(whole)


def patched_variable_names(stock: Callable[..., Any], self: Any) -> List[str]:
    """Estimator.get_variable_names, which names variables that are tables, too."""
    return sorted(set(stock(self)).union(_saved_variables(self.model_dir)))


def patched_variable_value(stock: Callable[..., Any], self: Any, name: str) -> Any:
    """Estimator.get_variable_value, which gives what a variable that is a table would hold.

    Args:
        name: Of the variable.
    """
    parts = _saved_variables(self.model_dir).get(name[:-2] if name.endswith(":0") else name)
    return stock(self, name) if parts is None else _value(self.model_dir, parts)
