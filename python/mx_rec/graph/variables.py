"""Variables of session scripts become tables before the first session of their graph."""

import contextlib
import re
from typing import Any, Callable, List, Optional

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.edits.replacing import extending, extensible
from mx_rec.edits.wiring import variable_name
from mx_rec.graph.anew import begin_anew, reason_to_stay
from mx_rec.graph.back import note_start
from mx_rec.graph.runs import alone, has_run, has_seen
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.analysis import VARIABLES, is_update
from mx_rec.stock.convert import converted
from mx_rec.stock.parts import placement_of
from mx_rec.stock.select import candidates, convert_graph, has_tables, options_of_process


def convert_variables(graph: tf.Graph, session: Any = None, is_alone: bool = True) -> None:
    """Converts the graph of a script as `init(stock_tables=...)` says, once.

    Args:
        graph: The graph, complete. One whose variables an open session has seen in a run stays as
            it is, unless that is the given session alone, and it can begin anew.
        session: The session that is going to run the graph, if it is known.
        is_alone: Whether no run of it goes on.

    Raises:
        ValueError: If settings of eviction do not go together.
    """
    state, options = graph_state(graph), options_of_process()
    if options is None:
        return
    with extending:
        if state.is_settled and not state.settled \
                or not state.settled and not _may_convert(graph, session, is_alone):
            return
        with extensible(graph):
            if not state.settled:
                convert_graph(graph, True)
            elif candidates(graph, options, state.settled):
                _convert_added(graph, options)
            state.settled = state.without_training = len(graph.get_operations())


def _may_convert(graph: tf.Graph, session: Any, is_alone: bool) -> bool:
    """Returns whether a graph is to be converted whole; a session that has run it begins anew."""
    state = graph_state(graph)
    # The global step may have been there before.
    first = next((position for position, op in enumerate(graph.get_operations(), 1)
                  if op.type in VARIABLES and op.get_attr("dtype") == tf.float32), None)
    seen = [] if first is None else [one for one in state.sessions() if has_seen(one, first)]
    if session is not None and session._target and not placement_of(  # pylint: disable=W0212
            [op.node_def for op in graph.get_operations() if op.type in VARIABLES]).job:
        state.is_settled = True
        logger.warning("stock_tables: the variables of the graph stay TensorFlow's: its session "
                       "runs on a server, whose sessions share variables, and each would have "
                       "tables of its own.")
        return False
    if not seen:
        return True
    state.is_settled = True
    reason = reason_to_stay(session) if seen == [session] else "it is another one"
    if not reason and not is_alone:
        reason = "a run of it does not end"
    if reason:
        logger.warning("stock_tables: an open session has run the graph with its variables, "
                       "which stay TensorFlow's: %s. Make the training ops before the first "
                       "session.run.", reason)
        return False
    if not has_tables(graph):
        state.settled = state.without_training = len(graph.get_operations())
        return False
    begin_anew(session)
    state.was_run = True
    return True


def _convert_added(graph: tf.Graph, options: Any) -> None:
    """Converts the variables that a script has added, with training ops, to a converted graph.

    Args:
        graph: The graph.
        options: Which variables, of which there are some.
    """
    state = graph_state(graph)
    first = min(candidates(graph, options, state.settled))
    if not any(has_seen(one, first) for one in state.sessions()):
        state.was_run = False
        convert_graph(graph, True, settled=state.settled)
    else:
        logger.info("stock_tables: the variables that were added to the graph stay TensorFlow's: a "
                    "session has run them before there were training ops of them.")


def convert_before_run(session: Any) -> None:
    """Does the same before a run, once there are training ops and variables that may be chosen.

    Args:
        session: The session. Without such ops and variables in its graph nothing is done, and it
            is looked at again when it has grown.
    """
    graph = session.graph
    options = options_of_process()
    if options is None:
        return
    # A graph that is settled may be in the middle of its conversion, by another thread.
    with extending:
        state = graph_state(graph)
        if not (state.settled or not state.is_settled) \
                or not candidates(graph, options, state.settled) or not _has_training(graph):
            return
        is_busy = not state.settled and has_run(session) and not reason_to_stay(session)
    with alone(session) if is_busy else contextlib.nullcontext(True) as is_alone:
        _try_to_convert(graph, session, is_alone)


