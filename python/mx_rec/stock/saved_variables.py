"""Reads variables that are tables in a checkpoint, as programs read and restore others.

The manifest of a checkpoint says which variables its tables stand for. A program finds in readers
what a checkpoint has, and takes values from there. A graph that has as variables what a checkpoint
has as tables is restored from a temporary one, in which these are written out, row by row.
"""

import contextlib
import functools
import json
import os
import shutil
import tempfile
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.bundles import bundle
from mx_rec.checkpoint.chains import VARIABLES, chain_of, read_manifest
from mx_rec.checkpoint.contents import alone, read_table, sound_table, temporary_table
from mx_rec.checkpoint.loads import expect_shape
from mx_rec.checkpoint.parts import directories_of
from mx_rec.checkpoint.paths import is_remote
from mx_rec.checkpoint.remote import directory_of, local_copy
from mx_rec.checkpoint.table_ops import TableOps
from mx_rec.ops.lookups import find_rows
from mx_rec.state.table_variable import is_table_variable
from mx_rec.stock.analysis import is_update
from mx_rec.stock.checkpoints import saved_tables
from mx_rec.stock.convert import DESCRIBED, saved_places
from mx_rec.stock.dense import CHUNK
from mx_rec.stock.parts import SavedPlace, placement_of
from mx_rec.stock.planned import table_name
from mx_rec.tensorflow.names import NewCheckpointReader


def described_variables(graph: tf.Graph,
                        operations: Iterable[TableOps]) -> List[Dict[str, Any]]:
    """Returns what a manifest says of the variables that became tables.

    Args:
        graph: The graph, which may have been imported.
        operations: What saves the tables.
    """
    names = {op.table_name for op in operations}
    return [part for text in graph.get_collection(DESCRIBED) for part in json.loads(text)
            if part["table"] in names]


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
    with local_copy(directory_of(checkpoint)) as directory:
        return _variables_in(directory)


def _variables_in(directory: str) -> Dict[str, List[Dict[str, Any]]]:
    """Returns the variables that are tables in a directory of some, by name."""
    found = {}  # type: Dict[str, List[Dict[str, Any]]]
    for one in read_manifest(directory).get(VARIABLES, ()) if os.path.isdir(directory) else ():
        found.setdefault(one["name"], []).append(one)
    return found


def _reading(directory: str, parts: Iterable[Dict[str, Any]],
             is_found: bool) -> Callable[[str], Dict[str, np.ndarray]]:
    """Returns what gives `saved_values` of a table, whose parts and slots `parts` has."""
    ends, starts = {}, {}  # type: Dict[str, int], Dict[str, Dict[str, float]]
    for part in parts:
        table, slot = part["table"], part["slot"]
        ends[table] = max(ends.get(table, 0), part["key"] + part["rows"])
        starts.setdefault(table, {}).update({slot: part["initial"]} if slot else {})
    return functools.lru_cache(maxsize=1)(lambda table: saved_values(
        directory, table, ends[table], starts[table], is_found))


def _rows(read: Callable[[str], Dict[str, np.ndarray]], parts: Sequence[Dict[str, Any]],
          first: int, count: int) -> np.ndarray:
    """Returns rows of a variable, float32 (count, dim), of whose `parts` some have them."""
    found = []  # type: List[np.ndarray]
    for part in sorted(parts, key=lambda one: one["first"]):
        begin, end = max(first, part["first"]), min(first + count, part["first"] + part["rows"])
        if begin < end:
            key = part["key"] - part["first"]
            found.append(read(part["table"])[part["slot"]][key + begin:key + end])
    there = sum(map(len, found))
    if there != count:
        raise tf.errors.InvalidArgumentError(
            None, None, "the variable {!r} has {} of its {} rows under this name: TensorFlow gives "
            "the slots of each part a name of their own.".format(parts[0]["name"], there, count))
    return found[0] if len(found) == 1 else np.concatenate(found)


def _value(checkpoint: str, parts: Sequence[Dict[str, Any]]) -> np.ndarray:
    """Returns what a variable would hold in a checkpoint: the numbers that evaluation computes
    with, whether a row was made or not."""
    whole = parts[0]["whole"]
    with local_copy(directory_of(checkpoint)) as directory:
        read = _reading(directory, parts, not parts[0]["slot"])
        return _rows(read, parts, 0, whole[0]).reshape(whole)


class _Wanted(NamedTuple):
    """A variable of a graph that a checkpoint has as a table.

    Attributes:
        variable: The variable.
        saved: Where it would stand in a checkpoint of variables.
        parts: What the manifest says of it.
    """

    variable: Any
    saved: SavedPlace
    parts: List[Dict[str, Any]]


