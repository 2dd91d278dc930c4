"""Training steps that a program has given up: updates that nothing can run any more.

Keras runs its functions by callables, each with one op as its target, and a model that is compiled
again drops that of before. Its ops stay in the graph. They keep no variable from becoming a table
of the new step's optimizer.
"""

from typing import Iterable, Set

import tensorflow as tf

from mx_rec.edits.replacing import own_ops
from mx_rec.edits.upstream import upstream
from mx_rec.edits.wiring import COPIES
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.late import refuse
from mx_rec.stock.rows import Rows


def retired_ops(graph: tf.Graph) -> Set[str]:
    """Returns the names of the ops that nothing needs but targets that were given up.

    Args:
        graph: The graph.
    """
    targets = graph_state(graph).retired
    if not targets:
        return set()
    own = own_ops(graph)
    # What only reads variables, and nothing reads, TensorFlow makes behind each assignment.
    ends = [op for op in graph.get_operations()
            if op.name not in targets and op.type not in COPIES and op not in own
            and own.issuperset(op._control_outputs)  # pylint: disable=protected-access
            and all(own.issuperset(output.consumers()) for output in op.outputs)]
    needed = set(upstream(ends, control_inputs=True))
    return {op.name for op in graph.get_operations() if op not in needed}


def refuse_retired(tables: Iterable[Rows], retired: Set[str]) -> None:
    """Makes the updates of variables that are tables now fail, which nothing is to run.

    Args:
        tables: The tables' rows.
        retired: From `retired_ops`.
    """
    for rows in tables:
        variable = rows.op(rows.plan.name)
        for op in variable.outputs[0].consumers():
            if op.name in retired and op.type not in COPIES:
                text = "the variable {} is the table {}, and {} is of a training step that the " \
                    "program gave up when it made another one. Make all training steps before " \
                    "the first run that trains.".format(rows.plan.name, rows.plan.table, op.name)
                refuse(op, text)
