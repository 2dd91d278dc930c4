"""Loads the tables of a checkpoint: all are read and checked, then all are replaced together."""

import ctypes
import json
import os
from collections import OrderedDict
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set

import tensorflow as tf

from mx_rec import plugin
from mx_rec.base.log import logger
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.chains import MANIFEST, chain_of
from mx_rec.checkpoint.commit import listed_tables
from mx_rec.checkpoint.contents import sound_table
from mx_rec.checkpoint.parts import directories_of, name_of, run_on_parts
from mx_rec.checkpoint.slots import log_other_sketch, log_other_slots
from mx_rec.checkpoint.table_ops import TableOps, path_of, paths_of, paths_to_load

_ERRORS = {"InvalidArgument": tf.errors.InvalidArgumentError,
           "NotFound": tf.errors.NotFoundError,
           "ResourceExhausted": tf.errors.ResourceExhaustedError,
           "DataLoss": tf.errors.DataLossError,
           "Io": tf.errors.UnknownError,
           "Internal": tf.errors.InternalError}

_CANNOT = "the table {!r} cannot be restored"


class StagedLoads:
    """New contents of tables, read and checked, that wait to replace the ones in use.

    A context manager: what was not published when it ends is forgotten. Where the tables are those
    of another process, or of another copy of the plugin, their files are checked at first and read
    again by `publish`.

    Args:
        sess: A session of the tables' graph.
        operations: Of the tables, as `tables_to_load` gives them.
        directory: Of a checkpoint's tables.

    Raises:
        tf.errors.DataLossError: If a file is damaged; the text names it and the table.
        tf.errors.OpError: If a table cannot be loaded for another reason. No table has changed.
    """

    def __init__(self, sess: Any, operations: List[TableOps], directory: str) -> None:
        self._sess, self._directory = sess, directory
        self._operations = [op for op in operations if op.part is None]
        self._parts = [op for op in operations if op.part is not None]
        self._group = None  # type: Optional[int]
        if self._operations:
            self._stage()
        # Parts are in use with what they have until they are published.
        self._staged = [op for op in self._parts if op.part is not None and not op.part.is_new]
        try:
            run_on_parts(self._sess, self._staged, "load",
                         paths_to_load(self._staged, _chain(self._directory)))
        except BaseException:
            self._discard()
            raise

    def _stage(self) -> None:
        operations, chain = self._operations, _chain(self._directory)
        handles = [int(one) for one in self._sess.run([op.handle for op in operations])]
        paths = b"\0\0".join(path_of(op, chain) for op in operations)
        answer = _call("mx_rec_checkpoint_stage", (ctypes.c_int64 * len(handles))(*handles),
                       len(handles), paths, len(paths))
        if "kind" in answer:
            error = _ERRORS[answer["kind"]]
            raise error(None, None, "the tables cannot be restored from {}: {}".format(
                self._directory, answer["message"]))
        self._group = answer["group"]
        if self._group is None:
            verify_tables(operations, self._directory)

    def publish(self) -> Dict[str, int]:
        """Replaces the contents of all tables.

        Returns:
            For each table what the engine calls that moment, for a delta that follows.
        """
        if self._parts:
            self._publish_parts()
        operations = self._operations
        if not operations:
            return {}
        if self._group is not None:
            loaded = _call("mx_rec_checkpoint_publish", ctypes.c_uint64(self._group))
            self._group = None
            counts = [[one["rows"], one["epoch"]] for one in loaded]
        else:
            counts = self._sess.run([op.load.outputs for op in operations],
                                    paths_of(operations, _chain(self._directory)))
        logger.info("restored %s from %s.", ", ".join(
            "{} ({} rows)".format(op.name, count[0]) for op, count in zip(operations, counts)),
            self._directory)
        _tell_full(operations, [count[0] for count in counts])
        return {op.name: int(count[1]) for op, count in zip(operations, counts) if len(count) > 1}

    def _publish_parts(self) -> None:
        new = [op for op in self._parts if op.part is not None and op.part.is_new]
        found = [op for op in self._parts if op not in new]
        run_on_parts(self._sess, new, "init")
        rows = run_on_parts(self._sess, found, "publish")
        self._staged = []
        logger.info("restored %s from %s.", ", ".join(
            "{} ({} rows)".format(op.name, count) for op, count in zip(found, rows)),
            self._directory)
        _tell_full(found, rows)

    def __enter__(self) -> "StagedLoads":
        return self

    def __exit__(self, *_: Any) -> None:
        self._discard()

    def _discard(self) -> None:
        """Forgets what was read and not published."""
        staged, self._staged = self._staged, []
        try:
            run_on_parts(self._sess, staged, "discard")
        except (tf.errors.OpError, RuntimeError) as error:
            # The server is gone, and what it had read with it; another restore replaces the rest.
            logger.warning("the servers may still hold what a restore has read in vain: %s", error)
        if self._group is not None:
            _call("mx_rec_checkpoint_discard", ctypes.c_uint64(self._group))
            self._group = None


def _call(name: str, *arguments: Any) -> Any:
    status, answer = plugin.call(name, *arguments)
    text = answer.decode("utf-8", "replace")
    if status != 0:
        raise tf.errors.InternalError(None, None, text)
    return json.loads(text)


def _tell_full(operations: List[TableOps], counts: Iterable[int]) -> None:
    """Warns of tables that have more rows than their budget after a restore."""
    rows = OrderedDict()  # type: Dict[str, int]
    for op, count in zip(operations, counts):
        rows[op.table_name] = rows.get(op.table_name, 0) + int(count)
    for name, budget in {op.table_name: op.config["capacity"] for op in operations}.items():
        if rows[name] > budget:
            logger.warning("the table %r has %d rows, more than its vocabulary of %d: servers had "
                           "room for them. All are kept, but new keys may get none.", name,
                           rows[name], budget)


