"""Saves and restores the tables of a graph; also how tf.train.Saver does so."""

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import variables
from tensorflow.python.training import checkpoint_management, training_util
from tensorflow.python.training.saving import saveable_object

from mx_rec.checkpoint import tables
from mx_rec.constants.constants import MAX_INT32
from mx_rec.core.graph_state import remember_session
from mx_rec.core.table import is_table_variable, table_config_of, table_name_of
from mx_rec.saver.commit import MANIFEST, listed_tables, sync_dense
from mx_rec.saver.paths import check_save_path, is_remote, sparse_directory
from mx_rec.saver.remote import discard, index_stamp, local_copy, staging_of
from mx_rec.saver.serving import restores_tables
from mx_rec.saver.slots import log_other_slots
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.validator.validator import Int, Text, checked, is_int

_TABLES = "_mx_rec_tables"
_EXPLICIT = "_mx_rec_explicit"


class _TableOps(NamedTuple):
    """The ops that save and load one table."""

    name: str
    path: tf.Tensor
    save: tf.Tensor
    load: tf.Operation


class Saver:
    """Saves and restores tables alone, without TensorFlow's variables.

    Args:
        var_list: Table variables; None is all tables of the session's graph that have
            is_save=True.
        max_to_keep: How many saves of this object stay on disk, in [0, 2147483647]; 0 is all.
        prefix_name: Base name of the checkpoint where `save` is given a directory only.

    Raises:
        ValueError: If an argument has a wrong type or range.
    """

    @checked(max_to_keep=Int(0, MAX_INT32), prefix_name=Text(1, 50))
    def __init__(self, var_list: Optional[List[tf.Tensor]] = None, max_to_keep: int = 3,
                 prefix_name: str = "checkpoint") -> None:
        if var_list is not None and not all(is_table_variable(var) for var in var_list):
            raise ValueError("'var_list' should hold table variables only")
        self._var_list = var_list
        self._max_to_keep = max_to_keep
        self._prefix_name = prefix_name
        self._kept = []  # type: List[str]

    def save(self, sess: tf.compat.v1.Session, save_path: str,
             global_step: Union[None, int, tf.Tensor] = None) -> str:
        """Saves the tables.

        Args:
            sess: A session of the tables' graph.
            save_path: Prefix of the checkpoint, or a directory with a trailing slash.
            global_step: Step number in [0, 2147483647], a tensor of it, or None.

        Returns:
            The directory that was written.

        Raises:
            ValueError: If the path or the step is not valid.
        """
        check_save_path(save_path)
        if save_path.endswith(os.sep):
            save_path = os.path.join(save_path, self._prefix_name)
        directory = sparse_directory(_checkpoint_name(sess, save_path, global_step, False))
        _save_tables(sess, _table_ops(sess.graph, self._names()), directory, False).finish()
        self._kept = [kept for kept in self._kept if kept != directory] + [directory]
        while self._max_to_keep and len(self._kept) > self._max_to_keep:
            discard(self._kept.pop(0))
        return directory

    def restore(self, sess: tf.compat.v1.Session, save_path: str) -> None:
        """Replaces the content of the tables by what was saved.

        Args:
            sess: A session of the tables' graph.
            save_path: Prefix of the checkpoint, with the step.

        Raises:
            FileExistsError: If the checkpoint has no directory for the tables, or for one of them.
        """
        directory = sparse_directory(save_path)
        with local_copy(directory) as here:
            operations = _check_tables(_table_ops(sess.graph, self._names()), here)
            _restore_tables(sess, operations, here)

    def _names(self) -> Optional[List[str]]:
        if self._var_list is None:
            return None
        return [variable.op.name for variable in self._var_list]


class _Marker(saveable_object.SaveableObject):
    """Stands for the variables of a checkpoint that has none, so that its files exist."""

    def __init__(self) -> None:
        with tf.init_scope():
            value = tf.constant(0, tf.int64, name="mx_rec_tables")
        spec = saveable_object.SaveSpec(value, "", "mx_rec_tables", dtype=tf.int64)
        super().__init__(value, [spec], "mx_rec_tables")

    def restore(self, restored_tensors: List[tf.Tensor],
                restored_shapes: Optional[List[Any]]) -> tf.Operation:
        """Does nothing with what was read."""
        del restored_shapes
        return tf.group(*[tensor.op for tensor in restored_tensors])


# What tf.train.Saver does in addition; see patches.py ----------------------------------------


