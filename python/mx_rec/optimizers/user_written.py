"""Optimizers that scripts write, on tables: their sparse updates run on the rows of the batch.

    offsets, gradients --MxRecReadRows--> the distinct rows' embeddings and slots
        each of them is a variable of its own for the length of the update
    _apply_sparse and its like                                  the optimizer's own ops
    --MxRecWriteRows--> the rows
"""

import re
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.edits.replacing import kept
from mx_rec.ops import library
from mx_rec.optimizers.base import adopt, slot_owners
from mx_rec.optimizers.row_checks import RowChecks, runs_before
from mx_rec.optimizers.rows_variable import Held, RowsVariable
from mx_rec.state.table_variable import described_name
from mx_rec.tensorflow.names import tensor_util

# TensorFlow's methods that update a variable by rows, for reference and for resource variables.
_REFERENCE = ("_apply_sparse_duplicate_indices", "_apply_sparse")
_RESOURCE = ("_resource_apply_sparse_duplicate_indices", "_resource_apply_sparse")

# Attribute of an op that makes a table: RowsSlot by (optimizer, name of the slot).
_SLOTS = "_mx_rec_slots_of_optimizers"

# The name by which a resource is made anew each time its op runs, in TensorFlow.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"

_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")


class RowsSlot(RowsVariable):
    """A slot of a user-written optimizer, which lives with the rows of a table.

    Attributes:
        slot_name: Its name in checkpoints, `<optimizer>_<slot>`.
        initial: What it starts at in every row, a float.
    """

    def __init__(self, owner: RowsVariable, name: str, slot_name: str, initial: float) -> None:
        super().__init__(owner.table_op, "the slot {!r}".format(name), "/" + slot_name,
                         owner.use_resource)
        self.slot_name = slot_name
        self.initial = initial


class UpdatedRows(RowsVariable):
    """The embeddings of the rows that one call of apply_gradients changes.

    Attributes:
        slots: The slots that the call has asked for.
    """

    def __init__(self, op: tf.Operation, use_resource: bool) -> None:
        super().__init__(op, "the variable", "", use_resource)
        self.slots = []  # type: List[RowsSlot]


