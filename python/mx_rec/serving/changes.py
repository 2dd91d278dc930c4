"""What a model lacks of a checkpoint: rows, keys to remove and variables.

Deltas that follow the checkpoint that the model holds say it by themselves. Where they do not (no
delta, rows that Adam has moved, an access threshold), two whole contents are compared, or all rows
are sent.
"""

import json
import os
import threading
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint import chains, tables
from mx_rec.checkpoint.commit import listed_tables
from mx_rec.checkpoint.contents import read_table
from mx_rec.checkpoint.parts import directories_of, name_of
from mx_rec.export.plain_rows import stored
from mx_rec.export.plain_storage import STORAGES
from mx_rec.tensorflow.names import NewCheckpointReader

DELTA, DIFFERENCE, FULL = "delta", "difference", "full"

# Bytes of rows in one piece, and of variables.
_PIECE_BYTES = 1 << 22
_DENSE_BYTES = 1 << 26

# Of a variable: no message of gRPC has more than 2 GiB.
_MOST_BYTES = (1 << 31) - (1 << 20)

# Rows that are checked at once.
_AT_ONCE = 1 << 16


class Unfit(Exception):
    """A checkpoint cannot be pushed into a model; the text says why."""


class TableChange(NamedTuple):
    """What changes of a table.

    Attributes:
        keys: int64 (n), ascending.
        rows: Their rows, float32 (n, dim).
        removed: Keys that lose their rows, int64 (m), ascending; none of them is in `keys`.
    """

    keys: np.ndarray
    rows: np.ndarray
    removed: np.ndarray


class Piece(NamedTuple):
    """One request of a push.

    Attributes:
        table: Name of the table; None for variables.
        start: First of its keys, or of the variables.
        stop: End of them.
        removed: First and end of the removed keys.
    """

    table: Optional[str]
    start: int
    stop: int
    removed: Tuple[int, int] = (0, 0)