@contextlib.contextmanager
def with_variables(graph: tf.Graph, checkpoint: str) -> Iterator[str]:
    """Gives a checkpoint that has as variables what the graph has as variables.

    Args:
        graph: The graph that is restored.
        checkpoint: Prefix of the checkpoint.

    Yields:
        The prefix of the checkpoint itself if it has no such table, else that of a temporary one.

    Raises:
        tf.errors.DataLossError: If a table's files are damaged.
        tf.errors.InvalidArgumentError: If a variable has another shape.
        ValueError: If a table has keys that the variable has not.
    """
    with local_copy(directory_of(checkpoint)) as directory:
        wanted = _wanted(graph, checkpoint, directory)
        if not wanted:
            yield checkpoint
            return
        # Parameter servers read it as well.
        beside = os.path.dirname(os.path.abspath(checkpoint)) \
            if placement_of([one.variable.op.node_def for one in wanted]).job else None
        folder = tempfile.mkdtemp(prefix="mx_rec_variables_", dir=beside)
        try:
            prefix = os.path.join(folder, "variables")
            # Evaluation and prediction give what a table gives; a training admits every row.
            trains = any(is_update(op.type) for op in graph.get_operations())
            read = _reading(directory, (part for one in wanted for part in one.parts), not trains)
            with bundle(prefix) as writer:
                _link(checkpoint, writer.new_part())
                for one in sorted(wanted, key=lambda one: one.parts[0]["table"]):
                    shape = one.variable.shape.as_list()
                    rows = _rows(read, one.parts, one.saved.first, shape[0])
                    writer.write(one.saved.name, one.saved.spec, rows.reshape(shape))
                    logger.info("the variable %s takes the rows of the table %s of %s.",
                                one.saved.name, one.parts[0]["table"], directory)
            yield prefix
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _wanted(graph: tf.Graph, checkpoint: str, directory: str) -> List[_Wanted]:
    """Finds the variables of a graph that a checkpoint has as tables only."""
    variables = [variable for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
                 if isinstance(variable, tf.Variable) and not is_table_variable(variable)]
    unlimited = saved_tables(checkpoint)
    for name in [variable.op.name for variable in variables]:
        if table_name(name, True) in unlimited:
            raise ValueError(
                "the variable {!r} cannot be restored from {}: it is the table {!r} there, by ids "
                "without limits, which no variable has.".format(
                    name, checkpoint, table_name(name, True)))
    described = _variables_in(directory)
    if not described:
        return []
    places = saved_places(graph)
    known = NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    found = []  # type: List[_Wanted]
    for variable in variables:
        shape = variable.shape.as_list() if variable.shape.rank else []
        place = places.get(variable.op.name, SavedPlace(variable.op.name, [0], shape))
        parts = described.get(place.name)
        # Such tables were trained by an optimizer whose variables stayed TensorFlow's, if these are
        # there as well.
        if parts is None or place.name in known:
            continue
        expect_shape(place.name, place.shape[:1] + shape[1:], parts[0]["whole"], checkpoint)
        found.append(_Wanted(variable, place, parts))
    return found


def _link(checkpoint: str, prefix: str) -> None:
    """Gives the files of a checkpoint's variables another name; remote ones are copied."""
    folder, base = os.path.split(checkpoint)
    for name in tf.io.gfile.listdir(folder or "."):
        if name == base + ".index" or name.startswith(base + ".data-"):
            path, target = os.path.join(folder, name), prefix + name[len(base):]
            if is_remote(path):
                tf.io.gfile.copy(path, target)
            else:
                os.symlink(os.path.abspath(path), target)


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
        ckpt_file = written_for(variable.graph, [(tensor_name, _value(ckpt_file, parts))])
    stock(variable, ckpt_file, tensor_name, *args, **kwargs)


def written_for(graph: tf.Graph, values: Iterable[Tuple[str, np.ndarray]]) -> str:
    """Writes a temporary checkpoint of variables, which stays as long as a graph.

    Args:
        graph: The graph.
        values: Names and values.

    Returns:
        Its prefix.
    """
    folder = tempfile.mkdtemp(prefix="mx_rec_variables_")
    weakref.finalize(graph, shutil.rmtree, folder, True)
    prefix = os.path.join(folder, "variables")
    with bundle(prefix) as writer:
        for name, value in values:
            writer.write(name, "", value)
    return prefix


def _initial_rows(described: Any, count: int) -> np.ndarray:
    """Returns the rows that a table makes of the keys 0, 1, ..., float32 (count, dim).

    Args:
        described: What is on disk of the table, or of a part of it (checkpoint.tables.describe).
        count: Of the keys.
    """
    with tf.Graph().as_default():
        variable, handle = temporary_table(described["config"])
        keys = tf.compat.v1.placeholder(tf.int64, [None])
        found, = find_rows([handle], [variable], [keys], initial=True)
        with tf.compat.v1.Session(config=alone()) as session:
            return np.concatenate([session.run(found, {keys: np.arange(
                first, min(first + CHUNK, count))}) for first in range(0, count, CHUNK)])


def saved_values(directory: str, table: str, count: int, starts: Dict[str, float],
                 is_found: bool) -> Dict[str, np.ndarray]:
    """Reads a table as a variable has its rows: those that were never made start as it made them.

    Args:
        directory: That of the checkpoint's tables, or its last delta.
        table: Name of the table.
        count: Rows of the variable.
        starts: What the slots that are wanted start at, by name.
        is_found: Whether keys that training refuses have zeros, as lookups without training find
            them, and slots as they start.

    Returns:
        The rows, float32 (n, dim), as "", and the same of each slot.

    Raises:
        tf.errors.DataLossError: If the table's files are damaged.
        ValueError: If it has a key that the variable has not.
    """
    links = chain_of(directory)
    described = [[_described(table, path) for path in directories_of(link, table)]
                 for link in links]
    initial = _initial_rows(described[0][0], count)
    refuses = is_found and any(about["history"] is not None and about["history"]["access"] > 1
                               for about in described[-1])
    if refuses:
        initial[:] = 0
    saved = read_table(links, table, [about for link in described for about in link], list(starts),
                       found=refuses)
    keys = saved.keys
    if len(keys) and not (0 <= keys.min() and keys.max() < count):
        raise ValueError("the table {!r} has the key {} and so is no variable of {} rows.".format(
            table, keys.max(), count))
    values = {name: np.full(initial.shape, start, np.float32) for name, start in starts.items()}
    values[""] = initial
    for name, there in dict(saved.slots, **{"": saved.rows}).items():
        values[name][keys] = there
    return values


def _described(name: str, path: str) -> Any:
    """Returns what is on disk of a table, every file of which is read."""
    what = "the table {!r} cannot be restored from {}".format(name, path)
    sound_table(path, what, tables.verify)
    return sound_table(path, what)
