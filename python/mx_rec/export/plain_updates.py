"""Signatures by which a served model takes updates, in TensorFlow's own ops.

A push leads a model from the checkpoint that it holds to another one: `begin_delta`, then pieces,
each by `apply_delta` or `apply_dense`, numbered from 0. A lock lets one run of them write at a
time. Each checks all that it was given, then writes rows, then keys, then which piece it was: what
ends in between is done again without harm.
"""

import functools
import json
import uuid
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.constants.constants import PADDING_KEY
from mx_rec.export.plain_lookup import OpenTable, row_numbers
from mx_rec.export.plain_rows import KEYS_OF_PIECE, PlainTable, for_entries, mixed_tensor

VERSION, BEGIN = "version", "begin_delta"
APPLY_DELTA, APPLY_DENSE = "apply_delta", "apply_dense"
SIGNATURES = (VERSION, BEGIN, APPLY_DELTA, APPLY_DENSE)

_FORMAT = 1

# Marks of rows in use, of one bit each; of those that a full push has written, of free ones.
_OLD, _NEW, _FREE = 1, 2, 0

# Hashes are int64 below it.
_HASHES = 2 ** 63 - 1

_where = tf.compat.v1.where

# dtypes of variables that a checkpoint's bytes become.
_NUMBERS = (tf.float16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8,
            tf.uint16)


class _State(NamedTuple):
    """What a model holds, each a string scalar but the numbers, which are int64; the variable of
    it has all of these, in this order, as strings.

    Attributes:
        held: Id of the checkpoint whose rows it has, if no push is under way.
        name: Name of that checkpoint.
        push: Id of the last push, empty before the first.
        target: Id of the checkpoint that it leads to.
        target_name: Its name.
        applied: Pieces of the push that are applied; all, if it is complete.
        pieces: Pieces of the push.
        full: 1 if the push replaces all rows.
    """

    held: tf.Tensor
    name: tf.Tensor
    push: tf.Tensor
    target: tf.Tensor
    target_name: tf.Tensor
    applied: tf.Tensor
    pieces: tf.Tensor
    full: tf.Tensor

    @property
    def pending(self) -> tf.Tensor:
        """Id of the push that is under way, empty without one."""
        return _where(tf.less(self.applied, self.pieces), self.push, tf.constant(""))


class _Table(NamedTuple):
    """A table and what its updates keep.

    Attributes:
        plain: The table.
        used: How many rows have been given to keys, int64: the rows below are of one key each.
        marks: int8, one for each row.
    """

    plain: PlainTable
    used: Any
    marks: Any

    @property
    def opened(self) -> OpenTable:
        """The table, for lookups."""
        return OpenTable(self.plain, self.plain.index,
                         [chunk.handle for chunk in self.plain.chunks])


