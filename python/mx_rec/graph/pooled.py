"""Pooled lookups of a modified graph that read the rows of many tables by one op.

Joined are training lookups whose keys one op resolves, and lookups of evaluation that every run
needs together: the same ends of the graph depend on them. No lookup is joined that depends on
another one, so that no circle can arise, and none that waits for other things than the rest, so
that a run needs to feed no more than before.
"""

from collections import OrderedDict
from typing import Any, Dict, FrozenSet, List, Optional, Set

import tensorflow as tf

from mx_rec.base.global_env_conf import groups_tables
from mx_rec.edits.replacing import FUSED_ATTRIBUTE, in_place_of, replace_each
from mx_rec.edits.upstream import upstream
from mx_rec.graph.grouped import is_free, set_movable
from mx_rec.graph.plan import is_movable
from mx_rec.ops.lookups import FIND, ID_OFFSET, find_together, read_rows, reads_bags
from mx_rec.state.table_variable import TABLE_OP, described_name

# What gives nothing from outside: a run can always have it.
_NO_SOURCES = ("Assert", "Const", "NoOp", TABLE_OP)

# What reads a tensor and not its values, and may be left over.
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def pool_together(graph: tf.Graph) -> List[List[str]]:
    """Makes pooled lookups of several tables share an op.

    Args:
        graph: A graph that no session has run, after lookups have moved and sums are fused.

    Returns:
        For each new op the names of the tables of its lookups.
    """
    if not groups_tables():
        return []
    lookups = [op for op in graph.get_operations()
               if reads_bags(op) and op.get_attr("N") == 1 and _can(op)]
    same = OrderedDict()  # type: Dict[Any, List[tf.Operation]]
    for op in lookups:
        above = set(upstream(list(op.inputs)[2:] + op.control_inputs, control_inputs=True))
        key = _key(op, above)
        if key is not None and not any(other in above for other in lookups):
            same.setdefault(key, []).append(op)
    joined = []  # type: List[List[str]]
    for together in same.values():
        if len(together) > 1:
            _join(graph, together)
            joined.append([described_name(_table_of(op)) for op in together])
    return joined


def _can(op: tf.Operation) -> bool:
    """Whether a lookup is read, and stands where an op for many tables can."""
    output = op.outputs[0]
    return output.op is op and bool(output.consumers()) and is_free(op) \
        and FUSED_ATTRIBUTE not in op.node_def.attr


def _key(op: tf.Operation, above: Set[tf.Operation]) -> Optional[Any]:
    """Returns what is equal for lookups that may share an op, None if there is none.

    Args:
        op: The lookup.
        above: All ops that it depends on, but for its table.
    """
    sources = frozenset(one for one in above if one.type not in _NO_SOURCES
                        and (not one.inputs or _is_stateful(one)))
    if op.type == FIND:
        ends = _ends(op)
        return (op.device, op.get_attr("T"), sources, ends) if ends else None
    offsets, inverse = op.inputs[2:4]
    resolver = offsets.op
    is_whole = resolver.type == ID_OFFSET and len(resolver.outputs) > 2 \
        and inverse.op is resolver \
        and inverse.value_index == offsets.value_index + len(resolver.outputs) // 2
    return (op.device, resolver, sources) if is_whole else None


def _is_stateful(op: tf.Operation) -> bool:
    definition = op.op_def
    return definition is not None and definition.is_stateful


def _ends(op: tf.Operation) -> FrozenSet[tf.Operation]:
    """Returns the ops that depend on an op and that nothing depends on."""
    seen, waiting = set(), [op]
    ends = set()  # type: Set[tf.Operation]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        # Tensors that became another op's are read as its outputs.
        below = [reader for output in one.outputs if output.op is one
                 for reader in output.consumers()]
        below.extend(one._control_outputs)  # pylint: disable=protected-access
        if not below and one.type not in _SHAPES:
            ends.add(one)
        waiting.extend(below)
    return frozenset(ends)


def _table_of(op: tf.Operation) -> tf.Operation:
    """Returns the op of a lookup's table, or what hands its handle on."""
    table = op.inputs[0].op
    while table.type == "Identity":
        table = table.inputs[0].op
    return table


def _join(graph: tf.Graph, together: List[tf.Operation]) -> None:
    """Puts an op for many tables in the place of lookups."""
    is_find = together[0].type == FIND
    with in_place_of(graph, together[0]):
        if is_find:
            pooled = find_together(together)
        else:
            inputs = [list(part) for part in zip(*[op.inputs for op in together])]
            pooled = read_rows(*inputs[:4], inputs[4:], name="pooled")
    if is_find:
        set_movable(pooled[0].op, any(is_movable(op) for op in together))
    for op, vectors in zip(together, pooled):
        if is_find:
            set_movable(op, False)
        replace_each(op, [vectors])
