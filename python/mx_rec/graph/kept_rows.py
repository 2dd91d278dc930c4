"""Rows of single ids that a modified graph keeps beside their sums, for runs that fetch them.

Where sums over bags are fused, a step does not compute the rows of each id. A run that fetches them
does, but nothing orders that before the update of the table in the same run.
"""

from typing import Any, FrozenSet, Iterable, List, Set

import tensorflow as tf

from mx_rec.edits.replacing import FUSED_ATTRIBUTE

# The ops that change rows begin so.
_UPDATES = ("MxRecUpdate", "MxRecWriteRows", "MxRecAssign", "MxRecRemove")


def kept_rows(graph: tf.Graph) -> FrozenSet[str]:
    """Returns the names of the ops that need the rows of single ids whose sums are fused.

    Args:
        graph: Any graph.
    """
    found = set()  # type: Set[str]
    waiting = []  # type: List[tf.Operation]
    for op in graph.get_operations():
        if op.type.startswith("MxRec") and FUSED_ATTRIBUTE in op.node_def.attr:
            found.add(op.name)
            for position in op.get_attr(FUSED_ATTRIBUTE):
                waiting.extend(op.outputs[position].consumers())
    while waiting:
        op = waiting.pop()
        if op.name in found:
            continue
        found.add(op.name)
        for output in op.outputs:
            # A tensor that became another op's is not computed here any more.
            if output.op is op:
                waiting.extend(output.consumers())
    return frozenset(found)


def check_fetches(graph: tf.Graph, kept: FrozenSet[str], fetches: Any) -> None:
    """Refuses a run that reads rows of single ids and updates their table.

    Args:
        graph: The graph.
        kept: What `kept_rows` returned.
        fetches: What session.run was given.

    Raises:
        ValueError: If the rows could be read before the update or behind it.
    """
    fetched = list(_ops(graph, fetches))
    rows = [op for op in fetched if op.name in kept]
    if not rows:
        return
    needed = _above(fetched)
    handles = {handle.op.name for op in needed
               if op.type.startswith("MxRec") and FUSED_ATTRIBUTE in op.node_def.attr
               for handle in op.inputs if handle.op.type == "MxRecTable"}
    for op in needed:
        if op.type.startswith(_UPDATES) and any(one.op.name in handles for one in op.inputs):
            raise ValueError(
                "{!r} needs the rows of single ids, which are not computed in this step since "
                "their sums over bags are fused; nothing orders them before the update {!r} of the "
                "same run. Fetch them in a run without updates, or set the environment variable "
                "MXREC_FUSE_LOOKUPS=0 before the graph is modified (for a converted variable: "
                "leave its name out of init(stock_tables=...)).".format(rows[0].name, op.name))


def _ops(graph: tf.Graph, fetches: Any) -> Iterable[tf.Operation]:
    """The ops of fetches, which are nested as session.run allows; others are left out."""
    if isinstance(fetches, str):
        try:
            fetches = graph.as_graph_element(fetches)
        except (KeyError, ValueError, TypeError):
            return
    if isinstance(fetches, tf.Operation):
        yield fetches
    elif isinstance(fetches, tf.Tensor):
        yield fetches.op
    elif isinstance(fetches, dict):
        for part in fetches.values():
            yield from _ops(graph, part)
    elif isinstance(fetches, (list, tuple)):
        for part in fetches:
            yield from _ops(graph, part)
    else:
        for name in ("values", "indices", "dense_shape", "op"):
            part = getattr(fetches, name, None)
            if isinstance(part, (tf.Tensor, tf.Operation)):
                yield from _ops(graph, part)


def _above(ops: Iterable[tf.Operation]) -> Set[tf.Operation]:
    """The ops that a run of some ops needs, with these."""
    seen = set()  # type: Set[tf.Operation]
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
            waiting.extend(op.control_inputs)
    return seen
