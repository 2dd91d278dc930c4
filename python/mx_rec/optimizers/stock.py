"""Optimizers of TensorFlow and of scripts on a table's variable: how an update of it is made."""

import inspect
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.base.log import warn_once
from mx_rec.edits.upstream import upstream
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.optimizers.base import (RULES, adopt, apply_rows, is_offsets, rows_of_offsets,
                                    rows_of_variable)
from mx_rec.optimizers.rows_variable import RowsVariable
from mx_rec.optimizers.user_written import (RowsProcessor, UpdatedRows, find_slot,
                                            initial_of_initializer, initial_of_tensor, make_slot,
                                            use_resource)
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import (CLUSTER_TABLE_OP, TABLE_OP, TableVariable, described_name,
                                         is_table_variable, own_variables, refuse_shared,
                                         table_op_of, table_variable)

_Pair = Tuple[Any, Any]

_TABLE_OPS = (TABLE_OP, CLUSTER_TABLE_OP)


class TableProcessor:
    """What an optimizer of TensorFlow does with the variable of a table.

    Args:
        variable: The variable.
        ordinary: What TensorFlow has for variables, which says what other optimizers cannot do.
    """

    def __init__(self, variable: TableVariable, ordinary: Any) -> None:
        self._variable = variable
        self._ordinary = ordinary

    def __str__(self) -> str:
        return "<TableProcessor({})>".format(self._variable)

    def target(self) -> tf.Tensor:
        """Returns the tensor that gradients are taken with respect to."""
        return self._ordinary.target()

    def update_op(self, optimizer: Any, grad: Any) -> tf.Operation:
        """Adds the op that updates the rows of a gradient.

        Args:
            optimizer: The optimizer, with its numbers prepared.
            grad: IndexedSlices, its values (n, dim) float32 and its indices (n) int64 offsets.

        Returns:
            The op.

        Raises:
            TypeError: If the gradient is a dense tensor.
            ValueError: If the offsets exist only inside of a branch, loop or function that this
                call is outside of.
            NotImplementedError: If the optimizer is not one whose rule is known.
        """
        rule = RULES.get(type(optimizer))
        if rule is None:
            return self._ordinary.update_op(optimizer, grad)
        step = rule.step(optimizer)
        # TensorFlow puts updates beside their variable, which for a table the device says.
        with tf.compat.v1.colocate_with(None, ignore_existing=True), tf.device("/cpu:0"):
            return apply_rows(step, [rows_of_variable(grad, self._variable)])


def patched_processor(stock: Callable[[Any], Any], v: Any) -> Any:
    """The function by which an optimizer finds how to update a variable."""
    if isinstance(v, UpdatedRows):
        return RowsProcessor(v)
    if isinstance(v, TableVariable):
        return TableProcessor(v, stock(v))
    return stock(v)


