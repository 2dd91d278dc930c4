"""What all optimizers for tables share: finding the table, applying, advancing the step."""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec.cluster.updates import Rows, by_table, joined, push
from mx_rec.edits.replacing import kept
from mx_rec.ops.optimizers import (Gradients, Optimizer, OptimizerStep, optimizer_named,
                                    update)
from mx_rec.optimizers.customized import CustomizedOptimizer  # noqa: F401  scripts import it here
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import (CLUSTER_TABLE_OP, TABLE_OP, described_name,
                                         is_table_variable, own_variables, table_op_of)
from mx_rec.tensorflow.names import control_flow_util
from mx_rec.tensorflow.versions import IS_1

# The ops whose outputs are, in their first half, the rows of training lookups.
_OFFSET_OPS = ("MxRecIdOffset", "MxRecAdmit")

# Attribute of an op that makes a table, see slot_owners.
_OWNERS = "_mx_rec_slot_owners"

_Pair = Tuple[Any, Any]
_train = tf.compat.v1.train


class TableOptimizer(tf.compat.v1.train.Optimizer):
    """Base of the optimizers for tables.

    A subclass says which optimizer of the plugin it is. One that also derives from an optimizer of
    TensorFlow has its numbers, and passes ordinary variables on to it; others make theirs into
    tensors in `_prepare_numbers`, and refuse such variables.

    Attributes:
        by_address: Whether pairs are (gradient of the looked-up rows, their offsets), for tables
            with dynamic expansion.
        dense_optimizer: The class of TensorFlow that updates ordinary variables, or None.
    """

    by_address = False
    dense_optimizer = None  # type: Optional[type]

    @property
    def rule(self) -> str:
        """Name of the optimizer of the plugin."""
        return RULES[self.dense_optimizer].name(self)

    def compute_gradients(self, loss: tf.Tensor, var_list: Any = None, *args: Any,
                          **kwargs: Any) -> List[_Pair]:
        """Computes gradients of `loss`, as TensorFlow's method of that name.

        Args:
            loss: The loss, a float scalar.
            var_list: Table variables (by address: looked-up rows) and ordinary variables; None is
                all tables of the present graph, not the trainable variables.
            *args: As TensorFlow's.
            **kwargs: As TensorFlow's.

        Returns:
            Pairs (gradient, variable). A table's gradient is an IndexedSlices with values (n, dim)
            float32 and indices (n) int64, the offsets of the rows; None if the loss does not
            depend on the table.

        Raises:
            ValueError: If there is nothing to optimise.
        """
        if var_list is None:
            name = Settings.get_instance().train_params_config \
                .ascend_global_hashtable_collection
            var_list = own_variables(tf.compat.v1.get_collection(name))
            if not var_list:
                raise ValueError("No variables to optimize: the graph has no table.")
        return super().compute_gradients(loss, var_list, *args, **kwargs)

    def apply_gradients(self, grads_and_vars: Iterable[_Pair], global_step: Any = None,
                        name: Optional[str] = None) -> tf.Operation:
        """Adds the ops that update tables (and, where supported, ordinary variables).

        Args:
            grads_and_vars: Pairs of a gradient and what it belongs to: (IndexedSlices, table
                variable), or by address (float32 tensor (n, dim), offsets (n) int64), or a pair
                with an ordinary variable. Pairs with the gradient None are skipped. Rows that occur
                several times get the sum of their gradients, in one update.
            global_step: A variable that is advanced by one after the updates, or None.
            name: Name of the returned op; default: the optimizer's name.

        Returns:
            The op that does all of it.

        Raises:
            ValueError: If there are no pairs, no gradients, pairs of a table with dynamic
                expansion meet an optimizer without, or the other way round, or offsets exist only
                inside of a branch, loop or function that this call is outside of.
            TypeError: If a table's gradient is not what it should be.
            NotImplementedError: If the optimizer does not support ordinary variables.
        """
        pairs = tuple(grads_and_vars)
        if not pairs:
            raise ValueError("No variables provided.")
        tables = []  # type: List[Rows]
        dense = []  # type: List[_Pair]
        for grad, variable in pairs:
            if grad is None:
                continue
            rows = self._rows_of(grad, variable)
            if rows is None:
                self._check_dense(variable)
                dense.append((grad, variable))
            else:
                tables.append(rows)
        if not tables and not dense:
            raise ValueError("No gradients provided for any variable: {}.".format(
                [str(variable) for _, variable in pairs]))
        if not tables:
            return super().apply_gradients(dense, global_step=global_step, name=name)
        return self._apply_all(tables, dense, global_step, name)

    def _apply_all(self, tables: List[Rows], dense: List[_Pair], global_step: Any,
                   name: Optional[str]) -> tf.Operation:
        with tf.init_scope():
            self._create_state()
        with tf.compat.v1.name_scope(name or self.get_name()) as scope:
            updates = []  # type: List[tf.Operation]
            if dense:
                updates.append(super().apply_gradients(dense, name="dense"))
            step = optimizer_named(self.rule).step(self._prepare_numbers())
            groups = by_table(tables)
            shared = [group for group in groups if group[0][0].op.type == CLUSTER_TABLE_OP]
            own = [group for group in groups if group[0][0].op.type != CLUSTER_TABLE_OP]
            with tf.device("/cpu:0"):
                updates.extend(apply_rows(step, group) for group in own)
                if shared:
                    updates.extend(push(step, shared))
            updates.extend(self._advance(updates))
            if global_step is None:
                done = tf.group(*updates, name=scope)
            else:
                with tf.control_dependencies([tf.group(*updates, name="update")]), \
                        tf.compat.v1.colocate_with(global_step):
                    done = tf.compat.v1.assign_add(global_step, 1, name=scope)
        if not isinstance(done, tf.Operation):
            done = done.op
        train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
        if done not in train_ops:
            train_ops.append(done)
        return done

    def _rows_of(self, grad: Any, variable: Any) -> Optional[Rows]:
        """Returns (handle, offsets, gradient) if the pair belongs to a table."""
        if is_table_variable(variable):
            rows = rows_of_variable(grad, variable)
            adopt(variable.op, self, optimizer_named(self.rule))
            return rows
        if is_offsets(variable):
            rows = rows_of_offsets(grad, variable, self, self.by_address)
            table = table_op_of(rows[0])
            if table.type == TABLE_OP:
                adopt(table, self, optimizer_named(self.rule))
            return rows
        return None

    def _check_dense(self, variable: Any) -> None:
        """Refuses an ordinary variable where it is not supported."""
        if self.dense_optimizer is None:
            raise NotImplementedError(
                "{} updates tables only, and {} is not a table. Give ordinary variables to an "
                "optimizer of TensorFlow.".format(type(self).__name__, variable))

    def _create_state(self) -> None:
        """Creates the variables that advance with every step; called in the outermost graph."""

    def _prepare_numbers(self) -> Dict[str, tf.Tensor]:
        """Returns the optimizer's numbers by name, as float32 scalars."""
        self._prepare()
        return RULES[self.dense_optimizer].numbers(self)

    def _advance(self, updates: List[tf.Operation]) -> List[tf.Operation]:
        """Adds ops that run once, after `updates`."""
        del updates
        return []


