"""The rows of tables as TensorFlow's own ops keep and restore them, and their files.

A table becomes an index from key to row number, a MutableDenseHashTable of 12 bytes a bucket, and
its rows, in variables of at most about 1 GB. The last row is zeros: what unknown keys get. Tables
that are updated while they serve have spare rows before it.
"""

import os
import shutil
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint.bundles import BundleWriter
from mx_rec.checkpoint.tables import describe
from mx_rec.constants.constants import PADDING_KEY
from mx_rec.edits.replacing import extending, extensible, kept
from mx_rec.export.plain_storage import FLOAT32, Storage
from mx_rec.ops import library
from mx_rec.ops.lookups import find_rows
from mx_rec.state.table_variable import table_config_of, table_name_of

# A table with more entries than this share of its buckets doubles them.
_MAX_LOAD = 0.8

# Odd, so that multiplication by it loses nothing: 2**64 divided by the golden ratio.
_FACTOR = 0x9E3779B97F4A7C15

# Keys that one piece of an update has at most.
KEYS_OF_PIECE = 1 << 16

# Buckets that are looked at at once.
_BUCKETS_AT_ONCE = 1 << 18

# Row numbers are int32.
_MOST_ROWS = 2 ** 31 - 2

_OPS = "_mx_rec_plain_ops"


class Limits(NamedTuple):
    """How much is in one variable, one write and one insertion; tests make them small.

    Attributes:
        chunk_bytes: Bytes of one variable with rows.
        piece_bytes: Bytes of rows that are in memory at once while files are written.
        keys: Keys that are in memory at once while files are written, and while they are loaded.
    """

    chunk_bytes: int = 1 << 30
    piece_bytes: int = 1 << 26
    keys: int = 1 << 22


LIMITS = Limits()


class Rows:
    """Keys and rows of a table at one moment, as far as lookups without training find them.

    Attributes:
        name: The table's name.
        dim: Floats of a row.
        count: Number of rows.

    Args:
        name: As above.
        keys: int64 of shape (n), or what gives slices of such an array.
        rows: float32 of shape (n, dim), likewise.
        found: Positions of those that lookups find, ascending; None is all.
    """

    def __init__(self, name: str, keys: Any, rows: Any,
                 found: Optional[np.ndarray]) -> None:
        self.name = name
        self.dim = int(rows.shape[1])
        self.count = len(keys) if found is None else len(found)
        self._keys = keys
        self._rows = rows
        self._found = found

    def keys(self, start: int, stop: int) -> np.ndarray:
        """Returns keys `start..stop`, int64."""
        return self._part(self._keys, start, stop)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Returns rows `start..stop`, float32."""
        return self._part(self._rows, start, stop)

    def _part(self, values: Any, start: int, stop: int) -> np.ndarray:
        at = slice(start, stop) if self._found is None else self._found[start:stop]
        return values[at]


class _TableOps(NamedTuple):
    """Ops that read one table of the session's graph."""

    path: tf.Tensor
    save: tf.Tensor
    export: Any
    stats: tf.Tensor
    ids: tf.Tensor
    found: List[tf.Tensor]


def take_rows(session: Any, tables: Sequence[tf.Operation], scratch: str) -> Dict[str, Rows]:
    """Takes a snapshot of each table.

    A table is written into a directory and read from there piece by piece, so that memory does not
    limit its size; the directory has to stay while the rows are in use. A table that tracks changes
    is copied in memory instead: a save of it would count for its incremental checkpoints.

    Args:
        session: A session of the tables' graph.
        tables: Ops of type MxRecTable.
        scratch: A local directory for the files, with room for the tables with all slots.

    Returns:
        The rows by the name of the op.

    Raises:
        tf.errors.OpError: If there is no room, on the disk or in memory.
    """
    ops = _ops_of(session.graph, tables)
    copied = [op for op in tables if table_config_of(op).get("track_changes")]
    saved = [op for op in tables if op not in copied]
    places = {op.name: os.path.join(scratch, "table_{}".format(number))
              for number, op in enumerate(saved)}
    session.run([ops[op.name].save for op in saved],
                {ops[op.name].path: np.frombuffer(os.fsencode(places[op.name]), np.uint8)
                 for op in saved})
    arrays = {op.name: tuple(session.run(ops[op.name].export)) for op in copied}
    for op in saved:
        arrays[op.name] = _read(places[op.name])
    result = {}
    for op in tables:
        keys, rows = arrays[op.name]
        found = _found(session, ops[op.name], keys, int(rows.shape[1]))
        result[op.name] = Rows(table_name_of(op), keys, rows, found)
    return result