def patched_init(stock: Callable[..., None]) -> Callable[..., None]:
    """Makes tf.train.Saver.__init__, which takes tables out of var_list."""

    def __init__(self: Any, var_list: Any = None, *args: Any, **kwargs: Any) -> None:
        dense, tables = _split(var_list)
        setattr(self, _TABLES, tables)
        setattr(self, _EXPLICIT, var_list is not None)
        if not tf.executing_eagerly() and _has_tables():
            # A SavedModel of tables alone comes with an empty list and allow_empty.
            if not dense and (tables is not None or
                              (var_list is not None and kwargs.get("allow_empty"))):
                dense = [_Marker()]
            elif var_list is None and "saver_def" not in kwargs and \
                    not variables._all_saveable_objects():  # pylint: disable=protected-access
                if not kwargs.get("defer_build"):
                    dense = [_Marker()]
        stock(self, dense, *args, **kwargs)

    return __init__


def patched_save(stock: Callable[..., Optional[str]]) -> Callable[..., Optional[str]]:
    """Makes tf.train.Saver.save, which saves the tables before the variables.

    The file `checkpoint` names a step only after its tables are on disk.
    """

    def save(self: Any, sess: Any, save_path: str, global_step: Any = None,
             latest_filename: Optional[str] = None, meta_graph_suffix: str = "meta",
             write_meta_graph: bool = True, write_state: bool = True,
             strip_default_attrs: bool = False, save_debug_info: bool = False,
             is_incremental_checkpoint: bool = False, save_delta: bool = False) -> Optional[str]:
        """Saves variables as stock TensorFlow does, and the tables of the session's graph.

        Args:
            sess: A session of the graph.
            save_path: Prefix of the checkpoint's files.
            global_step: Step number, a tensor of it, or None.
            latest_filename: Name of the state file, 1-50 characters, or None.
            meta_graph_suffix: Suffix of the meta graph's file, 1-50 characters.
            write_meta_graph: Whether to write the meta graph.
            write_state: Whether to write the state file.
            strip_default_attrs: As TensorFlow's.
            save_debug_info: As TensorFlow's.
            is_incremental_checkpoint: Not supported yet.
            save_delta: Not supported yet.

        Returns:
            The prefix of the checkpoint, with the step.

        Raises:
            ValueError: If an argument is not valid.
            NotImplementedError: If an incremental checkpoint is asked for.
        """
        if is_incremental_checkpoint or save_delta:
            raise NotImplementedError("incremental checkpoints are not supported yet: every save "
                                      "is complete.")
        operations = _saver_ops(self, sess)
        if operations:
            check_save_path(save_path)
            Text(1, 50, optional=True)("latest_filename", latest_filename)
            Text(1, 50)("meta_graph_suffix", meta_graph_suffix)
            global_step = _step_number(sess, global_step)
            checkpoint = _checkpoint_name(sess, save_path, global_step, self._pad_step_number)
            index = index_stamp(checkpoint)
            staging = _save_tables(sess, operations, sparse_directory(checkpoint), True)
        before = list(self.last_checkpoints)
        try:
            with _flushed_before_state(self, bool(operations)):
                path = stock(self, sess, save_path, global_step=global_step,
                             latest_filename=latest_filename, meta_graph_suffix=meta_graph_suffix,
                             write_meta_graph=write_meta_graph, write_state=write_state,
                             strip_default_attrs=strip_default_attrs,
                             save_debug_info=save_debug_info)
        except BaseException:
            if operations and not _has_fresh_index(checkpoint, index):
                staging.undo()
            elif operations:
                staging.finish()
            raise
        if operations:
            staging.finish()
            for old in set(before) - set(self.last_checkpoints):
                if not checkpoint_management.checkpoint_exists(old):
                    discard(sparse_directory(old))
        return path

    return save


def patched_restore(stock: Callable[..., None]) -> Callable[..., None]:
    """Makes tf.train.Saver.restore, which restores the tables after the variables."""

    def restore(self: Any, sess: Any, save_path: str) -> None:
        """Restores variables as stock TensorFlow does, and the tables of the session's graph.

        Args:
            sess: A session of the graph.
            save_path: Prefix of the checkpoint, with the step.

        Raises:
            ValueError: If it is not a checkpoint.
            FileExistsError: If the checkpoint has no directory for the tables, or for one of them.
        """
        operations = _saver_ops(self, sess)
        if not operations or not save_path or not _is_checkpoint(tf.compat.as_text(save_path)):
            # Without tables it is TensorFlow's alone, and so is the error of a wrong path.
            stock(self, sess, save_path)
            return
        directory = sparse_directory(tf.compat.as_text(save_path))
        with local_copy(directory) as here:
            if getattr(self, _EXPLICIT, False) and getattr(self, _TABLES, None) is None \
                    and not os.path.isdir(here):
                logger.info("the Saver was given variables without tables and %s does not exist: "
                            "tables are not restored.", directory)
                stock(self, sess, save_path)
                return
            operations = _check_tables(operations, here)
            stock(self, sess, save_path)
            if restores_tables(sess.graph, self.saver_def):
                logger.info("restored %s from %s.", ", ".join(op.name for op in operations),
                            directory)
            else:
                _restore_tables(sess, operations, here)

    return restore


