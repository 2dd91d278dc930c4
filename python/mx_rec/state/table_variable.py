"""The variable of a table: what optimizers update, without a dense value."""

import json
from typing import Any, Callable, Iterable, List, NoReturn, Optional, Sequence

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from mx_rec.tensorflow.names import DenseLike, register_dense_like, tensor_util
from mx_rec.tensorflow.names import session as session_module

TABLE_OP = "MxRecTable"
# What stands for a table on parameter servers.
CLUSTER_TABLE_OP = "MxRecClusterTable"
# Attribute of such an op: the device of one of its parts.
SHARED_DEVICE = "_mx_rec_shared_device"
_TABLE_OPS = (TABLE_OP, CLUSTER_TABLE_OP)

# Attribute of such an op, also in exported graphs: the change that made it was taken back.
_UNDONE = "_mx_rec_undone"

# Attribute of an op of type MxRecTable: its one TableVariable.
_VARIABLE = "_mx_rec_variable"


def table_ops(graph: tf.Graph, *types: str) -> List[tf.Operation]:
    """Returns the ops of a graph that stand for tables, but for those that were undone.

    Args:
        graph: The graph.
        types: Of which types; none: of all.
    """
    return [op for op in graph.get_operations() if op.type in (types or _TABLE_OPS)
            and not is_undone(op)]


def undo_tables(ops: Iterable[tf.Operation]) -> None:
    """Marks the tables among ops, which stay in their graph, and nothing runs them any more.

    Args:
        ops: The ops of a change that is taken back.
    """
    for op in ops:
        if op.type in _TABLE_OPS:
            op._set_attr(  # pylint: disable=protected-access
                _UNDONE, attr_value_pb2.AttrValue(b=True))


def is_undone(op: tf.Operation) -> bool:
    """Returns whether an op that stands for a table was marked by `undo_tables`.

    Args:
        op: The op.
    """
    return _UNDONE in op.node_def.attr


class GraphVariable(tf.compat.v1.Variable, DenseLike):
    """Stands for the rows of a table, or some of them, where TensorFlow wants a variable.

    It is equal to itself alone. `without_value` says what has no meaning for it.

    Args:
        op: The op that makes the table.
    """

    def __init__(self, op: tf.Operation) -> None:
        # The constructor of tf.Variable would make an ordinary variable.
        # pylint: disable=super-init-not-called
        self._op = op

    @property
    def op(self) -> tf.Operation:
        """The op that makes the table."""
        return self._op

    @property
    def graph(self) -> tf.Graph:
        """The outermost graph."""
        return self._op.graph

    @property
    def device(self) -> str:
        """Device of the op that makes the table."""
        return self._op.device

    @property
    def _shared_name(self) -> str:
        return self._op.name

    def _as_graph_element(self) -> tf.Operation:
        # For control dependencies, and to find the graph. Session.run does not come here.
        return self.op

    def __str__(self) -> str:
        return repr(self)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: Any) -> bool:
        return self is other

    def __ne__(self, other: Any) -> bool:
        return self is not other


