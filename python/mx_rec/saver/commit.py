"""Puts the tables of a checkpoint into place all at once; see docs/checkpoint-format.md."""

import ctypes
import itertools
import json
import os
import re
import shutil
import threading
from typing import Any, List, Optional, Set

from mx_rec.constants.constants import DIRECTORY_MODE
from mx_rec.util.log import logger

MANIFEST = "manifest.json"

_HIDDEN = re.compile(r"^\.(sparse-.+)\.(saving|old)-(\d+)-(\d+)$")
_FILE_MODE = 0o640
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

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
        self._earlier = self._committed = False
        self.path = self._hidden("saving")
        with _lock:
            _active.add(self.path)
        os.mkdir(self.path, DIRECTORY_MODE)

    def commit(self, tables: List[Any], dense: bool) -> None:
        """Writes the manifest and makes the directory the checkpoint's.

        Args:
            tables: What the manifest says of each table.
            dense: Whether variables are saved beside the tables.

        Raises:
            OSError: If the system refuses; what stood there before is there still.
        """
        content = {"format_version": 2, "tables": tables, "dense": dense, "process": os.getpid()}
        path = os.path.join(self.path, MANIFEST)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, _FILE_MODE), "w") as file:
            file.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sync(self.path)
        self._earlier = os.path.isdir(self._directory)
        if not self._earlier:
            os.rename(self.path, self._directory)
        elif not _exchange(self.path, self._directory):
            old = self._hidden("old")
            os.rename(self._directory, old)
            os.rename(self.path, self._directory)
            with _lock:
                _active.discard(self.path)
                _active.add(old)
            self.path = old
        self._committed = True
        sync(os.path.dirname(self._directory))

    def finish(self) -> None:
        """Removes what the commit replaced."""
        self._remove()

    def undo(self) -> None:
        """Puts back what stood there before; without a commit, removes what was written."""
        if self._earlier and os.path.isdir(self.path):
            if not _exchange(self.path, self._directory):
                shutil.rmtree(self._directory, ignore_errors=True)
                os.rename(self.path, self._directory)
        elif self._committed and not self._earlier:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with _lock:
            _active.discard(self.path)

    def _hidden(self, kind: str) -> str:
        parent, name = os.path.split(self._directory)
        while True:
            path = os.path.join(parent, ".{}.{}-{}-{}".format(name, kind, os.getpid(),
                                                              next(_numbers)))
            if not os.path.lexists(path):
                return path


def sync(path: str) -> None:
    """Flushes a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def listed_tables(directory: str) -> Optional[List[str]]:
    """Returns the tables that a checkpoint was saved with, or None where no manifest tells.

    Raises:
        ValueError: If the manifest is damaged.
    """
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            return [str(table["name"]) for table in json.load(file)["tables"]]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("{} is no manifest: {}".format(path, error)) from error


def recover(directory: str) -> None:
    """Puts an earlier directory back whose replacement was cut off between its two renames.

    Args:
        directory: `<dir>/sparse-<base>-<step>`.
    """
    parent, name = os.path.split(os.path.abspath(directory))
    if os.path.lexists(directory) or not os.path.isdir(parent):
        return
    for entry in sorted(os.listdir(parent)):
        match = _HIDDEN.match(entry)
        if match and match.group(1) == name and match.group(2) == "old" \
                and not _in_use(os.path.join(parent, entry), int(match.group(3))):
            os.rename(os.path.join(parent, entry), directory)
            logger.warning("put %s back, which an interrupted save had renamed.", directory)
            return


def _clean(parent: str, name: str) -> None:
    """Removes what dead processes left of saves with the prefix of `name`."""
    prefix = re.sub(r"-\d+$", "", name)
    mine = re.compile(re.escape(prefix) + r"(-\d+)?$")
    for entry in sorted(os.listdir(parent)):
        path = os.path.join(parent, entry)
        match = _HIDDEN.match(entry)
        if match and mine.match(match.group(1)) and not _in_use(path, int(match.group(3))):
            if match.group(2) == "old":
                recover(os.path.join(parent, match.group(1)))
        elif not (mine.match(entry) and entry != name and _is_orphan(path)):
            continue
        if os.path.isdir(path):
            logger.info("removing %s, which an interrupted save left.", path)
            shutil.rmtree(path, ignore_errors=True)


def _is_orphan(path: str) -> bool:
    """Returns whether the variables that a directory of tables was saved with are not there."""
    parent, name = os.path.split(path)
    if os.path.isfile(os.path.join(parent, name[len("sparse-"):] + ".index")):
        return False
    try:
        with open(os.path.join(path, MANIFEST)) as file:
            content = json.load(file)
        return bool(content["dense"]) and not _alive(content["process"])
    except (OSError, KeyError, TypeError, ValueError):
        # Of another version, or saved without variables.
        return False


def _in_use(path: str, process: int) -> bool:
    if process == os.getpid():
        with _lock:
            return path in _active
    return _alive(process)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _exchange(one: str, other: str) -> bool:
    """Swaps two directories in one step; returns False where the system cannot."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other),
                    _RENAME_EXCHANGE) == 0
