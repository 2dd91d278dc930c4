"""The ops that look keys up: one table is a group of one, and what a group has not is left out."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.ops import library

# Gives keys their rows, in the step.
ID_OFFSET = "MxRecIdOffset"
# Does so before it, in an input pipeline.
PREPARE = "MxRecPrepare"


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


def prepare(handles: Sequence[tf.Tensor], ids: Sequence[tf.Tensor], limit: int = 0,
            name: str = "prepare") -> Resolved:
    """Adds the op that resolves keys ahead of the step.

    Args:
        handles: The tables.
        ids: For each its int32 or int64 ids, of one type; or the one tensor of all.
        limit: The most distinct keys a batch may have, 0 for any number.
        name: Name of the op.

    Returns:
        Offsets, and for each tensor of ids its inverse.
    """
    made = library().mx_rec_prepare(list(handles), list(ids), limit=limit, name=name)
    return Resolved(list(made.offsets), list(made.inverse))


def lists_of(op: tf.Operation) -> Dict[str, List[tf.Tensor]]:
    """Returns the inputs of an op of the plugin by their names; one that is no list is one of one.

    Args:
        op: The op.
    """
    inputs = iter(op.inputs)
    return {arg.name: [next(inputs) for _ in range(
        op.get_attr(arg.number_attr) if arg.number_attr else 1)] for arg in op.op_def.input_arg}


def resolved_by(op: tf.Operation) -> Resolved:
    """Returns what an op resolves keys to.

    Args:
        op: An op of the type ID_OFFSET.
    """
    members = op.get_attr("N")
    return Resolved(list(op.outputs[:members]), list(op.outputs[members:]))


def is_claim(op: Any) -> bool:
    """Returns whether an op takes what a pipeline has prepared.

    Args:
        op: An op of any type, or its NodeDef.
    """
    if isinstance(op, tf.Operation):
        return op.type == ID_OFFSET and op.get_attr("P") > 0
    return op.op == ID_OFFSET and op.attr["P"].i > 0
