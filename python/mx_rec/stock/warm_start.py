"""Warm starts of models that do not know mx_rec: variables, and tables in their place, from either.

TensorFlow says which variables start and with what; the rows of tables are set where it would set
variables. A table of the checkpoint is loaded as a table if it can be, and is read as the variable
that it stands for otherwise.
"""

import contextlib
import itertools
import os
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint.chains import chain_of
from mx_rec.checkpoint.contents import HISTORY, sound_table
from mx_rec.edits.replacing import replace_waiting
from mx_rec.edits.wiring import forget_variables
from mx_rec.ops import library
from mx_rec.stock.admission import RowRules, SavedHistory, started_clock, history_of
from mx_rec.stock.analysis import plan_variables
from mx_rec.stock.planned import product, table_name
from mx_rec.stock.checkpoints import RowDtypes, expect_conversion, row_dtypes_of
from mx_rec.stock.convert import (ConvertedVariable, Needs, converted, places_of,
                                  saved_places, start_by)
from mx_rec.stock.dense import set_all
from mx_rec.stock.options import StockTables
from mx_rec.stock.saved_variables import saved_values, written_for
from mx_rec.tensorflow import names

# The attribute of a graph that goes on from a checkpoint of its own.
_GOES_ON = "_mx_rec_goes_on"

# Ops that read checkpoints.
_READERS = ("RestoreV2", "LoadAndRemapMatrix")


def goes_on(graph: tf.Graph) -> None:
    """Notes that a graph will be restored: what a warm start would set is not needed.

    Args:
        graph: The graph.
    """
    setattr(graph, _GOES_ON, True)


class _Group(NamedTuple):
    """A variable that TensorFlow would start.

    Attributes:
        name: Its name in checkpoints.
        parts: It, or its parts, as TensorFlow gives them.
        previous: Its name in the checkpoint that it starts from.
    """

    name: str
    parts: List[Any]
    previous: str

    def in_order(self) -> List[Any]:
        """Returns the parts in the order of their rows."""
        def first(part: Any) -> int:
            info = part._save_slice_info  # pylint: disable=protected-access
            return 0 if info is None else int(info.var_offset[0])

        return sorted({part.op.name: part for part in self.parts}.values(), key=first)


class _Saved(NamedTuple):
    """A variable that a checkpoint has as tables, one for each part.

    Attributes:
        paths: Their directories.
        described: What is on disk of each (checkpoint.tables.describe).
        is_unlimited: Whether they are by ids without limits.
    """

    paths: List[str]
    described: List[Any]
    is_unlimited: bool

    def count(self) -> int:
        """Returns the rows of the variable."""
        return sum(one["config"]["capacity"] for one in self.described)

    def has(self, slot: str) -> bool:
        """Whether the tables have a slot, or none because no row was updated yet."""
        return all(not one["slots"] or slot in [other["name"] for other in one["slots"]]
                   for one in self.described)


class _Wanted(NamedTuple):
    """What is to start from tables of a checkpoint.

    Attributes:
        saved: The tables.
        groups: The variable, if it is chosen, as "", and slots by name.
        initial: What slots start at, by name.
    """

    saved: _Saved
    groups: Dict[str, _Group]
    initial: Dict[str, float]


class _Start(NamedTuple):
    """What a table of a graph starts with.

    Attributes:
        path: Directory of a table, None: the values.
        slots: The slots to load from it.
        values: The values of the variable, as "", and of slots by name.
        source: The checkpoint.
        dtypes: As what it has the rows and slots that are values.
    """

    path: Optional[str]
    slots: List[str]
    values: Dict[str, tf.Tensor]
    source: str
    dtypes: RowDtypes = RowDtypes()


# Before the conversion -----------------------------------------------------------------------


def needs_of(graph: tf.Graph, sources: Sequence[Any]) -> Needs:
    """Finds what the conversion of a graph has to regard, because a warm start follows.

    Args:
        graph: The graph, whose variables are TensorFlow's.
        sources: The checkpoints, in order (checkpoint.sources.Source).

    Returns:
        What the conversion needs to know. Of tables these are those by ids without limits that
        variables of the graph start with, of variables those that start with rows by others.
    """
    known, dense, histories = set(), set(), {}  # type: Set[str], Set[str], Dict[str, SavedHistory]
    for source in sources:
        for group in _groups(graph, source):
            if group.previous in source.names:
                dense.update(part.op.name for part in group.parts)
                continue
            saved = _paths(source, group.previous)
            for part, path in zip(group.in_order(), saved[0]):
                name = part.op.name
                dense.discard(name)
                if saved[1]:
                    known.add(table_name(name, True))
                else:
                    dense.add(name)
                history = history_of(path)
                if history is not None and _has_history(source, name):
                    histories[table_name(name, saved[1])] = history
    return Needs(known, False, dense, histories)