def patched_slot(stock: Callable[..., Any], self: Any, var: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that creates a slot: those of a table live with its rows."""
    if isinstance(var, TableVariable) and type(self) in RULES:
        return None
    if isinstance(var, UpdatedRows):
        given = inspect.signature(stock).bind(self, var, *args, **kwargs).arguments
        name = given["slot_name"]
        initial = 0.0
        if "val" in given:
            initial = initial_of_tensor(var, name, given["val"])
        elif "initializer" in given:
            initial = initial_of_initializer(var, name, given["initializer"], given["shape"],
                                             given["dtype"])
        return make_slot(self, var, name, initial)
    return stock(self, var, *args, **kwargs)


def patched_get_slot(stock: Callable[..., Any], self: Any, var: Any, name: str) -> Any:
    """Optimizer.get_slot, which knows the slots of tables."""
    if isinstance(var, (RowsVariable, TableVariable)):
        return find_slot(self, var, name)
    return stock(self, var, name)


def patched_apply_gradients(stock: Callable[..., tf.Operation], self: Any, grads_and_vars: Any,
                            *args: Any, **kwargs: Any) -> tf.Operation:
    """Optimizer.apply_gradients, which gives each row of a table one update.

    Optimizers whose rule is not known see the rows of the batch in the place of a table's
    variable. Calls without tables go through unchanged.
    """
    pairs = tuple(grads_and_vars)
    rule = RULES.get(type(self))
    if rule is not None:
        tables = [(grad, variable) for grad, variable in pairs
                  if grad is not None and is_table_variable(variable)]
        for grad, variable in tables:
            _check(self, grad, variable)
        for _, variable in tables:
            adopt(variable.op, self, optimizer_named(rule.name(self)))
        pairs = _by_variable(pairs)
    else:
        pairs = _with_rows(self, pairs)
    return stock(self, pairs, *args, **kwargs)


def _with_rows(optimizer: Any, pairs: Sequence[_Pair]) -> Sequence[_Pair]:
    """Returns pairs that have UpdatedRows in the place of a table's variable or offsets."""
    found = []  # type: List[_Pair]
    for grad, variable in pairs:
        if grad is not None and is_table_variable(variable):
            _check(optimizer, grad, variable)
        elif grad is not None and is_offsets(variable):
            # With dynamic expansion, tables are updated by what their lookups give.
            handle, offsets, values = rows_of_offsets(grad, variable, optimizer,
                                                      _is_by_address())
            grad = tf.IndexedSlices(values, offsets)
            variable = table_variable(table_op_of(handle))
        found.append((grad, variable))
    joined = _by_variable(found)
    return [(grad, UpdatedRows(variable.op, use_resource(optimizer, variable.op))
             if grad is not None and isinstance(variable, TableVariable) else variable)
            for grad, variable in joined]


def _is_by_address() -> bool:
    return bool(Settings.get_instance().use_dynamic_expansion)


def _check(optimizer: Any, grad: Any, variable: Any) -> None:
    """Checks a pair of a table, and warns where the rule is not TensorFlow's for variables."""
    name = described_name(variable.op)
    refuse_shared(variable.op, "the optimizer {}, which is not one of mx_rec.optimizers,".format(
        type(optimizer).__name__))
    if _is_by_address():
        raise ValueError(
            "The dynamic expansion mode is not compatible with the optimizer {}, which cannot "
            "update the table {!r}: {}.".format(
                type(optimizer).__name__, name,
                "use an optimizer of a _by_addr module" if type(optimizer) in RULES else
                "give it pairs of the gradient of the looked-up rows and their offsets"))
    rows_of_variable(grad, variable)
    if type(optimizer) is tf.compat.v1.train.AdamOptimizer:
        warn_once("AdamOptimizer updates the table %r lazily: moments decay in the rows of a batch "
                  "alone, as with mx_rec.optimizers.lazy_adam; those of an ordinary variable decay "
                  "in all rows. mx_rec.optimizers.adam moves all rows of a table.", name)


def _tables_of(offsets: tf.Tensor) -> List[str]:
    """Returns the names of the tables whose rows a gradient's indices are, none of variables."""
    for op in upstream([offsets]):
        tables = {one for one in map(table_op_of, op.inputs) if one.type in _TABLE_OPS} \
            if op.type.startswith("MxRec") else None
        if tables:
            return sorted(map(described_name, tables))
    return []


def _refuse_dense(slices: tf.IndexedSlices, dtype: Optional[tf.DType] = None,
                  name: Optional[str] = None, as_ref: bool = False) -> Any:
    """Says that the gradient of a table is no tensor; TensorFlow converts that of a variable."""
    del dtype, name, as_ref
    tables = _tables_of(slices.indices) if slices.dense_shape is None else []
    if not tables:
        return NotImplemented
    raise NotImplementedError(
        "the gradient of the table {} was to become a dense tensor. It has the rows of a batch "
        "alone, and optimizers that work on a whole variable or gradient, such as contrib's "
        "AddSignOptimizer, PowerSignOptimizer and LossScaleOptimizer, cannot train a table: use an "
        "optimizer of mx_rec.optimizers, and scale the 'values' of gradients "
        "by hand.".format(", ".join(map(repr, tables))))


def _by_variable(pairs: Sequence[_Pair]) -> List[_Pair]:
    """Joins the gradients of each table, so that every row gets one update."""
    parts = OrderedDict()  # type: Dict[Any, List[Any]]
    joined = []  # type: List[_Pair]
    for grad, variable in pairs:
        if grad is None or not is_table_variable(variable):
            joined.append((grad, variable))
            continue
        own = own_variables([variable])[0]
        if own not in parts:
            joined.append((parts.setdefault(own, []), own))
        parts[own].append(grad)
    return [(_join(grad) if isinstance(grad, list) else grad, variable)
            for grad, variable in joined]


def _join(grads: List[tf.IndexedSlices]) -> tf.IndexedSlices:
    if len(grads) == 1:
        return grads[0]
    return tf.IndexedSlices(tf.concat([grad.values for grad in grads], 0),
                            tf.concat([grad.indices for grad in grads], 0))


# Before TensorFlow's own, which has the priority 100.
tf.register_tensor_conversion_function(tf.IndexedSlices, _refuse_dense, 50)
