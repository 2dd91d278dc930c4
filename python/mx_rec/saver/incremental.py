"""Incremental checkpoints: which saves are whole, which tell only what changed, and what goes when.

See docs/incremental-checkpoints.md.
"""

import contextlib
import json
import os
import re
import threading
import time
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint.chains import (base_of, delta_directory, deltas, dense_of, identity_of,
                                      is_delta, needed, read_manifest, step_of, tables_directory)
from mx_rec.checkpoint.commit import discard, is_owned
from mx_rec.checkpoint.paths import is_remote, same_directory
from mx_rec.state.settings import Settings
from mx_rec.tensorflow.names import checkpoint_management

BASE, DELTA = "base", "delta"
INDEX_FILE = "model_index.json"
TIMES_FILE = "delta_export_time_ms.json"

_TAGS = {BASE: "DueTime", DELTA: "Seconds"}
_asked = threading.local()


class Chain(NamedTuple):
    """What a session's tables were last saved to or restored from.

    Attributes:
        directory: The directory of tables, absolute.
        identity: The id in its manifest.
        epochs: For each table what the engine calls that moment.
    """

    directory: str
    identity: str
    epochs: Dict[str, int]


_chains = weakref.WeakKeyDictionary()  # type: Any
# (directory, base name) of what this process has saved; restore_model_version is for before.
_saved = set()  # type: Set[Any]


def config() -> Optional[Settings]:
    """Returns the configuration if it asks for incremental checkpoints, else None."""
    instance = Settings._single_instance  # pylint: disable=protected-access
    return instance if instance is not None and instance.is_incremental_checkpoint else None


@contextlib.contextmanager
def asking_for(kind: str) -> Iterator[None]:
    """Makes the saves of this thread whole ones (BASE) or deltas (DELTA) in the meantime."""
    earlier = getattr(_asked, "kind", None)
    _asked.kind = kind
    try:
        yield
    finally:
        _asked.kind = earlier


def asked_kind() -> Optional[str]:
    """Returns what `asking_for` asks for, None outside of it."""
    return getattr(_asked, "kind", None)


def link_of(sess: Any, checkpoint: str, names: List[str]) -> Optional[Chain]:
    """Returns what a delta of these tables can follow, None (and why, in the log) if nothing.

    Args:
        sess: The session.
        checkpoint: The checkpoint that is to be saved.
        names: Its tables.
    """
    chain = _chains.get(sess)
    if is_remote(checkpoint):
        reason = "deltas are for local directories"
    elif chain is None:
        reason = "nothing was saved or restored in this session"
    elif not same_directory(os.path.dirname(chain.directory),
                            os.path.dirname(os.path.abspath(checkpoint))) \
            or base_of(chain.directory) != base_of(delta_directory(checkpoint)):
        reason = "the last save went to {}".format(chain.directory)
    elif identity_of(chain.directory) != chain.identity:
        reason = "{} is gone".format(chain.directory)
    elif any(not chain.epochs.get(name) for name in names):
        reason = "not all of its tables are in {}".format(chain.directory)
    elif os.path.basename(dense_of(chain.directory)) == os.path.basename(checkpoint):
        # The delta would take the place of what it follows.
        reason = "{} is of the same step".format(chain.directory)
    else:
        return chain
    logger.info("%s is saved whole: %s.", checkpoint, reason)
    return None


def note(sess: Any, directory: str, epochs: Dict[str, int]) -> None:
    """Notes what the tables of a session were saved to or restored from."""
    directory = os.path.abspath(directory)
    identity = identity_of(directory)
    if identity is None:
        _chains.pop(sess, None)
    else:
        _chains[sess] = Chain(directory, identity, dict(epochs))


def versions(checkpoint: str) -> Dict[int, str]:
    """Returns the steps of the checkpoints beside this one that have both parts, with their prefix.

    Args:
        checkpoint: `<dir>/<base>-<step>`.
    """
    parent, base = os.path.split(checkpoint)
    base = re.sub(r"-\d+$", "", base)
    found = {}  # type: Dict[int, str]
    for entry in os.listdir(parent or "."):
        match = re.match(re.escape(base) + r"-(\d+)\.index$", entry)
        prefix = os.path.join(parent, entry[:-len(".index")])
        if match and os.path.isdir(tables_directory(prefix)):
            found[int(match.group(1))] = prefix
    return found