class RowsProcessor:
    """What TensorFlow's Optimizer does with UpdatedRows.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: UpdatedRows) -> None:
        self._rows = rows

    def target(self) -> tf.Tensor:
        """Returns the tensor that gradients are taken with respect to."""
        return self._rows.table_op.outputs[0]

    def update_op(self, optimizer: Any, grad: tf.IndexedSlices) -> tf.Operation:
        """Adds one update of the table's rows by the optimizer's own method.

        Args:
            optimizer: The optimizer.
            grad: IndexedSlices of the rows' gradients (n, dim) and their offsets (n).

        Returns:
            The op that runs after the rows are written.

        Raises:
            NotImplementedError: If the method does anything else than to gather and scatter rows.
        """
        # TensorFlow puts updates beside their variable, which for a table the device says.
        with tf.compat.v1.colocate_with(None, ignore_existing=True), tf.device("/cpu:0"):
            return _update(optimizer, grad, self._rows)


def use_resource(optimizer: Any, table: tf.Operation) -> bool:
    """Returns whether an optimizer updates resource variables more specifically than others.

    Args:
        optimizer: An optimizer.
        table: The op that makes the table that it is to update.

    Raises:
        NotImplementedError: If it defines no sparse update.
    """
    def depth(methods: Tuple[str, ...]) -> int:
        classes = type(optimizer).__mro__
        found = [at for at, one in enumerate(classes) if any(name in vars(one) for name in methods)]
        return min(found)

    stock = type(optimizer).__mro__.index(tf.compat.v1.train.Optimizer)
    reference, resource = depth(_REFERENCE), depth(_RESOURCE)
    if min(reference, resource) >= stock:
        raise NotImplementedError(
            "the optimizer {!r} ({}) cannot update the table {!r}: it defines none of {}.".format(
                optimizer.get_name(), type(optimizer).__name__, described_name(table),
                ", ".join(_REFERENCE + _RESOURCE)))
    return resource < reference


def make_slot(optimizer: Any, rows: UpdatedRows, name: str, initial: float) -> RowsSlot:
    """Finds or makes a slot of an optimizer in the rows of a table.

    Args:
        optimizer: The optimizer.
        rows: What it was given for the table.
        name: Its name of the slot.
        initial: What the slot starts at in every row.

    Returns:
        The slot.

    Raises:
        NotImplementedError: If it is made in the midst of an update.
    """
    slots = kept(rows.table_op, _SLOTS)
    slot = slots.get((optimizer, name))
    if slot is None:
        if rows.held is not None:
            raise NotImplementedError(
                "the optimizer {!r} makes the slot {!r} of the table {!r} in its update. Slots of "
                "a table are made in _create_slots.".format(
                    optimizer.get_name(), name, described_name(rows.table_op)))
        slot = RowsSlot(rows, name, _free_name(optimizer, rows.table_op, name), initial)
        slots[optimizer, name] = slot
    if slot not in rows.slots:
        rows.slots.append(slot)
    return slot


def find_slot(optimizer: Any, variable: Any, name: str) -> Optional[RowsSlot]:
    """Returns the slot of an optimizer in the rows of a table, None without one.

    Args:
        optimizer: The optimizer.
        variable: The variable of a table, or what an update has in its place.
        name: Its name of the slot.
    """
    table = variable.table_op if isinstance(variable, RowsVariable) else variable.op
    return kept(table, _SLOTS).get((optimizer, name))


def initial_of_tensor(rows: UpdatedRows, name: str, value: Any) -> float:
    """Returns what a slot starts at that is made with a tensor.

    Args:
        rows: What the optimizer was given for the table.
        name: Its name of the slot.
        value: The tensor, of the variable's shape.

    Raises:
        NotImplementedError: If it is no constant of one number, or of another type or shape.
    """
    value = tf.convert_to_tensor(value)
    if value.dtype.base_dtype != tf.float32 or value.shape.as_list() != rows.shape.as_list():
        raise NotImplementedError(
            "the slot {!r} of the table {!r} is {} of shape {}. Slots of a table live with its "
            "rows: they are float32 and have the shape of the variable.".format(
                name, described_name(rows.table_op), value.dtype.name, value.shape))
    values = tensor_util.constant_value(value)
    if values is None or np.any(values != values.flat[0]) or not np.isfinite(values.flat[0]):
        raise NotImplementedError(
            "the slot {!r} of the table {!r} does not start at one constant: {}. Rows are made "
            "while the model trains, and a slot starts at the same finite number in each of "
            "them.".format(name, described_name(rows.table_op), value))
    return float(values.flat[0])


def initial_of_initializer(rows: UpdatedRows, name: str, initializer: Any, shape: Any,
                           dtype: Any) -> float:
    """As `initial_of_tensor`, of a slot that is made with an initializer, a shape and a type."""
    shape = tf.TensorShape(shape)
    with tf.Graph().as_default():
        if isinstance(initializer, type):
            initializer = initializer()
        try:
            value = initializer(shape.as_list(), dtype=dtype)
        except TypeError:
            value = initializer()
        return initial_of_tensor(rows, name, value)


def slot_names_of(write: tf.Operation) -> List[str]:
    """Returns the names of the slots that an op of type MxRecWriteRows writes."""
    names = list(write.inputs)[2:2 + write.get_attr("N")]
    values = [tensor_util.constant_value(name) for name in names]
    texts = [value.tobytes().decode("utf-8") for value in values if value is not None]
    return [text for text in texts if text]


def _free_name(optimizer: Any, table: tf.Operation, name: str) -> str:
    """Returns a name for a slot that no other optimizer of the graph has in this table."""
    # Scripts number the names of a CustomizedOptimizer by its instances in the process.
    base = getattr(optimizer, "base_name", "") or optimizer.get_name()
    wanted = _NO_NAME.sub("_", "{}_{}".format(base, name)).lstrip(".")[:200]
    owners = slot_owners(table)
    found, number = wanted, 0
    while found in owners:
        number += 1
        found = "{}_{}".format(wanted, number)
    owners[found] = optimizer
    return found


class _Begun(NamedTuple):
    """One field of the rows while an update is built.

    Attributes:
        variable: What the optimizer sees.
        old: The rows as they were read, (u, dim).
        end: Gives the rows as they are after the update, and ops that free what held them. It is
            told whether no op of the update can run later.
    """

    variable: RowsVariable
    old: tf.Tensor
    end: Callable[[bool], Tuple[tf.Tensor, List[tf.Operation]]]


def _update(optimizer: Any, grad: tf.IndexedSlices, rows: UpdatedRows) -> tf.Operation:
    """Adds one update."""
    table = rows.table_op
    slots = list(rows.slots)
    slots.extend(slot for (owner, _), slot in kept(table, _SLOTS).items()
                 if owner is optimizer and slot not in slots)
    handle = table.outputs[1]
    names = [""] + [slot.slot_name for slot in slots]
    with tf.compat.v1.name_scope("fields"):
        fields = [tf.constant(np.frombuffer(name.encode("utf-8"), np.uint8)) for name in names]
        initial = tf.constant([0.0] + [slot.initial for slot in slots], tf.float32)
    read = library().mx_rec_read_rows(handle, grad.indices, grad.values, fields, initial,
                                      name="read")
    dim = rows.shape[-1]
    read.gradients.set_shape([None, dim])
    variables = [rows] + slots
    begun = []  # type: List[_Begun]
    try:
        for variable, old in zip(variables, read.values):
            old.set_shape([None, dim])
            variable.use_resource = rows.use_resource
            begin = _begin_resource if rows.use_resource else _begin_reference
            begun.append(begin(variable, old))
        done = _run(optimizer, read.gradients, read.indices, rows)
        uses = RowChecks(optimizer, read.indices, variables).run()
    finally:
        for variable in variables:
            variable.held = None
    # Ops that the update does not wait for may run after the variables have ended.
    is_whole = runs_before(done, uses, read.rows.op)
    with tf.control_dependencies([done]):
        ended = [one.end(is_whole) for one in begun]
        write = library().mx_rec_write_rows(handle, read.rows, fields, initial,
                                            [one.old for one in begun], [new for new, _ in ended],
                                            name="write")
    adopt(table, optimizer, None, [slot.slot_name for slot in slots])
    last = [op for _, ops in ended for op in ops]
    return tf.group(write.op, *last) if last else write.op


def _run(optimizer: Any, values: tf.Tensor, indices: tf.Tensor,
         rows: UpdatedRows) -> tf.Operation:
    """Adds the ops of the optimizer's own method, and returns one that waits for them."""
    # pylint: disable=protected-access
    if rows.use_resource:
        done = optimizer._resource_apply_sparse_duplicate_indices(values, rows, indices)
    else:
        done = optimizer._apply_sparse_duplicate_indices(tf.IndexedSlices(values, indices), rows)
    if done is None:
        raise TypeError("the update of the optimizer {!r} ({}) for {} returned None and not an "
                        "op.".format(optimizer.get_name(), type(optimizer).__name__,
                                     rows.described))
    return tf.group(done)


