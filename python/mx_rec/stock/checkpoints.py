"""Variables of stock models between their tables and checkpoints of variables.

A checkpoint may have as a variable what the graph has as a table: it is taken over. It may have as
a table what the graph has as a variable: it is written out, row by row.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.chains import VARIABLES, chain_of, read_manifest
from mx_rec.checkpoint.commit import listed_tables
from mx_rec.checkpoint.contents import alone, read_table, sound_table, temporary_table
from mx_rec.checkpoint.loads import StagedLoads, expect_rows, tables_to_load
from mx_rec.checkpoint.parts import directories_of, name_of
from mx_rec.checkpoint.paths import is_remote
from mx_rec.checkpoint.remote import directory_of, local_copy
from mx_rec.checkpoint.table_ops import TableOps
from mx_rec.core.rows import FLOAT32
from mx_rec.core.table import Table
from mx_rec.edits.replacing import extensible, kept
from mx_rec.ops.lookups import find_rows
from mx_rec.state.table_variable import is_table_variable
from mx_rec.stock.admission import RowRules, SavedHistory, history_of
from mx_rec.stock.analysis import plan_variables
from mx_rec.stock.planned import Slot, StockVariable, table_name
from mx_rec.stock.convert import places_of, saved_places
from mx_rec.stock.dense import CHUNK, set_all
from mx_rec.stock.options import StockTables
from mx_rec.stock.parts import SavedPlace
from mx_rec.stock.server_fill import tables_on_disk
from mx_rec.tensorflow.names import NewCheckpointReader


# The attribute of a graph that has what fills its tables, by tables and names of variables: the
# placeholder of a checkpoint's prefix, and the op.
_FILLS = "_mx_rec_fills"


def saved_tables(checkpoint: str) -> Set[str]:
    """Returns the names of the tables of a checkpoint, none where it has none.

    Args:
        checkpoint: Its prefix.
    """
    directory = directory_of(checkpoint)
    return {name_of(name) for name in listed_tables(directory) or ()} \
        if os.path.isdir(directory) else set()


def saved_histories(checkpoint: str) -> Dict[str, SavedHistory]:
    """Returns the admission histories of the tables of a checkpoint by their names.

    Args:
        checkpoint: Its prefix.
    """
    directory = directory_of(checkpoint)
    found = {}  # type: Dict[str, SavedHistory]
    for name in saved_tables(checkpoint):
        for path in directories_of(directory, name):
            history = history_of(path)
            if history is not None:
                known = found.get(name, history)
                found[name] = SavedHistory(history.access, max(history.latest, known.latest))
    return found


def dense_variables(graph: tf.Graph, checkpoint: str) -> Set[str]:
    """Returns the variables of a graph that a checkpoint has as variables.

    Args:
        graph: The graph.
        checkpoint: Prefix of the checkpoint.

    Returns:
        Names of their ops.
    """
    names = NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    found = set()  # type: Set[str]
    for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
        if isinstance(variable, tf.Variable):
            info = getattr(variable, "_save_slice_info", None)
            if (variable.op.name if info is None else info.full_name) in names:
                found.add(variable.op.name)
    return found


class DenseSource:
    """Which tables of a graph a checkpoint has as variables only.

    Args:
        converted: The variables that became tables (stock.convert.ConvertedVariable).
        directory: The checkpoint's directory of tables, which need not exist.
        checkpoint: Prefix of the checkpoint.

    Raises:
        tf.errors.InvalidArgumentError: If the checkpoint has a variable of another shape, or its
            rows by other ids than the table.
    """

    def __init__(self, converted: Sequence[Any], directory: str, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self.found = []  # type: List[Any]
        self._absent = []  # type: List[Any]
        missing = [one for one in converted if not _is_there(directory, one.table.table_name)]
        _check_slots([one for one in converted if _is_there(directory, one.table.table_name)],
                     directory, checkpoint)
        _check_parts(converted, directory, checkpoint)
        if not missing:
            return
        for one in missing:
            other = table_name(one.plan.name, not one.plan.ids.is_lifted)
            if _is_there(directory, other):
                raise _other_ids(one, checkpoint, "is the table {!r} by ids {} limits".format(
                    other, "with" if one.plan.ids.is_lifted else "without"))
        shapes = NewCheckpointReader(checkpoint).get_variable_to_shape_map()
        self.found = [one for one in missing if one.saved.name in shapes]
        self._absent = [one for one in missing if one.saved.name not in shapes]
        for one in self.found:
            if not one.plan.ids.keeps_rows:
                raise _other_ids(one, checkpoint, "has rows by ids with limits")
            expect_conversion(one, checkpoint)
            wanted = [one.saved.whole] + one.plan.shape[1:]
            if list(shapes[one.saved.name]) != wanted:
                raise tf.errors.InvalidArgumentError(
                    None, None, "the table {!r} cannot be filled from {}: the variable {!r} has "
                    "the shape {} there, and {} in the model.".format(
                        one.table.table_name, checkpoint, one.saved.name,
                        list(shapes[one.saved.name]), wanted))
        self._shapes = shapes

    def expect_all(self) -> None:
        """Refuses a checkpoint that has one of the tables neither as such nor as a variable.

        Raises:
            tf.errors.NotFoundError: In this case, as TensorFlow's of a variable.
        """
        for one in self._absent:
            raise tf.errors.NotFoundError(
                None, None, "Key {} not found in checkpoint {}: neither the variable nor its table "
                "{!r} is there.".format(one.saved.name, self._checkpoint, one.table.table_name))

    def has(self, name: str) -> bool:
        """Returns whether the checkpoint has a variable of a name, where tables were found."""
        return bool(self.found) and name in self._shapes

    def tables(self) -> List[str]:
        """Returns the names of the tables that are filled from variables."""
        return [one.table.table_name for one in self.found]

    def take_over(self, session: Any) -> None:
        """Fills the tables of this process, one after the other."""
        known = kept(session.graph, _FILLS)
        for one in self.found:
            if one.plan.on_servers:
                continue
            key = (one.table.handle.name,) + tuple(place.name for place in self._places(one))
            if key not in known:
                with extensible(session.graph), tf.device("/cpu:0"), \
                        tf.compat.v1.name_scope("mx_rec_variables"):
                    prefix = tf.compat.v1.placeholder(tf.string, [])
                    known[key] = prefix, self._fill(one, one.table, prefix, one.rules_of_values)
            prefix, done = known[key]
            self._tell(one)
            session.run(done, {prefix: self._checkpoint})

    @contextlib.contextmanager
    def staged(self, session: Any, operations: Sequence[TableOps]) -> Iterator[StagedLoads]:
        """Gives what the tables on parameter servers are to have, which waits to be published.

        Args:
            session: A session of the graph.
            operations: Those of all tables that are filled from variables.
        """
        found = [one for one in self.found if one.plan.on_servers]
        with tables_on_disk(found, self._checkpoint, self._fill_new) as folder:
            parts = [op for op in operations if op.part is not None]
            parts = tables_to_load(parts, folder) if parts else []
            with StagedLoads(session, parts, folder) as loads:
                yield loads

    def _fill_new(self, one: Any, table: Table) -> tf.Operation:
        self._tell(one)
        return self._fill(one, table, tf.constant(self._checkpoint))

    def _places(self, one: Any) -> List[SavedPlace]:
        """Returns where a variable stands, and those of its slots that are there.

        The whole of a partitioned variable need not be there under one name: optimizers that are
        called inside of a variable scope give the slots of each part a name of their own.
        """
        return [one.saved] + [place for place in one.slots if place.name in self._shapes]

    def _fill(self, one: Any, table: Table, prefix: tf.Tensor,
              rules: RowRules = RowRules()) -> tf.Operation:
        """Adds the ops that fill a table from a variable and its slots, in the default graph."""
        places = self._places(one)
        values = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=tf.constant([place.name for place in places]),
            shape_and_slices=tf.constant([place.spec for place in places]),
            dtypes=[tf.float32] * len(places))
        names = {place.name: slot.name for place, slot in zip(one.slots, one.plan.slots)}
        slots = {names[place.name]: value for place, value in zip(places[1:], values[1:])}
        return set_all(table, one.plan, values[0], rules, slots, True)

    def _tell(self, one: Any) -> None:
        """Logs what a table is filled from."""
        for place, slot in zip(one.slots, one.plan.slots):
            if place.name not in self._shapes:
                logger.info("the slot %s of the table %s is not in %s: it starts at %s.",
                            slot.name, one.table.table_name, self._checkpoint, slot.initial)
        logger.info("the table %s takes over the %d rows of the variable %s of %s.",
                    one.table.table_name, one.plan.shape[0], one.saved.name, self._checkpoint)


class RowDtypes(NamedTuple):
    """As what rows and slots are stored."""

    rows: str = FLOAT32
    slots: str = FLOAT32


def row_dtypes_of(described: Any) -> RowDtypes:
    """Returns as what a saved table has its rows and slots.

    Args:
        described: What is on disk of it (checkpoint.tables.describe).
    """
    stored = (described["config"] or {}).get("row_storage") or {}
    return RowDtypes(stored.get("dtype", FLOAT32), stored.get("slot_dtype", FLOAT32))


def expect_conversion(one: Any, checkpoint: str) -> None:
    """Refuses the variables of a checkpoint for a table of another type that does not convert them.

    Args:
        one: The variable that became a table (stock.convert.ConvertedVariable).
        checkpoint: Prefix of the checkpoint.

    Raises:
        tf.errors.InvalidArgumentError: The text names what to set.
    """
    if one.plan.row_dtype != FLOAT32 and not one.table.row_conversion:
        raise tf.errors.InvalidArgumentError(
            None, None, "the table {!r} of row_dtype {!r} cannot be filled from {}: the variable "
            "{!r} has other types there. StockTables(row_conversion=\"nearest\") or \"stochastic\" "
            "converts it.".format(one.table.table_name, one.plan.row_dtype, checkpoint,
                                  one.saved.name))


def _check_slots(converted: Sequence[Any], directory: str, checkpoint: str) -> None:
    """Refuses tables without slots whose numbers a checkpoint has in variables."""
    for one in converted:
        for path in directories_of(directory, one.table.table_name):
            try:
                there = {slot["name"] for slot in tables.describe(path)["slots"]}
            except tables.TableError:
                # A load says what is wrong.
                continue
            lacking = [place.name for place, slot in zip(one.slots, one.plan.slots)
                       if slot.name not in there]
            names = NewCheckpointReader(checkpoint).get_variable_to_shape_map() \
                if lacking else {}
            found = [name for name in lacking if name in names]
            if found:
                raise tf.errors.InvalidArgumentError(
                    None, None, "the table {!r} of {} has not the slots that its optimizer needs: "
                    "they are the variables {} there, of a version whose tables did not know this "
                    "optimizer. Restore the checkpoint without stock_tables and save it; that "
                    "checkpoint can be restored with them.".format(
                        one.table.table_name, checkpoint, ", ".join(map(repr, found))))


def _is_there(directory: str, table: str) -> bool:
    """Whether a checkpoint has a table, whole or in parts."""
    return os.path.isdir(directories_of(directory, table)[0])


def _check_parts(converted: Sequence[Any], directory: str, checkpoint: str) -> None:
    """Refuses the rows of a partitioned variable in another number of tables than the graph has.

    Raises:
        tf.errors.InvalidArgumentError: The text names the variable.
    """
    for one in converted:
        others = [] if one.plan.part is None else one.plan.part.names[1:]
        wrong = [name for name in others if _is_there(directory, table_name(name))]
        if one.plan.part is None and one.saved.first and not _is_there(
                directory, table_name(one.plan.name)):
            wrong = [other.plan.name for other in converted if other.saved.name == one.saved.name
                     and _is_there(directory, other.table.table_name)]
        if wrong:
            raise tf.errors.InvalidArgumentError(
                None, None, "the variable {!r} cannot be restored from {}: its parts are {} there, "
                "and {} in the graph. Convert it in the Estimator's training or, in a session, "
                "where it was saved: with parameter servers or without.".format(
                    one.saved.name, checkpoint,
                    *(("a table each", "one table") if others else ("one table",
                                                                    "a table each"))))


def _other_ids(one: Any, checkpoint: str, has: str) -> tf.errors.InvalidArgumentError:
    """Returns the error of rows by other ids than those of a table."""
    return tf.errors.InvalidArgumentError(
        None, None, "the table {!r} cannot be filled from {}: the variable {!r} {} there, and the "
        "graph has its ids {} limits, so that its rows would be of other ids. Start without the "
        "checkpoint, or {} StockTables(unlimited_ids=...).".format(
            one.table.table_name, checkpoint, one.saved.name, has,
            "without" if one.plan.ids.is_lifted else "with",
            "leave the variable out of" if one.plan.ids.is_lifted else "name the variable in"))


class _Wanted(NamedTuple):
    """A variable of a graph that a checkpoint has as a table.

    Attributes:
        plan: What the graph does with it.
        saved: Where it would stand in a checkpoint of variables.
        slots: The same of its optimizer's variables, by the name of the slot.
    """

    plan: StockVariable
    saved: SavedPlace
    slots: Dict[str, SavedPlace]


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
        tf.errors.InvalidArgumentError: If a variable has another number of rows.
        ValueError: If a table has keys that the variable has not.
    """
    with local_copy(directory_of(checkpoint)) as directory:
        wanted = _wanted(graph, checkpoint, directory)
        if not wanted:
            yield checkpoint
            return
        # Parameter servers read it as well.
        beside = os.path.dirname(os.path.abspath(checkpoint)) \
            if any(one.plan.on_servers for one in wanted) else None
        folder = tempfile.mkdtemp(prefix="mx_rec_variables_", dir=beside)
        try:
            prefix = os.path.join(folder, "variables")
            _write(wanted, checkpoint, directory, prefix)
            yield prefix
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _wanted(graph: tf.Graph, checkpoint: str, directory: str) -> List[_Wanted]:
    """Finds the variables of a graph that a checkpoint has as tables only."""
    names = saved_tables(checkpoint)
    variables = [variable for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
                 if isinstance(variable, tf.Variable) and not is_table_variable(variable)]
    for variable in variables:
        if table_name(variable.op.name, True) in names:
            raise ValueError(
                "the variable {!r} cannot be restored from {}: it is the table {!r} there, by ids "
                "without limits, which no variable has.".format(
                    variable.op.name, checkpoint, table_name(variable.op.name, True)))
    if not names or not any(table_name(variable.op.name) in names for variable in variables):
        return []
    places = saved_places(graph)
    plans = plan_variables(graph.as_graph_def(), StockTables((".*",), 1), False,
                           known=names, has_saver=True, decides_ids=False, saved=places)
    known = NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    objects = {variable.op.name for variable in variables}
    found = []  # type: List[_Wanted]
    for plan in plans:
        name = table_name(plan.name) if plan.part is None else plan.table
        if name not in names or plan.name not in objects:
            continue
        plan = plan._replace(table=name)
        if not plan.converts:
            plan = plan._replace(slots=_saved_slots(places, plan, objects, directory))
        saved, slots = places_of(places, plan)
        if saved.name not in known:
            for path in directories_of(directory, name) if plan.part is None else ():
                expect_rows(plan.name, plan.rows, path, sound_table(
                    path, "the table {!r} cannot be restored".format(name)))
            found.append(_Wanted(plan, saved, dict(
                zip([slot.name for slot in plan.slots], slots))))
    return found