def tables_to_load(operations: List[TableOps], directory: str,
                   variables: Mapping[str, str] = MappingProxyType({})) -> List[TableOps]:
    """Checks that `directory` holds the tables, by their manifests, attributes and sizes.

    Args:
        operations: Of the tables that should be there.
        directory: Of a checkpoint's tables, a whole save or a delta.
        variables: By the names of tables that were variables the names of these, which have the
            numbers of rows that they had.

    Returns:
        The tables to load: without those that were not there when the checkpoint was saved.

    Raises:
        FileExistsError: If the directory, or that of a table, does not exist.
        tf.errors.DataLossError: If files do not fit together; the text names one and the table.
        tf.errors.InvalidArgumentError: If a table has another dim, or a variable had other rows.
        tf.errors.ResourceExhaustedError: If a table has more rows than its budget.
    """
    if not os.path.isdir(directory):
        raise _missing(directory)
    chain = _chain(directory)
    listed = listed_tables(directory)
    if listed is not None:
        listed = [name_of(name) for name in listed]
    found = []  # type: List[TableOps]
    new = []  # type: List[TableOps]
    for op in operations:
        if listed is not None and op.table_name not in listed:
            logger.warning("the table %r is not in %s: it was made later, and starts without the "
                           "checkpoint's rows.", op.name, directory)
            if op.part is not None:
                new.append(op._replace(part=op.part._replace(is_new=True)))
            continue
        path = directories_of(directory, op.table_name)[0]
        if not os.path.isdir(path):
            raise _missing(path)
        found.append(op)
    names = [op.table_name for op in operations]
    for name in sorted({name for name in listed or [] if name not in names}):
        logger.info("the table %r of %s is not restored: the graph, or the Saver, has it not.",
                    name, directory)
    for link in chain:
        has_manifest = listed_tables(link) is not None
        checked = set()  # type: Set[str]
        for op in found:
            # All parts of a table read the same directories.
            if op.table_name in checked:
                continue
            checked.add(op.table_name)
            slots = []  # type: List[str]
            for path in directories_of(link, op.table_name):
                if not os.path.isdir(path):
                    raise _missing(path)
                slots.extend(_check_layout(op, path, has_manifest,
                                           variables.get(op.table_name, "")))
            # A part whose rows were never updated has no slots: those of all parts count.
            log_other_slots(op.load, list(OrderedDict.fromkeys(slots)))
    return found + new


def _chain(directory: str) -> List[str]:
    """Returns the directories that make up the tables, in order."""
    try:
        return chain_of(directory)
    except ValueError as error:
        raise tf.errors.DataLossError(None, None, str(error))


def expect_shape(variable: str, here: List[int], there: List[int], place: str) -> None:
    """Refuses a variable of another shape, as TensorFlow does: with another number of rows each of
    hashed ids would be another row.

    Args:
        variable: The variable's name.
        here: Its sizes.
        there: Those that it was saved with.
        place: Where.

    Raises:
        tf.errors.InvalidArgumentError: If they differ; the text has both.
    """
    if here != there:
        raise tf.errors.InvalidArgumentError(
            None, None, "the variable {!r} has {} rows, and {} in {}: shapes of both have to "
            "match, {} and {}.".format(variable, here[0] if here else 0, there[0], place, here,
                                       there))


def _check_layout(operation: TableOps, path: str, has_manifest: bool, variable: str) -> List[str]:
    """Checks one table; `has_manifest` is whether it was saved with a manifest of its own, and
    `variable` which variable it was, "" for none.

    Returns:
        Names of the slots that were saved.
    """
    config = operation.config
    manifest = os.path.join(path, MANIFEST)
    if has_manifest and not os.path.isfile(manifest):
        raise tf.errors.DataLossError(None, None, "the table {!r} cannot be restored: {} is "
                                      "missing".format(operation.name, manifest))
    described = sound_table(path, _CANNOT.format(operation.name))
    if described["dim"] != config["dim"]:
        raise tf.errors.InvalidArgumentError(
            None, None, "the table {!r} has dim {}, and {} has {}.".format(
                operation.name, config["dim"], path, described["dim"]))
    if variable:
        rows, dim = config["capacity"], config["dim"]
        saved = (described["config"] or {}).get("capacity", rows)
        expect_shape(variable, [rows, dim], [saved, dim], path)
    slots = [slot["name"] for slot in described["slots"]]
    if operation.part is not None:
        # A part takes its own keys alone; the engine counts them.
        return slots
    if not tables.has_room(config["capacity"], described):
        raise tf.errors.ResourceExhaustedError(
            None, None, "the table {!r} has room for {} rows, and {} has {}.".format(
                operation.name, config["capacity"], path, described["rows"]))
    log_other_sketch(operation.load, path)
    return slots


def verify_tables(operations: List[TableOps], directory: str) -> None:
    """Reads every file of tables, without loading them.

    Args:
        operations: Of the tables, as `tables_to_load` gives them.
        directory: Of a checkpoint's tables.

    Raises:
        tf.errors.DataLossError: If a file is damaged; the text names it and the table.
    """
    for link in _chain(directory):
        for op in operations:
            for path in directories_of(link, op.table_name):
                sound_table(path, _CANNOT.format(op.name), tables.verify)


def _missing(path: str) -> FileExistsError:
    return FileExistsError(
        "the checkpoint's directory of tables {} does not exist. Restore a checkpoint that "
        "was saved with these tables, or give Saver a var_list of variables only.".format(path))