def _has_history(source: Any, name: str) -> bool:
    """Whether a list of expressions matches the history of a variable's table."""
    return isinstance(source.variables, list) and any(
        isinstance(one, str) and re.match(one, "{}/{}".format(name, HISTORY))
        for one in source.variables)


def _groups(graph: tf.Graph, source: Any) -> List[_Group]:
    """Returns the variables that TensorFlow would start from a checkpoint."""
    module = names.warm_starting_util
    with _known_again(graph):
        chosen = module._get_grouped_variables(source.variables)  # pylint: disable=protected-access
    return [_Group(name, parts, source.previous.get(name) or name)
            for name, parts in chosen.items()
            if source.variables is not None or name in source.vocabulary]


@contextlib.contextmanager
def _known_again(graph: tf.Graph) -> Iterator[None]:
    """Has the collections of a graph hold the variables that became tables, too."""
    for one in converted(graph):
        for key, values in one.objects.items():
            graph.get_collection_ref(key).extend(values)
    try:
        yield
    finally:
        forget_variables(graph, [value.op.name for one in converted(graph)
                                 for values in one.objects.values() for value in values])


def _paths(source: Any, name: str) -> Tuple[List[str], bool]:
    """Returns the directories of the tables that stand for a variable or its parts, none without;
    and whether they are by ids without limits."""
    for is_unlimited in (False, True):
        alone = source.directories.get(table_name(name, is_unlimited))
        if alone is not None:
            return [alone], is_unlimited
        parts = (source.directories.get(table_name("{}/part_{}".format(name, place), is_unlimited))
                 for place in itertools.count())
        found = [path for path in itertools.takewhile(lambda path: path is not None, parts)]
        if found:
            return found, is_unlimited
    return [], False


# After it ------------------------------------------------------------------------------------


