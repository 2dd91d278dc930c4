"""Variables that are tables are variables again, when a program asks for gradients of them.

A table has the updates that were there when its graph was converted. Training ops that are made
later need the graph as it was. It is that again, with what the program has added since, and the
session that has run it begins anew with the values that the variables would hold. The next run
converts the graph with all of its training ops, as far as it can.
"""

import contextlib
import threading
from typing import Any, Callable, Iterable, Iterator, List, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.edits.replacing import extending, extensible, unchanged
from mx_rec.edits.upstream import upstream
from mx_rec.graph.anew import begin_anew, given_up, reason_to_stay, rename
from mx_rec.graph.runs import alone, has_run, preparation, setting
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.convert import ConvertedVariable, converted
from mx_rec.tensorflow.names import control_flow_util

# How many copies of the values of variables there are while a session begins anew: those that were
# read, what the variables take, and what the tables have of them.
_COPIES = 3

# The attribute of an op that starts tables: the variables that they stand for.
_STARTED = "_mx_rec_started"

# How often the variables of a graph become tables again: a program that makes training ops in each
# turn of a loop would wait for their values each time.
_MOST = 10


def patched_gradients(stock: Callable[..., Any], ys: Any, xs: Any, *args: Any,
                      **kwargs: Any) -> Any:
    """tf.gradients, which knows variables and no tables: those that are asked of become variables.

    Args:
        stock: TensorFlow's function.
        ys: What is derived: tensors, nested as tf.gradients takes them.
        xs: By what: variables and tensors.
        *args: Further arguments.
        **kwargs: The same.

    Returns:
        What it gives.

    Raises:
        NotImplementedError: If one of the tables has to stay one.
    """
    starts = [] if tf.executing_eagerly() else [
        one.op for one in tf.nest.flatten(ys) if isinstance(one, tf.Tensor)]
    reason = ""
    while starts:
        graph = starts[0].graph
        with unchanged(graph):
            asked, needed = _tables_asked(starts, xs)
            # Lookups that were made since read the variables, and may be derived as they are.
            has_to = any(one.table.handle.op in needed for one in asked)
            if not asked or reason and not has_to:
                with _deriving():
                    return stock(ys, xs, *args, **kwargs)
        reason = _reason_now(graph)
        if reason and has_to:
            raise NotImplementedError(_text(asked[0], reason))
        if reason:
            continue
        with contextlib.ExitStack() as held:
            # A session that is being prepared has not begun.
            sessions = sorted(graph_state(graph).sessions(), key=id)
            for take in (setting, preparation):
                for session in sessions:
                    held.enter_context(take(session))
            are_alone = [held.enter_context(alone(one)) for one in sessions if has_run(one)]
            with extending:
                _be_variables(graph, _tables_asked(starts, xs)[0], all(are_alone))
    with _deriving():
        return stock(ys, xs, *args, **kwargs)


class _Calls(threading.local):
    """The calls of TensorFlow's function in a thread, which keeps sessions from their runs.

    Attributes:
        depth: How many there are.
    """

    depth = 0


_calls = _Calls()


@contextlib.contextmanager
def _deriving() -> Iterator[None]:
    """A context in which TensorFlow makes gradients."""
    _calls.depth += 1
    try:
        yield
    finally:
        _calls.depth -= 1


def _tables_asked(starts: Sequence[tf.Operation],
                  xs: Any) -> Tuple[List[ConvertedVariable], Set[tf.Operation]]:
    """Returns the tables that gradients of what ops give are asked of, and all that this needs."""
    graph = starts[0].graph
    tables = converted(graph)
    if not tables:
        return [], set()
    asked, needed = set(_names(tf.nest.flatten(xs))), set(upstream(starts))
    return [one for one in tables if one.plan.name in asked and not needed.isdisjoint(
        (one.table.handle.op, graph.get_operation_by_name(one.plan.name)))], needed


def _reason_now(graph: tf.Graph) -> str:
    """Returns why the tables of a graph cannot be variables again at this call, "" if they can."""
    # The body of a loop that is being made keeps sessions from their runs, too.
    context = graph._get_control_flow_context()  # pylint: disable=protected-access
    if _calls.depth or control_flow_util.GetContainingWhileContext(context) is not None:
        return "gradients of it are asked for while a loop, or the gradient of an op, is being " \
            "made, and TensorFlow runs nothing meanwhile"
    with extending:
        return _reason_to_stay(graph, converted(graph))


