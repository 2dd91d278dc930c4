"""Saves and restores the tables of a graph; also how tf.train.Saver does so."""

import contextlib
import os
import re
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Union

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint.chains import (VARIABLES, base_of, delta_directory, is_delta, needed,
                                      tables_directory)
from mx_rec.checkpoint.commit import alone, is_owned, sync_dense
from mx_rec.checkpoint.loads import StagedLoads, tables_to_load, verify_tables
from mx_rec.checkpoint.parts import open_parts
from mx_rec.checkpoint.paths import (check_free, check_save_path, is_remote, single_slashes,
                                     sparse_directory)
from mx_rec.checkpoint.paths import validate_read_file  # noqa: F401  scripts import it from here
from mx_rec.checkpoint.remote import directory_of, discard, index_stamp, local_copy, staging_of
from mx_rec.checkpoint.table_ops import TableOps, distinct, paths_of, table_ops
from mx_rec.constants.constants import MAX_INT32
from mx_rec.export.serving import restores_tables
from mx_rec.graph.runs import has_run
from mx_rec.saver import incremental
from mx_rec.saver.var_lists import MARKER, is_marked, names_no_table, saver_ops
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import is_table_variable
from mx_rec.stock.admission import check_admission
from mx_rec.stock.checkpoints import DenseSource
from mx_rec.stock.convert import converted
from mx_rec.stock.saved_variables import described_variables, saved_variables, with_variables
from mx_rec.tensorflow.names import checkpoint_management, training_util
from mx_rec.validator.validator import Int, Text, checked, is_int


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
            ValueError: If the path or the step is not valid, or two of the tables have one name.
        """
        save_path = check_save_path(save_path)
        operations = distinct(table_ops(sess.graph, self._names()), "saved")
        if save_path.endswith(os.sep):
            save_path = os.path.join(save_path, self._prefix_name)
        checkpoint = _checkpoint_name(sess, save_path, global_step, False)
        directory = sparse_directory(checkpoint)
        _save_tables(sess, operations, checkpoint, False).staging.finish()
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
        operations = distinct(table_ops(sess.graph, self._names()), "restored")
        directory = directory_of(save_path)
        with local_copy(directory) as here:
            with StagedLoads(sess, tables_to_load(operations, here), here) as loads:
                loads.publish()

    def _names(self) -> Optional[List[str]]:
        if self._var_list is None:
            return None
        return [variable.op.name for variable in self._var_list]


# What tf.train.Saver does in addition; see patches.py -----------------------------


def patched_save(stock: Callable[..., Optional[str]], self: Any, sess: Any, save_path: str,
                 global_step: Any = None, latest_filename: Optional[str] = None,
                 meta_graph_suffix: str = "meta", write_meta_graph: bool = True,
                 write_state: bool = True, strip_default_attrs: bool = False,
                 save_debug_info: bool = False, is_incremental_checkpoint: bool = False,
                 save_delta: bool = False) -> Optional[str]:
    """tf.train.Saver.save, which saves the tables before the variables.

    The file `checkpoint` names a step only after its tables are on disk.

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
        is_incremental_checkpoint: Whether this is a save of incremental checkpoints; needs
            `init(is_incremental_checkpoint=True, ...)`.
        save_delta: Whether to save only what changed in the tables since the last save or
            restore of this session; where that cannot be, all is saved, and the log says why.

    Returns:
        The prefix of the checkpoint, with the step.

    Raises:
        ValueError: If an argument is not valid.
    """
    if (is_incremental_checkpoint or save_delta) and incremental.config() is None:
        raise ValueError("'is_incremental_checkpoint' and 'save_delta' need "
                         "init(is_incremental_checkpoint=True, save_checkpoint_due_time=..., "
                         "save_delta_checkpoints_secs=...)")
    started = time.time()
    operations = saver_ops(self, sess, "saved")
    if operations:
        save_path = check_save_path(save_path)
        Text(1, 50, optional=True)("latest_filename", latest_filename)
        Text(1, 50)("meta_graph_suffix", meta_graph_suffix)
        global_step = _step_number(sess, global_step)
        checkpoint = _checkpoint_name(sess, save_path, global_step, self._pad_step_number)
        _check_free(operations, checkpoint, [
            meta_graph_suffix if write_meta_graph else None,
            (latest_filename or "checkpoint") if write_state else None])
        index = index_stamp(checkpoint)
        link = None
        if save_delta or incremental.asked_kind() == incremental.DELTA:
            link = incremental.link_of(sess, checkpoint, [op.name for op in operations])
        saved = _save_tables(sess, operations, checkpoint, True, link)
        staging = saved.staging
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
        _after_save(self, sess, checkpoint, saved, latest_filename,
                    set(before) - set(self.last_checkpoints), time.time() - started)
    return path


def _check_free(operations: List[TableOps], checkpoint: str, names: List[Optional[str]]) -> None:
    """Checks that nothing is in the way of the files that come after the tables.

    Args:
        operations: Of the tables.
        checkpoint: `<dir>/<base>-<step>`.
        names: Suffix of the meta graph, and name of the state file, None for what is not written.
    """
    if is_remote(checkpoint):
        return
    suffix, state = names
    files = [checkpoint + ".index", checkpoint + ".data-00000-of-00001"]
    files += [] if suffix is None else ["{}.{}".format(checkpoint, suffix)]
    files += [] if state is None else [os.path.join(os.path.dirname(checkpoint), state)]
    if incremental.config() is not None:
        files += incremental.notes_beside(checkpoint)
    try:
        check_free(checkpoint, files)
    except OSError as error:
        raise _named_error(error, operations) from error


def _after_save(saver: Any, sess: Any, checkpoint: str, saved: "_Saved",
                latest_filename: Optional[str], old: Set[str], seconds: float) -> None:
    """Notes a complete save, and removes the tables of checkpoints that are gone."""
    if is_remote(checkpoint):
        for prefix in old:
            if not checkpoint_management.checkpoint_exists(prefix):
                discard(sparse_directory(prefix))
        return
    incremental.note(sess, saved.directory, saved.epochs)
    parent = os.path.dirname(os.path.abspath(checkpoint))
    with alone(parent):
        kept = needed(parent, base_of(saved.directory))
        for prefix in old:
            directory = tables_directory(prefix)
            if os.path.dirname(os.path.abspath(directory)) == parent and is_owned(directory):
                continue
            if not checkpoint_management.checkpoint_exists(prefix) \
                    and os.path.abspath(directory) not in kept:
                discard(directory)
        incremental.tidy_after(saver, checkpoint, saved.directory, saved.before, latest_filename)
    if incremental.config() is not None:
        incremental.record(checkpoint, incremental.DELTA if is_delta(saved.directory)
                           else incremental.BASE, seconds)


def patched_restore(stock: Callable[..., None], self: Any, sess: Any, save_path: str) -> None:
    """tf.train.Saver.restore, which restores the tables after the variables.

    Args:
        sess: A session of the graph.
        save_path: Prefix of the checkpoint, with the step.

    Raises:
        ValueError: If it is not a checkpoint.
        FileExistsError: If the checkpoint has no directory for the tables, or for one of them.
    """
    operations = saver_ops(self, sess, "restored")
    is_first = not has_run(sess)
    restored = _restore(stock, self, sess, save_path, operations)
    if not tf.executing_eagerly() and getattr(sess, "graph", None) is not None:
        open_parts(sess, restored, is_first)


def _restore(stock: Callable[..., None], saver: Any, sess: Any, save_path: str,
             operations: List[TableOps]) -> List[TableOps]:
    """Restores variables and the tables of `operations`; returns those that were restored."""
    if operations and save_path:
        save_path = single_slashes(tf.compat.as_text(save_path))
    if not operations or not save_path or not _is_checkpoint(save_path):
        # Without tables it is TensorFlow's alone, and so is the error of a wrong path.
        _restore_variables(stock, saver, sess, save_path)
        return []
    save_path = incremental.version_to_restore(save_path)
    directory = directory_of(save_path)
    with local_copy(directory) as here:
        check_admission(converted(sess.graph, operations), here, save_path)
        dense = DenseSource(converted(sess.graph, operations), here, save_path)
        filled = [op for op in operations if op.table_name in dense.tables()]
        operations = [op for op in operations if op.table_name not in dense.tables()]
        if dense.found and not operations:
            with dense.staged(sess, filled) as fills:
                if not is_marked(saver) or dense.has(MARKER):
                    _restore_variables(stock, saver, sess, save_path)
                fills.publish()
            dense.take_over(sess)
            return filled
        if names_no_table(saver, converted(sess.graph, operations)) and not os.path.isdir(here):
            logger.info("the Saver was given variables without tables and %s does not exist: "
                        "tables are not restored.", directory)
            _restore_variables(stock, saver, sess, save_path)
            return []
        dense.expect_all()
        operations = tables_to_load(operations, here, {
            one.table.table_name: one.plan.name for one in converted(sess.graph, operations)
            if not one.plan.ids.is_lifted})
        if restores_tables(sess.graph, saver.saver_def):
            verify_tables(operations, here)
            _restore_variables(stock, saver, sess, save_path)
            logger.info("restored %s from %s.", ", ".join(op.name for op in operations),
                        directory)
            return operations + filled
        with dense.staged(sess, filled) as fills, \
                StagedLoads(sess, operations, here) as loads:
            _restore_variables(stock, saver, sess, save_path)
            epochs = loads.publish()
            fills.publish()
            dense.take_over(sess)
        if here == directory:
            incremental.note(sess, directory, epochs)
    return operations + filled


def _restore_variables(stock: Callable[..., None], saver: Any, sess: Any, save_path: str) -> None:
    """Restores variables, also those that the checkpoint has as tables of a converted model."""
    graph = getattr(sess, "graph", None)
    if graph is None or not save_path or tf.executing_eagerly():
        stock(saver, sess, save_path)
        return
    save_path = tf.compat.as_text(save_path)
    with with_variables(graph, save_path) as prefix:
        try:
            stock(saver, sess, prefix)
        except tf.errors.NotFoundError as error:
            missing = re.search(r"Key (\S+) not found in checkpoint", error.message)
            if missing is None or missing.group(1) not in saved_variables(save_path):
                raise
            raise tf.errors.NotFoundError(
                error.node_def, error.op, "the variable {0!r} is a table in {1}, which a Saver "
                "restores by its own name alone: tf.train.init_from_checkpoint({1!r}, {{{0!r}: "
                "variable}}) starts a variable of another name with it.".format(
                    missing.group(1), save_path)) from error


def _is_checkpoint(path: str) -> bool:
    try:
        return tf.compat.v1.train.checkpoint_exists(path)
    except tf.errors.OpError as error:
        # TensorFlow lists the directory, which may not be one.
        raise ValueError("The passed save_path is not a valid checkpoint: {} ({})".format(
            path, error.message)) from error


class _Saved(NamedTuple):
    """Tables that are in place, before the variables are.

    Attributes:
        staging: Finishes or undoes it.
        directory: Where the tables are.
        epochs: For each table what the engine calls that moment.
        before: The deltas that were there when the save began (incremental.deltas_before).
    """

    staging: Any
    directory: str
    epochs: Dict[str, int]
    before: Dict[str, Optional[str]]


def _save_tables(sess: Any, operations: List[TableOps], checkpoint: str, dense: bool,
                 link: Optional[incremental.Chain] = None) -> _Saved:
    """Saves tables, all or none, as a delta that follows `link` or whole.

    The caller finishes the staging.
    """
    directory = sparse_directory(checkpoint) if link is None else delta_directory(checkpoint)
    if is_remote(directory) and any(op.part is not None for op in operations):
        raise NotImplementedError(
            "tables on parameter servers cannot be saved to {} yet: each server writes its part "
            "itself, to a file system that it has in common with the chief. Give a path of such a "
            "file system (docs/cluster.md).".format(checkpoint))
    before = incremental.deltas_before(directory)
    try:
        staging = staging_of(directory)
    except (OSError, tf.errors.ResourceExhaustedError) as error:
        raise _named_error(error, operations) from error
    more = {"id": uuid.uuid4().hex}  # type: Dict[str, Any]
    variables_of_tables = described_variables(sess.graph, operations)
    if variables_of_tables:
        more[VARIABLES] = variables_of_tables
    try:
        feed = paths_of(operations, [staging.path])
        if link is not None:
            more.update(previous={"directory": os.path.basename(link.directory),
                                  "id": link.identity})
            least = Settings.get_instance().recent_key_count_threshold
            for op in operations:
                feed.update({op.save.inputs[2]: link.epochs[op.name], op.save.inputs[3]: least})
        counts = sess.run([op.save.outputs for op in operations], feed)
        staging.commit([{"name": op.name, "rows": int(count[0])}
                        for op, count in zip(operations, counts)], dense, **more)
    except BaseException as error:
        staging.undo()
        if link is not None and isinstance(error, tf.errors.InvalidArgumentError):
            logger.info("%s is saved whole: %s", checkpoint, error.message)
            return _save_tables(sess, operations, checkpoint, dense)
        if isinstance(error, OSError) or (
                isinstance(error, tf.errors.ResourceExhaustedError) and error.op is None):
            raise _named_error(error, operations) from error
        raise
    logger.info("saved %s to %s.", ", ".join(
        "{} ({} rows)".format(op.name, count[0]) if link is None else
        "{} ({} rows changed, {} removed)".format(op.name, count[0], count[2])
        for op, count in zip(operations, counts)), directory)
    if Settings._single_instance is not None:  # pylint: disable=protected-access
        Settings.get_instance().train_params_config.sparse_dir = directory
    return _Saved(staging, directory,
                  {op.name: int(count[1]) for op, count in zip(operations, counts)}, before)


def _named_error(error: Any, operations: List[TableOps]) -> Exception:
    """Returns an error of the system with the names of the tables that were to be saved."""
    names = ", ".join(repr(op.name) for op in operations)
    if isinstance(error, tf.errors.OpError):
        return type(error)(None, None, "the tables {} cannot be saved: {}".format(
            names, error.message))
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
