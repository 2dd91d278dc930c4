"""What the plan of a graph changes besides moving work: what is fused, and what shares an op."""

import logging
from collections import Counter
from typing import Any, Counter as CounterType, List, Optional, Tuple

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.cluster.around import SPLIT_OP
from mx_rec.cluster.together import gradients_by, share_requests
from mx_rec.edits.replacing import FUSED_ATTRIBUTE, mark_positions
from mx_rec.graph.concats import fuse_concats
from mx_rec.graph.needs import Needs, needed_by
from mx_rec.graph.plan import Plan, Record, make_plan
from mx_rec.graph.sums import fuse_sums
from mx_rec.graph.together import Together, take_apart
from mx_rec.graph.updates import Updating
from mx_rec.ops.lookups import FIND, ID_OFFSET, READ, SPARSE_BAGS
from mx_rec.ops.optimizers import PUSH, UPDATE
from mx_rec.ops.shapes import lists_of
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import TABLE_OP, described_name, table_op_of
from mx_rec.stock.undo import undone_by_error
from mx_rec.tensorflow.graph_def import serialized

_PASSED = (ID_OFFSET, FIND, READ, SPARSE_BAGS, UPDATE, PUSH)

# What an op does for several lookups, by its type.
_DOES = {ID_OFFSET: "finds the rows of", FIND: "reads for", READ: "reads for",
         SPARSE_BAGS: "makes the bags of"}


class Fusing:
    """The fused lookups of a graph, from the plan on until all that moves has moved.

    Args:
        graph: A graph that no session has run.
        plan: Its plan.
        before: Its serialized GraphDef.
        first: The number of ops that sessions may have run.

    Attributes:
        rules: The lists of the plan that `apply` is at.
    """

    def __init__(self, graph: tf.Graph, plan: Plan, before: bytes,
                 first: int = 0) -> None:
        self.rules = ()  # type: Tuple[str, ...]
        # In a large graph counting takes a tenth of the time of all changes.
        self._counts = Counts(graph) if logger.isEnabledFor(logging.DEBUG) else None
        self._graph = graph
        self._first = first
        self._plan = plan
        fused = [one.lookup for one in plan.sums if one.fuses]
        fused += [part.lookup for one in plan.concats if one.fuses for part in one.parts]
        changed = set(fused).union(
            *[one.nodes for one in plan.together],
            *[[one.node for one in group.updates] for group in plan.updates])
        if changed:
            state = graph_state(graph)
            state.needs = state.needs or Needs(graph)
            state.needs.remember(before, changed)
        for name in fused:
            # So that nothing else replaces it.
            mark_positions(graph.get_operation_by_name(name), FUSED_ATTRIBUTE, [0])
        self._together = Together(graph, plan.together)
        self._updating = Updating(graph, plan.updates)
        self._updates = []  # type: List[Tuple[tf.Operation, List[tf.Operation]]]

    def join_pushes(self) -> None:
        """Joins updates on parameter servers, which requests that lookups share are pushed by."""
        self.rules = ("updates", "together", "requests")
        self._updates += self._updating.join_pushes()

    def apply(self) -> None:
        """Changes the graph, once pushes are joined."""
        self.rules = ("sums",)
        pooled = fuse_sums(self._graph, self._plan.sums, self._together.groups)
        self.rules = ("concats",)
        fuse_concats(self._graph, self._plan.concats)
        # What lookups share counts updates that share an op as one.
        self.rules = ("updates", "together")
        updates = self._updates + self._updating.fuse(self._first)
        self.rules = ("together",)
        joined = self._together.join(pooled)
        if graph_state(self._graph).needs is not None:
            graph_state(self._graph).needs.end(joined, (op for _, ops in updates for op in ops))
        self.rules = ("requests",)
        # Those that move share them already.
        shared = [one for one in self._plan.requests if one.iterator is None]
        for one in shared:
            share_requests(self._graph, one.nodes)
        for one in self._plan.sums:
            logger.info("graph pass: the sum over bags of the lookup %s of the table %r %s: %s",
                        one.lookup, one.table, "is fused" if one.fuses else "stays", one.reason)
        for concat in self._plan.concats:
            logger.info("graph pass: the concatenation %s of %d lookups %s: %s", concat.node,
                        len(concat.parts), "is fused" if concat.fuses else "stays", concat.reason)
        for made, _ in updates:
            logger.info("graph pass: the op %s applies %d gradients.", made.name,
                        gradients_by(made))
        for made in joined:
            logger.info("graph pass: one op %s %d lookups%s", _DOES[made.type], made.get_attr("N"),
                        _of_tables(made))
        for one in shared:
            logger.info("graph pass: the lookups %s share a request for each parameter server: %s",
                        ", ".join(one.nodes), one.reason)
        if self._counts is not None:
            logger.debug("graph pass: ops of tables, before and after: %s", self._counts.text())