def _is_checkpoint(path: str) -> bool:
    try:
        return tf.compat.v1.train.checkpoint_exists(path)
    except tf.errors.OpError as error:
        # TensorFlow lists the directory, which may not be one.
        raise ValueError("The passed save_path is not a valid checkpoint: {} ({})".format(
            path, error.message)) from error


def _split(var_list: Any) -> Any:
    """Splits var_list into (list without tables, op names of tables or None)."""
    if var_list is None:
        return None, None
    if isinstance(var_list, dict):
        tables = [var.op.name for var in var_list.values() if is_table_variable(var)]
        dense = {key: var for key, var in var_list.items()
                 if not is_table_variable(var)}  # type: Any
    else:
        var_list = list(var_list)
        tables = [var.op.name for var in var_list if is_table_variable(var)]
        dense = [var for var in var_list if not is_table_variable(var)]
    return dense, (tables or None)


def _saver_ops(saver: Any, sess: Any) -> List[_TableOps]:
    """Returns the ops of the tables that a tf.train.Saver is for."""
    graph = getattr(sess, "graph", None)
    if graph is None or tf.executing_eagerly():
        return []
    operations = _table_ops(graph, getattr(saver, _TABLES, None))
    if operations:
        remember_session(sess)
    return operations


def _has_tables() -> bool:
    return bool(_table_ops(tf.compat.v1.get_default_graph(), None))


def _table_ops(graph: tf.Graph, names: Optional[List[str]]) -> List[_TableOps]:
    """Finds the save and load ops of a graph, which may be an imported one.

    Args:
        graph: The graph.
        names: Names of the table ops to take, None for all.

    Returns:
        The ops by table; tables without is_save have none.
    """
    loads = {}  # type: Dict[Tuple[str, str], tf.Operation]
    saves = []  # type: List[tf.Operation]
    for op in graph.get_operations():
        if op.type == "MxRecLoad":
            loads[op.inputs[0].op.name, op.inputs[1].name] = op
        elif op.type == "MxRecSave":
            saves.append(op)
    found = []  # type: List[_TableOps]
    for save in saves:
        table = save.inputs[0].op
        load = loads.get((table.name, save.inputs[1].name))
        if load is None:
            continue
        if names is None or table.name in names:
            found.append(_TableOps(table_name_of(table), save.inputs[1], save.outputs[0], load))
    return found


def _save_tables(sess: Any, operations: List[_TableOps], directory: str,
                 dense: bool) -> Any:
    """Saves tables into `<directory>/<table>`, all or none; the caller finishes the staging."""
    try:
        staging = staging_of(directory)
    except OSError as error:
        raise _named_error(error, operations) from error
    try:
        rows = sess.run([op.save for op in operations], _paths(operations, staging.path))
        staging.commit([{"name": op.name, "rows": int(count)}
                        for op, count in zip(operations, rows)], dense)
    except BaseException as error:
        staging.undo()
        if isinstance(error, OSError):
            raise _named_error(error, operations) from error
        raise
    logger.info("saved %s to %s.", ", ".join(
        "{} ({} rows)".format(op.name, count) for op, count in zip(operations, rows)), directory)
    if ConfigInitializer._single_instance is not None:  # pylint: disable=protected-access
        ConfigInitializer.get_instance().train_params_config.sparse_dir = directory
    return staging


def _named_error(error: OSError, operations: List[_TableOps]) -> OSError:
    """Returns an error of the system with the names of the tables that were to be saved."""
    names = ", ".join(repr(op.name) for op in operations)
    if error.errno is None:
        return type(error)("the tables {} cannot be saved: {}".format(names, error))
    return OSError(error.errno, "the tables {} cannot be saved: {}".format(names, error.strerror),
                   error.filename)


@contextlib.contextmanager
def _flushed_before_state(saver: Any, wanted: bool) -> Iterator[None]:
    """Has a tf.train.Saver flush the variables to the disk before its state file names them."""
    if not wanted:
        yield
        return
    record = saver._RecordLastCheckpoint  # pylint: disable=protected-access

    def flush_and_record(path: str) -> None:
        if not is_remote(path):
            sync_dense(path)
        record(path)

    saver._RecordLastCheckpoint = flush_and_record  # pylint: disable=protected-access
    try:
        yield
    finally:
        vars(saver).pop("_RecordLastCheckpoint", None)


def _has_fresh_index(checkpoint: str, before: Any) -> bool:
    """Returns whether the variables were written after `before` was taken by `index_stamp`."""
    now = index_stamp(checkpoint)
    return now is not None and now != before


