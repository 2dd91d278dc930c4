"""Finds the checkpoints that a path means, and their tables."""

import json
import os
import re
from typing import Any, List, NamedTuple, Optional

from mx_rec.saver.paths import SPARSE_PREFIX, sparse_directory

TABLE = "table"
CHECKPOINT = "checkpoint"
DIRECTORY = "directory"

_MANIFEST = "manifest.json"
_STATE_FILE = "checkpoint"


class Table(NamedTuple):
    """The directory of a saved table.

    Attributes:
        name: Its name.
        directory: Its path.
    """

    name: str
    directory: str


class Checkpoint(NamedTuple):
    """A checkpoint, of which either part may be missing.

    Attributes:
        name: Base name with the step, such as "model.ckpt-100".
        step: The step, None if the name has none.
        directory: The directory of its tables; it need not exist.
        tables: The tables in it, by name.
        has_dense: Whether TensorFlow's part is there; None if nobody can tell.
        newest: Whether it is the newest of its directory.
        faults: What is wrong with it as a whole, as (path, text).
    """

    name: str
    step: Optional[int]
    directory: str
    tables: List[Table]
    has_dense: Optional[bool]
    newest: bool
    faults: List[Any]


class Place(NamedTuple):
    """What a path means.

    Attributes:
        kind: "table", "checkpoint" or "directory" (of checkpoints).
        path: The path as it was given.
        checkpoints: Those it means, by step; one unless it is a directory. For a table, one with
            just this table.
        leftovers: Hidden directories of saves that did not end.
    """

    kind: str
    path: str
    checkpoints: List[Checkpoint]
    leftovers: List[str]

    @property
    def newest(self) -> Checkpoint:
        """The newest of the checkpoints."""
        marked = [one for one in self.checkpoints if one.newest]
        return marked[0] if marked else self.checkpoints[-1]


def find_place(path: str) -> Place:
    """Finds out what a path means.

    Args:
        path: A table's directory, `sparse-<base>-<step>`, a checkpoint's prefix, or a directory
            with checkpoints.

    Returns:
        The place, with at least one checkpoint.

    Raises:
        ValueError: If it is none of these.
        OSError: If it cannot be read.
    """
    if os.path.isdir(path):
        name = os.path.basename(os.path.abspath(path))
        if _is_table(path):
            # `<dir>/sparse-<base>-<step>/<table>`
            holder = os.path.basename(os.path.dirname(os.path.abspath(path)))
            base = holder[len(SPARSE_PREFIX):] if holder.startswith(SPARSE_PREFIX) else name
            only = Checkpoint(base, _step(base), path, [Table(name, path)], None, False, [])
            return Place(TABLE, path, [only], [])
        if name.startswith(SPARSE_PREFIX) or _tables(path):
            return Place(CHECKPOINT, path, [_checkpoint(path)], [])
        found = _directory(path)
        if found is not None:
            return found
        if not os.listdir(path):
            raise ValueError("{}: the directory is empty".format(path))
        raise ValueError("{}: no checkpoint: neither a table's directory, nor {}<base>-<step>, nor "
                         "a directory with checkpoints".format(path, SPARSE_PREFIX))
    if path and not path.endswith(os.sep):
        directory = sparse_directory(path)
        if os.path.isdir(directory) or os.path.isfile(path + ".index"):
            return Place(CHECKPOINT, path, [_checkpoint(directory)], [])
    if os.path.lexists(path):
        raise ValueError("{}: a file, no checkpoint; give its directory, or the prefix without an "
                         "ending such as .index".format(path))
    raise ValueError("{}: there is no such directory, and no checkpoint with this prefix".format(
        path))


def _is_table(path: str) -> bool:
    # Also one that lost some of its files. A table may be named "key", so directories tell nothing.
    return any(os.path.lexists(os.path.join(path, part, "slice." + kind))
               for part in ("key", "embedding") for kind in ("attribute", "data"))


def _tables(path: str) -> List[Table]:
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    return [Table(name, os.path.join(path, name)) for name in names
            if _is_table(os.path.join(path, name))]