def _try_to_convert(graph: tf.Graph, session: Any = None, is_alone: bool = True) -> None:
    """Converts the graph of a script that has not asked for it now: an error is a warning."""
    try:
        convert_variables(graph, session, is_alone)
    except Exception as error:  # pylint: disable=broad-except
        logger.warning("stock_tables: the variables of the graph stay TensorFlow's, because they "
                       "could not become tables: %s: %s", type(error).__name__, error,
                       exc_info=True)


def _has_training(graph: tf.Graph) -> bool:
    """Whether a graph has an op of an optimizer, among those that were not looked at before."""
    state, operations = graph_state(graph), graph.get_operations()
    found = any(is_update(op.type) for op in operations[state.without_training:])
    if not found:
        state.without_training = len(operations)
    return found


def patched_monitored_session(stock: Callable[..., None], self: Any, *args: Any,
                              **kwargs: Any) -> None:
    """_MonitoredSession.__init__, which converts the graph first.

    Hooks that begin find its tables, and the Scaffold makes its Saver and its initializers of what
    is there then.
    """
    _try_to_convert(tf.compat.v1.get_default_graph())
    stock(self, *args, **kwargs)


def patched_initializer(stock: Callable[..., tf.Operation], var_list: Any, *args: Any,
                        **kwargs: Any) -> tf.Operation:
    """tf.compat.v1.variables_initializer, by which a table starts with all of its slots."""
    if tf.executing_eagerly() or not var_list:
        return stock(var_list, *args, **kwargs)
    var_list = list(var_list)
    names = {variable_name(variable) for variable in var_list}
    whole = [one for one in converted(tf.compat.v1.get_default_graph())
             if one.plan.name in names and not one.plan.was_run and (
                 one.plan.on_servers or one.plan.part is None and names.issuperset(
                     slot.variable for slot in one.plan.slots))]
    together = {name for one in whole for name in [one.plan.name] + [
        slot.variable for slot in one.plan.slots]}
    made = stock([one for one in var_list if variable_name(one) not in together],
                 *args, **kwargs)
    if whole:
        # pylint: disable=protected-access
        made._add_control_inputs([one.clear for one in whole])
        note_start(made, [one for one in var_list if variable_name(one) in together])
    return made


def patched_get_collection(stock: Callable[..., List[Any]], key: Any,
                           scope: Optional[str] = None) -> List[Any]:
    """tf.compat.v1.get_collection, which lists variables that are tables, too.

    They are not in the collection of global variables any more, so that a Saver of all saves them
    as tables. A program that compares two lists of all would take them for new when they are
    variables again, and initialize them; one that takes their values from one graph to another
    would leave them out.
    """
    found = stock(key, scope)
    if key != tf.compat.v1.GraphKeys.GLOBAL_VARIABLES:
        return found
    known = {id(one) for one in found}
    tables = [one for one in _variables_of_tables() if id(one) not in known
              and (scope is None or re.match(scope, one.name))]
    # In the order in which they were made, as TensorFlow lists them.
    # pylint: disable=protected-access
    return sorted(found + tables, key=lambda one: one.op._id) if tables else found


def patched_saveables(stock: Callable[..., List[Any]], scope: Optional[str] = None) -> List[Any]:
    """The function that lists what a Saver of all saves, which leaves tables out."""
    tables = {id(one) for one in _variables_of_tables()}
    return [one for one in stock(scope) if id(one) not in tables]


def _variables_of_tables() -> List[Any]:
    """Returns the variables of the default graph that became tables, and their slots."""
    if tf.executing_eagerly():
        return []
    return [variable for one in converted(tf.compat.v1.get_default_graph())
            for variable in one.objects.get(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, ())
            # Slots on parameter servers cannot be read, and are never variables again.
            if variable.op.name == one.plan.name or not one.plan.on_servers]