def _check_tables(operations: List[_TableOps], directory: str) -> List[_TableOps]:
    """Checks every file of the tables that `directory` should hold, before any is loaded.

    Returns:
        The tables to load: without those that were not there when the checkpoint was saved.

    Raises:
        FileExistsError: If the directory, or that of a table, does not exist.
        tf.errors.DataLossError: If a file is damaged; the text names it and the table.
        tf.errors.InvalidArgumentError: If a table has another dim.
        tf.errors.ResourceExhaustedError: If a table has more rows than its budget.
    """
    if not os.path.isdir(directory):
        raise _missing(directory)
    listed = listed_tables(directory)
    found = []  # type: List[_TableOps]
    for op in operations:
        path = os.path.join(directory, op.name)
        if listed is not None and op.name not in listed:
            logger.warning("the table %r is not in %s: it was made later, and starts without the "
                           "checkpoint's rows.", op.name, directory)
            continue
        if not os.path.isdir(path):
            raise _missing(path)
        found.append(op)
    names = [op.name for op in operations]
    for name in [name for name in listed or [] if name not in names]:
        logger.info("the table %r of %s is not restored: the graph, or the Saver, has it not.",
                    name, directory)
    for op in found:
        _check_table(op, os.path.join(directory, op.name), has_manifest=listed is not None)
    return found


def _check_table(operation: _TableOps, path: str, has_manifest: bool) -> None:
    """Checks one table; `has_manifest` is whether it was saved with a manifest of its own."""
    config = table_config_of(operation.load.inputs[0].op)
    manifest = os.path.join(path, MANIFEST)
    if has_manifest and not os.path.isfile(manifest):
        raise tf.errors.DataLossError(None, None, "the table {!r} cannot be restored: {} is "
                                      "missing".format(operation.name, manifest))
    try:
        described = tables.describe(path)
        faults = described["faults"] or tables.verify(path)["faults"]
    except tables.TableError as error:
        raise tf.errors.DataLossError(None, None, "the table {!r} cannot be restored: {}".format(
            operation.name, error))
    if faults:
        raise tf.errors.DataLossError(None, None, "the table {!r} cannot be restored: {}".format(
            operation.name, "; ".join("{}: {}".format(
                os.path.join(path, fault["file"]), fault["message"]) for fault in faults)))
    if described["dim"] != config["dim"]:
        raise tf.errors.InvalidArgumentError(
            None, None, "the table {!r} has dim {}, and {} has {}.".format(
                operation.name, config["dim"], path, described["dim"]))
    if described["rows"] > config["capacity"]:
        raise tf.errors.ResourceExhaustedError(
            None, None, "the table {!r} has room for {} rows, and {} has {}.".format(
                operation.name, config["capacity"], path, described["rows"]))
    log_other_slots(operation.load, [slot["name"] for slot in described["slots"]])


def _missing(path: str) -> FileExistsError:
    return FileExistsError(
        "the checkpoint's directory of tables {} does not exist. Restore a checkpoint that "
        "was saved with these tables, or give Saver a var_list of variables only.".format(path))


def _restore_tables(sess: Any, operations: List[_TableOps], directory: str) -> None:
    """Loads checked tables from `<directory>/<table>`."""
    rows = sess.run([op.load.outputs[0] for op in operations], _paths(operations, directory))
    logger.info("restored %s from %s.", ", ".join(
        "{} ({} rows)".format(op.name, count) for op, count in zip(operations, rows)), directory)


def _paths(operations: List[_TableOps], directory: str) -> Dict[tf.Tensor, np.ndarray]:
    return {op.path: np.frombuffer(
        os.fsencode(os.path.abspath(os.path.join(directory, op.name))), np.uint8)
        for op in operations}


def _checkpoint_name(sess: Any, save_path: str, global_step: Any, pad: bool) -> str:
    """Returns the checkpoint's prefix with the step, as TensorFlow names it."""
    step = _step_number(sess, global_step)
    if step is None:
        return save_path
    return "{}-{:08d}".format(save_path, step) if pad else "{}-{}".format(save_path, step)


def _step_number(sess: Any, global_step: Any) -> Optional[int]:
    """Returns the step as an int in [0, MAX_INT32], None for none."""
    if global_step is None:
        return None
    if isinstance(global_step, bool):
        raise ValueError("type of 'global_step' is not int")
    if not is_int(global_step):
        if not isinstance(global_step, (tf.Tensor, tf.Variable, str)):
            raise ValueError("type of 'global_step' is not int")
        global_step = training_util.global_step(sess, global_step)
    Int(0, MAX_INT32)("global_step", int(global_step))
    return int(global_step)
