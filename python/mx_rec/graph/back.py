"""Variables that are tables are variables again, when a program asks for gradients of them.

A table has the updates that were there when its graph was converted. Training ops that are made
later need the graph as it was. It is that again, with what the program has added since, and the
session that has run it begins anew with the values that the variables would hold. The next run
converts the graph with all of its training ops, as far as it can.
"""

from typing import Any, Iterable, List, Set

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.edits.replacing import extensible
from mx_rec.edits.upstream import upstream
from mx_rec.graph.anew import begin_anew, reason_to_stay, rename
from mx_rec.graph.runs import has_run
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.convert import ConvertedVariable, converted


def have_gradients(ys: Any, xs: Any) -> None:
    """Makes variables of tables that gradients are asked of; it does nothing for all others.

    Args:
        ys: What is derived: tensors, nested as tf.gradients takes them.
        xs: By what: variables and tensors.

    Raises:
        NotImplementedError: If one of them has to stay a table, or if all variables are asked for
            that TensorFlow's collection has of those to be trained, which lacks one that is a
            table.
    """
    if tf.executing_eagerly():
        return
    starts = [one.op for one in tf.nest.flatten(ys) if isinstance(one, tf.Tensor)]
    tables = converted(starts[0].graph) if starts else []
    if not tables:
        return
    graph = starts[0].graph
    asked = set(_names(tf.nest.flatten(xs)))
    trained = set(_names(graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)))
    needed = set(upstream(starts))
    wanted = [one for one in tables if one.table.handle.op in needed]
    found = [one for one in wanted if one.plan.name in asked]
    if not found:
        left_out = [one for one in wanted if _is_trained(one)]
        if left_out and trained and trained <= asked:
            raise NotImplementedError(_text(
                left_out[0], "tf.trainable_variables() does not have it any more"))
        return
    reason = _reason_to_stay(graph, tables)
    if reason:
        raise NotImplementedError(_text(found[0], reason))
    _go_back(graph, tables)
    logger.warning(
        "stock_tables: training ops are made of %s after a run that trains: the tables are "
        "variables again, with their values. The next run makes tables of those that can be with "
        "all their optimizers. Make all training ops before the first run, or a new graph.",
        ", ".join(one.plan.name for one in found))


def _names(values: Iterable[Any]) -> List[str]:
    """Returns the names of the ops of variables and tensors."""
    return [value.op.name for value in values if isinstance(value, (tf.Variable, tf.Tensor))]


def _is_trained(one: ConvertedVariable) -> bool:
    return one.plan.name in _names(
        one.objects.get(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES, ()))


def _text(one: ConvertedVariable, reason: str) -> str:
    return "the variable {!r} has been the table {!r} since a session ran the graph, and the " \
        "training ops that are made now would not train it: {}. Make all training ops before the " \
        "first run that trains, leave it out of var_list, or leave its name out of " \
        "init(stock_tables=...).".format(one.plan.name, one.plan.table, reason)


def _reason_to_stay(graph: tf.Graph, tables: List[ConvertedVariable]) -> str:
    """Returns why tables cannot be variables again, "" if they can."""
    state = graph_state(graph)
    if state.before is None or len(state.tables) > len({one.plan.table for one in tables}):
        return "the graph has tables that were no variables"
    if state.is_planned or state.started_by:
        return "the graph was modified"
    if state.saved_since:
        return "a tf.train.Saver was made since, which saves the table"
    for one in tables:
        if one.plan.on_servers:
            return "it is on parameter servers"
        if one.plan.ids.is_lifted:
            return "its ids have no limits"
        if one.rules.counts or one.rules.refuses:
            return "it counts its keys"
    sessions = [one for one in state.sessions() if has_run(one)]
    if len(sessions) > 1:
        return "several open sessions have run the graph"
    return reason_to_stay(sessions[0], _ops(tables)) if sessions else ""


def _ops(tables: List[ConvertedVariable]) -> Set[tf.Operation]:
    return {one.table.variable.op for one in tables}


def _go_back(graph: tf.Graph, tables: List[ConvertedVariable]) -> None:
    """Makes a graph what it was before its conversion, and its session begin anew."""
    state = graph_state(graph)
    with extensible(graph):
        late = state.late_ops
        # What was made since the last run may read variables, too.
        late.adopt()
        sessions = [one for one in state.sessions() if has_run(one)]
        for session in sessions:
            begin_anew(session, late.values())
        renamed = state.before.go_back(late.replaced)
        for session in sessions:
            rename(session, renamed)
        state.is_settled, state.was_run, state.without_training = False, True, 0


__all__ = ["have_gradients"]