class Saved:
    """A checkpoint with tables.

    Attributes:
        prefix: `<dir>/<base>-<step>`.
        name: `<base>-<step>`.
        chain: The directories of a whole save and of the deltas that follow it, in order.
        ids: The ids of these saves.

    Args:
        prefix: As above.

    Raises:
        Unfit: If it has no tables, or a part of it is missing.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix, self.name = prefix, os.path.basename(prefix)
        directory = chains.tables_directory(prefix)
        try:
            self.chain = chains.chain_of(directory)
            self.ids = [chains.read_manifest(link).get("id") for link in self.chain]
            names = [listed_tables(link) for link in self.chain]
        except (OSError, ValueError) as error:
            raise Unfit("{}: {}".format(prefix, error)) from error
        if any(one is None for one in self.ids) or any(one is None for one in names):
            raise Unfit("{} has no manifest with an id: it was not saved by this version of "
                        "mx_rec, or has no tables".format(directory))
        self.tables = sorted({name_of(name) for name in names[-1] or ()})

    @property
    def id(self) -> str:
        """Returns the id of this save."""
        return str(self.ids[-1])


class Changes(NamedTuple):
    """What leads a model to a checkpoint.

    Attributes:
        kind: DELTA, DIFFERENCE or FULL: with the last, keys that it does not bring are removed.
        tables: By name.
        variables: Bytes of the model's variables, by name.
        pieces: In which requests it is sent.
        push: Its id, the same whenever the same is sent.
    """

    kind: str
    tables: Dict[str, TableChange]
    variables: Dict[str, bytes]
    pieces: List[Piece]
    push: str

    @property
    def is_full(self) -> bool:
        """Whether keys that it does not bring are removed."""
        return self.kind == FULL

    def __str__(self) -> str:
        rows = sum(len(one.keys) for one in self.tables.values())
        removed = sum(len(one.removed) for one in self.tables.values())
        return "{}: {:,} rows, {:,} removed keys, {:,} variables in {:,} pieces".format(
            self.kind, rows, removed, len(self.variables), len(self.pieces))


class Contents:
    """Reads checkpoints; several threads may.

    Whole contents are kept until the next checkpoint is compared with them: as much memory as the
    tables' rows take.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = {}  # type: Dict[str, Dict[str, Tuple[np.ndarray, np.ndarray]]]

    def changes(self, saved: Saved, held: str, interrupted: Tuple[str, str, bool],
                model: Dict[str, Any], rows_of_piece: int) -> Changes:
        """Returns what leads a model to a checkpoint.

        Args:
            saved: The checkpoint.
            held: Id of the checkpoint that the model holds.
            interrupted: Of a push that has not ended: its id, the id of its checkpoint, and whether
                it is a full one; empty strings without one.
            model: What the model says that it takes.
            rows_of_piece: Rows of a piece at most.

        Raises:
            Unfit: If the checkpoint is not one of the model's, or is damaged.
        """
        try:
            return self._changes(saved, held, interrupted, model, rows_of_piece)
        except OSError as error:
            raise Unfit("{} was removed while it was read: {}".format(saved.prefix,
                                                                      error)) from error

    def _changes(self, saved: Saved, held: str, interrupted: Tuple[str, str, bool],
                 model: Dict[str, Any], rows_of_piece: int) -> Changes:
        """`changes`, which may find a file gone."""
        _check_tables(saved, model)
        variables = _variables(saved, model)
        push, target, was_full = interrupted
        place = saved.ids.index(held) if held in saved.ids else -1
        # What a push that was interrupted has changed has to be in what follows it.
        if place >= 0 and not was_full and (not push or target in saved.ids[place + 1:]):
            links = saved.chain[place + 1:]
            if all(_is_simple(link) for link in links):
                found = {name: _merged(links, name) for name in model["tables"]}
                return _changes(DELTA, found, variables, saved, held, model, rows_of_piece)
        with self._lock:
            whole = self._whole(saved, model)
            before = None if was_full else self._before(saved, held, model)
            if before is not None:
                found = {name: _difference(before[name], whole[name]) for name in model["tables"]}
                changes = _changes(DIFFERENCE, found, variables, saved, held, model, rows_of_piece)
                if push in ("", changes.push):
                    return changes
            none = np.zeros([0], np.int64)
            return _changes(FULL, {name: TableChange(keys, rows, none)
                                   for name, (keys, rows) in whole.items()},
                            variables, saved, "", model, rows_of_piece)

    def forget(self, saved: Saved) -> None:
        """Lets go of whole contents that are not of a checkpoint, or that deltas go on from."""
        with self._lock:
            is_needed = not (chains.is_delta(saved.chain[-1]) and _is_simple(saved.chain[-1]))
            self._kept = {key: value for key, value in self._kept.items()
                          if is_needed and key == saved.id}

    def _whole(self, saved: Saved, model: Dict[str, Any]
               ) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        """Returns keys, ascending, and rows of all tables."""
        if saved.id not in self._kept:
            self._kept[saved.id] = {name: _read(saved, name) for name in model["tables"]}
        return self._kept[saved.id]

    def _before(self, saved: Saved, held: str, model: Dict[str, Any]
                ) -> Optional[Dict[str, Tuple[np.ndarray, np.ndarray]]]:
        """Returns the content that the model holds; None if it is not known any more."""
        if held in self._kept:
            return self._kept[held]
        parent = os.path.dirname(saved.prefix)
        for name in sorted(os.listdir(parent)):
            path = os.path.join(parent, name)
            try:
                if os.path.isfile(os.path.join(path, chains.MANIFEST)) \
                        and chains.identity_of(path) == held:
                    return self._whole(Saved(chains.dense_of(path)), model)
            except Unfit:
                return None
        return None


def _check_tables(saved: Saved, model: Dict[str, Any]) -> None:
    """Checks that a checkpoint has the tables of a model."""
    for name, table in model["tables"].items():
        if name not in saved.tables:
            raise Unfit("{} is of another model: it has the tables {}, and the model looks up "
                        "{!r}".format(saved.prefix, saved.tables, name))
        for described in _described(saved.chain[-1], name):
            if described["dim"] != table["dim"]:
                raise Unfit("{} is of another model: rows of its table {!r} have {} floats, and "
                            "those of the model {}".format(saved.prefix, name, described["dim"],
                                                           table["dim"]))


