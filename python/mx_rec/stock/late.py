"""Ops that are made on a variable after it became a table: they work on the table, or say why not.

Before a run of a graph that has grown, the new ops that take a variable are replaced as the
conversion replaces others. One that a table does not know fails in the run that needs it. A run
that fetches the variable, or a copy of it, gets the rows of the table.
"""

from typing import Any, Dict, FrozenSet, Iterable, List, Sequence, Set, Tuple, Union

import tensorflow as tf

from mx_rec.edits.replacing import extensible, replace_waiting
from mx_rec.edits.upstream import upstream
from mx_rec.edits.wiring import (COPIES, Inputs, change_of, in_place_of, inputs_of,
                                 waits_instead, waits_of_copy)
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.changes import change, is_change
from mx_rec.stock.nodes import GATHERS, VARIABLES
from mx_rec.stock.rows import Rows, SlotRows
from mx_rec.tensorflow.names import tensor_util

# What brings a variable itself into a branch or a loop.
_ENTRIES = ("Switch", "RefSwitch", "Enter", "RefEnter")
_SHAPES = ("Shape", "VariableShape")
_STATES = ("IsVariableInitialized", "VarIsInitializedOp")

_Fetched = Union[tf.Tensor, tf.Operation]


class _Cannot(Exception):
    """Why an op cannot work on a table."""