class _Stored:
    """A part of a saved table, an array of which memory holds what is asked for alone.

    Attributes:
        shape: (records, floats of a row), or (records).

    Args:
        path: A file of little-endian records.
        dtype: Their type; halves are given as float32, "<u2" being bfloat16.
        columns: () or (floats of a row).
    """

    def __init__(self, path: str, dtype: str, columns: Tuple[int, ...]) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        record = self._dtype.itemsize * int(np.prod(columns, dtype=np.int64))
        self.shape = (os.path.getsize(path) // record,) + columns

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, at: Any) -> np.ndarray:
        if not len(self):
            # No file of zero bytes can be mapped.
            return self._wide(np.zeros(self.shape, self._dtype)[at])
        # The mapping ends here, and with it the file's pages leave the process.
        return self._wide(np.array(np.memmap(self._path, self._dtype, "r", shape=self.shape)[at]))

    def _wide(self, values: np.ndarray) -> np.ndarray:
        if self._dtype == "<u2":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32) if self._dtype == "<f2" else values


def stored(directory: str) -> Tuple[_Stored, _Stored]:
    """Returns keys and rows of a saved table, read from its files when they are asked for.

    Args:
        directory: The table's, of a whole save or of a delta.

    Raises:
        TableError: If it cannot be read.
    """
    described = describe(directory)
    storage = (described["config"] or {}).get("row_storage") or {}
    dtype = {"float32": "<f4", "bfloat16": "<u2", "float16": "<f2"}[
        storage.get("dtype", "float32")]
    return (_Stored(os.path.join(directory, "key", "slice.data"), "<i8", ()),
            _Stored(os.path.join(directory, "embedding", "slice.data"), dtype,
                    (described["dim"],)))


