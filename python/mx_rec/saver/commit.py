"""Puts the tables of a checkpoint into place all at once; see docs/checkpoint-format.md."""

import ctypes
import itertools
import json
import os
import re
import shutil
import threading
import time
from typing import Any, List, Optional, Set

from mx_rec.constants.constants import DIRECTORY_MODE
from mx_rec.saver import sealed
from mx_rec.saver.chains import (MANIFEST, base_of, dense_of, is_delta, needed, other_kind,
                                 read_manifest)
from mx_rec.util.log import logger

_HIDDEN = re.compile(r"^\.((?:delta-)?sparse-.+)\.(saving|old|other|undo|gone)-((\d+)-\d+)$")
_FILE_MODE = 0o640
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# How far the clocks of a process and of a file system may be apart, in seconds.
_CLOCKS = 1.0

_numbers = itertools.count()
_lock = threading.Lock()
_active = set()  # type: Set[str]


class Staging:
    """A hidden directory that becomes the directory of a checkpoint's tables.

    Attributes:
        path: Where the tables are to be written.

    Args:
        directory: `<dir>/sparse-<base>-<step>`; `<dir>` is made if it is missing.

    Raises:
        OSError: If the hidden directory cannot be made.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.abspath(directory)
        parent, name = os.path.split(self._directory)
        os.makedirs(parent, mode=DIRECTORY_MODE, exist_ok=True)
        if os.path.lexists(self._directory) and not os.path.isdir(self._directory):
            raise NotADirectoryError("the tables cannot be saved: {} exists and is no "
                                     "directory".format(self._directory))
        _clean(parent, name)
        self._committed = False
        self._token = _new_token(self._directory)
        self.path = _hidden(self._directory, "saving", self._token)
        with _lock:
            _active.add(self._token)
        try:
            os.mkdir(self.path, DIRECTORY_MODE)
        except BaseException:
            self._release()
            raise

    def commit(self, tables: List[Any], dense: bool, **more: Any) -> None:
        """Writes the manifest and makes the directory the checkpoint's.

        Args:
            tables: What the manifest says of each table.
            dense: Whether variables are saved beside the tables.
            **more: Further fields of the manifest.

        Raises:
            OSError: If the system refuses; what stood there before is there still.
        """
        content = dict(more, tables=tables, dense=dense, process=os.getpid(),
                       staging=self._token)
        path = os.path.join(self.path, MANIFEST)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, _FILE_MODE), "w") as file:
            file.write(sealed.dumps(content))
            file.flush()
            os.fsync(file.fileno())
        sync(self.path)
        exists = os.path.isdir(self._directory)
        # A delta takes the place of a whole save of its step, and the other way round.
        other = other_kind(self._directory)
        if dense and (exists or os.path.isdir(other)
                      or os.path.lexists(dense_of(self._directory) + ".index")):
            _keep_dense(self._directory, _hidden(self._directory, "undo", self._token))
        if os.path.isdir(other):
            os.rename(other, _hidden(self._directory, "other", self._token))
        if not exists:
            os.rename(self.path, self._directory)
        elif not _exchange(self.path, self._directory):
            os.rename(self._directory, _hidden(self._directory, "old", self._token))
            os.rename(self.path, self._directory)
        self._committed = True
        sync(os.path.dirname(self._directory))

    def finish(self) -> None:
        """Removes what the commit replaced."""
        self._drop()

    def undo(self) -> None:
        """Puts back what stood there before; without a commit, removes what was written."""
        if self._committed:
            _roll_back(self._directory, self._token)
        else:
            recover(self._directory, self._token)
        self._drop()

    def _drop(self) -> None:
        for kind in ("undo", "saving", "old", "other"):
            _discard(_hidden(self._directory, kind, self._token), self._directory)
        self._release()

    def _release(self) -> None:
        with _lock:
            _active.discard(self._token)


def sync(path: str) -> None:
    """Flushes a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_dense(checkpoint: str) -> None:
    """Flushes the files of a checkpoint's variables, and their directory, to the disk.

    Args:
        checkpoint: Prefix of the checkpoint, with the step.
    """
    parent, base = os.path.split(os.path.abspath(checkpoint))
    for name in _dense_files(parent, base):
        sync(os.path.join(parent, name))
    sync(parent)


def listed_tables(directory: str) -> Optional[List[str]]:
    """Returns the tables that a checkpoint was saved with, or None where no manifest tells.

    Raises:
        ValueError: If the manifest is damaged.
    """
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            return [str(table["name"]) for table in sealed.loads(file.read())["tables"]]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("{} is no manifest: {}".format(path, error)) from error