def _begin_reference(variable: RowsVariable, old: tf.Tensor) -> _Begun:
    """Makes a temporary variable that holds rows until the update ends."""
    graph = tf.compat.v1.get_default_graph()
    # A name of its own: an imported graph has other names of ops.
    name = graph.unique_name("rows", mark_as_used=False)
    temporary = tf.raw_ops.TemporaryVariable(
        shape=[0, variable.shape[-1]], dtype=tf.float32, var_name=name, name="rows")
    reference = tf.raw_ops.Assign(ref=temporary, value=old, validate_shape=False)
    reference.set_shape(old.shape)
    variable.held = Held(reference, tf.identity(reference, name="rows/read"))

    def end(is_whole: bool) -> Tuple[tf.Tensor, List[tf.Operation]]:
        if is_whole:
            return tf.raw_ops.DestroyTemporaryVariable(ref=reference, var_name=name), []
        # It ends with the step, and until then others may still write to it.
        return tf.raw_ops.DeepCopy(x=tf.identity(reference)), []

    return _Begun(variable, old, end)


def _begin_resource(variable: RowsVariable, old: tf.Tensor) -> _Begun:
    """Makes a resource variable that holds rows until the update ends."""
    made = tf.raw_ops.VarHandleOp(
        dtype=tf.float32, shape=[None, variable.shape[-1]], shared_name=_ANONYMOUS, name="rows")
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=made, value=old)]):
        handle = tf.identity(made)
    variable.held = Held(handle, None)

    def end(is_whole: bool) -> Tuple[tf.Tensor, List[tf.Operation]]:
        del is_whole
        new = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        with tf.control_dependencies([new]):
            return new, [tf.raw_ops.DestroyResourceOp(resource=made)]

    return _Begun(variable, old, end)