class ByAddress:
    """The form of an optimizer for tables with dynamic expansion; it computes what the other does.

    It is given pairs (gradient of looked-up rows, their offsets). The rows are in the collection
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB, the offsets in ASCEND_SPARSE_LOOKUP_ID_OFFSET.
    """

    by_address = True


def rows_of_variable(grad: Any, variable: Any) -> Rows:
    """Returns (handle, offsets, gradient) of a pair with the variable of a table.

    Of a table on parameter servers these are the variable's tensor, keys and gradients by key.

    Args:
        grad: IndexedSlices with values (n, dim) and indices (n), the offsets or keys.
        variable: The variable.

    Raises:
        TypeError: If the gradient is anything else.
        ValueError: If its offsets exist only inside of a branch, loop or function that this call is
            outside of.
    """
    if not isinstance(grad, tf.IndexedSlices):
        raise TypeError("the gradient of the table {!r} should be an IndexedSlices, as "
                        "tf.gradients makes it, but is {}".format(variable.op.name, grad))
    _check_place(variable.op, grad.indices)
    if variable.op.type == CLUSTER_TABLE_OP:
        return variable.op.outputs[0], grad.indices, grad.values
    return variable.op.outputs[1], grad.indices, grad.values


def is_offsets(value: Any) -> bool:
    """Returns whether `value` is the offsets that a training lookup gives."""
    if not isinstance(value, tf.Tensor) or value.op.type not in _OFFSET_OPS:
        return False
    return value.value_index < len(value.op.outputs) // 2


