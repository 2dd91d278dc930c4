"""What the plan of a graph changes besides moving work: what is fused, and what shares an op."""

from collections import OrderedDict

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec.base.log import logger
from mx_rec.graph.concats import fuse_concats
from mx_rec.graph.needs import Needs
from mx_rec.graph.plan import Plan, make_plan
from mx_rec.graph.rows import mark_rows, read_rest
from mx_rec.graph.sums import fuse_sums
from mx_rec.graph.together import Together, take_apart
from mx_rec.graph.updates import fuse_updates
from mx_rec.ops.lookups import FIND, ID_OFFSET, READ, lists_of
from mx_rec.ops.optimizers import UPDATE
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import described_name

_PASSED = (ID_OFFSET, FIND, READ, UPDATE)


class Fusing:
    """The fused lookups of a graph, from the plan on until all that moves has moved.

    Args:
        graph: A graph that no session has run.
        plan: Its plan.
        before: Its GraphDef.
        first: The number of ops that sessions may have run.
    """

    def __init__(self, graph: tf.Graph, plan: Plan, before: graph_pb2.GraphDef,
                 first: int = 0) -> None:
        self._graph = graph
        self._first = first
        self._plan = plan
        fused = [(one.lookup, one.output) for one in plan.sums if one.fuses]
        fused += [(part.lookup, part.output) for one in plan.concats if one.fuses
                  for part in one.parts]
        self._fused = [name for name, _ in fused]
        changed = set(self._fused).union(
            *[one.nodes for one in plan.together if len(one.nodes) > 1],
            *[[one.node for one in group.updates] for group in plan.updates])
        if changed:
            state = graph_state(graph)
            state.needs = state.needs or Needs(graph)
            state.needs.remember(before, changed)
        mark_rows(graph, fused)
        self._together = Together(graph, plan.together)

    def apply(self) -> None:
        """Changes the graph."""
        updates = fuse_updates(self._graph, self._plan.updates, self._first)
        pooled = fuse_sums(self._graph, self._plan.sums)
        fuse_concats(self._graph, self._plan.concats)
        read_rest(self._graph, self._fused)
        joined = self._together.join(pooled)
        if graph_state(self._graph).needs is not None:
            graph_state(self._graph).needs.end(
                (made for made, _ in joined), (op for _, ops in updates for op in ops))
        for one in self._plan.sums:
            logger.info("graph pass: the sum over bags of the lookup %s of the table %r %s: %s",
                        one.lookup, one.table, "is fused" if one.fuses else "stays", one.reason)
        for concat in self._plan.concats:
            logger.info("graph pass: the concatenation %s of %d lookups %s: %s", concat.node,
                        len(concat.parts), "is fused" if concat.fuses else "stays", concat.reason)
        for made, ops in updates:
            logger.info("graph pass: one op sums and applies the gradients of %d updates: %s",
                        len(ops), made.name)
        for _, together in joined:
            tables = OrderedDict.fromkeys(described_name(_table_of(handle)) for op in together
                                          for handle in lists_of(op)["handles"])
            logger.info("graph pass: one op %s %d lookups of the tables %s",
                        "finds the rows of" if together[0].type == ID_OFFSET else "reads for",
                        len(together), ", ".join(map(repr, sorted(tables))))


def pass_over(graph: tf.Graph, first: int = 0) -> None:
    """Fuses and joins the lookups of a graph that no session has run yet.

    What a graph modification or an earlier pass has changed stays as it is.
    `init(graph_pass=False)` leaves all lookups as they are.

    Args:
        graph: A graph to which ops can be added.
        first: The version of the graph up to which open sessions have run it.
    """
    state = graph_state(graph)
    first = max(first, state.passed)
    if not Settings.passes_graphs() or not any(
            op.type in _PASSED for op in graph.get_operations()[first:]):
        return
    take_apart(graph, first)
    try:
        # A graph of more than 2 GB has no GraphDef.
        before = graph.as_graph_def(add_shapes=True)
        plan = make_plan(before.SerializeToString())
    except ValueError as error:
        logger.warning("graph pass: the graph runs as it is, since it cannot be read: %s", error)
        return
    Fusing(graph, _of_newer(graph, plan, first), before, first).apply()
    state.passed = graph.version


def _of_newer(graph: tf.Graph, plan: Plan, first: int) -> Plan:
    """Returns a plan without what it says of older lookups and updates."""
    if not first:
        return plan

    def is_newer(name: str) -> bool:
        return graph.get_operation_by_name(name)._id > first  # pylint: disable=protected-access

    together = [one._replace(nodes=[name for name in one.nodes if is_newer(name)])
                for one in plan.together]
    return plan._replace(
        sums=[one for one in plan.sums if is_newer(one.lookup)],
        concats=[one for one in plan.concats if all(is_newer(part.lookup) for part in one.parts)],
        together=[one for one in together if len(one.nodes) > 1],
        updates=[one for one in plan.updates
                 if all(is_newer(part.node) for part in one.updates)])


def _table_of(handle: tf.Tensor) -> tf.Operation:
    """Returns the op of a lookup's table, or what hands its handle on."""
    table = handle.op
    while table.type == "Identity":
        table = table.inputs[0].op
    return table
