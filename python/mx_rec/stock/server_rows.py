"""Puts ops of a table on parameter servers in the place of the ops of one variable.

    gather --> ids checked --> MxRecDistinctSplit --> MxRecPull on each server --> MxRecStitch
    gradients of rows --> MxRecReduce, by the lookup's keys --> MxRecPush on each server; other
    gradients have a MxRecDistinctSplit of their own

The graph pass joins the pulls, and the pushes by one optimizer, of all variables.

What TensorFlow has between them stays. Lookups make no rows: keys without one read as what theirs
would start with. Updates make them.
"""

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.cluster.lookups import Found, look_up
from mx_rec.cluster.updates import Rows as Gradients
from mx_rec.cluster.updates import push
from mx_rec.core.table import Table
from mx_rec.edits.upstream import downstream, upstream
from mx_rec.edits.wiring import in_its_place, in_place_of, on_device, replace_change
from mx_rec.ops.optimizers import PUSH, optimizer_named
from mx_rec.stock import updates as forms
from mx_rec.stock.planned import StockVariable
from mx_rec.stock.rows import Rows, optimizer_step, sums_of
from mx_rec.stock.servers import Servers
from mx_rec.tensorflow.names import resources


class ServerRows(Rows):
    """The rows of one variable, which become those of a table on parameter servers.

    Args:
        graph: The graph.
        plan: What was planned for the variable.
        table: Its table.
        servers: Where it is.

    Attributes:
        lookups: The ops that give rows.
        found: What the lookups in the place of gathers found, by the names of these.
    """

    def __init__(self, graph: tf.Graph, plan: StockVariable, table: Table,
                 servers: Servers) -> None:
        super().__init__(graph, plan, table)
        self.device = servers.worker
        self.lookups = []  # type: List[tf.Operation]
        self.found = {}  # type: Dict[str, Found]
        self._last = None  # type: Any

    def look_up(self, op: tf.Operation, trains: bool) -> List[tf.Tensor]:
        """Replaces a gather; it makes no rows."""
        name = op.name
        made = super().look_up(op, False)
        self.found[name] = self._last
        return made

    def is_ready(self) -> tf.Tensor:
        """Returns whether all parts of the table can be used."""
        states = [one.is_initialized for one in _resources_of(self.table)]
        return tf.reduce_all(tf.stack(states), name="is_initialized")

    def changes(self) -> Set[tf.Operation]:
        """Returns the pushes of the graph: servers find tables by their names."""
        return {op for op in self.graph.get_operations() if op.type == PUSH}

    def _find(self, ids: tf.Tensor) -> tf.Tensor:
        self._last = look_up([self.table], [ids], False, False, 0, False, is_initial=True)
        rows = self._last.embeddings()[0]
        self.lookups.append(rows.op)
        return rows


# The attribute of ops that do nothing but wait for the updates of a variable on all parameter
# servers: the name of the variable. The rule of the graph pass that joins updates reads it
# (tf_ops/src/graph/updates.rs).
_UPDATE_OF = "_mx_rec_update_of"


class _Update(NamedTuple):
    """A sparse update.

    Attributes:
        rows: Its variable.
        step: The update as it was planned.
        waits: What the op in its place waits for.
    """

    rows: ServerRows
    step: forms.Step
    waits: List[tf.Operation]


def update_together(graph: tf.Graph, variables: Sequence[ServerRows]) -> None:
    """Replaces the sparse updates of variables by updates on parameter servers.

    Args:
        graph: The graph.
        variables: The variables, all on the same servers.
    """
    together = OrderedDict()  # type: Dict[Tuple[str, int], List[_Update]]
    for rows in variables:
        # Nothing of what TensorFlow has between these and the update runs.
        first = [tensor for piece in rows.plan.gradients or ()
                 for tensor in [rows.tensor(piece.grad)] + list(rows.found[piece.gather].keys)]
        for at, step in enumerate(rows.plan.updates):
            # A push that changes all rows is a step of a table: one of all parts of a variable,
            # whose numbers are the same (stock.parts.with_parts).
            is_whole = optimizer_named(step.kind).changes_all_rows
            name = rows.table.table_name if is_whole else rows.plan.name
            together.setdefault((name, at), []).append(
                _Update(rows, step, rows.waits_of(step, first)))
    for group in together.values():
        _replace(graph, group)


