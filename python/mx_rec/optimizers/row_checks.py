"""Checks that a user-written update touches no other rows than those of its gradient."""

from typing import Any, Dict, List, Tuple

import tensorflow as tf

from mx_rec.edits.upstream import readings
from mx_rec.optimizers.rows_variable import RowsVariable
from mx_rec.tensorflow.names import tensor_util

# Ops that hand a variable on: its reference, handle or value.
_HAND_ON = frozenset(("Enter", "Identity", "ReadVariableOp", "RefEnter", "RefIdentity", "RefSwitch",
                      "Switch"))
# Ops that read rows of their first input.
_READ = frozenset(("Gather", "GatherNd", "GatherV2", "ResourceGather", "ResourceGatherNd"))
# How ops begin that write rows.
_WRITE = ("ResourceScatter", "ResourceSparseApply", "Scatter", "SparseApply")
# Ops whose names begin so and that do not write.
_NO_WRITE = frozenset(("ScatterNd", "ScatterNdNonAliasingAdd"))
# Ops that choose or rearrange indices, by the input that these are.
_REARRANGE = {"Cast": 0, "DynamicPartition": 0, "Enter": 0, "Exit": 0, "ExpandDims": 0, "Gather": 0,
              "GatherNd": 0, "GatherV2": 0, "Identity": 0, "PreventGradient": 0, "Reshape": 0,
              "ReverseV2": 0, "Slice": 0, "Split": 1, "SplitV": 0, "Squeeze": 0, "StopGradient": 0,
              "StridedSlice": 0, "Switch": 0, "Tile": 0, "Transpose": 0, "Unique": 0, "UniqueV2": 0,
              "UniqueWithCounts": 0, "UniqueWithCountsV2": 0, "Unpack": 0}
