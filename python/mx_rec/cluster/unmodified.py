"""Lookups on parameter servers that share requests although their graph is not modified.

When the first session runs a graph, lookups of the step come to share one request for each
parameter server: those whose gradients one update takes, and those of evaluation. A run that needs
one of them pulls the rows of all. So only lookups share whose ids come from the same placeholders,
iterators, queues and other ops that a run has to feed, or whose running changes something: whoever
can run one of them can run all, and nothing is read or changed that the run would have left alone,
but for rows of ids of the same batch.
"""

from collections import OrderedDict
from typing import Any, Dict, FrozenSet, List, Set

import tensorflow as tf

from mx_rec.cluster.around import SPLIT_OP
from mx_rec.cluster.together import in_order_of_push, join, key_of, split_as
from mx_rec.edits.replacing import in_place_of
from mx_rec.edits.upstream import upstream
from mx_rec.ops.lookups import mark_movable, may_move

_PLACEHOLDERS = frozenset(["Placeholder", "PlaceholderV2"])

# Ops with a state that a run reads and does not change.
_READING = frozenset([
    "VariableV2", "VarHandleOp", "ReadVariableOp", "VarIsInitializedOp", "HashTable", "HashTableV2",
    "MutableHashTable", "MutableHashTableV2", "LookupTableFind", "LookupTableFindV2",
    "LookupTableSize", "LookupTableSizeV2",
])


def share_requests(graph: tf.Graph) -> int:
    """Makes lookups of a graph share requests where they can.

    Args:
        graph: A graph that no open session has run.

    Returns:
        How many lookups share their requests with others now, that did not.
    """
    splits = [op for op in graph.get_operations() if op.type == SPLIT_OP]
    by_key = OrderedDict()  # type: Dict[Any, List[tf.Operation]]
    # All of them before anything changes.
    for split in splits if len(splits) > 1 else []:
        by_key.setdefault(key_of(split), []).append(split)
    groups = []  # type: List[List[tf.Operation]]
    kinds = {}  # type: Dict[str, bool]
    for alike in by_key.values():
        if len(alike) < 2:
            continue
        by_sources = OrderedDict()  # type: Dict[FrozenSet[str], List[tf.Operation]]
        for split in alike:
            by_sources.setdefault(_sources(split, kinds), []).append(split)
        groups += [run for found in by_sources.values() for run in in_order_of_push(found)
                   if len(run) > 1]
    for group in groups:
        _share(graph, group)
    return sum(split.get_attr("N") for group in groups for split in group)


def _share(graph: tf.Graph, splits: List[tf.Operation]) -> None:
    """Makes lookups share a request for each parameter server."""
    moves = all(may_move(split) for split in splits)
    with in_place_of(graph, splits[0]):
        outputs = split_as(splits[0], [tensor for split in splits for tensor in split.inputs])
    join(graph, splits, outputs)
    # A copy of the graph may be modified elsewhere.
    mark_movable(outputs[0].op, moves)


def _sources(split: tf.Operation, kinds: Dict[str, bool]) -> FrozenSet[str]:
    """The names of those ops its ids come from that are fed, or whose running changes something.

    Args:
        split: The op that makes the ids distinct.
        kinds: Which types of ops are such; it is added to.
    """
    found = set()  # type: Set[str]
    for op in upstream(split.inputs, control_inputs=True):
        if op.type not in kinds:
            kinds[op.type] = op.type in _PLACEHOLDERS \
                or op.op_def.is_stateful and op.type not in _READING
        if kinds[op.type]:
            found.add(op.name)
    return frozenset(found)