class VariableStarts:
    """The warm start of a graph's variables, and of the tables in the place of some.

    Args:
        graph: The graph.
        stock: TensorFlow's warm_start.
    """

    def __init__(self, graph: tf.Graph, stock: Callable[..., None]) -> None:
        self._graph = graph
        self._stock = stock
        self._starts = {}  # type: Dict[str, _Start]
        self._by_part = {}  # type: Dict[str, Tuple[ConvertedVariable, str]]
        for one in converted(graph):
            self._by_part[one.plan.name] = (one, "")
            self._by_part.update((slot.variable, (one, slot.name)) for slot in one.plan.slots)

    def add(self, source: Any) -> None:
        """Starts what a checkpoint has; what it brings replaces what earlier ones brought.

        Args:
            source: The checkpoint and what is wanted of it (checkpoint.sources.Source).

        Raises:
            NotImplementedError: If variables on parameter servers would start from tables.
            ValueError: If a table does not fit its variable, or is by other ids; and what
                TensorFlow raises it for.
            tf.errors.DataLossError: If the files of a table do not fit together.
        """
        groups, wanted = [], {}  # type: List[_Group], Dict[str, _Wanted]
        if source.directories or self._by_part:
            groups = _groups(self._graph, source)
            wanted = self._wanted(source, groups)
        if not wanted and not self._by_part:
            self._stock(source.checkpoint, source.variables, source.vocabulary, source.previous)
            return
        plain = [group for group in groups if not any(
            group is other for one in wanted.values() for other in one.groups.values())]
        if getattr(self._graph, _GOES_ON, False):
            # TensorFlow looks at what has no effect, too.
            self._run(source, source.checkpoint, [group for group in plain if not any(
                part.op.name in self._by_part for part in group.parts)], groups)
            return
        loads = {name: one for name, one in wanted.items() if self._is_load(source, one)}
        written = {name: one for name, one in wanted.items() if name not in loads}
        self._refuse_other_ids(source, plain)
        self._set(source, lambda: self._run(source, source.checkpoint, plain, groups))
        if written:
            prefix = self._write(source, written)
            self._set(source, lambda: self._run(source, prefix, [
                group for one in written.values() for group in one.groups.values()], groups),
                      {name: row_dtypes_of(one.saved.described[0])
                       for name, one in written.items()})
        for one in loads.values():
            self._load(source, one)

    def end(self) -> List[tf.Operation]:
        """Adds the ops that set tables, in the place of those that empty them.

        Returns:
            The ops; initializers of the graph have to wait for them.
        """
        done = []  # type: List[tf.Operation]
        rules_of = started_clock(self._graph)
        for name, start in self._starts.items():
            one, _ = self._by_part[name]
            with self._graph.as_default(), self._graph.control_dependencies(None), \
                    tf.device("/cpu:0"), tf.compat.v1.name_scope(None), \
                    tf.compat.v1.name_scope("mx_rec_warm_start"):
                started = tf.no_op(name="started")
                # Whatever empties the table sets it then.
                replace_waiting(one.clear, [started])
                start_by(self._graph, one, started)
                # What starts a slot by itself is over before, if a run asks for both.
                before = [one.clear]
                for variable in itertools.chain.from_iterable(one.objects.values()):
                    if variable.op.name == name:
                        variable._initializer_op = started  # pylint: disable=protected-access
                    elif not one.plan.on_servers:
                        before.append(variable.initializer)
                with tf.control_dependencies(before):
                    op = _load_op(one, start) if start.path is not None else \
                        self._fill_op(one, start, rules_of(one.rules_of_values), done[-1:])
            started._add_control_input(op)  # pylint: disable=protected-access
            done.append(started)
        return done

    def _wanted(self, source: Any, groups: Sequence[_Group]) -> Dict[str, _Wanted]:
        """Returns what a checkpoint has as tables only, by the names of the variables."""
        wanted = {}  # type: Dict[str, _Wanted]
        missing = [group for group in groups if group.previous not in source.names]
        slots = self._slots() if missing and source.directories else {}
        for group in missing if source.directories else ():
            owner, slot, initial = slots.get(group.name, (group.name, "", 0.0))
            previous = source.previous.get(owner) or owner
            if group.previous != previous + group.name[len(owner):]:
                continue
            saved = _saved(source, previous)
            if saved is not None and (not slot or saved.has(slot)):
                one = wanted.setdefault(owner, _Wanted(saved, {}, {}))
                one.groups[slot] = group
                one.initial[slot] = initial
        return wanted

    def _slots(self) -> Dict[str, Tuple[str, str, float]]:
        """Returns the names of variables, and names and starts of slots, by the names of the
        slots' variables."""
        found = {}  # type: Dict[str, Tuple[str, str, float]]
        places = saved_places(self._graph)
        for plan in plan_variables(self._graph.as_graph_def(), StockTables((".*",), 1), False,
                                   has_saver=True, decides_ids=False, saved=places):
            if plan.name not in self._by_part:
                saved, slots = places_of(places, plan)
                found.update((place.name, (saved.name, slot.name, slot.initial))
                             for place, slot in zip(slots, plan.slots))
        for one in converted(self._graph):
            found.update((place.name, (one.saved.name, slot.name, slot.initial))
                         for place, slot in zip(one.slots, one.plan.slots))
        return found

    def _run(self, source: Any, checkpoint: str, groups: Sequence[_Group],
             known: Sequence[_Group]) -> None:
        """Has TensorFlow start variables from a checkpoint.

        Settings of names that are in no group of the checkpoint go along: they are errors.
        """
        mine = {group.name for group in groups}
        others = {group.name for group in known} - mine
        is_whole = checkpoint == source.checkpoint

        def settings(values: Dict[str, Any]) -> Dict[str, Any]:
            return {name: value for name, value in values.items()
                    if name in mine or (is_whole and name not in others)}

        self._stock(checkpoint, [part for group in groups for part in group.parts],
                    settings(source.vocabulary), settings(source.previous))

    def _set(self, source: Any, run: Callable[[], None],
             row_dtypes: Optional[Dict[str, RowDtypes]] = None) -> None:
        """Runs TensorFlow's warm start, and takes what it would set of variables that are tables.

        `row_dtypes` is as what the source has those that are tables there, by name.
        """
        objects = {variable.op.name: variable for one in converted(self._graph)
                   for values in one.objects.values() for variable in values}
        before = {name: variable.initializer for name, variable in objects.items()}
        run()
        values = {}  # type: Dict[str, Dict[str, tf.Tensor]]
        for name, variable in objects.items():
            if variable.initializer is before[name]:
                continue
            # pylint: disable=protected-access
            made = getattr(variable.initializer, "op", variable.initializer)
            self._graph.prevent_fetching(made)
            variable._initializer_op = before[name]
            one, slot = self._by_part[name]
            values.setdefault(one.plan.name, {})[slot] = made.inputs[1]
        for name, found in values.items():
            old = self._starts.get(name)
            dtypes = (row_dtypes or {}).get(self._by_part[name][0].saved.name, RowDtypes())
            if "" not in found and old is not None:
                if old.path is not None:
                    raise ValueError(
                        "the variable {!r} cannot start with the rows of {} and the slots {} of "
                        "{}: let both come from one checkpoint.".format(
                            name, old.source, ", ".join(sorted(found)), source.checkpoint))
                found, dtypes = dict(old.values, **found), old.dtypes
            self._starts[name] = _Start(None, [], found, source.checkpoint, dtypes)

    def _refuse_other_ids(self, source: Any, groups: Sequence[_Group]) -> None:
        """Refuses variables as rows of tables by ids that are not theirs."""
        for group in groups:
            for part in group.parts:
                one, _ = self._by_part.get(part.op.name, (None, ""))
                if one is not None and not one.plan.ids.keeps_rows:
                    raise _other_ids(source, group, one.plan.name, False)

    def _is_load(self, source: Any, wanted: _Wanted) -> bool:
        """Whether tables of a checkpoint are loaded as they are, for each part of a variable one.

        Raises:
            NotImplementedError, ValueError: As `add` says.
        """
        saved, groups = wanted.saved, wanted.groups
        has_vocabulary = any(group.name in source.vocabulary for group in groups.values())
        for group in groups.values():
            parts = group.in_order()
            ours = [self._by_part.get(part.op.name, (None, ""))[0] for part in parts]
            for part, one in zip(parts, ours):
                takes = one is not None and one.plan.ids.is_lifted
                if takes != saved.is_unlimited and not (takes and one.plan.ids.keeps_rows):
                    raise _other_ids(source, group, part.op.name, saved.is_unlimited)
                if tf.DeviceSpec.from_string(part.device).job not in (None, "localhost"):
                    raise NotImplementedError(
                        "the variable {!r} on {} cannot be warm-started from {}, which has it as "
                        "a table: its values would have to reach that process.".format(
                            part.op.name, part.device, source.checkpoint))
            if saved.is_unlimited and (has_vocabulary or "" not in groups
                                       or len(parts) != len(saved.paths)):
                raise ValueError(
                    "the variable {!r} cannot be warm-started from {}: it is a table by ids "
                    "without limits there, which has neither a vocabulary nor slots without "
                    "rows.".format(group.name, source.checkpoint))
            if not has_vocabulary:
                _check_shape(source, group, saved)
        if "" not in groups or has_vocabulary:
            return False
        parts = groups[""].in_order()
        return len(parts) == len(saved.paths) and all(
            part.op.name in self._by_part for part in parts) and all(
                saved.is_unlimited or int(part.shape[0]) == one["config"]["capacity"]
                for part, one in zip(parts, saved.described))

    def _load(self, source: Any, wanted: _Wanted) -> None:
        """Notes that tables start with tables."""
        slots = [slot for slot in wanted.groups if slot]
        for part, path, described in zip(wanted.groups[""].in_order(), wanted.saved.paths,
                                         wanted.saved.described):
            history = [HISTORY] if _has_history(source, part.op.name) \
                and described["history"] is not None else []
            self._starts[part.op.name] = _Start(path, slots + history, {}, source.checkpoint)

    def _write(self, source: Any, wanted: Dict[str, _Wanted]) -> str:
        """Writes tables of a checkpoint as the variables that they stand for.

        Returns:
            The prefix of a temporary checkpoint, which stays as long as the graph.
        """
        values = []  # type: List[Tuple[str, np.ndarray]]
        for name, one in wanted.items():
            parts = [_values(path, described, one.initial)
                     for path, described in zip(one.saved.paths, one.saved.described)]
            for slot, group in one.groups.items():
                value = np.concatenate([part[slot] for part in parts])
                shape = group.parts[0].shape.as_list()[1:]
                if product(shape) == value.shape[1]:
                    value = value.reshape([len(value)] + shape)
                values.append((group.previous, value))
            logger.info("the variable %s starts with the rows of the table %s of %s.", name,
                        ", ".join(os.path.basename(path) for path in one.saved.paths),
                        source.checkpoint)
        return written_for(self._graph, values)

    def _fill_op(self, one: ConvertedVariable, start: _Start, rules: RowRules,
                 after: List[tf.Operation]) -> tf.Operation:
        """Adds the ops that set a table's rows to a value, once `after` has run: one value at a
        time is in memory."""
        values = dict(start.values)
        rows = values.pop("", None)
        if rows is not None and start.dtypes.rows != one.plan.row_dtype \
                or values and start.dtypes.slots != one.plan.slot_dtype:
            expect_conversion(one, start.source)
        for value in start.values.values():
            for op in _readers_of(value.op):
                op._add_control_inputs(after)  # pylint: disable=protected-access
        logger.info("the table %s starts with the %d rows of the variable %s%s of %s, unless "
                    "training goes on from a checkpoint.", one.table.table_name,
                    one.plan.shape[0], one.saved.name,
                    " and the slots " + ", ".join(sorted(values)) if values else "", start.source)
        # Values of the table's own types are the same by any rounding.
        return set_all(one.table, one.plan, rows, rules, values,
                       one.table.row_conversion is not None)