class TableVariable(GraphVariable):
    """Stands for all rows of a table in tf.gradients, optimizers and collections.

    It has no dense value: whatever reads or assigns the value, such as
    arithmetic, tf.nn.l2_loss, tf.convert_to_tensor or session.run, raises a NotImplementedError
    that names the table. Each op that makes a table has one such object, also in an imported graph;
    see `table_variable`.
    """

    @property
    def name(self) -> str:
        """Name of the tensor that stands for the table in the graph."""
        return self._ref().name

    @property
    def device(self) -> str:
        """Device of the op that makes the table; of a table on parameter servers that of one part.

        What TensorFlow places beside a variable, as the accumulators of SyncReplicasOptimizer, is
        so placed where all workers find it.
        """
        return getattr(self._op, SHARED_DEVICE, self._op.device)

    @property
    def dtype(self) -> tf.DType:
        """tf.float32."""
        return self._ref().dtype

    @property
    def shape(self) -> tf.TensorShape:
        """(0, floats per row): the number of rows is not known to the graph."""
        return self._ref().shape

    @property
    def trainable(self) -> bool:
        """True."""
        return True

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        """tf.VariableSynchronization.AUTO."""
        return tf.VariableSynchronization.AUTO

    @property
    def aggregation(self) -> tf.VariableAggregation:
        """tf.VariableAggregation.NONE."""
        return tf.VariableAggregation.NONE

    @property
    def _id(self) -> int:
        # By this number tf.GradientTape knows what it watches.
        return self._ref()._id  # pylint: disable=protected-access

    def _ref(self) -> tf.Tensor:
        """Returns the raw tensor, of shape (0, dim), which the ops of lookups take."""
        return self._op.outputs[0]

    def to_proto(self, export_scope: Optional[str] = None) -> NoReturn:
        """Raises TypeError, upon which export_meta_graph leaves a collection of variables out."""
        del export_scope
        raise TypeError("{!r} is no VariableDef".format(self))

    def __repr__(self) -> str:
        return "<mx_rec variable {!r} of the table {!r}, {} floats per row>".format(
            self.name, described_name(self._op), self.shape[-1])

    def __bool__(self) -> NoReturn:
        refuse_value(self)


def table_variable(op: tf.Operation) -> TableVariable:
    """Returns the one variable of an op of type MxRecTable."""
    variable = getattr(op, _VARIABLE, None)
    if variable is None:
        variable = TableVariable(op)
        setattr(op, _VARIABLE, variable)
    return variable


def is_table_variable(value: Any) -> bool:
    """Returns whether `value` is the variable of a table, or the raw tensor that stands for it."""
    return isinstance(value, TableVariable) or (
        isinstance(value, tf.Tensor) and value.op.type in _TABLE_OPS and value.value_index == 0)


def raw_tensor(value: Any) -> Any:
    """Returns the raw tensor of a table's variable, and any other value as it is."""
    return value.op.outputs[0] if isinstance(value, TableVariable) else value


def row_shape(variable: TableVariable) -> tf.Tensor:
    """Returns a tensor of the variable's shape by which no gradient reaches the variable.

    For lookups without gradient: in a loop of control flow v2 those that read the variable itself
    would have gradients of zeros, in a dense tensor.
    """
    return variable.op.inputs[1]


def table_op_of(tensor: tf.Tensor) -> tf.Operation:
    """Returns the op that makes the table whose output comes as `tensor` into a branch or function.

    Args:
        tensor: An output of the op, or what stands for it inside of control flow or functions.

    Returns:
        The op, or that of `tensor` if it comes from anywhere else.
    """
    op = tensor.op
    while op.type not in _TABLE_OPS:
        captured = dict(zip(map(id, getattr(op.graph, "internal_captures", ())),
                            getattr(op.graph, "external_captures", ())))
        if op.outputs and id(op.outputs[0]) in captured:
            op = captured[id(op.outputs[0])].op
        elif op.type in ("Switch", "Enter", "Identity"):
            op = op.inputs[0].op
        else:
            return tensor.op
    return op


def own_variables(values: List[Any]) -> List[Any]:
    """Returns `values` with the variable of a table in the place of its raw tensor.

    A graph that was imported has raw tensors in its collections.
    """
    return [table_variable(value.op) if is_table_variable(value) else value for value in values]


def table_name_of(op: tf.Operation) -> str:
    """Returns the name of the table that an op of type MxRecTable makes; see `table_config_of`."""
    return table_config_of(op)["name"]


def table_config_of(op: tf.Operation) -> Any:
    """Returns name, dim, capacity and the rest that an op of type MxRecTable is configured with.

    Raises:
        ValueError: If the op's configuration is not a constant.
    """
    config = tensor_util.constant_value(op.inputs[0])
    if config is None:
        raise ValueError("the configuration of the table op {!r} is not a constant, so that its "
                         "name is not known.".format(op.name))
    return json.loads(config.tobytes().decode("utf-8"))


