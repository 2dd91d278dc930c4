"""Finds the checkpoints that a path means, and their tables."""

import os
import re
from typing import Any, List, NamedTuple, Optional

from mx_rec.checkpoint.chains import (DELTA_PREFIX, MANIFEST, chain_of, checked_manifest,
                                      dense_of, is_delta, step_of, tables_directory)
from mx_rec.checkpoint.paths import SPARSE_PREFIX

TABLE = "table"
CHECKPOINT = "checkpoint"
DIRECTORY = "directory"

_STATE_FILE = "checkpoint"
_PARTS = (DELTA_PREFIX + SPARSE_PREFIX, SPARSE_PREFIX)


class SavedTable(NamedTuple):
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
        has_dense: Whether TensorFlow's part is there; None if it is unknown.
        newest: Whether it is the newest of its directory.
        faults: What is wrong with it as a whole, as (path, text).
        chain: Names of what a restore takes, in order: for a delta the whole save, the deltas
            between, and itself. Just itself where it is whole, or where the others do not fit.
        delta: Whether its tables hold only what changed since the one before it.
    """

    name: str
    step: Optional[int]
    directory: str
    tables: List[SavedTable]
    has_dense: Optional[bool]
    newest: bool
    faults: List[Any]
    chain: List[str]
    delta: bool

    @property
    def base(self) -> Optional[str]:
        """The whole save that a delta belongs to; None for a whole save, or if it is not found."""
        return self.chain[0] if len(self.chain) > 1 else None


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
        path: A table's directory, `sparse-<base>-<step>` or `delta-sparse-<base>-<step>`, a
            checkpoint's prefix, or a directory with checkpoints.

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
            holder = os.path.dirname(os.path.abspath(path))
            base = _name(os.path.basename(holder))
            base = base if os.path.basename(holder).startswith(_PARTS) else name
            faults = []  # type: List[Any]
            chain = _chain(holder, faults) if is_delta(holder) else [base]
            only = Checkpoint(base, step_of(base), path, [SavedTable(name, path)], None, False,
                              faults, chain, is_delta(holder))
            return Place(TABLE, path, [only], [])
        if name.startswith(_PARTS) or _tables(path):
            return Place(CHECKPOINT, path, [_checkpoint(path)], [])
        found = _directory(path)
        if found is not None:
            return found
        if not os.listdir(path):
            raise ValueError("{}: the directory is empty".format(path))
        raise ValueError("{}: no checkpoint: neither a table's directory, nor {}<base>-<step>, nor "
                         "a directory with checkpoints".format(path, SPARSE_PREFIX))
    if path and not path.endswith(os.sep):
        directory = tables_directory(path)
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


def _tables(path: str) -> List[SavedTable]:
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    return [SavedTable(name, os.path.join(path, name)) for name in names
            if _is_table(os.path.join(path, name))]


def _checkpoint(directory: str) -> Checkpoint:
    """Describes the checkpoint whose tables are, or would be, in `directory`."""
    parent, name = os.path.split(os.path.abspath(directory))
    has_dense = None  # type: Optional[bool]
    tables = []  # type: List[SavedTable]
    faults = []  # type: List[Any]
    delta = is_delta(name)
    if name.startswith(_PARTS):
        name = _name(name)
        has_dense = os.path.isfile(os.path.join(parent, name + ".index"))
    chain = [name]
    if os.path.isdir(directory):
        tables = _tables(directory)
        listed = _listed(directory, faults)
        if delta and not faults:
            chain = _chain(os.path.abspath(directory), faults)
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
    return Checkpoint(name, step_of(name), directory, tables, has_dense, False, faults, chain,
                      delta)


def _chain(directory: str, faults: List[Any]) -> List[str]:
    """Returns the names of what a restore of the delta in `directory` takes, in order."""
    links = [directory]
    try:
        links = chain_of(directory)
    except (OSError, ValueError) as error:
        faults.append((directory, str(error)))
    return [_name(os.path.basename(link)) for link in links]


def _name(directory: str) -> str:
    """Returns the base name, with the step, of the checkpoint that a directory of tables is of."""
    return dense_of(directory) if directory.startswith(_PARTS) else directory


def _listed(directory: str, faults: List[Any]) -> Optional[List[str]]:
    """Returns the names of the tables that the manifest of the sparse part lists."""
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, "rb") as file:
            tables = checked_manifest(file.read().decode("utf-8"))["tables"]
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
    directories = {name for name in names if name.startswith(_PARTS)
                   and os.path.isdir(os.path.join(path, name))}
    have = {_name(name) for name in directories}
    directories |= {SPARSE_PREFIX + name[:-len(".index")] for name in names
                    if name.endswith(".index") and name[:-len(".index")] not in have}
    if not directories:
        return None
    found = [_checkpoint(os.path.join(path, name)) for name in directories]
    found.sort(key=lambda one: (-1 if one.step is None else one.step, one.name))
    newest = _newest(path, found)
    leftovers = sorted(name for name in names if re.match(
        r"\.(delta-)?sparse-.*\.(saving|old|other|undo|gone)-\d+-\d+$", name))
    return Place(DIRECTORY, path, [one._replace(newest=one is newest) for one in found], leftovers)


def _newest(path: str, found: List[Checkpoint]) -> Checkpoint:
    """The one that TensorFlow's state file names, else the last that has both parts."""
    for named in _named_by_state(os.path.join(path, _STATE_FILE))[:1]:
        # A whole save goes before a delta of the same step.
        for one in sorted(found, key=lambda one: one.delta):
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