def _checkpoint(directory: str, newest: bool = False) -> Checkpoint:
    """Describes the checkpoint whose tables are, or would be, in `directory`."""
    parent, name = os.path.split(os.path.abspath(directory))
    has_dense = None  # type: Optional[bool]
    if name.startswith(SPARSE_PREFIX):
        name = name[len(SPARSE_PREFIX):]
        has_dense = os.path.isfile(os.path.join(parent, name + ".index"))
    tables = []  # type: List[Table]
    faults = []  # type: List[Any]
    if os.path.isdir(directory):
        tables = _tables(directory)
        listed = _listed(directory, faults)
        have = [table.name for table in tables]
        for missing in [one for one in listed or [] if one not in have]:
            faults.append((os.path.join(directory, missing),
                           "the manifest of the checkpoint lists this table, which is not there"))
        if has_dense is False and name in _named_by_state(os.path.join(parent, _STATE_FILE)):
            # Saver of this package writes tables alone, but no state file.
            holder = os.path.dirname(directory.rstrip(os.sep))
            faults.append((os.path.join(holder, name + ".index"),
                           "TensorFlow's state file names this checkpoint, but its part is not "
                           "there"))
        for extra in have if listed is not None else []:
            if extra not in listed:
                faults.append((os.path.join(directory, extra),
                               "the manifest of the checkpoint does not list this table"))
    return Checkpoint(name, _step(name), directory, tables, has_dense, newest, faults)


def _listed(directory: str, faults: List[Any]) -> Optional[List[str]]:
    """Returns the names of the tables that the manifest of the sparse part lists."""
    path = os.path.join(directory, _MANIFEST)
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read().decode("utf-8"))
        tables = content["tables"]
        names = [one if isinstance(one, str) else one["name"] for one in tables]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a table's name is no text")
        return names
    except FileNotFoundError:
        # Before version 2 there was none.
        return None
    except OSError as error:
        faults.append((path, "cannot be read: {}".format(error.strerror)))
    except (KeyError, TypeError, ValueError) as error:
        faults.append((path, "is no manifest: {}".format(" ".join(str(error).split()))))
    return None


def _directory(path: str) -> Optional[Place]:
    names = os.listdir(path)
    bases = {name[len(SPARSE_PREFIX):] for name in names if name.startswith(SPARSE_PREFIX)
             and os.path.isdir(os.path.join(path, name))}
    bases |= {name[:-len(".index")] for name in names if name.endswith(".index")}
    if not bases:
        return None
    found = [_checkpoint(os.path.join(path, SPARSE_PREFIX + base)) for base in bases]
    found.sort(key=lambda one: (-1 if one.step is None else one.step, one.name))
    newest = _newest(path, found)
    leftovers = sorted(name for name in names if name.startswith("." + SPARSE_PREFIX)
                       and re.search(r"\.(saving|old)-\d+-\d+$", name))
    return Place(DIRECTORY, path, [one._replace(newest=one is newest) for one in found], leftovers)


def _newest(path: str, found: List[Checkpoint]) -> Checkpoint:
    """The one that TensorFlow's state file names, else the last that has both parts."""
    for named in _named_by_state(os.path.join(path, _STATE_FILE))[:1]:
        for one in found:
            if one.name == named:
                return one
    complete = [one for one in found if one.has_dense and one.tables]
    return (complete or found)[-1]


def _named_by_state(path: str) -> List[str]:
    """Returns the names that TensorFlow's state file has, the newest first."""
    try:
        with open(path, "rb") as file:
            content = file.read().decode("latin-1")
    except OSError:
        return []
    names = []  # type: List[str]
    for field in ("model_checkpoint_path", "all_model_checkpoint_paths"):
        for text in re.findall(r'^%s:\s*"((?:[^"\\]|\\.)*)"' % field, content, re.MULTILINE):
            # Text of a protocol buffer: bytes beyond ASCII are written as \303\274 or as they are.
            try:
                raw = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
            except UnicodeError:
                continue
            names.append(os.path.basename(os.fsdecode(raw)))
    return names


def _step(name: str) -> Optional[int]:
    match = re.search(r"-([0-9]+)$", name)
    return int(match.group(1)) if match else None