def _saved_slots(places: Dict[str, SavedPlace], plan: StockVariable, objects: Set[str],
                 directory: str) -> List[Slot]:
    """Returns the slots that a checkpoint has of a variable that could not be a table here.

    Args:
        places: Where the variables of the graph stand in checkpoints.
        plan: The plan of the variable.
        objects: The names of the variables of the graph.
        directory: That of the checkpoint's tables.
    """
    here = {(places[name].name, places[name].first) if name in places else (name, 0): name
            for name in objects}
    return [Slot(here[one["name"], one["first"]], one["slot"], one["initial"])
            for one in read_manifest(directory).get(VARIABLES, ())
            if one["slot"] and (one["table"], one["key"]) == (plan.table, plan.first)
            and (one["name"], one["first"]) in here]


def _write(wanted: Sequence[_Wanted], checkpoint: str, directory: str, prefix: str) -> None:
    """Writes a checkpoint of variables: all that the other has, and tables."""
    values = []  # type: List[Tuple[str, str, np.ndarray]]
    known = NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    for one in wanted:
        plan, own = one.plan, slice(one.plan.first, one.plan.first + one.plan.shape[0])
        # Evaluation and prediction give what a table gives; a training admits every row.
        found = saved_values(directory, plan.table, plan.rows, {
            slot.name: slot.initial for slot in plan.slots}, not plan.updates)
        # Such tables were trained by an optimizer whose variables stayed TensorFlow's, if these are
        # in the other.
        places = [("", one.saved)] + [(name, place) for name, place in one.slots.items()
                                      if place.name not in known]
        values.extend((place.name, place.spec, found[name][own].reshape(plan.shape))
                      for name, place in places)
        logger.info("the variable %s takes the rows of the table %s of %s.", one.saved.name,
                    one.plan.table, directory)
    write_checkpoint(values, prefix + "-tables")
    _link(checkpoint, prefix + "-others")
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        merge = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=tf.constant([prefix + "-others", prefix + "-tables"]),
            destination_prefix=tf.constant(prefix), delete_old_dirs=False)
        with tf.compat.v1.Session(config=alone()) as session:
            session.run(merge)


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