class LateOps:
    """The variables of a graph that became tables, and what gives them on.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        # The ops of variables, those that copy them, and those that changed them and give them on.
        self._rows = {}  # type: Dict[tf.Operation, Rows]
        self._values = {}  # type: Dict[tf.Operation, tf.Tensor]
        # What gives variables in the place of reads: a program may hold it.
        self._read = {}  # type: Dict[tf.Operation, Rows]
        # What gives reference variables behind ops that change their tables, and what runs give.
        self._behind = {}  # type: Dict[Tuple[str, FrozenSet[tf.Operation]], tf.Tensor]
        self._at_end = {}  # type: Dict[Tuple[str, FrozenSet[str], FrozenSet[str]], tf.Tensor]
        # The ends of the names of ops that variables were read by, and what was read.
        self._ends = set()  # type: Set[Tuple[type, str]]
        self._seen = 0
        #: The version of the graph when that was so.
        self.version = 0
        #: The ops that were looked at when some of them were replaced, and what they took.
        self.replaced = []  # type: List[Inputs]

    def add(self, variables: List[Rows]) -> None:
        """Takes on variables that became tables, whose ops are replaced.

        Args:
            variables: Their rows.
        """
        if self._rows:
            self.adopt()
        added = {}  # type: Dict[str, Rows]
        for rows in variables:
            added[rows.plan.name] = rows
            added.update((slot.variable, SlotRows(rows, slot)) for slot in rows.plan.slots)
        self._read.update((value, rows) for rows in variables for value in rows.values)
        for name, rows in added.items():
            op = self._graph.get_operation_by_name(name)
            self._note(op, rows)
            self._add_copies(op, rows)
        self._release_waiting()
        self._has_seen_all()

    def _has_seen_all(self) -> None:
        self._seen, self.version = len(self._graph.get_operations()), self._graph.version

    def _add_copies(self, op: tf.Operation, rows: Rows) -> None:
        """Notes the copies of a variable that nothing has read so far."""
        for output in op.outputs:
            for copy in output.consumers():
                # What was replaced has no output of its own any more.
                if copy.type in COPIES + _ENTRIES and copy not in self._rows \
                        and copy.outputs[0].op is copy:
                    self._note(copy, rows)
                    self._add_copies(copy, rows)
                elif change_of(copy) is not None and copy.inputs[0] is output:
                    self._note(copy, rows)

    def _note(self, op: tf.Operation, rows: Rows) -> None:
        """Notes an op that is a variable or gives it on."""
        self._rows[op] = rows
        for output in op.outputs:
            # What reads it reads the table.
            self._graph.prevent_feeding(output)

    def adopt(self) -> None:
        """Replaces the ops that were made since the last time."""
        if len(self._graph.get_operations()) == self._seen:
            return
        with extensible(self._graph):
            new = self._graph.get_operations()[self._seen:]
            before = [inputs_of(op) for op in new]
            is_replacing = [waits_instead(op) for op in new]
            # TensorFlow makes the entries to a branch or loop after what they are for.
            for op in new:
                if op.type in _ENTRIES and _is_itself(op.inputs[0]) \
                        and op.inputs[0].op in self._rows and _context_of(op) is not None:
                    self._note(op, self._rows[op.inputs[0].op])
            self._at_end.clear()
            is_replacing += [self._adopt(op) for op in new if op not in self._rows]
            if any(is_replacing) or not self._rows.keys().isdisjoint(new):
                self.replaced.extend(before)
            self._release_waiting()
            self._has_seen_all()

    def instead_of(self, fetched: _Fetched) -> _Fetched:
        """Returns what a run gives in the place of a tensor or an op that is asked for.

        Args:
            fetched: Any of the graph.

        Raises:
            NotImplementedError: If it is a variable whose table cannot give its value.
        """
        op = fetched if isinstance(fetched, tf.Operation) else fetched.op
        rows = self._rows.get(op)
        if isinstance(fetched, tf.Operation):
            made = change_of(op)
            if made is not None:
                return made
            return self._fetched(op, rows).op if rows is not None and op.type in COPIES else op
        if rows is None or fetched.dtype == tf.resource:
            return fetched
        return self._fetched(op, rows)

    def at_end(self, fetched: _Fetched, ran: Sequence[_Fetched], fed: Iterable[str]) -> _Fetched:
        """Returns what a run gives of a reference variable that it may change.

        A copy of one that is fetched is its memory: it has what is there when the run ends.

        Args:
            fetched: What the run computes, in the place of a copy or other than that.
            ran: All that it computes.
            fed: The names of the tensors that it is fed.
        """
        if isinstance(fetched, tf.Operation):
            return fetched
        op = fetched.op
        while op.type == "Identity" and _context_of(op) is None:
            op = op.inputs[0].op
        rows = self._read.get(op)
        if rows is None or self._graph.get_operation_by_name(
                _name_of(rows)).type == "VarHandleOp":
            return fetched
        given = frozenset(fed)
        key = fetched.name, frozenset(one.name for one in ran), given
        if key not in self._at_end:
            changes = rows.changes()
            self._at_end[key] = self._value_behind(fetched, rows, frozenset(
                getattr(one, "op", one) for one in ran if not changes.isdisjoint(
                    upstream([one], control_inputs=True, given=given))))
        return self._at_end[key]

    def _value_behind(self, fetched: tf.Tensor, rows: Rows,
                      changing: FrozenSet[tf.Operation]) -> tf.Tensor:
        """Returns a variable as it is behind ops that a run computes and that change its table."""
        if not changing.difference([fetched.op]):
            return fetched
        key = _name_of(rows), changing
        if key not in self._behind:
            with extensible(self._graph):
                self._behind[key] = rows.value(self._graph.get_operation_by_name(key[0]),
                                               waits=sorted(changing, key=lambda op: op.name))
        return self._behind[key]

    def values(self) -> Dict[tf.Operation, tf.Tensor]:
        """Returns what the variables would hold that are tables, by their ops."""
        with extensible(self._graph):
            return {op: self._value(op, rows) for op, rows in list(self._rows.items())
                    if op.type in VARIABLES}

    def _fetched(self, op: tf.Operation, rows: Rows) -> tf.Tensor:
        try:
            with extensible(self._graph):
                if op not in self._values:
                    # A program that asks for one variable after the other grows the graph twice.
                    for other, others in self._alike(op, rows):
                        self._value(other, others)
                return self._value(op, rows)
        except _Cannot as why:
            raise NotImplementedError(_text(rows, op, str(why))) from None

    def _alike(self, op: tf.Operation, rows: Rows) -> List[Tuple[tf.Operation, Rows]]:
        """Returns the ops that read other variables as an op reads one, by their names.

        None for the first variable that is read so.
        """
        end = op.name[len(_name_of(rows)):]
        if (type(rows), end) not in self._ends:
            self._ends.add((type(rows), end))
            return []
        return [(other, others) for other, others in self._rows.items()
                if other.type == op.type and other.type in COPIES and not other.control_inputs
                and not others.plan.on_servers and not others.plan.ids.is_lifted
                and type(others) is type(rows) and other.name == _name_of(others) + end
                and _context_of(other) is None and other not in self._values]

    def _value(self, op: tf.Operation, rows: Rows) -> tf.Tensor:
        """Returns the value that an op gives of a variable."""
        if op not in self._values:
            _check(rows, "")
            if op.type == "RefMerge":
                values = [self._value(one.op, rows) for one in op.inputs]
                with in_place_of(op, device=rows.device):
                    self._values[op] = tf.raw_ops.Merge(inputs=values)[0]
            else:
                self._values[op] = rows.value(op)
                self._read[self._values[op].op] = rows
        return self._values[op]

    def _value_for(self, reader: tf.Operation, tensor: tf.Tensor, rows: Rows) -> tf.Tensor:
        """Returns the value of a variable for a new op that takes a tensor of it."""
        # A Merge takes what a branch gives, and not what is read beside the branch.
        if tensor.op.type != "RefMerge" and reader.type != "Merge":
            _check(rows, "")
            value = rows.value_behind(tensor.op, reader)
            if value is not None:
                return value
        return tensor if tensor.op in self._read else self._value(tensor.op, rows)

    def _adopt(self, op: tf.Operation) -> bool:
        """Replaces a new op, or what it reads, if that is a variable; returns whether it is."""
        known = [self._rows.get(tensor.op, self._read.get(tensor.op)) for tensor in op.inputs]
        found = [(position, tensor, rows) for position, (tensor, rows) in enumerate(
            zip(op.inputs, known)) if rows is not None]
        try:
            # The first input is what the op works on; replaced, it reads the others.
            for position, tensor, rows in reversed(found):
                self._replace(op, position, tensor, rows)
        except _Cannot as why:
            refuse(op, _text(found[0][2], op, str(why)),
                    [position for position, tensor, _ in found if not _is_itself(tensor)])
        return bool(found)

    def _replace(self, op: tf.Operation, position: int, tensor: tf.Tensor, rows: Rows) -> None:
        kind, is_first = op.type, position == 0
        is_itself = _is_itself(tensor)
        if (is_first and kind in COPIES) or (kind == "RefMerge" and all(
                self._rows.get(one.op) is rows for one in op.inputs)):
            self._note(op, rows)
        elif is_first and is_itself and is_change(op):
            _check(rows, "changes")
            change(rows, op)
            # Of a reference variable it gives the variable on.
            self._note(op, rows)
        elif is_first and kind in GATHERS and _is_by_rows(op):
            _check(rows, "ids")
            rows.look_up(op, False)
        elif is_first and kind in _SHAPES:
            rows.shape(op)
        elif is_first and kind in _STATES:
            rows.state(op)
        elif tensor.dtype == tf.resource or _takes_itself(op, position):
            raise _Cannot("tables do not know such ops")
        else:
            op._update_input(  # pylint: disable=protected-access
                position, self._value_for(op, tensor, rows))

    def _release_waiting(self) -> None:
        """Makes ops that wait for a copy of a variable wait for what the copy waits for."""
        for op in list(self._rows):
            # pylint: disable=protected-access
            if op.type in COPIES and op._control_outputs:
                with in_place_of(op, waits_of_copy(op.outputs[0]), scope=op.name + "/table"):
                    done = tf.no_op(name="waited")
                replace_waiting(op, [done])


def _name_of(rows: Rows) -> str:
    """Returns the name of a variable's op."""
    return rows.plan.name if rows.slot is None else rows.slot.variable


