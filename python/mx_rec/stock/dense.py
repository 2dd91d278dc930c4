"""Sets the rows of tables to the values of variables."""

from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np
import tensorflow as tf

from mx_rec.core.table import Table, scope_of
from mx_rec.ops import library
from mx_rec.ops.lookups import find_rows
from mx_rec.state.table_variable import row_shape
from mx_rec.stock.admission import RowRules, count_as_admitted

# Rows that go into a table by one run, at most.
CHUNK = 1 << 16


def _set_rows(table: Table, slots: Sequence[Any], rules: RowRules, ids: tf.Tensor,
              rows: tf.Tensor, values: Sequence[tf.Tensor], saved: bool) -> tf.Operation:
    """Adds the ops that set the rows of distinct ids, and of each slot; `saved` are those of a
    checkpoint that may have other types."""
    names = [tf.constant(np.frombuffer(slot.name.encode("utf-8"), np.uint8)) for slot in slots]
    initial = tf.constant([slot.initial for slot in slots], tf.float32)
    done = library().mx_rec_assign(table.handle, ids, rows, names, initial, values,
                                   saved=int(saved), name="fill").op
    if rules.counts:
        with tf.control_dependencies([done]):
            done = count_as_admitted(table, rules, ids)
    return done


def set_all(table: Table, plan: Any, rows: Optional[tf.Tensor],
            rules: RowRules = RowRules(), slots: Optional[Dict[str, tf.Tensor]] = None,
            saved: bool = False) -> tf.Operation:
    """Adds the ops that fill a table from the values of a whole variable, in the default graph.

    Args:
        table: The table.
        plan: The plan of the variable (stock.planned.StockVariable).
        rows: The variable's value, in its shape; None: each row as it would be when it is made.
        rules: When keys get rows: those that are set count as admitted.
        slots: The values of slots by name, in the same shape; others start as those of new rows do.
        saved: Whether they are rounded as the table's row_conversion says, else to the nearest.

    Returns:
        What has set them all.
    """
    count, dim = plan.shape[0], plan.dim
    whole = {name: tf.reshape(value, [count, dim]) for name, value in (slots or {}).items()}
    given = [slot for slot in plan.slots if slot.name in whole]
    if rows is not None:
        rows = tf.reshape(tf.ensure_shape(rows, plan.shape), [count, dim])

    def fill_chunk(first: tf.Tensor, end: tf.Tensor) -> tf.Operation:
        ids = tf.range(first, end) + plan.first
        part = rows[first:end] if rows is not None else find_rows(
            [table.handle], [row_shape(table.variable)], [ids], initial=True, name="found")[0]
        values = [whole[slot.name][first:end] for slot in given]
        return _set_rows(table, given, rules, ids, part, values, saved)

    return each_chunk(count, chunk_of(table), fill_chunk)


def chunk_of(table: Table) -> int:
    """Returns how many rows go into a table by one run: those on disk have to fit into memory."""
    return min(CHUNK, table.device_vocabulary_size) if table.ssd_vocabulary_size else CHUNK


def each_chunk(count: int, chunk: int,
               change: Callable[[tf.Tensor, tf.Tensor], tf.Operation]) -> tf.Operation:
    """Adds a loop over rows, some at a time, in the default graph.

    Args:
        count: How many rows there are.
        chunk: How many one turn takes.
        change: Adds what is done with the rows from a first one to an end, int64 scalars.

    Returns:
        What has done it with all.
    """
    def turn(first: tf.Tensor) -> tf.Tensor:
        end = tf.minimum(first + chunk, tf.constant(count, tf.int64))
        with tf.control_dependencies([change(first, end)]):
            return tf.identity(end)

    return tf.compat.v1.while_loop(
        lambda first: first < count, turn, [tf.constant(0, tf.int64)], parallel_iterations=1,
        back_prop=False, name="fill", return_same_structure=True)[0].op


def clear_op(table: Table) -> tf.Operation:
    """Adds the op that empties a table."""
    return _clear(table, "", [], [], [])


def start_op(table: Table, plan: Any, slot: Any) -> tf.Operation:
    """Adds the op that sets a field of all rows of a variable to what it is in new ones.

    One op sets it: another one of the same run may empty the table meanwhile.

    Args:
        table: The table.
        plan: The plan of the variable (stock.planned.StockVariable).
        slot: The slot (stock.planned.Slot), None for the rows themselves.
    """
    # The parts of a variable share a table.
    keys = [] if plan.ids.is_lifted else [plan.first, plan.first + plan.shape[0] - 1]
    name, initial = (slot.name, slot.initial) if slot else ("", 0.0)
    return _clear(table, (name or "rows") + "/",
                  [tf.constant(np.frombuffer(name.encode("utf-8"), np.uint8))], [initial], keys)


def _clear(table: Table, scope: str, fields: Sequence[tf.Tensor], initial: Sequence[float],
           keys: Sequence[int]) -> tf.Operation:
    scope = "{}//table/{}".format(scope_of(table.table_name), scope)
    with tf.init_scope(), tf.device("/cpu:0"), tf.compat.v1.name_scope(scope):
        return library().mx_rec_clear(table.handle, fields, initial, keys, name="initialize").op