def _replace(graph: tf.Graph, group: Sequence[_Update]) -> None:
    """Replaces updates of a table by one on each server; the graph pass joins those of several."""
    first = group[0]
    ops = [op for one in group for op in one.rows.ops(one.step)]
    gates = [one.rows.op(name) for one in group for name in one.step.gates]
    # Some may have been replaced since they were noted.
    waits = [in_its_place(wait) for one in group for wait in one.waits]
    with in_place_of(ops[0], waits, [op.name for op in ops], device=first.rows.device):
        step = optimizer_step(first.step, first.rows.numbers(first.step), first.rows.initial())
        pushes = push(step, [[rows for one in group for rows in _gradients(one.rows, one.step)]],
                      creates=True)
        with graph.control_dependencies(pushes):
            update = tf.no_op(name="update")
    for op in ops:
        replace_change(op, update, ops)
    name = attr_value_pb2.AttrValue(s=tf.compat.as_bytes(first.rows.plan.name))
    for op in [update] + gates:
        op._set_attr(_UPDATE_OF, name)  # pylint: disable=protected-access


def _gradients(rows: ServerRows, step: forms.Step) -> Iterable[Gradients]:
    """Adds the ops that sum the gradients of an update by key, as they are pushed."""
    variable = rows.table.variable.op.outputs[0]
    pieces = rows.plan.gradients
    if not pieces:
        keys, grad = rows.gradient(step)
        yield variable, tf.cast(keys, tf.int64), grad
        return
    # By the keys of the lookup, whose request is where its rows came from.
    found = [(rows.found[piece.gather].keys[0], rows.found[piece.gather].places[0])
             for piece in pieces]
    sums = sums_of(rows.plan, step, pieces, [rows.tensor(piece.grad) for piece in pieces], found)
    for (keys, _), grad in zip(found, sums):
        yield variable, keys, grad


def bring_to_worker(variables: Sequence[ServerRows], servers: Servers) -> None:
    """Moves what TensorFlow computes beside variables to the worker: their rows are there now.

    TensorFlow sums the gradients of a variable where the variable is, and copies what it has
    gathered there. Ops with a state, and what an optimizer does with its own numbers, stay.

    Args:
        variables: The variables that became tables.
        servers: Where these are.
    """
    names = {name for rows in variables for name in
             [rows.plan.name] + [slot.variable for slot in rows.plan.slots]}
    gone = {tf.compat.as_bytes("loc:@" + name) for name in names}
    spec = tf.DeviceSpec.from_string(servers.worker)
    worker = tf.DeviceSpec(job=spec.job, task=spec.task).to_string()
    updates = [rows.op(output[0]) for rows in variables for step in rows.plan.updates
               for output in step.last]
    lookups = [op for rows in variables for op in rows.lookups]
    for op in downstream(lookups).union(upstream(updates)):
        # pylint: disable=protected-access
        if "_class" not in op.node_def.attr or op.op_def.is_stateful \
                or not gone.issuperset(op.colocation_groups()):
            continue
        if any(tensor.dtype._is_ref_dtype for tensor in list(op.inputs) + list(op.outputs)):
            continue
        op._clear_attr("_class")
        op._set_device(worker)


def clear_parts(table: Table, servers: Servers) -> tf.Operation:
    """Adds the op that empties a table on all of its servers, in the default graph."""
    inits = [one.create for one in _resources_of(table)]
    with on_device(servers.worker), tf.control_dependencies(inits), \
            tf.compat.v1.name_scope(table.variable.op.name + "//table/"):
        return tf.no_op(name="initialize")


def _resources_of(table: Table) -> List[Any]:
    """Returns what TensorFlow knows of the parts of a table of the default graph."""
    # The op of the table may have another name than its scope: the variable has that.
    scope = table.variable.op.inputs[0].op.name.rpartition("/")[0]
    found = [one for one in resources.shared_resources()
             if one.handle.name.startswith(scope + "/part_")]
    assert found, scope
    return found


def refuse_start(table: Table, slot: Any, servers: Servers) -> tf.Operation:
    """Adds the op in the place of the initializer of an optimizer's variable: it fails.

    Args:
        table: The table.
        slot: The slot (stock.planned.Slot).
        servers: Where the table is.
    """
    with tf.init_scope(), on_device(servers.worker):
        text = "the variable {!r} of an optimizer is a slot of the table {!r} on parameter " \
            "servers, which starts with its rows: run the initializer of all variables.".format(
                slot.variable, table.table_name)
        return tf.raw_ops.Assert(condition=tf.constant(False), data=[tf.constant(text)])
