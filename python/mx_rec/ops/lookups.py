"""The ops that look keys up: one table is a group of one, and what a group has not is left out."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.ops import library
from mx_rec.ops.shapes import lists_of

# Gives keys their rows, in the step.
ID_OFFSET = "MxRecIdOffset"
# Does so before it, in an input pipeline.
PREPARE = "MxRecPrepare"
# Reads rows by offset, and by key.
READ, FIND = "MxRecRead", "MxRecFind"
# Spreads rows that were read over ids.
RESTORE = "MxRecRestore"
# Refuses ids that variables do not have.
CHECKED_IDS = "MxRecCheckedIds"
# Makes the bags of sparse ids.
SPARSE_BAGS = "MxRecSparseBagsMany"

# The name that lookups have in common which are needed together: the graph pass reads it.
GROUP_ATTRIBUTE = "_mx_rec_group"

# Whether graph modification may move the work of an op of these types on ids.
_MOVABLE_ATTRIBUTE = "_mx_rec_movable"
_MOVABLE = (ID_OFFSET, FIND, "MxRecObserve", "MxRecDistinctSplit")

# Ends, weights and divisors of bags, each for all members.
Bags = Sequence[Sequence[tf.Tensor]]
NO_BAGS = ((), (), ())  # type: Bags


class Resolved(NamedTuple):
    """What keys are resolved to.

    Attributes:
        offsets: For each table int64 (u), the rows of its distinct keys.
        inverse: For each table int32, for each id its place among them.
    """

    offsets: List[tf.Tensor]
    inverse: List[tf.Tensor]

    def of(self, member: int) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns offsets and inverse of one table."""
        return self.offsets[member], self.inverse[member]


def checked_ids(ids: Sequence[tf.Tensor], rows: Sequence[int],
                names: Sequence[str]) -> List[tf.Tensor]:
    """Adds the op that refuses ids which are no rows of their variables.

    Args:
        ids: For each variable its int32 or int64 ids, of one type.
        rows: For each its rows.
        names: For each what errors call it.

    Returns:
        The ids.
    """
    called = np.frombuffer("\n".join(names).encode("utf-8"), np.uint8)
    return list(library().mx_rec_checked_ids(
        list(ids), tf.constant(list(rows), tf.int64, name="rows"),
        tf.constant(called, name="names"), name="ids"))


def resolve(handles: Sequence[tf.Tensor], ids: Sequence[tf.Tensor],
            prepared: Optional[Resolved] = None, create: bool = True, limit: int = 0,
            name: str = "id_offset") -> Resolved:
    """Adds the op that makes keys distinct and gives them their rows.

    Args:
        handles: The tables.
        ids: For each its int32 or int64 ids, of one type.
        prepared: What `prepare` gave for them, None without.
        create: Whether keys without a row get one.
        limit: The most distinct keys a batch may have, 0 for any number.
        name: Name of the op.

    Returns:
        Offsets and inverse.
    """
    made = library().mx_rec_id_offset(
        list(handles), list(ids), *(([], []) if prepared is None else prepared),
        create=int(create), limit=limit, name=name)
    return Resolved(list(made.offsets), list(made.inverse))


def prepare(handles: Sequence[tf.Tensor], ids: Sequence[tf.Tensor], limit: int = 0) -> Resolved:
    """Adds the op that resolves keys ahead of the step.

    Args:
        handles: The tables.
        ids: For each its int32 or int64 ids, of one type; or the one tensor of all.
        limit: The most distinct keys a batch may have, 0 for any number.

    Returns:
        Offsets, and for each tensor of ids its inverse.
    """
    made = library().mx_rec_prepare(list(handles), list(ids), limit=limit, name="prepare")
    return Resolved(list(made.offsets), list(made.inverse))


def read_rows(handles: Sequence[tf.Tensor], variables: Sequence[tf.Tensor],
         offsets: Sequence[tf.Tensor], inverse: Sequence[tf.Tensor] = (), bags: Bags = NO_BAGS,
         is_whole: bool = False, norms: Sequence[tf.Tensor] = (),
         name: str = "embedding") -> List[tf.Tensor]:
    """Adds the op that reads rows by offset.

    Args:
        handles: The tables.
        variables: Their variables, which gradients are taken of.
        offsets: For each table int64 (u).
        inverse: For each table int32, for each id its place among the offsets; empty: the rows of
            distinct keys are read.
        bags: Of pooled lookups.
        is_whole: Whether the rows of all tables are one tensor, side by side.
        norms: Of pooled lookups, for each the greatest norm of its rows, a float32 scalar, or no
            float; empty for any norm. The op then gives the distinct rows as well.
        name: Name of the op.

    Returns:
        For each table its rows; the one tensor of all.
    """
    return list(library().mx_rec_read(
        list(handles), list(variables), list(offsets), list(inverse),
        *map(list, list(bags) + [norms]), M=1 if is_whole else len(handles), name=name).rows)