def _variables(saved: Saved, model: Dict[str, Any]) -> Dict[str, bytes]:
    """Reads the model's variables from a checkpoint."""
    found = {}
    wholes = {}  # type: Dict[str, np.ndarray]
    try:
        reader = NewCheckpointReader(saved.prefix)
        for one in model["variables"]:
            name = one.get("whole", one["name"])
            if not reader.has_tensor(name):
                raise Unfit("{} is of another model: it has no variable {!r}".format(
                    saved.prefix, name))
            if name not in wholes:
                wholes[name] = np.asarray(reader.get_tensor(name))
            value = wholes[name]
            if "whole" in one:
                value = value[tuple(slice(start, start + size) for start, size
                                    in zip(one["offset"], one["shape"]))]
            if list(value.shape) != one["shape"] or value.dtype.name != one["dtype"]:
                raise Unfit("{} is of another model: its variable {!r} is {} of shape {}, and that "
                            "of the model {} of shape {}".format(
                                saved.prefix, name, value.dtype.name, list(value.shape),
                                one["dtype"], one["shape"]))
            if value.nbytes > _MOST_BYTES:
                raise Unfit("the variable {!r} of {} has {:,} bytes, and a request takes at most "
                            "{:,}".format(name, saved.prefix, value.nbytes, _MOST_BYTES))
            found[one["name"]] = np.ascontiguousarray(value).tobytes()
    except (tf.errors.OpError, ValueError, OSError) as error:
        raise Unfit("{}: the variables cannot be read: {}".format(saved.prefix, error)) from error
    return found


def _is_simple(link: str) -> bool:
    """Whether a delta says all that has changed: no rows moved without a gradient, none hid."""
    if not chains.is_delta(link):
        return False
    for name in listed_tables(link) or ():
        path = os.path.join(link, name)
        if os.path.exists(os.path.join(path, "missed_steps")) \
                or os.path.exists(os.path.join(path, "hist_rec")):
            return False
    return True


def _described(link: str, table: str) -> List[Any]:
    """Describes what a link has of a table: one directory, or one for each part."""
    try:
        return [tables.sound(path, tables.describe(path)) for path in directories_of(link, table)]
    except tables.TableError as error:
        raise Unfit(str(error)) from error


def _read(saved: Saved, table: str) -> Tuple[np.ndarray, np.ndarray]:
    """Returns keys, ascending, and rows that lookups find of a table."""
    found = []
    for path in directories_of(saved.chain[-1], table):
        name = os.path.basename(path)
        links = [link for link in saved.chain if os.path.isdir(os.path.join(link, name))]
        try:
            described = [tables.describe(os.path.join(link, name)) for link in links]
            found.append(read_table(links, name, described, found=True))
        except (tables.TableError, tf.errors.OpError) as error:
            raise Unfit("the table {!r} of {} cannot be read: {}".format(
                table, saved.prefix, getattr(error, "message", error))) from error
    keys = np.concatenate([one.keys for one in found])
    rows = np.concatenate([one.rows for one in found])
    order = np.argsort(keys, kind="stable")
    return keys[order], rows[order]


def _merged(links: List[str], table: str) -> TableChange:
    """Returns what deltas change of a table, in order."""
    keys, origins, rows = [np.zeros([0], np.int64)], [np.zeros([0, 2], np.int64)], []
    for number in reversed(range(len(links))):
        for path in directories_of(links[number], table):
            own, own_rows = _keys_and_rows(path)
            gone = _removed_keys(path)
            # The newest comes first. In a delta, keys go before rows come.
            keys += [own, gone]
            origins += [np.stack([np.full([len(own)], len(rows)), np.arange(len(own))], 1),
                        np.full([len(gone), 2], -1)]
            rows.append(own_rows)
    distinct, first = np.unique(np.concatenate(keys), return_index=True)
    origin = np.concatenate(origins)[first]
    is_row = origin[:, 0] >= 0
    chosen = np.zeros([int(is_row.sum()), rows[0].shape[1] if rows else 0], np.float32)
    of = origin[is_row]
    for number, part in enumerate(rows):
        here = of[:, 0] == number
        chosen[here] = part[of[here, 1]]
    return TableChange(distinct[is_row], chosen, distinct[~is_row])