def described_name(op: tf.Operation) -> str:
    """Returns the name of a table for an error message, or the op's where that is not known."""
    try:
        return table_name_of(op) if op.type in _TABLE_OPS else op.name
    except ValueError:
        return op.name


def refuse_shared(op: tf.Operation, what: str) -> None:
    """Refuses what tables on parameter servers cannot do yet.

    Args:
        op: The op that makes or stands for a table.
        what: What was asked for, the subject of a sentence.

    Raises:
        NotImplementedError: If the table is on parameter servers.
    """
    if op.type == CLUSTER_TABLE_OP:
        raise NotImplementedError(
            "{} cannot work on the table {!r} yet, which is on parameter servers "
            "(docs/cluster.md).".format(what, described_name(op)))


def refuse_shared_tables(graph: tf.Graph, what: str) -> None:
    """Refuses what graphs with tables on parameter servers cannot do yet, as `refuse_shared`."""
    for op in graph.get_operations():
        refuse_shared(op, what)


def refuse_value(variable: TableVariable) -> NoReturn:
    """Says that a table has no dense value.

    Args:
        variable: What something wanted to read or to assign.

    Raises:
        NotImplementedError: Always. TensorFlow puts texts of its own in the place of a TypeError or
            a ValueError where it converts a list.
    """
    raise NotImplementedError(
        "the table {!r} has no dense value: its variable {!r} is not a tensor that can be read, "
        "fetched, fed or assigned. Rows enter the model by sparse_lookup (for a penalty on them, "
        "use the embeddings that it returns); optimizers of mx_rec.optimizers update them; "
        "mx_rec.saver.sparse.export and tf.compat.v1.train.Saver write all of them.".format(
            described_name(variable.op), variable.name))


def _convert(value: TableVariable, dtype: Optional[tf.DType] = None, name: Optional[str] = None,
             as_ref: bool = False) -> tf.Tensor:
    """Converts to a tensor where a reference is asked for, as tf.gradients does with its xs."""
    del dtype, name
    if not as_ref:
        refuse_value(value)
    return raw_tensor(value)


def without_value(kind: type, methods: Sequence[str], properties: Sequence[str],
                  refuse: Callable[[Any, str], NoReturn], convert: Callable[..., Any]) -> None:
    """Has uses of variables that need a dense value raise an error, of session.run as well.

    Args:
        kind: The variables' class, a GraphVariable.
        methods: Names of its methods that do.
        properties: Names of its properties that do.
        refuse: Takes a variable and how it is used, and raises the error.
        convert: Converts a variable to a tensor, as TensorFlow asks for it.
    """

    def refusing(name: str) -> Callable[..., NoReturn]:
        def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
            del args, kwargs
            refuse(self, "by its attribute {!r}".format(name))

        method.__name__ = name
        method.__doc__ = "Raises NotImplementedError: there is no dense value."
        return method

    def run(variable: Any, value: Any = None) -> NoReturn:
        del value
        refuse(variable, "in session.run")

    for name in methods:
        setattr(kind, name, refusing(name))
    for name in properties:
        setattr(kind, name, property(refusing(name)))
    tf.register_tensor_conversion_function(kind, convert)
    register_dense_like(kind)
    session_module.register_session_run_conversion_functions(kind, run, run, run)


without_value(
    TableVariable,
    ("assign", "assign_add", "assign_sub", "batch_scatter_update", "count_up_to", "eval",
     "gather_nd", "initialized_value", "is_initialized", "load", "read_value", "scatter_add",
     "scatter_div", "scatter_max", "scatter_min", "scatter_mul", "scatter_nd_add", "scatter_nd_sub",
     "scatter_nd_update", "scatter_sub", "scatter_update", "set_shape", "sparse_read", "value",
     "__array__", "__iter__", "__len__", "_gather_saveables_for_checkpoint"),
    # TensorFlow's optimizers ask a variable for the last two.
    ("initial_value", "initializer", "_lazy_read", "constraint", "_save_slice_info"),
    lambda variable, _: refuse_value(variable), _convert)