def _is_itself(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a variable, and not its value."""
    return tensor.dtype == tf.resource or tensor.dtype._is_ref_dtype  # pylint: disable=W0212


def _context_of(op: tf.Operation) -> Any:
    return op._get_control_flow_context()  # pylint: disable=protected-access


def _takes_itself(op: tf.Operation, position: int) -> bool:
    """Whether an op takes a reference of a variable as such."""
    arguments = op.op_def.input_arg
    return position < len(arguments) and arguments[position].is_ref


def _is_by_rows(op: tf.Operation) -> bool:
    """Whether a gather takes rows by ids."""
    if op.type == "GatherV2" and tensor_util.constant_value(op.inputs[2]) != 0:
        return False
    return op.node_def.attr["batch_dims"].i == 0 and op.inputs[1].dtype in (tf.int32, tf.int64)


def _check(rows: Rows, use: str) -> None:
    """Refuses what a table cannot do.

    Args:
        rows: The rows.
        use: "changes", or lookups by "ids", or else a read of the whole.
    """
    plan = rows.plan
    if plan.on_servers and (use == "changes" or rows.slot is not None):
        raise _Cannot("the table is on parameter servers")
    if plan.ids.is_lifted and (plan.on_servers or (use and not plan.ids.keeps_rows)):
        raise _Cannot("the table is by ids without limits, which are not those of the variable")


def _text(rows: Rows, op: tf.Operation, why: str) -> str:
    """Returns the text of the error of an op that cannot work on a table."""
    return "the variable {} {} the table {}, which {} ({}) cannot use: {}. Once the graph is " \
        "converted, assign, assign_add, assign_sub, scatter_update, scatter_add, scatter_sub, " \
        "scatter_nd_* of rows, gathers of rows and reads of the whole work. Make other ops " \
        "before that, or leave the variable's name out of init(stock_tables=...).".format(
            _name_of(rows), "is" if rows.slot is None else "is a slot of", rows.plan.table,
            op.name, op.type, why)


def refuse(op: tf.Operation, text: str, positions: Sequence[int] = ()) -> None:
    """Makes an op that no session has run fail.

    Args:
        op: The op.
        text: What the error says.
        positions: Its inputs that are values of variables, which would fail with another error.
    """
    # pylint: disable=protected-access
    with in_place_of(op, scope=op.name + "/table"):
        failing = tf.raw_ops.Assert(condition=tf.constant(False), data=[tf.constant(text)])
        with tf.control_dependencies([failing]):
            for position in positions:
                op._update_input(position, tf.zeros(op.inputs[position].shape))
    op._add_control_input(failing)


def late_ops(graph: tf.Graph) -> LateOps:
    """Returns what replaces ops that are made later in a graph, made at first use."""
    state = graph_state(graph)
    if state.late_ops is None:
        state.late_ops = LateOps(graph)
    return state.late_ops