def version_to_restore(checkpoint: str) -> str:
    """Returns the checkpoint that `init(restore_model_version=...)` asks for in place of this one.

    It counts until this process saves a checkpoint of that name itself.

    Args:
        checkpoint: `<dir>/<base>-<step>`, of local files.

    Raises:
        ValueError: If there is no checkpoint of that step; the text lists those there are.
    """
    wanted = config() and config().restore_model_version
    if wanted is None or is_remote(checkpoint) or _place(checkpoint) in _saved:
        return checkpoint
    found = versions(checkpoint)
    if wanted not in found:
        raise ValueError("there is no version {} of {} to restore: the steps are {}.".format(
            wanted, checkpoint, ", ".join(map(str, sorted(found))) or "none"))
    return found[wanted]


def deltas_before(directory: str) -> Dict[str, Optional[str]]:
    """Returns the deltas that a whole save will have ended, with the ids of their saves.

    Deltas that come while it is under way are of another save, and stay.

    Args:
        directory: The whole save's directory of tables, which is not there yet.
    """
    parent = os.path.dirname(os.path.abspath(directory))
    if config() is None or is_remote(directory) or is_delta(directory) \
            or not os.path.isdir(parent):
        return {}
    return {path: identity_of(path) for path in deltas(parent, base_of(directory))
            if os.path.isfile(dense_of(path) + ".index")}


def tidy_after(saver: Any, checkpoint: str, directory: str, before: Dict[str, Optional[str]],
               latest_filename: Optional[str]) -> None:
    """After a complete save: removes what no restore can need any more.

    A whole save of a training with incremental checkpoints ends the deltas before it: they go with
    their variables. Older whole saves stay for as long as max_to_keep says.

    Args:
        saver: The tf.train.Saver.
        checkpoint: What was saved.
        directory: Its directory of tables.
        before: What `deltas_before` gave when the save began.
        latest_filename: Name of the state file, or None.
    """
    checkpoint, directory = os.path.abspath(checkpoint), os.path.abspath(directory)
    parent, base = os.path.dirname(directory), base_of(directory)
    _saved.add(_place(checkpoint))
    if config() is not None and not is_delta(directory):
        _remove_deltas(saver, checkpoint, before, latest_filename)
    keep = needed(parent, base) | {directory}
    for entry in sorted(os.listdir(parent)):
        path = os.path.join(parent, entry)
        # The variables of a save that is under way come last: it is asked for before these.
        if re.match(r"(delta-)?sparse-", entry) and base_of(path) == base and path not in keep \
                and not is_owned(path) and identity_of(path) is not None \
                and read_manifest(path).get("dense") \
                and not os.path.isfile(dense_of(path) + ".index"):
            discard(path)


def _remove_deltas(saver: Any, checkpoint: str, before: Dict[str, Optional[str]],
                   latest_filename: Optional[str]) -> None:
    """Removes the deltas that a whole save has ended, and takes them out of the state file."""
    parent = os.path.dirname(checkpoint)
    ended = [path for path in sorted(before)
             if identity_of(path) == before[path] and not is_owned(path)]
    if not ended:
        return
    gone = {dense_of(path) for path in ended}
    kept = [pair for pair in saver._last_checkpoints  # pylint: disable=protected-access
            if os.path.abspath(pair[0]) not in gone]
    saver.set_last_checkpoints_with_time(kept)
    newest = saver.last_checkpoints[-1] if kept else checkpoint
    checkpoint_management.update_checkpoint_state_internal(
        parent, newest, saver.last_checkpoints, latest_filename=latest_filename,
        save_relative_paths=saver._save_relative_paths)  # pylint: disable=protected-access
    for path in ended:
        if checkpoint_management.checkpoint_exists(dense_of(path)):
            checkpoint_management.remove_checkpoint(dense_of(path))
        discard(path)