def write_checkpoint(values: Sequence[Tuple[str, str, np.ndarray]], prefix: str) -> None:
    """Writes a checkpoint of variables.

    Args:
        values: Names, specs of parts as TensorFlow's savers write them or "", and values.
        prefix: Its prefix.
    """
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        inputs = [tf.compat.v1.placeholder(value.dtype.type if value.dtype != object else tf.string,
                                           value.shape) for _, _, value in values]
        save = tf.raw_ops.SaveV2(prefix=tf.constant(prefix),
                                 tensor_names=tf.constant([name for name, _, _ in values]),
                                 shape_and_slices=tf.constant([spec for _, spec, _ in values]),
                                 tensors=inputs)
        with tf.compat.v1.Session(config=alone()) as session:
            session.run(save, dict(zip(inputs, [value for _, _, value in values])))


def written_for(graph: tf.Graph, values: Sequence[Tuple[str, str, np.ndarray]]) -> str:
    """Writes a temporary checkpoint of variables, which stays as long as a graph.

    Args:
        graph: The graph.
        values: See `write_checkpoint`.

    Returns:
        Its prefix.
    """
    folder = tempfile.mkdtemp(prefix="mx_rec_variables_")
    weakref.finalize(graph, shutil.rmtree, folder, True)
    prefix = os.path.join(folder, "variables")
    write_checkpoint(values, prefix)
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