class Updates:
    """The state of a model that is updated, and the signatures that change it.

    Args:
        tables: The model's tables.
        variables: Variables of the default graph that a checkpoint has, beside these.
        scope: Name scope of the ops, without a slash at the end.

    Raises:
        ValueError: If two tables have one name.
    """

    def __init__(self, tables: Sequence[PlainTable], variables: Sequence[Any], scope: str) -> None:
        names = [table.name for table in tables]
        if len(set(names)) < len(names):
            raise ValueError("the model cannot be updated: two of its tables have one name, of "
                             "{}.".format(sorted(names)))
        self._scope = scope
        self._variables = [one for one in variables if one.dtype.base_dtype in _NUMBERS
                           and one.shape.is_fully_defined()]
        self._described = [described_variable(one) for one in self._variables]
        self.description = describe(tables, self._described)
        self._initial = ["export:" + uuid.uuid4().hex, "", "", "", "", "0", "0", "0"]
        with tf.compat.v1.name_scope(scope + "/"), tf.device("/cpu:0"):
            self._lock = tf.raw_ops.MutexV2(shared_name=self._initial[0], container="", name="lock")
            self._state = _variable(tf.constant(self._initial), "state")
            self._tables = [_Table(
                table, _variable(tf.constant(table.count, tf.int64), "used"),
                _variable(tf.zeros([table.marks()], tf.int8), "marks"))
                for table in tables]

    def restore(self) -> List[tf.Operation]:
        """Makes the ops that put a model that was just loaded into its first state."""
        with tf.compat.v1.name_scope(self._scope + "/restore/"), tf.device("/cpu:0"):
            ops = [_set(self._state, tf.constant(self._initial))]
            for table in self._tables:
                count = table.plain.count
                ops += [_set(table.used, tf.constant(count, tf.int64)),
                        _set(table.marks, tf.concat([
                            tf.fill([count], tf.constant(_OLD, tf.int8)),
                            tf.fill([table.plain.marks() - count],
                                    tf.constant(_FREE, tf.int8))], 0))]
        return ops

    def signatures(self) -> Dict[str, Any]:
        """Adds the ops of the signatures, and returns these by name."""
        made = {}
        for name, make in ((VERSION, self._version), (BEGIN, self._begin),
                           (APPLY_DELTA, self._apply_delta), (APPLY_DENSE, self._apply_dense)):
            with tf.compat.v1.name_scope("{}/{}/".format(self._scope, name)), tf.device("/cpu:0"):
                made[name] = tf.compat.v1.saved_model.signature_def_utils.predict_signature_def(
                    *make())
        return made

    def _version(self) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
        """What the model holds, and how many of some keys have no row yet."""
        inputs = _inputs(table=tf.string, keys=tf.string)
        state = self._read()
        keys = tf.io.decode_raw(inputs["keys"], tf.int64)
        missing = [_where(tf.equal(inputs["table"], one.plain.name), tf.reduce_sum(tf.cast(
            tf.equal(_numbers(one, keys), one.plain.absent), tf.int64)), tf.constant(0, tf.int64))
            for one in self._tables]
        rows = [_marked(table) for table in self._tables]
        spare = [table.plain.absent - table.used.read_value() for table in self._tables]
        return inputs, {
            "held": state.held, "name": state.name, "push": state.pending,
            "target": state.target, "target_name": state.target_name, "applied": state.applied,
            "pieces": state.pieces, "full": state.full,
            "tables": tf.constant([one.plain.name for one in self._tables], tf.string,
                                  [len(self._tables)]),
            "rows": _vector(rows), "spare_rows": _vector(spare),
            "new_keys": tf.add_n(missing) if missing else tf.constant(0, tf.int64),
            "model": tf.constant(json.dumps(self.description, sort_keys=True))}

    def _begin(self) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
        """Begins a push, where the model holds what the push follows."""
        inputs = _inputs(model=tf.string, previous=tf.string, interrupted=tf.string,
                         push=tf.string, target=tf.string, target_name=tf.string, pieces=tf.int64,
                         full=tf.int64)
        new_rows = tf.compat.v1.placeholder(tf.int64, [len(self._tables)], "new_rows")

        def begin(state: _State) -> List[tf.Tensor]:
            push, pieces = inputs["push"], inputs["pieces"]
            is_done = tf.logical_or(
                tf.equal(state.push, push),
                tf.logical_and(tf.equal(state.pending, ""), tf.equal(state.held,
                                                                     inputs["target"])))
            checks = [
                (tf.equal(inputs["model"], fingerprint(self.description)),
                 "the delta is of another model: its tables and variables have the fingerprint",
                 inputs["model"], "and those of this one", fingerprint(self.description)),
                (tf.logical_and(tf.not_equal(push, ""), tf.not_equal(inputs["target"], "")),
                 "'push' and 'target' should not be empty"),
                (tf.logical_or(tf.greater(pieces, 0), tf.logical_and(
                    tf.equal(pieces, 0), tf.equal(inputs["full"], 0))),
                 "'pieces' should be at least 0, and 1 of a full push, but is", pieces),
                (tf.logical_or(is_done, tf.equal(inputs["previous"], state.held)),
                 "the delta does not continue what the model holds: it follows",
                 inputs["previous"], "and the model holds", state.held, state.name),
                (tf.logical_or(is_done, tf.equal(inputs["interrupted"], state.pending)),
                 "another push is under way:", state.pending, "to", state.target_name, "has",
                 state.applied, "of", state.pieces, "pieces; 'interrupted' is",
                 inputs["interrupted"]),
                (tf.logical_or(is_done, tf.logical_or(
                    tf.logical_or(tf.equal(state.pending, ""), tf.equal(state.full, 0)),
                    tf.not_equal(inputs["full"], 0))),
                 "a full push was interrupted:", state.pending, "; only a full one can follow")
            ]  # type: List[Tuple[Any, ...]]
            for number, table in enumerate(self._tables):
                spare = table.plain.absent - table.used.read_value()
                checks.append((
                    tf.logical_or(is_done, tf.less_equal(new_rows[number], spare)),
                    "the table '{}' has no room: the push brings".format(table.plain.name),
                    new_rows[number], "new keys, and its spare rows are", spare))

            def change() -> List[tf.Tensor]:
                with tf.control_dependencies([tf.cond(
                        tf.not_equal(inputs["full"], 0), self._begin_marks,
                        lambda: tf.constant(False))]):
                    ends = tf.equal(pieces, 0)
                    state_after = state._replace(
                        held=_where(ends, inputs["target"], state.held),
                        name=_where(ends, inputs["target_name"], state.name),
                        push=push, target=inputs["target"], target_name=inputs["target_name"],
                        applied=tf.constant(0, tf.int64), pieces=pieces, full=inputs["full"])
                    return [self._write(state_after), tf.constant(0, tf.int64)]

            def keep() -> List[tf.Tensor]:
                # A push that has ended has nothing to apply.
                return [tf.constant(True), _where(tf.equal(state.push, push), state.applied,
                                                  pieces)]

            with tf.control_dependencies(_checks(*checks)):
                return tf.cond(is_done, keep, change)

        _, applied = self._alone(begin)
        return dict(inputs, new_rows=new_rows), {"applied": applied}

    def _apply_delta(self) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
        """Applies one piece of a push to one table."""
        inputs = _inputs(push=tf.string, piece=tf.int64, table=tf.string, keys=tf.string,
                         rows=tf.string, removed=tf.string, checksum=tf.string)
        names = [one.plain.name for one in self._tables]

        def change() -> tf.Tensor:
            with tf.control_dependencies([
                    _check(tf.reduce_any(tf.equal(inputs["table"], tf.constant(
                        names, tf.string, [len(names)]))),
                        "the delta is of another model: it has the table", inputs["table"],
                        ", which is not one of", repr(names))]):
                changes = [tf.cond(tf.equal(inputs["table"], one.plain.name),
                                   functools.partial(self._change, one, inputs),
                                   lambda: tf.constant(False)) for one in self._tables]
            with tf.control_dependencies(changes):
                return tf.constant(True)

        return self._piece(inputs, ["table", "keys", "rows", "removed"], change)

    def _apply_dense(self) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
        """Applies one piece of a push to variables."""
        inputs = _inputs(push=tf.string, piece=tf.int64, checksum=tf.string)
        for name in ("names", "values"):
            inputs[name] = tf.compat.v1.placeholder(tf.string, [None], name)
        ours = tf.constant([one["name"] for one in self._described], tf.string,
                           [len(self._described)])
        sizes = tf.constant([_bytes_of(one) for one in self._described], tf.int32,
                            [len(self._described)])

        def change() -> tf.Tensor:
            names, values = inputs["names"], inputs["values"]
            is_here = tf.equal(names[:, tf.newaxis], ours)
            wanted = tf.reduce_sum(tf.cast(is_here, tf.int32) * sizes, 1)
            checks = _checks(
                (tf.equal(tf.size(names), tf.size(values)), "there are", tf.size(names),
                 "names, and values", tf.size(values)),
                (tf.reduce_all(tf.reduce_any(is_here, 1)),
                 "the delta is of another model: this one has not all variables of", names),
                (tf.equal(tf.size(tf.unique(names).y), tf.size(names)),
                 "a variable is there twice in", names))
            with tf.control_dependencies(checks):
                checks = [_check(tf.reduce_all(tf.equal(tf.strings.length(values), wanted)),
                                 "values have the bytes", tf.strings.length(values),
                                 ", and those of the variables", names, "are", wanted)]
            with tf.control_dependencies(checks):
                changes = [tf.cond(tf.reduce_any(is_here[:, number]), functools.partial(
                    _assigned, variable, values, is_here[:, number]), lambda: tf.constant(False))
                    for number, variable in enumerate(self._variables)]
            with tf.control_dependencies(changes):
                return tf.constant(True)

        return self._piece(inputs, ["names", "values"], change)

    def _piece(self, inputs: Dict[str, tf.Tensor], hashed: List[str],
               change: Callable[[], tf.Tensor]
               ) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
        """Makes the signature of a piece: `change` is run if it is the next one."""
        push, piece = inputs["push"], inputs["piece"]
        found = checksum([push, tf.as_string(piece)] + [inputs[name] for name in hashed])

        def apply(state: _State) -> List[tf.Tensor]:
            checks = _checks(
                (tf.equal(found, inputs["checksum"]),
                 "the delta is torn: the checksum of piece", piece, "is", found,
                 ", and should be", inputs["checksum"]),
                (tf.logical_and(tf.equal(push, state.push), tf.not_equal(push, "")),
                 "the push", push, "was not begun, or another one has taken its place: the "
                 "last one is", state.push, ", the model holds", state.held, state.name),
                (tf.logical_and(tf.greater_equal(piece, 0), tf.less_equal(
                    piece, tf.minimum(state.applied, state.pieces - 1))),
                 "piece", piece, "should be piece", state.applied, "of", state.pieces))

            def next_piece() -> List[tf.Tensor]:
                with tf.control_dependencies([change()]):
                    applied = state.applied + 1
                    is_last = tf.equal(applied, state.pieces)
                    swept = tf.cond(tf.logical_and(is_last, tf.not_equal(state.full, 0)),
                                    self._sweep, lambda: tf.constant(False))
                with tf.control_dependencies([swept]):
                    return [self._write(state._replace(
                        held=_where(is_last, state.target, state.held),
                        name=_where(is_last, state.target_name, state.name),
                        applied=applied)), applied]

            with tf.control_dependencies(checks):
                return tf.cond(tf.equal(piece, state.applied), next_piece,
                               lambda: [tf.constant(True), tf.identity(state.applied)])

        _, applied = self._alone(apply)
        return inputs, {"applied": applied}

    def _change(self, table: _Table, inputs: Dict[str, tf.Tensor]) -> tf.Tensor:
        """Checks a piece of one table, and writes it."""
        plain, storage = table.plain, table.plain.storage
        width = storage.width(plain.dim)
        lengths = {name: tf.strings.length(inputs[name]) for name in ("keys", "rows", "removed")}
        count = lengths["keys"] // 8
        checks = _checks(
            (tf.logical_and(tf.equal(lengths["keys"] % 8, 0), tf.equal(lengths["removed"] % 8, 0)),
             "the delta is torn: keys have 8 bytes each, but 'keys' has", lengths["keys"],
             "and 'removed'", lengths["removed"]),
            (tf.equal(lengths["rows"], count * storage.bytes_of(plain.dim)),
             "the delta is torn: 'rows' has", lengths["rows"], "bytes for", count,
             "keys of the table '{}', whose rows of {} as {} have {}".format(
                 plain.name, plain.dim, storage.name, storage.bytes_of(plain.dim))),
            (tf.less_equal(count + lengths["removed"] // 8, KEYS_OF_PIECE),
             "a piece has at most {} keys, but this one".format(KEYS_OF_PIECE), count,
             "and removed", lengths["removed"] // 8))
        with tf.control_dependencies(checks):
            keys, removed = [tf.io.decode_raw(inputs[name], tf.int64)
                             for name in ("keys", "removed")]
            rows = tf.reshape(tf.io.decode_raw(inputs["rows"], storage.dtype), [-1, width])
            both = tf.concat([keys, removed], 0)
        refused = [PADDING_KEY] + plain.unused
        checks = _checks(
            (tf.equal(tf.size(tf.unique(both).y), tf.size(both)),
             "a key is there twice in a piece of the table '{}'".format(plain.name)),
            (tf.logical_not(tf.reduce_any(tf.equal(keys[:, tf.newaxis], tf.constant(
                refused, tf.int64)))), "the table '{}' cannot have rows for the keys {}: these "
             "are padding, and keys that its index uses".format(plain.name, refused)))
        with tf.control_dependencies(checks):
            numbers = _numbers(table, both)
            before = table.used.read_value()
        given, gone = numbers[:count], numbers[count:]
        is_new = tf.equal(given, plain.absent)
        new = tf.cast(is_new, tf.int64)
        rows_of = _where(is_new, before + tf.cumsum(new, exclusive=True), tf.cast(
            _own_row(given), tf.int64))
        after = before + tf.reduce_sum(new)
        with tf.control_dependencies([_check(
                tf.less_equal(after, plain.absent),
                "the table '{}' has no room: the piece brings".format(plain.name), after - before,
                "new keys, and its spare rows are", plain.absent - before)]):
            # Rows are given before a key has them: a run that ends in between wastes some.
            used = _set(table.used, after)
        with tf.control_dependencies([used]):
            rows_of = tf.cast(rows_of, tf.int32)
            written = _scatter(plain, rows_of, rows) + [_scatter_marks(
                table, rows_of, _where(tf.equal(self._read().full, 0), tf.constant(_OLD, tf.int8),
                                       tf.constant(_NEW, tf.int8)))]
        with tf.control_dependencies(written):
            # In the index are then keys without a row, or with one that they had already.
            is_changed = tf.not_equal(given, rows_of)
            had = tf.not_equal(gone, plain.absent)
            own = tf.boolean_mask(_own_row(gone), had)
            words = mixed_tensor(tf.concat([tf.boolean_mask(keys, is_changed),
                                            tf.boolean_mask(removed, had)], 0))
            inserted = tf.raw_ops.LookupTableInsertV2(
                table_handle=plain.index, keys=words,
                values=tf.concat([tf.boolean_mask(rows_of, is_changed), -1 - own], 0))
        with tf.control_dependencies([inserted]):
            marked = _scatter_marks(table, own, tf.constant(_FREE, tf.int8))
        with tf.control_dependencies([marked]):
            return tf.constant(True)

    def _begin_marks(self) -> tf.Tensor:
        """Makes all rows in use rows that the full push has not written."""
        with tf.control_dependencies([_set(table.marks, tf.cast(tf.cast(
                table.marks.read_value(), tf.bool), tf.int8)) for table in self._tables]):
            return tf.constant(True)

    def _sweep(self) -> tf.Tensor:
        """Removes the keys that a full push has not brought."""
        with tf.control_dependencies([for_entries(table.plain, functools.partial(
                self._removed, table)) for table in self._tables]):
            return tf.constant(True)

    def _removed(self, table: _Table, words: tf.Tensor, numbers: tf.Tensor) -> tf.Operation:
        """Removes those of some keys whose rows have the old mark."""
        is_live = tf.logical_and(tf.greater_equal(numbers, 0),
                                 tf.not_equal(numbers, table.plain.absent))
        words, numbers = tf.boolean_mask(words, is_live), tf.boolean_mask(numbers, is_live)
        is_old = tf.equal(tf.raw_ops.ResourceGather(
            resource=table.marks.handle, indices=numbers, dtype=tf.int8),
            tf.constant(_OLD, tf.int8))
        words, numbers = tf.boolean_mask(words, is_old), tf.boolean_mask(numbers, is_old)
        inserted = tf.raw_ops.LookupTableInsertV2(
            table_handle=table.plain.index, keys=words, values=-1 - numbers)
        with tf.control_dependencies([inserted]):
            return _scatter_marks(table, numbers, tf.constant(_FREE, tf.int8))

    def _alone(self, change: Callable[[_State], List[tf.Tensor]]) -> List[tf.Tensor]:
        """Adds ops that hold the lock while they run, and returns their results."""
        lock = tf.raw_ops.MutexLock(mutex=self._lock)
        with tf.control_dependencies([lock]):
            results = change(self._read())
        with tf.control_dependencies(results):
            released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([released]):
            return [tf.identity(result) for result in results]

    def _read(self) -> _State:
        """Adds the ops that read the state."""
        *texts, applied, pieces, full = tf.unstack(self._state.read_value(), len(_State._fields))
        return _State(*texts, *[tf.strings.to_number(number, tf.int64)
                                for number in (applied, pieces, full)])

    def _write(self, state: _State) -> tf.Tensor:
        """Adds the op that replaces the state at once."""
        with tf.control_dependencies([_set(self._state, tf.stack(
                [one if one.dtype == tf.string else tf.as_string(one) for one in state]))]):
            return tf.constant(True)


def describe(tables: Sequence[PlainTable], variables: Sequence[Any]) -> Dict[str, Any]:
    """Returns what a model takes: its tables with dim and storage, and its variables."""
    return {"format": _FORMAT, "variables": list(variables), "tables": {
        table.name: {"dim": table.dim, "rows_as": table.storage.name, "reserved": table.unused,
                     "capacity": table.absent} for table in tables}}


def fingerprint(description: Dict[str, Any]) -> str:
    """Returns a checksum of what a push has to fit: names, dims and shapes; not of room."""
    text = json.dumps([description["format"], description["variables"], {
        name: [table["dim"], table["rows_as"]]
        for name, table in description["tables"].items()}], sort_keys=True)
    return "{:08x}".format(zlib.crc32(text.encode("utf-8")))


def described_variable(variable: Any) -> Dict[str, Any]:
    """Returns name, dtype and shape of a variable as checkpoints have it, and its slice if it is
    a part of one."""
    part = variable._save_slice_info  # pylint: disable=protected-access
    found = {"name": variable.op.name, "dtype": variable.dtype.base_dtype.name,
             "shape": variable.shape.as_list()}
    if part is not None:
        found.update({"whole": part.full_name, "offset": [int(one) for one in part.var_offset]})
    return found


def checksum(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds the ops that give the checksum of a piece, a string.

    Args:
        parts: Strings of any shape: the push, the number of the piece, and its other inputs.
    """
    hashes = [tf.strings.to_hash_bucket_fast(tf.reshape(part, [-1]), _HASHES) for part in parts]
    counts = tf.stack([tf.size(part, out_type=tf.int64) for part in parts])
    return tf.strings.reduce_join(tf.as_string(tf.concat([counts] + hashes, 0)), separator=",")


def _inputs(**dtypes: tf.DType) -> Dict[str, tf.Tensor]:
    return {name: tf.compat.v1.placeholder(dtype, [], name) for name, dtype in dtypes.items()}


def _variable(value: tf.Tensor, name: str) -> Any:
    return tf.compat.v1.Variable(value, trainable=False, use_resource=True, name=name)


def _set(variable: Any, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _check(is_right: tf.Tensor, *parts: Any) -> tf.Operation:
    return tf.raw_ops.Assert(condition=is_right, summarize=10,
                             data=[tf.convert_to_tensor(part) for part in parts])


def _checks(*checks: Sequence[Any]) -> List[tf.Operation]:
    """Adds ops that fail with the text of the first check that is not right, in order."""
    made = []  # type: List[tf.Operation]
    for check in checks:
        with tf.control_dependencies(made[-1:]):
            made.append(_check(*check))
    return made


def _vector(scalars: List[tf.Tensor]) -> tf.Tensor:
    return tf.stack(scalars) if scalars else tf.zeros([0], tf.int64)


def _numbers(table: _Table, keys: tf.Tensor) -> tf.Tensor:
    """Returns what the index has for keys: a row, -1 - the row that one had, or `absent`."""
    return row_numbers(mixed_tensor(keys), table.opened)


def _own_row(numbers: tf.Tensor) -> tf.Tensor:
    """Returns the row that a key has or had."""
    return tf.maximum(numbers, -1 - numbers)


def _scatter(table: PlainTable, numbers: tf.Tensor, rows: tf.Tensor) -> List[tf.Operation]:
    """Writes rows in place."""
    if len(table.chunks) == 1:
        parts = [(numbers, rows)]
    else:
        part = numbers // table.chunk_rows
        count = len(table.chunks)
        parts = list(zip(tf.dynamic_partition(numbers - part * table.chunk_rows, part, count),
                         tf.dynamic_partition(rows, part, count)))
    return [tf.raw_ops.ResourceScatterUpdate(resource=chunk.handle, indices=places, updates=ones)
            for chunk, (places, ones) in zip(table.chunks, parts)]


def _scatter_marks(table: _Table, numbers: tf.Tensor, mark: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=table.marks.handle, indices=numbers,
                                            updates=tf.fill(tf.shape(numbers), mark))


def _marked(table: _Table) -> tf.Tensor:
    """Returns how many rows are in use, int64: marks have one bit each."""
    words = tf.bitcast(tf.reshape(table.marks.read_value(), [-1, 8]), tf.int64)
    return tf.reduce_sum(tf.cast(tf.raw_ops.PopulationCount(x=words), tf.int64))


def _bytes_of(described: Dict[str, Any]) -> int:
    return int(np.prod(described["shape"], dtype=np.int64)) * tf.as_dtype(described["dtype"]).size


def _assigned(variable: Any, values: tf.Tensor, is_here: tf.Tensor) -> tf.Tensor:
    """Adds the ops that assign to a variable the bytes of one of the values."""
    value = tf.reshape(tf.io.decode_raw(tf.boolean_mask(values, is_here)[0],
                                        variable.dtype.base_dtype), variable.shape)
    with tf.control_dependencies([variable.assign(value, read_value=False)]):
        return tf.constant(True)