def _be_variables(graph: tf.Graph, found: Sequence[ConvertedVariable], are_alone: bool) -> None:
    """Makes variables of all tables of a graph, if gradients are asked of some of them.

    Args:
        graph: The graph.
        found: These tables.
        are_alone: Whether no run of its sessions goes on.
    """
    if not found:
        return
    reason = _reason_to_stay(graph, converted(graph))
    if not reason and not are_alone:
        reason = "a run of its session does not end, and what that changes would be lost"
    if reason:
        raise NotImplementedError(_text(found[0], reason))
    _go_back(graph)
    logger.warning(
        "stock_tables: training ops are made of %s after a run that trains: the tables are "
        "variables again, with their values. %s Make all training ops before the first run, or a "
        "new graph.", ", ".join(one.plan.name for one in found),
        "They stay that, since it is the {}th time.".format(_MOST)
        if graph_state(graph).is_settled else "The next run makes tables of those that can be with "
        "all their optimizers.")


def note_start(op: tf.Operation, variables: List[Any]) -> None:
    """Notes which variables an op starts as tables, which start by themselves as variables.

    Args:
        op: What starts tables.
        variables: The variables, with those of their optimizers.
    """
    setattr(op, _STARTED, variables)


def _names(values: Iterable[Any]) -> List[str]:
    """Returns the names of the ops of variables and tensors."""
    return [value.op.name for value in values if isinstance(value, (tf.Variable, tf.Tensor))]


def _text(one: ConvertedVariable, reason: str) -> str:
    return "the variable {!r} has been the table {!r} since a session ran the graph, and the " \
        "training ops that are made now would not train it: {}. Make all training ops before the " \
        "first run that trains, leave it out of var_list, or leave its name out of " \
        "init(stock_tables=...).".format(one.plan.name, one.plan.table, reason)


def _reason_to_stay(graph: tf.Graph, tables: List[ConvertedVariable]) -> str:
    """Returns why tables cannot be variables again, "" if they can."""
    state = graph_state(graph)
    if not state.before or len(state.tables) > len({one.plan.table for one in tables}):
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
    wanted = _COPIES * sum(4 * int(np.prod(one.plan.shape, dtype=np.int64)) * (1 + len(
        one.plan.slots)) for one in tables)
    if wanted > _available_bytes():
        return "as variables they and their optimizer's take {:.1f} GiB, and {:.1f} are " \
            "available".format(wanted / 2.0 ** 30, _available_bytes() / 2.0 ** 30)
    sessions = [one for one in state.sessions() if has_run(one)]
    if len(sessions) > 1:
        return "several open sessions have run the graph"
    return reason_to_stay(sessions[0], {one.table.variable.op for one in tables}) \
        if sessions else ""


def _available_bytes() -> int:
    """Returns the memory that this machine can give, as Linux estimates it."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines
                    if line.startswith("MemAvailable:"))


def _go_back(graph: tf.Graph) -> None:
    """Makes a graph what it was before its conversion, and its session begin anew."""
    state = graph_state(graph)
    with extending:
        late = state.late_ops
        # What was made since the last run may read variables, too.
        late.adopt()
        sessions = [one for one in state.sessions() if has_run(one)]
        retired, times = set(state.retired), state.went_back + 1
        for session in sessions:
            retired |= given_up(session)
            begin_anew(session, late.values())
        with extensible(graph):
            # What each conversion found is there again when the later ones are taken back.
            for before in reversed(state.before):
                renamed = before.go_back(late.replaced)
                for session in sessions:
                    rename(session, renamed)
            for op in graph.get_operations():
                for variable in getattr(op, _STARTED, ()):
                    # Init_from_checkpoint gives references a tensor.
                    op._add_control_input(  # pylint: disable=protected-access
                        getattr(variable.initializer, "op", variable.initializer))
                if hasattr(op, _STARTED):
                    delattr(op, _STARTED)
            state.is_settled, state.was_run, state.without_training = times >= _MOST, True, 0
            state.passed = graph.version
            state.retired, state.went_back = retired, times