class Counts:
    """Counts the ops that a training step needs on rows and keys of tables, by their type.

    Of a graph without an update of tables it counts what is computed from rows. Ops that were
    replaced stay in the graph, and nothing needs them.

    Args:
        graph: A graph, before it is changed.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        # These objects become the tensors that take the places of what they are now.
        self._ends = []  # type: List[Any]
        for op in graph.get_operations():
            # pylint: disable=protected-access
            if not op._control_outputs and not any(one.consumers() for one in op.outputs) \
                    and not op.type.startswith("MxRec"):
                self._ends += op.outputs or [op]
        self._before = self._now()

    def _now(self) -> CounterType[str]:
        updates = [op for op in self._graph.get_operations()
                   if op.type == UPDATE and op._control_outputs]  # pylint: disable=protected-access
        return Counter(op.type for op in needed_by(updates or self._ends)
                       if op.type.startswith("MxRec") and op.type != TABLE_OP)

    def text(self) -> str:
        """Returns the numbers of before and of now for a person to read, a line."""
        now = self._now()
        return ", ".join("{} {} -> {}".format(name, self._before[name], now[name])
                         for name in sorted(set(self._before) | set(now))) or "none"


def pass_over(graph: tf.Graph, first: int = 0) -> None:
    """Fuses and joins the lookups and updates of a graph that no session has run yet.

    What a graph modification or an earlier pass has changed stays as it is.
    `init(graph_pass=False)` leaves all of them as they are.

    Args:
        graph: A graph to which ops can be added.
        first: The version of the graph up to which open sessions have run it.
    """
    if not Settings.passes_graphs():
        return
    state = graph_state(graph)
    seen, first = first, max(first, state.passed)
    operations = graph.get_operations()
    found = [op for op in operations[first:] if op.type in _PASSED]
    # Those that shared no request may share one when further ops of the graph have been made.
    splits = [op for op in operations[seen:]
              if op.type == SPLIT_OP and op.outputs[0].consumers()]
    if not found and len(splits) < 2:
        return
    take_apart(found)
    try:
        # A graph of more than 2 GB has no GraphDef.
        before = serialized(graph)
        plan = make_plan(before, graph=graph, moves=False)
    except ValueError as error:
        logger.warning("graph pass: the graph runs as it is, since it cannot be read: %s", error)
        return
    _apply(graph, _of_newer(graph, plan, first, seen), before, first)
    state.passed = graph.version


def _apply(graph: tf.Graph, plan: Plan, before: bytes, first: int) -> None:
    """Changes a graph; a rule that fails is left out, and changes nothing."""
    failed = None  # type: Optional[Tuple[str, ...]]
    while failed != ():
        fusing = None  # type: Optional[Fusing]
        try:
            with undone_by_error(graph, before):
                fusing = Fusing(graph, plan, before, first)
                fusing.join_pushes()
                fusing.apply()
            return
        except Exception as error:  # pylint: disable=broad-except
            rules = fusing.rules if fusing is not None else ()
            failed = tuple(rule for rule in rules if getattr(plan, rule))
            logger.warning("graph pass: the graph runs without %s of the plan, because of a "
                           "failure: %s: %s", " and ".join(failed) or "all", type(error).__name__,
                           error, exc_info=True)
            plan = plan._replace(**{rule: [] for rule in failed})


def _of_newer(graph: tf.Graph, plan: Plan, first: int, seen: int) -> Plan:
    """Returns a plan without what it says of older lookups and updates.

    Args:
        graph: The graph.
        plan: Its plan.
        first: The version up to which it was passed over.
        seen: The version up to which open sessions have run it.
    """
    def is_newer(name: str, than: int = first) -> bool:
        return graph.get_operation_by_name(name)._id > than  # pylint: disable=protected-access

    together = [Record(one, nodes=[name for name in one.nodes if is_newer(name)])
                for one in plan.together]
    # Pushes of an earlier pass may be joined with others: requests follow them.
    pushes = {op.name for op in graph.get_operations() if op.type == PUSH}
    updates = [Record(one, updates=[part for part in one.updates if is_newer(
        part.node, seen if part.node in pushes else first)]) for one in plan.updates]
    return plan._replace(
        sums=[one for one in plan.sums if is_newer(one.lookup)],
        concats=[one for one in plan.concats if all(is_newer(part.lookup) for part in one.parts)],
        together=[one for one in together if len(one.nodes) > 1],
        updates=[one for one in updates if one.updates],
        requests=[one for one in plan.requests if all(is_newer(name, seen) for name in one.nodes)])


def _of_tables(made: tf.Operation) -> str:
    """Returns which tables an op is for, as the log says it; nothing if it needs none."""
    names = {repr(described_name(table_op_of(handle)))
             for handle in lists_of(made).get("handles", [])}
    return " of the tables " + ", ".join(sorted(names)) if names else ""