# Those of them of whose outputs the first alone holds indices.
_FIRST_OUTPUT = frozenset(("Merge", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"))
# Ops that hold indices if all of their data inputs do.
_JOIN = {"Concat": slice(1, None), "ConcatV2": slice(None, -1), "Merge": slice(None, None),
         "Pack": slice(None, None)}
# Ops that do not wait for all of their inputs.
_LATER = frozenset(("Merge", "RefMerge"))
# Ops whose results tell nothing of the numbers that go in.
_NUMBERLESS = frozenset(("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"))


class RowChecks:
    """The ops of one update: which of them use its variables, and by which indices.

    Args:
        optimizer: The optimizer, for messages.
        indices: The indices of the gradient, which are places in the variables.
        variables: The variables, while they hold something.
    """

    def __init__(self, optimizer: Any, indices: tf.Tensor, variables: List[RowsVariable]) -> None:
        self._optimizer = optimizer
        self._indices = indices
        # By id of a tensor: what it is the reference, handle or value of.
        self._of = {}  # type: Dict[int, RowsVariable]
        self._uses = []  # type: List[Tuple[tf.Operation, int, RowsVariable]]
        # By id: tensors of indices. The values keep the ids unique.
        self._derived = {}  # type: Dict[int, tf.Tensor]
        for variable in variables:
            self._follow(variable.held.tensor, variable)

    def run(self) -> List[tf.Operation]:
        """Checks all ops that there are by now.

        Returns:
            Those that use a variable.

        Raises:
            NotImplementedError: With the first op that is not possible.
        """
        self._derive()
        for op, place, variable in self._uses:
            self._check_use(op, place, variable)
        for tensor in list(self._derived.values()):
            for op, place in readings(tensor):
                self._check_index(op, place)
        return [op for op, _, _ in self._uses]

    def _follow(self, start: tf.Tensor, variable: RowsVariable) -> None:
        """Finds what uses a variable, also through ops that hand it on or write to it."""
        todo = [start]
        while todo:
            tensor = todo.pop()
            if id(tensor) in self._of:
                continue
            self._of[id(tensor)] = variable
            for op, place in readings(tensor):
                if op.type in _HAND_ON:
                    todo.extend(op.outputs)
                    continue
                self._uses.append((op, place, variable))
                if _is_write(op):
                    todo.extend(op.outputs)

    def _derive(self) -> None:
        """Finds the tensors that hold indices of the gradient and no other numbers."""
        todo = [self._indices]
        while todo:
            tensor = todo.pop()
            if id(tensor) in self._derived:
                continue
            self._derived[id(tensor)] = tensor
            for op, place in readings(tensor):
                if self._holds_indices(op, place):
                    todo.extend(op.outputs[:1] if op.type in _FIRST_OUTPUT else op.outputs)

    def _holds_indices(self, op: tf.Operation, place: int) -> bool:
        """Whether the output of a consumer of indices holds indices."""
        if op.type in _JOIN:
            return all(id(one) in self._derived for one in list(op.inputs)[_JOIN[op.type]])
        if op.type == "Cast" and not op.outputs[0].dtype.is_integer:
            return False
        return _REARRANGE.get(op.type) == place

    def _check_use(self, op: tf.Operation, place: int, variable: RowsVariable) -> None:
        """Checks an op that has a variable among its inputs."""
        arguments = _arguments(op)
        is_read = op.type in _READ and place == 0
        is_write = _is_write(op) and (arguments[place].is_ref
                                      or op.inputs[place].dtype == tf.resource)
        if not is_read and not is_write:
            self._refuse(variable, op, "")
        if op.type == "GatherV2" and (tensor_util.constant_value(op.inputs[2]) != 0
                                      or op.get_attr("batch_dims") != 0):
            self._refuse(variable, op, ", along another axis than the rows")
        if id(op.inputs[_index_place(op)]) not in self._derived:
            self._refuse(variable, op, ", at other rows than those of the gradient's indices")

    def _check_index(self, op: tf.Operation, place: int) -> None:
        """Checks an op that has indices among its inputs."""
        if op.type in _NUMBERLESS or self._holds_indices(op, place):
            return
        if op.type in _READ or _is_write(op):
            targets = [one for argument, one in zip(_arguments(op), op.inputs)
                       if argument.is_ref or one.dtype == tf.resource]
            targets = targets or [op.inputs[0]]
            if place == _index_place(op) and all(id(one) in self._of for one in targets):
                return
        raise NotImplementedError(
            "the optimizer {} uses the indices of the gradient of {} in the op {!r} of type {}. "
            "They name rows of the table's variable and of its slots from get_slot, and of nothing "
            "else: what is kept for each row has to be such a slot.".format(
                self._described(), next(iter(self._of.values())).described, op.name, op.type))

    def _refuse(self, variable: RowsVariable, op: tf.Operation, how: str) -> None:
        variable.refuse("by the optimizer {} in the op {!r} of type {}{}".format(
            self._described(), op.name, op.type, how))

    def _described(self) -> str:
        return "{!r} ({})".format(self._optimizer.get_name(), type(self._optimizer).__name__)


def runs_before(op: tf.Operation, others: List[tf.Operation], start: tf.Operation) -> bool:
    """Returns whether all of `others` run before `op`, or are it.

    What is joined after a condition runs on when one branch has ended: ops of the other branch,
    such as the Switch that hands it a reference, may run later.

    Args:
        op: An op.
        others: Ops that run after `start`.
        start: An op.
    """
    missing = set(others)
    seen = {start}
    todo = [op]
    while todo and missing:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        missing.discard(one)
        if one.type in _LATER:
            continue
        todo.extend(tensor.op for tensor in one.inputs)
        todo.extend(one.control_inputs)
    return not missing


def _is_write(op: tf.Operation) -> bool:
    return op.type.startswith(_WRITE) and op.type not in _NO_WRITE


def _arguments(op: tf.Operation) -> List[Any]:
    """Returns for each input of an op what its definition says of it."""
    arguments = []
    for argument in op.op_def.input_arg:
        count = 1
        if argument.number_attr:
            count = op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(op.get_attr(argument.type_list_attr))
        arguments.extend([argument] * count)
    return arguments


def _index_place(op: tf.Operation) -> int:
    """Returns which input of an op that reads or writes rows says which rows."""
    return [argument.name for argument in _arguments(op)].index("indices")
