"""Tables of stock models take over what a checkpoint has as variables."""

import contextlib
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.commit import listed_tables
from mx_rec.checkpoint.loads import StagedLoads, tables_to_load
from mx_rec.checkpoint.parts import directories_of, name_of
from mx_rec.checkpoint.remote import directory_of
from mx_rec.checkpoint.table_ops import TableOps
from mx_rec.core.rows import FLOAT32
from mx_rec.core.table import Table
from mx_rec.edits.replacing import extensible, kept
from mx_rec.stock.admission import RowRules, SavedHistory, history_of
from mx_rec.stock.dense import set_all
from mx_rec.stock.parts import SavedPlace
from mx_rec.stock.planned import table_name
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