def recover(directory: str, token: Optional[str] = None) -> None:
    """Puts back what an interrupted save over an earlier checkpoint had replaced.

    Args:
        directory: `<dir>/sparse-<base>-<step>`.
        token: Of the save; any whose process is dead without it.
    """
    directory = os.path.abspath(directory)
    parent, name = os.path.split(directory)
    if not os.path.isdir(parent):
        return
    for entry in sorted(os.listdir(parent)):
        match = _HIDDEN.match(entry)
        path = os.path.join(parent, entry)
        if not match or match.group(1) != name or match.group(2) not in ("old", "other", "undo"):
            continue
        if token != match.group(3) and _in_use(path, match):
            continue
        if match.group(2) == "undo" and _token_of(directory) == match.group(3):
            index = os.path.basename(dense_of(directory)) + ".index"
            # Without earlier variables, an index says that the new checkpoint is whole.
            if os.path.lexists(os.path.join(path, index)) \
                    or not os.path.lexists(os.path.join(parent, index)):
                _roll_back(directory, match.group(3))
                logger.warning("put %s and its variables back, which an interrupted save was "
                               "replacing.", directory)
            _discard(path, directory)
        elif match.group(2) == "old":
            _put_back(path, directory)
        elif match.group(2) == "other" and _token_of(directory) != match.group(3):
            _put_back(path, other_kind(directory))
        elif match.group(2) == "other" and not os.path.isdir(_hidden(directory, "undo",
                                                                     match.group(3))):
            _discard(path, directory)


def _put_back(path: str, directory: str) -> None:
    """Renames a directory that an interrupted save had taken away, if there is no other."""
    if not os.path.lexists(directory):
        os.rename(path, directory)
        logger.warning("put %s back, which an interrupted save had renamed.", directory)


def recover_chain(directory: str) -> None:
    """`recover` of a directory of tables and, if it is a delta, of all that it follows."""
    parent = os.path.dirname(os.path.abspath(directory))
    done = set()  # type: Set[str]
    while directory not in done:
        done.add(directory)
        recover(directory)
        recover(other_kind(directory))
        try:
            previous = read_manifest(directory).get("previous") if is_delta(directory) else None
        except ValueError:
            # Reading the chain raises it, with both names.
            return
        if isinstance(previous, dict):
            directory = os.path.join(parent, os.path.basename(str(previous.get("directory"))))


def discard(directory: str) -> None:
    """Removes a directory of tables: it is gone at once, though removing its files takes time."""
    if os.path.isdir(directory):
        _discard(directory, directory)
        if os.path.isdir(directory):
            logger.warning("the old directory of tables %s could not be removed.", directory)


def _discard(path: str, directory: str) -> None:
    """Removes `path`, which belongs to the tables of `directory`, if it is there."""
    if not os.path.isdir(path):
        return
    gone = _hidden(directory, "gone", _new_token(directory))
    try:
        os.rename(path, gone)
    except OSError:
        gone = path
    if os.path.islink(gone):
        # What it leads to is not the checkpoint's.
        _remove_file(gone)
    else:
        shutil.rmtree(gone, ignore_errors=True)


def _clean(parent: str, name: str) -> None:
    """Removes what dead processes left of saves with the prefix of `name`, deltas or not."""
    prefix = re.sub(r"^delta-|-\d+$", "", name)
    mine = re.compile(r"(delta-)?{}(-\d+)?$".format(re.escape(prefix)))
    hidden = [match for match in map(_HIDDEN.match, sorted(os.listdir(parent)))
              if match and mine.match(match.group(1))
              and not _in_use(os.path.join(parent, match.group(0)), match)]
    for one in sorted({match.group(1) for match in hidden}):
        recover(os.path.join(parent, one))
    for match in hidden:
        _remove_leftover(os.path.join(parent, match.group(0)))
    for entry in sorted(os.listdir(parent)):
        path = os.path.join(parent, entry)
        if mine.match(entry) and entry != name and _lacks_dense(path):
            for file in _dense_files(parent, os.path.basename(dense_of(path))):
                _remove_leftover(os.path.join(parent, file))
            # Without variables, tables may still be what deltas of other checkpoints follow.
            if path not in needed(parent, base_of(path)):
                logger.info("removing %s, which an interrupted save left.", path)
                discard(path)
    _clean_dense(parent, os.path.basename(dense_of(os.path.join(parent, prefix))))


def _clean_dense(parent: str, base: str) -> None:
    """Removes temporary files of TensorFlow that are older than this process."""
    temporary = re.compile(
        r"(checkpoint\.tmp[0-9a-f]+|{}(-\d+)?(_temp_[0-9a-f]+|\.meta\.tmp[0-9a-f]+"
        r"|\.(index|data-\d+-of-\d+)\.tempstate\d+))$".format(re.escape(base)))
    started = _started(os.getpid())
    for entry in sorted(os.listdir(parent)):
        path = os.path.join(parent, entry)
        if temporary.match(entry) and started is not None and _changed(path) < started:
            _remove_leftover(path)


