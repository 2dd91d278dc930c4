"""What stands in the place of the initializers of a variable that became a table, and its slots.

An op that waits for all of them empties the table, and with it what a session has trained. One of
them that runs without another sets its own values alone: TensorFlow leaves the others what they
are.
"""

from typing import Any, Dict, List

import tensorflow as tf

from mx_rec.edits.replacing import extensible, replace_waiting
from mx_rec.edits.wiring import change_of, in_place_of, run_instead
from mx_rec.stock.changes import change
from mx_rec.stock.dense import set_all, start_op
from mx_rec.stock.rows import Rows
from mx_rec.stock.server_rows import refuse_start
from mx_rec.stock.servers import Servers


def replace_initializers(rows: Rows, clear: tf.Operation, objects: Dict[str, Any],
                         servers: Servers) -> tf.Operation:
    """Replaces the initializers of a variable and of its slots.

    Parts of a variable share a table, and each starts its own rows.

    Args:
        rows: The rows of the variable, whose other ops are replaced.
        clear: What empties the table.
        objects: The variables of Python by the name of their op.
        servers: Where the table is, if on parameter servers.

    Returns:
        What starts the rows with their slots.
    """
    plan, table, graph = rows.plan, rows.table, rows.table.variable.graph
    assigns = [rows.op(name) for name in plan.assigns]
    starts = {slot.name: rows.op(slot.start) for slot in plan.slots if slot.start}
    value = assigns[0].inputs[1] if plan.sets_rows else None
    if value is not None:
        # What sets a slot alone is over before the table is emptied, if a run asks for both.
        clear._add_control_inputs(  # pylint: disable=protected-access
            [change_of(one) for one in starts.values()])
        with in_place_of(clear, [clear]):
            clear = set_all(table, plan, value,
                            slots={name: start.inputs[1] for name, start in starts.items()})
    of_all = [] if plan.part is not None or not assigns else set.intersection(*[
        set(one._control_outputs)  # pylint: disable=protected-access
        for one in assigns + [change_of(one) for one in starts.values()]])
    slots = {slot.variable: slot for slot in plan.slots}
    for assign in assigns:
        slot = slots.get(assign.inputs[0].op.name)
        sets_all = slot is None and value is not None
        if not sets_all:
            graph.prevent_feeding(assign.inputs[1])
        replace_waiting(assign, [clear], of=of_all)
        if slot is None and (plan.on_servers or not slots and plan.part is None):
            alone = clear
        elif sets_all:
            change(rows, assign)
            continue
        elif plan.on_servers:
            alone = refuse_start(table, slot, servers)
        else:
            alone = start_op(table, plan, slot)
        replace_waiting(assign, [alone])
        run_instead(assign, alone)
    for name in [plan.name] + list(slots):
        if name in objects:
            _pass_on(objects[name], clear)
    return clear


def _pass_on(variable: Any, clear: tf.Operation) -> None:
    """Makes a variable of Python initialize its table, and load values into it.

    Args:
        variable: The variable.
        clear: What starts its table, if its initializer is none that was replaced.
    """
    loaded = []  # type: List[Any]

    def load(value: Any, session: Any = None) -> None:
        if not loaded:
            with extensible(variable.graph), variable.graph.as_default(), tf.init_scope():
                given = tf.compat.v1.placeholder(tf.float32, variable.shape)
                loaded.extend([given, variable.assign(given, read_value=False)])
        session = session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError("load() of the variable {!r} needs a session, by its argument or as "
                             "the default.".format(variable.op.name))
        session.run(loaded[1], {loaded[0]: value})

    # Init_from_checkpoint gives references a tensor.
    initializer = getattr(variable.initializer, "op", variable.initializer)
    variable._initializer_op = change_of(initializer) or clear  # pylint: disable=W0212
    variable.load = load