def rows_of_offsets(grad: Any, offsets: tf.Tensor, optimizer: Any, by_address: bool) -> Rows:
    """Returns (handle, offsets, gradient) of a pair with offsets of a lookup.

    Args:
        grad: The gradient of the looked-up rows, float32 (n, dim).
        offsets: Their offsets (n).
        optimizer: What is to update them.
        by_address: Whether it can.

    Raises:
        TypeError: If the gradient is anything else.
        ValueError: If the optimizer cannot, or the offsets exist only inside of a branch, loop or
            function that this call is outside of.
    """
    if not by_address:
        raise ValueError("The dynamic expansion mode is not compatible with the optimizer "
                         "{}: it updates table variables, not offsets. Use its _by_addr "
                         "form.".format(type(optimizer).__name__))
    if isinstance(grad, tf.IndexedSlices):
        raise TypeError("the gradient of looked-up rows should be a Tensor, but is "
                        "{}".format(grad))
    handle = offsets.op.inputs[0]
    _check_place(table_op_of(handle), offsets)
    return handle, offsets, tf.convert_to_tensor(grad)


def adopt(op: tf.Operation, optimizer: tf.compat.v1.train.Optimizer, by: Optional[Optimizer],
          slot_names: Sequence[str] = ()) -> None:
    """Notes at the objects of the table that `op` makes that an optimizer updates its rows.

    Args:
        op: The op that makes the table.
        optimizer: The optimizer.
        by: Its rule, whose slots all optimizers by it share; None of a user-written one.
        slot_names: Of a user-written one the names of its slots, as in checkpoints.

    Raises:
        ValueError: If a slot is that of a user-written optimizer of this graph.
    """
    owners = slot_owners(op)
    for name in () if by is None else by.slot_names:
        owner = owners.setdefault(name, None)
        if owner is not None:
            raise ValueError(
                "the optimizer {} cannot update the table {!r}: its slot {!r} is that of the "
                "optimizer {!r} ({}), which needs another name.".format(
                    type(optimizer).__name__, described_name(op), name, owner.get_name(),
                    type(owner).__name__))
    for table in graph_state(op.graph).tables.values():
        if table.variable.op is op:
            dim = table.emb_size
            table.optimizer = optimizer
            table.ext_emb_size = dim + (dim * len(slot_names) if by is None else by.floats(dim))


def slot_owners(op: tf.Operation) -> Dict[str, Any]:
    """Returns the optimizer that each slot of a table's rows belongs to.

    Args:
        op: The op that makes the table.

    Returns:
        By name of the slot, as in checkpoints, its user-written optimizer in this graph; None for a
        slot that optimizers of the package share.
    """
    return kept(op, _OWNERS)


def apply_rows(step: OptimizerStep, group: List[Rows]) -> tf.Operation:
    """Adds the op that updates the rows of one table, each of them once.

    Before the first run, the graph pass makes one op of the updates of many tables, and sums the
    gradients of ids in it.

    Args:
        step: The step of an optimizer.
        group: The gradients of one table.

    Returns:
        The op.
    """
    handle, offsets, grad = joined(group)
    return update(step, Gradients([handle], [offsets], [grad]))


def _check_place(table: tf.Operation, offsets: tf.Tensor) -> None:
    """Refuses offsets that exist only inside of a branch, a loop or a function.

    Args:
        table: The op that makes the table, or the op of its handle.
        offsets: The rows that an update is to be made for, in the present graph.

    Raises:
        ValueError: If the update would stand outside of where the offsets are.
    """
    # pylint: disable=protected-access
    graph = tf.compat.v1.get_default_graph()
    context = graph._get_control_flow_context()
    while graph is not None and graph is not offsets.graph:
        graph = getattr(graph, "outer_graph", None)
        context = graph and graph._get_control_flow_context()
    inside = control_flow_util.GetOutputContext(offsets.op)
    while context is not None and context is not inside:
        context = context.outer_context
    if graph is None or context is not inside:
        raise ValueError(
            "the gradient of the table {!r} cannot be applied here: its offsets {} exist only "
            "inside of a tf.cond, tf.while_loop or tf.function. Look the rows up outside of it, or "
            "apply their gradients inside of it too.".format(described_name(table), offsets.name))