def _read(directory: str) -> Tuple[_Stored, _Stored]:
    """Returns keys and rows of a saved table, whose other parts are removed."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if os.path.isdir(path) and name not in ("key", "embedding"):
            shutil.rmtree(path)
    return stored(directory)


def _found(session: Any, ops: _TableOps, keys: Any, dim: int) -> Optional[np.ndarray]:
    """Returns the positions of keys whose rows lookups find, None if it is all of them.

    Keys below the threshold of admission may have rows, which lookups do not give.
    """
    history_bytes = int(session.run(ops.stats)[4])
    if not history_bytes:
        return None
    found = []
    step = max(1, LIMITS.piece_bytes // (4 * dim))
    for start in range(0, len(keys), step):
        part = keys[start:start + step]
        zeros, ones = session.run(ops.found, {ops.ids: part})
        # A row that depends on what absent keys get is not found.
        found.append(start + np.flatnonzero(np.all(
            zeros.view(np.uint32) == ones.view(np.uint32), axis=1)))
    positions = np.concatenate(found) if found else np.zeros([0], np.int64)
    return None if len(positions) == len(keys) else positions


def _ops_of(graph: tf.Graph, tables: Sequence[tf.Operation]) -> Dict[str, _TableOps]:
    """Returns ops that read tables; they are made once in a graph."""
    with extending:
        known = kept(graph, _OPS)  # type: Dict[str, _TableOps]
        missing = [op for op in tables if op.name not in known]
        if missing:
            with extensible(graph), tf.device("/cpu:0"):
                for op in missing:
                    known[op.name] = _make_ops(op)
        return known


def _make_ops(table: tf.Operation) -> _TableOps:
    # An imported op does not know its shapes.
    handle, dim = table.outputs[1], int(table_config_of(table)["dim"])
    path = tf.compat.v1.placeholder(tf.uint8, [None])
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    like = table.inputs[1]
    export = library().mx_rec_export(handle, [tf.zeros([0], tf.uint8)])
    return _TableOps(
        path, library().mx_rec_save(handle, path, -1, 0).rows, [export.keys, export.values[0]],
        library().mx_rec_table_stats(handle), ids,
        [find_rows([handle], [like], [ids], [tf.fill([1, dim], value)])[0] for value in (0., 1.)])


def mixed(keys: np.ndarray) -> np.ndarray:
    """Returns other int64 numbers for keys, different for different keys; see `mixed_tensor`."""
    with np.errstate(over="ignore"):
        words = np.array(keys, np.int64).view(np.uint64)
        for _ in range(2):
            words = words * np.uint64(_FACTOR)
            words = words ^ (words >> np.uint64(32))
        return words.view(np.int64)


def mixed_tensor(keys: tf.Tensor) -> tf.Tensor:
    """Returns what `mixed` does, of an int64 tensor.

    TensorFlow's table takes the low bits of a key for its hash, so that ids with equal low bits,
    such as those with a field in the high ones, would all share a bucket.
    """
    factor = tf.constant(_FACTOR - 2 ** 64, tf.int64)
    for _ in range(2):
        keys = keys * factor
        # The shift copies the sign, which is masked.
        high = tf.bitwise.bitwise_and(tf.bitwise.right_shift(keys, tf.constant(32, tf.int64)),
                                      tf.constant(2 ** 32 - 1, tf.int64))
        keys = tf.bitwise.bitwise_xor(keys, high)
    return keys


class PlainTable:
    """The index and the rows of one table in a graph of TensorFlow's own ops.

    Attributes:
        name: The table's name.
        count: Number of rows at the export.
        dim: Floats of a row.
        storage: How rows are stored.
        absent: Number of the row of zeros, which keys without a row get; it is the last one, and
            the rows between `count` and it are spare.
        chunk_rows: Rows of each variable but the last.
        index: The hash table, from mixed keys to row numbers, a resource. The number of a key that
            was removed is -1 - its row: the row stays its own.
        chunks: The variables with the rows.
        reserved: Mixed keys that the hash table does not take: of padding and of a key without a
            row.
        substitute: A mixed key without a row, which is looked up in their place.
        unused: The keys of the second of `reserved` and of `substitute`, which never get a row.

    Args:
        rows: The table's content.
        scope: Name scope of its ops, without a slash at the end.
        spare_rows: Rows for new keys; None if the table is never updated.
        storage: How rows are stored.

    Raises:
        ValueError: If the spare rows are more than a table can number.
    """

    def __init__(self, rows: Rows, scope: str, spare_rows: Optional[int] = None,
                 storage: Storage = FLOAT32) -> None:
        self.name, self.count, self.dim, self.storage = rows.name, rows.count, rows.dim, storage
        self.is_updated = spare_rows is not None
        self.absent = self.count + (spare_rows or 0)
        if self.absent > _MOST_ROWS:
            raise ValueError("the table {!r} has {} rows and 'spare_rows' is {}: together at most "
                             "{} can be numbered.".format(self.name, self.count, spare_rows,
                                                          _MOST_ROWS))
        self._rows, self._scope, self._limits = rows, scope, LIMITS
        self.chunk_rows = max(1, LIMITS.chunk_bytes // storage.bytes_of(self.dim))
        self.unused = [int(key) for key in _unused_keys(rows, LIMITS.keys)]
        unused, self.substitute = [int(key) for key in mixed(np.array(self.unused))]
        self.reserved = int(mixed(np.array([PADDING_KEY]))[0]), unused
        # Insertion doubles the buckets if all that it inserts might be new and have no place.
        entries = self.absent + 1 + (min(self.absent, KEYS_OF_PIECE) if self.is_updated else 0)
        buckets = 16
        while buckets * _MAX_LOAD < entries:
            buckets *= 2
        with tf.compat.v1.name_scope(scope + "/"), tf.device("/cpu:0"):
            self.index = tf.raw_ops.MutableDenseHashTableV2(
                empty_key=tf.constant(self.reserved[0], tf.int64),
                deleted_key=tf.constant(self.reserved[1], tf.int64), value_dtype=tf.int32,
                value_shape=[], initial_num_buckets=buckets, max_load_factor=_MAX_LOAD,
                use_node_name_sharing=True, name="index")
            self.chunks = [tf.compat.v1.Variable(
                tf.zeros([stop - start, storage.width(self.dim)], storage.dtype), trainable=False,
                use_resource=True, name="rows_{}".format(number))
                for number, (start, stop) in enumerate(self._bounds())]

    def restore(self, filename: tf.Tensor) -> List[tf.Operation]:
        """Makes the ops that fill the table from the files of a checkpoint, chunk by chunk.

        Args:
            filename: The checkpoint's prefix, a string scalar.

        Returns:
            The last ops of it.
        """
        with tf.compat.v1.name_scope(self._scope + "/restore/"), tf.device("/cpu:0"):
            last = [self._forget()] if self.is_updated else []  # type: List[tf.Operation]
            for number, variable in enumerate(self.chunks):
                with tf.control_dependencies(last):
                    value, = tf.raw_ops.RestoreV2(
                        prefix=filename, tensor_names=[self._rows_name(number)],
                        shape_and_slices=[""], dtypes=[self.storage.dtype])
                last = [tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)]
            for number, start in enumerate(range(0, self.count, self._limits.keys)):
                with tf.control_dependencies(last):
                    keys, = tf.raw_ops.RestoreV2(
                        prefix=filename, tensor_names=[self._keys_name(number)],
                        shape_and_slices=[""], dtypes=[tf.int64])
                    # Where the file's keys end the range has to.
                    values = tf.range(start, start + tf.size(keys))
                last = [tf.raw_ops.LookupTableInsertV2(table_handle=self.index, keys=keys,
                                                       values=values)]
        return last

    def write(self, writer: BundleWriter) -> None:
        """Writes keys and rows where `restore` reads them.

        Args:
            writer: Writes the files of a checkpoint.

        Raises:
            ValueError: If a row cannot be stored.
        """
        keys = self._limits.keys
        for number, start in enumerate(range(0, self.count, keys)):
            part = mixed(self._rows.keys(start, min(start + keys, self.count)))
            writer.write(self._keys_name(number), "", part)
        width = self.storage.width(self.dim)
        piece = max(1, self._limits.piece_bytes // (4 * self.dim))
        for number, (first, last) in enumerate(self._bounds()):
            for start in range(first, last, piece):
                part = self._stored(start, min(start + piece, last))
                writer.write(self._rows_name(number), "{} {} {},{}:-".format(
                    last - first, width, start - first, len(part)), part)
        logger.info("exported the table %r, %d rows.", self.name, self.count)

    def marks(self) -> int:
        """Returns how many bytes say which rows are in use: one for each row, in eights."""
        return -(-(self.absent + 1) // 8) * 8

    def _forget(self) -> tf.Operation:
        """Makes the op that takes keys of an earlier restore out of the index."""

        def change(keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.LookupTableInsertV2(
                table_handle=self.index, keys=keys,
                values=tf.fill(tf.shape(values), tf.constant(self.absent, tf.int32)))

        size = tf.raw_ops.LookupTableSizeV2(table_handle=self.index)
        return tf.cond(tf.greater(size, 0), lambda: for_entries(self, change),
                       lambda: tf.constant(0)).op

    def _stored(self, start: int, stop: int) -> np.ndarray:
        """Returns rows `start..stop` as they are stored; those behind the last one are zeros."""
        known = min(max(start, self.count), stop)
        try:
            part = self.storage.encode(self._rows.rows(start, known))
        except ValueError as error:
            raise ValueError("the table {!r} cannot be exported: {}".format(
                self.name, error)) from error
        zeros = np.zeros([stop - known, part.shape[1]], part.dtype)
        return np.concatenate([part, zeros]) if len(zeros) else part

    def _bounds(self) -> List[Tuple[int, int]]:
        """Returns first row and end of each variable; the row of zeros is in the last."""
        return [(start, min(start + self.chunk_rows, self.absent + 1))
                for start in range(0, self.absent + 1, self.chunk_rows)]

    def _rows_name(self, number: int) -> str:
        return "{}/rows_{}".format(self._scope, number)

    def _keys_name(self, number: int) -> str:
        return "{}/keys_{}".format(self._scope, number)


def for_entries(table: PlainTable,
                change: Callable[[tf.Tensor, tf.Tensor], tf.Operation]) -> tf.Tensor:
    """Adds a loop over what is in a table's index, some of it at a time.

    Args:
        table: The table.
        change: Adds the ops for mixed keys, int64 (n), and their numbers, int32 (n); it may give
            these keys other numbers.

    Returns:
        What is there when the loop has ended.
    """
    keys, values = tf.raw_ops.LookupTableExportV2(table_handle=table.index, Tkeys=tf.int64,
                                                  Tvalues=tf.int32)
    # They are the buckets themselves: the numbers of empty ones are arbitrary. Their shape is
    # (buckets, 1), which TensorFlow takes for (buckets): it is told that it does not know.
    keys, values = [tf.reshape(tf.compat.v1.placeholder_with_default(one, None), [-1])
                    for one in (keys, values)]

    def turn(start: tf.Tensor) -> tf.Tensor:
        some = slice(start, start + _BUCKETS_AT_ONCE)
        is_key = tf.logical_and(tf.not_equal(keys[some], table.reserved[0]),
                                tf.not_equal(keys[some], table.reserved[1]))
        with tf.control_dependencies([change(tf.boolean_mask(keys[some], is_key),
                                             tf.boolean_mask(values[some], is_key))]):
            return start + _BUCKETS_AT_ONCE

    ended = tf.while_loop(lambda start: tf.less(start, tf.size(keys)), turn, [tf.constant(0)],
                          parallel_iterations=1, back_prop=False)
    # One tensor in 1.15, a list of one in 2.x.
    return tf.nest.flatten(ended)[0]


def _unused_keys(rows: Rows, at_once: int) -> np.ndarray:
    """Returns two keys that a table has no rows for."""
    random = np.random.RandomState(1)
    while True:
        keys = random.randint(-2 ** 63, 2 ** 63 - 1, 4, dtype=np.int64)
        keys = np.unique(keys[keys != PADDING_KEY])
        for start in range(0, rows.count, at_once):
            part = rows.keys(start, min(start + at_once, rows.count))
            keys = np.array([key for key in keys if not np.any(part == key)], np.int64)
        if len(keys) >= 2:
            return keys[:2]
