"""Updates of many tables in one op, where that cannot change what a step does."""

from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.base.global_env_conf import groups_tables
from mx_rec.ops.optimizers import Gradients, OptimizerStep, update
from mx_rec.optimizers.fusion import (Reduction, Reductions, all_reductions, apply_fused, in_whole,
                                          is_pooled)
from mx_rec.state.table_variable import table_op_of

# (handle, offsets, gradient) of one table.
Rows = Tuple[tf.Tensor, tf.Tensor, tf.Tensor]

# Ops of which one output has no value in a run, and those that have one whatever their inputs have.
_BRANCHES = frozenset(("Switch", "RefSwitch"))
_JOINS = frozenset(("Merge", "RefMerge", "Exit", "RefExit"))


def apply_tables(step: OptimizerStep, tables: Sequence[List[Rows]],
                 apply_one: Callable[[OptimizerStep, List[Rows]], tf.Operation]
                 ) -> List[tf.Operation]:
    """Adds the ops that update the rows of several tables, each row once.

    Tables on the same device share an op. A table has an op of its own if the call is inside of a
    branch, a loop or a function, or if its gradient may have no value in a run, as that of a branch
    that is not taken: the others would not be updated either. The rows become the same bit for bit.
    With the environment variable MXREC_GROUP_TABLES=0 each table has an op of its own.

    Args:
        step: The step of an optimizer.
        tables: For each table its gradients.
        apply_one: Adds the op for one table.

    Returns:
        The ops.
    """
    if len(tables) < 2 or not groups_tables() or not _is_outermost():
        return [apply_one(step, group) for group in tables]
    updates = []  # type: List[tf.Operation]
    # By device, and whether there are pooled lookups: those have an op of their own.
    fused = OrderedDict()  # type: Dict[Tuple[str, bool], List[Tuple[List[Rows], Reductions]]]
    plain = OrderedDict()  # type: Dict[str, List[List[Rows]]]
    alive = set()  # type: Set[tf.Operation]
    for group in tables:
        found = all_reductions([rows[1:] for rows in group])
        if _may_be_dead(_read(group, found), alive):
            updates.append(apply_one(step, group))
            continue
        device = table_op_of(group[0][0]).device
        if found is None:
            plain.setdefault(device, []).append(group)
        else:
            fused.setdefault((device, is_pooled(found)), []).append((group, found))
    for groups in plain.values():
        if len(groups) == 1:
            updates.append(apply_one(step, groups[0]))
        else:
            updates.append(_apply_plain(step, groups))
    for pairs in fused.values():
        if len(pairs) == 1:
            updates.append(apply_one(step, pairs[0][0]))
        else:
            updates.append(_apply_fused(step, pairs))
    return updates


def _apply_plain(step: OptimizerStep, groups: List[List[Rows]]) -> tf.Operation:
    """Adds the op that applies gradients of rows."""
    return update(step, Gradients(*zip(*[rows for group in groups for rows in group])))


def _apply_fused(step: OptimizerStep,
                 pairs: List[Tuple[List[Rows], Reductions]]) -> tf.Operation:
    """Adds the op that sums the gradients of ids and applies the sums."""
    members = []  # type: List[Tuple[tf.Tensor, Reduction]]
    control_inputs = [op for _, found in pairs for op in found.control_inputs]
    for group, found in pairs:
        for part in found.parts:
            part, waits = in_whole(part)
            members.append((group[0][0], part))
            control_inputs.extend(waits)
    return apply_fused(step, members, control_inputs)


def _is_outermost() -> bool:
    """Whether ops that are added now stand in no branch, loop or function."""
    graph = tf.compat.v1.get_default_graph()
    # pylint: disable=protected-access
    return not graph.building_function and graph._get_control_flow_context() is None


def _read(group: List[Rows], found: Any) -> List[tf.Operation]:
    """The ops whose results the update of a table reads or waits for."""
    if found is None:
        return [tensor.op for rows in group for tensor in rows]
    tensors = [tensor for part in found.parts
               for tensor in (part.offsets, part.inverse, part.grad) + part.bags]
    return [tensor.op for tensor in tensors] + list(found.control_inputs)


def _may_be_dead(ops: Iterable[tf.Operation], alive: Set[tf.Operation]) -> bool:
    """Whether a run may have no value for what some ops give.

    Args:
        ops: Ops outside of branches and loops.
        alive: Ops that have a value in each run; those that are found are added.
    """
    seen = set(ops) - alive
    waiting = list(seen)
    while waiting:
        op = waiting.pop()
        if op.type in _BRANCHES:
            return True
        if op.type in _JOINS:
            continue
        for before in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if before not in seen and before not in alive:
                seen.add(before)
                waiting.append(before)
    alive.update(seen)
    return False