def find_rows(handles: Sequence[tf.Tensor], variables: Sequence[tf.Tensor],
              ids: Sequence[tf.Tensor], absent: Sequence[Optional[tf.Tensor]] = (),
              bags: Bags = NO_BAGS, initial: bool = False, norms: Sequence[tf.Tensor] = (),
              name: str = "find") -> List[tf.Tensor]:
    """Adds the op that reads rows by key and makes none.

    Args:
        handles: The tables.
        variables: Their variables.
        ids: For each its int32 or int64 ids, of one type.
        absent: For each the rows of ids that have none, float32 (k, dim), None for zeros; empty
            for zeros everywhere.
        bags: Of pooled lookups.
        initial: Whether ids without a row get what their row would start with.
        norms: As of `read_rows`.
        name: Name of the op.

    Returns:
        For each table its rows.
    """
    given = []  # type: List[tf.Tensor]
    if any(rows is not None for rows in absent):
        given = [_no_rows(variable) if rows is None else rows
                 for rows, variable in zip(absent, variables)]
    return list(library().mx_rec_find(list(handles), list(variables), list(ids), given,
                                      *map(list, list(bags) + [norms]), initial=int(initial),
                                      name=name))


def _no_rows(variable: tf.Tensor) -> tf.Tensor:
    """No row of a table, float32 (0, dim)."""
    dim = tf.compat.dimension_value(variable.shape[1]) if variable.shape.rank else None
    return tf.zeros([0, tf.shape(variable)[1] if dim is None else dim], name="absent")


def reads_distinct(op: tf.Operation) -> bool:
    """Returns whether an op reads the rows of distinct keys.

    Args:
        op: An op of any type.
    """
    return op.type == READ and op.get_attr("R") == 0


def offsets_of_rows(rows: tf.Tensor) -> tf.Tensor:
    """Returns the offsets by which distinct rows were read, their numbers if they are other rows.

    The op that read them knows how many they are without waiting for their values.

    Args:
        rows: Any tensor.
    """
    read = rows
    while read.op.type == "Identity":
        read = read.op.inputs[0]
    if reads_distinct(read.op):
        return member_of(read.op, read.value_index)["offsets"]
    return tf.range(tf.shape(rows, out_type=tf.int64)[0])


def member_of(op: tf.Operation, member: int) -> Dict[str, tf.Tensor]:
    """Returns what an op takes for one of its tables, by the names of its inputs.

    Args:
        op: An op of the plugin.
        member: Which; inputs that are no lists are of table 0.
    """
    return {name: tensors[member] for name, tensors in lists_of(op).items() if tensors}


def is_claim(op: Any) -> bool:
    """Returns whether an op takes what a pipeline has prepared.

    Args:
        op: An op of any type, or its NodeDef.
    """
    if isinstance(op, tf.Operation):
        return op.type == ID_OFFSET and op.get_attr("P") > 0
    return op.op == ID_OFFSET and op.attr["P"].i > 0


def may_move(op: tf.Operation) -> bool:
    """Returns whether an op is a lookup that a graph modification may move.

    Lookups of an imported graph count as well: the mark is an attribute of the op.

    Args:
        op: An op of any type.
    """
    return op.type in _MOVABLE and _MOVABLE_ATTRIBUTE in op.node_def.attr \
        and bool(op.get_attr(_MOVABLE_ATTRIBUTE))


def mark_movable(op: tf.Operation, moves: bool) -> None:
    """Says whether graph modification may move a lookup.

    Args:
        op: The op that takes its ids.
        moves: Whether it may.
    """
    if may_move(op) != moves:
        op._set_attr(  # pylint: disable=protected-access
            _MOVABLE_ATTRIBUTE, attr_value_pb2.AttrValue(b=moves))


def mark_group(op: tf.Operation, group: str) -> None:
    """Tells the graph pass that a run needs an op together with others.

    Args:
        op: An op that looks keys up.
        group: The name that they have in common; "" for none.
    """
    if group:
        op._set_attr(  # pylint: disable=protected-access
            GROUP_ATTRIBUTE, attr_value_pb2.AttrValue(s=group.encode("utf-8")))