def _remove_leftover(path: str) -> None:
    if os.path.lexists(path):
        logger.info("removing %s, which an interrupted save left.", path)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        _remove_file(path)


def _remove_file(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass


def _lacks_dense(path: str) -> bool:
    """Returns whether the variables are gone that a dead process saved with a directory."""
    if os.path.isfile(dense_of(path) + ".index"):
        return False
    manifest = os.path.join(path, MANIFEST)
    try:
        with open(manifest) as file:
            content = json.load(file)
        return bool(content["dense"]) and not _alive(content["process"], _changed(manifest))
    except (OSError, KeyError, TypeError, ValueError):
        # Of another version, or saved without variables.
        return False


def _keep_dense(directory: str, undo: str) -> None:
    """Keeps the variables that belong to a directory of tables in the directory `undo`."""
    os.mkdir(undo, DIRECTORY_MODE)
    parent, base = os.path.split(dense_of(directory))
    for name in _dense_files(parent, base):
        # TensorFlow may write an index in place; it renames whatever else it writes.
        _link(os.path.join(parent, name), os.path.join(undo, name), not name.endswith(".index"))
    sync(undo)


def _roll_back(directory: str, token: str) -> None:
    """Puts back what the save with `token` replaced, the variables first; may be done again."""
    undo = _hidden(directory, "undo", token)
    if os.path.isdir(undo):
        parent, base = os.path.split(dense_of(directory))
        kept = os.listdir(undo)
        for name in _dense_files(parent, base):
            if name not in kept:
                _remove_file(os.path.join(parent, name))
        for name in kept:
            # Beside what is kept: it goes with that, whatever happens.
            scratch = os.path.join(undo, ".scratch")
            if name != ".scratch":
                _remove_file(scratch)
                _link(os.path.join(undo, name), scratch, True)
                os.replace(scratch, os.path.join(parent, name))
                _remove_file(scratch)
        sync(parent)
    if _token_of(directory) == token:
        _take_back(directory, token)
    other = _hidden(directory, "other", token)
    if os.path.isdir(other):
        _put_back(other, other_kind(directory))


def _take_back(directory: str, token: str) -> None:
    """Puts back the directory of tables that the save with `token` replaced, if there was one."""
    for kind in ("saving", "old"):
        earlier = _hidden(directory, kind, token)
        if os.path.isdir(earlier):
            if not _exchange(earlier, directory):
                if kind == "saving":
                    old = _hidden(directory, "old", token)
                    os.rename(earlier, old)
                    earlier = old
                discard(directory)
                os.rename(earlier, directory)
            return
    discard(directory)


def _link(source: str, target: str, may_share: bool) -> None:
    """Makes `target` a file with the content of `source`, or the same file if it may be that."""
    if may_share:
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    shutil.copy2(source, target)
    sync(target)


def _dense_files(parent: str, base: str) -> List[str]:
    """Returns the names of the files of a checkpoint's variables."""
    name = re.compile(re.escape(base) + r"\.(index|meta|data-\d+-of-\d+)$")
    return sorted(entry for entry in os.listdir(parent) if name.match(entry))


def _token_of(directory: str) -> Optional[str]:
    """Returns which save made a directory of tables, or None where it does not say."""
    try:
        with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
            return str(json.load(file)["staging"])
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _hidden(directory: str, kind: str, token: str) -> str:
    parent, name = os.path.split(directory)
    return os.path.join(parent, ".{}.{}-{}".format(name, kind, token))


def _new_token(directory: str) -> str:
    while True:
        token = "{}-{}".format(os.getpid(), next(_numbers))
        if not any(os.path.lexists(_hidden(directory, kind, token))
                   for kind in ("saving", "old", "other", "undo", "gone")) \
                and _token_of(directory) != token:
            return token


def _in_use(path: str, match: Any) -> bool:
    """Returns whether the process that made a hidden directory may still use it."""
    process = int(match.group(4))
    if process == os.getpid():
        with _lock:
            return match.group(3) in _active
    return _alive(process, _changed(path))


def _alive(process: int, since: float) -> bool:
    """Returns whether a process runs that was there at a time, in seconds since 1970."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    started = _started(process)
    return started is None or started <= since + _CLOCKS


def _started(process: int) -> Optional[float]:
    """Returns when a process was started, in seconds since 1970; None where that is unknown."""
    try:
        with open("/proc/{}/stat".format(process)) as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def _changed(path: str) -> float:
    """Returns when something was last changed or renamed, in seconds since 1970."""
    try:
        found = os.lstat(path)
        return max(found.st_mtime, found.st_ctime)
    except OSError:
        return time.time()


def _exchange(one: str, other: str) -> bool:
    """Swaps two directories in one step; returns False where the system cannot."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other),
                    _RENAME_EXCHANGE) == 0