def scalar(value: Any, name: str) -> tf.Tensor:
    """Returns a number or tensor as a float32 scalar tensor."""
    if callable(value):
        value = value()
    tensor = tf.convert_to_tensor(value, name=name)
    return tensor if tensor.dtype == tf.float32 else tf.cast(tensor, tf.float32)


def scalars(**numbers: Any) -> Dict[str, tf.Tensor]:
    """Returns numbers and tensors by their names, each as `scalar` makes it."""
    return {name: scalar(value, name) for name, value in numbers.items()}


def register(optimizer: TableOptimizer) -> TableOptimizer:
    """Notes the optimizer as the one created last.

    Args:
        optimizer: A new optimizer.

    Returns:
        The same.

    Raises:
        EnvironmentError: If `init` was not called.
        ValueError: If it does not go together with `init(use_dynamic_expansion=...)`.
    """
    config = Settings.get_instance()
    if config.use_dynamic_expansion != optimizer.by_address:
        raise ValueError(
            "The dynamic expansion mode is not compatible with the optimizer {}: with "
            "init(use_dynamic_expansion=True) use an optimizer of a _by_addr module, without it "
            "one of the others.".format(type(optimizer).__name__))
    config.optimizer_config.optimizer_instance = optimizer
    return optimizer


class Rule(NamedTuple):
    """How an optimizer of TensorFlow updates the rows of a table.

    Attributes:
        name: Makes the name of the plugin's optimizer of the same rule.
        numbers: Makes its numbers by name from what the optimizer has prepared.
    """

    name: Callable[[Any], str]
    numbers: Callable[[Any], Dict[str, tf.Tensor]]

    def step(self, optimizer: Any) -> OptimizerStep:
        """Returns a step of an optimizer of TensorFlow, with its numbers prepared."""
        return optimizer_named(self.name(optimizer)).step(self.numbers(optimizer))


# What follows reads the attributes that each class sets in its constructor and in `_prepare`.
# pylint: disable=protected-access


def _of(**attributes: Any) -> Callable[[Any], Dict[str, tf.Tensor]]:
    """Returns what makes an optimizer's numbers of its attributes, or of floats as they are."""
    return lambda optimizer: scalars(**{
        name: getattr(optimizer, one) if isinstance(one, str) else one
        for name, one in attributes.items()})


def _of_adam(optimizer: Any) -> Dict[str, tf.Tensor]:
    beta1_power, beta2_power = optimizer._get_beta_accumulators()
    return scalars(lr=optimizer._lr_t, beta1_power=beta1_power, beta2_power=beta2_power,
                   beta1=optimizer._beta1_t, beta2=optimizer._beta2_t,
                   epsilon=optimizer._epsilon_t)


_LR = "_learning_rate_tensor"

# By exact class: a subclass of a script may compute anything else.
RULES = {
    _train.GradientDescentOptimizer: Rule(lambda _: "sgd", _of(lr=_LR, weight_decay=0.0)),
    _train.MomentumOptimizer: Rule(
        lambda optimizer: "nesterov" if optimizer._use_nesterov else "momentum",
        _of(lr=_LR, momentum="_momentum_tensor")),
    _train.AdagradOptimizer: Rule(
        lambda _: "adagrad", _of(lr=_LR, initial_accumulator="_initial_accumulator_value")),
    _train.AdamOptimizer: Rule(lambda _: "lazy_adam", _of_adam),
    _train.FtrlOptimizer: Rule(lambda _: "ftrl", _of(
        lr=_LR, lr_power="_learning_rate_power_tensor",
        initial_accumulator="_initial_accumulator_value",
        l1="_l1_regularization_strength_tensor",
        # 2.x has another number, beta, whose part of the update is in this one.
        l2="_l2_regularization_strength_tensor" if IS_1
        else "_adjusted_l2_regularization_strength_tensor",
        l2_shrinkage="_l2_shrinkage_regularization_strength_tensor")),
    _train.RMSPropOptimizer: Rule(
        lambda optimizer: "centered_rmsprop" if optimizer._centered else "rmsprop",
        _of(lr=_LR, decay="_decay_tensor", momentum="_momentum_tensor", epsilon="_epsilon_tensor",
            initial_rms=1.0)),
}
# pylint: enable=protected-access
