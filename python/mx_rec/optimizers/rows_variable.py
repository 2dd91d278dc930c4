"""What a user-written optimizer sees of a table: a variable that holds the rows of one update."""

import copy
from typing import Any, Callable, List, NamedTuple, NoReturn, Optional

import tensorflow as tf

from mx_rec.state.table_variable import GraphVariable, described_name, without_value
from mx_rec.tensorflow.names import gen_state_ops, resource_variable_ops


class Held(NamedTuple):
    """What stands behind a RowsVariable while an update is built.

    Attributes:
        tensor: The reference of a temporary variable (u, dim), or the handle of a resource.
        snapshot: What a reference reads as; None for a resource.
    """

    tensor: tf.Tensor
    snapshot: Optional[tf.Tensor]


class RowsVariable(GraphVariable):
    """The embeddings or one slot of the rows that an update changes, as a variable (rows, dim).

    An optimizer gets it in the place of the variable of a table, and from `get_slot`. In the
    optimizer's sparse update it is an ordinary variable of unknown size, whose rows are those that
    the indices of the gradient name: it may be gathered from and scattered to by these indices.
    Everywhere else it has no value; its shape is (1, dim) then, so that an initial value of a slot
    can be made.

    Args:
        op: The op that makes the table.
        what: For messages, such as "the slot 'm'".
        name: What follows the table's name in the variable's name.
        use_resource: Whether the optimizer updates resource variables.
    """

    def __init__(self, op: tf.Operation, what: str, name: str, use_resource: bool) -> None:
        super().__init__(op)
        self._what = what
        self._suffix = name
        self.use_resource = use_resource
        # One list for all copies of the variable, which reads after an op make.
        self._held = [None]  # type: List[Optional[Held]]
        # The op that this variable is read after, if an update returned it.
        self._after = None  # type: Optional[tf.Operation]

    @property
    def held(self) -> Optional[Held]:
        """What stands behind it, None outside of an update."""
        return self._held[0]

    @held.setter
    def held(self, held: Optional[Held]) -> None:
        self._held[0] = held

    @property
    def described(self) -> str:
        """What it is, for messages."""
        return "{} of the table {!r}".format(self._what, described_name(self._op))

    @property
    def table_op(self) -> tf.Operation:
        """The op that makes the table."""
        return self._op

    @property
    def name(self) -> str:
        """A name for messages; no tensor has it."""
        return self._op.name + self._suffix + ":0"

    @property
    def op(self) -> tf.Operation:
        """The op that makes the table, by which optimizers tell variables apart."""
        return self._after or self._op

    @property
    def dtype(self) -> tf.DType:
        """tf.float32, or a reference to it, as of a variable that is no resource."""
        return tf.float32 if self.use_resource else tf.float32._as_ref  # pylint: disable=W0212

    @property
    def shape(self) -> tf.TensorShape:
        """(rows, dim); rows is unknown in an update and 1 outside of it."""
        return tf.TensorShape([1 if self.held is None else None,
                               self._op.outputs[0].shape[-1]])

    @property
    def trainable(self) -> bool:
        """Whether it is the embeddings."""
        return not self._suffix

    @property
    def constraint(self) -> None:
        """None."""
        return None

    @property
    def handle(self) -> tf.Tensor:
        """The handle of a resource variable; outside of an update the tensor of the table.

        Raises:
            AttributeError: In an update of reference variables.
        """
        if self.held is None:
            # TensorFlow colocates by it.
            return self._op.outputs[0]
        if not self.use_resource:
            raise AttributeError("a reference variable has no handle")
        return self.held.tensor

    @property
    def _should_act_as_resource_variable(self) -> None:
        if not self.use_resource:
            raise AttributeError("this is a reference variable")

    @property
    def _in_graph_mode(self) -> bool:
        return True

    @property
    def _save_slice_info(self) -> None:
        return None

    @property
    def _unique_id(self) -> str:
        return self.name

    def refuse(self, how: str) -> NoReturn:
        """Says that a use of it is not possible.

        Args:
            how: What was done.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "{} is used {}. An optimizer that updates a table may gather rows of its variable and "
            "of its slots by the indices of the gradient, and scatter to these rows, in "
            "_apply_sparse, _apply_sparse_duplicate_indices or their forms for resource variables, "
            "and nothing else: the rest of the table has no dense value.".format(
                self.described, how))

    def value(self) -> tf.Tensor:
        """Returns the rows of the update, (u, dim): what is gathered from."""
        if self.use_resource:
            with tf.control_dependencies([self._after] if self._after else []):
                return tf.raw_ops.ReadVariableOp(resource=self._tensor(), dtype=tf.float32)
        self._tensor()
        return self.held.snapshot

    def read_value(self) -> tf.Tensor:
        """Returns the rows of the update as they are when it is run."""
        return tf.identity(self.value() if self.use_resource else self._tensor())

    def sparse_read(self, indices: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
        """Gathers rows of a resource variable, as TensorFlow's method of that name."""
        if not self.use_resource:
            raise AttributeError("a reference variable is gathered from by its value")
        return tf.raw_ops.ResourceGather(resource=self._tensor(), indices=indices,
                                         dtype=tf.float32, name=name)

    def gather_nd(self, indices: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
        """Gathers rows of a resource variable, as TensorFlow's method of that name."""
        if not self.use_resource:
            return tf.raw_ops.GatherNd(params=self.value(), indices=indices, name=name)
        return tf.raw_ops.ResourceGatherNd(resource=self._tensor(), indices=indices,
                                           dtype=tf.float32, name=name)

    def _tensor(self) -> tf.Tensor:
        if self.held is None:
            self.refuse("outside of the update")
        return self.held.tensor

    def _ref(self) -> tf.Tensor:
        if self.use_resource:
            self.refuse("as a reference variable, and is a resource variable")
        return self._tensor()

    def _lazy_read(self, op: tf.Operation) -> "RowsVariable":
        """Returns the variable as it is after `op`, which scatters to a resource variable."""
        after = copy.copy(self)
        after._after = op  # pylint: disable=protected-access
        return after

    def __repr__(self) -> str:
        return "<mx_rec rows of {}>".format(self.described)


def _convert(value: RowsVariable, dtype: Optional[tf.DType] = None, name: Optional[str] = None,
             as_ref: bool = False) -> Any:
    del name
    if dtype is not None and not dtype.is_compatible_with(tf.float32):
        return NotImplemented
    if as_ref and not value.use_resource:
        return value._ref()  # pylint: disable=protected-access
    return value.value()


def _scatter(name: str) -> Callable[..., Any]:
    """Makes a method that scatters IndexedSlices, as tf.Variable has it."""

    def method(self: RowsVariable, sparse_delta: tf.IndexedSlices, use_locking: bool = False,
               name: Optional[str] = None) -> Any:
        if not isinstance(sparse_delta, tf.IndexedSlices):
            raise TypeError("sparse_delta is not IndexedSlices: {}".format(sparse_delta))
        if not self.use_resource:
            return getattr(gen_state_ops, stock)(
                self._ref(), sparse_delta.indices, sparse_delta.values, use_locking=use_locking,
                name=name)
        return self._lazy_read(getattr(resource_variable_ops, "resource_" + stock)(
            self._tensor(), sparse_delta.indices,
            tf.convert_to_tensor(sparse_delta.values, tf.float32), name=name))

    stock = name
    method.__name__ = name
    method.__doc__ = "As TensorFlow's method of that name."
    return method


def _scatter_nd(name: str) -> Callable[..., Any]:
    """Makes a method that scatters by indices (n, 1), as tf.Variable has it."""

    def method(self: RowsVariable, indices: tf.Tensor, updates: tf.Tensor,
               name: Optional[str] = None) -> Any:
        if not self.use_resource:
            return getattr(gen_state_ops, stock)(self._ref(), indices, updates, use_locking=True,
                                                 name=name)
        return self._lazy_read(getattr(gen_state_ops, "resource_" + stock)(
            self._tensor(), indices, tf.convert_to_tensor(updates, tf.float32), name=name))

    stock = name
    method.__name__ = name
    method.__doc__ = "As TensorFlow's method of that name."
    return method


for _name in ("add", "div", "max", "min", "mul", "sub", "update"):
    setattr(RowsVariable, "scatter_" + _name, _scatter("scatter_" + _name))
for _name in ("add", "sub", "update"):
    setattr(RowsVariable, "scatter_nd_" + _name, _scatter_nd("scatter_nd_" + _name))
without_value(
    RowsVariable,
    ("assign", "assign_add", "assign_sub", "batch_scatter_update", "count_up_to", "eval",
     "initialized_value", "is_initialized", "load", "set_shape", "to_proto", "__array__",
     "__iter__", "__len__", "_gather_saveables_for_checkpoint"),
    ("initial_value", "initializer"), RowsVariable.refuse, _convert)