def _keys_and_rows(path: str) -> Tuple[np.ndarray, np.ndarray]:
    """Returns keys and rows of one table of a delta, when all checksums are right."""
    try:
        found = tables.sound(path, tables.verify(path))
        keys, rows = stored(path)
    except tables.TableError as error:
        raise Unfit(str(error)) from error
    if len(keys) != found["rows"] or len(rows) != len(keys):
        raise Unfit("{} was replaced while it was read".format(path))
    return keys[:], rows[:]


def _removed_keys(path: str) -> np.ndarray:
    try:
        count = tables.describe(path)["removed"]
    except tables.TableError as error:
        raise Unfit(str(error)) from error
    if not count:
        return np.zeros([0], np.int64)
    return np.fromfile(os.path.join(path, "removed", "slice.data"), "<i8")


def _difference(before: Tuple[np.ndarray, np.ndarray],
                after: Tuple[np.ndarray, np.ndarray]) -> TableChange:
    """Returns what leads from a content to another, whose rows are compared bit by bit."""
    keys, rows = after
    place = np.searchsorted(before[0], keys)
    inside = np.minimum(place, max(len(before[0]) - 1, 0))
    same = np.zeros([len(keys)], bool)
    if len(before[0]):
        same = before[0][inside] == keys
        at = np.flatnonzero(same)
        for start in range(0, len(at), _AT_ONCE):
            part = at[start:start + _AT_ONCE]
            same[part] = np.all(before[1][inside[part]].view(np.uint32)
                                == rows[part].view(np.uint32), axis=1)
    return TableChange(keys[~same], rows[~same], np.setdiff1d(before[0], keys, True))


def _changes(kind: str, found: Dict[str, TableChange], variables: Dict[str, bytes], saved: Saved,
             held: str, model: Dict[str, Any], rows_of_piece: int) -> Changes:
    """Checks rows and keys, and cuts what is sent into pieces."""
    pieces = []  # type: List[Piece]
    crc = 0
    for name in sorted(found):
        change, table = found[name], model["tables"][name]
        storage = STORAGES[table["rows_as"]]
        taken = np.isin(change.keys, [-1] + table["reserved"])
        if taken.any():
            raise Unfit("the table {!r} has a row for the key {}, which the index of the served "
                        "model uses: export the model anew".format(
                            name, int(change.keys[taken][0])))
        for start in range(0, len(change.keys), _AT_ONCE):
            try:
                storage.encode(change.rows[start:start + _AT_ONCE])
            except ValueError as error:
                raise Unfit("the table {!r}: {}".format(name, error)) from error
        step = max(1, min(rows_of_piece, _PIECE_BYTES // storage.bytes_of(table["dim"])))
        pieces += [Piece(name, start, min(start + step, len(change.keys)))
                   for start in range(0, len(change.keys), step)]
        pieces += [Piece(name, 0, 0, (start, min(start + rows_of_piece, len(change.removed))))
                   for start in range(0, len(change.removed), rows_of_piece)]
        for part in (change.keys, change.removed):
            crc = zlib.crc32(np.ascontiguousarray(part).data, crc)
    pieces += _dense_pieces(variables)
    if not pieces and kind == FULL and found:
        pieces.append(Piece(sorted(found)[0], 0, 0))
    text = json.dumps([kind, held, rows_of_piece, sorted(variables), crc, model["variables"], {
        name: [table["dim"], table["rows_as"]] for name, table in model["tables"].items()}],
        sort_keys=True)
    push = "{}/{:08x}".format(saved.id, zlib.crc32(text.encode("utf-8")))
    return Changes(kind, found, variables, pieces, push)


def _dense_pieces(variables: Dict[str, bytes]) -> Iterator[Piece]:
    """Yields pieces of variables, by their names in order, of limited size where there are
    several in one."""
    start = size = 0
    names = sorted(variables)
    for number, name in enumerate(names):
        if number > start and size + len(variables[name]) > _DENSE_BYTES:
            yield Piece(None, start, number)
            start, size = number, 0
        size += len(variables[name])
    if names:
        yield Piece(None, start, len(names))