def _load_op(one: ConvertedVariable, start: _Start) -> tf.Operation:
    """Adds the op that loads a table."""
    assert start.path is not None
    logger.info("the table %s starts with the rows of %s and %s, unless training goes on from a "
                "checkpoint.", one.table.table_name, start.path,
                "the slots " + ", ".join(start.slots) if start.slots else "fresh slots")
    return load_table(one.table.handle, start.path, start.slots)


def load_table(handle: tf.Tensor, path: str, slots: Sequence[str]) -> tf.Operation:
    """Adds the op that loads a saved table.

    Args:
        handle: The table that takes its rows.
        path: Its directory, of a whole save or of a delta.
        slots: The slots that are loaded, and the history.
    """
    parent, name = os.path.split(os.path.abspath(path))
    return library().mx_rec_load(
        handle, _bytes("\0".join(os.path.join(link, name) for link in chain_of(parent))),
        [_bytes("\0".join(slots))]).rows.op


def _bytes(text: str) -> tf.Tensor:
    return tf.constant(np.frombuffer(os.fsencode(text), np.uint8), tf.uint8)


def _readers_of(op: tf.Operation) -> Set[tf.Operation]:
    """Returns the ops that read what a value is made of from checkpoints."""
    if op.type in _READERS:
        return {op}
    return {reader for tensor in op.inputs for reader in _readers_of(tensor.op)}