def record(checkpoint: str, kind: str, seconds: float) -> None:
    """Writes a save into model_index.json, and the time of a delta into delta_export_time_ms.json.

    Args:
        checkpoint: What was saved.
        kind: BASE or DELTA.
        seconds: How long it took.
    """
    parent = os.path.dirname(os.path.abspath(checkpoint))
    entry = {"timestamp": int(time.time()), "export_tag": _TAGS[kind], "type": kind,
             "global_step": step_of(checkpoint) or 0, "cost_ms": int(seconds * 1000)}
    path = os.path.join(parent, INDEX_FILE)
    entries = []  # type: List[Any]
    if kind == DELTA:
        try:
            with open(path) as file:
                entries = [one for one in json.load(file)
                           if one["global_step"] < entry["global_step"]]
        except FileNotFoundError:
            pass
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s was damaged (%s) and starts anew.", path, error)
    _write(path, entries + [entry])
    if kind == DELTA:
        _write(os.path.join(parent, TIMES_FILE), {
            "global_step": entry["global_step"], "delta_export_time_ms": entry["cost_ms"]})


def notes_beside(checkpoint: str) -> List[str]:
    """Returns the paths of the files that `record` writes beside a checkpoint.

    Args:
        checkpoint: `<dir>/<base>-<step>`.
    """
    return [os.path.join(os.path.dirname(checkpoint), name) for name in (INDEX_FILE, TIMES_FILE)]


def _write(path: str, content: Any) -> None:
    # One name, so that what a killed save leaves of it is the next one's.
    scratch = path + ".tmp"
    with open(scratch, "w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(scratch, path)


def _place(checkpoint: str) -> Any:
    parent, base = os.path.split(os.path.abspath(checkpoint))
    return os.path.realpath(parent), re.sub(r"-\d+$", "", base)


# What tf.estimator's hook does in addition; see patches.py ------------------------


def patched_hook_begin(stock: Any, self: Any) -> None:
    """CheckpointSaverHook.begin, which sets the two clocks of incremental checkpoints."""
    stock(self)
    found = config()
    self._mx_rec_clocks = None
    if found is not None:
        timer = tf.compat.v1.train.SecondOrStepTimer
        self._mx_rec_clocks = {
            BASE: timer(every_secs=found.save_checkpoint_due_time),
            DELTA: timer(every_secs=found.save_delta_checkpoints_secs)}
        logger.info("checkpoints are incremental: whole every %d s, deltas every %d s; the "
                    "times and steps given to the hook have no effect.",
                    found.save_checkpoint_due_time, found.save_delta_checkpoints_secs)


def patched_hook_after_run(stock: Any, self: Any, run_context: Any, run_values: Any) -> None:
    """CheckpointSaverHook.after_run, which saves when a clock says so."""
    clocks = getattr(self, "_mx_rec_clocks", None)
    if not clocks:
        stock(self, run_context, run_values)
        return
    step = run_values.results + self._steps_per_run
    due = [kind for kind in (BASE, DELTA) if clocks[kind].should_trigger_for_step(step)]
    if not due:
        return
    step = run_context.session.run(self._global_step_tensor)
    # A whole save says all that a delta would.
    for kind in (BASE, DELTA) if due[0] == BASE else (DELTA,):
        clocks[kind].update_last_triggered_step(step)
    self._timer.update_last_triggered_step(step)
    with asking_for(due[0]):
        if self._save(run_context.session, step):
            run_context.request_stop()


def patched_hook_created(stock: Any, self: Any, session: Any, coord: Any) -> None:
    """CheckpointSaverHook.after_create_session, whose first save is a whole one."""
    clocks = getattr(self, "_mx_rec_clocks", None)
    with asking_for(BASE) if clocks else contextlib.ExitStack():
        stock(self, session, coord)
    if clocks:
        step = session.run(self._global_step_tensor)
        for clock in clocks.values():
            clock.update_last_triggered_step(step)


def patched_hook_end(stock: Any, self: Any, session: Any) -> None:
    """CheckpointSaverHook.end, whose last save is a delta."""
    clocks = getattr(self, "_mx_rec_clocks", None)
    with asking_for(DELTA) if clocks else contextlib.ExitStack():
        stock(self, session)
