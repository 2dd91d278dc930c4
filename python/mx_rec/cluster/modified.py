"""Lookups of tables on parameter servers while a graph is modified.

The ids are made distinct and split in the input pipeline, which needs no table. In the step,
lookups of one pipeline whose tables one op updates share one pull for each parameter server, and
those of evaluation another one. So a run that needs one of them pulls the rows of all.
"""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.cluster.ahead import pull_ahead
from mx_rec.cluster.around import (SPLIT_OP, configs_of, has_gradients, is_updated, pulls_of,
                                   row_dtypes_of, stitch_of)
from mx_rec.cluster.lookups import words_of
from mx_rec.cluster.together import join, split_as


class Moving(NamedTuple):
    """Lookups whose ids are made distinct by one op of the pipeline.

    Attributes:
        splits: The ops of the step that do so without it.
        ids: Names of the tensors of their ids, one behind the other.
        is_ahead: Whether their rows are pulled one step before they are needed.
    """

    splits: List[tf.Operation]
    ids: List[str]
    is_ahead: bool = False


def table_of(graph: tf.Graph, lookup: Any) -> str:
    """Returns the name of the table of a planned lookup, or its op's where that is not known."""
    pulls = pulls_of(graph.get_operation_by_name(lookup.node))
    return str(configs_of(pulls[0].inputs[0])[lookup.member]["name"]) if pulls else lookup.node


def moving(graph: tf.Graph, lookups: Sequence[Any], shared: Sequence[Sequence[str]],
           is_ahead: bool) -> Tuple[List[Moving], List[Any]]:
    """Finds what one pipeline makes distinct.

    Args:
        graph: The graph.
        lookups: Planned lookups of tables on parameter servers that its iterator feeds.
        shared: The names of the ops of those that share requests, as the plan has them.
        is_ahead: Whether rows of training with gradients are pulled ahead.

    Returns:
        The work of the pipeline, and the lookups of ops of which others stay in the step.
    """
    by_split = OrderedDict()  # type: Dict[tf.Operation, Dict[int, Any]]
    for lookup in lookups:
        split = graph.get_operation_by_name(lookup.node)
        by_split.setdefault(split, {})[lookup.member] = lookup
    together = {name: tuple(names) for names in shared for name in names}
    runs = OrderedDict()  # type: Dict[Tuple[str, ...], None]
    left = []  # type: List[Any]
    for split, members in by_split.items():
        if len(members) < split.get_attr("N"):
            left.extend(members.values())
        else:
            runs[together.get(split.name, (split.name,))] = None
    found = []  # type: List[Moving]
    for names in runs:
        splits = [graph.get_operation_by_name(name) for name in names]
        ids = [by_split[split][at].ids for split in splits for at in range(split.get_attr("N"))]
        found.append(Moving(splits, ids, is_ahead and is_updated(splits[0])))
    return found, left


def check_ahead(graph: tf.Graph, lookups: Sequence[Any]) -> None:
    """Refuses to pull rows ahead where a lookup of training cannot.

    Lookups of training without gradients pull in their step, as do those of evaluation.

    Args:
        graph: The graph.
        lookups: The planned lookups of tables on parameter servers.

    Raises:
        NotImplementedError: If a lookup with gradients cannot; the text names it and says why.
    """
    moves = {}  # type: Dict[tf.Operation, Optional[str]]
    for lookup in lookups:
        split = graph.get_operation_by_name(lookup.node)
        moves[split] = moves.get(split) or (None if lookup.moves else lookup.reason)
    for split in graph.get_operations():
        if split.type != SPLIT_OP or not has_gradients(split):
            continue
        pulls = pulls_of(split) or []
        if split not in moves:
            reason = "it is not by a tensor with modify_graph=True, or was modified before"
        elif moves[split]:
            reason = "a lookup that it shares requests with stays in the step: " \
                + str(moves[split])
        elif split.get_attr("counted"):
            reason = "its keys are counted for admission in the order of the steps"
        elif split.control_inputs or any(pull.control_inputs for pull in pulls):
            reason = "it has control dependencies"
        elif not is_updated(split):
            reason = "its gradients are not pushed in the same step by the keys of the lookup, " \
                "as with SyncReplicasOptimizer or without an update"
        else:
            continue
        names = [repr(str(one["name"])) for one in configs_of(pulls[0].inputs[0])]
        raise NotImplementedError(
            "pull_ahead: the rows of the lookup {!r} of {} cannot be pulled before their step: {}. "
            "Leave pull_ahead off, or change the lookup.".format(
                split.name, ", ".join(names), reason))


def prepare(work: Moving, ids: Dict[str, tf.Tensor]) -> List[tf.Tensor]:
    """Adds the op of the pipeline, in its function.

    Args:
        work: What it is for.
        ids: The ids by name.

    Returns:
        All its outputs.
    """
    count = len(work.ids)
    outputs = split_as(work.splits[0], [ids[name] for name in work.ids])
    return outputs + [_floats(work, outputs[2 * count:3 * count])] if work.is_ahead else outputs


def _floats(work: Moving, counts: Sequence[tf.Tensor]) -> tf.Tensor:
    """How many words the rows of a request take, for each parameter server: int64 (servers)."""
    words = [words_of(int(tensor.shape[1]), row_dtype)
             for stitch in map(stitch_of, work.splits)
             for tensor, row_dtype in zip(stitch.inputs, row_dtypes_of(stitch))]
    by_part = tf.add_n([count * size for count, size in zip(counts, words)])
    return tf.reduce_sum(tf.reshape(by_part, [-1, work.splits[0].get_attr("together")]), 1)


def request_of(work: Moving, values: Sequence[Any]) -> Tuple[Any, ...]:
    """Returns the requests, and their sizes, of what `prepare` gives."""
    return tuple(values[3 * len(work.ids):][:2])


def take_over(work: Moving, values: Sequence[tf.Tensor],
              following: Sequence[tf.Tensor]) -> List[tf.Operation]:
    """Makes lookups in the step take what the pipeline gives.

    Args:
        work: The lookups.
        values: What `prepare` gave, as it leaves the iterator.
        following: The requests of the next element, their sizes and the tag of the element, where
            rows are pulled ahead; nothing elsewhere.

    Returns:
        Ops that the iterator is to wait for when it starts.
    """
    if not work.is_ahead:
        join(work.splits, values)
        return []
    pulls, stitch = join(work.splits, values[:-1])
    return [pull_ahead(stitch, pulls, values[-1], *following)]


def no_request(work: Moving) -> Tuple[np.ndarray, np.ndarray]:
    """Returns requests for no key, and their sizes, as `prepare` gives them."""
    split = work.splits[0]
    parts, together = split.get_attr("parts"), split.get_attr("together")
    return (np.zeros(parts * len(work.ids), np.int64),
            np.full(parts // together, together * len(work.ids), np.int64))