def _saved(source: Any, name: str) -> Optional[_Saved]:
    """Returns the tables that a checkpoint has in the place of a variable, None without.

    Raises:
        tf.errors.DataLossError: If their files do not fit together.
    """
    paths, is_unlimited = _paths(source, name)
    if not paths:
        return None
    described = []  # type: List[Any]
    for path in paths:
        what = "the variable {!r} cannot be warm-started from the table {!r} of {}".format(
            name, os.path.basename(path), source.checkpoint)
        described.append(sound_table(path, what))
        if not described[-1]["config"]:
            raise tf.errors.DataLossError(None, None, "{}: {} does not say how many rows the "
                                          "variable has".format(what, path))
    return _Saved(paths, described, is_unlimited)


def _check_shape(source: Any, group: _Group, saved: _Saved) -> None:
    """Raises ValueError if a variable has another shape than its tables."""
    shape = group.parts[0].shape.as_list()
    count = sum(int(part.shape[0]) for part in group.in_order())
    dim = saved.described[0]["dim"]
    if product(shape[1:]) == dim and (saved.is_unlimited or count == saved.count()):
        return
    raise ValueError(
        "the variable {!r} of shape {} cannot be warm-started from {}: the tables {} stand for {} "
        "of {} floats there.".format(
            group.name, [count] + shape[1:], source.checkpoint,
            ", ".join(os.path.basename(path) for path in saved.paths),
            "rows" if saved.is_unlimited else "{} rows".format(saved.count()), dim))


def _values(path: str, described: Any, initial: Dict[str, float]) -> Dict[str, np.ndarray]:
    """Returns the rows of a table, as "", and the slots that `initial` has, float32 (n, dim) each.
    """
    directory, name = os.path.split(path)
    starts = {slot: start for slot, start in initial.items() if slot}
    starts.update((slot["name"], slot["initial"]) for slot in described["slots"]
                  if slot["name"] in starts)
    return saved_values(directory, name, int(described["config"]["capacity"]), starts, False)


def _other_ids(source: Any, group: _Group, variable: str, is_unlimited: bool) -> ValueError:
    """Returns the error of rows by other ids than those of a graph's variable."""
    return ValueError(
        "the variable {!r} cannot be warm-started from {}: {} are the rows of ids {} limits there, "
        "and the graph has the ids of {!r} {} limits. Leave it out of vars_to_warm_start, or {} "
        "StockTables(unlimited_ids=...).".format(
            group.name, source.checkpoint,
            ", ".join(os.path.basename(path) for path in _paths(source, group.previous)[0])
            or repr(group.previous), "without" if is_unlimited else "with", variable,
            "with" if is_unlimited else "without",
            "name it in" if is_unlimited else "leave it out of"))
